//! Ranks of a trace in the communicators of its recorded calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ranks::{self, MAX_RANKS};
use super::recorded_call::{Process, RecordedCall, RecordedKind};
use crate::job::JobError;

/// Maximum number of communicators that remarks name.
pub(super) const MAX_NAMED: usize = 16;

/// Communicators of the calls, and the processes that made them.
#[derive(Default)]
struct Survey<'a> {
    /// Number of ranks of each communicator.
    sizes: BTreeMap<&'a str, u32>,
    /// Number of recorded calls of each communicator.
    counts: FxHashMap<&'a str, usize>,
    /// Communicators in the order of their first calls.
    order: Vec<&'a str>,
    /// Communicators of each process, with its ranks in them.
    processes: BTreeMap<&'a Process, BTreeSet<(&'a str, u32)>>,
}

impl<'a> Survey<'a> {
    /// Counts the communicators of the calls.
    ///
    /// # Errors
    /// [`JobError`]: a rank or its peer is not in its communicator, or the communicator has too many ranks.
    fn new(calls: &'a [RecordedCall]) -> Result<Self, JobError> {
        let mut survey = Self::default();
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
            let communicator = call.communicator.as_str();
            let known = survey.sizes.entry(communicator).or_insert_with(|| {
                survey.order.push(communicator);
                0
            });
            *known = size.max(*known);
            *survey.counts.entry(communicator).or_default() += 1;
            survey.processes.entry(&call.process).or_default().insert((communicator, call.rank));
        }
        Ok(survey)
    }

    /// Returns the first of the communicators with most ranks.
    fn largest_communicator(&self) -> Option<&'a str> {
        let greatest = self.sizes.values().copied().max().unwrap_or(0);
        self.order.iter().copied().find(|communicator| self.sizes.get(communicator) == Some(&greatest))
    }
}

/// Numbering of the ranks of a trace.
struct Numbering<'a> {
    /// Communicator of all processes, whose ranks are those of the trace; `None` if there is none. The ranks are then
    /// numbered by host and process id.
    world: Option<&'a str>,
    /// Ranks of the trace by communicator and rank in it; unknown for a process that drives several GPUs.
    ranks: BTreeMap<&'a str, BTreeMap<u32, u32>>,
}

impl<'a> Numbering<'a> {
    fn new(survey: &Survey<'a>) -> Self {
        let largest = survey.largest_communicator();
        let in_largest = |members: &BTreeSet<(&'a str, u32)>| -> Vec<u32> {
            members.iter().filter(|(communicator, _)| Some(*communicator) == largest).map(|(_, rank)| *rank).collect()
        };
        let world = largest.filter(|_| survey.processes.values().all(|members| !in_largest(members).is_empty()));
        let mut ranks: BTreeMap<&str, BTreeMap<u32, u32>> = BTreeMap::new();
        for (number, members) in (0u32..).zip(survey.processes.values()) {
            let own_ranks = in_largest(members);
            for &(communicator, rank) in members {
                let global = match (world, own_ranks.as_slice()) {
                    (None, _) => Some(number),
                    (Some(world), _) if communicator == world => Some(rank),
                    (Some(_), [only]) => Some(*only),
                    (Some(_), _) => None,
                };
                if let Some(global) = global {
                    ranks.entry(communicator).or_default().insert(rank, global);
                }
            }
        }
        Self { world, ranks }
    }
}

/// Ranks of the trace in each communicator, in its order.
pub(super) struct RankGroups<'a> {
    pub members: BTreeMap<&'a str, Arc<[u32]>>,
    /// Number of ranks of each communicator, including those without known ranks.
    pub sizes: BTreeMap<&'a str, u32>,
}

impl<'a> RankGroups<'a> {
    /// Numbers the ranks of all processes. `remarks` receives what is unknown.
    ///
    /// # Errors
    /// [`JobError`]: a rank or its peer is not in its communicator, or the communicator has too many ranks.
    pub fn new(calls: &'a [RecordedCall], remarks: &mut Vec<String>) -> Result<Self, JobError> {
        let survey = Survey::new(calls)?;
        let mut numbering = Numbering::new(&survey);
        if numbering.world.is_none() && !survey.processes.is_empty() {
            remarks.push(format!(
                "no communicator has all {} processes: ranks are numbered by host and process id",
                survey.processes.len()
            ));
        }
        let mut members: BTreeMap<&str, Arc<[u32]>> = BTreeMap::new();
        let mut unknown = 0;
        for (&communicator, &size) in &survey.sizes {
            let known = numbering.ranks.remove(communicator).unwrap_or_default();
            if numbering.world == Some(communicator) {
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
            unknown += 1;
            if unknown <= MAX_NAMED {
                let count = survey.counts.get(communicator).copied().unwrap_or_default();
                remarks.push(unknown_ranks(communicator, size, &known, count));
            }
        }
        if unknown > MAX_NAMED {
            remarks.push(format!("the calls of {} more such communicators are left out", unknown - MAX_NAMED));
        }
        Ok(Self { members, sizes: survey.sizes })
    }
}

/// Remark on a communicator whose calls are left out. `known`: its ranks that are known.
fn unknown_ranks(communicator: &str, size: u32, known: &BTreeMap<u32, u32>, calls: usize) -> String {
    let seen: Vec<u32> = known.keys().copied().collect();
    match seen.is_empty() {
        true => format!("communicator {communicator}: its {size} ranks are unknown; its {calls} calls are left out"),
        false => format!(
            "communicator {communicator}: of its {size} ranks only {} recorded calls, the others are unknown; its \
             {calls} calls are left out",
            ranks::format(&seen)
        ),
    }
}
