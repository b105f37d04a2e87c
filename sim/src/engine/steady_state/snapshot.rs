//! Relative state of the engine: everything that determines its future, relative to the present and to the progress of
//! the runs.
//!
//! The state omits values that no future event reads: ends and costs of operations that are done, and arrival times in
//! the past. (A chain of dependencies that arrives later always counts; those of one instant are handled together,
//! before a snapshot.)

use fabricast_topologies::Picos;

use super::super::costs::ChainCosts;
use super::super::graph::PartialWait;
use super::super::lines::LineState;
use super::super::message_order::SuspendedSource;
use super::super::{Engine, Event};
use super::{Period, RunProgress};
use crate::quantity::Work;
use crate::sharing::RouteId;

/// Relative state of the engine at an instant, with the absolute values from which a jump is computed.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub time: Picos,
    /// Time since the previous instant of comparison.
    pub interval: Picos,
    /// Number of operations done, by run.
    pub done: Vec<u32>,
    /// Relative state, in a canonical order.
    words: Vec<u64>,
    /// Costs of the chains that are still open, in the order of `words`.
    costs: Vec<ChainCosts>,
    /// Suspended sources, in order of run.
    pub sources: Vec<SuspendedSource>,
    /// Number of awaited operations done so far, by dependent run.
    pub arrived: Vec<u32>,
    /// Work that has not begun on each tracked capacity; empty without a deadline.
    pub unstarted: Vec<Work>,
    /// Number of ties on lines that levels have resolved so far.
    level_ties: u64,
}

impl Snapshot {
    /// Returns the shift since an earlier snapshot; `None` unless both relative states are equal, the costs of all open
    /// chains have grown equally, and suspended sources remain as they are.
    pub(super) fn period_since(&self, earlier: &Self) -> Option<Period> {
        if self.words != earlier.words || self.level_ties != earlier.level_ties || self.time <= earlier.time {
            return None;
        }
        let growth = |(costs, before): (&ChainCosts, &ChainCosts)| costs.checked_sub(*before);
        let mut growths = self.costs.iter().zip(&earlier.costs).map(growth);
        let costs = growths.next()??;
        let time = self.time - earlier.time;
        let mut sources = self.sources.iter().zip(&earlier.sources);
        let recurs = growths.all(|growth| growth == Some(costs))
            && sources.all(|(source, before)| source.recurs(before, time, costs));
        recurs.then_some(Period { time, costs })
    }
}

/// Writer of a relative state.
struct SnapshotWriter<'a> {
    now: Picos,
    progress: &'a RunProgress,
    words: Vec<u64>,
    costs: Vec<ChainCosts>,
    sources: Vec<SuspendedSource>,
}

impl SnapshotWriter<'_> {
    fn word(&mut self, word: u64) {
        self.words.push(word);
    }

    /// Writes a time as a difference from the present.
    fn time(&mut self, time: Picos) {
        self.words.push(time.0.wrapping_sub(self.now.0));
    }

    /// Writes an operation by its index relative to the progress of its run.
    fn operation(&mut self, run: u32, index: u32) {
        let relative = index.wrapping_sub(self.progress.done[run as usize]);
        self.words.push(u64::from(run) << 32 | u64::from(relative));
    }
}

impl Engine<'_> {
    /// Returns the relative state of the engine; `None` if its future depends on absolute times or indexes.
    pub(super) fn snapshot(&self, progress: &RunProgress, interval: Picos) -> Option<Snapshot> {
        let is_ordered = progress.done == progress.last_done;
        if !is_ordered || self.queue.has_present_events() || !self.lines.are_relative() {
            return None;
        }
        let mut writer =
            SnapshotWriter { now: self.now, progress, words: Vec::new(), costs: Vec::new(), sources: Vec::new() };
        for (&done, &frontier) in progress.done.iter().zip(&progress.frontier) {
            writer.word(u64::from(frontier.wrapping_sub(done)));
        }
        self.write_events(&mut writer);
        self.write_transfers(&mut writer);
        self.write_waiting(&mut writer);
        let SnapshotWriter { words, costs, sources, .. } = writer;
        Some(Snapshot {
            time: self.now,
            interval,
            done: progress.done.clone(),
            words,
            costs,
            sources,
            arrived: self.waiting.arrivals().collect(),
            unstarted: self.deadline.as_ref().map(|deadline| deadline.unstarted().collect()).unwrap_or_default(),
            level_ties: self.lines.level_ties(),
        })
    }

    /// Returns true if an event still has an effect. Finish events are stale once the rate of their bundle has changed.
    pub(super) fn is_current(&self, time: Picos, event: Event) -> bool {
        match event {
            Event::Finish { route } => self.bundles.next_end(RouteId(route)) == Some(time),
            Event::Flow { .. } | Event::Prepared { .. } | Event::Free { .. } | Event::LineFree { .. } => true,
        }
    }

    fn write_events(&self, writer: &mut SnapshotWriter<'_>) {
        let mut events: Vec<(Picos, u32, u64, Event)> = Vec::new();
        for (time, event) in self.queue.iter().filter(|&(time, event)| self.is_current(time, event)) {
            let (kind, key) = match event {
                Event::Flow { slot } => (0, self.operation_key(slot)),
                Event::Finish { route } => (1, route.into()),
                Event::Prepared { run } => (2, run.into()),
                Event::Free { run } => (3, run.into()),
                Event::LineFree { line } => (4, line.into()),
            };
            events.push((time, kind, key, event));
        }
        events.sort_unstable_by_key(|&(time, kind, key, _)| (time, kind, key));
        events.dedup_by_key(|&mut (time, kind, key, _)| (time, kind, key));
        writer.word(events.len() as u64);
        for (time, kind, key, event) in events {
            writer.time(time);
            writer.word(kind.into());
            match event {
                Event::Flow { slot } => {
                    let flight = self.flights[slot as usize];
                    writer.operation(flight.run, flight.index);
                    writer.costs.push(flight.chain_costs);
                }
                Event::Prepared { run } => {
                    let (index, costs) = self.turns.get(run).map(|turn| turn.preparing).unwrap_or_default();
                    writer.operation(run, index);
                    writer.costs.push(costs);
                }
                Event::Finish { .. } | Event::Free { .. } | Event::LineFree { .. } => writer.word(key),
            }
        }
    }

    /// Returns the run (upper 32 bits) and the index of a flight's operation.
    fn operation_key(&self, slot: u32) -> u64 {
        let flight = self.flights[slot as usize];
        u64::from(flight.run) << 32 | u64::from(flight.index)
    }

    fn write_transfers(&self, writer: &mut SnapshotWriter<'_>) {
        for route in (0..self.workload.system.route_count() as u32).map(RouteId) {
            let Some(end) = self.bundles.next_end(route) else { continue };
            let rate = self.sharing.rate(route);
            writer.word(route.0.into());
            writer.word(rate.0);
            writer.time(end);
            let left = self.bundles.left(route, rate, self.now);
            writer.word(left as u64);
            writer.word((left >> 64) as u64);
            let mut transfers: Vec<(i128, u64, u32)> =
                self.bundles.transfers(route).map(|(later, slot)| (later, self.operation_key(slot), slot)).collect();
            transfers.sort_unstable();
            writer.word(transfers.len() as u64);
            for (later, _, slot) in transfers {
                let flight = self.flights[slot as usize];
                writer.word(later as u64);
                writer.word((later >> 64) as u64);
                writer.operation(flight.run, flight.index);
                writer.time(flight.flowing);
                writer.costs.push(flight.chain_costs);
            }
        }
    }

    fn write_waiting(&self, writer: &mut SnapshotWriter<'_>) {
        let mut gatherings: Vec<PartialWait> = self.waiting.partial().collect();
        gatherings.sort_unstable();
        writer.word(gatherings.len() as u64);
        for PartialWait { run, index, missing } in gatherings {
            writer.operation(run, index);
            writer.word(missing.into());
        }
        for run in 0..self.workload.runs.len() as u32 {
            let Some(turn) = self.turns.get(run) else { continue };
            writer.operation(run, turn.done);
            let (free, costs) = turn.free;
            if free > self.now {
                writer.time(free);
                writer.costs.push(costs);
            } else {
                writer.word(0);
            }
            writer.word(turn.parked.len() as u64);
            for &(index, _) in &turn.parked {
                writer.operation(run, index);
            }
            let suspended = turn.suspended_source();
            writer.word(u64::from(suspended.is_some()));
            if let Some(source) = suspended {
                writer.operation(run, turn.preparing.0);
                writer.sources.push(source);
            }
        }
        for LineState { flows, free: (free, costs), waiting } in self.lines.states() {
            writer.word(u64::from(flows));
            if free > self.now {
                writer.time(free);
                writer.costs.push(costs);
            } else {
                writer.word(0);
            }
            for operation in waiting {
                writer.operation(operation.run, operation.index);
            }
            writer.word(u64::MAX);
        }
    }
}
