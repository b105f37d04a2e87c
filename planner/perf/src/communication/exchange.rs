//! Call that all groups of a dimension make concurrently.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use fabricast_workload::job::{Dimension, GroupCall, Layout, TokenExchange};

/// Messages are rounded to a multiple of this number of bytes per rank, as the fastest algorithms of libraries require.
pub(super) const BYTES_PER_RANK: u64 = 16;

/// Call of all groups of a dimension at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// Dimension whose groups make the call.
    pub dimension: Dimension,
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
}

impl Exchange {
    /// Creates the exchange of a job's call with the given message size.
    pub(crate) fn new(call: &GroupCall, bytes: Bytes) -> Self {
        Self { dimension: call.dimension, collective: call.collective, bytes }
    }
}

/// All_to_all with the tokens of an exchange, a copy of each token for each of its experts.
#[must_use]
pub(crate) fn equivalent_all_to_all(layout: &Layout, exchange: &TokenExchange) -> Exchange {
    let ranks = u64::from(layout.size(Dimension::Expert)).max(1);
    let bytes = exchange.copied_bytes().0.next_multiple_of(BYTES_PER_RANK * ranks);
    Exchange { dimension: Dimension::Expert, collective: Collective::AllToAll, bytes: Bytes(bytes) }
}
