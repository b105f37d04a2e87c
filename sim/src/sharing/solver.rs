//! Progressive filling of the connected part of a system that a change can affect.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::demand::Demand;
use super::members::Members;
use super::system::{ResourceId, RouteId, System, divide, scaled};

/// Level of a route without a limit; also the value of `full_at` for a capacity that is not full.
pub(super) const NEVER: u64 = u64::MAX;

/// Route or capacity from which the part of the system to solve is collected.
#[derive(Clone, Copy)]
pub(super) enum Seed {
    Route(u32),
    Resource(u32),
}

/// Solutions and working memory of progressive filling, reused between calls. Marks contain the epoch in which they
/// were set, so that they need not be cleared.
#[derive(Clone, Debug)]
pub(super) struct Solver {
    /// Level (rate ÷ weight) of each active route, as of its last solution.
    pub(super) level: Vec<u64>,
    /// Level at which each capacity was full; [`NEVER`] if it was not full.
    pub(super) full_at: Vec<u64>,
    pub(super) epoch: u32,
    route_mark: Vec<u32>,
    resource_mark: Vec<u32>,
    /// Mark of routes whose level is to be determined, while other routes keep their level.
    pub(super) free_mark: Vec<u32>,
    frozen: Vec<bool>,
    /// Remainder of each capacity after subtracting frozen routes, in rate × `WHOLE`.
    left: Vec<u128>,
    /// Sum of coefficient × count × weight over the routes that are not frozen, by capacity.
    load: Vec<u64>,
    pub(super) routes: Vec<u32>,
    pub(super) resources: Vec<u32>,
    by_cap: Vec<(u64, u32)>,
    levels: BinaryHeap<Reverse<(u64, u32)>>,
    reached: Vec<u32>,
    /// Result of the last filling: routes and their levels.
    pub(super) solution: Vec<(u32, u64)>,
}

impl Solver {
    pub(super) fn new(routes: usize, resources: usize) -> Self {
        Self {
            level: vec![0; routes],
            full_at: vec![NEVER; resources],
            epoch: 0,
            route_mark: vec![0; routes],
            resource_mark: vec![0; resources],
            free_mark: vec![0; routes],
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
            self.free_mark.fill(0);
            self.epoch = 1;
        }
    }

    pub(super) fn seen(&self, route: u32) -> bool {
        self.route_mark[route as usize] == self.epoch
    }

    pub(super) fn is_visited(&self, resource: u32) -> bool {
        self.resource_mark[resource as usize] == self.epoch
    }

    /// Collects the routes and capacities that are connected to the seed through capacities that can be filled. Returns
    /// false if there are more than `max_routes` routes; only some of them are then collected.
    pub(super) fn collect(
        &mut self,
        system: &System,
        members: &mut Members,
        demand: &Demand,
        count: &[u32],
        seed: Seed,
        max_routes: usize,
    ) -> bool {
        self.routes.clear();
        self.resources.clear();
        match seed {
            Seed::Route(route) => self.visit_route(route),
            Seed::Resource(resource) => self.visit_freed(system, members, demand, count, resource),
        }
        let (mut next_route, mut next_resource) = (0, 0);
        loop {
            if let Some(&route) = self.routes.get(next_route) {
                next_route += 1;
                for &used in system.route_resources(route) {
                    if demand.may_fill(system, used) {
                        self.visit_resource(used.0);
                    }
                }
            } else if let Some(&resource) = self.resources.get(next_resource) {
                next_resource += 1;
                self.visit_members(system, members, count, resource);
            } else {
                return true;
            }
            if self.routes.len() > max_routes {
                return false;
            }
        }
    }

    /// Records that capacities on which transfers have ended, and which can no longer be filled, are not full.
    pub(super) fn release(&mut self, system: &System, demand: &Demand, freed: &[ResourceId]) {
        for &resource in freed {
            if !demand.may_fill(system, resource) {
                self.full_at[resource.0 as usize] = NEVER;
            }
        }
    }

    /// Visits a capacity on which a transfer has ended. If the capacity can no longer be filled, it limits no route,
    /// and the routes on it are visited instead.
    pub(super) fn visit_freed(
        &mut self,
        system: &System,
        members: &mut Members,
        demand: &Demand,
        count: &[u32],
        resource: u32,
    ) {
        if demand.may_fill(system, ResourceId(resource)) {
            self.visit_resource(resource);
        } else {
            self.visit_members(system, members, count, resource);
        }
    }

    pub(super) fn visit_members(&mut self, system: &System, members: &mut Members, count: &[u32], resource: u32) {
        members.sweep(system, count, resource);
        for &route in members.routes(resource) {
            self.visit_route(route);
        }
    }

    pub(super) fn visit_route(&mut self, route: u32) {
        if !self.seen(route) {
            self.route_mark[route as usize] = self.epoch;
            self.routes.push(route);
        }
    }

    pub(super) fn visit_resource(&mut self, resource: u32) {
        if !self.is_visited(resource) {
            self.resource_mark[resource as usize] = self.epoch;
            self.resources.push(resource);
        }
    }

    /// Determines the levels of all routes and capacities that [`Solver::collect`] has collected.
    pub(super) fn solve(&mut self, system: &System, members: &Members, count: &[u32]) {
        self.fill(system, members, count, |_, route| system.cap_level(route));
        for &(route, level) in &self.solution {
            self.level[route as usize] = level;
        }
    }

    /// Fills the visited routes and capacities. All members of these capacities must have been visited. No route rises
    /// above its cap.
    pub(super) fn fill(&mut self, system: &System, members: &Members, count: &[u32], cap: impl Fn(&Self, u32) -> u64) {
        self.solution.clear();
        self.levels.clear();
        self.by_cap.clear();
        for &resource in &self.resources {
            self.left[resource as usize] = scaled(system.capacity(ResourceId(resource)));
            self.load[resource as usize] = 0;
            self.full_at[resource as usize] = NEVER;
        }
        for i in 0..self.routes.len() {
            let route = self.routes[i];
            self.frozen[route as usize] = false;
            let times = u64::from(count[route as usize]) * u64::from(system.limits(route).weight);
            for one in system.uses(RouteId(route)) {
                if self.is_visited(one.resource.0) {
                    self.load[one.resource.0 as usize] += one.coefficient * times;
                }
            }
            let cap = cap(self, route);
            if cap != NEVER {
                self.by_cap.push((cap, route));
            }
        }
        for &resource in &self.resources {
            self.levels.push(Reverse((self.fill_level(resource), resource)));
        }
        self.by_cap.sort_unstable();
        let mut next_cap = 0;
        while self.solution.len() < self.routes.len() {
            while self.by_cap.get(next_cap).is_some_and(|&(_, route)| self.frozen[route as usize]) {
                next_cap += 1;
            }
            let cap = self.by_cap.get(next_cap).map_or(NEVER, |&(level, _)| level);
            let reached = self.next_level(cap);
            let level = reached.min(cap);
            while let Some(&(at, route)) = self.by_cap.get(next_cap).filter(|&&(at, _)| at == level) {
                debug_assert_eq!(at, level);
                next_cap += 1;
                self.freeze(system, count, route, level);
            }
            for i in 0..self.reached.len() {
                let resource = self.reached[i];
                self.full_at[resource as usize] = level;
                for &route in members.routes(resource) {
                    self.freeze(system, count, route, level);
                }
            }
            if level == NEVER {
                for i in 0..self.routes.len() {
                    self.freeze(system, count, self.routes[i], level);
                }
            }
        }
    }

    /// Returns the lowest level at which a capacity is full, and stores the capacities that are full at that level in
    /// `reached`. Capacities above `limit` are deferred.
    fn next_level(&mut self, limit: u64) -> u64 {
        self.reached.clear();
        let mut found = NEVER;
        while let Some(&Reverse((key, resource))) = self.levels.peek() {
            if key > found || key > limit {
                return if self.reached.is_empty() { key } else { found };
            }
            self.levels.pop();
            if self.load[resource as usize] == 0 {
                continue;
            }
            // Levels only rise while other routes freeze, so an outdated key is too low.
            let level = self.fill_level(resource);
            if level > key {
                self.levels.push(Reverse((level, resource)));
            } else {
                found = level;
                self.reached.push(resource);
            }
        }
        found
    }

    fn fill_level(&self, resource: u32) -> u64 {
        divide(self.left[resource as usize], self.load[resource as usize])
    }

    fn freeze(&mut self, system: &System, count: &[u32], route: u32, level: u64) {
        if std::mem::replace(&mut self.frozen[route as usize], true) {
            return;
        }
        let weight = u64::from(system.limits(route).weight);
        let times = u64::from(count[route as usize]) * weight;
        for one in system.uses(RouteId(route)) {
            if !self.is_visited(one.resource.0) {
                continue;
            }
            let resource = one.resource.0 as usize;
            let load = one.coefficient * times;
            self.load[resource] -= load;
            self.left[resource] = self.left[resource].saturating_sub(u128::from(load) * u128::from(level));
        }
        self.solution.push((route, level));
    }
}
