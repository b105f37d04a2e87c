//! `simulate --job`: runs the calls and computations of a trace, log or table in their order, with overlap.

use std::collections::BTreeMap;
use std::path::Path;

use fabricast_perf::communication::SimulatedCosts;
use fabricast_perf::replay::{Outcome, Span, replay};
use fabricast_reports::format;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, Picos};
use fabricast_workload::trace::{Event, EventKind, Trace};
use schemars::JsonSchema;
use serde::Serialize;

use super::job_file::{self, JobFile};
use super::job_trace;
use crate::args::SimulateArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

pub fn run(args: &SimulateArgs, path: &Path, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        output.check_additional_file(path)?;
    }
    let ranks = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(fabric, setup::call_options(&args.fabric, fabric)?);
    let profile = setup::library_profile(&args.library, &args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let JobFile::Trace(trace) = job_file::read(path, ranks.len(), output)? else {
        let message = format!("{}: a job in TOML does not list its events", path.display());
        return Err(Failure::input_with_help(message, "`study` predicts its step time, `plan --job` plans its calls"));
    };
    let source = path.display().to_string();
    let collectives = job_file::collectives(&args.library, None);
    let outcome = run_control::with_monitor(output, "simulating job", |monitor| {
        let simulated = SimulatedCosts::new(&router, &profile, &ranks).with_monitor(monitor);
        replay(&trace, &simulated, ranks.len(), collectives, &source)
    })
    .map_err(|error| Failure::from(error).with_file(path))?;
    let answer = ReplayAnswer { trace: &trace, outcome: &outcome };
    let text = match output.format {
        Format::Json => output::json(&Document::Replay.with(&answer.json()))?,
        Format::Csv => super::csv(&answer.events())?,
        Format::Text => {
            let mut table = answer.calls();
            let part = |time: Picos| 100.0 * time.0 as f64 / outcome.time.0.max(1) as f64;
            let recorded =
                trace.recorded.map(|time| format!(" (recorded: {})", format::time(time))).unwrap_or_default();
            table.heading(format!(
                "all done after {}{recorded}; the busiest rank computes for {:.1} % of it, calls are active for {:.1} %",
                format::time(outcome.time),
                part(outcome.compute),
                part(outcome.communication)
            ));
            table.heading(job_file::heading(&source, trace.ranks, fabric, &profile));
            table.text(&output.text_options())
        }
    };
    let Some(path) = &args.trace else { return output.write(&text) };
    let mut metadata = super::trace::facts(fabric, &profile);
    metadata.push(("job", source));
    let content = job_trace::write_trace(&trace, &outcome, metadata, output)?;
    output.write_with(&text, Some(AdditionalFile { path, content: &content }))
}

struct ReplayAnswer<'a> {
    trace: &'a Trace,
    outcome: &'a Outcome,
}

/// JSON of `simulate --job`.
#[derive(Serialize, JsonSchema)]
pub struct JobJson<'a> {
    /// Time until all events have ended, in µs.
    time_us: f64,
    /// Recorded time of the job, in µs; absent if the trace has no times.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_us: Option<f64>,
    /// Number of ranks.
    ranks: u32,
    /// Computation time of the rank with the most computation, in µs.
    compute_us: f64,
    /// Time during which at least one call runs, in µs.
    communication_us: f64,
    /// Exposed communication of the rank with the most computation, in µs: time without computation.
    exposed_us: f64,
    /// Number of simulated calls.
    calls: usize,
    /// Descriptions of the parts of the trace that are not simulated, or simulated with zero duration.
    left_out: &'a [String],
    /// Events, in the order of the trace.
    events: Vec<EventJson<'a>>,
}

/// Event of a trace.
#[derive(Serialize, JsonSchema)]
struct EventJson<'a> {
    /// Name in the trace.
    name: &'a str,
    /// The collective, `send`, `compute` or `wait`.
    collective: &'static str,
    /// Ranks that take part.
    ranks: &'a [u32],
    /// Size of the call in bytes; absent for computations and waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Bytes>,
    /// Start, in µs.
    begin_us: f64,
    /// End, in µs.
    end_us: f64,
    /// Time without concurrent calls, in µs.
    alone_us: f64,
}

/// Statistics of calls of the same kind.
#[derive(Default)]
struct CallStatistics {
    calls: u64,
    isolated: Picos,
    time: Picos,
    longest: Picos,
}

fn collective_and_size(event: &Event) -> (&'static str, Option<Bytes>) {
    match &event.kind {
        EventKind::Compute { .. } => ("compute", None),
        EventKind::Wait(_) => ("wait", None),
        EventKind::Call(call) => (call.collective.name(), Some(call.bytes)),
        EventKind::Message(call) => ("send", Some(call.bytes)),
    }
}

impl<'a> ReplayAnswer<'a> {
    fn spans(&self) -> impl Iterator<Item = (&'a Event, &'a Span)> {
        self.trace.events.iter().zip(&self.outcome.spans)
    }

    fn json(&self) -> JobJson<'a> {
        let events = self.spans().map(|(event, span)| {
            let (collective, bytes) = collective_and_size(event);
            EventJson {
                name: &event.name,
                collective,
                ranks: event.kind.ranks(),
                bytes,
                begin_us: span.begin.us(),
                end_us: span.end.us(),
                alone_us: span.alone.us(),
            }
        });
        JobJson {
            time_us: self.outcome.time.us(),
            recorded_us: self.trace.recorded.map(Picos::us),
            ranks: self.trace.ranks,
            compute_us: self.outcome.compute.us(),
            communication_us: self.outcome.communication.us(),
            exposed_us: self.outcome.exposed().us(),
            calls: self.outcome.calls,
            left_out: &self.trace.ignored,
            events: events.collect(),
        }
    }

    /// Table with a row per event.
    fn events(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("name", "name", Unit::Text),
            Column::new("collective", "collective", Unit::Text),
            Column::new("ranks", "ranks", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("begin_us", "begin", Unit::Micros),
            Column::new("end_us", "end", Unit::Micros),
            Column::new("alone_us", "alone", Unit::Micros),
        ]);
        for (event, span) in self.spans() {
            let (collective, bytes) = collective_and_size(event);
            let ranks: Vec<String> = event.kind.ranks().iter().map(u32::to_string).collect();
            table.row(vec![
                Value::text(&*event.name).into(),
                Value::text(collective).into(),
                Value::text(ranks.join(" ")).into(),
                Value::or_missing(bytes, Value::Bytes).into(),
                Value::Time(span.begin).into(),
                Value::Time(span.end).into(),
                Value::Time(span.alone).into(),
            ]);
        }
        table
    }

    /// Table with a row per kind of call.
    fn calls(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("ranks", "ranks", Unit::Number),
            Column::new("calls", "calls", Unit::Number),
            Column::new("alone_us", "mean alone", Unit::Micros),
            Column::new("time_us", "mean", Unit::Micros),
            Column::new("longest_us", "longest", Unit::Micros),
        ]);
        let mut kinds: BTreeMap<(&str, Bytes, usize), CallStatistics> = BTreeMap::new();
        for (event, span) in self.spans() {
            if let (collective, Some(bytes)) = collective_and_size(event) {
                let sum = kinds.entry((collective, bytes, event.kind.ranks().len())).or_default();
                let time = span.end - span.begin;
                sum.calls += 1;
                sum.isolated += span.alone;
                sum.time += time;
                sum.longest = sum.longest.max(time);
            }
        }
        for ((collective, bytes, ranks), CallStatistics { calls, isolated: alone, time, longest }) in kinds {
            table.row(vec![
                Value::text(collective).into(),
                Value::Bytes(bytes).into(),
                Value::Count(ranks as u64).into(),
                Value::Count(calls).into(),
                Value::Time(Picos(alone.0 / calls)).into(),
                Value::Time(Picos(time.0 / calls)).into(),
                Value::Time(longest).into(),
            ]);
        }
        table
    }
}
