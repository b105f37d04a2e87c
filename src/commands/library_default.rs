//! The library's default choice in plans: table columns, JSON keys, and notes on choices that cannot be predicted.

use fabricast_reports::table::{Cell, Column, Unit, Value};
use fabricast_search::plan::{LibraryDefault, Plan, PlanRow, Preference};
use fabricast_topologies::Picos;
use schemars::JsonSchema;
use serde::Serialize;

/// Table column with the function that fills its cells.
pub type RowField<'a> = (Column, Box<dyn Fn(&PlanRow) -> Cell + 'a>);

/// JSON of `library_default` in a row.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Json")]
pub struct LibraryDefaultJson {
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Predicted time, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Measured time, in µs; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
    /// Slowdown relative to the fastest strategy, as a fraction: time of the default ÷ time of the fastest − 1.
    default_slowdown: f64,
    /// The library's own name of its choice.
    name: String,
    /// Chunk size in bytes.
    chunk: Option<u64>,
    /// Threads per thread block; null: the protocol's default.
    threads: Option<u16>,
    /// Maximum number of channels that the library allows for the call; `channels` of them get work.
    max_channels: u16,
    /// The library's own time estimate, in µs. The library uses it to rank its algorithms; it is not an accurate
    /// prediction.
    expected_us: Option<f64>,
}

impl LibraryDefaultJson {
    /// Creates the JSON of a row; `None` if the library's choice is unknown.
    pub fn from_row(row: &PlanRow) -> Option<Self> {
        let LibraryDefault { choice, timed: priced } = row.library_default.as_ref()?;
        Some(Self {
            algorithm: priced.strategy.algorithm.name(),
            protocol: priced.strategy.protocol.name(),
            channels: priced.strategy.channels,
            time_us: priced.time.us(),
            low_us: priced.low.us(),
            high_us: priced.high.us(),
            measured_us: priced.measured.map(|measured| measured.time.us()),
            default_slowdown: default_slowdown(row)?,
            name: choice.name.clone(),
            chunk: choice.strategy.chunk.map(|chunk| chunk.0),
            threads: choice.strategy.threads,
            max_channels: choice.max_channels,
            expected_us: choice.expected.map(Picos::us),
        })
    }
}

/// Overlap of the prediction intervals of the library's default and the fastest strategy, as a fraction of the shorter
/// one. `None` if the default was not selected because of this overlap.
pub fn overlap(row: &PlanRow) -> Option<f64> {
    match row.preference {
        Preference::Fastest | Preference::Neighbours { .. } => None,
        Preference::Default { overlap, .. } => Some(overlap),
    }
}

/// Slowdown of the library's default relative to the fastest strategy, which is not always the selected strategy.
fn default_slowdown(row: &PlanRow) -> Option<f64> {
    let fastest = row.preference.rejected_fastest().unwrap_or(&row.pick);
    row.library_default.as_ref().map(|default| default.default_slowdown(fastest))
}

/// Algorithm, protocol and channels of the library's choice, separated by spaces.
pub fn strategy_cell(row: &PlanRow) -> Cell {
    Value::or_missing(row.library_default.as_ref(), |default| {
        let strategy = default.timed.strategy;
        Value::text(format!("{} {} x{}", strategy.algorithm, strategy.protocol, strategy.channels))
    })
    .into()
}

/// Columns of the text table; empty if no choice is known.
pub fn text_fields<'a>(plan: &Plan) -> Vec<RowField<'a>> {
    let (Some(library), true) = (plan.library, plan.rows.iter().any(|row| row.library_default.is_some())) else {
        return Vec::new();
    };
    let slowdown_cell = |row: &PlanRow| -> Cell { Value::or_missing(default_slowdown(row), Value::Share).into() };
    let overlap_cell = |row: &PlanRow| -> Cell { Value::or_missing(overlap(row), Value::Share).into() };
    vec![
        (Column::new("library_default", &library.to_string(), Unit::Text).spare(), Box::new(strategy_cell)),
        (Column::new("default_slowdown", "default slower", Unit::Percent).spare(), Box::new(slowdown_cell)),
        (Column::new("kept_for_overlap", "overlap", Unit::Percent).spare(), Box::new(overlap_cell)),
    ]
}

/// Columns of the CSV table, with the JSON keys as names.
pub fn csv_fields<'a>() -> Vec<RowField<'a>> {
    let cell = |value: fn(&LibraryDefault) -> Value| -> Box<dyn Fn(&PlanRow) -> Cell + 'a> {
        Box::new(move |row: &PlanRow| row.library_default.as_ref().map_or(Value::Missing, value).into())
    };
    let text_column = |key: &str| Column::new(key, key, Unit::Text);
    let number_column = |key: &str| Column::new(key, key, Unit::Number);
    vec![
        (
            text_column("library_default_algorithm"),
            cell(|default| Value::text(default.timed.strategy.algorithm.name())),
        ),
        (text_column("library_default_protocol"), cell(|default| Value::text(default.timed.strategy.protocol.name()))),
        (
            number_column("library_default_channels"),
            cell(|default| Value::Count(default.timed.strategy.channels.into())),
        ),
        (number_column("library_default_time_us"), cell(|default| Value::Time(default.timed.time))),
        (
            number_column("library_default_slowdown"),
            Box::new(|row| Value::or_missing(default_slowdown(row), Value::Share).into()),
        ),
        (number_column("kept_for_overlap"), Box::new(|row| Value::or_missing(overlap(row), Value::Share).into())),
    ]
}

/// Notes on rows in which the library's default was selected.
pub fn notes(plan: &Plan) -> String {
    let retained = plan.rows.iter().filter(|row| overlap(row).is_some()).count();
    let retained = (retained > 0).then(|| {
        let margin = match plan.max_overlap {
            0.0 => String::new(),
            share => format!(" by more than {} % of the shorter one", share * 100.0),
        };
        let rows = super::format_count(plan.rows.len() as u64, "row");
        format!("the library's choice is retained in {retained} of {rows}: its 80 % interval overlaps with that of the fastest{margin}\n")
    });
    retained.unwrap_or_default()
}

/// Reasons why choices of the library are unknown, a line each.
pub fn unknown_choices(plan: &Plan) -> String {
    plan.library_unknown.iter().map(|reason| format!("cannot predict the library's choice: {reason}\n")).collect()
}
