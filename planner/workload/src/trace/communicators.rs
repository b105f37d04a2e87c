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
use super::rank_groups::{MAX_NAMED, RankGroups};
use super::recorded_call::{RecordedCall, RecordedKind};
use super::{Call, Event, EventKind, MAX_EVENTS, Trace};
use crate::job::JobError;

/// Joins the calls of all processes into a trace. `remarks`: what the reader has left out.
///
/// # Errors
/// [`JobError`]: no call can be used, a rank is out of range, or a call is recorded twice by a rank.
pub(super) fn trace(calls: &[RecordedCall], mut remarks: Vec<String>, source: &str) -> Result<Trace, JobError> {
    if calls.len() > MAX_EVENTS {
        let message = format!("{} calls are more than {MAX_EVENTS}", calls.len());
        return Err(JobError::at(&SourceLocation::from_source(source), message));
    }
    let groups = RankGroups::new(calls, &mut remarks)?;
    let mut builder = CallEvents {
        origin: calls.iter().filter_map(|call| call.time).map(|time| time.0).min(),
        ..CallEvents::default()
    };
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

/// Events of the calls so far.
#[derive(Default)]
struct CallEvents<'a> {
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

impl<'a> CallEvents<'a> {
    fn add(&mut self, call: &'a RecordedCall, groups: &RankGroups<'a>) -> Result<(), JobError> {
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
    fn remarks(&self, calls: &[RecordedCall], groups: &RankGroups<'_>) -> Vec<String> {
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
