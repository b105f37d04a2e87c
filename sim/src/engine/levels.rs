//! Levels of operations: the length of the longest chain of dependencies before each one.
//!
//! Levels depend on dependencies only; neither times nor the division of operations into runs affect them. Classes of a
//! folded workload have the levels of the runs that they represent, since they wait for the classes of those runs'
//! dependencies.

use super::Workload;
use super::by_operation::{ByOperation, OperationIndex};

/// Level of an operation that has not been examined.
const NEW: u32 = u32::MAX;
/// Level of an operation that is being examined; the levels of some of its dependencies are not known.
const OPEN: u32 = u32::MAX - 1;
/// Level of operations that never begin: those in a dependency cycle, and those that wait for such a cycle.
const NEVER: u32 = u32::MAX - 2;

/// Returns the levels of a workload's operations.
///
/// # Complexity
/// Linear in operations and their dependencies.
pub(super) fn levels(workload: &Workload) -> ByOperation {
    let mut found = ByOperation::new(workload, NEW);
    let mut stack: Vec<OperationIndex> = Vec::new();
    for (run, work_run) in (0u32..).zip(&workload.runs) {
        for index in 0..work_run.len {
            stack.push(OperationIndex { run, index });
            find(workload, &mut found, &mut stack);
        }
    }
    found
}

/// Determines the level of every operation on the stack, after those of all its dependencies; empties the stack.
fn find(workload: &Workload, found: &mut ByOperation, stack: &mut Vec<OperationIndex>) {
    while let Some(&operation) = stack.last() {
        let OperationIndex { run, index } = operation;
        let awaited = workload.run_waits(run).iter().filter_map(|edge| {
            let target = edge.target(index, workload.runs[edge.run as usize].len)?;
            Some(OperationIndex { run: edge.run, index: target })
        });
        match found.at(operation) {
            NEW => {
                found.set(operation, OPEN);
                stack.extend(awaited.filter(|&other| found.at(other) == NEW));
            }
            OPEN => {
                let after = |other: OperationIndex| match found.at(other) {
                    // A dependency that is still open waits for this operation.
                    NEW | OPEN | NEVER => NEVER,
                    level => level + 1,
                };
                let level = awaited.map(after).max().unwrap_or(0);
                found.set(operation, level);
                stack.pop();
            }
            _ => {
                stack.pop();
            }
        }
    }
}
