//! `simulate --trace`: Chrome trace of a run, with a process per rank, a thread per channel and a span per operation.

use fabricast_reports::format;
use fabricast_reports::trace::{self, Argument, Arrows, Counter, TraceNames, TraceSpan};
use fabricast_sim::Timeline;
use fabricast_sim::engine::Span;
use fabricast_sim::load::LoadOverTime;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Channel, Rank, ScheduleGenerator};
use fabricast_sim::utilization::Utilization;
use fabricast_topologies::Fabric;
use rustc_hash::{FxHashMap, FxHashSet};

use super::bottleneck;
use super::load::{self, ResourceKind};
use super::operations::Operations;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum number of operations in a trace before spans are merged. Ranks are added until it is reached.
const MAX_SPANS: u64 = 2_500_000;

/// Minimum size of a channel in the trace, in equivalent spans, because of its names and of spans that cannot be
/// merged.
const MIN_SPANS_PER_CHANNEL: u64 = 64;

/// Number of resources whose utilization is drawn above the ranks.
const GRAPHS: usize = 16;

/// Writes the trace of a recorded run, with less than [`trace::BUDGET`] bytes.
///
/// # Errors
/// [`Failure`]: the trace cannot be encoded.
pub fn write_trace(
    generator: &dyn ScheduleGenerator,
    timeline: &Timeline,
    fabric: &Fabric,
    profile: &Profile,
    output: &Output,
) -> Result<Vec<u8>, Failure> {
    let (operations, shown_ranks) = select_ranks(generator, timeline);
    let rank_count = generator.header().call.ranks;
    if shown_ranks < rank_count {
        let reason = "the trace shows the first ranks and those on the critical path";
        output.warn(&format!("{reason}, {shown_ranks} of {rank_count}, to stay small"));
    }
    let spans = timeline.spans.by_start(|run| operations.has(timeline.run_rank(run)));
    let arrows = critical_arrows(timeline, &operations);
    let spans = spans.iter().filter_map(|span| trace_span(&span, &operations, &arrows));
    let counters = timeline.load.as_ref().map(|load| graphs(timeline, load, fabric)).unwrap_or_default();
    let call = generator.header().call;
    let mut metadata = facts(fabric, profile);
    metadata.push(("call", format!("{} of {}", call.collective, format::bytes(call.bytes))));
    encode(spans, &counters, &TraceNames::schedule(metadata), "operations", output)
}

/// Encodes spans in order of their starts, with less than [`trace::BUDGET`] bytes. `kind`: plural noun for what a span
/// shows, used in the warning that spans were merged.
///
/// # Errors
/// [`Failure`]: the trace cannot be encoded.
pub fn encode<'a>(
    spans: impl Iterator<Item = TraceSpan<'a>> + Clone,
    counters: &[Counter<'_>],
    names: &TraceNames<'_>,
    kind: &str,
    output: &Output,
) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let written = trace::write(spans, counters, names, trace::BUDGET, &mut bytes)
        .map_err(|error| Failure::Failed(format!("cannot write the trace: {error}")))?;
    if written.joined > 1 {
        output.warn(&format!("the trace merges up to {} {kind} into one span to stay small", written.joined));
    }
    Ok(bytes)
}

/// Facts about a run that its trace states.
pub fn facts(fabric: &Fabric, profile: &Profile) -> Vec<(&'static str, String)> {
    vec![("fabric", fabric.name().to_owned()), ("profile", super::profile_and_library(profile, fabric))]
}

/// Returns the operations of the ranks that fit into a trace, and the number of those ranks. Ranks on the critical path
/// are selected first, from its end backwards, then ranks from 0 on.
fn select_ranks<'a>(generator: &dyn ScheduleGenerator, timeline: &'a Timeline) -> (Operations<'a>, u32) {
    let mut operations = Operations::new(timeline);
    let (mut spans, mut count) = (0, 0);
    let path = timeline.critical_path.iter().rev().map(|step| timeline.run_rank(step.span.run));
    let path = path.map(|rank| (rank, MAX_SPANS / 2));
    let others = (0..generator.header().call.ranks).map(|rank| (Rank(rank), MAX_SPANS));
    for (rank, limit) in path.chain(others) {
        if spans < limit && !operations.has(rank) {
            let program = operations.add(generator, rank);
            let channels: FxHashSet<Channel> = program.runs().iter().map(|run| run.channel).collect();
            let length: u64 = program.runs().iter().map(|run| u64::from(run.len)).sum();
            spans += length.max(MIN_SPANS_PER_CHANNEL * channels.len() as u64);
            count += 1;
        }
    }
    (operations, count)
}

/// Utilization graphs of the resources with the highest utilization. Channels are excluded, because each has its own
/// track.
fn graphs<'a>(timeline: &'a Timeline, load: &'a LoadOverTime, fabric: &Fabric) -> Vec<Counter<'a>> {
    let busiest = load::busiest(&timeline.utilization, load, ResourceKind::Fabric, GRAPHS);
    let name = |used: &Utilization| bottleneck::name(used.resource, fabric).into();
    busiest.iter().map(|busy| Counter { name: name(busy.used), slice: load.slice, values: busy.values }).collect()
}

/// Returns the arrows of the operations on the critical path, by run and index. Arrows to ranks that are not in the trace
/// are omitted.
fn critical_arrows(timeline: &Timeline, operations: &Operations<'_>) -> FxHashMap<(u32, u32), Arrows> {
    let mut arrows: FxHashMap<(u32, u32), Arrows> = FxHashMap::default();
    let shown = |span: &Span| operations.has(timeline.run_rank(span.run));
    for (number, pair) in (0..).zip(timeline.critical_path.windows(2)) {
        let [before, after] = pair else { continue };
        if shown(&before.span) && shown(&after.span) {
            arrows.entry((before.span.run, before.span.index)).or_default().outgoing.push(number);
            arrows.entry((after.span.run, after.span.index)).or_default().incoming.push(number);
        }
    }
    arrows
}

fn trace_span(
    span: &Span,
    operations: &Operations<'_>,
    arrows: &FxHashMap<(u32, u32), Arrows>,
) -> Option<TraceSpan<'static>> {
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
        arrows: arrows.get(&(span.run, span.index)).cloned().unwrap_or_default(),
    })
}
