//! A fitted or measured parameter with its interval, as a row of JSON and tables.

use std::borrow::Cow;

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_validate::calibrate::Estimate;
use fabricast_validate::calibrate::benchmark::BenchmarkFigure;
use fabricast_validate::calibrate::curve::CurveFigure;
use schemars::JsonSchema;
use serde::Serialize;

/// Parameter with its 80 % interval.
#[derive(Serialize, JsonSchema)]
pub struct ParameterEstimate {
    /// Name of the parameter, as in the file.
    name: Cow<'static, str>,
    /// Value, in `unit`.
    value: f64,
    /// Lower end of the 80 % interval, in `unit`.
    low: f64,
    /// Upper end of the 80 % interval, in `unit`.
    high: f64,
    /// Unit of `value`, `low` and `high`; empty for fractions and counts.
    unit: &'static str,
}

impl From<&Estimate> for ParameterEstimate {
    fn from(estimate: &Estimate) -> Self {
        let Estimate { parameter, value, low, high } = *estimate;
        Self { name: parameter.name().into(), value, low, high, unit: parameter.unit().name() }
    }
}

impl From<CurveFigure> for ParameterEstimate {
    fn from(CurveFigure { name, value, low, high, unit }: CurveFigure) -> Self {
        Self { name: name.into(), value, low, high, unit }
    }
}

impl From<BenchmarkFigure> for ParameterEstimate {
    fn from(BenchmarkFigure { name, value, low, high, unit }: BenchmarkFigure) -> Self {
        Self { name: name.into(), value, low, high, unit }
    }
}

/// Table with a row per parameter; `first` is the heading of the column with the names.
pub fn table(
    first: Column,
    figures: impl IntoIterator<Item = ParameterEstimate>,
    format_value: impl Fn(f64) -> String,
) -> Table {
    let mut table = Table::new(vec![
        first,
        Column::new("value", "value", Unit::Text),
        Column::new("low", "80 % between", Unit::Text),
        Column::new("high", "and", Unit::Text),
        Column::new("unit", "", Unit::Text),
    ]);
    for ParameterEstimate { name, value, low, high, unit } in figures {
        let cell = |figure: f64| Value::text(format_value(figure)).into();
        table.row(vec![Value::text(name).into(), cell(value), cell(low), cell(high), Value::text(unit).into()]);
    }
    table
}
