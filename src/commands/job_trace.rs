//! `simulate --job --trace`: Chrome trace of a job, with a process per rank and a thread for its computation, its host,
//! its waiting time and each of its communication groups.
//!
//! An arrow connects an event with the last of the events that it waits for, on each rank that both have. Waiting time is
//! that of the GPU between its computations: exposed communication and pipeline bubbles, named by what ends it.

use std::collections::BTreeMap;

use fabricast_perf::replay::{Outcome, Span};
use fabricast_reports::format;
use fabricast_reports::trace::{Argument, Arrows, TraceNames, TraceSpan};
use fabricast_sim::schedule::{Channel, Rank};
use fabricast_topologies::Picos;
use fabricast_workload::trace::{Event, EventKind, Processor, Trace};
use rustc_hash::FxHashMap;

use super::trace::encode;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum number of spans of a trace. Ranks are added until it is reached.
const MAX_SPANS: u64 = 2_500_000;

/// Threads of a rank, in the order in which viewers show them.
const COMPUTE: Channel = Channel(0);
const HOST: Channel = Channel(1);
const WAITING: Channel = Channel(2);
/// First thread of the communication groups of a rank.
const FIRST_GROUP: u16 = 3;

/// Writes the trace of a replayed job ([`encode`]).
///
/// # Errors
/// [`Failure`]: the trace cannot be encoded.
pub fn write_trace(
    trace: &Trace,
    outcome: &Outcome,
    metadata: Vec<(&str, String)>,
    output: &Output,
) -> Result<Vec<u8>, Failure> {
    let shown = shown_ranks(trace);
    if shown < trace.ranks {
        output.warn(&format!("the trace shows the first {shown} of {} ranks, to stay small", trace.ranks));
    }
    let mut job = JobTrace::new(trace, outcome, shown);
    job.add_events();
    job.add_waiting();
    job.spans.sort_by_key(|span| (span.start, span.rank, span.channel));
    let names = TraceNames {
        process: &|rank| format!("rank {}", rank.0),
        thread: &|rank, channel| job.thread_name(rank, channel),
        arrow: "dependency",
        metadata,
    };
    encode(job.spans.iter().cloned(), &[], &names, "events", output)
}

/// Returns the number of ranks, from 0 on, whose spans fit into a trace; at least 1.
fn shown_ranks(trace: &Trace) -> u32 {
    let mut spans = vec![0_u64; trace.ranks as usize];
    for &rank in trace.events.iter().flat_map(|event| event.kind.ranks().iter()) {
        if let Some(count) = spans.get_mut(rank as usize) {
            // An event and the time that its rank waits for it.
            *count += 2;
        }
    }
    let mut total = 0;
    let fits = spans.iter().take_while(|&&count| {
        total += count;
        total <= MAX_SPANS
    });
    (fits.count() as u32).max(1)
}

/// Spans of a job's trace, with the data from which they are made.
struct JobTrace<'a> {
    trace: &'a Trace,
    outcome: &'a Outcome,
    /// Number of ranks that are shown, from rank 0 on.
    shown: u32,
    spans: Vec<TraceSpan<'a>>,
    /// Threads of the communication groups of each rank, by the ranks of the group.
    groups: BTreeMap<u32, Vec<&'a [u32]>>,
    /// Index of the span of an event on a rank.
    span_of: FxHashMap<(u32, u32), usize>,
    /// End of computations that end earlier on a rank than on others.
    early_ends: FxHashMap<(u32, u32), Picos>,
}

impl<'a> JobTrace<'a> {
    fn new(trace: &'a Trace, outcome: &'a Outcome, shown: u32) -> Self {
        let early_ends = outcome.early_ends.iter().map(|one| ((one.event, one.rank), one.end)).collect();
        Self {
            trace,
            outcome,
            shown,
            spans: Vec::new(),
            groups: BTreeMap::new(),
            span_of: FxHashMap::default(),
            early_ends,
        }
    }

    fn event(&self, number: u32) -> Option<(&'a Event, Span)> {
        Some((self.trace.events.get(number as usize)?, *self.outcome.spans.get(number as usize)?))
    }

    /// Adds the spans of computations and calls in order of their starts, and the arrows between them.
    fn add_events(&mut self) {
        let mut order: Vec<u32> = (0..self.trace.events.len() as u32).collect();
        order.sort_by_key(|&number| self.outcome.spans.get(number as usize).map(|span| (span.begin, span.end)));
        for &number in &order {
            let Some((event, span)) = self.event(number) else { continue };
            let shown = self.shown;
            for &rank in event.kind.ranks().iter().filter(|&&rank| rank < shown) {
                let Some(channel) = self.channel(&event.kind, rank) else { continue };
                let end = self.early_ends.get(&(number, rank)).copied().unwrap_or(span.end);
                let start = span.begin - (span.end - end);
                self.span_of.insert((number, rank), self.spans.len());
                self.spans.push(TraceSpan {
                    rank: Rank(rank),
                    channel,
                    name: label(event).into(),
                    start,
                    end,
                    arguments: arguments(event, span),
                    arrows: Arrows::default(),
                });
            }
        }
        let mut arrows = 0;
        for number in order {
            let Some(awaited) = self.last_awaited(number) else { continue };
            for (from, to) in self.connected_spans(awaited, number) {
                let [Some(before), Some(after)] = [from, to].map(|index| self.spans.get(index)) else { continue };
                let is_on_one_thread = (before.rank, before.channel) == (after.rank, after.channel);
                if is_on_one_thread || before.start > after.start {
                    continue;
                }
                if let Some(span) = self.spans.get_mut(from) {
                    span.arrows.outgoing.push(arrows);
                }
                if let Some(span) = self.spans.get_mut(to) {
                    span.arrows.incoming.push(arrows);
                }
                arrows += 1;
            }
        }
    }

    /// Returns the spans of two events on each rank that both have; without such a rank, the first span of each.
    fn connected_spans(&self, before: u32, after: u32) -> Vec<(usize, usize)> {
        let spans = |number: u32| -> Vec<(u32, usize)> {
            let ranks = self.trace.events.get(number as usize).map_or(&[][..], |event| &**event.kind.ranks());
            ranks.iter().filter_map(|&rank| Some((rank, *self.span_of.get(&(number, rank))?))).collect()
        };
        let (from, to) = (spans(before), spans(after));
        let common: Vec<(usize, usize)> =
            to.iter().filter_map(|&(rank, to)| Some((from.iter().find(|(other, _)| *other == rank)?.1, to))).collect();
        match (common.is_empty(), from.first(), to.first()) {
            (true, Some(&(_, from)), Some(&(_, to))) => vec![(from, to)],
            _ => common,
        }
    }

    /// Returns the last of the computations and calls that an event waits for; those before an event without duration
    /// count as its own.
    fn last_awaited(&self, number: u32) -> Option<u32> {
        let (mut open, mut seen) = (vec![number], rustc_hash::FxHashSet::default());
        let mut last: Option<(Picos, u32)> = None;
        while let Some(next) = open.pop() {
            for &before in &self.trace.events.get(next as usize)?.after {
                let Some((event, span)) = self.event(before) else { continue };
                match event.kind {
                    EventKind::Wait(_) if seen.insert(before) => open.push(before),
                    EventKind::Wait(_) => {}
                    _ => last = last.max(Some((span.end, before))),
                }
            }
        }
        last.map(|(_, event)| event)
    }

    /// Thread of an event on a rank; `None` for events without duration.
    fn channel(&mut self, kind: &'a EventKind, rank: u32) -> Option<Channel> {
        let group: &'a [u32] = match kind {
            EventKind::Compute { on: Processor::Gpu, .. } => return Some(COMPUTE),
            EventKind::Compute { on: Processor::Cpu, .. } => return Some(HOST),
            EventKind::Wait(_) => return None,
            EventKind::Call(call) | EventKind::Message(call) => &call.group,
        };
        let groups = self.groups.entry(rank).or_default();
        let number = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        Some(Channel(u16::try_from(number).unwrap_or(u16::MAX).saturating_add(FIRST_GROUP)))
    }

    /// Adds the time that the GPU of each rank waits between its computations and until its last call.
    fn add_waiting(&mut self) {
        let mut waiting = Vec::new();
        let mut by_rank: BTreeMap<u32, Vec<(Picos, Picos, u32)>> = BTreeMap::new();
        let mut last_calls: BTreeMap<u32, (Picos, u32)> = BTreeMap::new();
        for (&(event, rank), &span) in &self.span_of {
            let Some(span) = self.spans.get(span) else { continue };
            if span.channel == COMPUTE {
                by_rank.entry(rank).or_default().push((span.start, span.end, event));
            } else if span.channel != HOST {
                let last = last_calls.entry(rank).or_default();
                *last = (*last).max((span.end, event));
            }
        }
        for (rank, mut computations) in by_rank {
            computations.sort_unstable();
            let mut free = Picos::ZERO;
            for (start, end, event) in computations {
                if start > free {
                    waiting.push(waiting_span(rank, free, start, self.last_awaited(event).map(|one| self.name(one))));
                }
                free = free.max(end);
            }
            if let Some(&(end, call)) = last_calls.get(&rank).filter(|(end, _)| *end > free) {
                waiting.push(waiting_span(rank, free, end, Some(self.name(call))));
            }
        }
        self.spans.extend(waiting);
    }

    fn name(&self, number: u32) -> String {
        self.trace.events.get(number as usize).map_or_else(String::new, label)
    }

    fn thread_name(&self, rank: Rank, channel: Channel) -> String {
        match channel {
            COMPUTE => "computation".to_owned(),
            HOST => "host".to_owned(),
            WAITING => "waiting".to_owned(),
            Channel(number) => {
                let groups = self.groups.get(&rank.0);
                let group = groups.and_then(|groups| groups.get(usize::from(number - FIRST_GROUP)));
                group.map_or_else(|| "groups".to_owned(), |group| format!("group {}", rank_ranges(group)))
            }
        }
    }
}

fn waiting_span(rank: u32, start: Picos, end: Picos, awaited: Option<String>) -> TraceSpan<'static> {
    let name = awaited.map_or_else(|| "waits".to_owned(), |name| format!("waits for {name}"));
    let (arguments, arrows) = (Vec::new(), Arrows::default());
    TraceSpan { rank: Rank(rank), channel: WAITING, name: name.into(), start, end, arguments, arrows }
}

/// Name of the span of an event: that of the trace, or the collective with its size.
fn label(event: &Event) -> String {
    match &event.kind {
        EventKind::Compute { .. } | EventKind::Wait(_) if event.name.is_empty() => "computation".to_owned(),
        EventKind::Compute { .. } | EventKind::Wait(_) => event.name.clone(),
        EventKind::Call(call) => format!("{} {}", call.collective, format::bytes(call.bytes)),
        EventKind::Message(call) => format!("send {}", format::bytes(call.bytes)),
    }
}

fn arguments<'a>(event: &'a Event, span: Span) -> Vec<(&'a str, Argument<'a>)> {
    let mut arguments = Vec::new();
    if let Some(call) = event.kind.call() {
        if !event.name.is_empty() {
            arguments.push(("name", Argument::Text(event.name.as_str().into())));
        }
        arguments.push(("bytes", Argument::Number(call.bytes.0)));
        arguments.push(("ranks", Argument::Text(rank_ranges(&call.group).into())));
        arguments.push(("alone_us", Argument::Time(span.alone)));
    }
    arguments
}

/// Formats ranks as ranges: `0-3,8`.
fn rank_ranges(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let texts = runs.filter_map(|run| match run {
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    texts.collect::<Vec<_>>().join(",")
}
