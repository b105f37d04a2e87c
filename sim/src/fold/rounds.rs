//! Rounds of colour refinement over a workload, in a layout for sequential reading.
//!
//! A round visits every run, its dependencies and its routes. Everything that does not change between rounds is stored
//! once, in the order in which runs are coloured, so that a round reads memory sequentially. Its random accesses are to
//! the colours of recently coloured runs and to one signature per route. (Memory access dominates for workloads of
//! millions of runs.)

use super::order::{follows, topological_order};
use super::signature::{Signature, SignatureSum};
use super::{Colours, Dense, LastFound};
use crate::engine::{PassageRange, Workload, passage_ranges};
use crate::sharing::{ResourceId, RouteId};

/// Workload in the layout for refinement. Runs are stored by position: first those that can be coloured after their
/// dependencies, in that order, then the others.
pub(super) struct Rounds<'a> {
    workload: &'a Workload,
    /// Number of the run at each position.
    order: Vec<u32>,
    /// Index in `awaited` after the last entry of each position.
    awaited_ends: Vec<u32>,
    awaited: Vec<DependencyEntry>,
    /// Index in `passing` after the last entry of each position.
    passing_ends: Vec<u32>,
    passing: Vec<PassageEntry>,
    /// Index in `run_lines` after the last entry of each position; empty if there are no lines.
    line_ends: Vec<u32>,
    /// Lines of the operations at each position: one for all of them, or one for each.
    run_lines: Vec<u32>,
    lines: usize,
}

/// Dependency of a run: position of the awaited run, and type of the edge.
#[derive(Clone, Copy)]
struct DependencyEntry {
    position: u32,
    /// Number of the pair (start, step), doubled; odd if the awaited run already has its colour of the current round.
    edge_kind: u32,
}

/// Range of a run's operations with the same passage.
#[derive(Clone, Copy)]
struct PassageEntry {
    /// Number of the route; [`NO_ROUTE`] for none.
    route: u32,
    /// Number that identifies the triple (start, length, latency).
    kind: u32,
}

const NO_ROUTE: u32 = u32::MAX;

/// Position or number that is not assigned yet.
const NONE: u32 = u32::MAX;

impl<'a> Rounds<'a> {
    pub(super) fn new(workload: &'a Workload) -> Self {
        let mut order = topological_order(workload);
        let first_unordered = order.len() as u32;
        let mut positions = vec![NONE; workload.runs.len()];
        for (position, &run) in (0..).zip(&order) {
            positions[run as usize] = position;
        }
        for run in 0..workload.runs.len() as u32 {
            if positions[run as usize] == NONE {
                positions[run as usize] = order.len() as u32;
                order.push(run);
            }
        }
        let (mut offsets, mut kinds) = (Dense::default(), Dense::default());
        let (mut last_offset, mut last_kind) = (LastFound::default(), LastFound::default());
        let mut rounds = Self {
            workload,
            awaited_ends: Vec::with_capacity(order.len()),
            awaited: Vec::with_capacity(workload.waits.len()),
            passing_ends: Vec::with_capacity(order.len()),
            passing: Vec::with_capacity(order.len()),
            line_ends: Vec::new(),
            run_lines: Vec::new(),
            lines: workload.line_count(),
            order,
        };
        if rounds.lines > 0 {
            for &run in &rounds.order {
                rounds.run_lines.extend_from_slice(workload.run_lines(run));
                rounds.line_ends.push(rounds.run_lines.len() as u32);
            }
        }
        for &run in &rounds.order {
            for &edge in workload.run_waits(run) {
                let position = positions[edge.run as usize];
                let is_fresh = u32::from(follows(run, edge) && position < first_unordered);
                let offset = (edge.start, edge.step);
                let offset = last_offset.or_find(offset, || offsets.colour(offset));
                rounds.awaited.push(DependencyEntry { position, edge_kind: 2 * offset + is_fresh });
            }
            rounds.awaited_ends.push(rounds.awaited.len() as u32);
            for PassageRange { start, len, passage } in passage_ranges(workload, run) {
                let route = passage.route.map_or(NO_ROUTE, |route| route.0);
                let kind = (start, len, passage.latency);
                rounds.passing.push(PassageEntry { route, kind: last_kind.or_find(kind, || kinds.colour(kind)) });
            }
            rounds.passing_ends.push(rounds.passing.len() as u32);
        }
        rounds
    }

    /// Converts colours by run to colours by position.
    pub(super) fn colours_by_position(&self, colours: &Colours) -> Colours {
        let runs = self.order.iter().map(|&run| colours.runs[run as usize]).collect();
        Colours { runs, resources: colours.resources.clone(), ..*colours }
    }

    /// Converts colours by position to colours by run, numbered from 0 in order of first occurrence.
    pub(super) fn colours_by_run(&self, colours: Colours) -> Colours {
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

    /// Returns the colours by position after one round, in which every run and capacity is coloured by its neighbours.
    /// Runs are coloured in order, from the new colours of their dependencies.
    pub(super) fn next(&self, colours: &Colours) -> Colours {
        let traffic = self.traffic(colours);
        let route_signatures = self.route_signatures(colours);
        let lines = self.lines(colours);
        let mut dense = Dense::default();
        let mut fresh: Vec<u32> = Vec::with_capacity(self.order.len());
        let (mut first_awaited, mut first_passing) = (0, 0);
        let ends = self.awaited_ends.iter().zip(&self.passing_ends);
        for (position, (&old, (&awaited_end, &passing_end))) in colours.runs.iter().zip(ends).enumerate() {
            let mut awaited = SignatureSum::default();
            for one in &self.awaited[first_awaited..awaited_end as usize] {
                let known = if one.edge_kind % 2 == 1 { &fresh } else { &colours.runs };
                awaited.add(
                    Signature::new().with(u64::from(known[one.position as usize]) << 32 | u64::from(one.edge_kind)),
                );
            }
            let mut signature = Signature::new().with(u64::from(old)).with_members(awaited);
            for &line in self.lines_at(position) {
                signature = signature.with_members(lines.get(line as usize).copied().unwrap_or_default());
            }
            for one in &self.passing[first_passing..passing_end as usize] {
                signature = signature.with(u64::from(one.kind));
                if let Some(&route_signature) = route_signatures.get(one.route as usize) {
                    signature = signature.with_signature(route_signature);
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

    /// Returns a signature of each route: its coefficients on capacities of each colour, its rate limit, its
    /// weight, and its rate without contention, which separates bandwidth from waiting.
    fn route_signatures(&self, colours: &Colours) -> Vec<Signature> {
        let system = &self.workload.system;
        let route_signature = |route: RouteId| {
            let mut capacity_signatures = SignatureSum::default();
            for one in system.uses(route) {
                let colour = colours.resources[one.resource.0 as usize];
                capacity_signatures.add(Signature::new().with(u64::from(colour)).with(one.coefficient));
            }
            let (cap, weight) = system.cap_and_weight(route);
            let solo = system.solo(route);
            Signature::new().with(cap.0).with(u64::from(weight)).with(solo.0).with_members(capacity_signatures)
        };
        (0..system.route_count() as u32).map(|route| route_signature(RouteId(route))).collect()
    }

    /// Returns the lines of the operations at a position.
    fn lines_at(&self, position: usize) -> &[u32] {
        let Some(&end) = self.line_ends.get(position) else { return &[] };
        let start = position.checked_sub(1).and_then(|before| self.line_ends.get(before)).copied().unwrap_or_default();
        self.run_lines.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns the members of each line: colours of runs, combined with the operation index for runs whose operations
    /// use different lines.
    fn lines(&self, colours: &Colours) -> Vec<SignatureSum> {
        let mut lines = vec![SignatureSum::default(); self.lines];
        for (position, &colour) in colours.runs.iter().enumerate() {
            for (index, &line) in (0u32..).zip(self.lines_at(position)) {
                if let Some(members) = lines.get_mut(line as usize) {
                    members.add(Signature::new().with(u64::from(colour) << 32 | u64::from(index)));
                }
            }
        }
        lines
    }

    /// Returns, for each capacity, the colours of the runs that pass through it, by range of operations, combined with
    /// their coefficients.
    fn traffic(&self, colours: &Colours) -> Vec<SignatureSum> {
        let system = &self.workload.system;
        let mut on_route = vec![SignatureSum::default(); system.route_count()];
        let mut first = 0;
        for (&colour, &end) in colours.runs.iter().zip(&self.passing_ends) {
            for one in &self.passing[first..end as usize] {
                if let Some(flows) = on_route.get_mut(one.route as usize) {
                    flows.add(Signature::new().with(u64::from(colour) << 32 | u64::from(one.kind)));
                }
            }
            first = end as usize;
        }
        let mut traffic = vec![SignatureSum::default(); system.resource_count()];
        for (route, &flows) in (0..).map(RouteId).zip(&on_route) {
            for one in system.uses(route) {
                let ResourceId(resource) = one.resource;
                traffic[resource as usize].add_all(flows.times(one.coefficient));
            }
        }
        traffic
    }
}
