//! Folding: simulates one representative for each class of operations that must behave the same, with times equal to
//! the picosecond.
//!
//! Runs and capacities are coloured, first by their own properties (length, work, pace; capacity), then repeatedly by
//! the colours of their neighbours, until the colours no longer change. The neighbours of a run are its dependencies,
//! the capacities on its routes, in order, and the other runs in its lines; those of a capacity are the runs that pass
//! through it, with their coefficients. Runs of one colour then wait for equal runs, pass through equal capacities and
//! compete with equal traffic there: by induction over the events, operation i of each of them starts, flows and ends
//! at the same instant, at the same rate. So one run of each colour is simulated, and a capacity of the folded system
//! is charged with the load of the whole class on one capacity of its colour. All integers in the computation of rates
//! (remainders, demands) equal those of the whole system, so the rates are identical.
//!
//! The dependencies of a run are coloured before the run itself, so one round propagates a difference along a whole
//! chain. Only among runs that wait for each other in a cycle does a difference advance by one neighbour per round.
//!
//! This proves symmetry on the actual workload, including failures, slow links and late ranks; no declaration by a
//! generator is needed. (Colour refinement: Berkholz, Bonsma & Grohe, *Tight lower and upper bounds for the complexity
//! of canonical colour refinement*, 2017; equitable partitions of fluid models follow the same argument.) Colours are
//! 128-bit hashes: the probability that two of 10⁷ different items share one is below 10⁻²⁰.

mod order;
mod rounds;
mod signature;

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::engine::{
    Edge, LinePosition, Pace, PassageRange, PerOp, RouteLatency, Span, WorkRun, Workload, passage_ranges,
};
use crate::load::LoadOverTime;
use crate::sharing::{ResourceId, RouteId, Use};
use crate::spans::Spans;
use rounds::Rounds;
pub(crate) use signature::Signature;

/// Maximum number of refinement rounds for a workload with a large number of runs. A symmetric schedule is stable after
/// a few rounds. If runs wait for each other in a cycle, a local difference advances by one neighbour per round.
const MAX_ROUNDS: usize = 48;

/// Minimum number of run colourings (runs × rounds) before folding is abandoned. A small workload may need many rounds
/// around a long ring, which is still faster than simulating all its operations.
const MIN_RUN_COLOURINGS: usize = 1 << 21;

/// Folded workload, and the mapping of its results to the whole workload.
#[derive(Debug)]
pub struct FoldedWorkload {
    /// Folded workload, with one run and one capacity per class.
    pub workload: Workload,
    /// Class of each run of the whole workload: a run of the folded workload.
    run_classes: Vec<u32>,
    /// Class of each capacity of the whole workload: a capacity of the folded workload.
    resource_classes: Vec<u32>,
    /// Number of operations of the whole workload.
    operations: u64,
}

/// Colours of a workload's runs and capacities.
#[derive(Clone, Debug)]
pub(crate) struct Colours {
    runs: Vec<u32>,
    resources: Vec<u32>,
    run_count: u32,
    resource_count: u32,
}

/// Folds a workload; `None` if that would not halve the number of runs.
#[must_use]
pub fn fold(workload: &Workload) -> Option<FoldedWorkload> {
    colours(workload).map(|colours| quotient(workload, &colours))
}

/// Folds a workload as [`fold`] does, and also returns the classes. Uses the classes of another workload (`known`) if
/// one round verifies that they are valid for this workload.
pub(crate) fn fold_with_classes(workload: &Workload, known: Option<&Colours>) -> Option<(FoldedWorkload, Colours)> {
    let colours = match known.and_then(|known| verify_classes(workload, known)) {
        Some(colours) => colours,
        None => colours(workload)?,
    };
    Some((quotient(workload, &colours), colours))
}

/// Returns the known classes of another workload if the runs and capacities of each class are equivalent in this one;
/// otherwise `None`.
fn verify_classes(workload: &Workload, known: &Colours) -> Option<Colours> {
    let same_size =
        known.runs.len() == workload.runs.len() && known.resources.len() == workload.system.resource_count();
    let first = if same_size { first_colours(workload) } else { return None };
    let both = |known: &[u32], first: &[u32]| {
        let mut dense = Dense::default();
        let pairs = known.iter().zip(first);
        let colours: Vec<u32> = pairs
            .map(|(&known, &first)| dense.colour(Signature::new().with(known.into()).with(first.into())))
            .collect();
        (colours, dense.count())
    };
    let (runs, run_count) = both(&known.runs, &first.runs);
    let (resources, resource_count) = both(&known.resources, &first.resources);
    let joint = Colours { runs, resources, run_count, resource_count };
    let is_same =
        |colours: &Colours| (colours.run_count, colours.resource_count) == (known.run_count, known.resource_count);
    let holds = || {
        let rounds = Rounds::new(workload);
        is_same(&rounds.next(&rounds.colours_by_position(&joint)))
    };
    (is_same(&joint) && holds()).then_some(joint)
}

/// Returns the classes of a workload; `None` if that would not halve the number of runs.
fn colours(workload: &Workload) -> Option<Colours> {
    let max_run_count = workload.runs.len() as u32 / 2;
    let first = first_colours(workload);
    if first.run_count > max_run_count {
        return None;
    }
    let rounds = Rounds::new(workload);
    let mut colours = rounds.colours_by_position(&first);
    for _ in 0..MAX_ROUNDS.max(MIN_RUN_COLOURINGS / workload.runs.len().max(1)) {
        let next = rounds.next(&colours);
        let stable = (next.run_count, next.resource_count) == (colours.run_count, colours.resource_count);
        if stable {
            return Some(rounds.colours_by_run(colours));
        }
        if next.run_count > max_run_count {
            return None;
        }
        colours = next;
    }
    None
}

impl FoldedWorkload {
    /// Returns the fold factor: operations of the whole workload ÷ operations of the folded one.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.operations as f64 / self.workload.operation_count().max(1) as f64
    }

    /// Expands values of the folded workload's runs to every run of the whole workload.
    pub fn unfold_runs<T: Copy>(&self, folded: &[T]) -> Vec<T> {
        self.run_classes.iter().map(|&class| folded[class as usize]).collect()
    }

    /// Returns the class of each capacity of the whole workload: its capacity in the folded one. Classes are numbered
    /// in the order of their first members.
    pub(crate) fn resource_classes(&self) -> &[u32] {
        &self.resource_classes
    }

    /// Returns the number of operations of the whole workload.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Expands the load of the folded workload's capacities to every capacity of the whole one.
    #[must_use]
    pub fn unfold_load(&self, folded: LoadOverTime) -> LoadOverTime {
        let resources: Vec<ResourceId> = self.resource_classes.iter().copied().map(ResourceId).collect();
        folded.expand(&resources)
    }

    /// Expands the spans of the folded workload to those of the whole one, without background runs. `runs`: number of
    /// runs of the whole workload, background runs excluded.
    #[must_use]
    pub fn unfold_spans(&self, folded: Vec<Span>, runs: usize) -> Spans {
        Spans::new(&self.workload, folded, self.run_classes.iter().copied().take(runs).collect())
    }
}

fn first_colours(workload: &Workload) -> Colours {
    let mut dense = Dense::default();
    let mut last = LastFound::default();
    let runs = (0..workload.runs.len() as u32).map(|run| {
        let WorkRun { len, work, pace, .. } = workload.runs[run as usize];
        let is_background = run >= workload.background_from;
        let position = workload.line_position(run).map(|line_position| line_position.position);
        last.or_find((len, work, pace, is_background, position), || {
            let mut signature = Signature::new().with(u64::from(is_background)).with(u64::from(len));
            signature = signature.with(position.map_or(u64::MAX, u64::from));
            let values = |per_op: PerOp| match per_op {
                PerOp::Same(_) => 1.min(len),
                PerOp::Each(_) => len,
            };
            signature = signature.with(u64::from(values(pace)));
            for i in 0..values(pace) {
                let Pace { software, not_before, delay: late, spacing } = workload.pace(run, i);
                signature = signature.with(software.0).with(not_before.0).with(late.0).with(spacing.0);
            }
            for i in 0..values(work) {
                let work = workload.work(run, i).0;
                signature = signature.with(work as u64).with((work >> 64) as u64);
            }
            dense.colour(signature)
        })
    });
    let runs: Vec<u32> = runs.collect();
    let run_count = dense.count();
    let mut dense = Dense::default();
    let capacities = (0..workload.system.resource_count() as u32).map(|r| workload.system.capacity(ResourceId(r)));
    let resources: Vec<u32> = capacities.map(|capacity| dense.colour(Signature::new().with(capacity.0))).collect();
    Colours { runs, resources, run_count, resource_count: dense.count() }
}

/// Calls `visit` for every range of a run's operations that have the same route and latency. Arguments: run, first
/// operation of the range, route. Ranges without a route are skipped.
fn for_each_passage(workload: &Workload, mut visit: impl FnMut(u32, u64, RouteId)) {
    for run in 0..workload.runs.len() as u32 {
        for PassageRange { start, passage, .. } in passage_ranges(workload, run) {
            if let Some(route) = passage.route {
                visit(run, u64::from(start), route);
            }
        }
    }
}

/// Returns the folded workload of a stable colouring.
fn quotient(workload: &Workload, colours: &Colours) -> FoldedWorkload {
    let representatives = firsts(&colours.runs, colours.run_count);
    let first_resources = firsts(&colours.resources, colours.resource_count);
    // Load that one operation of each class puts on the first capacity of each colour.
    let mut charges: FxHashMap<(u32, u64, u32), u64> = FxHashMap::default();
    for_each_passage(workload, |run, op, route| {
        for one in workload.system.uses(route) {
            let colour = colours.resources[one.resource.0 as usize];
            if first_resources[colour as usize] == one.resource.0 {
                *charges.entry((colours.runs[run as usize], op, colour)).or_default() += one.coefficient;
            }
        }
    });
    let mut folded = Workload { startup: workload.startup, ..Workload::new() };
    // Colours are numbered in order of first occurrence, so those of the background come last.
    folded.background_from = representatives.iter().filter(|&&run| run < workload.background_from).count() as u32;
    for &first_resource in &first_resources {
        folded.system.add_resource(workload.system.capacity(ResourceId(first_resource)));
    }
    folded.works.clone_from(&workload.works);
    folded.paces.clone_from(&workload.paces);
    for (class, &representative) in (0u32..).zip(&representatives) {
        let run = workload.runs[representative as usize];
        let first = folded.passages.len() as u32;
        for PassageRange { start, len, passage } in passage_ranges(workload, representative) {
            let charge = |colour: u32| charges.get(&(class, u64::from(start), colour)).copied().unwrap_or(0);
            let route = passage.route.map(|route| fold_route(workload, &mut folded, route, &colours.resources, charge));
            let times = if matches!(run.passage, PerOp::Same(_)) { 1 } else { len };
            for _ in 0..times {
                folded.passages.push(RouteLatency { route, ..passage });
            }
        }
        let passage = match run.passage {
            PerOp::Same(_) => PerOp::Same(first),
            PerOp::Each(_) => PerOp::Each(first),
        };
        let mut waits: Vec<Edge> = workload
            .run_waits(representative)
            .iter()
            .map(|edge| Edge { run: colours.runs[edge.run as usize], ..*edge })
            .collect();
        waits.sort_unstable_by_key(|edge| (edge.run, edge.start, edge.step));
        waits.dedup();
        folded.add_run(WorkRun { passage, ..run }, &waits);
    }
    fold_lines(workload, &representatives, &colours.runs, &mut folded);
    FoldedWorkload {
        workload: folded,
        run_classes: colours.runs.clone(),
        resource_classes: colours.resources.clone(),
        operations: workload.operation_count(),
    }
}

/// Sets the lines of each class to those of its representative. All lines that contain an operation of a class are
/// equivalent, so the smallest (class, index) on a line identifies it.
fn fold_lines(workload: &Workload, representatives: &[u32], runs: &[u32], folded: &mut Workload) {
    let mut names: FxHashMap<u32, (u32, u32)> = FxHashMap::default();
    for (run, &class) in (0u32..).zip(runs).take(workload.line_positions.len()) {
        for (index, &line) in (0u32..).zip(workload.run_lines(run)) {
            let known = names.entry(line).or_insert((class, index));
            *known = (class, index).min(*known);
        }
    }
    let mut lines = Dense::default();
    for (class, &representative) in (0u32..).zip(representatives) {
        let Some(line_position) = workload.line_position(representative) else { continue };
        let first = folded.lines.len() as u32;
        for line in workload.run_lines(representative) {
            folded.lines.push(names.get(line).map_or(0, |&name| lines.colour(name)));
        }
        let line = match line_position.line {
            PerOp::Same(_) => PerOp::Same(first),
            PerOp::Each(_) => PerOp::Each(first),
        };
        folded.set_line_position(class, LinePosition { line, ..line_position });
    }
}

/// Adds the route of a class, with one use for each colour on the representative's route, charged with the load of the
/// whole class.
fn fold_route(
    workload: &Workload,
    folded: &mut Workload,
    route: RouteId,
    resources: &[u32],
    charge: impl Fn(u32) -> u64,
) -> RouteId {
    let mut colours: Vec<u32> = workload.system.uses(route).map(|one| resources[one.resource.0 as usize]).collect();
    colours.sort_unstable();
    colours.dedup();
    let uses: Vec<Use> = colours.into_iter().map(|c| Use { resource: ResourceId(c), coefficient: charge(c) }).collect();
    let (cap, weight) = workload.system.cap_and_weight(route);
    folded.system.add_folded_route(&uses, cap, weight, workload.system.solo(route))
}

/// Returns the first index at which each of `count` colours occurs.
fn firsts(colours: &[u32], count: u32) -> Vec<u32> {
    let mut firsts = vec![u32::MAX; count as usize];
    for (i, &colour) in (0u32..).zip(colours) {
        let first = &mut firsts[colour as usize];
        *first = (*first).min(i);
    }
    firsts
}

/// Numbering of values from 0, in order of first occurrence.
struct Dense<T = Signature> {
    known: FxHashMap<T, u32>,
}

impl<T> Default for Dense<T> {
    fn default() -> Self {
        Self { known: FxHashMap::default() }
    }
}

impl<T: Eq + Hash> Dense<T> {
    fn colour(&mut self, value: T) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(value).or_insert(next)
    }

    fn count(&self) -> u32 {
        self.known.len() as u32
    }
}

/// Last value and number found, cached because consecutive values are often equal.
struct LastFound<T>(Option<(T, u32)>);

impl<T> Default for LastFound<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> LastFound<T> {
    fn or_find(&mut self, key: T, find: impl FnOnce() -> u32) -> u32 {
        match &self.0 {
            Some((last, number)) if *last == key => *number,
            _ => {
                let number = find();
                self.0 = Some((key, number));
                number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Picos;

    use super::*;
    use crate::engine::{Pace, RouteLatency};
    use crate::quantity::{Rate, Work};
    use crate::sharing::WHOLE;

    #[test]
    fn operations_with_other_rates_without_contention_are_not_equal() {
        let folded_runs = |solo_rates: [u64; 2]| {
            let mut workload = Workload::new();
            let link = workload.system.add_resource(Rate(1_000_000));
            let uses = [Use { resource: link, coefficient: WHOLE }];
            for solo in solo_rates {
                let route = workload.system.add_folded_route(&uses, Rate::UNLIMITED, 1, Rate(solo));
                let passage = RouteLatency { route: Some(route), latency: Picos(1000) };
                workload.add_uniform_run(1, passage, Work(1 << 40), Pace::default(), &[]);
            }
            fold(&workload).map(|folded| folded.workload.runs.len())
        };
        assert_eq!(folded_runs([5, 5]), Some(1));
        assert_eq!(folded_runs([5, 4]), None);
    }
}
