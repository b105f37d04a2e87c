//! Evaluation of runs without contention, which need no events.
//!
//! A run is *contended* if it uses a capacity that can limit a transfer (`idle_capacities`), or if a contended run waits
//! for it. Without lines, each operation of another run ends at a time that depends on the operations that it waits for
//! only. If these runs do not wait for each other in a cycle, they can be evaluated one after another, and the operations
//! of a run in order of index: the start of an operation is the latest of the ends that it waits for and, in a run in
//! [`RunOrder::InTurn`](super::RunOrder::InTurn), of the previous operation, its software and its spacing. Times and costs
//! are those of the engine to the picosecond, because both follow the same rules: the longest chain counts, and of chains
//! that end at one instant the one with the largest costs. Contended runs are simulated by the engine beforehand; the
//! other runs do not affect them.
//!
//! The ends of a run are dropped once all runs that wait for it have been evaluated. Streams of many more chunks than
//! runs in sequence are left to the engine, which may skip a steady state.

use fabricast_topologies::Picos;

use super::costs::ChainCosts;
use super::lines::LineStates;
use super::{
    Edge, Engine, EngineError, Outcome, Pace, PerOp, Recording, RouteLatency, Starts, SteadyStates, Watch, Workload,
    passage_ranges,
};
use crate::quantity::{Rate, Work};

/// Minimum number of operations of a workload for which the evaluation is tried.
const MIN_OPERATIONS: u64 = 4096;

/// Largest number of operations of a run per run in sequence. The engine needs some ten times as long for an operation,
/// but may skip a steady state after a few operations per run in sequence.
const MAX_LENGTH_PER_DEPTH: u32 = 64;

/// Instant, and the costs of the chain of operations that ends at it. Of several, the greatest counts: the latest, and of
/// equally late ones the one with the largest costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChainEnd {
    pub(super) time: Picos,
    pub(super) costs: ChainCosts,
}

/// Returns the outcome of a workload of which most operations are in runs without contention; `None` if the engine has to
/// determine it.
///
/// # Errors
/// [`EngineError`]: an interrupt or a missed deadline.
pub(super) fn outcome(workload: &Workload, watch: Watch<'_>) -> Result<Option<Outcome>, EngineError> {
    let is_wanted = watch.steady_states == SteadyStates::Skip && watch.recording != Recording::Spans;
    let has_background = (workload.background_from as usize) < workload.runs.len();
    let operations = workload.operation_count();
    if !is_wanted || has_background || operations < MIN_OPERATIONS || workload.line_count() > 0 {
        return Ok(None);
    }
    let is_contended = contended_runs(workload);
    let contended = workload.runs.iter().zip(&is_contended).filter(|(_, is_contended)| **is_contended);
    let contended: u64 = contended.map(|(run, _)| u64::from(run.len)).sum();
    match evaluation_order(workload, &is_contended).filter(|_| contended < operations / 2) {
        Some(order) => match Evaluation::new(workload, watch, &is_contended).simulate(&is_contended)? {
            Some(evaluation) => evaluation.run(&order),
            None => Ok(None),
        },
        None => Ok(None),
    }
}

/// Returns true for each run that uses a capacity that may limit a transfer, or for which such a run waits.
fn contended_runs(workload: &Workload) -> Vec<bool> {
    let may_limit = workload.limiting_capacities();
    let uses_limit = |run: u32| {
        let mut routes = passage_ranges(workload, run).filter_map(|range| range.passage.route);
        routes.any(|route| workload.system.uses(route).any(|used| may_limit[used.resource.0 as usize]))
    };
    let runs = workload.runs.len() as u32;
    let mut is_contended: Vec<bool> = (0..runs).map(uses_limit).collect();
    let mut pending: Vec<u32> = (0..runs).filter(|&run| is_contended[run as usize]).collect();
    while let Some(run) = pending.pop() {
        for edge in workload.run_waits(run) {
            if !std::mem::replace(&mut is_contended[edge.run as usize], true) {
                pending.push(edge.run);
            }
        }
    }
    is_contended
}

/// Returns the dependencies of a run on other runs that make any of its operations wait.
fn dependencies(workload: &Workload, run: u32) -> impl Iterator<Item = Edge> + '_ {
    let len = workload.runs[run as usize].len;
    let edges = workload.run_waits(run).iter().copied();
    edges.filter(move |edge| edge.run != run && !edge.waiting(len, workload).is_empty())
}

/// Returns an order of the runs without contention in which each follows those that it waits for, and waiting runs follow
/// soon. `None` if there is no such order, if operations of a run wait for later ones of the same run, or if runs are too
/// long for their number in sequence.
fn evaluation_order(workload: &Workload, is_contended: &[bool]) -> Option<Vec<u32>> {
    let runs = || (0..workload.runs.len() as u32).filter(|&run| !is_contended[run as usize]);
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); workload.runs.len()];
    let mut missing = vec![0u32; workload.runs.len()];
    for run in runs() {
        let len = workload.runs[run as usize].len;
        let mut own = workload.run_waits(run).iter().filter(|edge| edge.run == run && !edge.is_turn());
        if own.any(|edge| (edge.step != 1 || edge.start >= 0) && !edge.waiting(len, workload).is_empty()) {
            return None;
        }
        for edge in dependencies(workload, run).filter(|edge| !is_contended[edge.run as usize]) {
            dependents[edge.run as usize].push(run);
            missing[run as usize] += 1;
        }
    }
    let mut ready: Vec<u32> = runs().filter(|&run| missing[run as usize] == 0).collect();
    ready.reverse();
    let mut order = Vec::new();
    let mut depths = vec![1u32; workload.runs.len()];
    while let Some(run) = ready.pop() {
        order.push(run);
        let depth = depths[run as usize] + 1;
        for &dependent in &dependents[run as usize] {
            depths[dependent as usize] = depths[dependent as usize].max(depth);
            missing[dependent as usize] -= 1;
            if missing[dependent as usize] == 0 {
                ready.push(dependent);
            }
        }
    }
    let longest = runs().map(|run| workload.runs[run as usize].len).max()?;
    let depth = depths.into_iter().max()?;
    let is_short = longest <= depth.saturating_mul(MAX_LENGTH_PER_DEPTH);
    (is_short && order.len() == runs().count()).then_some(order)
}

/// Returns the workload of some of the runs, none of which waits for another run.
fn only(workload: &Workload, runs: &[u32]) -> Workload {
    let mut numbers = vec![0; workload.runs.len()];
    for (number, &run) in (0..).zip(runs) {
        numbers[run as usize] = number;
    }
    let mut part = Workload { runs: Vec::new(), waits: Vec::new(), wait_starts: vec![0], ..workload.clone() };
    for &run in runs {
        let waits = workload.run_waits(run).iter().map(|edge| Edge { run: numbers[edge.run as usize], ..*edge });
        part.add_run(workload.runs[run as usize], &waits.collect::<Vec<Edge>>());
    }
    part.background_from = u32::MAX;
    part
}

/// Evaluation of the runs without contention of a workload.
struct Evaluation<'a> {
    workload: &'a Workload,
    watch: Watch<'a>,
    /// Ends of the operations of evaluated runs for which other runs wait; empty for other runs.
    ends: Vec<Vec<ChainEnd>>,
    /// Number of dependencies on each run of runs without contention that are not evaluated.
    awaiting: Vec<u32>,
    /// Last division of work by rate, and its result.
    last_division: (Work, Rate, Picos),
    outcome: Outcome,
}

impl<'a> Evaluation<'a> {
    fn new(workload: &'a Workload, watch: Watch<'a>, is_contended: &[bool]) -> Self {
        let mut awaiting = vec![0; workload.runs.len()];
        for run in (0..workload.runs.len() as u32).filter(|&run| !is_contended[run as usize]) {
            dependencies(workload, run).for_each(|edge| awaiting[edge.run as usize] += 1);
        }
        let start = workload.startup;
        let begun = ChainCosts { software: start, ..ChainCosts::default() };
        let mut outcome = Outcome { end: start, costs: begun.costs_at(start), ..Outcome::default() };
        if watch.recording != Recording::End {
            outcome.run_ends = vec![Picos::ZERO; workload.runs.len()];
        }
        let last_division = (Work(0), Rate(1), Picos::ZERO);
        Self { workload, watch, ends: vec![Vec::new(); workload.runs.len()], awaiting, last_division, outcome }
    }

    /// Simulates the contended runs; `None` if that fails for a reason that only a simulation of all runs explains.
    fn simulate(mut self, is_contended: &[bool]) -> Result<Option<Self>, EngineError> {
        let runs = (0..self.workload.runs.len() as u32).filter(|&run| is_contended[run as usize]);
        let runs: Vec<u32> = runs.collect();
        if runs.is_empty() {
            return Ok(Some(self));
        }
        let part = only(self.workload, &runs);
        let watch = Watch { steady_states: SteadyStates::Simulate, progress: None, ..self.watch };
        let mut engine = Engine::new(&part, watch, Starts::Given, LineStates::first_come_first_served(&part));
        let is_awaited = |run: u32| self.awaiting[run as usize] > 0;
        let recorded = runs.iter().map(|&run| if is_awaited(run) { self.workload.runs[run as usize].len } else { 0 });
        engine.chain_ends = recorded.map(|len| vec![ChainEnd::default(); len as usize]).collect();
        match engine.run() {
            Ok(()) => {}
            Err(error @ (EngineError::Interrupted | EngineError::Abandoned { .. })) => return Err(error),
            Err(_) => return Ok(None),
        }
        for (&run, ends) in runs.iter().zip(engine.chain_ends) {
            self.ends[run as usize] = ends;
        }
        for (&run, &end) in runs.iter().zip(&engine.outcome.run_ends) {
            self.outcome.run_ends[run as usize] = end;
        }
        let Outcome { end, costs, operations, events, .. } = engine.outcome;
        self.outcome = Outcome { end, costs, operations, events, ..self.outcome };
        Ok(Some(self))
    }

    /// Evaluates the runs in order; `None` if a time is out of range, which the engine reports.
    fn run(mut self, order: &[u32]) -> Result<Option<Outcome>, EngineError> {
        self.watch.begin(self.workload.operation_count());
        for &run in order {
            let Some(ends) = self.evaluate(run) else { return Ok(None) };
            self.record(run, &ends)?;
            for edge in dependencies(self.workload, run) {
                let awaiting = &mut self.awaiting[edge.run as usize];
                *awaiting -= 1;
                if *awaiting == 0 {
                    self.ends[edge.run as usize] = Vec::new();
                }
            }
            if self.awaiting[run as usize] > 0 {
                self.ends[run as usize] = ends;
            }
        }
        Ok(Some(self.outcome))
    }

    /// Adds the ends of a run to the outcome.
    fn record(&mut self, run: u32, ends: &[ChainEnd]) -> Result<(), EngineError> {
        let mut last = Picos::ZERO;
        for end in ends {
            last = last.max(end.time);
            if end.time >= self.outcome.end {
                let ending = (end.time, end.costs.costs_at(end.time));
                (self.outcome.end, self.outcome.costs) = ending.max((self.outcome.end, self.outcome.costs));
            }
        }
        if let Some(end) = self.outcome.run_ends.get_mut(run as usize) {
            *end = last;
        }
        self.outcome.operations += ends.len() as u64;
        self.outcome.events += ends.len() as u64;
        self.watch.poll(self.outcome.operations)?;
        match self.watch.until.filter(|&until| last > until) {
            Some(until) => Err(EngineError::Abandoned { until }),
            None => Ok(()),
        }
    }

    /// Returns the ends of a run's operations; `None` if a time is out of range.
    fn evaluate(&mut self, run: u32) -> Option<Vec<ChainEnd>> {
        let workload = self.workload;
        let len = workload.runs[run as usize].len;
        let edges: Vec<Edge> = dependencies(workload, run).collect();
        let is_own = |edge: &&Edge| edge.run == run && !edge.is_turn();
        let own: Vec<Edge> = workload.run_waits(run).iter().filter(is_own).copied().collect();
        let is_in_turn = workload.run_waits(run).iter().any(|edge| edge.is_turn());
        let start = workload.startup;
        let begun = ChainEnd { time: start, costs: ChainCosts { software: start, ..ChainCosts::default() } };
        let mut operations = OperationReader::new(workload, run);
        let mut ends: Vec<ChainEnd> = Vec::with_capacity(len as usize);
        // End of the software time and of the spacing of the previous operation.
        let mut previous: Option<(ChainEnd, ChainEnd)> = None;
        for index in 0..len {
            let Operation { work, passage: RouteLatency { route, latency }, pace, rates } = operations.read(index);
            let others = edges.iter().filter_map(|edge| {
                let ends = &self.ends[edge.run as usize];
                ends.get(edge.target(index, ends.len() as u32)? as usize).copied()
            });
            let own = own.iter().filter_map(|edge| ends.get(edge.target(index, len)? as usize).copied());
            let in_turn = previous.filter(|_| is_in_turn);
            let awaited = others.chain(own).chain(in_turn.map(|(prepared, _)| prepared)).max().unwrap_or(begun);
            let mut costs = awaited.costs;
            let ready = awaited.time.max(pace.not_before);
            costs.start_delay += ready - awaited.time;
            costs.software += pace.software;
            let prepared = ChainEnd { time: Picos(ready.0.checked_add(pace.software.0)?), costs };
            costs.latency += latency;
            let mut first_byte = ChainEnd { time: Picos(prepared.time.0.checked_add(latency.0)?), costs };
            if let (Some((_, free)), Some(&done)) = (in_turn, ends.last()) {
                // An operation that has to wait is charged with the costs of the chain that it waited for.
                first_byte = first_byte.max(done).max(free);
            }
            let free_costs = ChainCosts { software: first_byte.costs.software + pace.spacing, ..first_byte.costs };
            let free = ChainEnd { time: Picos(first_byte.time.0.checked_add(pace.spacing.0)?), costs: free_costs };
            let mut end = first_byte;
            if route.is_some() && work.0 > 0 {
                let transfer = self.duration(work, rates.unshared)?;
                end.time = Picos(end.time.0.checked_add(transfer.0)?);
                end.costs.bandwidth += self.duration(work, rates.solo)?.min(transfer);
            }
            ends.push(end);
            previous = Some((prepared, free));
        }
        Some(ends)
    }

    fn duration(&mut self, work: Work, rate: Rate) -> Option<Picos> {
        if (self.last_division.0, self.last_division.1) != (work, rate) {
            self.last_division = (work, rate, work.duration(rate)?);
        }
        Some(self.last_division.2)
    }
}

/// Properties of an operation.
#[derive(Clone, Copy)]
struct Operation {
    work: Work,
    passage: RouteLatency,
    pace: Pace,
    rates: RouteRates,
}

/// Rates of a transfer on a route: without contention, and without any other transfer in the system.
#[derive(Clone, Copy)]
struct RouteRates {
    unshared: Rate,
    solo: Rate,
}

/// Reader of the properties of a run's operations, which looks up properties that all of them share once.
struct OperationReader<'a> {
    workload: &'a Workload,
    run: u32,
    /// Properties of the last operation that was read.
    last: Option<Operation>,
    is_uniform: bool,
}

impl<'a> OperationReader<'a> {
    fn new(workload: &'a Workload, run: u32) -> Self {
        let work_run = workload.runs[run as usize];
        let are_same = [work_run.work, work_run.passage, work_run.pace].map(|per_op| matches!(per_op, PerOp::Same(_)));
        Self { workload, run, last: None, is_uniform: are_same == [true; 3] }
    }

    fn read(&mut self, index: u32) -> Operation {
        if let Some(last) = self.last.filter(|_| self.is_uniform) {
            return last;
        }
        let Self { workload, run, .. } = *self;
        let passage = workload.passage(run, index);
        let rates = match (self.last, passage.route) {
            (Some(last), _) if last.passage.route == passage.route => last.rates,
            (_, Some(route)) => {
                RouteRates { unshared: workload.system.unshared(route), solo: workload.system.solo(route) }
            }
            (_, None) => RouteRates { unshared: Rate(1), solo: Rate(1) },
        };
        let operation = Operation { work: workload.work(run, index), passage, pace: workload.pace(run, index), rates };
        self.last = Some(operation);
        operation
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::run;
    use super::super::steady_state::tests::{Stream, check, streams, workload};
    use super::*;

    /// Builds a workload of streams whose operations move these amounts in turn. The streams share the first `shared`
    /// capacities only.
    fn with_little_contention(mut streams: Vec<Stream>, chunks: u32, bytes: &[u64], shared: u32) -> Workload {
        for stream in &mut streams {
            (stream.window, stream.line) = (None, None);
        }
        let mut workload = workload(&streams, chunks, &[1, 3, 400]);
        workload.system = workload.system.with_only(|resource| resource.0 < shared);
        add_chain(&mut workload, chunks);
        for run in 0..workload.runs.len() {
            let first = workload.works.len() as u32;
            let amounts = bytes.iter().cycle().map(|&bytes| Work::from_bytes(bytes));
            workload.works.extend(amounts.take(workload.runs[run].len as usize));
            workload.runs[run].work = PerOp::Each(first);
        }
        workload
    }

    /// Adds runs in sequence without bytes, so that runs are short for their number in sequence. The first waits for
    /// the last stream.
    fn add_chain(workload: &mut Workload, chunks: u32) {
        let passage = RouteLatency { route: None, latency: Picos(1_000) };
        for _ in 0..=chunks / 2 {
            let awaited = Edge { run: workload.runs.len() as u32 - 1, start: 0, step: 1 };
            workload.add_uniform_run(chunks, passage, Work(0), Pace::default(), &[awaited]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Times and costs equal those of the engine, and the same deadlines are missed.
        #[test]
        fn evaluation_equals_the_engine(
            streams in streams(),
            chunks in 100u32..200,
            bytes in prop::collection::vec(prop::sample::select(vec![0u64, 1, 5000, 100_003]), 1..4),
            part in 0.5f64..1.5,
            shared in 0u32..3,
        ) {
            let workload = with_little_contention(streams, chunks, &bytes, shared);
            check(&workload)?;
            let Some(whole) = outcome(&workload, Watch::default()).unwrap() else {
                prop_assert!(shared > 0 || workload.operation_count() < MIN_OPERATIONS);
                return Ok(());
            };
            let until = Some(Picos((whole.end.0 as f64 * part) as u64));
            let ends = [SteadyStates::Skip, SteadyStates::Simulate].map(|steady_states| {
                run(&workload, Watch { until, steady_states, ..Watch::default() }).map(|outcome| outcome.end)
            });
            prop_assert_eq!(&ends[0], &ends[1]);
        }
    }

    /// Runs that wait for each other, and capacities that limit most transfers, are left to the engine.
    #[test]
    fn cycles_and_contention_are_left_to_the_engine() {
        let is_evaluated = |workload: &Workload| outcome(workload, Watch::default()).unwrap().is_some();
        let passage = RouteLatency { route: None, latency: Picos(7) };
        let mut chain = Workload::new();
        chain.add_uniform_run(100, passage, Work(0), Pace::default(), &[]);
        add_chain(&mut chain, 200);
        assert!(is_evaluated(&chain));
        let mut cycle = Workload::new();
        for run in 0..100u32 {
            let awaited = Edge { run: (run + 1) % 100, start: -i32::from(run == 0), step: 1 };
            cycle.add_uniform_run(100, passage, Work(0), Pace::default(), &[awaited]);
        }
        assert!(!is_evaluated(&cycle));
        let mut shared = Workload::new();
        let resource = shared.system.add_resource(Rate(1_000_000));
        let used = crate::sharing::Use { resource, coefficient: crate::sharing::WHOLE };
        let route = Some(shared.system.add_route(&[used], Rate::UNLIMITED, 1));
        for run in 0..100 {
            let passage = RouteLatency { route, latency: Picos(7) };
            shared.add_uniform_run(100, passage, Work(1), Pace::default(), &[Edge::turn(run)]);
        }
        assert!(!is_evaluated(&shared));
    }
}
