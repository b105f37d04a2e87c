//! Proves that a schedule computes its collective, or names the first operation that breaks.
//!
//! Contributions are run symbolically: chunk j of the input of rank r starts as the contribution of r to chunk j, and
//! every operation moves or joins such values. Proven are: every chunk of the result holds each contribution that belongs
//! there exactly once and nothing else; any two accesses to the same chunk of the same rank, at least one of them a
//! write, are ordered by the dependencies; no operation waits for itself, with finite FIFOs too; nothing is read before
//! it is written; nothing is written where the caller expects no output; nothing is moved to a smaller place; nothing
//! lies unread that is not the result. Of a barrier, that every rank waits for every other.
//!
//! Operations are taken in one order: each after those that it waits for, otherwise by id. "First" means this order.
//!
//! ```text
//! schedule::order   who runs when, cycles      contents   what ranks have and must get
//! reach             is a before b, exactly     sets       sets of contributions, hash-consed
//! memory            what each chunk holds      execute    the run itself
//! barrier           who waits for whom
//! ```

mod barrier;
pub(crate) mod contents;
mod execute;
mod fault;
mod memory;
pub(crate) mod reach;
mod sets;
#[cfg(test)]
mod tests;

use crate::schedule::{Collective, Schedule, fifo, order};
use fault::Reporter;
pub use fault::{Fault, FaultKind};

/// More operations than this are refused rather than tried: proving takes about 70 bytes each, and 24 for each chunk of
/// output and scratch, of which as many are allowed.
pub const MAX_OPERATIONS: u32 = 1 << 26;

/// What to prove beyond the always proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Slots of each connection's FIFO (NCCL has 8): the schedule must not deadlock with so few. Races are judged
    /// without the order that full FIFOs force. Means nothing where [`fifo::uses_fifo`] says that the protocol has none.
    pub fifo_depth: Option<u32>,
}

/// What a proof says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Operations proven right.
    pub operations: u64,
}

/// Proves a schedule, or finds its first fault.
///
/// # Errors
/// The first [`Fault`] in the order of the module's description; faults of the final contents come after all others, those
/// of finite FIFOs last.
///
/// # Complexity
/// Linear in operations and in chunks touched where conflicting accesses are ordered by a chain of dependencies that is
/// short or goes through other ranks, as generators write them. Others cost one linear pass per 256 of them.
pub fn verify(schedule: &Schedule, options: &VerifyOptions) -> Result<Verified, Fault> {
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
        let credited = fifo::with_credits(schedule, depth)
            .map_err(|_| reporter.too_large(u64::from(u32::MAX) + 1, "dependencies", u64::from(u32::MAX)))?;
        order::Graph::new(&credited)
            .order()
            .map_err(|cycle| reporter.cycle(FaultKind::FifoDeadlock { depth }, &cycle))?;
    }
    Ok(Verified { operations: u64::from(schedule.operation_count()) })
}
