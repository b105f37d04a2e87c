//! Text of a calibration: errors, parameters, and parameters that the data cannot separate.

use std::fmt::Write as _;

use fabricast_reports::table::{Column, Table, TextOptions, Unit, Value, stacked};
use fabricast_validate::calibrate::Residual;
use fabricast_validate::compare::{Coverage, Summary};

use super::figure::{self, ParameterEstimate};
use super::{Answer, ErrorsByChoice};

pub fn calibration_text(answer: &Answer<'_>, options: &TextOptions) -> String {
    let mut text = stacked(&[errors(answer), parameters(answer, |value| format!("{value:10.4}"))], options);
    let inseparable = &answer.calibration.inseparable;
    let (undetermined, combined): (Vec<_>, Vec<_>) = inseparable.iter().partition(|set| set.len() == 1);
    if !undetermined.is_empty() {
        let names: Vec<String> = undetermined.into_iter().flatten().map(|parameter| parameter.name()).collect();
        text = format!("{}\n\nno row tells, and as before: {}\n", text.trim_end(), names.join(", "));
    }
    if !combined.is_empty() {
        text = format!("{}\n\nthe data tell combinations only of:\n", text.trim_end());
        for set in combined {
            let names: Vec<String> = set.iter().map(|parameter| parameter.name()).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}", names.join(", "));
        }
    }
    text
}

fn errors(answer: &Answer<'_>) -> Table {
    let mut table = Table::new(vec![
        Column::new("rows_of", "error of predictions", Unit::Text),
        Column::new("rows", "rows", Unit::Number),
        Column::new("median", "median", Unit::Percent),
        Column::new("p90", "p90", Unit::Percent),
        Column::new("bias", "bias", Unit::Percent),
        Column::new("inside", "in band", Unit::Percent),
    ]);
    for (label, summary, coverage) in lines(answer).into_iter().filter(|(_, summary, _)| summary.rows > 0) {
        table.row(vec![
            Value::text(label).into(),
            Value::Count(summary.rows as u64).into(),
            Value::Share(summary.median).into(),
            Value::Share(summary.p90).into(),
            Value::Deviation(summary.bias).into(),
            Value::or_missing(coverage, |coverage| Value::Share(coverage.share())).into(),
        ]);
    }
    table
}

/// Error statistics by set of rows, with the coverage of prediction intervals for rows that were held out.
pub fn lines(answer: &Answer<'_>) -> Vec<(String, Summary, Option<Coverage>)> {
    let calibration = answer.calibration;
    let fitted = answer.by_choice(&calibration.fitted);
    let mut lines = vec![
        ("fitted, algorithm and protocol forced".to_owned(), fitted.forced, None),
        ("fitted, all".to_owned(), fitted.all, None),
        ("other launch modes, device costs kept".to_owned(), answer.by_choice(&calibration.launches).all, None),
    ];
    let mut push_left_out = |label: String, rows: &[Residual], coverage| {
        let ErrorsByChoice { all, forced, chosen } = answer.by_choice(rows);
        lines.push((format!("{label}, forced"), forced, None));
        lines.push((format!("{label}, chosen by the library"), chosen, None));
        lines.push((format!("{label}, all"), all, Some(coverage)));
    };
    push_left_out("a fifth left out and predicted".to_owned(), &calibration.cross_validated, calibration.coverage);
    for held_out in &calibration.held_out {
        push_left_out(
            format!("left out and predicted: {}", held_out.selection),
            &held_out.residuals,
            held_out.coverage,
        );
    }
    lines
}

fn parameters(answer: &Answer<'_>, format_value: impl Fn(f64) -> String) -> Table {
    let first = Column::new("parameter", "parameter", Unit::Text);
    let mut table =
        figure::table(first, answer.calibration.estimates.iter().map(ParameterEstimate::from), format_value);
    table.heading("");
    table
}

/// Parameters as CSV.
pub fn csv(answer: &Answer<'_>) -> Table {
    parameters(answer, |value| value.to_string())
}
