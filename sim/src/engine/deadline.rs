//! Knowing early that a run will not be done in time: what has yet to begin to flow must still pass.
//!
//! Of the capacities with most to carry it is counted what has not begun; at its full rate each needs that much longer.
//! Time in which such a capacity stood idle is lost, so that a run that will be late is mostly known to be long before
//! its time is up.

use std::cmp::Reverse;

use fabricast_topologies::Picos;

use super::{PerOp, Workload};
use crate::quantity::{Rate, Work};
use crate::sharing::{ResourceId, RouteId, WHOLE};

/// Capacities that are followed.
const FOLLOWED: usize = 8;

/// When a run is to be done, and what must pass until then.
#[derive(Debug)]
pub(super) struct Deadline {
    until: Picos,
    /// What has not begun to pass each capacity that is followed.
    left: Vec<(Rate, Work)>,
    /// Of each route the capacities that it uses, by their places in `left`: bounds, then places and coefficients.
    starts: Vec<u32>,
    uses: Vec<(u8, u64)>,
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
                let place = order.iter().position(|&id| id == used.resource.0);
                uses.extend(place.map(|place| (place as u8, used.coefficient)));
            }
            starts.push(uses.len() as u32);
        }
        Self { until, left, starts, uses }
    }

    /// A transfer begins to flow.
    pub(super) fn begins(&mut self, route: RouteId, work: Work) {
        let own = self.starts[route.0 as usize] as usize..self.starts[route.0 as usize + 1] as usize;
        for &(place, coefficient) in &self.uses[own] {
            let left = &mut self.left[place as usize].1;
            left.0 = left.0.saturating_sub(passing(work, coefficient).0);
        }
    }

    /// The instant, if what has not begun cannot be done by then any more.
    pub(super) fn missed(&self, now: Picos) -> Option<Picos> {
        let late = |&(rate, left): &(Rate, Work)| {
            let needed = left.0 / u128::from(rate.0.max(1));
            u128::from(now.0) + needed > u128::from(self.until.0)
        };
        self.left.iter().any(late).then_some(self.until)
    }
}

/// What a transfer puts on a capacity.
fn passing(work: Work, coefficient: u64) -> Work {
    Work(work.0 / u128::from(WHOLE) * u128::from(coefficient))
}

/// Calls `visit` with the route, the work and the number of all transfers that are alike.
fn for_each_transfer(workload: &Workload, mut visit: impl FnMut(RouteId, Work, u32)) {
    for run in workload.runs.iter().take(workload.background_from as usize) {
        let alike = matches!((run.passage, run.work), (PerOp::Same(_), PerOp::Same(_)));
        for i in 0..if alike { run.len.min(1) } else { run.len } {
            let route = workload.passages.get(run.passage.entry(i)).route;
            if let Some(route) = route {
                visit(route, workload.works[run.work.entry(i)], if alike { run.len } else { 1 });
            }
        }
    }
}
