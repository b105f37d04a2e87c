//! Active routes of each capacity.
//!
//! The members of a capacity occupy a section of one array, with room for all routes that use it, so that nothing is
//! allocated during a simulation. A route without active transfers stays listed until its capacity is next swept, since
//! it usually becomes active again before that. The number of active members is counted separately.

use super::system::{ResourceId, RouteId, System};

/// Section of one capacity in `Members::routes`: first index, number of listed routes, and number of active routes
/// among them.
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
    /// True, by use of a capacity, if the route of the use is listed there.
    is_listed: Vec<bool>,
}

impl Members {
    pub fn new(system: &System) -> Self {
        let mut groups = vec![Group::default(); system.resource_count()];
        for index in 0..system.use_count() {
            groups[system.used_at(index).0 as usize].listed += 1;
        }
        let mut first = 0;
        for group in &mut groups {
            let size = std::mem::take(&mut group.listed);
            group.first = first;
            first += size;
        }
        Self { groups, routes: vec![0; system.use_count()], is_listed: vec![false; system.use_count()] }
    }

    /// Records that a route becomes active.
    pub fn join(&mut self, system: &System, route: RouteId) {
        for (index, resource) in system.use_range(route.0).zip(system.route_resources(route.0)) {
            let group = &mut self.groups[resource.0 as usize];
            group.live += 1;
            if !std::mem::replace(&mut self.is_listed[index], true) {
                self.routes[(group.first + group.listed) as usize] = route.0;
                group.listed += 1;
            }
        }
    }

    /// Records that a route is no longer active.
    pub fn leave(&mut self, system: &System, route: RouteId) {
        for &resource in system.route_resources(route.0) {
            self.groups[resource.0 as usize].live -= 1;
        }
    }

    /// Returns the number of active routes on a capacity.
    pub fn live(&self, resource: ResourceId) -> u32 {
        self.groups[resource.0 as usize].live
    }

    /// Returns the routes listed on a capacity. After [`Self::sweep`], these are the active ones.
    pub fn routes(&self, resource: u32) -> &[u32] {
        let Group { first, listed, .. } = self.groups[resource as usize];
        &self.routes[first as usize..(first + listed) as usize]
    }

    /// Removes inactive routes from the list of a capacity. `count`: number of active transfers of each route.
    pub fn sweep(&mut self, system: &System, count: &[u32], resource: u32) {
        let Group { first, listed, live } = self.groups[resource as usize];
        if listed == live {
            return;
        }
        let mut end = first;
        for i in first..first + listed {
            let route = self.routes[i as usize];
            if count[route as usize] > 0 {
                self.routes[end as usize] = route;
                end += 1;
            } else {
                let uses = system.use_range(route).zip(system.route_resources(route));
                for (index, _) in uses.filter(|(_, used)| used.0 == resource) {
                    self.is_listed[index] = false;
                }
            }
        }
        self.groups[resource as usize].listed = end - first;
    }
}
