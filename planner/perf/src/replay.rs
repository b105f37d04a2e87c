//! Simulation of a trace on a fabric: start and end of each event.
//!
//! Calls use the strategy that `plan` selects. When a call starts, it is simulated concurrently with all active calls
//! that may share links with it: those in the same NVLink domain and, if it leaves its domain, those that leave theirs.
//! Each call starts at its own time. A new call never makes an earlier call end sooner. Calls that have ended are not
//! simulated again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::communication::{CallWithStrategy, GroupCall, LibraryChoiceScope, PlacedCall, SimulatedCosts};
use crate::step::TimeError;
use fabricast_search::plan::{PlanError, PlanRow};
use fabricast_workload::job::CollectiveCandidates;
use fabricast_workload::trace::{EventKind, Processor, Trace};

/// Simulated time span of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start of the event, from the start of the trace.
    pub begin: Picos,
    /// End of the event, from the start of the trace.
    pub end: Picos,
    /// Duration of a call without concurrent calls, or duration of a computation.
    pub alone: Picos,
}

/// Simulated times of a trace on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// End of the last event, from the start of the trace.
    pub time: Picos,
    /// Spans of the events, in the order of the trace.
    pub spans: Vec<Span>,
    /// Computing time on the GPU of the rank that computes longest.
    pub compute: Picos,
    /// Total time during which at least one call is active; overlapping calls count once.
    pub communication: Picos,
    /// Number of collectives and messages in the trace.
    pub calls: usize,
    /// Ends of computations on ranks that finish before the last rank of the event, in order of start.
    pub early_ends: Vec<RankEnd>,
}

/// End of a computation on one of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankEnd {
    /// Index of the event in the trace.
    pub event: u32,
    /// Rank that computes.
    pub rank: u32,
    /// End of the computation on this rank.
    pub end: Picos,
}

impl Outcome {
    /// Returns the exposed communication time: the completion time minus the computing time of the busiest rank.
    #[must_use]
    pub fn exposed(&self) -> Picos {
        self.time - self.compute
    }
}

/// Runs a trace on the devices of `simulated`; `source` is the trace's name in errors. The monitor of `simulated` counts
/// planned calls and ended events.
///
/// # Errors
/// [`TimeError`]: more ranks than devices, a call without a strategy, or an interruption.
pub fn replay(
    trace: &Trace,
    simulated: &SimulatedCosts<'_>,
    devices: usize,
    collectives: CollectiveCandidates,
    source: &str,
) -> Result<Outcome, TimeError> {
    trace.check_ranks(devices, source)?;
    simulated.monitor().add_total(trace.events.len());
    let groups = Group::by_ranks(trace, simulated);
    let planned = plan_events(trace, simulated, collectives, &groups)?;
    Run::new(trace, simulated, &groups, planned).finish()
}

/// Call that has started and not ended.
struct ActiveCall<'a> {
    event: u32,
    call: CallWithStrategy,
    devices: &'a [NodeId],
    islands: &'a [u32],
}

/// State of the calls of one group, which are executed one at a time.
#[derive(Default)]
struct GroupQueue {
    is_busy: bool,
    waiting: BinaryHeap<Reverse<(Picos, u32)>>,
}

/// Devices and NVLink domains of a group.
struct Group {
    devices: Vec<NodeId>,
    islands: Vec<u32>,
}

type GroupsByRanks<'a> = FxHashMap<&'a [u32], Group>;

/// Strategy of each distinct call of a trace, and its time without concurrent calls.
type CallPlans<'a> = FxHashMap<&'a EventKind, (CallWithStrategy, Picos)>;

/// Cache key: concurrent calls with their devices, and their start times relative to the first start.
type ConcurrentCallsKey = Vec<(CallWithStrategy, Vec<NodeId>, Picos)>;

struct Run<'a> {
    trace: &'a Trace,
    simulated: &'a SimulatedCosts<'a>,
    groups: &'a GroupsByRanks<'a>,
    planned: CallPlans<'a>,
    known: FxHashMap<ConcurrentCallsKey, Vec<Picos>>,
    spans: Vec<Span>,
}

/// Plans the distinct calls of a trace. A point-to-point message is planned as a scatter between two ranks.
fn plan_events<'a>(
    trace: &'a Trace,
    simulated: &SimulatedCosts<'_>,
    collectives: CollectiveCandidates,
    groups: &GroupsByRanks<'a>,
) -> Result<CallPlans<'a>, TimeError> {
    let (mut events, mut calls) = (Vec::new(), Vec::new());
    let mut seen = FxHashSet::default();
    for kind in trace.events.iter().map(|event| &event.kind) {
        let Some(call) = kind.call().filter(|_| seen.insert(kind)) else { continue };
        let Some(group) = groups.get(&*call.group) else { continue };
        let (collective, bytes) = match kind {
            EventKind::Message(_) => (Collective::Scatter, Bytes(call.bytes.0.saturating_mul(2))),
            _ => (call.collective, call.bytes),
        };
        events.push((kind, call.collective));
        calls.push(GroupCall { devices: &group.devices, collective, bytes });
    }
    let fastest = |row: PlanRow| {
        let PlanRow { collective, bytes, fastest, .. } = row;
        (CallWithStrategy { collective, bytes, strategy: fastest.strategy }, fastest.time)
    };
    let planned = simulated.plan_calls(&calls, collectives, LibraryChoiceScope::Inside, fastest);
    let name_collective = |error, collective| match error {
        PlanError::NothingToChoose { rejected, named, possible, .. } => {
            PlanError::NothingToChoose { collective, rejected, named, possible }
        }
        other => other,
    };
    let planned = events.into_iter().zip(planned).map(|((kind, collective), call)| match call {
        Ok(call) => Ok((kind, call)),
        // The error names the collective of the trace.
        Err(error) => Err(name_collective(error, collective).into()),
    });
    planned.collect()
}

impl<'a> Run<'a> {
    fn new(
        trace: &'a Trace,
        simulated: &'a SimulatedCosts<'a>,
        groups: &'a GroupsByRanks<'a>,
        planned: CallPlans<'a>,
    ) -> Self {
        let spans = vec![Span::default(); trace.events.len()];
        Self { trace, simulated, groups, planned, known: FxHashMap::default(), spans }
    }

    fn finish(mut self) -> Result<Outcome, TimeError> {
        let (mut waiting, followers) = self.trace.dependencies();
        let mut ready: BinaryHeap<Reverse<(Picos, u32)>> = BinaryHeap::new();
        for (number, event) in (0u32..).zip(&self.trace.events) {
            if waiting.get(number as usize) == Some(&0) {
                ready.push(Reverse((event.start, number)));
            }
        }
        // Ends of events. If the end of a call has moved since it was queued, the end in its span is valid.
        let mut ends: BinaryHeap<Reverse<(Picos, u32)>> = BinaryHeap::new();
        let mut free_ranks: BTreeMap<(u32, Processor), Picos> = BTreeMap::new();
        let mut queues: FxHashMap<&'a [u32], GroupQueue> = FxHashMap::default();
        let mut active: Vec<ActiveCall<'_>> = Vec::new();
        let (mut busy, mut calls) = (BTreeMap::<u32, Picos>::new(), 0);
        let mut early_ends = Vec::new();
        loop {
            let next_end = ends.peek().map(|Reverse((time, _))| *time);
            let next_ready = ready.peek().map(|Reverse((time, _))| *time);
            let Some(now) = [next_end, next_ready].into_iter().flatten().min() else { break };
            while let Some(&Reverse((time, event))) = ends.peek().filter(|Reverse((time, _))| *time <= now) {
                ends.pop();
                let moved = self.spans.get(event as usize).map(|span| span.end).filter(|end| *end > time);
                if let Some(end) = moved {
                    ends.push(Reverse((end, event)));
                    continue;
                }
                self.simulated.monitor().add_done(1);
                active.retain(|call| call.event != event);
                if let Some(call) = self.trace.events.get(event as usize).and_then(|event| event.kind.call())
                    && let Some(queue) = queues.get_mut(&*call.group)
                {
                    queue.is_busy = false;
                    ready.extend(queue.waiting.pop());
                }
                for &next in followers.get(event as usize).into_iter().flatten() {
                    let Some(remaining) = waiting.get_mut(next as usize) else { continue };
                    *remaining -= 1;
                    if *remaining == 0 {
                        let start = self.trace.events.get(next as usize).map(|event| event.start).unwrap_or_default();
                        ready.push(Reverse((start.max(now), next)));
                    }
                }
            }
            let mut started_islands = Vec::new();
            while let Some(&Reverse((_, event))) = ready.peek().filter(|Reverse((time, _))| *time <= now) {
                ready.pop();
                match self.trace.events.get(event as usize).map(|event| &event.kind) {
                    Some(EventKind::Wait(_)) => {
                        self.set_span(event, Span { begin: now, end: now, alone: Picos::ZERO });
                        ends.push(Reverse((now, event)));
                    }
                    Some(EventKind::Compute { ranks, on, time }) => {
                        // Each rank starts as soon as it is free; the event ends with its last rank.
                        let mut end = now;
                        for &rank in &**ranks {
                            let free = free_ranks.entry((rank, *on)).or_default();
                            *free = now.max(*free) + *time;
                            end = end.max(*free);
                            if *on == Processor::Gpu {
                                *busy.entry(rank).or_default() += *time;
                            }
                        }
                        let rank_end = |&rank| {
                            let &rank_end = free_ranks.get(&(rank, *on))?;
                            (rank_end < end).then_some(RankEnd { event, rank, end: rank_end })
                        };
                        early_ends.extend(ranks.iter().filter_map(rank_end));
                        self.set_span(event, Span { begin: end - *time, end, alone: *time });
                        ends.push(Reverse((end, event)));
                    }
                    Some(kind @ (EventKind::Call(call) | EventKind::Message(call))) => {
                        let queue = queues.entry(&call.group).or_default();
                        if std::mem::replace(&mut queue.is_busy, true) {
                            queue.waiting.push(Reverse((now, event)));
                            continue;
                        }
                        calls += 1;
                        let Some(&(planned, alone)) = self.planned.get(kind) else { continue };
                        let Some(group) = self.groups.get(&*call.group) else { continue };
                        self.set_span(event, Span { begin: now, end: now + alone, alone });
                        started_islands.extend(group.islands.iter().copied());
                        active.push(ActiveCall {
                            event,
                            call: planned,
                            devices: &group.devices,
                            islands: &group.islands,
                        });
                        ends.push(Reverse((now + alone, event)));
                    }
                    None => {}
                }
            }
            if self.simulated.monitor().is_interrupted() {
                return Err(PlanError::Interrupted.into());
            }
            self.simulate_sharing(&active, &started_islands)?;
        }
        let time = self.spans.iter().map(|span| span.end).max().unwrap_or_default();
        let communication = self.communication_time();
        let compute = busy.into_values().max().unwrap_or_default();
        Ok(Outcome { time, spans: self.spans, compute, communication, calls, early_ends })
    }

    fn set_span(&mut self, event: u32, span: Span) {
        if let Some(known) = self.spans.get_mut(event as usize) {
            *known = span;
        }
    }

    /// Simulates the active calls that may share links with the calls that have just started in the NVLink domains
    /// `islands`, and postpones the ends of calls that slow down.
    fn simulate_sharing(&mut self, active: &[ActiveCall<'_>], islands: &[u32]) -> Result<(), TimeError> {
        if islands.is_empty() {
            return Ok(());
        }
        let leaves = |one: &ActiveCall<'_>| one.islands.len() > 1;
        let several = islands.iter().any(|island| Some(island) != islands.first());
        let near = |one: &&ActiveCall<'_>| {
            (several && leaves(one)) || one.islands.iter().any(|island| islands.contains(island))
        };
        let concurrent: Vec<&ActiveCall<'_>> = active.iter().filter(near).collect();
        if concurrent.len() < 2 {
            return Ok(());
        }
        let begin =
            |one: &ActiveCall<'_>| self.spans.get(one.event as usize).map(|span| span.begin).unwrap_or_default();
        let first = concurrent.iter().map(|one| begin(one)).min().unwrap_or_default();
        let calls: Vec<PlacedCall<'_>> = concurrent
            .iter()
            .map(|one| PlacedCall { call: one.call, devices: one.devices, start: begin(one) - first })
            .collect();
        let key: ConcurrentCallsKey = calls.iter().map(|one| (one.call, one.devices.to_vec(), one.start)).collect();
        let ends = match self.known.get(&key) {
            Some(known) => known.clone(),
            None => {
                let end_times = self.simulated.concurrent_end_times(&calls)?;
                self.known.insert(key, end_times.clone());
                end_times
            }
        };
        for (one, end) in concurrent.iter().zip(ends) {
            if let Some(span) = self.spans.get_mut(one.event as usize) {
                span.end = span.end.max(first + end);
            }
        }
        Ok(())
    }

    /// Returns the total time during which at least one call is active.
    fn communication_time(&self) -> Picos {
        let calls = self.trace.events.iter().zip(&self.spans).filter(|(event, _)| event.kind.call().is_some());
        let mut spans: Vec<(Picos, Picos)> = calls.map(|(_, span)| (span.begin, span.end)).collect();
        spans.sort_unstable();
        let (mut sum, mut until) = (Picos::ZERO, Picos::ZERO);
        for (begin, end) in spans {
            sum += end - begin.max(until);
            until = until.max(end);
        }
        sum
    }
}

impl Group {
    /// Returns the devices and NVLink domains of all groups that make calls in a trace, by the ranks of the group.
    fn by_ranks<'a>(trace: &'a Trace, simulated: &SimulatedCosts<'_>) -> GroupsByRanks<'a> {
        let mut groups = GroupsByRanks::default();
        for event in &trace.events {
            if let Some(call) = event.kind.call() {
                groups.entry(&call.group).or_insert_with(|| {
                    let devices = simulated.devices(&call.group);
                    let islands = simulated.islands(&devices);
                    Self { devices, islands }
                });
            }
        }
        groups
    }
}
