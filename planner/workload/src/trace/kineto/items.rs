//! Operations, calls, waits and synchronizations of a window, in ns from the start of the timeline.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::calls::{CallIndex, KernelCalls};
use super::communication::Operation;
use super::recording::{Nanos, Recording, RuntimeCall};
use super::window::Window;

/// Maximum number of waits for named calls between two operations.
const MAX_NAMED_WAITS: usize = 256;

/// GPU operation or call in a window, in ns from the start of the timeline.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub start: Nanos,
    pub end: Nanos,
    pub launch: Option<Nanos>,
    pub stream: i64,
    pub operation: usize,
}

impl Item {
    /// Order of launches; operations of one launch are ordered by their start.
    pub fn launch_order(&self) -> (Nanos, Nanos) {
        (self.launch.unwrap_or(self.start), self.start)
    }
}

/// Stream wait of the host for calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub time: Nanos,
    /// Call that the wait names, as an index into the calls of the window.
    pub target: Option<usize>,
}

/// Operations and calls of a window.
pub(super) struct Items {
    /// Operations without a priced call, by their start.
    pub computing: Vec<Item>,
    /// Kernels with priced calls, by their launch.
    pub communicating: Vec<Item>,
    /// Start of the timeline.
    pub origin: Nanos,
    /// End of the timeline.
    pub end: Nanos,
    pub unlaunched: usize,
}

impl Items {
    pub fn new(recording: &Recording, calls: &KernelCalls, window: Window) -> Self {
        let mut items = Vec::new();
        let mut end = window.host_end.unwrap_or(window.end - 1);
        let (mut origin, mut unlaunched) = (window.start, 0);
        for (number, operation) in recording.operations.iter().enumerate() {
            let launch = operation.correlation.and_then(|correlation| recording.launches.get(&correlation));
            let launch = launch.map(|launch| launch.start.min(operation.start));
            let order = launch.unwrap_or(operation.start);
            if order < window.start {
                origin = origin.max(operation.end);
            } else if order < window.end {
                unlaunched += usize::from(launch.is_none());
                end = end.max(operation.end);
                items.push(Item {
                    start: operation.start,
                    end: operation.end,
                    launch,
                    stream: operation.stream,
                    operation: number,
                });
            }
        }
        end = end.max(origin);
        for item in &mut items {
            item.start = (item.start - origin).max(0);
            item.end = (item.end - origin).max(0);
            item.launch = item.launch.map(|launch| (launch - origin).max(0));
        }
        let (mut communicating, mut computing): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|item| calls.by_operation.contains_key(&item.operation));
        computing.sort_by_key(|item| (item.start, item.end, item.operation));
        communicating.sort_by_key(|item| (item.launch_order(), item.operation));
        Self { computing, communicating, origin, end, unlaunched }
    }
}

/// Calls by stream, in stream order.
pub(super) struct Streams {
    calls: BTreeMap<i64, Vec<usize>>,
    previous: Vec<Option<usize>>,
}

impl Streams {
    pub fn new(communicating: &[Item]) -> Self {
        let mut calls: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        let previous = communicating.iter().enumerate().map(|(number, call)| {
            let stream = calls.entry(call.stream).or_default();
            let previous = stream.last().copied();
            stream.push(number);
            previous
        });
        let previous = previous.collect();
        Self { calls, previous }
    }

    /// Returns the call before a call on its stream.
    pub fn previous(&self, call: usize) -> Option<usize> {
        self.previous.get(call).copied().flatten()
    }

    /// Returns the calls that a wait waits for, if they had ended by `start`: its target or, on each stream, the last
    /// call that was launched before the wait.
    pub fn ended(&self, wait: &Wait, start: Nanos, communicating: &[Item]) -> Vec<usize> {
        let has_ended = |call: &usize| communicating.get(*call).is_some_and(|call| call.end <= start);
        if let Some(target) = wait.target {
            return Some(target).filter(has_ended).into_iter().collect();
        }
        let last = |calls: &Vec<usize>| {
            let is_before = |call: &usize| {
                communicating.get(*call).is_some_and(|call| call.launch_order().0 < wait.time && call.end <= start)
            };
            let count = calls.partition_point(is_before);
            calls.get(count.checked_sub(1)?).copied().filter(has_ended)
        };
        self.calls.values().filter_map(last).collect()
    }
}

/// Stream waits before operations and calls, in order of launch.
pub(super) struct Waits {
    pub by_operation: FxHashMap<usize, Vec<Wait>>,
    pub by_call: FxHashMap<usize, Vec<Wait>>,
}

impl Waits {
    pub fn new(
        recording: &Recording,
        calls: &KernelCalls,
        index: &CallIndex<'_>,
        window: Window,
        origin: Nanos,
        computing: &[Item],
        communicating: &[Item],
    ) -> Self {
        let mut by_sequence: FxHashMap<(&str, i64), usize> = FxHashMap::default();
        for (number, call) in communicating.iter().enumerate() {
            for recorded in calls.by_operation.get(&call.operation).into_iter().flatten() {
                if let Some(sequence) = recorded.sequence {
                    by_sequence.insert((&recorded.name, sequence), number);
                }
            }
        }
        let mut waits: Vec<Wait> = Vec::new();
        for blocking in &recording.blocking {
            let in_window = blocking.start >= window.start && blocking.start < window.end;
            if blocking.call != RuntimeCall::StreamWait || !in_window {
                continue;
            }
            // Inside the launch of a call, NCCL's stream waits for the computation.
            let target = match index.enclosing(blocking.thread, blocking.start) {
                None => None,
                Some(call) if call.info.operation == Operation::Wait => {
                    call.info.sequence.and_then(|number| by_sequence.get(&(call.info.group.as_str(), number)).copied())
                }
                Some(_) => continue,
            };
            waits.push(Wait { time: (blocking.start - origin).max(0), target });
        }
        waits.sort_by_key(|wait| wait.time);
        // Waits count for the next operation, and for calls up to it.
        let mut launches: Vec<(Nanos, Nanos, LaunchItem)> = Vec::with_capacity(computing.len() + communicating.len());
        for (number, item) in computing.iter().enumerate() {
            let (launch, start) = item.launch_order();
            launches.push((launch, start, LaunchItem::Operation(number)));
        }
        for (number, item) in communicating.iter().enumerate() {
            let (launch, start) = item.launch_order();
            launches.push((launch, start, LaunchItem::Call(number)));
        }
        launches.sort_unstable();
        let mut result = Self { by_operation: FxHashMap::default(), by_call: FxHashMap::default() };
        let (mut next, mut used) = (0, 0);
        for (time, _, launched) in launches {
            while waits.get(next).is_some_and(|wait| wait.time <= time) {
                next += 1;
            }
            // Of waits without a target the last one suffices.
            let pending = waits.get(used..next).unwrap_or_default();
            let named = pending.iter().rev().filter(|wait| wait.target.is_some()).take(MAX_NAMED_WAITS);
            let last = pending.iter().rev().find(|wait| wait.target.is_none());
            let pending: Vec<Wait> = named.chain(last).copied().collect();
            if pending.is_empty() {
                continue;
            }
            match launched {
                LaunchItem::Operation(number) => {
                    result.by_operation.insert(number, pending);
                    used = next;
                }
                LaunchItem::Call(number) => drop(result.by_call.insert(number, pending)),
            }
        }
        result
    }
}

/// Launch of an operation or a call, as an index into the items of the window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaunchItem {
    Operation(usize),
    Call(usize),
}

/// Synchronization of the host with the GPU.
pub(super) struct Synchronization {
    /// Start of the call on the host.
    pub begin: Nanos,
    /// Return of the call on the host.
    pub time: Nanos,
    /// Recorded end of what it waited for.
    pub ended: Nanos,
    /// Ends of the computation that it waited for.
    pub ends: Vec<Nanos>,
    /// Calls that it waited for.
    pub calls: Vec<usize>,
}

/// Returns the synchronizations that waited: those of a stream or event for the last operation or call that ended
/// during them, those of the device for everything before.
pub(super) fn synchronizations(
    recording: &Recording,
    window: Window,
    origin: Nanos,
    computing: &[Item],
    communicating: &[Item],
) -> Vec<Synchronization> {
    let mut computed: Vec<Nanos> = computing.iter().map(|item| item.end).collect();
    computed.sort_unstable();
    let mut called: Vec<(Nanos, usize)> = communicating.iter().enumerate().map(|(n, call)| (call.end, n)).collect();
    called.sort_unstable();
    let mut result = Vec::new();
    for blocking in &recording.blocking {
        let is_device = match blocking.call {
            RuntimeCall::StreamSynchronize => false,
            RuntimeCall::DeviceSynchronize => true,
            RuntimeCall::StreamWait | RuntimeCall::Other => continue,
        };
        if blocking.start < window.start || blocking.start >= window.end {
            continue;
        }
        let (begin, time) = (blocking.start - origin, (blocking.end - origin).max(0));
        let end = computed.partition_point(|end| *end <= time).checked_sub(1).and_then(|last| computed.get(last));
        let call = called.partition_point(|call| call.0 <= time).checked_sub(1).and_then(|last| called.get(last));
        let (end, call) = (end.copied(), call.copied());
        let waited = |ended: Nanos| is_device || ended >= begin;
        let is_last = |one: Nanos, other: Option<Nanos>| is_device || other.is_none_or(|other| one >= other);
        let ends = end.filter(|end| waited(*end) && is_last(*end, call.map(|call| call.0)));
        let calls = call.filter(|call| waited(call.0) && is_last(call.0, end)).map(|call| call.1);
        if ends.is_some() || calls.is_some() {
            let ended = ends.max(call.filter(|call| Some(call.1) == calls).map(|call| call.0)).unwrap_or_default();
            let (ends, calls) = (ends.into_iter().collect(), calls.into_iter().collect());
            result.push(Synchronization { begin: begin.max(0), time, ended, ends, calls });
        }
    }
    result
}
