//! The library's default choice in plans: table columns, JSON keys, and notes on missing predictions.

use fabricast_planner::plan::{LibraryDefault, Plan, Preference, Row};
use fabricast_reports::table::{Cell, Column, Unit, Value};
use fabricast_topologies::Picos;
use serde::Serialize;

/// Table column with the function that fills its cells.
pub type Field<'a> = (Column, Box<dyn Fn(&Row) -> Cell + 'a>);

/// JSON of `library_default` in a row.
#[derive(Serialize)]
pub struct Json {
    algorithm: &'static str,
    protocol: &'static str,
    channels: u16,
    time_us: f64,
    low_us: f64,
    high_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
    regret: f64,
    name: String,
    chunk: Option<u64>,
    threads: Option<u16>,
    /// Channels that the library allots to the call; `channels` of them carry data.
    most_channels: u16,
    expected_us: Option<f64>,
}

impl Json {
    /// Creates the JSON of a row; `None` if the library's choice is unknown.
    pub fn of(row: &Row) -> Option<Self> {
        let LibraryDefault { choice, priced } = row.library_default.as_ref()?;
        Some(Self {
            algorithm: priced.strategy.algorithm.name(),
            protocol: priced.strategy.protocol.name(),
            channels: priced.strategy.channels,
            time_us: priced.time.us(),
            low_us: priced.low.us(),
            high_us: priced.high.us(),
            measured_us: priced.measured.map(|measured| measured.time.us()),
            regret: regret(row)?,
            name: choice.name.clone(),
            chunk: choice.strategy.chunk.map(|chunk| chunk.0),
            threads: choice.strategy.threads,
            most_channels: choice.most_channels,
            expected_us: choice.expected.map(Picos::us),
        })
    }
}

/// Overlap of the prediction intervals, if the pick is the library's choice for that reason.
pub fn overlap(row: &Row) -> Option<f64> {
    match row.preference {
        Preference::Fastest | Preference::Neighbours { .. } => None,
        Preference::Default { overlap, .. } => Some(overlap),
    }
}

/// Slowdown of the library's choice relative to the fastest strategy, which may differ from the pick.
fn regret(row: &Row) -> Option<f64> {
    let fastest = row.preference.passed_over().unwrap_or(&row.pick);
    row.library_default.as_ref().map(|known| known.regret(fastest))
}

/// Algorithm, protocol and channels of the library's choice, separated by spaces.
pub fn named(row: &Row) -> Cell {
    Value::or_missing(row.library_default.as_ref(), |known| {
        let strategy = known.priced.strategy;
        Value::text(format!("{} {} x{}", strategy.algorithm, strategy.protocol, strategy.channels))
    })
    .into()
}

/// Columns for the text table; none if no choice is known.
pub fn text_fields<'a>(plan: &Plan) -> Vec<Field<'a>> {
    let (Some(library), true) = (plan.library, plan.rows.iter().any(|row| row.library_default.is_some())) else {
        return Vec::new();
    };
    let worse = |row: &Row| -> Cell { Value::or_missing(regret(row), Value::Share).into() };
    let kept = |row: &Row| -> Cell { Value::or_missing(overlap(row), Value::Share).into() };
    vec![
        (Column::new("library_default", &library.to_string(), Unit::Text).spare(), Box::new(named)),
        (Column::new("regret", "regret", Unit::Percent).spare(), Box::new(worse)),
        (Column::new("kept_for_overlap", "overlap", Unit::Percent).spare(), Box::new(kept)),
    ]
}

/// Columns for CSV, named as the JSON keys.
pub fn csv_fields<'a>() -> Vec<Field<'a>> {
    let of = |value: fn(&LibraryDefault) -> Value| -> Box<dyn Fn(&Row) -> Cell + 'a> {
        Box::new(move |row: &Row| row.library_default.as_ref().map_or(Value::Missing, value).into())
    };
    let word = |key: &str| Column::new(key, key, Unit::Text);
    let figure = |key: &str| Column::new(key, key, Unit::Number);
    vec![
        (word("library_default_algorithm"), of(|known| Value::text(known.priced.strategy.algorithm.name()))),
        (word("library_default_protocol"), of(|known| Value::text(known.priced.strategy.protocol.name()))),
        (figure("library_default_channels"), of(|known| Value::Count(known.priced.strategy.channels.into()))),
        (figure("library_default_time_us"), of(|known| Value::Time(known.priced.time))),
        (figure("library_default_regret"), Box::new(|row| Value::or_missing(regret(row), Value::Share).into())),
        (figure("kept_for_overlap"), Box::new(|row| Value::or_missing(overlap(row), Value::Share).into())),
    ]
}

/// Notes on rows that retain the library's choice, and reasons why choices are unknown.
pub fn notes(plan: &Plan) -> String {
    let kept = plan.rows.iter().filter(|row| overlap(row).is_some()).count();
    let kept = (kept > 0).then(|| {
        let much = match plan.most_overlap {
            0.0 => String::new(),
            part => format!(" by more than {} % of the shorter one", part * 100.0),
        };
        let rows = super::counted(plan.rows.len() as u64, "row");
        format!("the library's choice is kept in {kept} of {rows}: its 80 % interval overlaps with that of the fastest{much}\n")
    });
    let unknown =
        plan.library_unknown.iter().map(|reason| format!("not known what the library would choose: {reason}\n"));
    kept.into_iter().chain(unknown).collect()
}
