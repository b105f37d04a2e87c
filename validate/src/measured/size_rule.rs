//! Relation between the columns `size` and `count` of nccl-tests.
//!
//! Source: `*GetCollByteCount` in nccl-tests 2.19.6 (src/all_reduce.cu and the other tests). `size` is the larger of
//! send and receive buffer. `count` is the count passed to NCCL: one block for collectives whose buffers hold one
//! block per rank, the whole buffer for the others.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::Reason;
use super::table::{Counting, Row, Table};

impl Table {
    /// Rejects rows whose size does not follow from their count, for a collective on `ranks` ranks.
    pub fn check_sizes(&mut self, collective: Collective, ranks: u32) {
        let counting = self.header.counting;
        self.reject(|row| violation(row, collective, ranks, counting));
    }
}

/// Number of blocks in the larger buffer of a rank, whose size the column `size` gives.
fn blocks(collective: Collective, ranks: u32) -> u64 {
    match collective {
        Collective::AllReduce
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::SendRecv
        | Collective::AllToAllV
        | Collective::Barrier => 1,
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => u64::from(ranks),
    }
}

/// Returns the reason why a row cannot belong to this collective; `None` if it can, or if it has no count or element
/// type.
pub(super) fn violation(row: &Row, collective: Collective, ranks: u32, counting: Counting) -> Option<Reason> {
    let (count, dtype) = (row.count?, row.dtype?);
    let total = count.checked_mul(dtype.size().0);
    let expected = total.and_then(|total| total.checked_mul(blocks(collective, ranks))).map(Bytes);
    let fits =
        expected == Some(row.bytes) || (counting == Counting::BlocksOrWhole && total.map(Bytes) == Some(row.bytes));
    (!fits).then(|| Reason::SizeRule {
        collective,
        count,
        dtype,
        ranks,
        expected: expected.unwrap_or(Bytes(u64::MAX)),
        found: row.bytes,
    })
}

/// Returns the reason why a row cannot belong to any collective; `None` if it can, or if it has no count or element
/// type.
pub(super) fn violation_for_any_collective(row: &Row) -> Option<Reason> {
    let (count, dtype) = (row.count?, row.dtype?);
    let total = count.checked_mul(dtype.size().0).filter(|&total| total > 0);
    let fits = total.is_some_and(|total| row.bytes.0.is_multiple_of(total));
    (!fits).then_some(Reason::NotOfElements { count, dtype, found: row.bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_sim::schedule::DataType;
    use fabricast_topologies::Picos;

    fn row(bytes: u64, count: u64) -> Row {
        Row { count: Some(count), dtype: Some(DataType::F32), ..Row::new(Bytes(bytes), Picos(1), 1) }
    }

    #[test]
    fn sizes_follow_from_counts() {
        let strict = |bytes, count, collective| violation(&row(bytes, count), collective, 8, Counting::Blocks);
        assert_eq!(strict(1024, 256, Collective::AllReduce), None);
        assert_eq!(strict(1024, 256, Collective::SendRecv), None);
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllToAll,
            Collective::Gather,
            Collective::Scatter,
        ] {
            assert_eq!(strict(1024, 32, collective), None, "{collective}");
            assert!(strict(1024, 256, collective).is_some(), "{collective}");
            assert_eq!(violation(&row(1024, 256), collective, 8, Counting::BlocksOrWhole), None);
            assert!(violation(&row(1024, 64), collective, 8, Counting::BlocksOrWhole).is_some());
        }
        let fault = strict(1028, 256, Collective::AllReduce).map(|reason| reason.to_string());
        assert_eq!(fault.as_deref(), Some("all_reduce of 256 elements of f32 on 8 ranks is 1 KiB, not 1028 B"));
        assert!(strict(8, u64::MAX, Collective::AllGather).is_some());
    }

    #[test]
    fn sizes_must_be_multiples_of_the_count() {
        assert_eq!(violation_for_any_collective(&row(1024, 32)), None);
        assert!(violation_for_any_collective(&row(1025, 32)).is_some());
        assert!(violation_for_any_collective(&row(1024, 0)).is_some());
    }
}
