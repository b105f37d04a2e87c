//! Input of the engine: operations in runs, with their routes, sizes and delays.
//!
//! A workload contains no ranks, chunks, protocols or fabrics. Lowering creates it from a schedule and a fabric;
//! folding reduces it to a smaller one with the same times.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use crate::quantity::Work;
use crate::sharing::{RouteId, System};

/// Dependency between runs. Operation i of the dependent run waits for operation `start + step·i` of the run at the
/// other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Number of the run at the other end: the awaited run in [`Workload::waits`].
    pub run: u32,
    /// Index of the operation that operation 0 waits for; may be negative. See [`crate::schedule::Dependency::start`].
    pub start: i32,
    /// Increment of the awaited index per dependent operation. See [`crate::schedule::Dependency::step`].
    pub step: u32,
}

/// Location of the values of a run's operations in one of the workload's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerOp {
    /// One entry for all operations of the run; holds its index.
    Same(u32),
    /// One entry for each operation: entry `first + i` for operation i.
    Each(u32),
}

impl PerOp {
    /// Returns the index in the table of the value of operation `i`.
    #[must_use]
    pub fn entry(self, i: u32) -> usize {
        match self {
            Self::Same(entry) => entry as usize,
            Self::Each(first) => (first + i) as usize,
        }
    }
}

/// Route and latency of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteLatency {
    /// Route, which determines the capacities used; `None` if no capacity limits the operation (a signal, or a local
    /// copy without cost).
    pub route: Option<RouteId>,
    /// Time from the start of sending to the arrival of the first byte.
    pub latency: Picos,
}

/// Table of passages (route and latency), in eight bytes each. There may be one entry per operation, but few distinct
/// latencies.
#[derive(Clone, Debug, Default)]
pub struct PassageTable {
    packed: Vec<PackedPassage>,
    latencies: Vec<Picos>,
    known: FxHashMap<Picos, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedPassage {
    /// Number of the route; [`NO_ROUTE`] for none.
    route: u32,
    /// Index in `PassageTable::latencies`.
    latency: u32,
}

const NO_ROUTE: u32 = u32::MAX;

impl PassageTable {
    /// Adds a passage; returns its index.
    pub fn push(&mut self, passage: RouteLatency) -> u32 {
        let is_last = self.packed.last().is_some_and(|last| self.latencies[last.latency as usize] == passage.latency);
        let latency = match self.packed.last() {
            Some(last) if is_last => last.latency,
            _ => *self.known.entry(passage.latency).or_insert_with(|| {
                self.latencies.push(passage.latency);
                self.latencies.len() as u32 - 1
            }),
        };
        self.packed.push(PackedPassage { route: passage.route.map_or(NO_ROUTE, |route| route.0), latency });
        self.packed.len() as u32 - 1
    }

    /// Returns the passage at an index, which must exist.
    #[must_use]
    pub fn get(&self, index: usize) -> RouteLatency {
        let PackedPassage { route, latency } = self.packed[index];
        let route = (route != NO_ROUTE).then_some(RouteId(route));
        RouteLatency { route, latency: self.latencies[latency as usize] }
    }

    /// Returns true if the passages at two indexes, which must exist, are equal.
    #[must_use]
    pub fn are_equal(&self, a: usize, b: usize) -> bool {
        self.packed[a] == self.packed[b]
    }

    /// Returns the number of passages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Returns true if there is no passage.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }
}

/// Delays of an operation that are not due to its dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Software time of an operation, before its data is sent.
    pub software: Picos,
    /// Earliest time at which an operation is ready, due to a rank that starts late or to the start-up of a kernel.
    pub not_before: Picos,
    /// Part of `not_before` by which the operation's rank starts later than the first rank of its call.
    pub delay: Picos,
    /// Minimum time from the first byte of one operation to that of the next, in a run in [`RunOrder::InTurn`].
    pub spacing: Picos,
}

/// Run: consecutive operations of one rank, whose values are stored in the workload's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRun {
    /// Number of operations in the run.
    pub len: u32,
    /// Location of routes and latencies in [`Workload::passages`].
    pub passage: PerOp,
    /// Location of the amounts moved in [`Workload::works`].
    pub work: PerOp,
    /// Location of the delays in [`Workload::paces`].
    pub pace: PerOp,
}

/// Order among the operations of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RunOrder {
    /// The order is determined by dependencies only.
    #[default]
    Free,
    /// Order of the messages of a connection: operation i + 1 begins once the software time of operation i is over,
    /// while that one is in transit or waits, and flows once operation i is done and its spacing is over. The run has
    /// an [`Edge::turn`] to itself.
    InTurn,
}

/// Position of a run's operations on lines (ordered connections). On a line, one operation transfers data at a time, in
/// the order of arrival that applies if every rank starts on time. Operations that arrive at the same instant are
/// ordered by level (length of the longest chain of dependencies), then by the run's position, then by index within the
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePosition {
    /// Location of the line numbers of the run's operations in [`Workload::lines`].
    pub line: PerOp,
    /// Number of runs that precede this one on its lines. Runs on one line have distinct positions.
    pub position: u32,
}

/// Workload of the engine: runs, their dependencies, and the system of capacities that they share.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Capacities, and the routes over them that operations use.
    pub system: System,
    /// Runs, indexed by their numbers.
    pub runs: Vec<WorkRun>,
    /// `waits[wait_starts[a]..wait_starts[a + 1]]`: dependencies of run a.
    pub waits: Vec<Edge>,
    /// Index in `waits` of each run's first dependency, followed by their total number.
    pub wait_starts: Vec<u32>,
    /// Routes and latencies of operations, indexed by [`WorkRun::passage`].
    pub passages: PassageTable,
    /// Amounts that operations move, indexed by [`WorkRun::work`].
    pub works: Vec<Work>,
    /// Delays of operations, indexed by [`WorkRun::pace`].
    pub paces: Vec<Pace>,
    /// Positions of runs on lines, by run. Truncated after the last run that has a position.
    pub line_positions: Vec<Option<LinePosition>>,
    /// Line numbers of operations, from 0, indexed by [`LinePosition::line`].
    pub lines: Vec<u32>,
    /// Software time before any operation starts; included in every `not_before`.
    pub startup: Picos,
    /// Number of the first background run. Background runs share the capacities, but do not count towards the end of
    /// the workload.
    pub background_from: u32,
}

impl Workload {
    /// Maximum number of simulated operations, after folding: about a minute of simulation.
    pub const MAX_OPERATIONS: u64 = 1 << 28;

    /// Creates an empty workload.
    #[must_use]
    pub fn new() -> Self {
        Self { system: System::new(), wait_starts: vec![0], background_from: u32::MAX, ..Self::default() }
    }

    /// Adds a run with dependencies `waits` (on runs added before or after it); returns its number.
    pub fn add_run(&mut self, run: WorkRun, waits: &[Edge]) -> u32 {
        self.runs.push(run);
        self.waits.extend_from_slice(waits);
        self.wait_starts.push(self.waits.len() as u32);
        self.runs.len() as u32 - 1
    }

    /// Adds a run of `len` equal operations, with table entries of its own; returns its number.
    pub fn add_uniform_run(&mut self, len: u32, passage: RouteLatency, work: Work, pace: Pace, waits: &[Edge]) -> u32 {
        let passage = self.passages.push(passage);
        self.works.push(work);
        self.paces.push(pace);
        let run = WorkRun {
            len,
            passage: PerOp::Same(passage),
            work: PerOp::Same(self.works.len() as u32 - 1),
            pace: PerOp::Same(self.paces.len() as u32 - 1),
        };
        self.add_run(run, waits)
    }

    /// Returns the dependencies of a run on other runs or itself.
    #[must_use]
    pub fn run_waits(&self, run: u32) -> &[Edge] {
        &self.waits[self.wait_starts[run as usize] as usize..self.wait_starts[run as usize + 1] as usize]
    }

    /// Returns the route and latency of an operation.
    #[must_use]
    pub fn passage(&self, run: u32, index: u32) -> RouteLatency {
        self.passages.get(self.runs[run as usize].passage.entry(index))
    }

    /// Returns the amount of data that an operation moves.
    #[must_use]
    pub fn work(&self, run: u32, index: u32) -> Work {
        self.works[self.runs[run as usize].work.entry(index)]
    }

    /// Returns the delays of an operation.
    #[must_use]
    pub fn pace(&self, run: u32, index: u32) -> Pace {
        self.paces[self.runs[run as usize].pace.entry(index)]
    }

    /// Returns the position of a run on its lines; `None` if the run uses no line.
    #[must_use]
    pub fn line_position(&self, run: u32) -> Option<LinePosition> {
        self.line_positions.get(run as usize).copied().flatten()
    }

    /// Returns the lines of a run's operations: one line for all of them, or one for each; empty if the run uses no
    /// line.
    #[must_use]
    pub fn run_lines(&self, run: u32) -> &[u32] {
        let Some(LinePosition { line, .. }) = self.line_position(run) else { return &[] };
        let len = match line {
            PerOp::Same(_) => 1,
            PerOp::Each(_) => self.runs[run as usize].len as usize,
        };
        let first = line.entry(0);
        self.lines.get(first..first + len).unwrap_or_default()
    }

    /// Returns the line of an operation; `None` if it uses no line.
    #[must_use]
    pub fn line(&self, run: u32, index: u32) -> Option<u32> {
        self.line_position(run).and_then(|line_position| self.lines.get(line_position.line.entry(index)).copied())
    }

    /// Returns the number of lines.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.lines.iter().max().map_or(0, |&last| last as usize + 1)
    }

    /// Sets the position of a run on its lines.
    pub fn set_line_position(&mut self, run: u32, line_position: LinePosition) {
        let count = self.line_positions.len().max(run as usize + 1);
        self.line_positions.resize(count, None);
        if let Some(entry) = self.line_positions.get_mut(run as usize) {
            *entry = Some(line_position);
        }
    }

    /// Returns the number of operations of all runs.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.len)).sum()
    }
}

/// Step of the edge that marks a run in [`RunOrder::InTurn`]. Other edges have smaller steps, since runs have fewer
/// operations.
const TURN: u32 = u32::MAX;

impl Edge {
    /// Creates the edge of a run to itself that marks it as [`RunOrder::InTurn`].
    #[must_use]
    pub fn turn(run: u32) -> Self {
        Self { run, start: -1, step: TURN }
    }

    /// Returns true for an edge that marks a run as [`RunOrder::InTurn`]. The edge is identified by its step, since in a
    /// folded workload an edge between two runs of one class also leads from a run to itself.
    #[must_use]
    pub fn is_turn(self) -> bool {
        self.step == TURN
    }

    /// Increment of the awaited operation's index from one operation to the next.
    pub(super) fn index_step(self) -> u32 {
        if self.is_turn() { 1 } else { self.step }
    }

    /// Returns the index of the operation that operation `i` waits for in a run of `len` operations; `None` if that run
    /// has no such operation.
    #[must_use]
    pub fn target(self, i: u32, len: u32) -> Option<u32> {
        let index = i64::from(self.start) + i64::from(self.index_step()) * i64::from(i);
        u32::try_from(index).ok().filter(|&index| index < len)
    }

    /// Returns the indexes of the operations, in a run of `len` operations, that wait for operation `j`.
    #[must_use]
    pub fn sources(self, j: u32, len: u32) -> std::ops::Range<u32> {
        let offset = i64::from(j) - i64::from(self.start);
        let step = i64::from(self.index_step());
        if step == 0 {
            return if offset == 0 { 0..len } else { 0..0 };
        }
        if offset < 0 || offset % step != 0 || offset / step >= i64::from(len) {
            return 0..0;
        }
        let i = (offset / step) as u32;
        i..i + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineError, Watch, run};

    #[test]
    fn too_many_operations_are_rejected_before_simulation() {
        let mut workload = Workload::new();
        let len = (Workload::MAX_OPERATIONS + 1) as u32;
        workload.add_uniform_run(
            len,
            RouteLatency { route: None, latency: Picos::ZERO },
            Work(0),
            Pace::default(),
            &[],
        );
        let refused = run(&workload, Watch::default()).unwrap_err();
        assert_eq!(refused, EngineError::TooManyOperations { operations: len.into() });
        assert!(refused.to_string().contains("at most 268435456 are simulated"), "{refused}");
    }
}
