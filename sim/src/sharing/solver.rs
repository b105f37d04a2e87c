//! Progressive filling over the connected part of a system that a change can have touched.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::demand::Demand;
use super::members::Members;
use super::system::{Limits, ResourceId, RouteId, System, divide, scaled};
use crate::quantity::Rate;

/// Where the part to solve begins.
#[derive(Clone, Copy)]
pub(super) enum Seed {
    Route(u32),
    Resource(u32),
}

/// Working memory of the filling, kept between calls. Marks carry the epoch in which they were set, so that nothing has
/// to be cleared.
#[derive(Clone, Debug)]
pub(super) struct Solver {
    epoch: u32,
    route_mark: Vec<u32>,
    resource_mark: Vec<u32>,
    frozen: Vec<bool>,
    /// What is left of each capacity, scaled by [`WHOLE`].
    left: Vec<u128>,
    /// Sum of coefficient × count × weight of the routes not yet frozen.
    load: Vec<u64>,
    routes: Vec<u32>,
    resources: Vec<u32>,
    by_cap: Vec<(u64, u32)>,
    levels: BinaryHeap<Reverse<(u64, u32)>>,
    reached: Vec<u32>,
    pub(super) solution: Vec<(u32, Rate)>,
}

impl Solver {
    pub(super) fn new(routes: usize, resources: usize) -> Self {
        Self {
            epoch: 0,
            route_mark: vec![0; routes],
            resource_mark: vec![0; resources],
            frozen: vec![false; routes],
            left: vec![0; resources],
            load: vec![0; resources],
            routes: Vec::new(),
            resources: Vec::new(),
            by_cap: Vec::new(),
            levels: BinaryHeap::new(),
            reached: Vec::new(),
            solution: Vec::new(),
        }
    }

    pub(super) fn next_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.route_mark.fill(0);
            self.resource_mark.fill(0);
            self.epoch = 1;
        }
    }

    pub(super) fn seen(&self, route: u32) -> bool {
        self.route_mark[route as usize] == self.epoch
    }

    pub(super) fn seen_resource(&self, resource: u32) -> bool {
        self.resource_mark[resource as usize] == self.epoch
    }

    /// Gathers the routes and capacities connected to the seed, by capacities that may be filled.
    pub(super) fn collect(
        &mut self,
        system: &System,
        (members, demand): (&mut Members, &Demand),
        count: &[u32],
        seed: Seed,
    ) {
        self.routes.clear();
        self.resources.clear();
        match seed {
            Seed::Route(route) => self.visit_route(route),
            Seed::Resource(resource) => self.visit_resource(resource),
        }
        let (mut next_route, mut next_resource) = (0, 0);
        loop {
            if let Some(&route) = self.routes.get(next_route) {
                next_route += 1;
                let times = u64::from(count[route as usize]) * u64::from(system.limits(route).weight);
                for one in system.uses(RouteId(route)) {
                    if self.seen_resource(one.resource.0) || demand.may_fill(system, one.resource) {
                        self.visit_resource(one.resource.0);
                        self.load[one.resource.0 as usize] += one.coefficient * times;
                    }
                }
            } else if let Some(&resource) = self.resources.get(next_resource) {
                next_resource += 1;
                members.sweep(system, count, resource);
                for &route in members.of(resource) {
                    self.visit_route(route);
                }
            } else {
                break;
            }
        }
        for &resource in &self.resources {
            self.left[resource as usize] = scaled(system.capacity(ResourceId(resource)));
        }
    }

    fn visit_route(&mut self, route: u32) {
        if !self.seen(route) {
            self.route_mark[route as usize] = self.epoch;
            self.frozen[route as usize] = false;
            self.routes.push(route);
        }
    }

    fn visit_resource(&mut self, resource: u32) {
        if !self.seen_resource(resource) {
            self.resource_mark[resource as usize] = self.epoch;
            self.load[resource as usize] = 0;
            self.resources.push(resource);
        }
    }

    /// The filling proper, over what [`Solver::collect`] gathered.
    pub(super) fn fill(&mut self, system: &System, members: &Members, count: &[u32]) {
        self.solution.clear();
        self.levels.clear();
        self.by_cap.clear();
        for &resource in &self.resources {
            self.levels.push(Reverse((self.level(resource), resource)));
        }
        for &route in &self.routes {
            // What it would have alone holds for capacities that were not gathered, and for its cap.
            let Limits { unshared, weight, .. } = *system.limits(route);
            if unshared != Rate::UNLIMITED {
                self.by_cap.push((unshared.0 / u64::from(weight), route));
            }
        }
        self.by_cap.sort_unstable();
        let mut next_cap = 0;
        while self.solution.len() < self.routes.len() {
            while self.by_cap.get(next_cap).is_some_and(|&(_, route)| self.frozen[route as usize]) {
                next_cap += 1;
            }
            let cap = self.by_cap.get(next_cap).map_or(u64::MAX, |&(level, _)| level);
            let reached = self.next_level(cap);
            let level = reached.min(cap);
            while let Some(&(at, route)) = self.by_cap.get(next_cap).filter(|&&(at, _)| at == level) {
                debug_assert_eq!(at, level);
                next_cap += 1;
                self.freeze(system, count, route, level);
            }
            for i in 0..self.reached.len() {
                let resource = self.reached[i];
                for &route in members.of(resource) {
                    self.freeze(system, count, route, level);
                }
            }
            if level == u64::MAX {
                for i in 0..self.routes.len() {
                    self.freeze(system, count, self.routes[i], level);
                }
            }
        }
    }

    /// The lowest level at which a capacity is reached, with the capacities in `reached`; those above `limit` are left
    /// for later.
    fn next_level(&mut self, limit: u64) -> u64 {
        self.reached.clear();
        let mut found = u64::MAX;
        while let Some(&Reverse((key, resource))) = self.levels.peek() {
            if key > found || key > limit {
                return if self.reached.is_empty() { key } else { found };
            }
            self.levels.pop();
            if self.load[resource as usize] == 0 {
                continue;
            }
            // Levels only rise while others freeze, so a stale key is an underestimate.
            let level = self.level(resource);
            if level > key {
                self.levels.push(Reverse((level, resource)));
            } else {
                found = level;
                self.reached.push(resource);
            }
        }
        found
    }

    fn level(&self, resource: u32) -> u64 {
        divide(self.left[resource as usize], self.load[resource as usize])
    }

    fn freeze(&mut self, system: &System, count: &[u32], route: u32, level: u64) {
        if std::mem::replace(&mut self.frozen[route as usize], true) {
            return;
        }
        let weight = u64::from(system.limits(route).weight);
        let times = u64::from(count[route as usize]) * weight;
        for one in system.uses(RouteId(route)) {
            if !self.seen_resource(one.resource.0) {
                continue;
            }
            let resource = one.resource.0 as usize;
            let load = one.coefficient * times;
            self.load[resource] -= load;
            self.left[resource] = self.left[resource].saturating_sub(u128::from(load) * u128::from(level));
        }
        self.solution.push((route, Rate(level.saturating_mul(weight).max(1))));
    }
}
