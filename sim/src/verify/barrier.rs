//! Barrier check: for each pair of ranks, some operation of one depends, directly or transitively, on an operation of
//! the other.
//!
//! A rank arrives with its first operation, and leaves when all its operations have ended. For each ordered pair of
//! ranks, some operation of the first must therefore precede some operation of the second. Ranks are checked in groups
//! of 128, with one pass over the operations for each group.

use super::fault::{Fault, FaultKind, RankChunk, Reporter};
use crate::schedule::order::{Graph, TotalOrder};
use crate::schedule::{Buffer, ChunkRef, Rank, Schedule};

/// Number of ranks that one pass over the operations checks.
const RANKS_PER_PASS: u32 = 128;

/// Checks that every rank waits for every other rank.
///
/// # Errors
/// [`FaultKind::BarrierNotAwaited`], with a rank that may leave too early and a rank that it does not wait for.
///
/// # Complexity
/// Operations × ranks ÷ 128; 16 bytes per operation.
pub(super) fn check(
    schedule: &Schedule,
    graph: &Graph<'_>,
    order: &TotalOrder,
    reporter: &Reporter<'_>,
) -> Result<(), Fault> {
    let ranks = schedule.header().call.ranks;
    let operation_ranks: Vec<u32> = (0..ranks)
        .flat_map(|rank| {
            let operations = schedule.rank_runs(Rank(rank)).map(|run| schedule.run(run).len as usize).sum();
            std::iter::repeat_n(rank, operations)
        })
        .collect();
    let mut awaited = vec![0u128; operation_ranks.len()];
    for first in (0..ranks).step_by(RANKS_PER_PASS as usize) {
        let bit = |rank: u32| rank.checked_sub(first).and_then(|lane| 1u128.checked_shl(lane)).unwrap_or(0);
        let mut left = vec![0u128; ranks as usize];
        for &op in &order.operations {
            let rank = operation_ranks[op as usize];
            let before = graph.dependencies(op).fold(bit(rank), |set, on| set | awaited[on as usize]);
            awaited[op as usize] = before;
            left[rank as usize] |= before;
        }
        let all = (first..ranks).take(RANKS_PER_PASS as usize).fold(0, |set, rank| set | bit(rank));
        for (rank, &seen) in (0..ranks).zip(&left) {
            // A rank does not wait for itself.
            let missing = (all & !seen & !bit(rank)).trailing_zeros();
            if missing < RANKS_PER_PASS {
                let nowhere = RankChunk::new(rank, ChunkRef { buffer: Buffer::Output, index: 0 });
                let found = format!("nothing of rank {} before the end of rank {rank}", first + missing);
                let expected = "something of every rank".to_owned();
                return Err(reporter.chunk_fault(FaultKind::BarrierNotAwaited, nowhere, found, expected));
            }
        }
    }
    Ok(())
}
