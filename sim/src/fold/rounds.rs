//! Rounds of colour refinement over a workload, in a layout for sequential reading.
//!
//! A round visits every run, its dependencies and its routes. Everything that does not change between rounds is stored
//! once, in the order in which runs are coloured, so that a round reads memory sequentially. Its random accesses are to
//! the colours of recently coloured runs and to one signature per route. (Memory access dominates for workloads of
//! millions of runs.)

use super::order::{follows, in_order};
use super::signature::{Members, Signature};
use super::{Colours, Dense, Last, Stretch, stretches};
use crate::engine::Workload;
use crate::sharing::{ResourceId, RouteId};

/// Workload in the layout for refinement. Runs have places here: first those that can be coloured after their
/// dependencies, in that order, then the others.
pub(super) struct Rounds<'a> {
    workload: &'a Workload,
    /// Run at each place.
    order: Vec<u32>,
    /// End of each place's entries in `awaited`.
    awaited_ends: Vec<u32>,
    awaited: Vec<Awaited>,
    /// End of each place's entries in `passing`.
    passing_ends: Vec<u32>,
    passing: Vec<Passing>,
    /// End of each place's entries in `standing_in`; empty if there are no lines.
    line_ends: Vec<u32>,
    /// Lines of the operations at each place, one for all or one each.
    standing_in: Vec<u32>,
    lines: usize,
}

/// Dependency on a run.
#[derive(Clone, Copy)]
struct Awaited {
    place: u32,
    /// Number of the pair (start, step), doubled; odd if the awaited run already has its colour of the current round.
    how: u32,
}

/// Stretch of operations with the same passage.
#[derive(Clone, Copy)]
struct Passing {
    /// [`NO_ROUTE`] for none.
    route: u32,
    /// Number of the triple (start, length, latency).
    kind: u32,
}

const NO_ROUTE: u32 = u32::MAX;

/// Not numbered yet.
const NONE: u32 = u32::MAX;

impl<'a> Rounds<'a> {
    pub(super) fn of(workload: &'a Workload) -> Self {
        let mut order = in_order(workload);
        let first_of_others = order.len() as u32;
        let mut place_of = vec![NONE; workload.runs.len()];
        for (place, &run) in (0..).zip(&order) {
            place_of[run as usize] = place;
        }
        for run in 0..workload.runs.len() as u32 {
            if place_of[run as usize] == NONE {
                place_of[run as usize] = order.len() as u32;
                order.push(run);
            }
        }
        let (mut hows, mut kinds) = (Dense::default(), Dense::default());
        let (mut last_how, mut last_kind) = (Last::default(), Last::default());
        let mut rounds = Self {
            workload,
            awaited_ends: Vec::with_capacity(order.len()),
            awaited: Vec::with_capacity(workload.waits.len()),
            passing_ends: Vec::with_capacity(order.len()),
            passing: Vec::with_capacity(order.len()),
            line_ends: Vec::new(),
            standing_in: Vec::new(),
            lines: workload.line_count(),
            order,
        };
        if rounds.lines > 0 {
            for &run in &rounds.order {
                rounds.standing_in.extend_from_slice(workload.lines_of(run));
                rounds.line_ends.push(rounds.standing_in.len() as u32);
            }
        }
        for &run in &rounds.order {
            for &edge in workload.waits_of(run) {
                let place = place_of[edge.run as usize];
                let is_fresh = u32::from(follows(run, edge) && place < first_of_others);
                let how = (edge.start, edge.step);
                let how = last_how.or_find(how, || hows.colour(how));
                rounds.awaited.push(Awaited { place, how: 2 * how + is_fresh });
            }
            rounds.awaited_ends.push(rounds.awaited.len() as u32);
            for Stretch { start, len, passage } in stretches(workload, run) {
                let route = passage.route.map_or(NO_ROUTE, |route| route.0);
                let kind = (start, len, passage.latency);
                rounds.passing.push(Passing { route, kind: last_kind.or_find(kind, || kinds.colour(kind)) });
            }
            rounds.passing_ends.push(rounds.passing.len() as u32);
        }
        rounds
    }

    /// Converts colours by run to colours by place.
    pub(super) fn by_place(&self, colours: &Colours) -> Colours {
        let runs = self.order.iter().map(|&run| colours.runs[run as usize]).collect();
        Colours { runs, resources: colours.resources.clone(), ..*colours }
    }

    /// Converts colours by place to colours by run, numbered from 0 in order of first occurrence.
    pub(super) fn by_run(&self, colours: Colours) -> Colours {
        let mut runs = vec![0; self.order.len()];
        for (&run, &colour) in self.order.iter().zip(&colours.runs) {
            runs[run as usize] = colour;
        }
        let mut numbers = vec![NONE; colours.run_count as usize];
        let mut next = 0;
        for colour in &mut runs {
            let number = &mut numbers[*colour as usize];
            if *number == NONE {
                (*number, next) = (next, next + 1);
            }
            *colour = *number;
        }
        Colours { runs, ..colours }
    }

    /// Returns the colours by place after one round: every run and capacity is coloured by its neighbours. Runs are
    /// coloured in order, by the new colours of their dependencies.
    pub(super) fn next(&self, colours: &Colours) -> Colours {
        let traffic = self.traffic(colours);
        let ways = self.ways(colours);
        let lines = self.lines(colours);
        let mut dense = Dense::default();
        let mut fresh: Vec<u32> = Vec::with_capacity(self.order.len());
        let (mut first_awaited, mut first_passing) = (0, 0);
        let ends = self.awaited_ends.iter().zip(&self.passing_ends);
        for (place, (&old, (&awaited_end, &passing_end))) in colours.runs.iter().zip(ends).enumerate() {
            let mut awaited = Members::default();
            for one in &self.awaited[first_awaited..awaited_end as usize] {
                let known = if one.how % 2 == 1 { &fresh } else { &colours.runs };
                awaited.add(Signature::new().with(u64::from(known[one.place as usize]) << 32 | u64::from(one.how)));
            }
            let mut signature = Signature::new().with(u64::from(old)).with_members(awaited);
            for &line in self.lines_at(place) {
                signature = signature.with_members(lines.get(line as usize).copied().unwrap_or_default());
            }
            for one in &self.passing[first_passing..passing_end as usize] {
                signature = signature.with(u64::from(one.kind));
                if let Some(&way) = ways.get(one.route as usize) {
                    signature = signature.with_signature(way);
                }
            }
            fresh.push(dense.colour(signature));
            (first_awaited, first_passing) = (awaited_end as usize, passing_end as usize);
        }
        let run_count = dense.count();
        let mut dense = Dense::default();
        let resources = colours.resources.iter().zip(traffic);
        let resources = resources
            .map(|(&colour, traffic)| dense.colour(Signature::new().with(u64::from(colour)).with_members(traffic)));
        Colours { runs: fresh, resources: resources.collect(), run_count, resource_count: dense.count() }
    }

    /// Returns a signature of each route: its coefficients on capacities of each colour, cap and weight.
    fn ways(&self, colours: &Colours) -> Vec<Signature> {
        let system = &self.workload.system;
        let way = |route: RouteId| {
            let mut through = Members::default();
            for one in system.uses(route) {
                let colour = colours.resources[one.resource.0 as usize];
                through.add(Signature::new().with(u64::from(colour)).with(one.coefficient));
            }
            let (cap, weight) = system.cap_and_weight(route);
            Signature::new().with(cap.0).with(u64::from(weight)).with_members(through)
        };
        (0..system.route_count() as u32).map(|route| way(RouteId(route))).collect()
    }

    /// Returns the lines of the operations at a place.
    fn lines_at(&self, place: usize) -> &[u32] {
        let Some(&end) = self.line_ends.get(place) else { return &[] };
        let start = place.checked_sub(1).and_then(|before| self.line_ends.get(before)).copied().unwrap_or_default();
        self.standing_in.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns the members of each line: colours, with operation indexes for runs whose operations are in different
    /// lines.
    fn lines(&self, colours: &Colours) -> Vec<Members> {
        let mut lines = vec![Members::default(); self.lines];
        for (place, &colour) in colours.runs.iter().enumerate() {
            for (index, &line) in (0u32..).zip(self.lines_at(place)) {
                if let Some(members) = lines.get_mut(line as usize) {
                    members.add(Signature::new().with(u64::from(colour) << 32 | u64::from(index)));
                }
            }
        }
        lines
    }

    /// Returns for each capacity the colours of the runs that pass through it, by stretch of operations, and their
    /// coefficients.
    fn traffic(&self, colours: &Colours) -> Vec<Members> {
        let system = &self.workload.system;
        let mut on_route = vec![Members::default(); system.route_count()];
        let mut first = 0;
        for (&colour, &end) in colours.runs.iter().zip(&self.passing_ends) {
            for one in &self.passing[first..end as usize] {
                if let Some(flows) = on_route.get_mut(one.route as usize) {
                    flows.add(Signature::new().with(u64::from(colour) << 32 | u64::from(one.kind)));
                }
            }
            first = end as usize;
        }
        let mut traffic = vec![Members::default(); system.resource_count()];
        for (route, &flows) in (0..).map(RouteId).zip(&on_route) {
            for one in system.uses(route) {
                let ResourceId(resource) = one.resource;
                traffic[resource as usize].add_all(flows.times(one.coefficient));
            }
        }
        traffic
    }
}
