//! Ranges of equal operations within runs.
//!
//! Two operations of a run are equal if they have the same route, latency, work, software time and line, and the same
//! edges begin and end at them. A run's *borders* are the indexes at which an operation differs from the one before.

use super::super::graph::{EdgeRange, awaited_range};
use super::super::{Edge, LinePosition, PerOp, Workload, passage_ranges};
use super::RunProgress;

/// Borders of all runs, and the dependencies between runs.
#[derive(Debug)]
pub(super) struct Interior {
    /// Index in `borders` of each run's first border, followed by their total number.
    starts: Vec<u32>,
    /// Borders of each run, sorted; the last is its length.
    borders: Vec<u32>,
    /// Dependencies with a non-zero step, and the ranges of operations that they affect.
    dependencies: Vec<RunDependency>,
}

/// Dependency of a run on another. Operation i waits for operation `start + step·i`.
#[derive(Debug)]
struct RunDependency {
    waiting_run: u32,
    awaited_run: u32,
    step: u32,
    waiting: EdgeRange,
    awaited: EdgeRange,
}

impl Interior {
    pub(super) fn new(workload: &Workload) -> Self {
        let mut borders: Vec<Vec<u32>> =
            (0..workload.runs.len() as u32).map(|run| own_borders(workload, run)).collect();
        let mut dependencies = Vec::new();
        for run in 0..workload.runs.len() as u32 {
            for &edge in workload.run_waits(run) {
                let waiting = edge.waiting(workload.runs[run as usize].len, workload);
                if waiting.is_empty() {
                    continue;
                }
                let awaited = awaited_range(edge, &waiting);
                borders[run as usize].extend([waiting.start, waiting.end]);
                borders[edge.run as usize].extend([awaited.start, awaited.end]);
                let Edge { run: awaited_run, .. } = edge;
                let step = edge.index_step();
                if step > 0 {
                    dependencies.push(RunDependency { waiting_run: run, awaited_run, step, waiting, awaited });
                }
            }
        }
        let mut interior = Self { starts: vec![0], borders: Vec::new(), dependencies };
        for (run, mut list) in workload.runs.iter().zip(borders) {
            list.push(run.len);
            list.sort_unstable();
            list.dedup();
            interior.borders.extend(list.into_iter().filter(|&border| border > 0));
            interior.starts.push(interior.borders.len() as u32);
        }
        interior
    }

    /// Returns the number of further whole periods before any run reaches its next border, given the operations done at
    /// the start of a period and the progress at its end.
    pub(super) fn whole_periods(&self, earlier: &[u32], present: &RunProgress) -> u32 {
        let shift = |run: u32| present.done[run as usize] - earlier[run as usize];
        let stays_in_step = |dependency: &RunDependency| {
            let [waiting, awaited] = [dependency.waiting_run, dependency.awaited_run].map(shift);
            let is_active =
                |run: u32, shift: u32, range: &EdgeRange| shift > 0 && range.contains(&earlier[run as usize]);
            let is_used = is_active(dependency.waiting_run, waiting, &dependency.waiting)
                || is_active(dependency.awaited_run, awaited, &dependency.awaited);
            !is_used || u64::from(awaited) == u64::from(waiting) * u64::from(dependency.step)
        };
        if !self.dependencies.iter().all(stays_in_step) {
            return 0;
        }
        let periods = |run: u32| {
            let shift = shift(run);
            let until = self.next_border(run, earlier[run as usize]);
            let room = until.saturating_sub(present.frontier[run as usize]);
            (shift > 0).then(|| room / shift)
        };
        (0..earlier.len() as u32).filter_map(periods).min().unwrap_or_default()
    }

    /// Returns the first border of a run above `index`; 0 if there is none.
    fn next_border(&self, run: u32, index: u32) -> u32 {
        let range = self.starts[run as usize] as usize..self.starts[run as usize + 1] as usize;
        let borders = &self.borders[range];
        borders.get(borders.partition_point(|&border| border <= index)).copied().unwrap_or_default()
    }
}

/// Returns the borders of a run that are due to its routes, amounts, delays and lines.
fn own_borders(workload: &Workload, run: u32) -> Vec<u32> {
    let work_run = workload.runs[run as usize];
    let mut borders: Vec<u32> = passage_ranges(workload, run).map(|range| range.start).collect();
    let mut add = |per_op: PerOp, differ: &dyn Fn(u32) -> bool| {
        if let PerOp::Each(_) = per_op {
            borders.extend((1..work_run.len).filter(|&index| differ(index)));
        }
    };
    add(work_run.work, &|index| workload.work(run, index) != workload.work(run, index - 1));
    add(work_run.pace, &|index| workload.pace(run, index) != workload.pace(run, index - 1));
    if let Some(LinePosition { line, .. }) = workload.line_position(run) {
        add(line, &|index| workload.line(run, index) != workload.line(run, index - 1));
    }
    borders
}
