//! Operations that go in turn: where each run of them stands.

use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::Workload;
use super::costs::Spent;

/// Where a run stands whose operations follow each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// Operations done: the one with this number may flow.
    pub done: u32,
    /// When the last of them was done.
    pub at: Picos,
    /// What the chain of that one cost.
    pub spent: Spent,
    /// The next ones, as far as they could flow already: their numbers and slots, in order. Where latencies differ, a later
    /// one may be here first.
    pub parked: VecDeque<(u32, u32)>,
    /// When the spacing of the last one that flows is over, and what its chain has cost by then.
    pub free: (Picos, Spent),
    /// The last one that was begun, and what its chain has cost when its software time is over.
    pub preparing: (u32, Spent),
}

impl Turn {
    /// Whether an operation may flow now.
    pub fn has_come(&self, index: u32, now: Picos) -> bool {
        index <= self.done && self.free.0 <= now
    }

    /// An operation could flow and has to wait.
    pub fn park(&mut self, index: u32, slot: u32) {
        let place = self.parked.partition_point(|&(other, _)| other < index);
        self.parked.insert(place, (index, slot));
    }

    /// What the chain has cost that an operation which flows now had to wait for, if it ended this instant. Of chains that
    /// end at one instant the larger spending counts, whatever their order.
    pub fn held_until(&self, now: Picos) -> Option<Spent> {
        let ends = [(self.at, self.spent), self.free];
        ends.into_iter().filter(|end| self.done > 0 && end.0 == now).map(|end| end.1).max()
    }
}

/// The runs whose operations go in turn.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// By run, one more than the place in `turns`; 0 for others. Empty where no run goes in turn.
    place: Vec<u32>,
    turns: Vec<Turn>,
}

impl Turns {
    pub(super) fn new(workload: &Workload) -> Self {
        let mut turns = Self { place: Vec::new(), turns: Vec::new() };
        for edge in workload.waits.iter().filter(|edge| edge.is_turn()) {
            turns.place.resize(workload.runs.len(), 0);
            if let Some(place) = turns.place.get_mut(edge.run as usize).filter(|place| **place == 0) {
                turns.turns.push(Turn::default());
                *place = turns.turns.len() as u32;
            }
        }
        turns
    }

    /// Where a run stands; `None` where its operations are free.
    pub(super) fn of(&mut self, run: u32) -> Option<&mut Turn> {
        let place = self.place.get(run as usize).copied()?;
        self.turns.get_mut(place.checked_sub(1)? as usize)
    }
}
