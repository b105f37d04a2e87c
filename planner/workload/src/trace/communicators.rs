//! Calls of NCCL's communicators, as its Inspector and its example profiler record them, as a trace.
//!
//! A process records the calls of its communicators with its rank in each. The largest communicator defines the ranks
//! of the trace if all processes are in it; otherwise the processes are numbered by host and process id. Calls with the
//! same name and number in a communicator are one call. Calls of a communicator are executed in order, those of
//! different communicators are independent: the files have no streams. They have no computation either; with times, a
//! call starts no earlier than it did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, SourceLocation};
use rustc_hash::FxHashMap;

use super::messages::{Endpoint, Messages, message};
use super::nccl_log::collective_size;
use super::ranks::{self, MAX_RANKS};
use super::{Call, Event, EventKind, MAX_EVENTS, Trace};
use crate::job::JobError;

/// Maximum number of communicators that remarks name.
const MAX_NAMED: usize = 16;

/// Process that recorded calls: host or file, and process id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub host: String,
    pub id: u64,
}

/// Kind of a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordedKind {
    /// Collective by its name in NCCL, with its number in the communicator.
    Collective { name: String, number: u64 },
    /// Message to a rank of the communicator.
    Send(u32),
    /// Message from a rank of the communicator.
    Receive(u32),
}

/// Call that a process recorded.
#[derive(Clone, Debug)]
pub(super) struct RecordedCall {
    pub process: Process,
    /// Id of the communicator, equal on all of its ranks.
    pub communicator: String,
    /// Rank of the process in the communicator.
    pub rank: u32,
    /// Number of ranks of the communicator, if it is recorded.
    pub ranks: Option<u32>,
    pub kind: RecordedKind,
    /// Bytes of the `count` of one rank.
    pub bytes: u64,
    /// Start and end in µs, if they are recorded.
    pub time: Option<(u64, u64)>,
    pub location: SourceLocation,
}

/// Joins the calls of all processes into a trace. `remarks`: what the reader has left out.
///
/// # Errors
/// [`JobError`]: no call can be used, a rank is out of range, or a call is recorded twice by a rank.
pub(super) fn trace(calls: &[RecordedCall], mut remarks: Vec<String>, source: &str) -> Result<Trace, JobError> {
    if calls.len() > MAX_EVENTS {
        let message = format!("{} calls are more than {MAX_EVENTS}", calls.len());
        return Err(JobError::at(&SourceLocation::from_source(source), message));
    }
    let groups = Groups::new(calls, &mut remarks)?;
    let mut builder =
        Builder { origin: calls.iter().filter_map(|call| call.time).map(|time| time.0).min(), ..Builder::default() };
    for call in calls {
        builder.add(call, &groups)?;
    }
    remarks.extend(builder.remarks(calls, &groups));
    let recorded = builder.origin.zip(calls.iter().filter_map(|call| call.time).map(|time| time.1).max());
    let trace = Trace::new(builder.events, remarks, source)?;
    Ok(match recorded {
        Some((first, last)) => trace.with_recorded_time(micros(last.saturating_sub(first))),
        None => trace,
    })
}

fn micros(time: u64) -> Picos {
    Picos(time.saturating_mul(1_000_000).min(1 << 60))
}

/// Ranks of the trace in each communicator, in its order.
struct Groups<'a> {
    members: BTreeMap<&'a str, Arc<[u32]>>,
    sizes: BTreeMap<&'a str, u32>,
}

impl<'a> Groups<'a> {
    fn new(calls: &'a [RecordedCall], remarks: &mut Vec<String>) -> Result<Self, JobError> {
        let mut sizes: BTreeMap<&str, u32> = BTreeMap::new();
        let mut processes: BTreeMap<&Process, BTreeSet<(&str, u32)>> = BTreeMap::new();
        let mut order: Vec<&str> = Vec::new();
        let mut counts: FxHashMap<&str, usize> = FxHashMap::default();
        for call in calls {
            let peer = match call.kind {
                RecordedKind::Send(peer) | RecordedKind::Receive(peer) => peer,
                RecordedKind::Collective { .. } => call.rank,
            };
            let size = call.ranks.unwrap_or(0).max(call.rank.saturating_add(1)).max(peer.saturating_add(1));
            if size > MAX_RANKS || call.ranks.is_some_and(|ranks| size > ranks) {
                let message = format!("rank {} or its peer is not in a communicator of {size} ranks", call.rank);
                return Err(JobError::at(&call.location, message));
            }
            let known = sizes.entry(&call.communicator).or_insert_with(|| {
                order.push(&call.communicator);
                0
            });
            *known = size.max(*known);
            *counts.entry(call.communicator.as_str()).or_default() += 1;
            processes.entry(&call.process).or_default().insert((call.communicator.as_str(), call.rank));
        }
        let greatest = sizes.values().copied().max().unwrap_or(0);
        let world = order.into_iter().find(|communicator| sizes.get(communicator) == Some(&greatest));
        let in_world = |members: &BTreeSet<(&'a str, u32)>| -> Vec<u32> {
            members.iter().filter(|(communicator, _)| Some(*communicator) == world).map(|(_, rank)| *rank).collect()
        };
        let is_complete = processes.values().all(|members| !in_world(members).is_empty());
        if !is_complete {
            remarks.push(format!(
                "no communicator has all {} processes: ranks are numbered by host and process id",
                processes.len()
            ));
        }
        // Ranks of the trace by communicator and rank in it; unknown for a process that drives several GPUs.
        let mut slots: BTreeMap<&str, BTreeMap<u32, u32>> = BTreeMap::new();
        for (number, members) in (0u32..).zip(processes.values()) {
            let ranks = in_world(members);
            for &(communicator, rank) in members {
                let global = match (is_complete, ranks.as_slice()) {
                    (true, _) if Some(communicator) == world => Some(rank),
                    (true, [only]) => Some(*only),
                    (true, _) => None,
                    (false, _) => Some(number),
                };
                if let Some(global) = global {
                    slots.entry(communicator).or_default().insert(rank, global);
                }
            }
        }
        let mut members: BTreeMap<&str, Arc<[u32]>> = BTreeMap::new();
        let mut unknown = 0;
        for (&communicator, &size) in &sizes {
            let known = slots.remove(communicator).unwrap_or_default();
            if is_complete && Some(communicator) == world {
                members.insert(communicator, (0..size).collect());
                let silent: Vec<u32> = (0..size).filter(|rank| !known.contains_key(rank)).collect();
                if !silent.is_empty() {
                    let list = ranks::format(&silent);
                    remarks.push(format!("ranks {list} of {size} recorded no call: they are assumed to be never late"));
                }
                continue;
            }
            let distinct: BTreeSet<u32> = known.values().copied().collect();
            if known.len() == size as usize && distinct.len() == known.len() {
                members.insert(communicator, known.values().copied().collect());
                continue;
            }
            let seen: Vec<u32> = known.keys().copied().collect();
            unknown += 1;
            if unknown > MAX_NAMED {
                continue;
            }
            let count = counts.get(communicator).copied().unwrap_or_default();
            remarks.push(match seen.is_empty() {
                true => {
                    format!("communicator {communicator}: its {size} ranks are unknown; its {count} calls are left out")
                }
                false => format!(
                    "communicator {communicator}: of its {size} ranks only {} recorded calls, the others are unknown; \
                     its {count} calls are left out",
                    ranks::format(&seen)
                ),
            });
        }
        if unknown > MAX_NAMED {
            remarks.push(format!("the calls of {} more such communicators are left out", unknown - MAX_NAMED));
        }
        Ok(Self { members, sizes })
    }
}

/// Events of the calls so far.
#[derive(Default)]
struct Builder<'a> {
    /// Earliest start of a call, in µs.
    origin: Option<u64>,
    events: Vec<Event>,
    /// Events of collectives by communicator, name and number, with the ranks that recorded them.
    collectives: BTreeMap<(&'a str, &'a str, u64), (u32, BTreeSet<u32>)>,
    messages: FxHashMap<(&'a str, u32, u32), Messages>,
    /// Last event of a rank in a communicator; messages are recorded apart from collectives.
    last: FxHashMap<(&'a str, u32, bool), u32>,
    unknown_names: BTreeMap<&'a str, usize>,
    unequal_sizes: usize,
}

impl<'a> Builder<'a> {
    fn add(&mut self, call: &'a RecordedCall, groups: &Groups<'a>) -> Result<(), JobError> {
        let Some(group) = groups.members.get(call.communicator.as_str()) else { return Ok(()) };
        let size = groups.sizes.get(call.communicator.as_str()).copied().unwrap_or(1);
        let communicator = call.communicator.as_str();
        let start = call.time.zip(self.origin).map_or(Picos::ZERO, |((start, _), origin)| micros(start - origin));
        let is_message = !matches!(call.kind, RecordedKind::Collective { .. });
        let event = match &call.kind {
            RecordedKind::Collective { name, number } => {
                let Some((collective, bytes)) = collective_size(name, call.bytes, size) else {
                    *self.unknown_names.entry(name).or_default() += 1;
                    return Ok(());
                };
                if size < 2 {
                    return Ok(());
                }
                let next = self.events.len() as u32;
                let (event, ranks) =
                    self.collectives.entry((communicator, name, *number)).or_insert((next, BTreeSet::new()));
                let event = *event;
                if !ranks.insert(call.rank) {
                    let rank = call.rank;
                    let message = format!("rank {rank} recorded {name} {number} of communicator {communicator} twice");
                    return Err(JobError::at(&call.location, message));
                }
                self.join(event, call, start, || collective_event(group, collective, bytes));
                event
            }
            RecordedKind::Send(peer) => self.message(call, group, Endpoint::Sender, *peer, start)?,
            RecordedKind::Receive(peer) => self.message(call, group, Endpoint::Receiver, *peer, start)?,
        };
        let before = self.last.insert((communicator, call.rank, is_message), event);
        if let (Some(before), Some(event)) =
            (before.filter(|before| *before != event), self.events.get_mut(event as usize))
            && !event.after.contains(&before)
        {
            event.after.push(before);
        }
        Ok(())
    }

    /// Adds an event, or updates the event of a call that another rank has recorded: it starts with its last rank.
    fn join(&mut self, event: u32, call: &RecordedCall, start: Picos, kind: impl FnOnce() -> EventKind) {
        match self.events.get_mut(event as usize) {
            None => self.events.push(Event {
                name: call.communicator.clone(),
                kind: kind(),
                after: Vec::new(),
                start,
                location: call.location.clone(),
            }),
            Some(known) => {
                known.start = known.start.max(start);
                if let (EventKind::Call(one) | EventKind::Message(one), EventKind::Call(two) | EventKind::Message(two)) =
                    (&mut known.kind, kind())
                    && one.bytes != two.bytes
                {
                    one.bytes = Bytes(one.bytes.0.max(two.bytes.0));
                    self.unequal_sizes += 1;
                }
            }
        }
    }

    fn message(
        &mut self,
        call: &'a RecordedCall,
        group: &Arc<[u32]>,
        side: Endpoint,
        peer: u32,
        start: Picos,
    ) -> Result<u32, JobError> {
        let global = |rank: u32| group.get(rank as usize).copied();
        let (Some(own), Some(peer)) = (global(call.rank), global(peer)) else {
            return Err(JobError::at(&call.location, format!("there is no rank {peer} in this communicator")));
        };
        if own == peer {
            return Err(JobError::at(&call.location, format!("rank {} is its own peer", call.rank)));
        }
        let (from, to) = match side {
            Endpoint::Sender => (own, peer),
            Endpoint::Receiver => (peer, own),
        };
        let next = self.events.len() as u32;
        let known = self.messages.entry((call.communicator.as_str(), from, to)).or_default().next(side, next);
        let event = known.unwrap_or(next);
        self.join(event, call, start, || message(from, to, call.bytes));
        Ok(event)
    }

    /// Returns what the files lack, as one sentence each.
    fn remarks(&self, calls: &[RecordedCall], groups: &Groups<'_>) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut numbers: BTreeMap<(&str, &str), (u64, u64, u64)> = BTreeMap::new();
        for (communicator, name, number) in self.collectives.keys() {
            let (first, last, count) = numbers.entry((communicator, name)).or_insert((*number, *number, 0));
            (*first, *last) = ((*first).min(*number), (*last).max(*number));
            *count += 1;
        }
        for ((communicator, name), (first, last, count)) in numbers {
            if remarks.len() == MAX_NAMED {
                break;
            }
            let missing = (last - first).saturating_add(1).saturating_sub(count);
            if missing > 0 {
                remarks.push(format!(
                    "communicator {communicator}: {missing} of {} {name} calls are not recorded (below the minimum \
                     size, or lost from a full buffer)",
                    missing + count
                ));
            }
        }
        let partial = self.collectives.iter().filter(|((communicator, ..), (_, ranks))| {
            groups.sizes.get(communicator).is_some_and(|size| ranks.len() < *size as usize)
        });
        let partial = partial.count();
        if partial > 0 {
            remarks.push(format!("{partial} calls are recorded by some of their ranks only"));
        }
        for (name, count) in self.unknown_names.iter().take(MAX_NAMED) {
            remarks.push(format!("{count} calls of {name} are left out: unknown, or too large"));
        }
        if self.unequal_sizes > 0 {
            remarks.push(format!("{} calls have other sizes on other ranks: the largest is used", self.unequal_sizes));
        }
        remarks.push(match calls.iter().all(|call| call.time.is_some()) {
            true => "computation is not recorded: a call starts no earlier than it did".to_owned(),
            false => "computation is not recorded: the calls of a communicator follow one another at once".to_owned(),
        });
        remarks
    }
}

fn collective_event(group: &Arc<[u32]>, collective: Collective, bytes: Bytes) -> EventKind {
    EventKind::Call(Call { group: Arc::clone(group), collective, bytes })
}
