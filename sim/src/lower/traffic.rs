//! Total traffic of each capacity, for utilisations.

use crate::quantity::Work;
use crate::sharing::{ResourceId, RouteId, System, WHOLE};

/// Work that passes each capacity, coefficients included.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    passed: Vec<Work>,
}

impl Traffic {
    /// Adds the work of a transfer to every capacity on its route.
    pub fn add(&mut self, route: RouteId, work: Work, system: &System) {
        if self.passed.len() < system.resource_count() {
            self.passed.resize(system.resource_count(), Work(0));
        }
        // The unit of work is much smaller than a byte, so the rounding of this division is negligible.
        let part = work.0 / u128::from(WHOLE);
        for one in system.uses(route) {
            self.passed[one.resource.0 as usize].0 += part * u128::from(one.coefficient);
        }
    }

    /// Multiplies the traffic of a capacity.
    pub(super) fn multiply(&mut self, resource: ResourceId, times: u64) {
        if let Some(passed) = self.passed.get_mut(resource.0 as usize) {
            passed.0 = passed.0.saturating_mul(u128::from(times));
        }
    }

    /// Returns the traffic of `count` capacities that represent others. `target`: for each capacity, its
    /// representative, and the numerator and denominator of the part of its traffic that counts.
    pub(super) fn merged(&self, count: usize, target: impl Fn(ResourceId) -> Option<(ResourceId, u64, u64)>) -> Self {
        let mut passed = vec![Work(0); count];
        for (id, work) in (0..).map(ResourceId).zip(&self.passed) {
            if let Some((representative, times, parts)) = target(id)
                && let Some(total) = passed.get_mut(representative.0 as usize)
            {
                total.0 += work.0 * u128::from(times) / u128::from(parts.max(1));
            }
        }
        Self { passed }
    }

    /// Returns the traffic of a capacity.
    #[must_use]
    pub fn resource_work(&self, resource: ResourceId) -> Work {
        self.passed.get(resource.0 as usize).copied().unwrap_or_default()
    }
}
