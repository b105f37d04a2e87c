//! Table with a number for each operation of a workload.

use super::Workload;

/// Table with four bytes per operation.
#[derive(Clone, Debug)]
pub(super) struct ByOperation {
    /// Position of each run's first operation.
    firsts: Vec<usize>,
    values: Vec<u32>,
}

impl ByOperation {
    /// Creates a table with one value for all operations.
    pub fn new(workload: &Workload, value: u32) -> Self {
        let mut firsts = Vec::with_capacity(workload.runs.len());
        let mut count = 0usize;
        for run in &workload.runs {
            firsts.push(count);
            count += run.len as usize;
        }
        Self { firsts, values: vec![value; count] }
    }

    /// Returns the value of an operation, which must exist.
    pub fn at(&self, (run, index): (u32, u32)) -> u32 {
        self.values[self.entry(run, index)]
    }

    /// Sets the value of an operation, which must exist.
    pub fn set(&mut self, (run, index): (u32, u32), value: u32) {
        let entry = self.entry(run, index);
        self.values[entry] = value;
    }

    fn entry(&self, run: u32, index: u32) -> usize {
        self.firsts[run as usize] + index as usize
    }
}
