//! What does not change while a simulation runs: capacities, and the routes over them.
//!
//! Systems are large (an all_to_all of 2,048 ranks has 4 million routes of ten capacities each) and regular, so a route
//! stores the capacities it uses, four bytes each, and the number of its *kind*: how much it takes of each, its cap, its
//! weight. A system has few kinds.

use rustc_hash::FxHashMap;

use super::WHOLE;
use crate::quantity::Rate;

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

/// What many routes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub cap: Rate,
    pub weight: u32,
    /// Rate of a transfer whose capacities no other route uses.
    pub unshared: Rate,
    /// Rate of a transfer that is alone in the world; differs from `unshared` where a route stands for many.
    pub solo: Rate,
}

#[derive(Clone, Debug)]
struct Kind {
    limits: Limits,
    /// Where its coefficients are; as many as its routes have capacities.
    coefficients: std::ops::Range<u32>,
    /// The next kind of the same hash.
    next: Option<u32>,
}

/// Capacities and routes.
#[derive(Clone, Debug, Default)]
pub struct System {
    capacities: Vec<Rate>,
    /// The capacities that routes use, route by route.
    used: Vec<ResourceId>,
    /// Where each route's begin, and their number at the end.
    starts: Vec<u32>,
    kind_of: Vec<u32>,
    kinds: Vec<Kind>,
    coefficients: Vec<u64>,
    /// First kind of each hash.
    known: FxHashMap<u64, u32>,
    /// Coefficients of the route being added.
    adding: Vec<u64>,
}

impl System {
    /// No capacities, no routes.
    #[must_use]
    pub fn new() -> Self {
        Self { starts: vec![0], ..Self::default() }
    }

    /// Adds a capacity.
    pub fn add_resource(&mut self, capacity: Rate) -> ResourceId {
        self.capacities.push(capacity);
        ResourceId(self.capacities.len() as u32 - 1)
    }

    /// Adds a route of weight 1 or more. Uses of one capacity must be merged into one; uses of unlimited capacities are
    /// left out.
    pub fn add_route(&mut self, uses: &[Use], cap: Rate, weight: u32) -> RouteId {
        self.add(uses, cap, weight, None)
    }

    /// Adds a route that stands for a class of equal ones, charged with all of them; `solo` is the rate that one of
    /// them has alone.
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
            level = level.min(divide(scaled(capacity), one.coefficient.saturating_mul(u64::from(weight))));
        }
        self.starts.push(self.used.len() as u32);
        let unshared = Rate(level.saturating_mul(u64::from(weight)).max(1));
        let kind = self.kind(Limits { cap, weight, unshared, solo: solo.unwrap_or(unshared) });
        self.kind_of.push(kind);
        RouteId(self.kind_of.len() as u32 - 1)
    }

    /// The kind with these limits and the coefficients in `adding`, made if new.
    fn kind(&mut self, limits: Limits) -> u32 {
        let is_same = |system: &Self, kind: u32| {
            let Kind { limits: known, coefficients, .. } = &system.kinds[kind as usize];
            *known == limits && system.coefficients_in(coefficients) == system.adding
        };
        // Neighbours are mostly alike.
        if let Some(&last) = self.kind_of.last().filter(|&&last| is_same(self, last)) {
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

    /// Number of routes.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.kind_of.len()
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
    pub fn uses(&self, route: RouteId) -> impl ExactSizeIterator<Item = Use> + Clone + '_ {
        let coefficients = self.coefficients_in(&self.kind_of_route(route.0).coefficients);
        let used = self.used_by(route.0).iter().zip(coefficients);
        used.map(|(&resource, &coefficient)| Use { resource, coefficient })
    }

    /// A route's cap and weight.
    #[must_use]
    pub fn cap_and_weight(&self, route: RouteId) -> (Rate, u32) {
        let Limits { cap, weight, .. } = self.limits(route.0);
        (*cap, *weight)
    }

    /// The rate of a transfer that is alone in the world.
    #[must_use]
    pub fn solo(&self, route: RouteId) -> Rate {
        self.limits(route.0).solo
    }

    /// The rate of a transfer whose capacities no other route uses.
    #[must_use]
    pub(crate) fn unshared(&self, route: RouteId) -> Rate {
        self.limits(route.0).unshared
    }

    pub(super) fn limits(&self, route: u32) -> &Limits {
        &self.kind_of_route(route).limits
    }

    /// The level above which a route does not rise: what its transfers would have alone holds for its cap, and for capacities that
    /// are not filled. [`u64::MAX`]: none.
    pub(super) fn cap_level(&self, route: u32) -> u64 {
        let Limits { unshared, weight, .. } = *self.limits(route);
        if unshared == Rate::UNLIMITED { u64::MAX } else { unshared.0 / u64::from(weight) }
    }

    /// The capacities that a route uses.
    pub(super) fn used_by(&self, route: u32) -> &[ResourceId] {
        &self.used[self.use_range(route)]
    }

    /// Uses of all routes together.
    pub(super) fn use_count(&self) -> usize {
        self.used.len()
    }

    /// The capacity of a use, by its place among those of all routes.
    pub(super) fn used_at(&self, place: usize) -> ResourceId {
        self.used[place]
    }

    /// Places of a route's uses among those of all routes.
    pub(super) fn use_range(&self, route: u32) -> std::ops::Range<usize> {
        self.starts[route as usize] as usize..self.starts[route as usize + 1] as usize
    }

    fn kind_of_route(&self, route: u32) -> &Kind {
        &self.kinds[self.kind_of[route as usize] as usize]
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

/// A capacity in units of rate × [`WHOLE`].
pub(super) fn scaled(capacity: Rate) -> u128 {
    u128::from(capacity.0) * u128::from(WHOLE)
}

/// `amount / by`, rounded down.
pub(super) fn divide(amount: u128, by: u64) -> u64 {
    u64::try_from(amount / u128::from(by.max(1))).unwrap_or(u64::MAX)
}
