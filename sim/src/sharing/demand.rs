//! What is asked of each capacity at most: the sum over the transfers under way of the rates that they would have alone.
//!
//! A capacity C of which no more is asked than it has is reached at no level below the lowest that one of its transfers would
//! have alone: what is left of it, once others are frozen at no more than theirs, is at least the sum of what the rest
//! would have alone. So it holds nobody back, and leaving it out changes no rate.

use super::system::{ResourceId, RouteId, System, scaled};

#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// By capacity, scaled by [`super::WHOLE`].
    asked: Vec<u128>,
}

impl Demand {
    pub fn new(resources: usize) -> Self {
        Self { asked: vec![0; resources] }
    }

    /// One more transfer is under way.
    pub fn add(&mut self, system: &System, route: RouteId) {
        self.change(system, route, u128::wrapping_add);
    }

    /// One less.
    pub fn remove(&mut self, system: &System, route: RouteId) {
        self.change(system, route, u128::wrapping_sub);
    }

    fn change(&mut self, system: &System, route: RouteId, with: fn(u128, u128) -> u128) {
        let alone = u128::from(system.limits(route.0).unshared.0);
        for used in system.uses(route) {
            let asked = &mut self.asked[used.resource.0 as usize];
            *asked = with(*asked, alone * u128::from(used.coefficient));
        }
    }

    /// Whether it can hold a transfer back.
    pub fn may_fill(&self, system: &System, resource: ResourceId) -> bool {
        self.asked[resource.0 as usize] > scaled(system.capacity(resource))
    }
}
