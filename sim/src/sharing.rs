//! Weighted max–min sharing of capacities, re-solved only where something changed.
//!
//! A *route* is what concurrent equal transfers have in common: the capacities they use, with a coefficient each (an
//! averaged multipath uses a fraction of a link, a reduction uses a memory three times), a cap, and a weight. Transfers
//! on one route form a bundle and always have the same rate, so the variables of the problem are routes.
//!
//! For routes r with `count` transfers, weight w and coefficients a, the rates x maximise the smallest x/w, then the
//! second smallest, and so on, subject to Σ a·count·x ≤ C for every capacity and x ≤ cap for every route. The solution
//! is found by filling: raise a common level until a capacity or a cap is reached, freeze the routes that use it, go on
//! with the rest (Bertsekas & Gallager, *Data Networks*, §6.5.2). Levels are whole [`Rate`]s, rounded down, and all
//! capacities that are reached at the same level freeze together; so the result depends on neither order nor ids, and
//! a capacity keeps less than one rate unit per transfer unused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::quantity::Rate;

/// The coefficient of a transfer that uses a capacity once, whole. Divisible by every power of two up to 1,024 and by
/// 3, 5, 7 and 9, so that even splits over that many paths are exact.
pub const WHOLE: u64 = 1024 * 315;

/// A capacity of the system: dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u32);

/// A route: dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u32);

/// One use of a capacity by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Use {
    /// The capacity.
    pub resource: ResourceId,
    /// How often a transfer passes through it, in units of [`WHOLE`].
    pub coefficient: u64,
}

/// Capacities and routes: what does not change while a simulation runs.
#[derive(Clone, Debug, Default)]
pub struct System {
    capacities: Vec<Rate>,
    uses: Vec<Use>,
    use_starts: Vec<u32>,
    /// Rate of a transfer whose capacities no other route uses.
    unshared: Vec<Rate>,
    /// Rate of a transfer that is alone in the world; differs from `unshared` where a route stands for many.
    solo: Vec<Rate>,
    cap: Vec<Rate>,
    weight: Vec<u32>,
}

impl System {
    /// No capacities, no routes.
    #[must_use]
    pub fn new() -> Self {
        Self { use_starts: vec![0], ..Self::default() }
    }

    /// Adds a capacity.
    pub fn add_resource(&mut self, capacity: Rate) -> ResourceId {
        self.capacities.push(capacity);
        ResourceId(self.capacities.len() as u32 - 1)
    }

    /// Adds a route of weight 1 or more. Uses of one capacity must be merged into one; uses of unlimited capacities are
    /// left out.
    pub fn add_route(&mut self, uses: &[Use], cap: Rate, weight: u32) -> RouteId {
        let id = self.add_folded_route(uses, cap, weight, Rate::UNLIMITED);
        self.solo[id.0 as usize] = self.unshared[id.0 as usize];
        id
    }

    /// Adds a route that stands for a class of equal ones, charged with all of them; `solo` is the rate that one of
    /// them has alone.
    pub fn add_folded_route(&mut self, uses: &[Use], cap: Rate, weight: u32, solo: Rate) -> RouteId {
        let weight = weight.max(1);
        let mut level = cap.0 / u64::from(weight);
        for &one in uses {
            let capacity = self.capacities[one.resource.0 as usize];
            if capacity == Rate::UNLIMITED || one.coefficient == 0 {
                continue;
            }
            self.uses.push(one);
            level = level.min(divide(scaled(capacity), one.coefficient.saturating_mul(u64::from(weight))));
        }
        self.use_starts.push(self.uses.len() as u32);
        self.unshared.push(Rate(level.saturating_mul(u64::from(weight)).max(1)));
        self.solo.push(solo);
        self.cap.push(cap);
        self.weight.push(weight);
        RouteId(self.solo.len() as u32 - 1)
    }

    /// Number of routes.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.solo.len()
    }

    /// Number of capacities.
    #[must_use]
    pub fn resource_count(&self) -> usize {
        self.capacities.len()
    }

    /// A capacity.
    #[must_use]
    pub fn capacity(&self, id: ResourceId) -> Rate {
        self.capacities[id.0 as usize]
    }

    /// What a route uses.
    #[must_use]
    pub fn uses(&self, route: RouteId) -> &[Use] {
        &self.uses[self.use_range(route.0)]
    }

    /// A route's cap and weight.
    #[must_use]
    pub fn limits(&self, route: RouteId) -> (Rate, u32) {
        (self.cap[route.0 as usize], self.weight[route.0 as usize])
    }

    /// The rate of a transfer that is alone in the world.
    #[must_use]
    pub fn solo(&self, route: RouteId) -> Rate {
        self.solo[route.0 as usize]
    }

    fn use_range(&self, route: u32) -> std::ops::Range<usize> {
        self.use_starts[route as usize] as usize..self.use_starts[route as usize + 1] as usize
    }
}

fn scaled(capacity: Rate) -> u128 {
    u128::from(capacity.0) * u128::from(WHOLE)
}

fn divide(amount: u128, by: u64) -> u64 {
    u64::try_from(amount / u128::from(by.max(1))).unwrap_or(u64::MAX)
}

/// A route under way whose rate or number of transfers changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revised {
    /// The route.
    pub route: RouteId,
    /// The rate of each of its transfers until now.
    pub before: Rate,
    /// Their rate from now on.
    pub rate: Rate,
    /// How many there are.
    pub count: u32,
}

/// Which transfers are under way, and at which rates.
///
/// [`Sharing::start`] and [`Sharing::stop`] only note what changed; [`Sharing::settle`] then solves what the changes of
/// one instant can have touched: the connected parts of the system that hold a changed route.
#[derive(Clone, Debug)]
pub struct Sharing {
    count: Vec<u32>,
    rate: Vec<Rate>,
    /// Routes under way on each capacity, in no particular order.
    members: Vec<Vec<Member>>,
    /// Place of each use in its capacity's member list.
    place: Vec<u32>,
    changed_routes: Vec<u32>,
    freed_resources: Vec<u32>,
    is_changed: Vec<bool>,
    solver: Solver,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    route: u32,
    /// Index of the use in [`System::uses`].
    position: u32,
}

impl Sharing {
    /// Nothing under way.
    #[must_use]
    pub fn new(system: &System) -> Self {
        let (routes, resources) = (system.route_count(), system.resource_count());
        Self {
            count: vec![0; routes],
            rate: vec![Rate(0); routes],
            members: vec![Vec::new(); resources],
            place: vec![0; system.uses.len()],
            changed_routes: Vec::new(),
            freed_resources: Vec::new(),
            is_changed: vec![false; routes],
            solver: Solver::new(routes, resources),
        }
    }

    /// The rate of each transfer on a route, as of the last [`Sharing::settle`].
    #[must_use]
    pub fn rate(&self, route: RouteId) -> Rate {
        self.rate[route.0 as usize]
    }

    /// Transfers under way on a route.
    #[must_use]
    pub fn count(&self, route: RouteId) -> u32 {
        self.count[route.0 as usize]
    }

    /// One more transfer on a route.
    pub fn start(&mut self, system: &System, route: RouteId) {
        let r = route.0;
        self.count[r as usize] += 1;
        if self.count[r as usize] == 1 {
            for position in system.use_range(r) {
                let members = &mut self.members[system.uses[position].resource.0 as usize];
                self.place[position] = members.len() as u32;
                members.push(Member { route: r, position: position as u32 });
            }
        }
        self.note(r);
    }

    /// One transfer less on a route that has one.
    pub fn stop(&mut self, system: &System, route: RouteId) {
        let r = route.0;
        self.count[r as usize] -= 1;
        if self.count[r as usize] > 0 {
            self.note(r);
            return;
        }
        for position in system.use_range(r) {
            let resource = system.uses[position].resource.0;
            let members = &mut self.members[resource as usize];
            let place = self.place[position];
            members.swap_remove(place as usize);
            if let Some(moved) = members.get(place as usize) {
                self.place[moved.position as usize] = place;
            }
            if !members.is_empty() {
                self.freed_resources.push(resource);
            }
        }
    }

    fn note(&mut self, route: u32) {
        if !std::mem::replace(&mut self.is_changed[route as usize], true) {
            self.changed_routes.push(route);
        }
    }

    /// Brings all rates up to date. Calls `revised` with every route under way whose rate or number of transfers
    /// changed.
    pub fn settle(&mut self, system: &System, mut revised: impl FnMut(Revised)) {
        self.solver.next_epoch();
        let changed = std::mem::take(&mut self.changed_routes);
        for &route in &changed {
            let r = route as usize;
            if self.count[r] == 0 || self.solver.seen(route) {
                continue;
            }
            let alone = self.count[r] == 1
                && system.uses[system.use_range(route)].iter().all(|u| self.members[u.resource.0 as usize].len() == 1);
            if alone {
                self.is_changed[r] = false;
                let before = std::mem::replace(&mut self.rate[r], system.unshared[r]);
                revised(Revised { route: RouteId(route), before, rate: system.unshared[r], count: 1 });
            } else {
                self.solve_from(system, Seed::Route(route), &mut revised);
            }
        }
        let freed = std::mem::take(&mut self.freed_resources);
        for &resource in &freed {
            if !self.members[resource as usize].is_empty() && !self.solver.seen_resource(resource) {
                self.solve_from(system, Seed::Resource(resource), &mut revised);
            }
        }
        for &route in &changed {
            self.is_changed[route as usize] = false;
        }
        self.changed_routes = cleared(changed);
        self.freed_resources = cleared(freed);
    }

    fn solve_from(&mut self, system: &System, seed: Seed, revised: &mut impl FnMut(Revised)) {
        self.solver.collect(system, &self.members, &self.count, seed);
        self.solver.fill(system, &self.members, &self.count);
        for &(route, rate) in &self.solver.solution {
            let r = route as usize;
            let before = std::mem::replace(&mut self.rate[r], rate);
            let counted = std::mem::replace(&mut self.is_changed[r], false);
            if before != rate || counted {
                revised(Revised { route: RouteId(route), before, rate, count: self.count[r] });
            }
        }
    }
}

fn cleared<T>(mut list: Vec<T>) -> Vec<T> {
    list.clear();
    list
}

#[derive(Clone, Copy)]
enum Seed {
    Route(u32),
    Resource(u32),
}

/// Working memory of the filling, kept between calls. Marks carry the epoch in which they were set, so that nothing has
/// to be cleared.
#[derive(Clone, Debug)]
struct Solver {
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
    solution: Vec<(u32, Rate)>,
}

impl Solver {
    fn new(routes: usize, resources: usize) -> Self {
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

    fn next_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.route_mark.fill(0);
            self.resource_mark.fill(0);
            self.epoch = 1;
        }
    }

    fn seen(&self, route: u32) -> bool {
        self.route_mark[route as usize] == self.epoch
    }

    fn seen_resource(&self, resource: u32) -> bool {
        self.resource_mark[resource as usize] == self.epoch
    }

    /// Gathers the routes and capacities connected to the seed.
    fn collect(&mut self, system: &System, members: &[Vec<Member>], count: &[u32], seed: Seed) {
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
                let times = u64::from(count[route as usize]) * u64::from(system.weight[route as usize]);
                for one in &system.uses[system.use_range(route)] {
                    self.visit_resource(one.resource.0);
                    self.load[one.resource.0 as usize] += one.coefficient * times;
                }
            } else if let Some(&resource) = self.resources.get(next_resource) {
                next_resource += 1;
                for member in &members[resource as usize] {
                    self.visit_route(member.route);
                }
            } else {
                break;
            }
        }
        for &resource in &self.resources {
            self.left[resource as usize] = scaled(system.capacities[resource as usize]);
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
    fn fill(&mut self, system: &System, members: &[Vec<Member>], count: &[u32]) {
        self.solution.clear();
        self.levels.clear();
        self.by_cap.clear();
        for &resource in &self.resources {
            self.levels.push(Reverse((self.level(resource), resource)));
        }
        for &route in &self.routes {
            let cap = system.cap[route as usize];
            if cap != Rate::UNLIMITED {
                self.by_cap.push((cap.0 / u64::from(system.weight[route as usize]), route));
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
                for member in &members[resource as usize] {
                    self.freeze(system, count, member.route, level);
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
        let weight = u64::from(system.weight[route as usize]);
        let times = u64::from(count[route as usize]) * weight;
        for one in &system.uses[system.use_range(route)] {
            let resource = one.resource.0 as usize;
            let load = one.coefficient * times;
            self.load[resource] -= load;
            self.left[resource] = self.left[resource].saturating_sub(u128::from(load) * u128::from(level));
        }
        self.solution.push((route, Rate(level.saturating_mul(weight).max(1))));
    }
}
