//! Simulation of streams: runs that have one transfer at a time.
//!
//! The operations of a run in [`RunOrder::InTurn`](super::RunOrder::InTurn), or of a run in which each waits for the
//! previous one, start their transfers one after another. The
//! start of each is the latest of the ends that it waits for with its software time and latency, of the end of the
//! previous operation, and of the end of its spacing. It is known as soon as all of these operations have ended, so a run
//! has one event at a time, the start or the end of a transfer, where the general engine has an event for each of these
//! instants. Only the rates of transfers have to be simulated. Equal operations that wait for nothing and for which no
//! operation waits start and end their transfers together.
//!
//! Times and costs are those of the general engine to the picosecond: of chains that end at one instant the one with the
//! largest costs counts, and rates are updated after all events of an instant.

use std::collections::VecDeque;

use fabricast_topologies::Picos;

use super::contention_free::ChainEnd;
use super::costs::ChainCosts;
use super::deadline::Deadline;
use super::next_events::NextEvents;
use super::{
    DEADLINE_POLL_INTERVAL, Edge, EngineError, Outcome, POLL_INTERVAL, Pace, PerOp, Recording, RouteLatency,
    SteadyStates, Watch, Workload,
};
use crate::quantity::{Rate, Work};
use crate::sharing::{RateRevision, RouteId, Sharing, System};

/// Number of ends of a run that are retained before those that no operation waits for any more are dropped.
const RETAINED_ENDS: usize = 8;

/// Returns true if all runs of a workload are streams, and neither lines nor background traffic are simulated.
pub(super) fn are_streams(workload: &Workload, watch: Watch<'_>) -> bool {
    let is_wanted = watch.steady_states == SteadyStates::Skip && watch.recording != Recording::Spans;
    let has_background = (workload.background_from as usize) < workload.runs.len();
    let are_streams = || {
        let mut is_awaited = vec![false; workload.runs.len()];
        workload.waits.iter().for_each(|edge| is_awaited[edge.run as usize] = true);
        (0..).zip(is_awaited).all(|(run, is_awaited)| StreamKind::of(workload, run, is_awaited).is_some())
    };
    is_wanted && !has_background && workload.line_count() == 0 && are_streams()
}

/// Returns the outcome of a workload of streams; `None` if the general engine has to explain why it does not end.
///
/// # Errors
/// [`EngineError`]: an interrupt or a missed deadline.
pub(super) fn outcome(workload: &Workload, watch: Watch<'_>) -> Result<Option<Outcome>, EngineError> {
    StreamEngine::new(workload, watch).run()
}

/// Kind of a run that is a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    /// Operations in [`RunOrder::InTurn`](super::RunOrder::InTurn).
    InTurn,
    /// Operations each of which waits for the end of the previous one, or at most one operation.
    Consecutive,
    /// Operations that wait for nothing, and for which no operation waits.
    Independent,
}

impl StreamKind {
    /// Returns the kind of a run; `None` if the run is not a stream.
    fn of(workload: &Workload, run: u32, is_awaited: bool) -> Option<Self> {
        let waits = workload.run_waits(run);
        let len = workload.runs[run as usize].len;
        let is_previous = |edge: &Edge| edge.run == run && (edge.start, edge.step) == (-1, 1);
        if waits.iter().any(|edge| edge.is_turn()) {
            Some(Self::InTurn)
        } else if len <= 1 || waits.iter().any(is_previous) {
            Some(Self::Consecutive)
        } else {
            (waits.is_empty() && !is_awaited).then_some(Self::Independent)
        }
    }
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next operation waits for an operation that has not ended.
    Blocked,
    /// The start of the next operation is known.
    Starting,
    /// The transfer of the next operation is in progress.
    Transferring,
    /// All operations have ended.
    Finished,
}

/// A run and its progress, or a range of equal independent operations of a run.
#[derive(Clone, Copy, Debug)]
struct Stream {
    run: u32,
    kind: StreamKind,
    /// Index after the last operation.
    end: u32,
    state: State,
    /// Index of the next operation, or of the one whose transfer is in progress.
    index: u32,
    /// Start of the transfer of the next operation.
    start: ChainEnd,
    /// End of the software time of the next operation, and after its start of the previous one.
    prepared: ChainEnd,
    /// End of the previous operation.
    done: ChainEnd,
    /// End of the spacing after the previous operation.
    free: ChainEnd,
    route: RouteId,
    work: Work,
    /// Remaining work of the transfer at `since`.
    left: Work,
    since: Picos,
}

/// Ends of the operations of a run that other operations wait for.
#[derive(Debug, Default)]
struct Ends {
    /// Number of ends that were dropped.
    dropped: u32,
    ends: VecDeque<ChainEnd>,
    /// Number of retained ends at which those that are not needed any more are dropped.
    limit: usize,
}

/// Simulation of streams. The streams of independent operations follow those of all runs, in order of run.
struct StreamEngine<'a> {
    workload: &'a Workload,
    /// Capacities that may limit a transfer, one of several that the same routes use.
    system: System,
    watch: Watch<'a>,
    now: Picos,
    events: NextEvents,
    sharing: Sharing,
    streams: Vec<Stream>,
    ends: Vec<Ends>,
    /// Edges to other operations, by awaited run; each names the waiting run.
    dependents: Vec<Edge>,
    /// Index in `dependents` of each run's first edge, followed by their total number.
    dependent_starts: Vec<u32>,
    /// Streams with a transfer in progress, by route.
    transferring: Vec<Vec<u32>>,
    deadline: Option<Deadline>,
    /// Last division of the work of an operation by the rate without contention, and its result.
    last_alone: (Work, Rate, Picos),
    /// Last division of the remaining work of a transfer by its rate, and its result.
    last_division: (Work, Rate, Picos),
    outcome: Outcome,
}

impl<'a> StreamEngine<'a> {
    fn new(workload: &'a Workload, watch: Watch<'a>) -> Self {
        let runs = 0..workload.runs.len() as u32;
        let mut dependent_starts = vec![0u32; workload.runs.len() + 1];
        let edges = || {
            let awaited =
                |run| workload.run_waits(run).iter().filter(|edge| !edge.is_turn()).map(move |&edge| (run, edge));
            runs.clone().flat_map(awaited)
        };
        edges().for_each(|(_, edge)| dependent_starts[edge.run as usize + 1] += 1);
        for run in 0..workload.runs.len() {
            dependent_starts[run + 1] += dependent_starts[run];
        }
        let mut next = dependent_starts.clone();
        let mut dependents = vec![Edge { run: 0, start: 0, step: 0 }; edges().count()];
        for (run, edge) in edges() {
            let position = &mut next[edge.run as usize];
            dependents[*position as usize] = Edge { run, ..edge };
            *position += 1;
        }
        let begun = ChainCosts { software: workload.startup, ..ChainCosts::default() };
        let begin = ChainEnd { time: workload.startup, costs: begun };
        let stream = |run: u32, kind, range: std::ops::Range<u32>| Stream {
            run,
            kind,
            end: range.end,
            state: State::Blocked,
            index: range.start,
            start: begin,
            prepared: begin,
            done: begin,
            free: begin,
            route: RouteId(0),
            work: Work(0),
            left: Work(0),
            since: Picos::ZERO,
        };
        let mut streams = Vec::with_capacity(workload.runs.len());
        let mut independent = Vec::new();
        for run in runs.clone() {
            let is_awaited = dependent_starts[run as usize] < dependent_starts[run as usize + 1];
            let len = workload.runs[run as usize].len;
            match StreamKind::of(workload, run, is_awaited) {
                Some(StreamKind::Independent) => {
                    streams.push(stream(run, StreamKind::Independent, len..len));
                    let ranges = equal_ranges(workload, run).into_iter();
                    independent.extend(ranges.map(|range| stream(run, StreamKind::Independent, range)));
                }
                kind => streams.push(stream(run, kind.unwrap_or(StreamKind::InTurn), 0..len)),
            }
        }
        streams.append(&mut independent);
        let may_limit = workload.limiting_capacities();
        let limits_alone = workload.system.tightest_capacities();
        let system = workload.system.with_only(|id| may_limit[id.0 as usize] && limits_alone[id.0 as usize]);
        let mut outcome =
            Outcome { end: workload.startup, costs: begun.costs_at(workload.startup), ..Outcome::default() };
        if watch.recording != Recording::End {
            outcome.run_ends = vec![Picos::ZERO; workload.runs.len()];
        }
        Self {
            workload,
            watch,
            now: workload.startup,
            events: NextEvents::new(streams.len()),
            sharing: Sharing::new(&system),
            system,
            streams,
            ends: runs.map(|_| Ends { limit: RETAINED_ENDS, ..Ends::default() }).collect(),
            dependents,
            dependent_starts,
            transferring: vec![Vec::new(); workload.system.route_count()],
            deadline: watch.until.map(|until| Deadline::new(workload, until)),
            last_alone: (Work(0), Rate(1), Picos::ZERO),
            last_division: (Work(0), Rate(1), Picos::ZERO),
            outcome,
        }
    }

    /// Handles all events in order of time; `None` if operations wait for each other in a cycle or a time is out of range.
    fn run(mut self) -> Result<Option<Outcome>, EngineError> {
        let workload = self.workload;
        let total = workload.operation_count();
        self.watch.begin(total);
        for number in 0..self.streams.len() as u32 {
            if self.schedule(number).is_none() {
                return Ok(None);
            }
        }
        let (mut next_poll, mut next_look) = (POLL_INTERVAL, 0);
        while let Some(time) = self.events.next_time() {
            self.now = time;
            if let Some(until) = self.watch.until.filter(|&until| time > until) {
                return Err(EngineError::Abandoned { until });
            }
            while let Some(number) = self.events.pop(time) {
                self.outcome.events += 1;
                let is_valid = match self.streams[number as usize].state {
                    State::Starting => self.start(number)?,
                    State::Transferring => {
                        self.finish(number);
                        self.end(number)
                    }
                    State::Blocked | State::Finished => None,
                };
                if is_valid.is_none() {
                    return Ok(None);
                }
            }
            if self.settle().is_none() {
                return Ok(None);
            }
            if self.outcome.events >= next_look && self.outcome.operations < total {
                next_look = self.outcome.events + DEADLINE_POLL_INTERVAL;
                self.check_deadline()?;
            }
            if self.outcome.events >= next_poll {
                next_poll = self.outcome.events + POLL_INTERVAL;
                self.watch.poll(self.outcome.operations)?;
            }
        }
        self.watch.report(self.outcome.operations);
        Ok((self.outcome.operations == total).then_some(self.outcome))
    }

    fn check_deadline(&mut self) -> Result<(), EngineError> {
        let Some(deadline) = &mut self.deadline else { return Ok(()) };
        deadline.follow_paths(self.workload, self.outcome.events);
        match deadline.missed(self.now) {
            Some(until) => Err(EngineError::Abandoned { until }),
            None => Ok(()),
        }
    }

    /// Returns the latest of the ends that the next operation of a stream waits for; `None` if one of them has not ended.
    fn awaited(&self, stream: &Stream) -> Option<ChainEnd> {
        let mut latest: Option<ChainEnd> = None;
        for edge in self.workload.run_waits(stream.run).iter().filter(|edge| !edge.is_turn()) {
            let len = self.workload.runs[edge.run as usize].len;
            let Some(target) = edge.target(stream.index, len) else { continue };
            let ends = &self.ends[edge.run as usize];
            let &end = ends.ends.get(target.checked_sub(ends.dropped)? as usize)?;
            latest = latest.max(Some(end));
        }
        if stream.kind == StreamKind::InTurn && stream.index > 0 {
            latest = latest.max(Some(stream.prepared));
        }
        let startup = self.workload.startup;
        let begun = ChainCosts { software: startup, ..ChainCosts::default() };
        Some(latest.unwrap_or(ChainEnd { time: startup, costs: begun }))
    }

    /// Schedules the start of the next operation of a stream, once all operations that it waits for have ended. `None` if
    /// a time is out of range.
    fn schedule(&mut self, number: u32) -> Option<()> {
        let stream = &self.streams[number as usize];
        if stream.index == stream.end {
            self.streams[number as usize].state = State::Finished;
            return Some(());
        }
        let Some(awaited) = self.awaited(stream) else {
            self.streams[number as usize].state = State::Blocked;
            return Some(());
        };
        let pace = self.workload.pace(stream.run, stream.index);
        let RouteLatency { latency, .. } = self.workload.passage(stream.run, stream.index);
        let mut costs = awaited.costs;
        let ready = awaited.time.max(pace.not_before);
        costs.start_delay += ready - awaited.time;
        costs.software += pace.software;
        let prepared = ChainEnd { time: Picos(ready.0.checked_add(pace.software.0)?), costs };
        costs.latency += latency;
        let mut start = ChainEnd { time: Picos(prepared.time.0.checked_add(latency.0)?), costs };
        if stream.kind == StreamKind::InTurn && stream.index > 0 {
            start = start.max(stream.done).max(stream.free);
        }
        let stream = &mut self.streams[number as usize];
        (stream.start, stream.prepared, stream.state) = (start, prepared, State::Starting);
        self.events.set(number, Some(start.time));
        Some(())
    }

    /// Starts the next operation of a stream. `None` if a time is out of range.
    ///
    /// # Errors
    /// [`EngineError::Abandoned`]: the deadline can no longer be met.
    fn start(&mut self, number: u32) -> Result<Option<()>, EngineError> {
        let stream = &mut self.streams[number as usize];
        let Stream { run, index, start, .. } = *stream;
        if let Some(until) = self.deadline.as_ref().and_then(|deadline| deadline.missed_by(run, index, self.now)) {
            return Err(EngineError::Abandoned { until });
        }
        let Pace { spacing, .. } = self.workload.pace(run, index);
        let Some(free) = start.time.0.checked_add(spacing.0).map(Picos) else { return Ok(None) };
        stream.free =
            ChainEnd { time: free, costs: ChainCosts { software: start.costs.software + spacing, ..start.costs } };
        let RouteLatency { route, .. } = self.workload.passage(run, index);
        let work = self.workload.work(run, index);
        let Some(route) = route.filter(|_| work.0 > 0) else {
            stream.done = start;
            return Ok(self.end(number));
        };
        (stream.route, stream.work, stream.left, stream.since) = (route, work, work, self.now);
        stream.state = State::Transferring;
        self.transferring[route.0 as usize].push(number);
        for _ in 0..stream.simultaneous() {
            if let Some(deadline) = &mut self.deadline {
                deadline.begins(run, route, work);
            }
            self.sharing.start(&self.system, route);
        }
        Ok(Some(()))
    }

    /// Completes the transfer of a stream, and charges it for the time that it would need without contention.
    fn finish(&mut self, number: u32) {
        let stream = &mut self.streams[number as usize];
        let Stream { route, work, start, .. } = *stream;
        let transferring = &mut self.transferring[route.0 as usize];
        if let Some(position) = transferring.iter().position(|&other| other == number) {
            transferring.swap_remove(position);
        }
        for _ in 0..stream.simultaneous() {
            self.sharing.stop(&self.system, route);
        }
        let solo = self.system.solo(route);
        if (self.last_alone.0, self.last_alone.1) != (work, solo) {
            self.last_alone = (work, solo, work.duration(solo).unwrap_or(Picos::ZERO));
        }
        let mut costs = start.costs;
        costs.bandwidth += self.last_alone.2.min(self.now - start.time);
        stream.done = ChainEnd { time: self.now, costs };
    }

    /// Records the end of a stream's operation, and schedules the operations that waited for it. `None` if a time is out
    /// of range.
    fn end(&mut self, number: u32) -> Option<()> {
        let stream = &mut self.streams[number as usize];
        let Stream { run, done: end, .. } = *stream;
        let count = stream.simultaneous();
        stream.index += count;
        self.outcome.operations += u64::from(count);
        if end.time >= self.outcome.end {
            let ending = (end.time, end.costs.costs_at(end.time));
            (self.outcome.end, self.outcome.costs) = ending.max((self.outcome.end, self.outcome.costs));
        }
        if let Some(last) = self.outcome.run_ends.get_mut(run as usize) {
            *last = end.time;
        }
        let dependents = self.dependent_starts[run as usize] as usize..self.dependent_starts[run as usize + 1] as usize;
        if !dependents.is_empty() {
            self.ends[run as usize].ends.push_back(end);
            for position in dependents {
                let waiting = self.dependents[position].run;
                if waiting != run && self.streams[waiting as usize].state == State::Blocked {
                    self.schedule(waiting)?;
                }
            }
            if self.ends[run as usize].ends.len() > self.ends[run as usize].limit {
                self.drop_ends(run);
            }
        }
        self.schedule(number)
    }

    /// Drops the ends of a run for which no operation waits any more.
    fn drop_ends(&mut self, run: u32) {
        let dependents = self.dependent_starts[run as usize] as usize..self.dependent_starts[run as usize + 1] as usize;
        let first_awaited = |edge: &Edge| {
            let first = i64::from(edge.start) + i64::from(edge.step) * i64::from(self.streams[edge.run as usize].index);
            u32::try_from(first.max(0)).unwrap_or(u32::MAX)
        };
        let needed = self.dependents[dependents].iter().map(first_awaited).min().unwrap_or(u32::MAX);
        let ends = &mut self.ends[run as usize];
        let dropped = (needed.saturating_sub(ends.dropped) as usize).min(ends.ends.len());
        ends.ends.drain(..dropped);
        ends.dropped += dropped as u32;
        ends.limit = RETAINED_ENDS.max(2 * ends.ends.len());
    }

    /// Updates rates after the changes of this instant, and the ends of the transfers that depend on them. `None` if a
    /// time is out of range.
    fn settle(&mut self) -> Option<()> {
        let Self { system, now, sharing, streams, transferring, events, last_division, .. } = self;
        let mut is_valid = true;
        sharing.settle(system, |revised| {
            let RateRevision { route, before, rate, .. } = revised;
            for &number in &transferring[route.0 as usize] {
                let stream = &mut streams[number as usize];
                if stream.since != *now {
                    let passed = Work::passed(before, *now - stream.since);
                    (stream.left, stream.since) = (Work(stream.left.0.saturating_sub(passed.0)), *now);
                }
                if (last_division.0, last_division.1) != (stream.left, rate) {
                    match stream.left.duration(rate) {
                        Some(time) => *last_division = (stream.left, rate, time),
                        None => is_valid = false,
                    }
                }
                match now.0.checked_add(last_division.2.0) {
                    Some(end) => events.set(number, Some(Picos(end))),
                    None => is_valid = false,
                }
            }
        });
        is_valid.then_some(())
    }
}

impl Stream {
    /// Returns the number of operations that start and end together.
    fn simultaneous(&self) -> u32 {
        match self.kind {
            StreamKind::InTurn | StreamKind::Consecutive => 1,
            StreamKind::Independent => self.end - self.index,
        }
    }
}

/// Returns the ranges of consecutive operations of a run that have the same route, latency, work and delays.
fn equal_ranges(workload: &Workload, run: u32) -> Vec<std::ops::Range<u32>> {
    let work_run = workload.runs[run as usize];
    let is_same = |per_op: PerOp| matches!(per_op, PerOp::Same(_));
    let differ = |index: u32| {
        workload.passage(run, index) != workload.passage(run, index - 1)
            || workload.work(run, index) != workload.work(run, index - 1)
            || workload.pace(run, index) != workload.pace(run, index - 1)
    };
    let is_uniform = is_same(work_run.work) && is_same(work_run.passage) && is_same(work_run.pace);
    let inner = (1..work_run.len).filter(|&index| !is_uniform && differ(index));
    let mut borders: Vec<u32> = std::iter::once(0).chain(inner).collect();
    borders.push(work_run.len);
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::steady_state::tests::{streams, workload};
    use super::super::{WorkRun, run};
    use super::*;

    /// Adds a run of operations that wait for nothing and move these amounts in turn over the route of the first run.
    fn add_independent_run(workload: &mut Workload, bytes: &[u64]) {
        let first = workload.works.len() as u32;
        workload.works.extend(bytes.iter().map(|&bytes| Work::from_bytes(bytes)));
        let WorkRun { passage, pace, .. } = workload.runs[0];
        workload.add_run(WorkRun { len: bytes.len() as u32, passage, work: PerOp::Each(first), pace }, &[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Streams have the ends and costs of a simulation of every operation by the general engine, and miss the same
        /// deadlines.
        #[test]
        fn streams_equal_the_general_engine(
            mut streams in streams(),
            chunks in 1u32..400,
            capacities in prop::collection::vec(select(vec![1u64, 2, 3, 7, 10, 25, 400]), 1..5),
            independent in prop::collection::vec(select(vec![0u64, 1000, 5000, 5000, 100_003]), 0..40),
            part in 0.5f64..1.5,
        ) {
            for stream in &mut streams {
                (stream.line, stream.max_concurrent) = (None, 1);
            }
            let mut workload = workload(&streams, chunks, &capacities);
            add_independent_run(&mut workload, &independent);
            let watch = Watch { recording: Recording::RunEnds, ..Watch::default() };
            prop_assert!(are_streams(&workload, watch));
            let every = Watch { steady_states: SteadyStates::Simulate, ..watch };
            let Ok(whole) = run(&workload, every) else {
                prop_assert!(outcome(&workload, watch).unwrap().is_none());
                return Ok(());
            };
            let same = outcome(&workload, watch).unwrap().unwrap();
            prop_assert_eq!((whole.end, whole.costs, whole.operations), (same.end, same.costs, same.operations));
            prop_assert_eq!(&whole.run_ends, &same.run_ends);
            for until in [whole.end, Picos(whole.end.0 - 1), Picos((whole.end.0 as f64 * part) as u64)] {
                let limited = outcome(&workload, Watch { until: Some(until), ..watch });
                prop_assert_eq!(limited.is_ok(), whole.end <= until);
                let limited = run(&workload, Watch { until: Some(until), ..every });
                prop_assert_eq!(limited.is_ok(), whole.end <= until);
            }
        }
    }

    /// Runs that wait for later operations of their own are not streams, nor independent operations that are awaited.
    #[test]
    fn concurrent_operations_with_dependencies_are_no_streams() {
        let is_stream = |edges: &[Edge], awaited: bool| {
            let mut workload = Workload::new();
            let passage = RouteLatency { route: None, latency: Picos(7) };
            workload.add_uniform_run(10, passage, Work(0), Pace::default(), edges);
            let dependency = Edge { run: 0, start: 0, step: 1 };
            let edges = [Edge::turn(1), dependency];
            workload.add_uniform_run(10, passage, Work(0), Pace::default(), &edges[..1 + usize::from(awaited)]);
            are_streams(&workload, Watch::default())
        };
        assert!(is_stream(&[Edge::turn(0)], true));
        assert!(is_stream(&[Edge { run: 0, start: -1, step: 1 }], true));
        assert!(!is_stream(&[Edge { run: 0, start: -2, step: 1 }], true));
        assert!(is_stream(&[], false));
        assert!(!is_stream(&[], true));
    }
}
