//! Evaluation of workloads without contention, which need no events.
//!
//! If no capacity can limit a transfer (`idle_capacities`) and there are no lines, each operation ends at a time that
//! depends on the operations that it waits for only. If, in addition, runs do not wait for each other in a cycle, the
//! runs can be evaluated one after another, and the operations of a run in order of index: the start of an operation is
//! the latest of the ends that it waits for and, in a run in [`RunOrder::InTurn`](super::RunOrder::InTurn), of the
//! previous operation, its software and its spacing. Times and costs are those of the engine to the picosecond, because
//! both follow the same rules: the longest chain counts, and of chains that end at one instant the one with the largest
//! costs.
//!
//! The ends of a run are dropped once all runs that wait for it have been evaluated.

use std::sync::atomic::Ordering;

use fabricast_topologies::Picos;

use super::costs::ChainCosts;
use super::{Edge, EngineError, Outcome, Pace, PerOp, Recording, RouteLatency, SteadyStates, Watch, Workload};
use crate::quantity::{Rate, Work};

/// Minimum number of operations of a workload for which the evaluation is tried.
const MIN_OPERATIONS: u64 = 4096;

/// Instant, and the costs of the chain of operations that ends at it. Of several, the greatest counts: the latest, and of
/// equally late ones the one with the largest costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChainEnd {
    time: Picos,
    costs: ChainCosts,
}

/// Returns the outcome of a workload without contention; `None` if the engine has to determine it.
///
/// # Errors
/// [`EngineError`]: an interrupt or a missed deadline.
pub(super) fn outcome(workload: &Workload, watch: Watch<'_>) -> Result<Option<Outcome>, EngineError> {
    let is_wanted = watch.steady_states == SteadyStates::Skip && watch.recording != Recording::Spans;
    let has_background = (workload.background_from as usize) < workload.runs.len();
    if !is_wanted
        || has_background
        || workload.operation_count() < MIN_OPERATIONS
        || workload.line_count() > 0
        || workload.has_limiting_capacity()
    {
        return Ok(None);
    }
    match evaluation_order(workload) {
        Some(order) => Evaluation::new(workload, watch).run(&order),
        None => Ok(None),
    }
}

/// Returns the dependencies of a run on other runs that make any of its operations wait.
fn dependencies(workload: &Workload, run: u32) -> impl Iterator<Item = Edge> + '_ {
    let len = workload.runs[run as usize].len;
    let edges = workload.run_waits(run).iter().copied();
    edges.filter(move |edge| edge.run != run && !edge.waiting(len, workload).is_empty())
}

/// Returns an order of the runs in which each follows those that it waits for, and waiting runs follow soon; `None` if
/// there is no such order, or if operations of a run wait for later ones of the same run.
fn evaluation_order(workload: &Workload) -> Option<Vec<u32>> {
    let count = workload.runs.len();
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut missing = vec![0u32; count];
    for run in 0..count as u32 {
        let len = workload.runs[run as usize].len;
        let mut own = workload.run_waits(run).iter().filter(|edge| edge.run == run && !edge.is_turn());
        if own.any(|edge| (edge.step != 1 || edge.start >= 0) && !edge.waiting(len, workload).is_empty()) {
            return None;
        }
        for edge in dependencies(workload, run) {
            dependents[edge.run as usize].push(run);
            missing[run as usize] += 1;
        }
    }
    let mut ready: Vec<u32> = (0..count as u32).rev().filter(|&run| missing[run as usize] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(run) = ready.pop() {
        order.push(run);
        for &dependent in &dependents[run as usize] {
            missing[dependent as usize] -= 1;
            if missing[dependent as usize] == 0 {
                ready.push(dependent);
            }
        }
    }
    (order.len() == count).then_some(order)
}

/// Evaluation of the runs of a workload.
struct Evaluation<'a> {
    workload: &'a Workload,
    watch: Watch<'a>,
    /// Ends of the operations of evaluated runs for which other runs wait; empty for other runs.
    ends: Vec<Vec<ChainEnd>>,
    /// Number of dependencies on each run that are not evaluated.
    awaiting: Vec<u32>,
    /// Last division of work by rate, and its result.
    last_division: (Work, Rate, Picos),
    outcome: Outcome,
}

impl<'a> Evaluation<'a> {
    fn new(workload: &'a Workload, watch: Watch<'a>) -> Self {
        let mut awaiting = vec![0; workload.runs.len()];
        for run in 0..workload.runs.len() as u32 {
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

    /// Evaluates the runs in order; `None` if a time is out of range, which the engine reports.
    fn run(mut self, order: &[u32]) -> Result<Option<Outcome>, EngineError> {
        if let Some(progress) = self.watch.progress {
            progress.total.store(self.workload.operation_count(), Ordering::Relaxed);
        }
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
        self.outcome.events = self.outcome.operations;
        if let Some(progress) = self.watch.progress {
            progress.done.store(self.outcome.operations, Ordering::Relaxed);
        }
        if self.watch.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(EngineError::Interrupted);
        }
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

    /// Builds a workload of streams that share no capacity, whose operations move these amounts in turn.
    fn without_contention(mut streams: Vec<Stream>, chunks: u32, bytes: &[u64]) -> Workload {
        for stream in &mut streams {
            (stream.window, stream.line) = (None, None);
        }
        let mut workload = workload(&streams, chunks, &[1, 3, 400]);
        workload.system = workload.system.with_only(|_| false);
        for run in 0..workload.runs.len() {
            let first = workload.works.len() as u32;
            let amounts = bytes.iter().cycle().map(|&bytes| Work::from_bytes(bytes));
            workload.works.extend(amounts.take(workload.runs[run].len as usize));
            workload.runs[run].work = PerOp::Each(first);
        }
        workload
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Times and costs equal those of the engine, and the same deadlines are missed.
        #[test]
        fn evaluation_equals_the_engine(
            streams in streams(),
            chunks in 1000u32..2500,
            bytes in prop::collection::vec(prop::sample::select(vec![0u64, 1, 5000, 100_003]), 1..4),
            part in 0.5f64..1.5,
        ) {
            let workload = without_contention(streams, chunks, &bytes);
            check(&workload)?;
            let Some(whole) = outcome(&workload, Watch::default()).unwrap() else {
                prop_assert!(workload.operation_count() < MIN_OPERATIONS);
                return Ok(());
            };
            let until = Some(Picos((whole.end.0 as f64 * part) as u64));
            let ends = [SteadyStates::Skip, SteadyStates::Simulate].map(|steady_states| {
                run(&workload, Watch { until, steady_states, ..Watch::default() }).map(|outcome| outcome.end)
            });
            prop_assert_eq!(&ends[0], &ends[1]);
        }
    }

    /// Runs that wait for each other, and capacities that may limit transfers, are left to the engine.
    #[test]
    fn cycles_and_contention_are_left_to_the_engine() {
        let mut cycle = Workload::new();
        for run in [0, 1] {
            let passage = RouteLatency { route: None, latency: Picos(7) };
            let awaited = Edge { run: 1 - run, start: -(run as i32), step: 1 };
            cycle.add_uniform_run(5000, passage, Work(0), Pace::default(), &[awaited]);
        }
        let is_evaluated = |workload: &Workload| outcome(workload, Watch::default()).unwrap().is_some();
        assert!(!is_evaluated(&cycle));
        let mut shared = Workload::new();
        let resource = shared.system.add_resource(Rate(1_000_000));
        let used = crate::sharing::Use { resource, coefficient: crate::sharing::WHOLE };
        let route = Some(shared.system.add_route(&[used], Rate::UNLIMITED, 1));
        for run in 0..2 {
            let passage = RouteLatency { route, latency: Picos(7) };
            shared.add_uniform_run(5000, passage, Work(1), Pace::default(), &[Edge::turn(run)]);
            assert_eq!(is_evaluated(&shared), run == 0);
        }
    }
}
