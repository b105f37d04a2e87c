//! PAT, parallel aggregated trees. Every block travels on its own binomial tree, long hops first; hops of several trees
//! between the same two ranks are aggregated into one message, up to the chunk size.
//!
//! **all_gather.** Counted from a block's owner, the rank at position p receives the block from position p − d, where d
//! is the lowest set bit of p. There are trees for all n blocks, and n need not be a power of two. Let N be the next
//! power of two, and A the number of blocks that fit in a message, a power of two of at most N/2. log2 A steps over
//! distances N/2, N/4, …, N/A bring every block to A positions, with at most A/2 blocks per message. The N/A − 1 hops
//! of the trees below each of them follow depth first, A blocks per message. The total is ⌈log2 n⌉ steps with whole
//! trees in parallel, and n − 1 for blocks as large as a chunk. **reduce_scatter** runs backwards, with partial sums
//! instead of blocks. As trees are completed depth first, a rank has at most A·log2(N/A) partial sums at a time; each
//! is in scratch at the index of its block. Every rank sends (n−1)/n of the bytes. Time on equal links of latency L and
//! bandwidth B with unlimited chunks: ⌈log2 n⌉·L + (n−1)/n · bytes/B. Each rank has at most four runs per lane, loop
//! and step.
//!
//! Source: Jeaugey, *PAT: a new algorithm for all-gather and reduce-scatter operations at scale*, arXiv 2506.20252,
//! 2025; NCCL 2.23 and later, src/include/device.h and src/device/all_gather.h (its order of the last hops differs).
//!
//! # Example
//!
//! An all_gather of eight ranks with messages of any size and with messages of one block. The seven blocks that rank 0
//! sends are the same; they are in three messages and in seven.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! for (chunk, expected) in [(None, [4, 2, 2, 1, 1, 1, 1]), (Some(Bytes(1 << 17)), [4, 2, 1, 1, 2, 1, 1])] {
//!     let shape = Shape { chunk, ..Shape::new(call, Protocol::Simple) };
//!     let schedule = Schedule::build(&*generator(Algorithm::Pat, &shape)?)?;
//!     let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//!     let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//!     assert_eq!(receivers, expected);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, Collective, Header, OpKind, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::bruck::rank_after;
use super::cut::Chunking;
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of PAT all_gather and reduce_scatter.
pub(super) struct Pat {
    header: Header,
    cut: Chunking,
    rotation: RotationDigit,
    /// Hops of the blocks, in the order of all_gather.
    hops: Vec<Hop>,
    trees: Trees,
}

/// Hops over one distance. They start from positions `first, first + stride, …`, counted from the owners of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hop {
    distance: u32,
    first: u32,
    stride: u32,
    /// Number of hops, one per start position.
    count: u32,
}

/// Aggregation of the blocks' trees into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trees {
    ranks: u32,
    /// Maximum number of blocks in a message, a power of two.
    blocks_per_message: u32,
    /// Number of positions in each subtree that is traversed one hop at a time.
    subtree: u32,
}

impl Trees {
    fn new(shape: &Shape, cut: &Chunking) -> Self {
        let ranks = shape.call.ranks;
        let padded_ranks = ranks.next_power_of_two();
        let pieces = u64::from(ranks) * u64::from(cut.lanes) * u64::from(cut.loops);
        let fitting = |chunk: u64| chunk.saturating_mul(pieces) / shape.call.bytes.0.max(1);
        let max_blocks = shape.chunk.map_or(padded_ranks, |chunk| {
            let fitting = fitting(chunk.0).clamp(1, u64::from(padded_ranks)) as u32;
            1 << fitting.ilog2()
        });
        let blocks_per_message = max_blocks.min(padded_ranks / 2);
        Self { ranks, blocks_per_message, subtree: padded_ranks / blocks_per_message }
    }

    /// Returns all hops in the order of all_gather, from the owners of the blocks outwards.
    fn hops(self) -> Vec<Hop> {
        let padded_ranks = self.blocks_per_message * self.subtree;
        let hop = |distance: u32, first: u32, stride: u32| {
            // Positions after the last rank do not exist.
            let count = self.ranks.saturating_sub(first + distance).div_ceil(stride);
            Hop { distance, first, stride, count }
        };
        let far = (1..=self.blocks_per_message.ilog2()).map(|k| hop(padded_ranks >> k, 0, 2 * (padded_ranks >> k)));
        let mut hops: Vec<Hop> = far.collect();
        let mut open = vec![(0, self.subtree)];
        while let Some((first, size)) = open.pop() {
            if size > 1 {
                let half = size / 2;
                hops.push(hop(half, first, self.subtree));
                // The subtree of the far half is next, then the rest of the near half.
                open.push((first, half));
                open.push((first + half, half));
            }
        }
        hops.retain(|hop| hop.count > 0);
        hops
    }

    /// Returns the blocks of the owners that are `first, first + stride, …` positions before a rank.
    fn blocks_at(self, rank: u32, first: u32, stride: u32) -> Walk {
        let back = rank_after(0, self.ranks - stride % self.ranks, self.ranks);
        Walk::cyclic(0, rank_after(rank, self.ranks - first % self.ranks, self.ranks), back, self.ranks)
    }
}

impl Pat {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let trees = Trees::new(shape, &cut);
        let sums = shape.call.collective == Collective::ReduceScatter;
        let slots = if sums { layout.chunks() } else { 0 };
        Ok(Self {
            header: shape.header(Algorithm::Pat, layout, slots),
            cut,
            rotation: shape.rotation(),
            hops: trees.hops(),
            trees,
        })
    }

    fn reduces(&self) -> bool {
        self.header.call.collective == Collective::ReduceScatter
    }

    fn hop(&self, step: u32) -> Hop {
        let step = step as usize;
        self.hops[if self.reduces() { self.hops.len() - 1 - step } else { step }]
    }

    /// Returns the pieces by which a rank forwards blocks in a hop of an all_gather. The rank's own block is read from
    /// its input.
    fn spread(&self, rank: u32, hop: Hop) -> Vec<MessagePiece> {
        let to = rank_after(rank, hop.distance, self.trees.ranks);
        let own_count = u32::from(hop.first == 0);
        let blocks = |skipped: u32| self.trees.blocks_at(rank, hop.first + skipped * hop.stride, hop.stride);
        let (output, others) = (Parts::new(Buffer::Output, blocks(0)), Parts::new(Buffer::Output, blocks(own_count)));
        vec![
            MessagePiece::put(to, Parts::new(Buffer::Input, blocks(0)), output, own_count),
            MessagePiece::put(to, others, others, hop.count - own_count),
        ]
    }

    /// Returns the pieces by which a rank sends partial sums of a reduce_scatter towards the owners of their blocks,
    /// where sums go to the output. The last position sends only its input, as leaves do.
    fn collect(&self, rank: u32, hop: Hop) -> Vec<MessagePiece> {
        let trees = self.trees;
        let to = rank_after(rank, trees.ranks - hop.distance, trees.ranks);
        let is_leaf = |i: u32| hop.distance == 1 || hop.first + i * hop.stride + hop.distance + 1 == trees.ranks;
        let owner_count = u32::from(hop.first == 0);
        let leaf_count = u32::from(hop.count > owner_count && hop.distance > 1 && is_leaf(hop.count - 1));
        // At an inner position, the first contribution to a sum comes from the next position.
        let kind = if hop.distance == 1 { OpKind::PutReduceInput } else { OpKind::PutReduce };
        let piece = |from: u32, len: u32| {
            let position = hop.first + from * hop.stride;
            let blocks = trees.blocks_at(rank, position + hop.distance, hop.stride);
            let src = if is_leaf(from) { Buffer::Input } else { Buffer::Scratch };
            let dst = if position == 0 { Buffer::Output } else { Buffer::Scratch };
            let (src, dst) = (Parts::new(src, blocks), Parts::new(dst, blocks));
            if len > 0 { MessagePiece::put(to, src, dst, len).reducing(kind) } else { MessagePiece::empty(rank) }
        };
        let inner_count = hop.count - owner_count - leaf_count;
        vec![piece(0, owner_count), piece(owner_count, inner_count), piece(owner_count + inner_count, leaf_count)]
    }
}

impl MessagePattern for Pat {
    fn steps(&self) -> u32 {
        self.hops.len() as u32
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let hop = self.hop(step);
        if self.reduces() { self.collect(rank, hop) } else { self.spread(rank, hop) }
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let (distance, ranks) = (self.hop(step).distance, self.trees.ranks);
        Some(rank_after(rank, if self.reduces() { distance } else { ranks - distance }, ranks))
    }
}

impl ScheduleGenerator for Pat {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        if !self.reduces() {
            copy_part(&self.header, &self.cut, rank.0, rank.0, program);
        }
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![self.rotation])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_reached_once_from_a_reached_position() {
        for ranks in 2..140u32 {
            let padded_ranks = ranks.next_power_of_two();
            for blocks_per_message in (0..padded_ranks.ilog2()).map(|k| 1 << k) {
                let trees = Trees { ranks, blocks_per_message, subtree: padded_ranks / blocks_per_message };
                let mut reached = vec![false; ranks as usize];
                reached[0] = true;
                for hop in trees.hops() {
                    assert!(hop.count <= blocks_per_message);
                    let before = reached.clone();
                    for i in 0..hop.count {
                        let from = (hop.first + i * hop.stride) as usize;
                        let to = from + hop.distance as usize;
                        assert!(before[from] && !reached[to], "{from} to {to} of {ranks}, {blocks_per_message} blocks");
                        reached[to] = true;
                    }
                }
                assert!(reached.iter().all(|&reached| reached), "{ranks} ranks, {blocks_per_message} blocks");
            }
        }
    }

    #[test]
    fn larger_messages_need_fewer_steps() {
        let steps = |ranks: u32, blocks_per_message: u32| {
            Trees { ranks, blocks_per_message, subtree: ranks.next_power_of_two() / blocks_per_message }.hops().len()
        };
        assert_eq!((steps(64, 32), steps(64, 1), steps(64, 8)), (6, 63, 3 + 7));
        assert_eq!((steps(13, 8), steps(13, 1), steps(1024, 512)), (4, 12, 10));
    }
}
