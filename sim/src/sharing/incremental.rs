//! Incremental solution of max–min sharing, which starts at a change and extends to the routes that the change affects.
//!
//! In a large system, one transfer more or less changes the levels of few routes, although all routes are connected.
//! Routes are therefore first held at their levels: only changed routes are *free*. Filling is limited to the
//! capacities that free routes use, with each held route capped at its level. A held route is freed if filling stops it
//! below its level, or if it has no limit any more: neither its own cap nor a capacity that is full at its level.
//! Filling is then repeated until no more routes are freed.
//!
//! The result is identical to that of filling the whole connected part. Both solutions satisfy two conditions: no
//! capacity is reached below the highest level of its routes (as in [`Solver::fill`]: the remainder that all routes
//! below a level leave, divided among the rest, exceeds that level), and each route is at its cap or uses a capacity
//! that is full at its level. If there were two such solutions, take the lowest level at which a route differs, and the
//! solution in which it is lower there: the route uses a capacity that is full at that level, all levels below are
//! equal in both, so in the other solution this capacity is reached at that level too, below the route's level.

use super::demand::Demand;
use super::members::Members;
use super::solver::Solver;
use super::system::{ResourceId, System};

/// Maximum number of incremental attempts that are skipped after an attempt that reached too many routes.
const MAX_SKIPPED: u32 = 63;

/// Heuristic that decides between the incremental solution and the solution of the whole connected part. Both give the
/// same results.
#[derive(Clone, Debug, Default)]
pub(super) struct SpreadHeuristic {
    /// Number of connected routes when they were last solved as a whole.
    component_size: usize,
    /// Number of attempts still to skip.
    left_out: u32,
    /// Number of attempts skipped after the last failure.
    last: u32,
}

impl SpreadHeuristic {
    /// Returns the limit on the route visits of an incremental attempt; `None` to skip the attempt.
    pub(super) fn max_visits(&mut self) -> Option<usize> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        (self.component_size > 0).then_some(self.component_size / 2)
    }

    pub(super) fn succeeded(&mut self) {
        self.last = 0;
    }

    pub(super) fn failed(&mut self) {
        self.last = (2 * self.last + 1).min(MAX_SKIPPED);
        self.left_out = self.last;
    }

    /// Records that `size` connected routes were solved as a whole.
    pub(super) fn record_component_size(&mut self, size: usize) {
        self.component_size = size;
    }
}

/// Changes of one instant, to be solved.
pub(super) struct Changes<'a, R> {
    /// Active routes whose level may change, because their capacities can be filled.
    pub(super) routes: R,
    /// Capacities on which transfers have ended.
    pub(super) freed: &'a [ResourceId],
}

impl Solver {
    /// Solves the changes and their effects incrementally. Returns false, without a result, if this needs more than
    /// `max_visits` visits of routes.
    pub(super) fn spread(
        &mut self,
        system: &System,
        members: &mut Members,
        demand: &Demand,
        count: &[u32],
        changes: Changes<'_, impl Iterator<Item = u32>>,
        max_visits: usize,
    ) -> bool {
        self.next_epoch();
        self.routes.clear();
        self.resources.clear();
        for route in changes.routes {
            self.free(system, members, demand, count, route);
        }
        for &resource in changes.freed {
            let known = self.resources.len();
            self.visit_freed(system, members, demand, count, resource.0);
            self.visit_members_from(system, members, count, known);
        }
        let mut visits = 0;
        loop {
            visits += self.routes.len();
            if visits > max_visits {
                return false;
            }
            self.fill(system, members, count, |solver, route| match solver.is_free(route) {
                true => system.cap_level(route),
                false => solver.level[route as usize],
            });
            let solution = std::mem::take(&mut self.solution);
            let mut all_held = true;
            for &(route, level) in &solution {
                if !self.is_free(route) && !self.keeps_level(system, route, level) {
                    all_held = false;
                    self.free(system, members, demand, count, route);
                }
            }
            self.solution = solution;
            if all_held {
                break;
            }
        }
        let Self { solution, free_mark, epoch, level, .. } = self;
        solution.retain(|&(route, _)| free_mark[route as usize] == *epoch);
        for &(route, new_level) in &*solution {
            level[route as usize] = new_level;
        }
        true
    }

    /// Frees a route, so that its level may rise, and visits the members of its capacities.
    fn free(&mut self, system: &System, members: &mut Members, demand: &Demand, count: &[u32], route: u32) {
        self.free_mark[route as usize] = self.epoch;
        self.visit_route(route);
        let known = self.resources.len();
        for &used in system.route_resources(route) {
            if demand.may_fill(system, used) {
                self.visit_resource(used.0);
            }
        }
        self.visit_members_from(system, members, count, known);
    }

    /// Visits the members of the capacities that follow the first `known` ones.
    fn visit_members_from(&mut self, system: &System, members: &mut Members, count: &[u32], known: usize) {
        for index in known..self.resources.len() {
            self.visit_members(system, members, count, self.resources[index]);
        }
    }

    fn is_free(&self, route: u32) -> bool {
        self.free_mark[route as usize] == self.epoch
    }

    /// Returns true if a route keeps its level, given that filling found `level` for it.
    fn keeps_level(&self, system: &System, route: u32, level: u64) -> bool {
        let is_full = |used: &ResourceId| self.full_at[used.0 as usize] == level;
        self.level[route as usize] == level
            && (system.cap_level(route) == level || system.route_resources(route).iter().any(is_full))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{RateRevision, RouteId, Sharing, Use, WHOLE};
    use super::*;
    use crate::quantity::Rate;

    /// Route of a random system: capacities with coefficients, optional rate limit, and weight.
    type Plain = (Vec<(usize, u64)>, Option<u64>, u32);

    const GB: u64 = 1_000_000_000_000;

    fn systems() -> impl Strategy<Value = (Vec<u64>, Vec<Plain>)> {
        let capacity = prop::sample::select(vec![25 * GB, 50 * GB, 51 * GB + 7, 450 * GB]);
        prop::collection::vec(capacity, 3..16).prop_flat_map(|capacities| {
            let coefficient = prop::sample::select(vec![WHOLE, WHOLE, WHOLE / 2, WHOLE / 3, 3 * WHOLE]);
            let uses = prop::collection::btree_map(0..capacities.len(), coefficient, 1..=3);
            let cap = prop::option::weighted(0.2, prop::sample::select(vec![5 * GB, 12 * GB + 1, 20 * GB]));
            let route = (uses, cap, 1u32..3).prop_map(|(uses, cap, weight)| (uses.into_iter().collect(), cap, weight));
            (Just(capacities), prop::collection::vec(route, 4..40))
        })
    }

    fn build((capacities, routes): &(Vec<u64>, Vec<Plain>)) -> System {
        let mut system = System::new();
        let ids: Vec<ResourceId> = capacities.iter().map(|&capacity| system.add_resource(Rate(capacity))).collect();
        for (uses, cap, weight) in routes {
            let uses: Vec<Use> =
                uses.iter().map(|&(index, coefficient)| Use { resource: ids[index], coefficient }).collect();
            system.add_route(&uses, cap.map_or(Rate::UNLIMITED, Rate), *weight);
        }
        system
    }

    /// Returns the changed rates that [`Sharing::settle`] reports, by route.
    fn settled(system: &System, sharing: &mut Sharing) -> Vec<RateRevision> {
        let mut changed = Vec::new();
        sharing.settle(system, |revised| changed.push(revised));
        changed.sort_unstable_by_key(|revised| revised.route);
        changed
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// After any changes, one or several at an instant, the incremental solution finds the same levels as the
        /// solution of the whole, and reports the same routes.
        #[test]
        fn solving_outward_equals_solving_the_whole(
            plain in systems(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 1usize..4), 1..80),
        ) {
            let system = build(&plain);
            let mut full = Sharing { small: usize::MAX, ..Sharing::new(&system) };
            let mut outward = Sharing { small: 0, ..Sharing::new(&system) };
            let mut left = 0;
            for (route_index, starts, change_count) in changes {
                let route = RouteId(route_index.index(plain.1.len()) as u32);
                for sharing in [&mut full, &mut outward] {
                    match starts || sharing.count(route) == 0 {
                        true => sharing.start(&system, route),
                        false => sharing.stop(&system, route),
                    }
                }
                left = if left == 0 { change_count } else { left } - 1;
                if left == 0 {
                    outward.spread_heuristic = SpreadHeuristic { component_size: usize::MAX, ..SpreadHeuristic::default() };
                    prop_assert_eq!(settled(&system, &mut outward), settled(&system, &mut full));
                    for route in (0..plain.1.len() as u32).map(RouteId) {
                        let rates = [&outward, &full].map(|sharing| (sharing.count(route) > 0).then(|| sharing.rate(route)));
                        prop_assert_eq!(rates[0], rates[1]);
                    }
                }
            }
        }
    }

    /// A capacity that is full, becomes idle and is used again below its rate no longer holds a route at its old level.
    #[test]
    fn idle_capacities_are_not_full() {
        let mut system = System::new();
        let [link, memory] = [25, 50].map(|gb| system.add_resource(Rate(gb * GB)));
        let uses = |one: &[(ResourceId, u64)]| -> Vec<Use> {
            one.iter().map(|&(resource, coefficient)| Use { resource, coefficient }).collect()
        };
        let copy = system.add_route(&uses(&[(link, WHOLE), (memory, 4 * WHOLE)]), Rate::UNLIMITED, 1);
        let send = system.add_route(&uses(&[(link, WHOLE)]), Rate::UNLIMITED, 1);
        let mut sharing = Sharing { small: 0, ..Sharing::new(&system) };
        let mut settle = |starts: &[RouteId], stops: &[RouteId]| {
            starts.iter().for_each(|&route| sharing.start(&system, route));
            stops.iter().for_each(|&route| sharing.stop(&system, route));
            sharing.spread_heuristic = SpreadHeuristic { component_size: usize::MAX, ..SpreadHeuristic::default() };
            settled(&system, &mut sharing);
            sharing.rate(copy)
        };
        // Two copies fill the memory at the level that one copy later has on the link that it shares with sends.
        assert_eq!(settle(&[copy, copy], &[]), Rate(6_250_000_000_000));
        settle(&[], &[copy, copy]);
        assert_eq!(settle(&[copy, send, send, send], &[]), Rate(6_250_000_000_000));
        assert_eq!(settle(&[], &[send]), Rate(25 * GB / 3));
    }

    /// In a long chain of routes in which neighbours share links, an additional transfer at the end affects only a few
    /// routes, and only those are solved.
    #[test]
    fn only_nearby_routes_are_solved() {
        let mut system = System::new();
        let links: Vec<ResourceId> = (0..1001).map(|i| system.add_resource(Rate((50 + i % 3) * GB))).collect();
        for pair in links.windows(2) {
            system.add_route(
                &[pair[0], pair[1]].map(|resource| Use { resource, coefficient: WHOLE }),
                Rate::UNLIMITED,
                1,
            );
        }
        let mut sharing = Sharing::new(&system);
        (0..1000).for_each(|route| sharing.start(&system, RouteId(route)));
        settled(&system, &mut sharing);
        assert_eq!(sharing.spread_heuristic.component_size, 1000);
        sharing.start(&system, RouteId(0));
        assert!(settled(&system, &mut sharing).len() < 10);
        assert!(sharing.solver.routes.len() < 20 && sharing.spread_heuristic.left_out == 0);
    }
}
