//! `simulate --trace`: a run as a Chrome trace, a process per rank, a thread per channel, a span per operation.

use fabricast_reports::trace::{self, Argument, Counter, TraceSpan};
use fabricast_sim::Timeline;
use fabricast_sim::engine::Span;
use fabricast_sim::load::LoadOverTime;
use fabricast_sim::schedule::{Generate, Rank};
use fabricast_sim::timeline::Utilization;
use fabricast_topologies::Fabric;

use super::binds;
use super::load::{self, Kind};
use super::operations::Operations;
use crate::failure::Failure;
use crate::output::Output;

/// Graphs of this many capacities lie above the ranks.
const GRAPHS: usize = 16;

/// The trace of a recorded run, below [`trace::BUDGET`].
pub fn of(generator: &dyn Generate, timeline: &Timeline, fabric: &Fabric, output: &Output) -> Result<Vec<u8>, Failure> {
    let operations = Operations::of(generator, timeline, (0..generator.header().call.ranks).map(Rank));
    let spans = timeline.spans.by_start();
    let spans = spans.iter().filter_map(|span| trace_span(&span, &operations));
    let counters = timeline.load.as_ref().map(|load| graphs(timeline, load, fabric)).unwrap_or_default();
    let mut bytes = Vec::new();
    let written = trace::write(spans, &counters, trace::BUDGET, &mut bytes)
        .map_err(|error| Failure::Failed(format!("cannot write the trace: {error}")))?;
    if written.joined > 1 {
        output.warn(&format!("the trace joins up to {} operations into one span to stay small", written.joined));
    }
    Ok(bytes)
}

/// The busiest capacities over time. Channels are among the tracks already.
fn graphs<'a>(timeline: &'a Timeline, load: &'a LoadOverTime, fabric: &Fabric) -> Vec<Counter<'a>> {
    let busiest = load::busiest(&timeline.utilization, load, Kind::Fabric, GRAPHS);
    let name = |used: &Utilization| binds::name(used.resource, fabric).into();
    busiest.iter().map(|busy| Counter { name: name(busy.used), slice: load.slice, values: busy.values }).collect()
}

fn trace_span(span: &Span, operations: &Operations<'_>) -> Option<TraceSpan<'static>> {
    let operation = operations.get(span)?;
    let kind = operation.kind.name();
    let (from, to) = (operation.from.0, operation.to.0);
    let name = match (operation.from == operation.to, operation.kind.reads_peer()) {
        (true, _) => kind.into(),
        (false, true) => format!("{kind} from rank {from}").into(),
        (false, false) => format!("{kind} to rank {to}").into(),
    };
    let mut arguments =
        vec![("operation", Argument::Number(span.index.into())), ("first byte", Argument::Time(span.flowing))];
    match operation.chunks {
        0 => {}
        1 => arguments.push(("chunk", Argument::Number(operation.chunk.into()))),
        _ => arguments.push(("chunks", Argument::Text(operation.chunks().into()))),
    }
    Some(TraceSpan {
        rank: operation.rank,
        channel: operation.channel,
        name,
        start: span.ready,
        end: span.done,
        arguments,
    })
}
