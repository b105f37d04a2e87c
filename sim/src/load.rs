//! Load over time: used fraction of each capacity in each time slice of a run, computed from the recorded changes of
//! rate.

use fabricast_topologies::Picos;

use crate::engine::{RateChange, Workload};
use crate::quantity::Rate;
use crate::sharing::{ResourceId, RouteId, WHOLE};

/// Used fraction of each capacity in equal slices of the run, 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOverTime {
    /// Duration of each slice.
    pub slice: Picos,
    /// Loads, by row and slice. A row applies to all capacities that refer to it.
    rows: Vec<Vec<f64>>,
    /// Index in `rows` of each capacity's row, in order of id.
    row_indices: Vec<u32>,
}

/// Averages the recorded rates over `slices` equal slices from 0 to `end`. Sums are integers, so a folded run gives the
/// same values as the whole run.
#[must_use]
pub fn load_over_time(workload: &Workload, changes: &[RateChange], end: Picos, slices: usize) -> LoadOverTime {
    let slices = slices.max(1);
    let slice = Picos(end.0.div_ceil(slices as u64).max(1));
    let system = &workload.system;
    let count = system.resource_count();
    let mut sums = Sums { workload, slice, rows: vec![vec![0; slices]; count] };
    let mut current = vec![(Picos::ZERO, 0u64); system.route_count()];
    for change in changes {
        let (since, rate) = std::mem::replace(&mut current[change.route.0 as usize], (change.at, change.total.0));
        sums.add(change.route, Rate(rate), since, change.at);
    }
    for (route, &(since, rate)) in (0..).zip(&current) {
        sums.add(RouteId(route), Rate(rate), since, end);
    }
    LoadOverTime { slice, rows: sums.fractions(), row_indices: (0..count as u32).collect() }
}

impl LoadOverTime {
    /// Returns the load of one capacity in each slice; empty if the capacity does not exist.
    #[must_use]
    pub fn resource(&self, resource: ResourceId) -> &[f64] {
        let row = self.row_indices.get(resource.0 as usize).and_then(|&row| self.rows.get(row as usize));
        row.map_or(&[], Vec::as_slice)
    }

    /// Returns the load of every capacity in each slice, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = &[f64]> {
        (0..self.row_indices.len() as u32).map(|id| self.resource(ResourceId(id)))
    }

    /// Returns the loads of a larger system, whose capacity i is represented by capacity `resources[i]` of this one.
    #[must_use]
    pub(crate) fn expand(self, resources: &[ResourceId]) -> Self {
        let row_indices =
            resources.iter().map(|id| self.row_indices.get(id.0 as usize).copied().unwrap_or(u32::MAX)).collect();
        Self { row_indices, ..self }
    }
}

/// Traffic of each capacity in each slice, in units of rate × coefficient × picosecond.
struct Sums<'a> {
    workload: &'a Workload,
    slice: Picos,
    rows: Vec<Vec<u128>>,
}

impl Sums<'_> {
    /// Adds the traffic of a route that carried `rate` from one instant to another.
    fn add(&mut self, route: RouteId, rate: Rate, from: Picos, to: Picos) {
        let slice = self.slice.0;
        if rate.0 == 0 || to <= from {
            return;
        }
        for one in self.workload.system.uses(route) {
            let Some(row) = self.rows.get_mut(one.resource.0 as usize) else { continue };
            let charge = u128::from(rate.0).saturating_mul(one.coefficient.into());
            let first = from.0 / slice;
            for (slice_number, sum) in (first..).zip(row.iter_mut().skip(first as usize)) {
                let (start, end) = (from.0.max(slice_number * slice), to.0.min((slice_number + 1) * slice));
                if start >= end {
                    break;
                }
                *sum = sum.saturating_add(charge.saturating_mul((end - start).into()));
            }
        }
    }

    /// Returns the traffic as a fraction of the capacity.
    fn fractions(&self) -> Vec<Vec<f64>> {
        let could =
            |id: u32| self.workload.system.capacity(ResourceId(id)).0 as f64 * WHOLE as f64 * self.slice.0 as f64;
        let part = |(id, row): (u32, &Vec<u128>)| row.iter().map(|&sum| sum as f64 / could(id)).collect();
        (0..).zip(&self.rows).map(part).collect()
    }
}
