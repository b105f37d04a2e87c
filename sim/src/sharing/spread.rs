//! Solving outward from a change, as far as it reaches.
//!
//! In a large system one transfer more or less moves the levels of few routes, though all hang together. So routes are first held
//! at the levels that they have: only those that changed are *free*, and filling runs over the capacities that these use, with each
//! route that is held capped at its level. A held route is freed as well where filling stops it below its level, or where nothing
//! holds it any longer: neither its own cap nor a capacity that is full at its level, of those that were filled now or of others.
//! Then filling runs anew, until no more are freed.
//!
//! What is found are the levels of filling all that hangs together, to the last unit. Both fulfil: no capacity is reached below the
//! highest level of its routes (as in [`Solver::fill`]: what all below a level leave, divided among the rest, is more than that
//! level), and each route is at its cap or uses a capacity that is full at its level. Were there two such solutions, take the least
//! level at which one route differs, and the solution in which it is lower there: it uses a capacity that is full at that level, all
//! levels below are the same in both, so in the other solution this capacity is reached at that level too, below the route's.

use super::demand::Demand;
use super::members::Members;
use super::solver::Solver;
use super::system::{ResourceId, System};

/// Attempts that are left out at most after one that reached too far.
const MOST_LEFT_OUT: u32 = 63;

/// Whether solving outward is worth trying. What it finds is the same either way.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlook {
    /// Routes that hung together when they were last solved whole.
    together: usize,
    /// Attempts to leave out, and how many were after the last failure.
    left_out: u32,
    last: u32,
}

impl Outlook {
    /// Visits of routes that an attempt may take, if it is to be made.
    pub(super) fn most(&mut self) -> Option<usize> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        (self.together > 0).then_some(self.together / 2)
    }

    pub(super) fn succeeded(&mut self) {
        self.last = 0;
    }

    pub(super) fn failed(&mut self) {
        self.last = (2 * self.last + 1).min(MOST_LEFT_OUT);
        self.left_out = self.last;
    }

    /// So many routes were solved together.
    pub(super) fn note_whole(&mut self, together: usize) {
        self.together = together;
    }
}

/// What changed.
pub(super) struct Changes<'a, R> {
    /// Routes under way that may have another level now, as their capacities may be filled.
    pub(super) routes: R,
    /// Capacities that transfers gave back.
    pub(super) freed: &'a [ResourceId],
}

impl Solver {
    /// Solves what changed and what that reaches; `false` where it takes more than `most` visits of routes, and nothing is known
    /// then.
    pub(super) fn spread(
        &mut self,
        system: &System,
        (members, demand): (&mut Members, &Demand),
        count: &[u32],
        changes: Changes<'_, impl Iterator<Item = u32>>,
        most: usize,
    ) -> bool {
        self.next_epoch();
        self.routes.clear();
        self.resources.clear();
        for route in changes.routes {
            self.free(system, (members, demand), count, route);
        }
        for &resource in changes.freed {
            let known = self.resources.len();
            self.visit_freed(system, (members, demand), count, resource.0);
            self.visit_members_from(system, members, count, known);
        }
        let mut visits = 0;
        loop {
            visits += self.routes.len();
            if visits > most {
                return false;
            }
            self.fill(system, members, count, |solver, route| match solver.is_free(route) {
                true => system.cap_level(route),
                false => solver.level[route as usize],
            });
            let found = std::mem::take(&mut self.solution);
            let mut are_all_held = true;
            for &(route, level) in &found {
                if !self.is_free(route) && !self.is_held(system, route, level) {
                    are_all_held = false;
                    self.free(system, (members, demand), count, route);
                }
            }
            self.solution = found;
            if are_all_held {
                break;
            }
        }
        let Self { solution, free_mark, epoch, level, .. } = self;
        solution.retain(|&(route, _)| free_mark[route as usize] == *epoch);
        for &(route, found) in &*solution {
            level[route as usize] = found;
        }
        true
    }

    /// Lets a route take what level it finds, and looks at all that its capacities hold.
    fn free(&mut self, system: &System, (members, demand): (&mut Members, &Demand), count: &[u32], route: u32) {
        self.free_mark[route as usize] = self.epoch;
        self.visit_route(route);
        let known = self.resources.len();
        for &used in system.used_by(route) {
            if demand.may_fill(system, used) {
                self.visit_resource(used.0);
            }
        }
        self.visit_members_from(system, members, count, known);
    }

    /// Of the capacities that were visited after so many.
    fn visit_members_from(&mut self, system: &System, members: &mut Members, count: &[u32], known: usize) {
        for place in known..self.resources.len() {
            self.visit_members(system, members, count, self.resources[place]);
        }
    }

    fn is_free(&self, route: u32) -> bool {
        self.free_mark[route as usize] == self.epoch
    }

    /// Whether a route that was found at a level stays at its own.
    fn is_held(&self, system: &System, route: u32, level: u64) -> bool {
        let is_full = |used: &ResourceId| self.full_at[used.0 as usize] == level;
        self.level[route as usize] == level
            && (system.cap_level(route) == level || system.used_by(route).iter().any(is_full))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Revised, RouteId, Sharing, Use, WHOLE};
    use super::*;
    use crate::quantity::Rate;

    /// A route's capacities with their coefficients, its cap and its weight.
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
                uses.iter().map(|&(place, coefficient)| Use { resource: ids[place], coefficient }).collect();
            system.add_route(&uses, cap.map_or(Rate::UNLIMITED, Rate), *weight);
        }
        system
    }

    /// What settling says, by route.
    fn settled(system: &System, sharing: &mut Sharing) -> Vec<Revised> {
        let mut changed = Vec::new();
        sharing.settle(system, |revised| changed.push(revised));
        changed.sort_unstable_by_key(|revised| revised.route);
        changed
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// After each of any changes, one or several at an instant, solving outward has found what solving the whole finds, to the
        /// last unit, and said so of the same routes.
        #[test]
        fn outward_finds_what_the_whole_has(
            plain in systems(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 1usize..4), 1..80),
        ) {
            let system = build(&plain);
            let mut whole = Sharing { small: usize::MAX, ..Sharing::new(&system) };
            let mut outward = Sharing { small: 0, ..Sharing::new(&system) };
            let mut left = 0;
            for (which, starts, together) in changes {
                let route = RouteId(which.index(plain.1.len()) as u32);
                for sharing in [&mut whole, &mut outward] {
                    match starts || sharing.count(route) == 0 {
                        true => sharing.start(&system, route),
                        false => sharing.stop(&system, route),
                    }
                }
                left = if left == 0 { together } else { left } - 1;
                if left == 0 {
                    outward.outlook = Outlook { together: usize::MAX, ..Outlook::default() };
                    prop_assert_eq!(settled(&system, &mut outward), settled(&system, &mut whole));
                    for route in (0..plain.1.len() as u32).map(RouteId) {
                        let rates = [&outward, &whole].map(|sharing| (sharing.count(route) > 0).then(|| sharing.rate(route)));
                        prop_assert_eq!(rates[0], rates[1]);
                    }
                }
            }
        }
    }

    /// A long row of neighbours that share: one transfer more at its end reaches a few of them, and that is what is solved.
    #[test]
    fn what_is_far_away_is_left_alone() {
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
        assert_eq!(sharing.outlook.together, 1000);
        sharing.start(&system, RouteId(0));
        assert!(settled(&system, &mut sharing).len() < 10);
        assert!(sharing.solver.routes.len() < 20 && sharing.outlook.left_out == 0);
    }
}
