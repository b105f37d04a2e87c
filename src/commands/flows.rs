//! `simulate --flows`: arbitrary timed traffic.

use std::path::Path;

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::SimulateError;
use fabricast_sim::engine::Recording;
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::bottleneck;
use super::links::LinkJson;
use super::load::{self, LoadJson};
use super::simulation_progress::with_progress;
use crate::args::SimulateArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;
use crate::setup;

/// JSON of `simulate --flows`.
#[derive(Serialize, JsonSchema)]
pub struct FlowsJson<'a> {
    /// End of the last flow, in µs.
    time_us: f64,
    /// Number of events of the simulation.
    events: u64,
    /// Name of the resource with the highest utilization.
    bottleneck: String,
    /// Flows, in the order of the file.
    flows: Vec<FlowJson<'a>>,
    /// Utilization of the link directions that carried traffic.
    links: Vec<LinkJson>,
    /// Number of link directions with traffic that `links` omits, those with the lowest utilization.
    links_omitted: usize,
    /// Utilization of the busiest resources over time; only with `--utilization-over-time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<LoadJson>,
}

/// Simulated flow with its times.
#[derive(Serialize, JsonSchema)]
struct FlowJson<'a> {
    /// Device that sends.
    src: &'a str,
    /// Device that receives.
    dst: &'a str,
    /// Size in bytes.
    bytes: Bytes,
    /// Start, in µs.
    start_us: f64,
    /// Arrival of the last byte, in µs.
    end_us: f64,
}

pub fn run(args: &SimulateArgs, path: &Path, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    let router = Router::new(fabric, setup::route_options(&args.fabric.size));
    let profile = if args.costs.profile.is_some() { setup::profile(&args.costs, fabric)? } else { Profile::ideal() };
    let flows = setup::flows(path, fabric)?;
    let setting = setup::environment(fabric, &router, fabric.gpus(), &profile, &[]);
    let outcome = with_progress(output, Recording::End, |watch| flows::simulate(&flows, setting, watch))
        .map_err(|error| failure(error, path))?;
    let load = load::load_json(args.utilization_over_time, &outcome.utilization, Some(&outcome.load), fabric);
    let end = outcome.ends.iter().copied().max().unwrap_or_default();
    if output.format == Format::Json {
        let (links, links_omitted) = LinkJson::list(&outcome.utilization, fabric);
        return output.write_json(&Document::Flows.with(&FlowsJson {
            time_us: end.us(),
            events: outcome.events,
            bottleneck: bottleneck::bottleneck_of_utilization(&outcome.utilization, fabric),
            flows: flows.iter().zip(&outcome.ends).map(|(flow, &end)| FlowJson::new(flow, end, fabric)).collect(),
            links,
            links_omitted,
            load,
        }));
    }
    let mut table = Table::new(vec![
        Column::new("src", "from", Unit::Text),
        Column::new("dst", "to", Unit::Text),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("start_us", "start", Unit::Micros),
        Column::new("end_us", "end", Unit::Micros),
        Column::new("rate_gb_per_s", "mean rate", Unit::GbPerS),
    ]);
    for (flow, &end) in flows.iter().zip(&outcome.ends) {
        let duration = end - flow.start;
        table.row(vec![
            Value::text(&*fabric.node(flow.src).id).into(),
            Value::text(&*fabric.node(flow.dst).id).into(),
            Value::Bytes(flow.bytes).into(),
            Value::Time(flow.start).into(),
            Value::Time(end).into(),
            Value::Rate(fabricast_search::plan::algbw_gb_per_s(flow.bytes, duration)).into(),
        ]);
    }
    table.note(format!("bottleneck: {}", bottleneck::bottleneck_of_utilization(&outcome.utilization, fabric)));
    match output.format {
        Format::Csv => output.write(&super::csv(&table)?),
        Format::Text | Format::Json => {
            let load = load.map(|load| format!("\n{}", load.text(output.text_options().glyphs))).unwrap_or_default();
            output.write(&format!("{}{load}", table.text(&output.text_options())))
        }
    }
}

/// Failure with the name of the file, and the flow if a single flow caused the error.
fn failure(error: SimulateError, path: &Path) -> Failure {
    let flow = match &error {
        SimulateError::Engine(error) => flows::overlong_flow(error),
        _ => None,
    };
    match flow {
        Some(flow) => {
            let number = u64::from(flow) + 1;
            Failure::input(format!("{}: flow {number} would take over 213 days", path.display()))
        }
        None => Failure::from(error).with_file(path),
    }
}

impl<'a> FlowJson<'a> {
    fn new(flow: &Flow, end: Picos, fabric: &'a Fabric) -> Self {
        Self {
            src: &fabric.node(flow.src).id,
            dst: &fabric.node(flow.dst).id,
            bytes: flow.bytes,
            start_us: flow.start.us(),
            end_us: end.us(),
        }
    }
}
