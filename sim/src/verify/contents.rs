//! Initial and required final contents of each rank, per collective, in the layout's chunk numbering.
//!
//! Collectives with one block per rank divide the chunks into equal blocks of adjacent chunks. An all_to_allv has one
//! segment per pair of ranks.

use crate::schedule::{Call, Collective, Layout};

/// Required contents of a chunk of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredContents {
    /// Contents of chunk `chunk` of the input of rank `rank`.
    From { rank: u32, chunk: u32 },
    /// Contents of the input chunk with the same index, reduced over all ranks.
    Reduced,
}

/// Initial and required contents of a call's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    collective: Collective,
    ranks: u32,
    root: u32,
    /// Number of chunks of a block; the number of all chunks if the collective has no blocks.
    block: u32,
    layout: &'a Layout,
}

impl<'a> Contents<'a> {
    /// Creates the contents; `None` if the collective has blocks and the chunks cannot be divided into them.
    pub(crate) fn new(call: &Call, layout: &'a Layout) -> Option<Self> {
        let chunks = layout.chunks();
        let block = match call.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => chunks,
            Collective::AllToAllV => {
                let pairs = u64::from(call.ranks) * u64::from(call.ranks);
                if layout.segments().len() as u64 != pairs {
                    return None;
                }
                chunks
            }
            Collective::Barrier => chunks,
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => {
                if !chunks.is_multiple_of(call.ranks) {
                    return None;
                }
                chunks / call.ranks
            }
        };
        Some(Self { collective: call.collective, ranks: call.ranks, root: call.root.0, block, layout })
    }

    fn is_in_block(self, rank: u32, chunk: u32) -> bool {
        chunk / self.block.max(1) == rank
    }

    /// Returns the sender and the receiver of a chunk of an all_to_allv.
    fn pair(self, chunk: u32) -> (u32, u32) {
        let segment = self.layout.segment_index(chunk) as u32;
        (segment / self.ranks, segment % self.ranks)
    }

    /// Returns true if a rank contributes this chunk as input.
    #[inline]
    pub(crate) fn has_input(self, rank: u32, chunk: u32) -> bool {
        match self.collective {
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::Reduce
            | Collective::AllToAll
            | Collective::SendRecv => true,
            Collective::AllGather | Collective::Gather => self.is_in_block(rank, chunk),
            Collective::Broadcast | Collective::Scatter => rank == self.root,
            Collective::AllToAllV => self.pair(chunk).0 == rank,
            Collective::Barrier => false,
        }
    }

    /// Returns the required contents of an output chunk; `None` if the rank does not receive the chunk.
    #[inline]
    pub(super) fn expected(self, rank: u32, chunk: u32) -> Option<RequiredContents> {
        let from = |rank, chunk| Some(RequiredContents::From { rank, chunk });
        match self.collective {
            Collective::AllReduce => Some(RequiredContents::Reduced),
            Collective::ReduceScatter => self.is_in_block(rank, chunk).then_some(RequiredContents::Reduced),
            Collective::Reduce => (rank == self.root).then_some(RequiredContents::Reduced),
            Collective::AllGather => from(chunk / self.block, chunk),
            Collective::Gather if rank == self.root => from(chunk / self.block, chunk),
            Collective::Broadcast => from(self.root, chunk),
            Collective::Scatter if self.is_in_block(rank, chunk) => from(self.root, chunk),
            Collective::Gather | Collective::Scatter => None,
            Collective::AllToAll => from(chunk / self.block, rank * self.block + chunk % self.block),
            Collective::AllToAllV => {
                let (sender, receiver) = self.pair(chunk);
                if receiver != rank || self.layout.size(chunk).numerator == 0 {
                    return None;
                }
                from(sender, chunk)
            }
            Collective::Barrier => None,
            Collective::SendRecv => from(if rank == 0 { self.ranks - 1 } else { rank - 1 }, chunk),
        }
    }
}
