//! What the engine runs: operations in runs, with their routes, sizes and delays already worked out.
//!
//! A workload knows nothing of ranks, chunks, protocols or fabrics. Lowering makes it from a schedule and a fabric;
//! folding makes a smaller one with the same times.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use crate::quantity::Work;
use crate::sharing::{RouteId, System};

/// Operation i of the dependent run waits for operation `start + step·i` of the run it is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The run at the other end.
    pub run: u32,
    /// See [`crate::schedule::Dependency::start`].
    pub start: i32,
    /// See [`crate::schedule::Dependency::step`].
    pub step: u32,
}

/// Where the operations of a run find a value in a table of their workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerOp {
    /// One entry for all of them.
    Same(u32),
    /// Entry `first + i` for operation i.
    Each(u32),
}

impl PerOp {
    /// The entry of operation `i`.
    #[must_use]
    pub fn entry(self, i: u32) -> usize {
        match self {
            Self::Same(entry) => entry as usize,
            Self::Each(first) => (first + i) as usize,
        }
    }
}

/// How an operation travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Passage {
    /// Capacities used; `None` where nothing limits it (a signal, a free local copy).
    pub route: Option<RouteId>,
    /// From the start of sending to the first byte's arrival.
    pub latency: Picos,
}

/// A table of passages, eight bytes each: there may be one per operation, and they have few latencies between them.
#[derive(Clone, Debug, Default)]
pub struct Passages {
    packed: Vec<Packed>,
    latencies: Vec<Picos>,
    known: FxHashMap<Picos, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    /// [`NO_ROUTE`] for none.
    route: u32,
    /// In the table of latencies.
    latency: u32,
}

const NO_ROUTE: u32 = u32::MAX;

impl Passages {
    /// Adds a passage; returns its place.
    pub fn push(&mut self, passage: Passage) -> u32 {
        let is_last = self.packed.last().is_some_and(|last| self.latencies[last.latency as usize] == passage.latency);
        let latency = match self.packed.last() {
            Some(last) if is_last => last.latency,
            _ => *self.known.entry(passage.latency).or_insert_with(|| {
                self.latencies.push(passage.latency);
                self.latencies.len() as u32 - 1
            }),
        };
        self.packed.push(Packed { route: passage.route.map_or(NO_ROUTE, |route| route.0), latency });
        self.packed.len() as u32 - 1
    }

    /// The passage at a place, which must exist.
    #[must_use]
    pub fn get(&self, place: usize) -> Passage {
        let Packed { route, latency } = self.packed[place];
        let route = (route != NO_ROUTE).then_some(RouteId(route));
        Passage { route, latency: self.latencies[latency as usize] }
    }

    /// Whether the passages at two places, which must exist, are one.
    #[must_use]
    pub fn are_alike(&self, a: usize, b: usize) -> bool {
        self.packed[a] == self.packed[b]
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }
}

/// What holds operations back besides others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pace {
    /// Software time before each one starts.
    pub software: Picos,
    /// None is ready before this (a straggling rank, the start-up of a kernel).
    pub not_before: Picos,
    /// The part of `not_before` by which its rank starts later than the first rank of its call.
    pub late: Picos,
    /// From the first byte of one to that of the next at least, where they go in turn.
    pub spacing: Picos,
}

/// Consecutive operations that differ by arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRun {
    /// Number of operations.
    pub len: u32,
    /// How they travel, in [`Workload::passages`].
    pub passage: PerOp,
    /// What they move, in [`Workload::works`].
    pub work: PerOp,
    /// What holds them back, in [`Workload::paces`].
    pub pace: PerOp,
}

/// Whether the operations of a run follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Only as what they wait for says.
    #[default]
    Free,
    /// As the messages of a connection do: operation i + 1 is begun once the software time of operation i is over, while
    /// that one is on its way or waits, and flows once operation i is done and its spacing is over. The run has an [`Edge::turn`] to itself.
    InTurn,
}

/// Where the operations of a run stand: of operations on one line one flows at a time, in the order in which they come where every
/// rank starts on time; of those that come at one instant the one of the lowest level (how many operations come before it on the
/// longest chain that it waits for), then the one whose run stands further ahead, then the earlier of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The line, in [`Workload::lines`].
    pub line: PerOp,
    /// How many stand ahead. Runs on one line stand at different places.
    pub place: u32,
}

/// Runs, what they wait for, and the system they share.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Capacities and routes.
    pub system: System,
    /// The runs.
    pub runs: Vec<WorkRun>,
    /// `waits[wait_starts[a]..wait_starts[a + 1]]`: what run a waits for.
    pub waits: Vec<Edge>,
    /// Bounds into `waits`, one more than runs.
    pub wait_starts: Vec<u32>,
    /// The ways that operations travel.
    pub passages: Passages,
    /// The amounts that operations move.
    pub works: Vec<Work>,
    /// What holds operations back.
    pub paces: Vec<Pace>,
    /// Where runs stand in line, by run; as long as the last that does.
    pub standings: Vec<Option<Standing>>,
    /// The lines that operations stand in, numbered from 0.
    pub lines: Vec<u32>,
    /// Software time before anything starts; part of every `not_before`.
    pub startup: Picos,
    /// Runs from here on share the capacities and do not count for the end.
    pub background_from: u32,
}

impl Workload {
    /// The most operations that are simulated, after folding: about a minute of them.
    pub const MOST_OPERATIONS: u64 = 1 << 28;

    /// Nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self { system: System::new(), wait_starts: vec![0], background_from: u32::MAX, ..Self::default() }
    }

    /// Adds a run that waits for `waits` (in terms of runs added before or after); returns its number.
    pub fn add_run(&mut self, run: WorkRun, waits: &[Edge]) -> u32 {
        self.runs.push(run);
        self.waits.extend_from_slice(waits);
        self.wait_starts.push(self.waits.len() as u32);
        self.runs.len() as u32 - 1
    }

    /// Adds `len` operations that are all alike, with table entries of their own; returns the run's number.
    pub fn add_uniform_run(&mut self, len: u32, passage: Passage, work: Work, pace: Pace, waits: &[Edge]) -> u32 {
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

    /// What run `run` waits for.
    #[must_use]
    pub fn waits_of(&self, run: u32) -> &[Edge] {
        &self.waits[self.wait_starts[run as usize] as usize..self.wait_starts[run as usize + 1] as usize]
    }

    /// Passage of an operation.
    #[must_use]
    pub fn passage(&self, run: u32, index: u32) -> Passage {
        self.passages.get(self.runs[run as usize].passage.entry(index))
    }

    /// Work of an operation.
    #[must_use]
    pub fn work(&self, run: u32, index: u32) -> Work {
        self.works[self.runs[run as usize].work.entry(index)]
    }

    /// Pace of an operation.
    #[must_use]
    pub fn pace(&self, run: u32, index: u32) -> Pace {
        self.paces[self.runs[run as usize].pace.entry(index)]
    }

    /// Where a run stands in line, if it does.
    #[must_use]
    pub fn standing(&self, run: u32) -> Option<Standing> {
        self.standings.get(run as usize).copied().flatten()
    }

    /// The lines of a run's operations: one for all of them, or one each; none where they stand in no line.
    #[must_use]
    pub fn lines_of(&self, run: u32) -> &[u32] {
        let Some(Standing { line, .. }) = self.standing(run) else { return &[] };
        let len = match line {
            PerOp::Same(_) => 1,
            PerOp::Each(_) => self.runs[run as usize].len as usize,
        };
        let first = line.entry(0);
        self.lines.get(first..first + len).unwrap_or_default()
    }

    /// The line of an operation, if it stands in one.
    #[must_use]
    pub fn line(&self, run: u32, index: u32) -> Option<u32> {
        self.standing(run).and_then(|standing| self.lines.get(standing.line.entry(index)).copied())
    }

    /// Number of lines.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.lines.iter().max().map_or(0, |&last| last as usize + 1)
    }

    /// Puts a run in line.
    pub fn stand(&mut self, run: u32, standing: Standing) {
        let count = self.standings.len().max(run as usize + 1);
        self.standings.resize(count, None);
        if let Some(own) = self.standings.get_mut(run as usize) {
            *own = Some(standing);
        }
    }

    /// Number of operations.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.len)).sum()
    }
}

/// The step of edges that say that operations go in turn. No other edge has it: operations are fewer.
const TURN: u32 = u32::MAX;

impl Edge {
    /// The edge of a run to itself by which its operations go in turn ([`Order::InTurn`]).
    #[must_use]
    pub fn turn(run: u32) -> Self {
        Self { run, start: -1, step: TURN }
    }

    /// Whether it is such an edge. It stays one where a run stands for others, which an edge to an equal run does not.
    #[must_use]
    pub fn is_turn(self) -> bool {
        self.step == TURN
    }

    /// How far the operation waited for walks from one operation to the next.
    pub(super) fn walk(self) -> u32 {
        if self.is_turn() { 1 } else { self.step }
    }

    /// The operation that operation `i` waits for, in a run of `len`.
    #[must_use]
    pub fn target(self, i: u32, len: u32) -> Option<u32> {
        let index = i64::from(self.start) + i64::from(self.walk()) * i64::from(i);
        u32::try_from(index).ok().filter(|&index| index < len)
    }

    /// The operations, in a run of `len`, that wait for operation `j`.
    #[must_use]
    pub fn sources(self, j: u32, len: u32) -> std::ops::Range<u32> {
        let offset = i64::from(j) - i64::from(self.start);
        let step = i64::from(self.walk());
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
    fn too_many_operations_are_refused_before_the_first() {
        let mut workload = Workload::new();
        let len = (Workload::MOST_OPERATIONS + 1) as u32;
        workload.add_uniform_run(len, Passage { route: None, latency: Picos::ZERO }, Work(0), Pace::default(), &[]);
        let refused = run(&workload, Watch::default()).unwrap_err();
        assert_eq!(refused, EngineError::TooManyOperations { operations: len.into() });
        assert!(refused.to_string().contains("at most 268435456 are simulated"), "{refused}");
    }
}
