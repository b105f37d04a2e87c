//! Advances the engine by whole periods of a steady state.

use fabricast_topologies::Picos;

use super::super::Engine;
use super::super::costs::ChainCosts;
use super::super::distance::Distance;
use super::super::queue::EventQueue;
use super::Period;
use super::snapshot::Snapshot;

impl Engine<'_> {
    /// Returns true if all times after a jump over `periods` periods can be represented.
    pub(super) fn can_jump(&self, period: &Period, periods: u32) -> bool {
        // Half of the range of times is reserved for active operations.
        let distance = period.time.0.checked_mul(u64::from(periods)).and_then(|time| time.checked_add(self.now.0));
        distance.is_some_and(|time| time < u64::MAX / 2)
    }

    /// Advances by whole periods. `shifts`: number of operations of each run in a period; `earlier`: state one period
    /// ago.
    pub(super) fn jump(&mut self, period: &Period, periods: u32, shifts: &[u32], earlier: &Snapshot) {
        let costs = period.costs.times(periods);
        let distance = Distance { periods, time: Picos(period.time.0 * u64::from(periods)), costs };
        self.jump_to_events(distance);
        let indexes = |run: u32| shifts[run as usize] * periods;
        for flight in &mut self.flights {
            flight.index += indexes(flight.run);
            flight.ready += distance.time;
            flight.flowing += distance.time;
            flight.prepared = flight.prepared + costs;
            flight.chain_costs = flight.chain_costs + costs;
        }
        self.bundles.jump(distance.time);
        self.waiting.jump(distance, indexes, &earlier.arrived);
        self.turns.jump(distance, indexes, &earlier.sources);
        self.lines.jump(distance, indexes);
        if let Some(deadline) = &mut self.deadline {
            deadline.jump(periods, &earlier.unstarted);
        }
        self.jump_outcome(distance, shifts, earlier.time);
        self.now += distance.time;
    }

    /// Shifts all queued events by the time of the jump, and drops stale ones.
    fn jump_to_events(&mut self, distance: Distance) {
        let mut queue = EventQueue::starting_at(self.now + distance.time);
        for (time, event) in self.queue.iter().filter(|&(time, event)| self.is_current(time, event)) {
            queue.push(time + distance.time, event);
        }
        self.queue = queue;
    }

    fn jump_outcome(&mut self, distance: Distance, shifts: &[u32], period_start: Picos) {
        let operations: u64 = shifts.iter().map(|&shift| u64::from(shift)).sum();
        let skipped = operations * u64::from(distance.periods);
        self.outcome.operations += skipped;
        self.outcome.skipped += skipped;
        for (end, _) in self.outcome.run_ends.iter_mut().zip(shifts).filter(|(_, shift)| **shift > 0) {
            *end += distance.time;
        }
        // If operations that determine the end ended in the last period, they also end in each of the next periods.
        if self.outcome.end > period_start {
            self.outcome.end += distance.time;
            let chain_costs = ChainCosts::from(self.outcome.costs) + distance.costs;
            self.outcome.costs = chain_costs.costs_at(self.outcome.end);
        }
    }
}
