//! Levels of operations: how many others come before each one on the longest chain that it waits for.
//!
//! Levels depend on what waits for what alone: not on when anything happens, nor on how operations are divided into runs.
//! Classes of a folded workload have the levels of the runs that they represent, since they wait for the classes of what those
//! wait for.

use super::Workload;

/// Not looked at yet.
const NEW: u32 = u32::MAX;
/// Looked at, and not known yet.
const OPEN: u32 = u32::MAX - 1;
/// Operations that wait for themselves, and what waits for those: they never begin.
const NEVER: u32 = u32::MAX - 2;

/// The levels of a workload's operations.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    /// The place of each run's first operation.
    firsts: Vec<usize>,
    levels: Vec<u32>,
}

impl Levels {
    /// # Complexity
    /// Linear in operations and what they wait for; four bytes an operation.
    pub(super) fn of(workload: &Workload) -> Self {
        let mut firsts = Vec::with_capacity(workload.runs.len());
        let mut count = 0usize;
        for run in &workload.runs {
            firsts.push(count);
            count += run.len as usize;
        }
        let mut found = Self { firsts, levels: vec![NEW; count] };
        let mut stack: Vec<(u32, u32)> = Vec::new();
        for (run, work_run) in (0u32..).zip(&workload.runs) {
            for index in 0..work_run.len {
                stack.push((run, index));
                found.find(workload, &mut stack);
            }
        }
        found
    }

    /// The level of an operation.
    pub(super) fn at(&self, run: u32, index: u32) -> u32 {
        self.levels[self.firsts[run as usize] + index as usize]
    }

    /// Empties the stack: each operation on it once all is known that it waits for.
    fn find(&mut self, workload: &Workload, stack: &mut Vec<(u32, u32)>) {
        while let Some(&(run, index)) = stack.last() {
            let place = self.firsts[run as usize] + index as usize;
            let awaited = workload.waits_of(run).iter().filter_map(|edge| {
                let target = edge.target(index, workload.runs[edge.run as usize].len)?;
                Some((edge.run, target))
            });
            match self.levels[place] {
                NEW => {
                    self.levels[place] = OPEN;
                    stack.extend(awaited.filter(|&(run, index)| self.at(run, index) == NEW));
                }
                OPEN => {
                    let after = |(run, index): (u32, u32)| match self.at(run, index) {
                        // What is still open here waits for this operation.
                        NEW | OPEN | NEVER => NEVER,
                        level => level + 1,
                    };
                    self.levels[place] = awaited.map(after).max().unwrap_or(0);
                    stack.pop();
                }
                _ => {
                    stack.pop();
                }
            }
        }
    }
}
