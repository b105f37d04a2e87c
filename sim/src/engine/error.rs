//! Reasons why a run does not end.

use fabricast_topologies::Picos;

use super::Workload;

/// Why a run did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Some operations wait for each other.
    #[error(
        "deadlock: {done} of {total} operations are done and the rest wait for each other; the first to wait is operation {index} of run {run}"
    )]
    Deadlock {
        /// Operations done.
        done: u64,
        /// Operations in all.
        total: u64,
        /// Run of the first operation not done.
        run: u32,
        /// Its place in the run.
        index: u32,
    },
    /// An operation would take longer than 2⁶⁴ picoseconds.
    #[error("operation {index} of run {run} would take over 213 days")]
    TooLong {
        /// The run.
        run: u32,
        /// The operation within the run.
        index: u32,
    },
    /// More operations than are simulated.
    #[error(
        "{operations} operations after folding; at most {} are simulated: larger chunks make fewer",
        Workload::MOST_OPERATIONS
    )]
    TooManyOperations {
        /// How many there are.
        operations: u64,
    },
    /// Not done when its time was up.
    #[error("not done after {:.3} µs, when it was of no interest any more", .until.0 as f64 / 1e6)]
    Abandoned {
        /// See [`Watch::until`].
        until: Picos,
    },
    /// Stopped from outside.
    #[error("interrupted")]
    Interrupted,
}
