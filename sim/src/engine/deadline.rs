//! Early detection of a missed deadline, from the work that has not begun to flow.
//!
//! The engine tracks, for the most loaded capacities, the work that has not begun. Each capacity needs at least that
//! work divided by its full rate. Idle time of such a capacity cannot be recovered, so a run that will miss its
//! deadline is usually detected long before the deadline. Longer runs also compute the chains of dependencies that remain
//! after each operation ([`RemainingPaths`]).

use std::cmp::Reverse;

use fabricast_topologies::Picos;

use super::remaining_paths::RemainingPaths;
use super::{PerOp, Workload};
use crate::quantity::{Rate, Work};
use crate::sharing::{ResourceId, RouteId, WHOLE};

/// Number of capacities whose remaining work is tracked: the most loaded ones.
const FOLLOWED: usize = 8;

/// Number of operations per event after which the remaining chains are computed: their computation needs less time than
/// the events until then. Runs that skip a steady state end before.
const OPERATIONS_PER_EVENT: u64 = 8;

/// Deadline of a run, and the work that must be completed by then.
#[derive(Debug)]
pub(super) struct Deadline {
    until: Picos,
    /// Number of the first background run, whose work is not tracked.
    background_from: u32,
    /// Rate of each tracked capacity, and the work on it that has not begun.
    left: Vec<(Rate, Work)>,
    /// Tracked capacities of each route: bounds into `uses`, which holds positions in `left` and coefficients.
    starts: Vec<u32>,
    uses: Vec<(u8, u64)>,
    /// Number of events after which the remaining chains are computed; `None` if that was tried.
    follows_paths_at: Option<u64>,
    paths: Option<RemainingPaths>,
}

impl Deadline {
    pub(super) fn new(workload: &Workload, until: Picos) -> Self {
        let system = &workload.system;
        let mut loads = vec![Work(0); system.resource_count()];
        for_each_transfer(workload, |route, work, times| {
            for used in system.uses(route) {
                loads[used.resource.0 as usize].0 += passing(work, used.coefficient).0 * u128::from(times);
            }
        });
        let mut order: Vec<u32> = (0..loads.len() as u32).filter(|&id| loads[id as usize].0 > 0).collect();
        let needed = |id: u32| loads[id as usize].0 / u128::from(system.capacity(ResourceId(id)).0.max(1));
        order.sort_by_key(|&id| (Reverse(needed(id)), id));
        order.truncate(FOLLOWED);
        let left = order.iter().map(|&id| (system.capacity(ResourceId(id)), loads[id as usize])).collect();
        let (mut starts, mut uses) = (vec![0], Vec::new());
        for route in (0..system.route_count() as u32).map(RouteId) {
            for used in system.uses(route) {
                let position = order.iter().position(|&id| id == used.resource.0);
                uses.extend(position.map(|position| (position as u8, used.coefficient)));
            }
            starts.push(uses.len() as u32);
        }
        let follows_paths_at = Some(workload.operation_count() / OPERATIONS_PER_EVENT);
        Self { until, background_from: workload.background_from, left, starts, uses, follows_paths_at, paths: None }
    }

    /// Computes the remaining chains of dependencies, once so many events have been handled that this pays.
    pub(super) fn follow_paths(&mut self, workload: &Workload, events: u64) {
        if self.follows_paths_at.take_if(|start| *start <= events).is_some() {
            self.paths = RemainingPaths::new(workload);
        }
    }

    /// Returns the deadline if an operation that starts its transfer now begins a chain that can no longer end by then;
    /// otherwise `None`.
    pub(super) fn missed_by(&self, run: u32, index: u32, now: Picos) -> Option<Picos> {
        let length = self.paths.as_ref()?.length_from_start(run, index);
        (now.0.saturating_add(length) > self.until.0).then_some(self.until)
    }

    /// Records that a transfer of a run begins to flow.
    pub(super) fn begins(&mut self, run: u32, route: RouteId, work: Work) {
        if run >= self.background_from {
            return;
        }
        let entries = self.starts[route.0 as usize] as usize..self.starts[route.0 as usize + 1] as usize;
        for &(position, coefficient) in &self.uses[entries] {
            let left = &mut self.left[position as usize].1;
            left.0 = left.0.saturating_sub(passing(work, coefficient).0);
        }
    }

    /// Returns the work that has not begun on each tracked capacity.
    pub(super) fn unstarted(&self) -> impl Iterator<Item = Work> + '_ {
        self.left.iter().map(|&(_, left)| left)
    }

    /// Advances by whole periods, given the work that had not begun one period ago.
    pub(super) fn jump(&mut self, periods: u32, earlier: &[Work]) {
        for ((_, left), before) in self.left.iter_mut().zip(earlier) {
            left.0 = left.0.saturating_sub((before.0 - left.0) * u128::from(periods));
        }
    }

    /// Returns the deadline if the work that has not begun can no longer be completed by then; otherwise `None`.
    pub(super) fn missed(&self, now: Picos) -> Option<Picos> {
        let is_late = |&(rate, left): &(Rate, Work)| {
            let needed = left.0 / u128::from(rate.0.max(1));
            u128::from(now.0) + needed > u128::from(self.until.0)
        };
        self.left.iter().any(is_late).then_some(self.until)
    }
}

/// Returns the work that a transfer of `work` puts on a capacity that it uses with `coefficient`.
fn passing(work: Work, coefficient: u64) -> Work {
    Work(work.0 / u128::from(WHOLE) * u128::from(coefficient))
}

/// Calls `visit` with the route, the work and the number of each group of equal transfers.
fn for_each_transfer(workload: &Workload, mut visit: impl FnMut(RouteId, Work, u32)) {
    for run in workload.runs.iter().take(workload.background_from as usize) {
        let uniform = matches!((run.passage, run.work), (PerOp::Same(_), PerOp::Same(_)));
        for i in 0..if uniform { run.len.min(1) } else { run.len } {
            let route = workload.passages.get(run.passage.entry(i)).route;
            if let Some(route) = route {
                visit(route, workload.works[run.work.entry(i)], if uniform { run.len } else { 1 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pace, RouteLatency};
    use super::*;
    use crate::sharing::Use;

    #[test]
    fn background_transfers_leave_the_work_of_the_run() {
        let mut workload = Workload::new();
        let resource = workload.system.add_resource(Rate(1_000_000));
        let route = workload.system.add_route(&[Use { resource, coefficient: WHOLE }], Rate::UNLIMITED, 1);
        let work = Work::from_bytes(1 << 20);
        for _ in 0..2 {
            let passage = RouteLatency { route: Some(route), latency: Picos::ZERO };
            workload.add_uniform_run(1, passage, work, Pace::default(), &[]);
        }
        workload.background_from = 1;
        let mut deadline = Deadline::new(&workload, Picos(1));
        let whole: Vec<Work> = deadline.unstarted().collect();
        deadline.begins(1, route, work);
        assert_eq!(deadline.unstarted().collect::<Vec<_>>(), whole);
        deadline.begins(0, route, work);
        assert_eq!(deadline.unstarted().collect::<Vec<_>>(), [Work(0)]);
    }
}
