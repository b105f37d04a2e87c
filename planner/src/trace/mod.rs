//! Jobs that were written down: calls of groups of ranks and what they compute between, from traces and logs.
//!
//! ```text
//! CSV ──────────┐
//! NCCL's log ───┼─► Trace (a graph of events) ─Trace::run─► spans of events, their fabric shared
//! Chakra ───────┘                            └─Trace::mix─► how often each call occurs, for `plan`
//! ```
//!
//! Nothing of a model is known here, only what happened in which order. An event begins when all that it comes after has ended; a
//! call is one event of all its ranks. A GPU computes one thing at a time, and so does its host; calls of the same group go in order.

mod chakra;
mod file;
mod messages;
mod nccl_log;
mod ranks;
mod run;
mod table;
#[cfg(test)]
mod tests_of;
mod wire;

pub use chakra::{RankFile, read_chakra};
pub use file::{Contents, read};
pub use nccl_log::read_nccl_log;
pub use run::{Outcome, Span};
pub use table::read_table;

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, Place};

use crate::job::JobError;

/// The most events of a trace.
pub const MOST_EVENTS: usize = 1 << 20;

/// Computing of all events together that times can be told of: half of what 64 bits of picoseconds hold.
const LONGEST: Picos = Picos(u64::MAX / 2);

/// A job as a graph of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Ranks: one more than the greatest that occurs.
    pub ranks: u32,
    /// What happens. An event may come after others wherever they stand.
    pub events: Vec<Event>,
    /// What could not be taken over, in a sentence each.
    pub left_out: Vec<String>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is called in the trace; may be empty.
    pub name: String,
    /// What happens.
    pub what: What,
    /// Numbers of the events that must have ended.
    pub after: Vec<u32>,
    /// It does not begin earlier.
    pub start: Picos,
    /// Where it stands.
    pub place: Place,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Ranks compute, each for so long.
    Compute {
        /// Who.
        ranks: Arc<[u32]>,
        /// On what of theirs.
        on: Processor,
        /// How long.
        time: Picos,
    },
    /// Nothing, by these ranks, once what it comes after has ended: a message that came is taken up, a node of the trace costs nothing.
    Wait(Arc<[u32]>),
    /// A call.
    Call(Call),
    /// What the first of two ranks sends to the second: half of their [`Collective::SendRecv`], which goes both ways.
    Message(Call),
}

/// What a rank computes on, one thing at a time on each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Processor {
    /// Its GPU, whose kernels a trace has the times of.
    #[default]
    Gpu,
    /// A thread of its host, which is not counted as computing.
    Cpu,
}

/// A call of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Its ranks, in the group's order.
    pub group: Arc<[u32]>,
    /// What is called.
    pub collective: Collective,
    /// Its size: the larger buffer, as nccl-tests counts.
    pub bytes: Bytes,
}

impl Trace {
    /// Of events whose numbers all exist.
    ///
    /// # Errors
    /// [`JobError`] at an event that comes after itself, through others or not, and where there are too many events or none.
    pub(crate) fn new(events: Vec<Event>, left_out: Vec<String>, source: &str) -> Result<Self, JobError> {
        if events.is_empty() {
            return Err(JobError::at(&Place::of_source(source), "no computation and no call"));
        }
        if events.len() > MOST_EVENTS {
            let message = format!("{} events are more than {MOST_EVENTS}", events.len());
            return Err(JobError::at(&Place::of_source(source), message));
        }
        let mut computing = Picos::ZERO;
        for event in &events {
            if let What::Compute { time, .. } = event.what {
                computing += time;
            }
            if computing > LONGEST {
                let message = format!("more than {} s of computing up to here", LONGEST.0 / 1_000_000_000_000);
                return Err(JobError::at(&event.place, message));
            }
        }
        if computing == Picos::ZERO && !events.iter().any(|event| event.what.call().is_some()) {
            return Err(JobError::at(&Place::of_source(source), "no call, and computation that takes no time"));
        }
        let greatest = |event: &Event| event.what.ranks().iter().copied().max();
        let ranks = events.iter().filter_map(greatest).max().map_or(0, |rank| rank + 1);
        let trace = Self { ranks, events, left_out };
        match trace.first_in_a_circle() {
            None => Ok(trace),
            Some(event) => Err(JobError::at(&event.place, format!("`{}` comes after itself", event.name))),
        }
    }

    /// An event that could never begin.
    fn first_in_a_circle(&self) -> Option<&Event> {
        let (mut waiting, followers) = self.order();
        let mut ready: Vec<u32> = (0u32..).zip(&waiting).filter(|(_, n)| **n == 0).map(|(event, _)| event).collect();
        let mut done = 0;
        while let Some(event) = ready.pop() {
            done += 1;
            for &next in followers.get(event as usize).into_iter().flatten() {
                if let Some(left) = waiting.get_mut(next as usize) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(next);
                    }
                }
            }
        }
        if done == self.events.len() {
            return None;
        }
        self.events.iter().zip(&waiting).find(|(_, left)| **left > 0).map(|(event, _)| event)
    }

    /// How many events each waits for, and who waits for each.
    fn order(&self) -> (Vec<u32>, Vec<Vec<u32>>) {
        let mut followers = vec![Vec::new(); self.events.len()];
        let waiting = (0u32..).zip(&self.events).map(|(number, event)| {
            let mut count = 0;
            for &before in &event.after {
                if let Some(of) = followers.get_mut(before as usize) {
                    of.push(number);
                    count += 1;
                }
            }
            count
        });
        let waiting = waiting.collect();
        (waiting, followers)
    }
}

impl What {
    /// Who takes part.
    #[must_use]
    pub fn ranks(&self) -> &Arc<[u32]> {
        match self {
            Self::Compute { ranks, .. } | Self::Wait(ranks) => ranks,
            Self::Call(call) | Self::Message(call) => &call.group,
        }
    }

    /// What goes over links, in both directions or in one.
    #[must_use]
    pub fn call(&self) -> Option<&Call> {
        match self {
            Self::Call(call) | Self::Message(call) => Some(call),
            Self::Compute { .. } | Self::Wait(_) => None,
        }
    }
}
