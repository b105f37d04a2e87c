//! Weighted max–min sharing of capacities, solved again only for the affected part of the system after each change.
//!
//! A *route* describes concurrent equal transfers: the capacities that they use, with a coefficient each (an averaged
//! multipath uses a fraction of a link, a reduction uses a memory three times), a rate limit (cap), and a weight.
//! Transfers on one route form a bundle and always have the same rate, so the variables of the problem are routes.
//!
//! For routes r with `count` transfers, weight w and coefficients a, the rates x maximise the smallest x/w, then the
//! second smallest, and so on, subject to Σ a·count·x ≤ C for every capacity and x ≤ cap for every route. The solution
//! is found by progressive filling: raise a common level until a capacity or a cap is reached, freeze the routes that
//! use it, and continue with the rest (Bertsekas & Gallager, *Data Networks*, §6.5.2). Levels are whole [`Rate`]s,
//! rounded down, and all capacities reached at the same level freeze together; so the result depends on neither order
//! nor ids, and a full capacity leaves less than one rate unit per transfer unused.
//!
//! A capacity that is not filled even if all its transfers have the rates that they would have alone (`demand`) never
//! limits them: filling ignores it, and it connects no routes.
//!
//! In large connected parts, filling starts at the change and expands until no other rate changes (`incremental`).

mod demand;
mod incremental;
mod members;
mod solver;
mod system;

use crate::quantity::Rate;
use demand::Demand;
use incremental::{Changes, SpreadHeuristic};
use members::Members;
use solver::{Seed, Solver};
pub use system::{ResourceId, RouteId, System, Use};

/// Coefficient of a transfer whose bytes each pass a capacity once. Divisible by every power of two up to 1,024 and by
/// 3, 5, 7 and 9, so that even splits over that many paths are exact.
pub const WHOLE: u64 = 1024 * 315;

/// Maximum number of routes of a connected part that is always solved as a whole, since the incremental solution is no
/// faster there.
const SMALL: usize = 64;

/// Active route whose rate or number of transfers changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateRevision {
    /// Route whose rate or number of transfers changed.
    pub route: RouteId,
    /// Rate of each of the route's transfers before the change.
    pub before: Rate,
    /// Rate of each of the route's transfers after the change.
    pub rate: Rate,
    /// Number of active transfers on the route.
    pub count: u32,
}

/// Active transfers and their rates.
///
/// [`Sharing::start`] and [`Sharing::stop`] only record changes. [`Sharing::settle`] then solves the connected parts of
/// the system that contain a changed route.
#[derive(Clone, Debug)]
pub struct Sharing {
    count: Vec<u32>,
    rate: Vec<Rate>,
    members: Members,
    demand: Demand,
    changed_routes: Vec<u32>,
    freed_resources: Vec<ResourceId>,
    is_changed: Vec<bool>,
    is_freed: Vec<bool>,
    solver: Solver,
    spread_heuristic: SpreadHeuristic,
    small: usize,
}

impl Sharing {
    /// Creates a state without active transfers.
    #[must_use]
    pub fn new(system: &System) -> Self {
        let (routes, resources) = (system.route_count(), system.resource_count());
        Self {
            count: vec![0; routes],
            rate: vec![Rate(0); routes],
            members: Members::new(system),
            demand: Demand::new(resources),
            changed_routes: Vec::new(),
            freed_resources: Vec::new(),
            is_changed: vec![false; routes],
            is_freed: vec![false; resources],
            solver: Solver::new(routes, resources),
            spread_heuristic: SpreadHeuristic::default(),
            small: SMALL,
        }
    }

    /// Returns the rate of each transfer on a route, as of the last [`Sharing::settle`].
    #[must_use]
    pub fn rate(&self, route: RouteId) -> Rate {
        self.rate[route.0 as usize]
    }

    /// Returns the number of active transfers on a route.
    #[must_use]
    pub fn count(&self, route: RouteId) -> u32 {
        self.count[route.0 as usize]
    }

    /// Adds a transfer on a route.
    pub fn start(&mut self, system: &System, route: RouteId) {
        let count = &mut self.count[route.0 as usize];
        *count += 1;
        if *count == 1 {
            self.members.join(system, route);
        }
        self.demand.add(system, route);
        self.mark_changed(route.0);
    }

    /// Removes a transfer from a route that has one.
    pub fn stop(&mut self, system: &System, route: RouteId) {
        let count = &mut self.count[route.0 as usize];
        *count -= 1;
        let is_last = *count == 0;
        let Self { demand, freed_resources, is_freed, .. } = self;
        for &resource in system.route_resources(route.0) {
            // Capacities that could not be filled limited no transfer, so no other rate depends on them.
            if demand.may_fill(system, resource) && !std::mem::replace(&mut is_freed[resource.0 as usize], true) {
                freed_resources.push(resource);
            }
        }
        demand.remove(system, route);
        if is_last {
            self.members.leave(system, route);
        } else {
            self.mark_changed(route.0);
        }
    }

    fn mark_changed(&mut self, route: u32) {
        if !std::mem::replace(&mut self.is_changed[route as usize], true) {
            self.changed_routes.push(route);
        }
    }

    /// Updates all rates. Calls `revised` with every active route whose rate or number of transfers changed.
    pub fn settle(&mut self, system: &System, mut revised: impl FnMut(RateRevision)) {
        let changed = std::mem::take(&mut self.changed_routes);
        let freed = std::mem::take(&mut self.freed_resources);
        self.solver.release(system, &self.demand, &freed);
        for &route in &changed {
            if self.count[route as usize] > 0 {
                self.publish_unshared(system, route, &mut revised);
            }
        }
        self.solver.next_epoch();
        let mut max_routes = self.small;
        let routes = changed.iter().map(|&route| Seed::Route(route));
        for seed in routes.chain(freed.iter().map(|resource| Seed::Resource(resource.0))) {
            if self.is_settled(seed) {
                continue;
            }
            let Self { solver, members, demand, count, is_changed, spread_heuristic: outlook, .. } = self;
            if !solver.collect(system, members, demand, count, seed, max_routes) {
                // The connected part is larger than a few routes, so it is solved as a whole.
                max_routes = usize::MAX;
                if let Some(visits) = outlook.max_visits() {
                    let is_open = |&route: &u32| is_changed[route as usize] && count[route as usize] > 0;
                    let changes = Changes { routes: changed.iter().copied().filter(is_open), freed: &freed };
                    if solver.spread(system, members, demand, count, changes, visits) {
                        outlook.succeeded();
                        self.publish(system, &mut revised);
                        break;
                    }
                    outlook.failed();
                }
                solver.next_epoch();
                solver.collect(system, members, demand, count, seed, max_routes);
                outlook.record_component_size(solver.routes.len());
            }
            solver.solve(system, &self.members, count);
            self.publish(system, &mut revised);
        }
        for &resource in &freed {
            self.is_freed[resource.0 as usize] = false;
        }
        for &route in &changed {
            self.is_changed[route as usize] = false;
        }
        self.changed_routes = cleared(changed);
        self.freed_resources = cleared(freed);
    }

    /// Sets the rate of a route's transfers to the rate that they have alone, if none of its capacities can be filled.
    fn publish_unshared(&mut self, system: &System, route: u32, revised: &mut impl FnMut(RateRevision)) {
        if system.route_resources(route).iter().any(|&used| self.demand.may_fill(system, used)) {
            return;
        }
        let r = route as usize;
        self.is_changed[r] = false;
        self.solver.level[r] = system.cap_level(route);
        let rate = system.limits(route).unshared;
        let before = std::mem::replace(&mut self.rate[r], rate);
        revised(RateRevision { route: RouteId(route), before, rate, count: self.count[r] });
    }

    /// Returns true if nothing has to be solved from a seed: it has no active transfers, its rate did not change, or it
    /// was solved in this call.
    fn is_settled(&self, seed: Seed) -> bool {
        match seed {
            Seed::Route(route) => {
                let r = route as usize;
                self.count[r] == 0 || !self.is_changed[r] || self.solver.seen(route)
            }
            Seed::Resource(resource) => {
                self.members.live(ResourceId(resource)) == 0 || self.solver.is_visited(resource)
            }
        }
    }

    /// Sets the rates of the solved routes from their levels, and calls `revised` for those whose rate or number of
    /// transfers changed.
    fn publish(&mut self, system: &System, revised: &mut impl FnMut(RateRevision)) {
        for &(route, level) in &self.solver.solution {
            let r = route as usize;
            let rate = Rate(level.saturating_mul(system.limits(route).weight.into()).max(1));
            let before = std::mem::replace(&mut self.rate[r], rate);
            let counted = std::mem::replace(&mut self.is_changed[r], false);
            if before != rate || counted {
                revised(RateRevision { route: RouteId(route), before, rate, count: self.count[r] });
            }
        }
    }
}

fn cleared<T>(mut list: Vec<T>) -> Vec<T> {
    list.clear();
    list
}
