//! Templates of two loops for schedules with any number of loops.
//!
//! A call with several loops repeats the operations of one loop on other chunks; only the chunks of the last loop may be
//! smaller. If every run of a schedule has equally many operations in each loop, in order of loop, a schedule with more
//! loops has the same runs with more operations. Operation i of a run then waits for the same operations, relative to
//! i, and uses the same route as operation i of two loops (modulo the operations of a loop). So runs and capacities of
//! one class of the schedule of two loops have equal neighbours in the longer schedule as well, and the classes remain
//! valid: the runs of the folded workload are prolonged, without lowering or colour refinement of all ranks.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use super::amounts::OperationNumber;
use super::outline::Outline;
use super::{Amounts, Capacity, LoopSizes, Template};
use crate::engine::{Pace, PassageTable, PerOp, RouteLatency, WorkRun, Workload};
use crate::lower::{Latency, size_walk};
use crate::quantity::Work;
use crate::schedule::{ChunkSize, Program, Walk};
use crate::sharing::{RouteId, System};

/// Order of a schedule's operations with respect to its loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopOrder {
    /// Every run has equally many operations in each loop, in order of loop.
    Repeated,
    /// Other schedules, or a single loop.
    Other,
}

impl LoopOrder {
    /// Determines the order of the operations of an outline with `rounds` loops, and of its lowered and folded workload.
    pub(super) fn find(outline: &Outline, workload: &Workload, rounds: u32) -> Self {
        let chunks = outline.header.layout.chunks() / rounds.max(1);
        let runs = || outline.programs.iter().flat_map(Program::runs);
        let repeats = rounds > 1
            && runs().all(|run| {
                run.len.is_multiple_of(rounds)
                    && (!run.kind.moves_data() || advances_by_loop(size_walk(run), run.len, run.len / rounds, chunks))
            })
            && (0..workload.runs.len() as u32).all(|run| has_equal_loops(workload, run, rounds));
        if repeats { Self::Repeated } else { Self::Other }
    }
}

/// Returns true if a walk of `len` steps visits the same chunks in each loop of `steps` steps and `chunks` chunks.
fn advances_by_loop(walk: Walk, len: u32, steps: u32, chunks: u32) -> bool {
    let is_in_first = |step: u32| walk.at(step) < chunks;
    let distance = u64::from(walk.step) * u64::from(walk.stride) * u64::from(steps);
    len == 0 || (walk.modulus == 0 && distance == u64::from(chunks) && is_in_first(0) && is_in_first(steps - 1))
}

/// Returns true if corresponding operations of all loops of a run have the same passages, amounts, paces and lines, and
/// wait for operations of other runs that advance equally from loop to loop.
fn has_equal_loops(workload: &Workload, run: u32, rounds: u32) -> bool {
    let WorkRun { len, passage, pace, work } = workload.runs[run as usize];
    let steps = len / rounds;
    let line = workload.line_position(run).map(|position| position.line);
    let is_equal = |i: u32| {
        workload.passages.are_equal(passage.entry(i), passage.entry(i - steps))
            && workload.paces[pace.entry(i)] == workload.paces[pace.entry(i - steps)]
            && workload.works[work.entry(i)] == workload.works[work.entry(i - steps)]
    };
    let is_uniform = [passage, pace, work].iter().all(|location| matches!(location, PerOp::Same(_)));
    let mut waits = workload.run_waits(run).iter();
    let advances = waits.all(|edge| {
        let awaited_steps = u64::from(workload.runs[edge.run as usize].len / rounds);
        // Runs without operations neither wait nor are awaited.
        edge.is_turn() || awaited_steps == 0 || u64::from(edge.step) * u64::from(steps) == awaited_steps
    });
    let has_one_line = line.is_none_or(|line| matches!(line, PerOp::Same(_)));
    steps == 0 || has_one_line && advances && (is_uniform || (steps..len).all(is_equal))
}

/// Costs and amounts of all loops of a call.
pub(super) struct LoopAmounts {
    /// Amounts of all loops but the last.
    full: Amounts,
    /// Amounts of the last loop; `None` if they are equal.
    last: Option<Amounts>,
    /// Number of loops of the call.
    loops: u32,
}

impl LoopAmounts {
    pub(super) fn new(sizes: LoopSizes, amounts: impl Fn(ChunkSize) -> Amounts) -> Self {
        let last = (sizes.full != sizes.last).then(|| amounts(sizes.last));
        Self { full: amounts(sizes.full), last, loops: sizes.loops }
    }

    /// Distinct amounts, in order of loop.
    fn parts(&self) -> impl Iterator<Item = &Amounts> {
        std::iter::once(&self.full).chain(&self.last)
    }
}

impl Template {
    /// Returns the folded workload of a call with these amounts. Operations whose route has no load have no route.
    pub(super) fn workload(&self, amounts: &LoopAmounts, startup: Picos) -> Workload {
        let system = self.system(amounts.parts());
        let mut paces = Vec::new();
        let mut works: Vec<Work> = Vec::new();
        for part in amounts.parts() {
            let pace = |task: u32| Pace { not_before: startup, ..part.pace(task) };
            paces.extend(self.workload.paces.iter().map(|placeholder| pace(placeholder.software.0 as u32)));
            works.extend_from_slice(&part.works);
        }
        let passages = self.passages(&system, amounts);
        let mut workload = Workload { startup, paces, works, system, passages, ..self.dependencies() };
        let (rounds, loops) = (self.rounds, amounts.loops);
        if loops == rounds && amounts.last.is_none() {
            return workload;
        }
        let prolongation = |run: &WorkRun| Prolongation {
            steps: run.len / rounds,
            full: run.len / rounds * (loops - u32::from(amounts.last.is_some())),
            len: run.len / rounds * loops,
        };
        let (passage_count, pace_count) = (self.workload.passages.len() as u32, self.workload.paces.len() as u32);
        let work_count = amounts.full.works.len() as u32;
        let (mut known_passages, mut known_paces, mut known_works) = Default::default();
        let mut runs = std::mem::take(&mut workload.runs);
        for run in &mut runs {
            let prolongation = prolongation(run);
            let Workload { passages, paces, works, .. } = &mut workload;
            run.passage = prolongation.locate(run.passage, passage_count, &mut known_passages, |entry| {
                let passage = passages.get(entry as usize);
                passages.push(passage)
            });
            run.pace = prolongation.locate(run.pace, pace_count, &mut known_paces, |entry| push_copy(paces, entry));
            run.work = prolongation.locate(run.work, work_count, &mut known_works, |entry| push_copy(works, entry));
            run.len = prolongation.len;
        }
        workload.runs = runs;
        workload
    }

    /// Returns the passages of the template's workload for the amounts of the first loops, followed by those of the last
    /// loop.
    fn passages(&self, system: &System, amounts: &LoopAmounts) -> PassageTable {
        let has_load = |route: &RouteId| system.uses(*route).len() > 0;
        let mut passages = PassageTable::default();
        for (part, part_amounts) in (0..).zip(amounts.parts()) {
            let first_route = part * self.routes.len() as u32;
            for (index, &task) in self.passage_tasks.iter().enumerate() {
                let RouteLatency { route, latency } = self.workload.passages.get(index);
                let route = route.map(|RouteId(route)| RouteId(first_route + route)).filter(has_load);
                let latency = Latency::decode(latency).with_crossing_costs(part_amounts.crossing(task));
                passages.push(RouteLatency { route, latency });
            }
        }
        passages
    }

    /// Returns the runs, dependencies and lines of the template's workload, without tables and system.
    fn dependencies(&self) -> Workload {
        let Workload { runs, waits, wait_starts, line_positions, lines, background_from, .. } = &self.workload;
        Workload {
            runs: runs.clone(),
            waits: waits.clone(),
            wait_starts: wait_starts.clone(),
            line_positions: line_positions.clone(),
            lines: lines.clone(),
            background_from: *background_from,
            ..Workload::default()
        }
    }

    /// Returns the total work that passes through a capacity in all loops.
    pub(super) fn passing_in_loops(&self, capacity: &Capacity, amounts: &LoopAmounts) -> Work {
        let rounds = u128::from(self.rounds);
        let last_loops = u128::from(amounts.last.is_some());
        let loops = [u128::from(amounts.loops) - last_loops, last_loops];
        let passed = amounts.parts().zip(loops).map(|(part, loops)| {
            // Operations are counted in groups of equal ones of a run, or one by one.
            let in_loops = |OperationNumber { in_group, times }: OperationNumber| match in_group {
                1 => OperationNumber { in_group, times: times * loops / rounds },
                _ => OperationNumber { in_group: in_group * loops / rounds, times },
            };
            self.passing_operations(capacity, part, in_loops).0
        });
        Work(passed.sum())
    }
}

/// Numbers of operations of a run in all loops of a call.
#[derive(Clone, Copy)]
struct Prolongation {
    /// Operations of a loop.
    steps: u32,
    /// Operations with the amounts of the first loops.
    full: u32,
    /// Operations of all loops.
    len: u32,
}

impl Prolongation {
    /// Returns the location of the values of all operations, given that of one loop's values. `count`: number of
    /// entries before those of the last loop; `push`: adds a copy of an entry to the table. Runs with equal values share
    /// their entries in `known`.
    fn locate(
        self,
        location: PerOp,
        count: u32,
        known: &mut FxHashMap<(u32, u32), u32>,
        mut push: impl FnMut(u32) -> u32,
    ) -> PerOp {
        let entry = |i: u32| location.entry(i % self.steps) as u32 + if i < self.full { 0 } else { count };
        let mut add = || {
            let first = push(entry(0));
            for i in 1..self.len {
                push(entry(i));
            }
            first
        };
        match location {
            _ if self.len == 0 => location,
            PerOp::Same(_) if self.full == self.len => location,
            PerOp::Same(one) => PerOp::Each(*known.entry((one, self.steps)).or_insert_with(add)),
            PerOp::Each(_) => PerOp::Each(add()),
        }
    }
}

/// Adds a copy of an entry to a table; returns its index.
fn push_copy<T: Copy>(table: &mut Vec<T>, entry: u32) -> u32 {
    let value = table[entry as usize];
    table.push(value);
    table.len() as u32 - 1
}
