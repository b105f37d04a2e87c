//! Table with a number for each operation of a workload.

use super::Workload;

/// Identifies an operation of a workload by its run and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationIndex {
    pub run: u32,
    /// Index of the operation within its run.
    pub index: u32,
}

/// Table with one `u32` for each operation of a workload.
#[derive(Clone, Debug)]
pub(super) struct ByOperation {
    /// Index in `values` of each run's first operation.
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
    pub fn at(&self, operation: OperationIndex) -> u32 {
        self.values[self.entry(operation)]
    }

    /// Sets the value of an operation, which must exist.
    pub fn set(&mut self, operation: OperationIndex, value: u32) {
        let entry = self.entry(operation);
        self.values[entry] = value;
    }

    fn entry(&self, operation: OperationIndex) -> usize {
        self.firsts[operation.run as usize] + operation.index as usize
    }
}
