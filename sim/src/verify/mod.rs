//! Verifier: proves that a schedule computes its collective, or reports the first operation that violates it.
//!
//! Contributions are executed symbolically: chunk j of the input of rank r starts as the contribution of r to chunk j,
//! and every operation moves or joins such values. The proof covers the following properties. Every chunk of the result
//! contains each required contribution exactly once and nothing else. Any two accesses to the same chunk of the same
//! rank, at least one of them a write, are ordered by dependencies, or belong to one operation that moves the chunk to
//! itself. No operation waits for itself, also with finite
//! FIFOs. No chunk is read before it is written. Nothing is written outside the expected output. No data is moved to a
//! smaller chunk. No data other than the result stays unread. For a barrier, every rank waits for every other.
//!
//! Operations are processed in one topological order: each after its dependencies, otherwise by id. "First" refers to
//! this order.
//!
//! ```text
//! schedule::order   topological order, cycles     contents   initial and required contents of ranks
//! precedence        exact precedence queries      sets       sets of contributions, hash-consed
//! memory            contents of each chunk        execute    the symbolic execution
//! barrier           dependencies between ranks
//! ```

mod barrier;
pub(crate) mod contents;
mod execute;
mod fault;
mod memory;
pub(crate) mod precedence;
mod sets;
#[cfg(test)]
mod tests;

use crate::schedule::{Collective, Schedule, fifo, order};
use fault::Reporter;
pub use fault::{Fault, FaultKind};

/// Maximum number of operations that is verified. The memory used is about 70 bytes per operation, and 24 bytes per
/// chunk of output and scratch; the number of chunks has the same limit.
pub const MAX_OPERATIONS: u32 = 1 << 26;

/// Optional properties that the verification proves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Number of slots of each connection's FIFO (8 in NCCL): the schedule must not deadlock with this many. Race
    /// checks do not use the order that full FIFOs impose. Ignored for protocols without FIFOs ([`fifo::uses_fifo`]).
    pub fifo_depth: Option<u32>,
}

/// Result of a successful verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VerifiedSchedule {
    /// Number of operations verified.
    pub operations: u64,
}

/// Verifies that a schedule computes its collective.
///
/// # Errors
/// The first [`Fault`] in the module's order; faults in the final contents follow all others, those of finite FIFOs are
/// last.
///
/// # Complexity
/// Linear in operations and in chunks accessed if conflicting accesses are ordered by a dependency chain that is short
/// or passes through other ranks, as in generated schedules. Others need one linear pass per 256 of them.
pub fn verify(schedule: &Schedule, options: &VerifyOptions) -> Result<VerifiedSchedule, Fault> {
    let reporter = Reporter::new(schedule);
    if schedule.operation_count() > MAX_OPERATIONS {
        return Err(reporter.too_large(u64::from(schedule.operation_count()), "operations", u64::from(MAX_OPERATIONS)));
    }
    let graph = order::Graph::new(schedule);
    let order = graph.order().map_err(|cycle| reporter.cycle(FaultKind::Deadlock, &cycle))?;
    execute::execute(schedule, &graph, &order, &reporter)?;
    if schedule.header().call.collective == Collective::Barrier {
        barrier::check(schedule, &graph, &order, &reporter)?;
    }
    if let Some(depth) = options.fifo_depth
        && fifo::uses_fifo(schedule.header().protocol)
    {
        let credited = fifo::add_fifo_credits(schedule, depth)
            .map_err(|_| reporter.too_large(u64::from(u32::MAX) + 1, "dependencies", u64::from(u32::MAX)))?;
        order::Graph::new(&credited)
            .order()
            .map_err(|cycle| reporter.cycle(FaultKind::FifoDeadlock { depth }, &cycle))?;
    }
    Ok(VerifiedSchedule { operations: u64::from(schedule.operation_count()) })
}
