//! Folding in time: skips whole periods of a steady state, with results equal to the picosecond.
//!
//! Schedules that stream chunks are eventually periodic. The engine's *relative state* at an instant contains
//! everything that determines its future: the active operations and the events ahead, with times relative to the
//! present and indexes relative to the progress of their runs, the remaining work of every transfer, the operations
//! that wait and the messages that wait for earlier ones of their connection ([`snapshot`]). If the relative state at
//! an instant equals that at an earlier one, and every run stays inside a range of equal operations ([`interior`]),
//! then the events of the next period are those of the last one, shifted by the same time and by the same number of
//! operations of each run: the engine is a function of the relative state and of the properties of the operations
//! ahead, which are equal. By induction this holds for every period until the first run leaves its range. A jump over k
//! periods adds k times the shift to every time and index ([`jump`]).
//!
//! Costs are part of the state: all chains of operations that are still open must have grown by the same costs, so that
//! every comparison of chains has the same result in every period.
//!
//! The search compares the state at each instant at which a long run completes an operation with the state at one
//! earlier instant, which is replaced at exponentially growing distances (Brent, *An improved Monte Carlo factorization
//! algorithm*, BIT 1980), so a period of any length is found. Times are whole picoseconds and rates are whole units, so
//! states recur exactly or not at all.

mod interior;
mod jump;
mod snapshot;
#[cfg(test)]
pub(super) mod tests;

use std::cell::OnceCell;

use fabricast_topologies::Picos;

use super::costs::ChainCosts;
use super::{Engine, Recording, Watch, Workload};
use interior::Interior;
use snapshot::Snapshot;

/// Minimum number of remaining operations of the longest run for a steady-state search.
const MIN_REMAINING: u32 = 16;

/// Minimum number of operations of a workload for a steady-state search.
const MIN_OPERATIONS: u64 = 4096;

/// Treatment of steady states: skipping or simulating their periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteadyStates {
    /// Whole periods are skipped, unless spans are recorded.
    #[default]
    Skip,
    /// Every operation is simulated.
    Simulate,
}

/// Shift between two instants with equal relative states.
struct Period {
    time: Picos,
    costs: ChainCosts,
}

/// Search for a steady state, with the progress of all runs.
#[derive(Debug)]
pub(super) struct SteadyState {
    /// Ranges of equal operations, computed when the first recurrence is found.
    interior: OnceCell<Interior>,
    progress: RunProgress,
    /// Run whose completions are the instants of comparison.
    reference: u32,
    /// Number of operations of the reference run that were done at the last instant of comparison.
    reference_done: u32,
    /// Time of the last instant of comparison, and the time between the last two.
    last_time: Picos,
    interval: Picos,
    /// State at an earlier instant, with which later states are compared; `None` until one is recorded.
    earlier: Option<Snapshot>,
    /// Number of instants of comparison since `earlier`, and the number after which `earlier` is replaced.
    instants: u64,
    replaced_at: u64,
    /// Number of events that had been handled at the last comparison of whole states.
    compared_at: u64,
    /// Latest of the earliest start times ([`Pace::not_before`](super::Pace::not_before)) of all operations. States
    /// before it are not compared.
    last_start: Picos,
}

/// Progress of runs, in operations.
#[derive(Clone, Debug, Default)]
struct RunProgress {
    /// Number of operations done, by run.
    done: Vec<u32>,
    /// Largest index of an operation that is done, plus 1, by run. Equals `done` if operations ended in order of index.
    last_done: Vec<u32>,
    /// Largest index of an operation that is ready or for which an awaited operation is done, plus 1, by run.
    frontier: Vec<u32>,
}

impl SteadyState {
    /// Returns true if a steady state can be skipped: spans are not recorded, the workload is not small, and a run has
    /// [`MIN_REMAINING`] operations or more.
    pub(super) fn is_possible(workload: &Workload, watch: Watch<'_>) -> bool {
        let longest = workload.runs.iter().map(|run| run.len).max().unwrap_or_default();
        let is_wanted = watch.steady_states == SteadyStates::Skip && watch.recording != Recording::Spans;
        is_wanted && longest >= MIN_REMAINING && workload.operation_count() >= MIN_OPERATIONS
    }

    /// Creates a search; `None` if a steady state cannot be skipped.
    pub(super) fn search(workload: &Workload, watch: Watch<'_>) -> Option<Self> {
        if !Self::is_possible(workload, watch) {
            return None;
        }
        let zeros = || vec![0; workload.runs.len()];
        let progress = RunProgress { done: zeros(), last_done: zeros(), frontier: zeros() };
        let mut steady_state = Self {
            interior: OnceCell::new(),
            progress,
            reference: 0,
            reference_done: 0,
            last_time: Picos::ZERO,
            interval: Picos::ZERO,
            earlier: None,
            instants: 0,
            replaced_at: 1,
            compared_at: 0,
            last_start: workload.paces.iter().map(|pace| pace.not_before).max().unwrap_or_default(),
        };
        steady_state.restart(workload);
        Some(steady_state)
    }

    /// Records that an operation is ready, or that an operation that it waits for is done.
    pub(super) fn record_reached(&mut self, run: u32, index: u32) {
        let frontier = &mut self.progress.frontier[run as usize];
        *frontier = (*frontier).max(index + 1);
    }

    /// Records that an operation is done.
    pub(super) fn record_done(&mut self, run: u32, index: u32) {
        self.progress.done[run as usize] += 1;
        let last = &mut self.progress.last_done[run as usize];
        *last = (*last).max(index + 1);
    }

    /// Starts a new search, with the run that has the most operations left as its reference.
    fn restart(&mut self, workload: &Workload) {
        let remaining = |&run: &u32| workload.runs[run as usize].len - self.progress.done[run as usize];
        let runs = 0..workload.runs.len() as u32;
        self.reference = runs.max_by_key(|run| (remaining(run), std::cmp::Reverse(*run))).unwrap_or_default();
        self.reference_done = self.progress.done[self.reference as usize];
        self.earlier = None;
        (self.instants, self.replaced_at) = (0, 1);
    }

    /// Returns the number of operations of the reference run that are not done.
    fn remaining(&self, workload: &Workload) -> u32 {
        workload.runs[self.reference as usize].len - self.progress.done[self.reference as usize]
    }

    /// Returns true if the present is an instant of comparison, and records its time.
    fn is_due(&mut self, now: Picos) -> bool {
        let done = self.progress.done[self.reference as usize];
        if done == self.reference_done || now < self.last_start {
            return false;
        }
        (self.reference_done, self.interval, self.last_time) = (done, now - self.last_time, now);
        self.instants += 1;
        true
    }
}

impl Engine<'_> {
    /// Skips whole periods if the present state equals an earlier one. Called when all events of an instant are
    /// handled.
    pub(super) fn skip_periods(&mut self) {
        let Some(mut search) = self.steady_state.take() else { return };
        if search.is_due(self.now) {
            self.compare(&mut search);
            if search.remaining(self.workload) < MIN_REMAINING {
                search.restart(self.workload);
                if search.remaining(self.workload) < MIN_REMAINING {
                    return;
                }
            }
        }
        self.steady_state = Some(search);
    }

    fn compare(&mut self, search: &mut SteadyState) {
        let replaces = search.instants >= search.replaced_at;
        let resembles = search.earlier.as_ref().is_some_and(|earlier| earlier.interval == search.interval);
        if !replaces && !resembles {
            return;
        }
        // Comparing whole states must not cost more than simulating.
        let events = self.outcome.events - search.compared_at;
        if events < self.state_size() {
            return;
        }
        search.compared_at = self.outcome.events;
        let Some(present) = self.snapshot(&search.progress, search.interval) else {
            if replaces {
                (search.instants, search.earlier) = (0, None);
            }
            return;
        };
        if let Some(earlier) = &search.earlier
            && let Some(period) = present.period_since(earlier)
        {
            let progress = &mut search.progress;
            let interior = search.interior.get_or_init(|| Interior::new(self.workload));
            let periods = interior.whole_periods(&earlier.done, progress);
            let shifts: Vec<u32> = progress.done.iter().zip(&earlier.done).map(|(now, before)| now - before).collect();
            if periods > 0 && self.can_jump(&period, periods) {
                self.jump(&period, periods, &shifts, earlier);
                progress.advance(|run| shifts[run] * periods);
                search.last_time = self.now;
            }
            // A run is about to leave its range of equal operations, so the state does not recur.
            search.restart(self.workload);
            return;
        }
        if replaces {
            search.earlier = Some(present);
            (search.replaced_at, search.instants) = (search.replaced_at * 2, 0);
        }
    }

    /// Returns the cost of a snapshot, estimated as a number of events of equal cost.
    fn state_size(&self) -> u64 {
        let tables = (self.workload.runs.len() + self.workload.system.route_count()) / 4;
        (tables + self.flights.len() - self.free_flights.len()) as u64
    }
}

impl RunProgress {
    /// Records that each run has completed and reached further operations. `operations`: number of them, by run.
    fn advance(&mut self, operations: impl Fn(usize) -> u32) {
        for counts in [&mut self.done, &mut self.last_done, &mut self.frontier] {
            counts.iter_mut().enumerate().for_each(|(run, count)| *count += operations(run));
        }
    }
}
