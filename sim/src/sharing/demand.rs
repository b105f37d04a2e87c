//! Maximum demand for each capacity: the sum of the rates that its active transfers would have alone.
//!
//! A capacity whose demand does not exceed it limits no transfer, and omitting it changes no rate. Proof: transfers
//! that are frozen have at most the rates that they would have alone. The remainder of the capacity is therefore at
//! least the sum of the rates that the other transfers would have alone, so progressive filling does not reach the
//! capacity before each of them has that rate.

use super::system::{ResourceId, RouteId, System, scaled};

#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Demand by capacity, scaled by [`super::WHOLE`].
    demand: Vec<u128>,
}

impl Demand {
    pub fn new(resources: usize) -> Self {
        Self { demand: vec![0; resources] }
    }

    /// Adds an active transfer.
    pub fn add(&mut self, system: &System, route: RouteId) {
        self.change(system, route, u128::wrapping_add);
    }

    /// Removes an active transfer.
    pub fn remove(&mut self, system: &System, route: RouteId) {
        self.change(system, route, u128::wrapping_sub);
    }

    fn change(&mut self, system: &System, route: RouteId, with: fn(u128, u128) -> u128) {
        let alone = u128::from(system.limits(route.0).unshared.0);
        for used in system.uses(route) {
            let demand = &mut self.demand[used.resource.0 as usize];
            *demand = with(*demand, alone * u128::from(used.coefficient));
        }
    }

    /// Returns true if a capacity can limit a transfer: its demand exceeds it.
    pub fn may_fill(&self, system: &System, resource: ResourceId) -> bool {
        self.demand[resource.0 as usize] > scaled(system.capacity(resource))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Use, WHOLE};
    use super::*;
    use crate::quantity::Rate;

    /// Description of a random route: its coefficient on each capacity in halves, its weight, and its number of active
    /// transfers.
    #[derive(Clone, Debug)]
    struct Plain {
        uses: Vec<(usize, u64)>,
        weight: u32,
        count: u32,
    }

    /// Computes rates by the definition of max–min sharing: the lowest level at which a capacity is full, then the same
    /// for the remaining routes. Returns the rate of a transfer of each route. `None` marks omitted capacities.
    fn by_definition(capacities: &[Option<u64>], routes: &[Plain]) -> Vec<f64> {
        let mut rates: Vec<Option<f64>> = routes.iter().map(|route| (route.count == 0).then_some(0.0)).collect();
        loop {
            let limit = |(index, capacity): (usize, &Option<u64>)| {
                let (mut left, mut rising) = ((*capacity)? as f64, 0.0);
                for (route, rate) in routes.iter().zip(&rates) {
                    let used_by_route: u64 = route.uses.iter().filter(|used| used.0 == index).map(|used| used.1).sum();
                    let used_by_route = used_by_route as f64 / 2.0 * f64::from(route.count);
                    match rate {
                        Some(rate) => left -= used_by_route * rate,
                        None => rising += used_by_route * f64::from(route.weight),
                    }
                }
                (rising > 0.0).then(|| (left / rising, index))
            };
            let Some((level, _)) = capacities.iter().enumerate().filter_map(limit).min_by(|a, b| a.0.total_cmp(&b.0))
            else {
                return rates.into_iter().map(|rate| rate.unwrap_or(f64::INFINITY)).collect();
            };
            let full: Vec<usize> = capacities
                .iter()
                .enumerate()
                .filter_map(limit)
                .filter(|candidate| candidate.0 <= level * (1.0 + 1e-12))
                .map(|candidate| candidate.1)
                .collect();
            for (route, rate) in routes.iter().zip(&mut rates) {
                if rate.is_none() && route.uses.iter().any(|used| full.contains(&used.0)) {
                    *rate = Some(level * f64::from(route.weight));
                }
            }
        }
    }

    fn systems() -> impl Strategy<Value = (Vec<u64>, Vec<Plain>)> {
        prop::collection::vec(prop::sample::select(vec![1u64, 2, 3, 5, 8, 13, 40]), 1..8).prop_flat_map(|capacities| {
            let capacities: Vec<u64> = capacities.into_iter().map(|c| c * 60_000_000_000_000).collect();
            let n = capacities.len();
            let uses = prop::collection::btree_map(0..n, 1u64..5, 1..=n.min(4));
            let route = (uses, 1u32..4, 0u32..4).prop_map(|(uses, weight, count)| Plain {
                uses: uses.into_iter().collect(),
                weight,
                count,
            });
            (Just(capacities), prop::collection::vec(route, 1..12))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Omitting capacities that cannot be filled changes no rate, regardless of earlier transfers.
        #[test]
        fn capacities_that_cannot_fill_change_no_rate((capacities, routes) in systems(), removed in 0u32..5) {
            let mut system = System::new();
            let ids: Vec<ResourceId> = capacities.iter().map(|&c| system.add_resource(Rate(c))).collect();
            let added: Vec<RouteId> = routes.iter().map(|route| {
                let uses: Vec<Use> = route.uses.iter()
                    .map(|&(index, halves)| Use { resource: ids[index], coefficient: halves * WHOLE / 2 }).collect();
                system.add_route(&uses, Rate::UNLIMITED, route.weight)
            }).collect();
            let mut demand = Demand::new(capacities.len());
            for (route, id) in routes.iter().zip(&added) {
                (0..route.count + removed).for_each(|_| demand.add(&system, *id));
            }
            for id in &added {
                (0..removed).for_each(|_| demand.remove(&system, *id));
            }
            let all: Vec<Option<u64>> = capacities.iter().copied().map(Some).collect();
            let some: Vec<Option<u64>> = ids.iter().zip(&capacities)
                .map(|(&id, &capacity)| demand.may_fill(&system, id).then_some(capacity)).collect();
            // No transfer is faster than it would be alone; an additional capacity for each route expresses this limit.
            let alone = |route: &Plain| {
                let level = |&(index, halves): &(usize, u64)| 2 * capacities[index] / halves;
                route.uses.iter().map(level).min().unwrap_or(0)
            };
            let solo = routes.iter().map(|route| Some(alone(route) * u64::from(route.count)));
            let some: Vec<Option<u64>> = some.into_iter().chain(solo).collect();
            let capped: Vec<Plain> = routes.iter().zip(capacities.len()..).map(|(route, solo)| {
                let uses = route.uses.iter().copied().chain([(solo, 2)]).collect();
                Plain { uses, ..route.clone() }
            }).collect();
            let (expected, result) = (by_definition(&all, &routes), by_definition(&some, &capped));
            for ((_, expected), result) in routes.iter().zip(expected).zip(result).filter(|one| one.0.0.count > 0) {
                prop_assert!((result - expected).abs() <= 1e-9 * expected, "{result} and {expected}");
            }
        }
    }

    /// Two transfers that would each use all of a link alone may fill it, and one of them may not. A wider link that
    /// both use is never filled.
    #[test]
    fn one_transfer_alone_cannot_fill_its_bottleneck() {
        let mut system = System::new();
        let (narrow, wide) = (system.add_resource(Rate(100)), system.add_resource(Rate(200)));
        let uses = [narrow, wide].map(|resource| Use { resource, coefficient: WHOLE });
        let route = system.add_route(&uses, Rate::UNLIMITED, 1);
        let mut demand = Demand::new(2);
        demand.add(&system, route);
        assert!(!demand.may_fill(&system, narrow));
        demand.add(&system, route);
        assert!(demand.may_fill(&system, narrow) && !demand.may_fill(&system, wide));
    }
}
