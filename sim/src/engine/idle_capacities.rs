//! Removal of capacities that can never limit a transfer.
//!
//! The demand on a capacity is the sum of the rates that its active transfers would have alone. A capacity whose demand
//! does not exceed it limits no transfer (`sharing/demand`). An upper bound on the demand over the whole run follows
//! from the number of operations of each run that can be active concurrently: for example, one in a run whose
//! operations each wait for the previous one. Capacities that this bound does not fill are removed from all routes; a
//! route retains the limit that such a capacity sets for a single transfer. Rates do not change.
//!
//! Without these capacities, parts of a workload that share only such capacities are independent. Channels of a tree on
//! different NICs, for example, fold to one.

use super::{Edge, Workload, passage_ranges};
use crate::sharing::{ResourceId, RouteId, System};

/// Number of routes above which the analysis costs more than it saves.
const MAX_ROUTES: usize = 1 << 20;

impl Workload {
    /// Removes the capacities that can never limit a transfer from all routes. Capacities keep their ids.
    pub fn remove_idle_capacities(&mut self) {
        if self.system.route_count() > MAX_ROUTES {
            return;
        }
        let may_limit = self.limiting_capacities();
        if may_limit.contains(&false) {
            self.system = self.system.with_only(|resource| may_limit[resource.0 as usize]);
        }
    }

    /// Returns, for each capacity, true if the upper bound on its demand exceeds the capacity.
    pub(super) fn limiting_capacities(&self) -> Vec<bool> {
        let mut demand = CapacityDemand::new(&self.system);
        for run in 0..self.runs.len() as u32 {
            let concurrent = self.max_concurrent_operations(run);
            for range in passage_ranges(self, run) {
                if let Some(route) = range.passage.route {
                    demand.add(&self.system, route, range.len.min(concurrent));
                }
            }
            demand.finish_run(concurrent);
        }
        demand.exceeds_capacity(&self.system)
    }

    /// Returns the largest number of operations of a run that can be active at the same time.
    fn max_concurrent_operations(&self, run: u32) -> u32 {
        let len = self.runs[run as usize].len;
        let limit = |edge: &Edge| match edge.is_turn() {
            true => 1,
            // Operation i waits for operation i + start of the same run.
            false => edge.start.checked_neg().map_or(len, i32::unsigned_abs),
        };
        let own = |edge: &&Edge| edge.run == run && (edge.is_turn() || (edge.step == 1 && edge.start < 0));
        self.run_waits(run).iter().filter(own).map(limit).min().unwrap_or(len).min(len)
    }
}

/// Upper bounds on the demand for each capacity, in units of rate × [`WHOLE`](crate::sharing::WHOLE).
struct CapacityDemand {
    total: Vec<u128>,
    /// Demand of the current run for each capacity: the sum over its ranges of operations, and the largest demand of a
    /// single operation.
    run_sum: Vec<u128>,
    run_largest: Vec<u128>,
    /// Capacities that the current run uses.
    touched: Vec<ResourceId>,
}

impl CapacityDemand {
    fn new(system: &System) -> Self {
        let zeros = || vec![0; system.resource_count()];
        Self { total: zeros(), run_sum: zeros(), run_largest: zeros(), touched: Vec::new() }
    }

    /// Adds up to `operations` concurrent transfers of the current run on a route.
    fn add(&mut self, system: &System, route: RouteId, operations: u32) {
        let alone = u128::from(system.unshared(route).0);
        for used in system.uses(route) {
            let (index, demand) = (used.resource.0 as usize, alone.saturating_mul(used.coefficient.into()));
            if self.run_sum[index] == 0 {
                self.touched.push(used.resource);
            }
            self.run_sum[index] = self.run_sum[index].saturating_add(demand.saturating_mul(operations.into()));
            self.run_largest[index] = self.run_largest[index].max(demand);
        }
    }

    /// Adds the demand of the current run, of which at most `concurrent` operations are active concurrently.
    fn finish_run(&mut self, concurrent: u32) {
        for resource in self.touched.drain(..) {
            let index = resource.0 as usize;
            let sum = std::mem::take(&mut self.run_sum[index]);
            let largest = std::mem::take(&mut self.run_largest[index]);
            self.total[index] = self.total[index].saturating_add(sum.min(largest.saturating_mul(concurrent.into())));
        }
    }

    fn exceeds_capacity(&self, system: &System) -> Vec<bool> {
        let capacities = (0..).map(|id| system.scaled_capacity(ResourceId(id)));
        self.total.iter().zip(capacities).map(|(&demand, capacity)| demand > capacity).collect()
    }
}
