//! Text of a calibration: errors, parameters, and parameters that the data determine only in combination.

use std::fmt::Write as _;

use fabricast_reports::table::{Column, Table, TextOptions, Unit, Value, stacked};
use fabricast_validate::calibrate::{LeftOutUnit, Residual};
use fabricast_validate::compare::{Coverage, Summary};

use super::figure::{self, ParameterEstimate};
use super::{CalibrationAnswer, ErrorsByChoice};

pub fn calibration_text(answer: &CalibrationAnswer<'_>, options: &TextOptions) -> String {
    let mut text = stacked(&[errors(answer), parameters(answer, |value| format!("{value:10.4}"))], options);
    let inseparable = &answer.calibration.inseparable;
    let (undetermined, combined): (Vec<_>, Vec<_>) = inseparable.iter().partition(|set| set.len() == 1);
    if !undetermined.is_empty() {
        let names: Vec<String> = undetermined.into_iter().flatten().map(|parameter| parameter.name()).collect();
        text = format!("{}\n\nnot determined by any row, unchanged: {}\n", text.trim_end(), names.join(", "));
    }
    if !combined.is_empty() {
        text = format!("{}\n\nthe data determine only combinations of:\n", text.trim_end());
        for set in combined {
            let names: Vec<String> = set.iter().map(|parameter| parameter.name()).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}", names.join(", "));
        }
    }
    text
}

fn errors(answer: &CalibrationAnswer<'_>) -> Table {
    let mut table = Table::new(vec![
        Column::new("rows_of", "error of predictions", Unit::Text),
        Column::new("rows", "rows", Unit::Number),
        Column::new("median", "median", Unit::Percent),
        Column::new("p90", "p90", Unit::Percent),
        Column::new("bias", "bias", Unit::Percent),
        Column::new("inside", "in band", Unit::Percent),
    ]);
    for ErrorLine { label, summary, coverage } in lines(answer).into_iter().filter(|line| line.summary.rows > 0) {
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

/// Error statistics of a set of rows.
pub struct ErrorLine {
    /// Description of the rows.
    pub label: String,
    pub summary: Summary,
    /// Coverage of prediction intervals; `None` for rows that were not held out.
    pub coverage: Option<Coverage>,
}

/// Error statistics by set of rows: fitted rows, rows of other launch modes, and held-out rows.
pub fn lines(answer: &CalibrationAnswer<'_>) -> Vec<ErrorLine> {
    let calibration = answer.calibration;
    let fitted = answer.by_choice(&calibration.fitted);
    let mut lines = vec![
        ErrorLine { label: "fitted, algorithm and protocol forced".to_owned(), summary: fitted.forced, coverage: None },
        ErrorLine { label: "fitted, all".to_owned(), summary: fitted.all, coverage: None },
        ErrorLine {
            label: "other launch modes, device costs fixed".to_owned(),
            summary: answer.by_choice(&calibration.launches).all,
            coverage: None,
        },
    ];
    let mut push_left_out = |label: String, rows: &[Residual], coverage| {
        let ErrorsByChoice { all, forced, chosen } = answer.by_choice(rows);
        lines.push(ErrorLine { label: format!("{label}, forced"), summary: forced, coverage: None });
        lines.push(ErrorLine { label: format!("{label}, chosen by the library"), summary: chosen, coverage: None });
        lines.push(ErrorLine { label: format!("{label}, all"), summary: all, coverage: Some(coverage) });
    };
    let unit = match calibration.left_out {
        LeftOutUnit::Fifth => "a fifth",
        LeftOutUnit::Cluster => "a cluster",
    };
    push_left_out(format!("{unit} held out and predicted"), &calibration.cross_validated, calibration.coverage);
    for held_out in &calibration.held_out {
        push_left_out(
            format!("held out and predicted: {}", held_out.selection),
            &held_out.residuals,
            held_out.coverage,
        );
    }
    lines
}

fn parameters(answer: &CalibrationAnswer<'_>, format_value: impl Fn(f64) -> String) -> Table {
    let first = Column::new("parameter", "parameter", Unit::Text);
    let mut table =
        figure::table(first, answer.calibration.estimates.iter().map(ParameterEstimate::from), format_value);
    table.heading("");
    table
}

/// Parameters with their intervals as a CSV table.
pub fn csv(answer: &CalibrationAnswer<'_>) -> Table {
    parameters(answer, |value| value.to_string())
}
