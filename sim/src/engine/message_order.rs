//! State of runs whose operations are served in order ([`RunOrder::InTurn`](super::RunOrder::InTurn)), as the messages of a
//! connection.
//!
//! A *source* is such a run without other dependencies. Nothing delays its software, so its messages would be prepared
//! far ahead of their transfers, in growing number. A source is therefore *suspended* until its latest prepared message
//! starts, before which no later message can start. The next one is then prepared with the times that it would have had.
//! Results do not change, and the state of a source in a steady state recurs.

use std::cmp::Ordering;
use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::Workload;
use super::costs::ChainCosts;
use super::distance::Distance;

/// State of one run in [`RunOrder::InTurn`](super::RunOrder::InTurn).
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// Number of the run's operations that are done; also the index of the operation that may transfer data next.
    pub done: u32,
    /// End of the last operation that is done.
    pub at: Picos,
    /// Costs of the chain of operations that ends at `at`.
    pub chain_costs: ChainCosts,
    /// Operations whose first byte could arrive, but that must wait for an earlier operation of the run: index within
    /// the run and slot of the flight, in order of index. If latencies differ, a later operation may arrive first.
    pub parked: VecDeque<(u32, u32)>,
    /// End of the spacing after the last operation that started its transfer, and the costs of its chain up to then.
    pub free: (Picos, ChainCosts),
    /// Index of the last operation that is ready, and the costs of its chain at the end of its software time.
    pub preparing: (u32, ChainCosts),
    /// True for a source: a run without dependencies on other runs.
    pub is_source: bool,
    /// End of the software time of `preparing`, at which the next operation of a suspended source is ready; `None` for
    /// other runs, and after the last operation.
    pub suspended: Option<Picos>,
    /// Number of operations of a source whose first byte arrived at or after the start of the operation before. The
    /// other ones only waited for their turn.
    pub timely: u32,
}

/// State of a suspended source at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedSource {
    /// End of the software time of the last operation that was prepared.
    pub prepared: Picos,
    /// Costs of the chain that ends with this software time.
    pub chain_costs: ChainCosts,
    /// See [`Turn::timely`].
    pub timely: u32,
}

impl SuspendedSource {
    /// Returns true if a source stays suspended in the same way in all periods of `time` and `costs` that follow, given
    /// its state one period ago. It does if its messages are prepared at the pace of their transfers, or faster and all
    /// of them only waited for their turn.
    pub fn recurs(&self, earlier: &Self, time: Picos, costs: ChainCosts) -> bool {
        let are_late = self.timely == earlier.timely;
        let has_same_costs = || self.chain_costs.checked_sub(earlier.chain_costs) == Some(costs);
        match (self.prepared - earlier.prepared).cmp(&time) {
            Ordering::Less => are_late,
            Ordering::Equal => are_late || has_same_costs(),
            Ordering::Greater => false,
        }
    }
}

impl Turn {
    /// Returns true if operation `index` may start its transfer at `now`.
    pub fn may_flow(&self, index: u32, now: Picos) -> bool {
        index <= self.done && self.free.0 <= now
    }

    /// Returns the state of a suspended source; `None` for other runs.
    pub fn suspended_source(&self) -> Option<SuspendedSource> {
        let Self { preparing: (_, chain_costs), timely, .. } = *self;
        self.suspended.map(|prepared| SuspendedSource { prepared, chain_costs, timely })
    }

    /// Stores an operation that could start its transfer but has to wait for an earlier one.
    pub fn park(&mut self, index: u32, slot: u32) {
        let position = self.parked.partition_point(|&(other, _)| other < index);
        self.parked.insert(position, (index, slot));
    }

    /// Returns the costs of the chain that an operation waited for, if the operation starts its transfer at the instant
    /// at which that chain ended. Among chains that end at the same instant the one with the largest costs counts,
    /// regardless of their order.
    pub fn blocker_costs(&self, now: Picos) -> Option<ChainCosts> {
        let ends = [(self.at, self.chain_costs), self.free];
        ends.into_iter().filter(|end| self.done > 0 && end.0 == now).map(|end| end.1).max()
    }
}

/// States of all runs in [`RunOrder::InTurn`](super::RunOrder::InTurn).
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Index in `turns` of each run, plus 1; 0 for other runs. Empty if no run is in
    /// [`RunOrder::InTurn`](super::RunOrder::InTurn).
    turn_numbers: Vec<u32>,
    turns: Vec<Turn>,
}

impl Turns {
    pub(super) fn new(workload: &Workload) -> Self {
        let mut turns = Self { turn_numbers: Vec::new(), turns: Vec::new() };
        for edge in workload.waits.iter().filter(|edge| edge.is_turn()) {
            turns.turn_numbers.resize(workload.runs.len(), 0);
            if let Some(turn_number) =
                turns.turn_numbers.get_mut(edge.run as usize).filter(|turn_number| **turn_number == 0)
            {
                let is_source = workload.run_waits(edge.run).len() == 1;
                turns.turns.push(Turn { is_source, ..Turn::default() });
                *turn_number = turns.turns.len() as u32;
            }
        }
        turns
    }

    /// Returns the state of a run; `None` if the run is not in [`RunOrder::InTurn`](super::RunOrder::InTurn).
    pub(super) fn get(&self, run: u32) -> Option<&Turn> {
        let turn_number = self.turn_numbers.get(run as usize).copied()?;
        self.turns.get(turn_number.checked_sub(1)? as usize)
    }

    /// Advances all states by whole periods of a steady state. `indexes`: number of operations by which each run
    /// advances; `earlier`: suspended sources one period ago, in order of run.
    pub(super) fn jump(&mut self, distance: Distance, indexes: impl Fn(u32) -> u32, earlier: &[SuspendedSource]) {
        let mut earlier = earlier.iter();
        for run in 0..self.turn_numbers.len() as u32 {
            let Some(turn) = self.get_mut(run) else { continue };
            let operations = indexes(run);
            turn.done += operations;
            turn.at += distance.time;
            turn.chain_costs = turn.chain_costs + distance.costs;
            turn.free = (turn.free.0 + distance.time, turn.free.1 + distance.costs);
            let suspended = turn.suspended_source();
            turn.preparing = (turn.preparing.0 + operations, turn.preparing.1 + distance.costs);
            if let Some((present, before)) = suspended.and_then(|present| Some((present, earlier.next()?))) {
                // The software of a suspended source has a pace of its own.
                let SuspendedSource { prepared, chain_costs, .. } = present;
                let growth = chain_costs.checked_sub(before.chain_costs).unwrap_or_default();
                turn.preparing.1 = chain_costs + growth.times(distance.periods);
                let time = Picos((prepared - before.prepared).0 * u64::from(distance.periods));
                turn.suspended = Some(prepared + time);
            }
            for (index, _) in &mut turn.parked {
                *index += operations;
            }
        }
    }

    /// Returns the state of a run for modification; `None` if the run is not in
    /// [`RunOrder::InTurn`](super::RunOrder::InTurn).
    pub(super) fn get_mut(&mut self, run: u32) -> Option<&mut Turn> {
        let turn_number = self.turn_numbers.get(run as usize).copied()?;
        self.turns.get_mut(turn_number.checked_sub(1)? as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Edge, Pace, RouteLatency};
    use crate::quantity::Work;

    /// Costs of a chain with this software time, in picoseconds.
    fn software(time: u64) -> ChainCosts {
        ChainCosts { software: Picos(time), ..ChainCosts::default() }
    }

    /// Returns the states of three runs: operations without order, messages that wait for the first run, and messages of
    /// a source.
    fn turns() -> Turns {
        let mut workload = Workload::new();
        let dependencies = [vec![], vec![Edge::turn(1), Edge { run: 0, start: 0, step: 1 }], vec![Edge::turn(2)]];
        for edges in &dependencies {
            let passage = RouteLatency { route: None, latency: Picos::ZERO };
            workload.add_uniform_run(100, passage, Work(0), Pace::default(), edges);
        }
        Turns::new(&workload)
    }

    /// A jump over three periods of 100 ps, in each of which two operations of the second run and four of the third are
    /// done. The software of the third run, a source, needs 60 ps per period and gets ahead of its transfers.
    #[test]
    fn jump_advances_clocks_indexes_and_costs_by_whole_periods() {
        let mut turns = turns();
        assert!(turns.get(0).is_none());
        let state = Turn {
            done: 5,
            at: Picos(1_000),
            chain_costs: software(700),
            parked: VecDeque::from([(6, 3), (8, 1)]),
            free: (Picos(1_010), software(710)),
            preparing: (9, software(720)),
            is_source: false,
            suspended: None,
            timely: 0,
        };
        *turns.get_mut(1).unwrap() = state.clone();
        *turns.get_mut(2).unwrap() =
            Turn { is_source: true, suspended: Some(Picos(400)), preparing: (9, software(390)), ..state };

        let earlier = SuspendedSource { prepared: Picos(340), chain_costs: software(330), timely: 0 };
        let present = turns.get(2).unwrap().suspended_source().unwrap();
        assert!(present.recurs(&earlier, Picos(100), software(80)));
        let distance = Distance { periods: 3, time: Picos(300), costs: software(240) };
        turns.jump(distance, |run| [0, 6, 12][run as usize], &[earlier]);

        for (run, operations) in [(1, 6), (2, 12)] {
            let turn = turns.get(run).unwrap();
            assert_eq!((turn.done, turn.at, turn.chain_costs), (5 + operations, Picos(1_300), software(940)));
            assert_eq!(turn.parked, [(6 + operations, 3), (8 + operations, 1)]);
            assert_eq!(turn.free, (Picos(1_310), software(950)));
        }
        let (waiting, source) = (turns.get(1).unwrap(), turns.get(2).unwrap());
        assert_eq!((waiting.preparing, waiting.suspended), ((15, software(960)), None));
        // The source is prepared at its own pace: 3 × 60 ps later instead of 3 × 100 ps.
        assert_eq!((source.preparing, source.suspended), ((21, software(570)), Some(Picos(580))));
    }
}
