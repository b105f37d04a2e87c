//! Timeline of one rank: host time, computation and calls, and what each waits for.
//!
//! ```text
//! host      ──h0──┬──h1──┬─────h2─────┬──sync──h3─►
//! compute         └─ c0 ─┴─ c1 ─┐     ├─ c2 ─►
//! calls                  └─ call0 ────┘
//! ```
//!
//! - **Computation** is the union of the busy intervals of all streams but those of priced calls. It is cut into
//!   segments where something else may delay it: at an operation that the host launched after the previous one had
//!   ended, at one with less time since its launch than the first of its segment, after a stream wait, and where a call
//!   or the host waits for it. Gaps inside a segment are the GPU's own and stay.
//! - **A call** starts after the computation that was launched before it and had ended when it started, after the call
//!   before it on its stream, and after its launch.
//! - **A segment after a stream wait** (`cudaStreamWaitEvent` outside the launch of a call) starts after the call that
//!   the wait names (`Seq` of its `record_param_comms`); otherwise after all calls that were launched before the wait
//!   and had ended when the segment started.
//! - **Host time** between launches stays as recorded. A synchronization delays the host until the operation ends whose
//!   end it saw.
//!
//! With recorded durations of the calls, each segment starts and ends as recorded.

use std::collections::BTreeSet;

use super::calls::{CallIndex, KernelCalls};
use super::host::Host;
use super::items::{Item, Items, Streams, Waits, synchronizations};
use super::node::{Activity, TimelineNode};
use super::recording::{Nanos, Recording};
use super::segments::{segment_starts, segments};
use super::window::Window;

/// Timeline of a rank in a window.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub nodes: Vec<TimelineNode>,
    /// Recorded time from the start of the window, or the end of the GPU's earlier work, until host and GPU are done.
    pub time: Nanos,
    /// Recorded time in kernels of priced calls.
    pub communication: Nanos,
    /// GPU operations whose launch is not in the trace.
    pub unlaunched: usize,
}

/// Builds the timeline of a window.
pub(super) fn build(recording: &Recording, calls: &KernelCalls, index: &CallIndex<'_>, window: Window) -> Timeline {
    let Items { computing, communicating, origin, end, unlaunched } = Items::new(recording, calls, window);
    let waits = Waits::new(recording, calls, index, window, origin, &computing, &communicating);
    let streams = Streams::new(&communicating);
    let synchronizations = synchronizations(recording, window, origin, &computing, &communicating);

    // Computation that each call waits for: the end of the last operation that was launched before it.
    let mut by_launch: Vec<&Item> = computing.iter().collect();
    by_launch.sort_by_key(|item| item.launch_order());
    let mut ends = BTreeSet::new();
    let mut next = 0;
    let computed_before: Vec<Option<Nanos>> = communicating
        .iter()
        .map(|call| {
            while let Some(item) = by_launch.get(next).filter(|item| item.launch_order() < call.launch_order()) {
                ends.insert(item.end);
                next += 1;
            }
            ends.range(..=call.start).next_back().copied()
        })
        .collect();

    let mut cuts: BTreeSet<Nanos> = computed_before.iter().flatten().copied().collect();
    cuts.extend(synchronizations.iter().flat_map(|sync| sync.ends.iter().copied()));
    let starts = segment_starts(&computing, &waits, &streams, &communicating, &cuts);
    cuts.extend(starts.keys().copied());
    let segments = segments(&computing, &cuts);
    let segment_by = |time: Nanos| segments.partition_point(|segment| segment.end <= time).checked_sub(1);

    // Nodes: segments first, then calls, then the host.
    let first_call = segments.len();
    let mut nodes: Vec<TimelineNode> = Vec::with_capacity(segments.len() + 2 * communicating.len());
    let mut host = Host::default();
    for (number, segment) in segments.iter().enumerate() {
        let previous = number.checked_sub(1).and_then(|before| segments.get(before));
        let mut ready = previous.map_or(0, |previous| previous.end);
        let mut after: Vec<usize> = number.checked_sub(1).into_iter().collect();
        let begin = starts.get(&segment.start);
        for &call in begin.map(|begin| begin.calls.as_slice()).unwrap_or_default() {
            after.push(first_call + call);
            ready = ready.max(communicating.get(call).map_or(0, |call| call.end));
        }
        if let Some(launch) = begin.and_then(|begin| begin.launch) {
            host.launch(number, launch, segment.start, ready);
        }
        nodes.push(TimelineNode { activity: Activity::Compute(segment.end - ready), after });
    }
    for (number, call) in communicating.iter().enumerate() {
        let computed = computed_before.get(number).copied().flatten().and_then(segment_by);
        let mut after: Vec<usize> = computed.into_iter().collect();
        let mut before: Vec<usize> = streams.previous(number).into_iter().collect();
        for wait in waits.by_call.get(&number).into_iter().flatten() {
            before.extend(streams.ended(wait, call.start, &communicating));
        }
        before.sort_unstable();
        before.dedup();
        before.retain(|call| *call != number);
        let ended = before.iter().filter_map(|call| communicating.get(*call)).map(|call| call.end);
        let ready = ended.max().unwrap_or(0).max(computed.and_then(|one| segments.get(one)).map_or(0, |one| one.end));
        after.extend(before.iter().map(|call| first_call + call));
        if let Some(launch) = call.launch {
            host.launch(first_call + number, launch, call.start, ready);
        }
        let recorded = calls.by_operation.get(&call.operation).cloned().unwrap_or_default();
        nodes.push(TimelineNode { activity: Activity::Calls(recorded), after });
    }
    for sync in &synchronizations {
        let computed = sync.ends.iter().filter_map(|end| segment_by(*end));
        let after = computed.chain(sync.calls.iter().map(|call| first_call + call)).collect();
        host.synchronize(sync, after);
    }
    let finish = window.host_end.map_or(0, |finish| finish - origin);
    host.add(&mut nodes, &segments, finish);
    Timeline {
        nodes,
        time: end - origin,
        communication: communicating.iter().fold(0, |sum, call| sum.saturating_add(call.end - call.start)),
        unlaunched,
    }
}
