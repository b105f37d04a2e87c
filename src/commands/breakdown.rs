//! `simulate --breakdown`: times of a call by size, broken down by cost parameter of the profile.

use std::path::Path;

use fabricast_reports::chart::{self, BreakdownChart, BreakdownRow};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::breakdown::{Breakdown, breakdown};
use fabricast_sim::engine::Watch;
use fabricast_sim::{SimulationOptions, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::call_request::CallRequest;
use super::{format_count, strategy};
use crate::args::{CallArgs, SimulateArgs, Sizes};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::setup;

/// Message size with the breakdown of its predicted time.
struct SizeBreakdown {
    bytes: Bytes,
    schedule: String,
    parts: Breakdown,
}

/// Prints the breakdown of every size and draws the chart.
///
/// # Errors
/// [`Failure`]: the chart's file cannot be written, the flags are invalid, or a simulation fails.
pub fn run(args: &SimulateArgs, path: &Path, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    let format = chart::Format::from_path(path).map_err(|error| Failure::input(error.to_string()))?;
    output.check_additional_file(path)?;
    let ranks = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let mode = setup::launch_mode(&args.costs, fabric, &ranks);
    let router = Router::new(fabric, setup::call_options(&args.fabric, fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let request = CallRequest::from_args(&args.call, ranks.len(), &Sizes::default().0)?;
    let mut rows = Vec::with_capacity(request.sizes.len());
    for &bytes in &request.sizes {
        let call = CallArgs { bytes: Some(bytes), sizes: None, ..args.call.clone() };
        let setting = strategy::RunSetting { fabric, router: &router, placement: &ranks, profile: &profile, mode };
        let strategy::SingleSchedule { generator, .. } =
            strategy::single(&call, &args.strategy, &args.library, setting, strategy::SchedulePurpose::Timed)?;
        let header = generator.header();
        let parts = breakdown(&profile, header.protocol, mode, |profile| {
            let environment = setup::environment(fabric, &router, &ranks, profile, &[]);
            simulate(generator.as_ref(), environment, mode, SimulationOptions::default(), Watch::default())
        })?;
        let schedule = format!("{} {} × {}", header.name, header.protocol, header.blocks_per_rank());
        rows.push(SizeBreakdown { bytes, schedule, parts });
    }
    let names = names(&rows);
    let collectives: Vec<String> = request.collectives.iter().map(ToString::to_string).collect();
    let title = format!("{} on {}", collectives.join(", "), fabric.name());
    let profile = super::profile_and_library(&profile, fabric);
    let subtitle = format!("{}, profile {profile}, {}", format_count(ranks.len() as u64, "rank"), mode.name());
    let written = match output.format {
        Format::Json => {
            output::json(&Document::Breakdown.with_rows(&rows.iter().map(BreakdownRowJson::new).collect::<Vec<_>>()))?
        }
        Format::Text => {
            let mut table = table(&names, &rows);
            table.heading(format!("{title} · {subtitle}"));
            table.text(&output.text_options())
        }
        Format::Csv => super::csv(&table(&names, &rows))?,
    };
    let row = |row: &SizeBreakdown| BreakdownRow { bytes: row.bytes, times: times(&names, row) };
    let chart = BreakdownChart { title, subtitle, rows: rows.iter().map(row).collect(), costs: names };
    let picture = chart::render(&chart.figure(), format).map_err(|error| Failure::Failed(error.to_string()))?;
    output.write_with(&written, Some(AdditionalFile { path, content: &picture }))
}

/// Label of the time that no cost parameter explains. It is listed only if it exceeds `MIN_UNEXPLAINED_SHARE` of a
/// row's time, so that rounding errors are not listed.
const UNEXPLAINED: &str = "rest";
const MIN_UNEXPLAINED_SHARE: f64 = 0.005;

/// Names of all costs that occur in a row, in the order of profile files. Costs outside profile files come last.
fn names(rows: &[SizeBreakdown]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in rows.iter().flat_map(|row| &row.parts.parts) {
        if !names.contains(&part.name) {
            names.push(part.name.clone());
        }
    }
    let tables = ["protocol.", "links.", "launch."];
    names.sort_by_key(|name| tables.iter().position(|table| name.starts_with(table)).unwrap_or(tables.len()));
    let has_unexplained =
        |row: &SizeBreakdown| row.parts.unexplained.0 as f64 > MIN_UNEXPLAINED_SHARE * row.parts.time.0 as f64;
    if rows.iter().any(has_unexplained) {
        names.push(UNEXPLAINED.to_owned());
    }
    names
}

/// Returns the time of each cost in a row, in the order of `names`.
fn times(names: &[String], row: &SizeBreakdown) -> Vec<Picos> {
    let time_of = |name: &String| match row.parts.parts.iter().find(|part| part.name == *name) {
        Some(part) => part.time,
        None if name == UNEXPLAINED => row.parts.unexplained,
        None => Picos::ZERO,
    };
    names.iter().map(time_of).collect()
}

fn table(names: &[String], rows: &[SizeBreakdown]) -> Table {
    let mut columns = vec![
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("algorithm", "algorithm", Unit::Text),
        Column::new("time_us", "time", Unit::Micros),
    ];
    columns.extend(names.iter().map(|name| Column::new(name, short(name), Unit::Micros).spare()));
    let mut table = Table::new(columns);
    for row in rows {
        let mut cells = vec![
            Value::Bytes(row.bytes).into(),
            Value::text(&*row.schedule).into(),
            Value::Time(row.parts.time).into(),
        ];
        cells.extend(times(names, row).into_iter().map(|time| Value::Time(time).into()));
        table.row(cells);
    }
    table
}

/// Removes the name of the profile's table from a parameter name.
fn short(name: &str) -> &str {
    name.strip_prefix("protocol.").or_else(|| name.strip_prefix("launch.")).unwrap_or(name)
}

/// Time of a call of one size.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
pub struct BreakdownRowJson<'a> {
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Name, protocol and channels of the strategy, as text.
    algorithm: &'a str,
    /// Predicted time, in µs.
    time_us: f64,
    /// Time by cost parameter of the profile.
    parts: Vec<PartJson<'a>>,
    /// Time that no cost parameter explains, in µs.
    rest_us: f64,
}

/// Time that a cost parameter adds.
#[derive(Serialize, JsonSchema)]
struct PartJson<'a> {
    /// Name of the parameter in the profile.
    name: &'a str,
    /// Time, in µs.
    us: f64,
}

impl<'a> BreakdownRowJson<'a> {
    fn new(row: &'a SizeBreakdown) -> Self {
        let part = |part: &'a fabricast_sim::breakdown::TimePart| PartJson { name: &part.name, us: part.time.us() };
        Self {
            bytes: row.bytes,
            algorithm: &row.schedule,
            time_us: row.parts.time.us(),
            parts: row.parts.parts.iter().map(part).collect(),
            rest_us: row.parts.unexplained.us(),
        }
    }
}
