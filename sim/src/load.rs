//! Load over time: how much of each capacity was used in each slice of a run, from the recorded changes of rates.

use fabricast_topologies::Picos;

use crate::engine::{RateChange, Workload};
use crate::quantity::Rate;
use crate::sharing::{ResourceId, RouteId, WHOLE};

/// The part of each capacity that was used in each of a number of equal slices of the run, 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOverTime {
    /// Length of a slice.
    pub slice: Picos,
    /// One row per capacity, in order of id; one value per slice.
    pub loads: Vec<Vec<f64>>,
}

/// Averages the recorded rates over `slices` equal slices from 0 to `end`.
#[must_use]
pub fn load_over_time(workload: &Workload, changes: &[RateChange], end: Picos, slices: usize) -> LoadOverTime {
    let slices = slices.max(1);
    let slice = Picos(end.0.div_ceil(slices as u64).max(1));
    let system = &workload.system;
    let mut load = LoadOverTime { slice, loads: vec![vec![0.0; slices]; system.resource_count()] };
    let mut current = vec![(Picos::ZERO, 0u64); system.route_count()];
    for change in changes {
        let (since, rate) = std::mem::replace(&mut current[change.route.0 as usize], (change.at, change.total.0));
        load.add(workload, change.route, Rate(rate), since, change.at);
    }
    for (route, &(since, rate)) in (0..).zip(&current) {
        load.add(workload, RouteId(route), Rate(rate), since, end);
    }
    load
}

impl LoadOverTime {
    /// The loads of one capacity.
    #[must_use]
    pub fn of(&self, resource: ResourceId) -> &[f64] {
        self.loads.get(resource.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// A route that carried `rate` from one instant to another.
    fn add(&mut self, workload: &Workload, route: RouteId, rate: Rate, from: Picos, to: Picos) {
        let slice = self.slice.0;
        if rate.0 == 0 || to <= from {
            return;
        }
        for one in workload.system.uses(route) {
            let capacity = workload.system.capacity(one.resource).0 as f64;
            let part = rate.0 as f64 * (one.coefficient as f64 / WHOLE as f64) / capacity;
            let Some(row) = self.loads.get_mut(one.resource.0 as usize) else { continue };
            let first = from.0 / slice;
            for (place, load) in (first..).zip(row.iter_mut().skip(first as usize)) {
                let (start, end) = (from.0.max(place * slice), to.0.min((place + 1) * slice));
                if start >= end {
                    break;
                }
                *load += part * (end - start) as f64 / slice as f64;
            }
        }
    }
}
