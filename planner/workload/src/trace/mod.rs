//! Recorded jobs: collectives of groups of ranks and the computation between them, from traces and logs.
//!
//! ```text
//! CSV ──────────────────────────┐
//! NCCL: log, Inspector, events ─┼─► Trace (a graph of events) ─replay───► spans of events, their fabric shared
//! PyTorch's profiler, Chakra ───┘                            └─call_mix─► how often each call occurs, for `plan`
//! ```
//!
//! A trace contains events and their order, and no model. An event starts when all of its predecessors have ended. A
//! collective is a single event of all its ranks. A GPU executes one computation at a time, and so does its host
//! thread. Calls of one group are executed in order.

mod chakra;
mod communicators;
mod contents;
mod file;
mod gzip;
mod json;
mod kineto;
mod messages;
mod nccl_inspector;
mod nccl_log;
mod nccl_profiler;
mod rank_groups;
mod ranks;
mod recorded_call;
mod table;
mod wire;

pub use chakra::{RankFile, read_chakra};
pub use contents::Contents;
pub use file::read;
pub use kineto::read_kineto;
pub use nccl_inspector::read_nccl_inspector;
pub use nccl_log::read_nccl_log;
pub use nccl_profiler::read_nccl_profiler;
pub use table::read_table;

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, SourceLocation};

use crate::job::JobError;

/// Maximum number of events in a trace.
pub const MAX_EVENTS: usize = 1 << 20;

/// Limit on the total computing time of all events: half the range of 64-bit picoseconds, so that times cannot
/// overflow.
const MAX_COMPUTE: Picos = Picos(u64::MAX / 2);

/// Recorded job as a graph of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Number of ranks: the largest rank that occurs, plus one.
    pub ranks: u32,
    /// Events of all ranks. The predecessors of an event may follow it in the list.
    pub events: Vec<Event>,
    /// Parts of the input that were ignored or are missing, as one sentence each.
    pub ignored: Vec<String>,
    /// Recorded time from the start of the first event to the end of the last; `None` if the input has no times.
    pub recorded: Option<Picos>,
}

/// Event of a trace: a computation, a collective or a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name of the event in the trace; may be empty.
    pub name: String,
    /// Kind of the event, with its ranks.
    pub kind: EventKind,
    /// Indices of the events that must end before this one starts.
    pub after: Vec<u32>,
    /// Earliest start time, from the start of the trace.
    pub start: Picos,
    /// Location of the event in the trace file.
    pub location: SourceLocation,
}

/// Kind of an event, with its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Computation, with the same duration on each rank.
    Compute {
        /// Ranks that compute concurrently.
        ranks: Arc<[u32]>,
        /// Processor of each rank that executes the computation.
        on: Processor,
        /// Duration of the computation on each rank.
        time: Picos,
    },
    /// Event of these ranks without duration, which ends when its predecessors have ended: the completion of a receive,
    /// or a node without cost.
    Wait(Arc<[u32]>),
    /// Collective of a group.
    Call(Call),
    /// Message from the first of two ranks to the second, which is one direction of a [`Collective::SendRecv`].
    Message(Call),
}

/// Processor of a rank, which executes one computation at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Processor {
    /// GPU of the rank, whose kernel times are in the trace.
    #[default]
    Gpu,
    /// Host thread of the rank; its time does not count as computation.
    Cpu,
}

/// Collective of a group, or message between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Ranks of the group, in the group's order.
    pub group: Arc<[u32]>,
    /// Collective that the group calls.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
}

impl Trace {
    /// Checks that there is a device for each rank. `source`: name of the trace.
    ///
    /// # Errors
    /// [`JobError`] if there are fewer devices than ranks.
    pub fn check_ranks(&self, devices: usize, source: &str) -> Result<(), JobError> {
        if self.ranks as usize > devices {
            let message = format!("ranks 0 to {}, and the fabric has {devices} GPUs in use", self.ranks - 1);
            return Err(JobError::at(&SourceLocation::from_source(source), message));
        }
        Ok(())
    }
}

impl Trace {
    /// Creates a trace. All predecessor indices must exist.
    ///
    /// # Errors
    /// [`JobError`] at an event in a dependency cycle, and if there are too many events or none.
    pub(crate) fn new(events: Vec<Event>, ignored: Vec<String>, source: &str) -> Result<Self, JobError> {
        if events.is_empty() {
            return Err(JobError::at(&SourceLocation::from_source(source), "no computation and no call"));
        }
        if events.len() > MAX_EVENTS {
            let message = format!("{} events are more than {MAX_EVENTS}", events.len());
            return Err(JobError::at(&SourceLocation::from_source(source), message));
        }
        let mut computing = Picos::ZERO;
        for event in &events {
            if let EventKind::Compute { time, .. } = event.kind {
                computing += time;
            }
            if computing > MAX_COMPUTE {
                let message = format!("more than {} s of computing up to here", MAX_COMPUTE.0 / 1_000_000_000_000);
                return Err(JobError::at(&event.location, message));
            }
        }
        if computing == Picos::ZERO && !events.iter().any(|event| event.kind.call().is_some()) {
            return Err(JobError::at(&SourceLocation::from_source(source), "no call, and no computation time"));
        }
        let greatest = |event: &Event| event.kind.ranks().iter().copied().max();
        let ranks = events.iter().filter_map(greatest).max().map_or(0, |rank| rank + 1);
        let trace = Self { ranks, events, ignored, recorded: None };
        match trace.find_cycle() {
            None => Ok(trace),
            Some(event) => Err(JobError::at(&event.location, format!("`{}` depends on itself", event.name))),
        }
    }

    /// Sets the recorded time.
    fn with_recorded_time(self, time: Picos) -> Self {
        Self { recorded: Some(time), ..self }
    }

    /// Returns an event that is in a dependency cycle or depends on one; `None` if there is no cycle.
    fn find_cycle(&self) -> Option<&Event> {
        let (mut waiting, followers) = self.dependencies();
        let mut ready: Vec<u32> = (0u32..).zip(&waiting).filter(|(_, n)| **n == 0).map(|(event, _)| event).collect();
        let mut done = 0;
        while let Some(event) = ready.pop() {
            done += 1;
            for &next in followers.get(event as usize).into_iter().flatten() {
                if let Some(remaining) = waiting.get_mut(next as usize) {
                    *remaining -= 1;
                    if *remaining == 0 {
                        ready.push(next);
                    }
                }
            }
        }
        if done == self.events.len() {
            return None;
        }
        self.events.iter().zip(&waiting).find(|(_, remaining)| **remaining > 0).map(|(event, _)| event)
    }

    /// Returns the number of predecessors and the list of successors of each event.
    pub fn dependencies(&self) -> (Vec<u32>, Vec<Vec<u32>>) {
        let mut followers = vec![Vec::new(); self.events.len()];
        let waiting = (0u32..).zip(&self.events).map(|(number, event)| {
            let mut count = 0;
            for &before in &event.after {
                if let Some(successors) = followers.get_mut(before as usize) {
                    successors.push(number);
                    count += 1;
                }
            }
            count
        });
        let waiting = waiting.collect();
        (waiting, followers)
    }
}

impl EventKind {
    /// Returns the participating ranks of the event.
    #[must_use]
    pub fn ranks(&self) -> &Arc<[u32]> {
        match self {
            Self::Compute { ranks, .. } | Self::Wait(ranks) => ranks,
            Self::Call(call) | Self::Message(call) => &call.group,
        }
    }

    /// Returns the communication of the event; `None` if the event is neither a collective nor a message.
    #[must_use]
    pub fn call(&self) -> Option<&Call> {
        match self {
            Self::Call(call) | Self::Message(call) => Some(call),
            Self::Compute { .. } | Self::Wait(_) => None,
        }
    }
}
