//! Which routes are under way on each capacity.
//!
//! A capacity's members lie in a stretch of one array, as long as the routes that use it: nothing is allocated while a
//! simulation runs. A route that leaves stays listed until its capacity is next looked through, since it mostly comes
//! back before; how many members are live is counted apart.

use super::system::{ResourceId, RouteId, System};

/// The stretch of one capacity.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    first: u32,
    listed: u32,
    live: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Members {
    groups: Vec<Group>,
    routes: Vec<u32>,
    /// For each use of a capacity by a route, whether the route is listed there.
    is_listed: Vec<bool>,
}

impl Members {
    pub fn new(system: &System) -> Self {
        let mut groups = vec![Group::default(); system.resource_count()];
        for place in 0..system.use_count() {
            groups[system.used_at(place).0 as usize].listed += 1;
        }
        let mut first = 0;
        for group in &mut groups {
            let size = std::mem::take(&mut group.listed);
            group.first = first;
            first += size;
        }
        Self { groups, routes: vec![0; system.use_count()], is_listed: vec![false; system.use_count()] }
    }

    /// A route is under way.
    pub fn join(&mut self, system: &System, route: RouteId) {
        for (place, resource) in system.use_range(route.0).zip(system.used_by(route.0)) {
            let group = &mut self.groups[resource.0 as usize];
            group.live += 1;
            if !std::mem::replace(&mut self.is_listed[place], true) {
                self.routes[(group.first + group.listed) as usize] = route.0;
                group.listed += 1;
            }
        }
    }

    /// A route is no longer under way.
    pub fn leave(&mut self, system: &System, route: RouteId) {
        for &resource in system.used_by(route.0) {
            self.groups[resource.0 as usize].live -= 1;
        }
    }

    /// Routes under way on a capacity.
    pub fn live(&self, resource: ResourceId) -> u32 {
        self.groups[resource.0 as usize].live
    }

    /// The routes listed on a capacity: after [`Self::sweep`], those under way.
    pub fn of(&self, resource: u32) -> &[u32] {
        let Group { first, listed, .. } = self.groups[resource as usize];
        &self.routes[first as usize..(first + listed) as usize]
    }

    /// Takes routes that are not under way off a capacity's list; `count` says how many transfers each route has.
    pub fn sweep(&mut self, system: &System, count: &[u32], resource: u32) {
        let Group { first, listed, live } = self.groups[resource as usize];
        if listed == live {
            return;
        }
        let mut kept = first;
        for i in first..first + listed {
            let route = self.routes[i as usize];
            if count[route as usize] > 0 {
                self.routes[kept as usize] = route;
                kept += 1;
            } else {
                let uses = system.use_range(route).zip(system.used_by(route));
                for (place, _) in uses.filter(|(_, used)| used.0 == resource) {
                    self.is_listed[place] = false;
                }
            }
        }
        self.groups[resource as usize].listed = kept - first;
    }
}
