//! Joins the timelines of ranks into one trace: the n-th call of a group is the same call on all of its ranks.
//!
//! If the trace of one rank is all there is, the other ranks are assumed to equal it: they compute at the same time,
//! and each call is made by all groups that are shifted copies of the recorded one. If several but not all ranks have a
//! trace, the others are assumed to be never late.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, SourceLocation};
use rustc_hash::FxHashMap;

use super::super::messages::{Endpoint, Messages, message};
use super::super::{Call, Event, EventKind, MAX_EVENTS, Processor};
use super::calls::{CallKind, KernelCall};
use super::node::Activity;
use super::recording::Nanos;
use super::timeline::Timeline;
use crate::job::JobError;

/// Timeline of a rank with the name of its file.
pub(super) struct RankTimeline<'a> {
    pub rank: u32,
    pub source: &'a str,
    pub timeline: Timeline,
}

/// Ranks that a timeline represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// Each rank has its own timeline or is never late.
    Recorded,
    /// One timeline represents all ranks of a job of this size.
    Representative(u32),
}

/// Events of all ranks, with remarks on what the traces lack.
#[derive(Debug, Default)]
pub(super) struct JoinedTimelines {
    pub events: Vec<Event>,
    pub remarks: Vec<String>,
}

/// Joins timelines in order of rank.
///
/// # Errors
/// [`JobError`] with the file: ranks whose n-th calls of a group are different collectives, or too many events.
pub(super) fn join(timelines: &[RankTimeline<'_>], coverage: Coverage) -> Result<JoinedTimelines, JobError> {
    let mut builder = TimelineJoin { coverage, ..TimelineJoin::default() };
    for timeline in timelines {
        builder.add(timeline)?;
    }
    let recorded: Vec<u32> = timelines.iter().map(|timeline| timeline.rank).collect();
    let remarks = builder.remarks(&recorded);
    Ok(JoinedTimelines { events: builder.events, remarks })
}

/// Call of a group: its event, and what the first rank recorded.
struct RecordedGroupCall {
    event: u32,
    collective: Collective,
}

type GroupKey = (String, Arc<[u32]>);

struct TimelineJoin {
    coverage: Coverage,
    events: Vec<Event>,
    calls: BTreeMap<GroupKey, Vec<RecordedGroupCall>>,
    /// Number of calls of each rank in each group.
    counts: FxHashMap<GroupKey, BTreeMap<u32, usize>>,
    messages: FxHashMap<(String, u32, u32), Messages>,
    unequal_sizes: u64,
    unrecorded_peers: u64,
    irregular_groups: u64,
}

impl Default for TimelineJoin {
    fn default() -> Self {
        Self {
            coverage: Coverage::Recorded,
            events: Vec::new(),
            calls: BTreeMap::new(),
            counts: FxHashMap::default(),
            messages: FxHashMap::default(),
            unequal_sizes: 0,
            unrecorded_peers: 0,
            irregular_groups: 0,
        }
    }
}

impl TimelineJoin {
    fn add(&mut self, timeline: &RankTimeline<'_>) -> Result<(), JobError> {
        let ranks: Arc<[u32]> = match self.coverage {
            Coverage::Recorded => [timeline.rank].into(),
            Coverage::Representative(size) => (0..size).collect(),
        };
        let nodes = &timeline.timeline.nodes;
        // Events that a node starts, and events that end it.
        let mut first: Vec<Vec<u32>> = Vec::with_capacity(nodes.len());
        let mut last: Vec<Vec<u32>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let compute = |on, time: Nanos| EventKind::Compute { ranks: Arc::clone(&ranks), on, time: picos(time) };
            let (begin, end) = match &node.activity {
                Activity::Host(time) => both(self.event("host", compute(Processor::Cpu, *time), timeline.source)),
                Activity::Compute(time) => both(self.event("kernels", compute(Processor::Gpu, *time), timeline.source)),
                Activity::Synchronize => {
                    both(self.event("synchronize", EventKind::Wait(Arc::clone(&ranks)), timeline.source))
                }
                Activity::Calls(calls) => self.add_calls(timeline, calls)?,
            };
            first.push(begin);
            last.push(end);
            if self.events.len() > MAX_EVENTS {
                let message = format!("more than {MAX_EVENTS} events of all ranks");
                return Err(JobError::at(&SourceLocation::from_source(timeline.source), message));
            }
        }
        let mut edges = 0;
        for (node, events) in nodes.iter().zip(&first) {
            let before: Vec<u32> =
                node.after.iter().filter_map(|before| last.get(*before)).flatten().copied().collect();
            edges += before.len() * events.len();
            if edges > MAX_EDGES {
                let message = format!("more than {MAX_EDGES} dependencies of one rank");
                return Err(JobError::at(&SourceLocation::from_source(timeline.source), message));
            }
            for &event in events {
                self.add_predecessors(event, &before);
            }
        }
        Ok(())
    }

    fn add_predecessors(&mut self, event: u32, before: &[u32]) {
        if let Some(event) = self.events.get_mut(event as usize) {
            event.after.extend(before);
            event.after.sort_unstable();
            event.after.dedup();
        }
    }

    fn event(&mut self, name: &str, kind: EventKind, source: &str) -> u32 {
        let location = SourceLocation::from_source(source);
        self.events.push(Event { name: name.to_owned(), kind, after: Vec::new(), start: Picos::ZERO, location });
        self.events.len() as u32 - 1
    }

    /// Adds the calls of a kernel. Returns the events that wait for the node's predecessors, and those that end it.
    fn add_calls(
        &mut self,
        timeline: &RankTimeline<'_>,
        calls: &[KernelCall],
    ) -> Result<(Vec<u32>, Vec<u32>), JobError> {
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        for call in calls {
            match &call.kind {
                CallKind::Collective(collective, group) => {
                    if group.len() < 2 {
                        continue;
                    }
                    for copy in self.copies(group) {
                        let event = self.collective(timeline, call, *collective, copy)?;
                        begin.push(event);
                        end.push(event);
                    }
                }
                CallKind::Send(peer) if *peer != timeline.rank => {
                    let event = self.message(timeline, call, Endpoint::Sender, *peer);
                    begin.push(event);
                    end.push(event);
                }
                // A send does not wait for its receiver.
                CallKind::Receive(peer) if *peer != timeline.rank => {
                    let event = self.message(timeline, call, Endpoint::Receiver, *peer);
                    let wait = self.event("receive", EventKind::Wait([timeline.rank].into()), timeline.source);
                    self.add_predecessors(wait, &[event]);
                    begin.push(wait);
                    end.push(wait);
                }
                CallKind::Send(_) | CallKind::Receive(_) => {}
            }
        }
        if begin.is_empty() {
            return Ok(both(self.event("call", EventKind::Wait([timeline.rank].into()), timeline.source)));
        }
        Ok((begin, end))
    }

    /// Returns the groups that make a call: the recorded one, or all of its shifted copies if one rank represents all.
    /// A group of `n` ranks with stride `s` is copied to each offset below `s` in each block of `n × s` ranks.
    fn copies(&mut self, group: &Arc<[u32]>) -> Vec<Arc<[u32]>> {
        let Coverage::Representative(size) = self.coverage else { return vec![Arc::clone(group)] };
        if group.len() as u32 == size {
            return vec![Arc::clone(group)];
        }
        let copies = shifted_copies(group, size);
        copies.unwrap_or_else(|| {
            self.irregular_groups += 1;
            vec![Arc::clone(group)]
        })
    }

    fn collective(
        &mut self,
        timeline: &RankTimeline<'_>,
        call: &KernelCall,
        collective: Collective,
        group: Arc<[u32]>,
    ) -> Result<u32, JobError> {
        let key: GroupKey = (call.name.clone(), Arc::clone(&group));
        let count = self.counts.entry(key.clone()).or_default().entry(timeline.rank).or_default();
        let number = *count;
        *count += 1;
        let Some(known) = self.calls.get(&key).and_then(|calls| calls.get(number)) else {
            let kind = EventKind::Call(Call { group, collective, bytes: call.bytes });
            let event = self.event(&format!("group {}", call.name), kind, timeline.source);
            self.calls.entry(key).or_default().push(RecordedGroupCall { event, collective });
            return Ok(event);
        };
        if known.collective != collective {
            let message = format!(
                "call {} of group `{}` is {collective} here, and {} in the traces of other ranks",
                number + 1,
                call.name,
                known.collective
            );
            return Err(JobError::at(&SourceLocation::from_source(timeline.source), message));
        }
        let event = known.event;
        if let Some(Event { kind: EventKind::Call(joined), .. }) = self.events.get_mut(event as usize)
            && joined.bytes != call.bytes
        {
            joined.bytes = Bytes(joined.bytes.0.max(call.bytes.0));
            self.unequal_sizes += 1;
        }
        Ok(event)
    }

    fn message(&mut self, timeline: &RankTimeline<'_>, call: &KernelCall, side: Endpoint, peer: u32) -> u32 {
        let (from, to) = match side {
            Endpoint::Sender => (timeline.rank, peer),
            Endpoint::Receiver => (peer, timeline.rank),
        };
        let new = self.events.len() as u32;
        match self.messages.entry((call.name.clone(), from, to)).or_default().next(side, new) {
            Some(known) => known,
            None => self.event(&format!("group {}", call.name), message(from, to, call.bytes.0), timeline.source),
        }
    }

    /// Returns what the traces lack, as one sentence each.
    fn remarks(&mut self, recorded: &[u32]) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.coverage == Coverage::Recorded {
            for ((name, group), calls) in &self.calls {
                if remarks.len() >= MAX_REMARKS {
                    break;
                }
                let counts = self.counts.get(&(name.clone(), Arc::clone(group)));
                let count = |rank: &u32| counts.and_then(|counts| counts.get(rank)).copied().unwrap_or_default();
                let members: Vec<u32> = group.iter().copied().filter(|rank| recorded.contains(rank)).collect();
                let short = members.iter().filter(|rank| count(rank) < calls.len());
                for rank in short.take(MAX_NAMED_RANKS) {
                    remarks.push(format!(
                        "group `{name}`: rank {rank} recorded {} of {} calls; the others do not wait for it",
                        count(rank),
                        calls.len()
                    ));
                }
            }
        }
        if self.unequal_sizes > 0 {
            let count = self.unequal_sizes;
            remarks.push(format!("{count} calls have other sizes on other ranks: the largest is used"));
        }
        let peers = self.messages.keys().map(|(_, from, to)| if recorded.contains(from) { to } else { from });
        self.unrecorded_peers = peers.filter(|peer| !recorded.contains(peer)).count() as u64;
        if self.unrecorded_peers > 0 {
            let count = self.unrecorded_peers;
            remarks.push(format!(
                "messages of {count} pairs have a side without a trace, which is assumed to be never late"
            ));
        }
        if self.irregular_groups > 0 {
            let count = self.irregular_groups;
            remarks.push(format!(
                "{count} calls of groups without equal shifted copies are made by the recorded group alone"
            ));
        }
        remarks
    }
}

/// Number of remarks after which no further groups are named.
const MAX_REMARKS: usize = 16;

/// Maximum number of ranks of a group that remarks name.
const MAX_NAMED_RANKS: usize = 4;

/// Maximum number of dependencies of the events of a rank.
const MAX_EDGES: usize = 1 << 24;

fn both(event: u32) -> (Vec<u32>, Vec<u32>) {
    (vec![event], vec![event])
}

fn picos(time: Nanos) -> Picos {
    Picos(u64::try_from(time).unwrap_or_default().saturating_mul(1000).min(1 << 60))
}

/// Returns the shifted copies of a group in a job of `size` ranks; `None` if its ranks are not equally spaced, or the
/// copies do not cover all ranks.
fn shifted_copies(group: &[u32], size: u32) -> Option<Vec<Arc<[u32]>>> {
    let (&first, &second) = (group.first()?, group.get(1)?);
    let stride = second.checked_sub(first).filter(|stride| *stride > 0)?;
    let is_regular = group.windows(2).all(|pair| match pair {
        [one, next] => next.checked_sub(*one) == Some(stride),
        _ => true,
    });
    let count = group.len() as u32;
    let block = stride.checked_mul(count)?;
    if !is_regular || !size.is_multiple_of(block) || first % block >= stride {
        return None;
    }
    let starts = (0..size / block).flat_map(|number| (0..stride).map(move |offset| number * block + offset));
    Some(starts.map(|start| (0..count).map(|index| start + index * stride).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_copied_over_all_ranks() {
        let copies = |group: &[u32], size| {
            shifted_copies(group, size).map(|copies| copies.iter().map(|copy| copy.to_vec()).collect::<Vec<Vec<u32>>>())
        };
        assert_eq!(copies(&[2, 3], 4), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(copies(&[1, 3], 4), Some(vec![vec![0, 2], vec![1, 3]]));
        assert_eq!(copies(&[4, 6], 8), Some(vec![vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]]));
        for (group, size) in [(&[0, 1, 3][..], 6), (&[0, 1, 2], 4), (&[1, 2], 4), (&[3, 1], 4)] {
            assert_eq!(copies(group, size), None, "{group:?}");
        }
    }
}
