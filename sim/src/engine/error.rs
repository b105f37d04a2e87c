//! Errors of the engine.

use fabricast_topologies::Picos;

use super::Workload;

/// Reasons why a run did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Operations wait for each other in a cycle.
    #[error(
        "deadlock: {done} of {total} operations are done and the rest wait for each other; the first to wait is operation {index} of run {run}"
    )]
    Deadlock {
        /// Number of operations done.
        done: u64,
        /// Number of operations of the workload.
        total: u64,
        /// Number of the run of the first operation not done.
        run: u32,
        /// Index of that operation within its run.
        index: u32,
    },
    /// An operation would last longer than 2⁶⁴ picoseconds (213 days).
    #[error("operation {index} of run {run} would take over 213 days")]
    TooLong {
        /// Number of the run.
        run: u32,
        /// Index of the operation within the run.
        index: u32,
    },
    /// The workload has too many operations to simulate.
    #[error(
        "{operations} operations after folding; at most {} are simulated: larger chunks reduce the number",
        Workload::MAX_OPERATIONS
    )]
    TooManyOperations {
        /// Number of operations of the workload, after folding.
        operations: u64,
    },
    /// The run cannot be completed by its deadline.
    #[error("not complete after {:.3} µs, the time limit of this run", .until.0 as f64 / 1e6)]
    Abandoned {
        /// Deadline of the run; see [`Watch::until`](super::Watch::until).
        until: Picos,
    },
    /// The run was stopped by [`Watch::interrupt`](super::Watch::interrupt).
    #[error("interrupted")]
    Interrupted,
}
