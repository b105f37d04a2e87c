//! Static part of a simulation: capacities, and the routes over them.
//!
//! Systems are large (an all_to_all of 2,048 ranks has 4 million routes of ten capacities each) and regular. A route
//! therefore stores the capacities that it uses, four bytes each, and the number of its *kind*: coefficients, cap and
//! weight. A system has few kinds.

use rustc_hash::FxHashMap;

use super::WHOLE;
use crate::quantity::Rate;

/// Number of a capacity in its system; numbers are consecutive from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u32);

/// Number of a route in its system; numbers are consecutive from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u32);

/// Use of a capacity by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Use {
    /// Capacity that the route uses.
    pub resource: ResourceId,
    /// Number of times that each byte of a transfer passes through the capacity, in units of [`WHOLE`].
    pub coefficient: u64,
}

/// Rate limits and weight of routes, shared by many routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub cap: Rate,
    pub weight: u32,
    /// Rate of a transfer whose capacities no other route uses.
    pub unshared: Rate,
    /// Rate of a transfer without any other transfer. Differs from `unshared` if the route represents a class of
    /// routes.
    pub solo: Rate,
}

#[derive(Clone, Debug)]
struct Kind {
    limits: Limits,
    /// Range in `System::coefficients`, with one entry per capacity of a route of this kind.
    coefficients: std::ops::Range<u32>,
    /// Number of the next kind with the same hash value.
    next: Option<u32>,
}

/// Capacities, and the routes that use them.
#[derive(Clone, Debug, Default)]
pub struct System {
    capacities: Vec<Rate>,
    /// Capacities that routes use, in order of route.
    used: Vec<ResourceId>,
    /// Index in `used` of each route's first entry, followed by the total number.
    starts: Vec<u32>,
    route_kinds: Vec<u32>,
    kinds: Vec<Kind>,
    coefficients: Vec<u64>,
    /// Number of the first kind with each hash value.
    known: FxHashMap<u64, u32>,
    /// Coefficients of the route being added.
    adding: Vec<u64>,
    /// Last division of a capacity by a coefficient, and its result.
    last_division: (Rate, u64, u64),
}

impl System {
    /// Creates a system without capacities and routes.
    #[must_use]
    pub fn new() -> Self {
        Self { starts: vec![0], ..Self::default() }
    }

    /// Adds a capacity of the given rate; returns its id.
    pub fn add_resource(&mut self, capacity: Rate) -> ResourceId {
        self.capacities.push(capacity);
        ResourceId(self.capacities.len() as u32 - 1)
    }

    /// Adds a route of weight 1 or more. Uses of the same capacity must be merged; uses of unlimited capacities are
    /// omitted.
    pub fn add_route(&mut self, uses: &[Use], cap: Rate, weight: u32) -> RouteId {
        self.add(uses, cap, weight, None)
    }

    /// Adds a route that represents a class of equal routes and is charged with the load of all of them. `solo`: rate
    /// of a transfer of one of them without contention.
    pub fn add_folded_route(&mut self, uses: &[Use], cap: Rate, weight: u32, solo: Rate) -> RouteId {
        self.add(uses, cap, weight, Some(solo))
    }

    fn add(&mut self, uses: &[Use], cap: Rate, weight: u32, solo: Option<Rate>) -> RouteId {
        let weight = weight.max(1);
        let mut level = cap.0 / u64::from(weight);
        self.adding.clear();
        for &one in uses {
            let capacity = self.capacity(one.resource);
            if capacity == Rate::UNLIMITED || one.coefficient == 0 {
                continue;
            }
            self.used.push(one.resource);
            self.adding.push(one.coefficient);
            let share = one.coefficient.saturating_mul(u64::from(weight));
            // Only a capacity that lowers the level needs a division, and mostly the one of the route before.
            if u128::from(level) * u128::from(share) > scaled(capacity) {
                if (self.last_division.0, self.last_division.1) != (capacity, share) {
                    self.last_division = (capacity, share, divide(scaled(capacity), share));
                }
                level = self.last_division.2;
            }
        }
        self.starts.push(self.used.len() as u32);
        let unshared = Rate(level.saturating_mul(u64::from(weight)).max(1));
        let kind = self.kind(Limits { cap, weight, unshared, solo: solo.unwrap_or(unshared) });
        self.route_kinds.push(kind);
        RouteId(self.route_kinds.len() as u32 - 1)
    }

    /// Returns the kind with these limits and the coefficients in `adding`; creates it if new.
    fn kind(&mut self, limits: Limits) -> u32 {
        let is_same = |system: &Self, kind: u32| {
            let Kind { limits: known, coefficients, .. } = &system.kinds[kind as usize];
            *known == limits && system.coefficients_in(coefficients) == system.adding
        };
        // Consecutive routes are mostly equal.
        if let Some(&last) = self.route_kinds.last().filter(|&&last| is_same(self, last)) {
            return last;
        }
        let hash = hash(&limits, &self.adding);
        let first = self.known.get(&hash).copied();
        let mut at = first;
        while let Some(kind) = at {
            if is_same(self, kind) {
                return kind;
            }
            at = self.kinds[kind as usize].next;
        }
        let begin = self.coefficients.len() as u32;
        self.coefficients.extend_from_slice(&self.adding);
        self.kinds.push(Kind { limits, coefficients: begin..self.coefficients.len() as u32, next: first });
        let kind = self.kinds.len() as u32 - 1;
        self.known.insert(hash, kind);
        kind
    }

    /// Returns the number of routes.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.route_kinds.len()
    }

    /// Returns the number of capacities.
    #[must_use]
    pub fn resource_count(&self) -> usize {
        self.capacities.len()
    }

    /// Returns the rate of a capacity.
    #[must_use]
    pub fn capacity(&self, id: ResourceId) -> Rate {
        self.capacities[id.0 as usize]
    }

    /// Returns the capacities that a route uses, with their coefficients.
    pub fn uses(&self, route: RouteId) -> impl ExactSizeIterator<Item = Use> + Clone + '_ {
        let coefficients = self.coefficients_in(&self.route_kind(route.0).coefficients);
        let used = self.route_resources(route.0).iter().zip(coefficients);
        used.map(|(&resource, &coefficient)| Use { resource, coefficient })
    }

    /// Returns a route's cap and weight.
    #[must_use]
    pub fn cap_and_weight(&self, route: RouteId) -> (Rate, u32) {
        let Limits { cap, weight, .. } = self.limits(route.0);
        (*cap, *weight)
    }

    /// Returns the rate of a transfer without any other transfer in the system.
    #[must_use]
    pub fn solo(&self, route: RouteId) -> Rate {
        self.limits(route.0).solo
    }

    /// Returns the rate of a transfer whose capacities no other route uses.
    #[must_use]
    pub(crate) fn unshared(&self, route: RouteId) -> Rate {
        self.limits(route.0).unshared
    }

    pub(super) fn limits(&self, route: u32) -> &Limits {
        &self.route_kind(route).limits
    }

    /// Returns the maximum level (rate ÷ weight) of a route: that of its transfers alone, which accounts for its rate
    /// limit and for the capacities that are not filled. [`u64::MAX`] if it has no limit.
    pub(super) fn cap_level(&self, route: u32) -> u64 {
        let Limits { unshared, weight, .. } = *self.limits(route);
        if unshared == Rate::UNLIMITED { u64::MAX } else { unshared.0 / u64::from(weight) }
    }

    /// Returns the capacities that a route uses.
    pub(super) fn route_resources(&self, route: u32) -> &[ResourceId] {
        &self.used[self.use_range(route)]
    }

    /// Returns the total number of uses of all routes.
    pub(super) fn use_count(&self) -> usize {
        self.used.len()
    }

    /// Returns the capacity of a use, given the index of the use among those of all routes.
    pub(super) fn used_at(&self, index: usize) -> ResourceId {
        self.used[index]
    }

    /// Returns the indexes of a route's uses among those of all routes.
    pub(super) fn use_range(&self, route: u32) -> std::ops::Range<usize> {
        self.starts[route as usize] as usize..self.starts[route as usize + 1] as usize
    }

    /// Adds a route of another system with different uses. Its rate limit, its weight and the rate of a single transfer
    /// are unchanged.
    pub(crate) fn add_route_of(&mut self, other: &Self, route: RouteId, uses: &[Use]) -> RouteId {
        let (cap, weight) = other.cap_and_weight(route);
        self.add_folded_route(uses, cap, weight, other.solo(route))
    }

    /// Returns a copy in which routes use only the capacities that `retain` selects. The limit that the other
    /// capacities set for a single transfer still applies to a route. Ids do not change.
    pub(crate) fn with_only(&self, retain: impl Fn(ResourceId) -> bool) -> Self {
        let mut system = Self { capacities: self.capacities.clone(), ..Self::new() };
        let mut uses: Vec<Use> = Vec::new();
        for route in (0..self.route_count() as u32).map(RouteId) {
            uses.clear();
            uses.extend(self.uses(route).filter(|one| retain(one.resource)));
            let Limits { weight, unshared, solo, .. } = *self.limits(route.0);
            system.add(&uses, unshared, weight, Some(solo));
        }
        system
    }

    /// Returns false for each capacity that the same routes use with the same coefficients as another one which is not
    /// wider. Progressive filling reaches the other one no later, and all their routes freeze then, so such a capacity
    /// changes no rate.
    pub(crate) fn tightest_capacities(&self) -> Vec<bool> {
        let mut uses: Vec<Vec<(RouteId, u64)>> = vec![Vec::new(); self.resource_count()];
        for route in (0..self.route_count() as u32).map(RouteId) {
            for used in self.uses(route) {
                uses[used.resource.0 as usize].push((route, used.coefficient));
            }
        }
        let mut is_tightest = vec![true; uses.len()];
        let mut tightest: FxHashMap<&[(RouteId, u64)], u32> = FxHashMap::default();
        for (id, routes) in (0..).zip(&uses) {
            let known = tightest.entry(routes).or_insert(id);
            if *known == id {
                continue;
            }
            let is_wider = self.capacity(ResourceId(id)) >= self.capacity(ResourceId(*known));
            let wider = if is_wider { id } else { std::mem::replace(known, id) };
            is_tightest[wider as usize] = false;
        }
        is_tightest
    }

    /// Returns a capacity in the units of demand: rate × [`WHOLE`].
    pub(crate) fn scaled_capacity(&self, id: ResourceId) -> u128 {
        scaled(self.capacity(id))
    }

    fn route_kind(&self, route: u32) -> &Kind {
        &self.kinds[self.route_kinds[route as usize] as usize]
    }

    fn coefficients_in(&self, range: &std::ops::Range<u32>) -> &[u64] {
        &self.coefficients[range.start as usize..range.end as usize]
    }
}

fn hash(limits: &Limits, coefficients: &[u64]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    for word in [limits.cap.0, u64::from(limits.weight), limits.unshared.0, limits.solo.0] {
        hasher.write_u64(word);
    }
    for &coefficient in coefficients {
        hasher.write_u64(coefficient);
    }
    hasher.finish()
}

/// Capacity in units of rate × [`WHOLE`].
pub(super) fn scaled(capacity: Rate) -> u128 {
    u128::from(capacity.0) * u128::from(WHOLE)
}

/// Returns `amount / divisor`, rounded down, at least 1 and at most [`u64::MAX`].
pub(super) fn divide(amount: u128, divisor: u64) -> u64 {
    // A division of 64 bits needs a fraction of the time of one of 128 bits.
    match u64::try_from(amount) {
        Ok(amount) => amount / divisor.max(1),
        Err(_) => u64::try_from(amount / u128::from(divisor.max(1))).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of capacities that the same routes use with the same coefficients, the narrowest is tightest, and of equally wide
    /// ones the first.
    #[test]
    fn only_the_narrowest_of_equally_used_capacities_is_tightest() {
        let mut system = System::new();
        let ids = [50, 40, 40, 10, 60].map(|rate| system.add_resource(Rate(rate)));
        for halves in [[2, 2, 2, 1, 2], [4, 4, 4, 4, 0]] {
            let uses: Vec<Use> =
                ids.iter().zip(halves).map(|(&resource, coefficient)| Use { resource, coefficient }).collect();
            system.add_route(&uses, Rate::UNLIMITED, 1);
        }
        assert_eq!(system.tightest_capacities(), [false, true, false, true, true]);
    }
}
