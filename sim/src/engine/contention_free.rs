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
//! In a steady state of a run, its operations are skipped: if the times of two successive operations have grown by the
//! same difference, and so do the ends that they wait for, then the times of further operations grow by this difference
//! as long as every comparison of two ends has the same result ([`operation`]). The ends that a run waits for may grow by
//! less or more than the run itself, so that no common period of all runs is needed.
//!
//! The ends of a run are stored as arithmetic progressions ([`end_sequence`]), and dropped once all runs that wait for it
//! have been evaluated. Long streams without progressions are left to the engine, which may skip a longer period.

mod end_sequence;
mod operation;
mod run_inputs;

use fabricast_topologies::Picos;

use super::costs::ChainCosts;
use super::lines::LineStates;
use super::{
    Edge, Engine, EngineError, Outcome, Pace, PerOp, Recording, RouteLatency, Starts, SteadyStates, Watch, Workload,
    passage_ranges,
};
use crate::quantity::{Rate, Work};
use end_sequence::{EndSequence, Growth};
use operation::{Durations, OperationTimes};
use run_inputs::RunInputs;

/// Minimum number of operations of a workload for which the evaluation is tried.
const MIN_OPERATIONS: u64 = 4096;

/// Largest number of operations of a run per run in sequence for which all operations may be evaluated. The engine needs
/// some ten times as long for an operation, but may skip a steady state after a few operations per run in sequence.
const MAX_LENGTH_PER_DEPTH: u32 = 64;

/// Part of the operations of longer runs that may be evaluated, as a divisor. Above it, they are left to the engine.
const LONG_RUN_PART: u64 = 4;

/// Largest number of operations between two attempts to skip operations.
const MAX_ATTEMPT_INTERVAL: u32 = 64;

/// Instant, and the costs of the chain of operations that ends at it. Of several, the greatest counts: the latest, and of
/// equally late ones the one with the largest costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChainEnd {
    pub(super) time: Picos,
    pub(super) costs: ChainCosts,
}

impl ChainEnd {
    /// Returns the values in the order in which ends are compared.
    fn parts(self) -> [u64; 5] {
        let ChainCosts { software, latency, bandwidth, start_delay } = self.costs;
        [self.time, software, latency, bandwidth, start_delay].map(|part| part.0)
    }

    fn from_parts(parts: [u64; 5]) -> Self {
        let [time, software, latency, bandwidth, start_delay] = parts.map(Picos);
        Self { time, costs: ChainCosts { software, latency, bandwidth, start_delay } }
    }
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
/// soon. `None` if there is no such order, or if operations of a run wait for later ones of the same run.
fn evaluation_order(workload: &Workload, is_contended: &[bool]) -> Option<EvaluationOrder> {
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
    let part = if is_short { 1 } else { LONG_RUN_PART };
    let max_operations = workload.operation_count() / part;
    (order.len() == runs().count()).then_some(EvaluationOrder { runs: order, max_operations })
}

/// Order of the runs without contention.
struct EvaluationOrder {
    runs: Vec<u32>,
    /// Largest number of operations to evaluate.
    max_operations: u64,
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
    ends: Vec<EndSequence>,
    /// Number of dependencies on each run of runs without contention that are not evaluated.
    awaiting: Vec<u32>,
    /// Last division of work by rate, and its result.
    last_division: (Work, Rate, Picos),
    /// Number of operations that may still be evaluated.
    remaining: u64,
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
        Self {
            workload,
            watch,
            ends: vec![EndSequence::default(); workload.runs.len()],
            awaiting,
            last_division,
            remaining: 0,
            outcome,
        }
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
            self.ends[run as usize] = ends.into_iter().collect();
        }
        for (&run, &end) in runs.iter().zip(&engine.outcome.run_ends) {
            self.outcome.run_ends[run as usize] = end;
        }
        let Outcome { end, costs, operations, events, .. } = engine.outcome;
        self.outcome = Outcome { end, costs, operations, events, ..self.outcome };
        Ok(Some(self))
    }

    /// Evaluates the runs in order; `None` if a time is out of range, which the engine reports, or if too many operations
    /// would have to be evaluated.
    fn run(mut self, order: &EvaluationOrder) -> Result<Option<Outcome>, EngineError> {
        self.watch.begin(self.workload.operation_count());
        self.remaining = order.max_operations;
        for &run in &order.runs {
            let Some(ends) = self.evaluate(run) else { return Ok(None) };
            self.record(run, &ends)?;
            for edge in dependencies(self.workload, run) {
                let awaiting = &mut self.awaiting[edge.run as usize];
                *awaiting -= 1;
                if *awaiting == 0 {
                    self.ends[edge.run as usize] = EndSequence::default();
                }
            }
            if self.awaiting[run as usize] > 0 {
                self.ends[run as usize] = ends;
            }
        }
        Ok(Some(self.outcome))
    }

    /// Adds the ends of a run to the outcome.
    fn record(&mut self, run: u32, ends: &EndSequence) -> Result<(), EngineError> {
        let last = ends.greatest().unwrap_or_default();
        if ends.len() > 0 && last.time >= self.outcome.end {
            let ending = (last.time, last.costs.costs_at(last.time));
            (self.outcome.end, self.outcome.costs) = ending.max((self.outcome.end, self.outcome.costs));
        }
        if let Some(end) = self.outcome.run_ends.get_mut(run as usize) {
            *end = last.time;
        }
        self.outcome.operations += u64::from(ends.len());
        self.watch.poll(self.outcome.operations)?;
        match self.watch.until.filter(|&until| last.time > until) {
            Some(until) => Err(EngineError::Abandoned { until }),
            None => Ok(()),
        }
    }

    /// Returns the ends of a run's operations; `None` if a time is out of range, or if too many operations would have to
    /// be evaluated.
    fn evaluate(&mut self, run: u32) -> Option<EndSequence> {
        let workload = self.workload;
        let len = workload.runs[run as usize].len;
        let mut inputs = RunInputs::new(workload, run);
        let mut operations = OperationReader::new(workload, run);
        let mut ends = EndSequence::default();
        let mut previous: Option<OperationTimes<ChainEnd>> = None;
        let mut growth: Option<OperationTimes<Growth>> = None;
        let (mut next_attempt, mut interval) = (0, 1);
        let mut index = 0;
        while index < len {
            self.remaining = self.remaining.checked_sub(1)?;
            self.outcome.events += 1;
            let durations = self.durations(operations.read(index))?;
            let in_turn = previous.filter(|_| inputs.is_in_turn);
            let begun = inputs.begun;
            let awaited = inputs.points(&self.ends, &ends, index).map(|point| point.end);
            let times = OperationTimes::new(&durations, awaited, in_turn, begun, &mut 0)?;
            ends.push(times.end);
            let last_growth = growth;
            growth = previous.map(|previous| times.growth_since(&previous));
            let steady = previous.zip(growth).filter(|_| growth == last_growth && index >= next_attempt);
            let (mut last, mut skipped) = (times, 0);
            if let Some((previous, growth)) = steady {
                let steps = inputs.steady_steps(&self.ends, &ends, index, &durations, previous, growth);
                let steps = steps.min(len - 1 - index);
                let steps = operations.equal_after(index, steps);
                if let Some(advanced) = times.advanced(&growth, steps).filter(|_| steps > 0) {
                    ends.extend(steps, growth.end);
                    self.outcome.skipped += u64::from(steps);
                    (last, skipped) = (advanced, steps);
                }
                interval = if steps > interval { 1 } else { (2 * interval).min(MAX_ATTEMPT_INTERVAL) };
                next_attempt = index + skipped + interval;
            }
            previous = Some(last);
            index += 1 + skipped;
        }
        Some(ends)
    }

    /// Returns the durations of an operation; `None` if one is out of range.
    fn durations(&mut self, operation: Operation) -> Option<Durations> {
        let Operation { work, passage: RouteLatency { route, latency }, pace, rates } = operation;
        let (mut transfer, mut bandwidth) = (Picos::ZERO, Picos::ZERO);
        if route.is_some() && work.0 > 0 {
            transfer = self.duration(work, rates.unshared)?;
            bandwidth = self.duration(work, rates.solo)?.min(transfer);
        }
        Some(Durations { pace, latency, transfer, bandwidth })
    }

    fn duration(&mut self, work: Work, rate: Rate) -> Option<Picos> {
        if (self.last_division.0, self.last_division.1) != (work, rate) {
            self.last_division = (work, rate, work.duration(rate)?);
        }
        Some(self.last_division.2)
    }
}

/// Properties of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Operation {
    work: Work,
    passage: RouteLatency,
    pace: Pace,
    rates: RouteRates,
}

/// Rates of a transfer on a route: without contention, and without any other transfer in the system.
#[derive(Clone, Copy, PartialEq, Eq)]
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

    /// Returns the number of operations after `index`, at most `max`, that have the same properties.
    fn equal_after(&mut self, index: u32, max: u32) -> u32 {
        let operation = self.read(index);
        if self.is_uniform {
            return max;
        }
        (1..=max).find(|step| self.read(index + step) != operation).map_or(max, |step| step - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::run;
    use super::super::steady_state::tests::{Stream, check, shorten_last_messages, streams, workload};
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Times and costs of long streams without contention, most of whose operations are skipped, equal those of the
        /// engine. Streams wait for others that are slower, faster or have another number of operations, and the last
        /// messages are short.
        #[test]
        fn skipped_operations_change_no_result(
            mut streams in streams(),
            chunks in 1000u32..2000,
            shared in 0u32..3,
            full in prop_oneof![Just(1.0), 0.3f64..1.0],
        ) {
            for stream in &mut streams {
                (stream.window, stream.line) = (None, None);
            }
            let mut workload = workload(&streams, chunks, &[1, 3, 400]);
            workload.system = workload.system.with_only(|resource| resource.0 < shared);
            if full < 1.0 {
                shorten_last_messages(&mut workload, full);
            }
            check(&workload)?;
            if let Some(whole) = outcome(&workload, Watch::default()).unwrap() {
                prop_assert_eq!(whole.operations, workload.operation_count());
            }
        }
    }

    /// Returns two streams in sequence, of which the second needs `slowdown` times as long for each operation.
    fn two_streams(slowdown: u64) -> Workload {
        let mut workload = Workload::new();
        for (run, software) in [(0, 1_000), (1, 1_000 * slowdown)] {
            let passage = RouteLatency { route: None, latency: Picos(70) };
            let pace = Pace { software: Picos(software), ..Pace::default() };
            let data = Edge { run: 0, start: 0, step: 1 };
            let waits = [Edge::turn(run), data];
            workload.add_uniform_run(1 << 16, passage, Work(0), pace, &waits[..1 + run as usize]);
        }
        workload
    }

    /// Streams of different rates, which have no common steady state, need a few evaluations.
    #[test]
    fn streams_of_different_rates_are_skipped() {
        for slowdown in [0, 1, 2, 7] {
            let workload = two_streams(slowdown);
            check(&workload).unwrap();
            let whole = outcome(&workload, Watch::default()).unwrap().unwrap();
            assert_eq!((whole.operations, whole.skipped + whole.events), (2 << 16, 2 << 16));
            assert!(whole.events < 20, "{} operations of {slowdown}", whole.events);
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
