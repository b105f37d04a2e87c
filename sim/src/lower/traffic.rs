//! What passes through each capacity in all, for utilisations.

use crate::quantity::Work;
use crate::sharing::{ResourceId, RouteId, System, WHOLE};

/// Work by capacity, coefficients included.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    passed: Vec<Work>,
}

impl Traffic {
    /// `work` passes over a route.
    pub fn add(&mut self, route: RouteId, work: Work, system: &System) {
        if self.passed.len() < system.resource_count() {
            self.passed.resize(system.resource_count(), Work(0));
        }
        // Work is counted in units far below a byte: dividing first loses nothing that shows.
        let part = work.0 / u128::from(WHOLE);
        for one in system.uses(route) {
            self.passed[one.resource.0 as usize].0 += part * u128::from(one.coefficient);
        }
    }

    /// What passes through a capacity passes so many times.
    pub(super) fn multiply(&mut self, resource: ResourceId, times: u64) {
        if let Some(passed) = self.passed.get_mut(resource.0 as usize) {
            passed.0 = passed.0.saturating_mul(u128::from(times));
        }
    }

    /// What passes through a capacity.
    #[must_use]
    pub fn through(&self, resource: ResourceId) -> Work {
        self.passed.get(resource.0 as usize).copied().unwrap_or_default()
    }
}
