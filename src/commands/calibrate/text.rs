//! The calibration as text: errors, parameters, what the data cannot tell apart.

use std::fmt::Write as _;

use fabricast_reports::table::{Column, Look, Table, Unit, Value, stacked};
use fabricast_validate::compare::Summary;

use super::Answer;

pub fn of(answer: &Answer<'_>, look: &Look) -> String {
    let mut text = stacked(&[errors(answer), parameters(answer, |value| format!("{value:10.4}"))], look);
    let entangled = &answer.calibration.entangled;
    if !entangled.is_empty() {
        text = format!("{}\n\nthe data tell combinations only of:\n", text.trim_end());
        for set in entangled {
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
    ]);
    let held_out = answer.calibration.held_out.iter().map(|held_out| {
        let what = format!("left out and predicted: {}", held_out.what);
        (what, Summary::of(held_out.residuals.iter().map(|row| row.error)))
    });
    let fitted = answer.fitted().map(|(what, summary)| (what.to_owned(), summary));
    for (what, summary) in fitted.into_iter().chain(held_out).filter(|(_, summary)| summary.rows > 0) {
        table.row(vec![
            Value::text(what).into(),
            Value::Count(summary.rows as u64).into(),
            Value::Share(summary.median).into(),
            Value::Share(summary.p90).into(),
            Value::Deviation(summary.bias).into(),
        ]);
    }
    table
}

fn parameters(answer: &Answer<'_>, shown: impl Fn(f64) -> String) -> Table {
    let mut table = Table::new(vec![
        Column::new("parameter", "parameter", Unit::Text),
        Column::new("value", "value", Unit::Text),
        Column::new("low", "80 % between", Unit::Text),
        Column::new("high", "and", Unit::Text),
        Column::new("unit", "", Unit::Text),
    ]);
    table.heading("");
    for estimate in &answer.calibration.estimates {
        let figure = |value: f64| Value::text(shown(value)).into();
        table.row(vec![
            Value::text(estimate.parameter.name()).into(),
            figure(estimate.value),
            figure(estimate.low),
            figure(estimate.high),
            Value::text(estimate.parameter.unit().name()).into(),
        ]);
    }
    table
}

/// The parameters for programs.
pub fn csv(answer: &Answer<'_>) -> Table {
    parameters(answer, |value| value.to_string())
}
