//! Bytes that a collective must move across the boundary of a set of ranks, for any schedule.

use fabricast_sim::schedule::{Call, Collective};

use super::line::Share;
use super::parts::RankSet;

/// Lower bounds on the bytes into and out of a set of ranks, as shares of the call's bytes (the larger buffer of a
/// rank); `None` if no bytes need to cross the boundary.
pub(super) struct Demand {
    pub into: Option<Share>,
    pub out: Option<Share>,
}

impl Demand {
    /// Creates the demand of a set among `ranks` ranks.
    ///
    /// The demand holds with and without in-network reduction: of contributions from several ranks to one sum, at least
    /// one sum must cross; of data wanted by several ranks, at least one copy must cross.
    pub(super) fn new(collective: Collective, part: &RankSet, ranks: u32) -> Self {
        let (inside, n) = (u128::from(part.ranks), u128::from(ranks));
        let outside = n - inside.min(n);
        let blocks = |blocks: u128| Some(Share::new(blocks, n));
        let full_buffer = Some(Share::WHOLE);
        let (into, out) = match collective {
            Collective::AllReduce => (full_buffer, full_buffer),
            Collective::AllGather => (blocks(outside), blocks(inside)),
            Collective::ReduceScatter => (blocks(inside), blocks(outside)),
            Collective::AllToAll => (blocks(inside * outside), blocks(inside * outside)),
            Collective::Broadcast if part.has_root => (None, full_buffer),
            Collective::Broadcast => (full_buffer, None),
            Collective::Reduce if part.has_root => (full_buffer, None),
            Collective::Reduce => (None, full_buffer),
            Collective::Gather if part.has_root => (blocks(outside), None),
            Collective::Gather => (None, blocks(inside)),
            Collective::Scatter if part.has_root => (None, blocks(outside)),
            Collective::Scatter => (blocks(inside), None),
            // The demand of a matrix is computed in `uneven`; a barrier moves no data.
            Collective::AllToAllV | Collective::Barrier => (None, None),
            Collective::SendRecv => {
                let buffers = Some(Share::new(part.next_outside.into(), 1));
                (buffers, buffers)
            }
        };
        Self { into, out }
    }
}

/// Lower bound on the bytes that all ranks receive in total, for any schedule without in-network reduction. For an
/// all_to_allv it is 0; use
/// [`TrafficMatrix::bytes_between_ranks`](fabricast_sim::schedule::TrafficMatrix::bytes_between_ranks) with its matrix.
#[must_use]
pub fn minimum_traffic(call: &Call) -> u128 {
    let (bytes, n) = (u128::from(call.bytes.0), u128::from(call.ranks));
    let others = n.saturating_sub(1);
    match call.collective {
        Collective::AllReduce => 2 * others * bytes,
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Broadcast
        | Collective::Reduce => others * bytes,
        Collective::Gather | Collective::Scatter => others * bytes / n.max(1),
        // With a single rank, no data needs to move.
        Collective::SendRecv if n < 2 => 0,
        Collective::SendRecv => n * bytes,
        Collective::AllToAllV | Collective::Barrier => 0,
    }
}
