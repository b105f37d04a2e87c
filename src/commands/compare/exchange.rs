//! `compare` of measured dispatches and combines of experts, described by manifests with `[[exchange]]`.

use std::path::Path;

use fabricast_experts::TokenType;
use fabricast_reports::format::percent;
use fabricast_reports::table::{Column, Table, TextOptions, Unit, Value, stacked};
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_validate::exchange::{
    ComparedExchange, ExchangeCompareError, ExchangeComparison, ExchangeMeasurement, compare, is_manifest, load,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::format_count;
use super::super::summary::SummaryJson;
use super::text::signed;
use crate::args::{CompareArgs, RowChoice};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::output_format::Format;
use crate::setup;

/// Returns true if the files are manifests of exchanges (`[[exchange]]`). Either all files must be such manifests, or
/// none.
///
/// # Errors
/// [`Failure`]: a file cannot be read, or only some of the files are manifests of exchanges.
pub fn is_requested(args: &CompareArgs) -> Result<bool, Failure> {
    let is_exchange = |path: &Path| {
        let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        Ok::<bool, Failure>(is_toml && is_manifest(&read_text_file(path, Limit::MANIFEST)?))
    };
    let kinds = args.files.iter().map(|path| is_exchange(path)).collect::<Result<Vec<bool>, Failure>>()?;
    let count = kinds.iter().filter(|kind| **kind).count();
    if count > 0 && count < kinds.len() {
        return Err(Failure::input("manifests with [[exchange]] and other measurements cannot be compared in one run"));
    }
    Ok(count > 0)
}

/// JSON of `compare` with exchanges.
#[derive(Serialize, JsonSchema)]
pub struct ExchangeComparisonJson<'a> {
    /// Error statistics of all rows.
    summary: SummaryJson,
    /// Share of rows inside their 80 % prediction interval.
    inside_share: f64,
    /// Profiles whose link rates were used.
    profiles: &'a [String],
    /// Error statistics of each measurement.
    groups: Vec<ExchangeMeasurementJson<'a>>,
    /// Rows, by measurement, then line.
    rows: Vec<ExchangeRowJson<'a>>,
}

/// Measurement and its error statistics.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GroupJson")]
struct ExchangeMeasurementJson<'a> {
    #[serde(flatten)]
    labels: Labels<'a>,
    /// Error statistics of the rows.
    summary: SummaryJson,
    /// Share of rows inside their 80 % prediction interval.
    inside_share: f64,
}

/// Configuration that was measured.
#[derive(Serialize, JsonSchema)]
struct Labels<'a> {
    /// Name of the table.
    file: &'a str,
    /// Source and machines of the table. Cross-validation leaves out one cluster at a time.
    cluster: &'a str,
    /// Kernel that was measured.
    kernel: &'static str,
    /// Operation: prepare, dispatch or combine.
    operation: &'static str,
    /// Element type in which tokens were sent.
    token_type: &'static str,
}

impl<'a> Labels<'a> {
    fn new(measurement: &'a ExchangeMeasurement) -> Self {
        Self {
            file: &measurement.name,
            cluster: &measurement.cluster,
            kernel: measurement.kernel.name(),
            operation: measurement.operation.name(),
            token_type: TokenType::name(measurement.token_type),
        }
    }
}

/// Row with its prediction.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct ExchangeRowJson<'a> {
    #[serde(flatten)]
    labels: Labels<'a>,
    /// Line in the table.
    line: u32,
    /// Number of ranks.
    ranks: u32,
    /// Tokens of each rank.
    tokens: u64,
    /// Measured time, in µs.
    measured_us: f64,
    /// Predicted time, in µs.
    predicted_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Lower bound on the time of any kernel, in µs.
    bound_us: f64,
    /// Predicted ÷ measured − 1.
    error: f64,
}

pub fn run(args: &CompareArgs, output: &Output) -> Result<(), Failure> {
    let refused = [
        ("--chart", args.chart.is_some()),
        ("--no-p2p", args.no_p2p),
        ("--no-gdr", args.no_gdr),
        ("--fabric", args.log.fabric.is_some()),
    ];
    if let Some((flag, _)) = refused.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::input(format!("{flag} does not go with manifests of [[exchange]]")));
    }
    let profile = args.profile.as_deref().map(setup::named_profile).transpose()?;
    let mut measurements = Vec::new();
    for path in &args.files {
        measurements.extend(load(path)?);
    }
    let comparison = compare(&measurements, profile.as_ref()).map_err(|error| match error {
        ExchangeCompareError::Profile(error) => error.into(),
        other => Failure::input(other.to_string()),
    })?;
    let written = match output.format {
        Format::Json => output::json(&Document::ExchangeComparison.with(&json(&measurements, &comparison)))?,
        Format::Text => text(&measurements, &comparison, args.rows, &output.text_options()),
        Format::Csv => super::super::csv(&rows(&measurements, comparison.rows.iter()))?,
    };
    output.write(&written)?;
    match args.max_error {
        Some(limit) if comparison.summary.median > limit => Err(Failure::Failed(format!(
            "the median error is {} %, more than the {} % of --max-error",
            percent(comparison.summary.median),
            percent(limit)
        ))),
        _ => Ok(()),
    }
}

fn json<'a>(measurements: &'a [ExchangeMeasurement], comparison: &'a ExchangeComparison) -> ExchangeComparisonJson<'a> {
    let groups = comparison.groups.iter().filter_map(|group| {
        Some(ExchangeMeasurementJson {
            labels: Labels::new(measurements.get(group.measurement)?),
            summary: group.summary.into(),
            inside_share: group.coverage.share(),
        })
    });
    let rows = comparison.rows.iter().filter_map(|row| {
        Some(ExchangeRowJson {
            labels: Labels::new(measurements.get(row.measurement)?),
            line: row.line,
            ranks: row.ranks,
            tokens: row.tokens,
            measured_us: row.measured.us(),
            predicted_us: row.predicted.us(),
            low_us: row.low.us(),
            high_us: row.high.us(),
            bound_us: row.bound.us(),
            error: row.error(),
        })
    });
    ExchangeComparisonJson {
        summary: comparison.summary.into(),
        inside_share: comparison.coverage.share(),
        profiles: &comparison.profiles,
        groups: groups.collect(),
        rows: rows.collect(),
    }
}

/// Formats the comparison: a summary line, a table of the measurements of each file, and tables of rows.
fn text(
    measurements: &[ExchangeMeasurement],
    comparison: &ExchangeComparison,
    choice: Option<RowChoice>,
    options: &TextOptions,
) -> String {
    let summary = comparison.summary;
    let mut text = format!(
        "{} · error median {} %, mean {} %, p90 {} %, bias {} % · {} % inside the 80 % prediction interval · profile {}\n",
        format_count(summary.rows as u64, "row"),
        percent(summary.median),
        percent(summary.mean),
        percent(summary.p90),
        signed(summary.bias),
        percent(comparison.coverage.share()),
        comparison.profiles.join(", "),
    );
    text.push_str(&stacked(&group_tables(measurements, comparison), options));
    let default = if comparison.groups.len() == 1 { RowChoice::All } else { RowChoice::Outside };
    let is_shown = |row: &&ComparedExchange| match choice.unwrap_or(default) {
        RowChoice::All => true,
        RowChoice::Outside => !row.is_inside(),
        RowChoice::None => false,
    };
    let tables = measurements.iter().enumerate().filter_map(|(number, measurement)| {
        let shown = comparison.rows.iter().filter(|row| row.measurement == number).filter(is_shown);
        let mut table = row_table(shown)?;
        let Labels { file, kernel, operation, token_type, .. } = Labels::new(measurement);
        table.heading("");
        let ranks = rank_range(comparison, number);
        table.heading(format!("{kernel} {operation} {token_type} · {ranks} ranks · {file}"));
        Some(table)
    });
    text.push_str(&stacked(&tables.collect::<Vec<Table>>(), options));
    text
}

/// Tables of measurements; consecutive measurements of one file share a table.
fn group_tables(measurements: &[ExchangeMeasurement], comparison: &ExchangeComparison) -> Vec<Table> {
    let mut tables: Vec<(&ExchangeMeasurement, Table)> = Vec::new();
    for group in &comparison.groups {
        let Some(measurement) = measurements.get(group.measurement) else { continue };
        if tables
            .last()
            .is_none_or(|(last, _)| (&last.file, &last.cluster) != (&measurement.file, &measurement.cluster))
        {
            let mut table = Table::new(vec![
                Column::new("kernel", "kernel", Unit::Text),
                Column::new("operation", "call", Unit::Text),
                Column::new("token_type", "type", Unit::Text),
                Column::new("ranks", "ranks", Unit::Text),
                Column::new("rows", "rows", Unit::Number),
                Column::new("median", "median", Unit::Percent),
                Column::new("p90", "p90", Unit::Percent),
                Column::new("bias", "bias", Unit::Percent),
                Column::new("inside", "inside", Unit::Percent),
            ]);
            table.heading("");
            table.heading(match measurement.cluster == measurement.name {
                true => measurement.name.clone(),
                false => format!("{} · {}", measurement.cluster, measurement.name),
            });
            tables.push((measurement, table));
        }
        let labels = Labels::new(measurement);
        if let Some((_, table)) = tables.last_mut() {
            table.row(vec![
                Value::text(labels.kernel).into(),
                Value::text(labels.operation).into(),
                Value::text(labels.token_type).into(),
                Value::text(rank_range(comparison, group.measurement)).into(),
                Value::Count(group.summary.rows as u64).into(),
                Value::Share(group.summary.median).into(),
                Value::Share(group.summary.p90).into(),
                Value::Deviation(group.summary.bias).into(),
                Value::Share(group.coverage.share()).into(),
            ]);
        }
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

/// Range of the numbers of ranks in the rows of a measurement, as text; a single number if all are equal.
fn rank_range(comparison: &ExchangeComparison, measurement: usize) -> String {
    let ranks = || comparison.rows.iter().filter(|row| row.measurement == measurement).map(|row| row.ranks);
    match (ranks().min(), ranks().max()) {
        (Some(low), Some(high)) if low < high => format!("{low}–{high}"),
        (Some(ranks), _) => ranks.to_string(),
        _ => String::new(),
    }
}

/// Table of the rows of one measurement; `None` if there are no rows.
fn row_table<'a>(rows: impl Iterator<Item = &'a ComparedExchange>) -> Option<Table> {
    let mut rows = rows.peekable();
    rows.peek()?;
    let mut table = Table::new(vec![
        Column::new("line", "line", Unit::Number),
        Column::new("ranks", "ranks", Unit::Number),
        Column::new("tokens", "tokens", Unit::Number),
        Column::new("measured_us", "measured", Unit::Micros),
        Column::new("predicted_us", "predicted", Unit::Micros),
        Column::new("error", "error", Unit::Percent),
        Column::new("low_us", "low", Unit::Micros),
        Column::new("high_us", "high", Unit::Micros),
        Column::new("bound_us", "bound", Unit::Micros).spare(),
    ]);
    for row in rows {
        table.row(vec![
            Value::Count(row.line.into()).into(),
            Value::Count(row.ranks.into()).into(),
            Value::Count(row.tokens).into(),
            Value::Time(row.measured).into(),
            Value::Time(row.predicted).into(),
            Value::Deviation(row.error()).into(),
            Value::Time(row.low).into(),
            Value::Time(row.high).into(),
            Value::Time(row.bound).into(),
        ]);
    }
    Some(table)
}

/// Table of all rows, for CSV.
fn rows<'a>(measurements: &[ExchangeMeasurement], rows: impl Iterator<Item = &'a ComparedExchange>) -> Table {
    let mut table = Table::new(vec![
        Column::new("file", "file", Unit::Text),
        Column::new("cluster", "cluster", Unit::Text),
        Column::new("line", "line", Unit::Number),
        Column::new("kernel", "kernel", Unit::Text),
        Column::new("operation", "operation", Unit::Text),
        Column::new("token_type", "type", Unit::Text),
        Column::new("ranks", "ranks", Unit::Number),
        Column::new("tokens", "tokens", Unit::Number),
        Column::new("measured_us", "measured", Unit::Micros),
        Column::new("predicted_us", "predicted", Unit::Micros),
        Column::new("low_us", "low", Unit::Micros),
        Column::new("high_us", "high", Unit::Micros),
        Column::new("bound_us", "bound", Unit::Micros),
        Column::new("error", "error", Unit::Percent),
    ]);
    for row in rows {
        let Some(measurement) = measurements.get(row.measurement) else { continue };
        let labels = Labels::new(measurement);
        table.row(vec![
            Value::text(labels.file).into(),
            Value::text(labels.cluster).into(),
            Value::Count(row.line.into()).into(),
            Value::text(labels.kernel).into(),
            Value::text(labels.operation).into(),
            Value::text(labels.token_type).into(),
            Value::Count(row.ranks.into()).into(),
            Value::Count(row.tokens).into(),
            Value::Time(row.measured).into(),
            Value::Time(row.predicted).into(),
            Value::Time(row.low).into(),
            Value::Time(row.high).into(),
            Value::Time(row.bound).into(),
            Value::Deviation(row.error()).into(),
        ]);
    }
    table
}
