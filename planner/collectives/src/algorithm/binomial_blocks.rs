//! Gather and scatter over a binomial tree, with the blocks of a whole subtree in one message.
//!
//! Ranks are counted from the root; the parent of position p is p with its lowest set bit cleared. In a **scatter**, a
//! message has the blocks of the receiver and its subtree, and the distances are 2ᵐ⁻¹, …, 2, 1. In a **gather**, a
//! message has the blocks of the sender and its subtree, and the distances are 1, 2, …. There are ⌈log2 n⌉ steps; the
//! root sends or receives (n−1)/n of the bytes. Time on equal links of latency L and bandwidth B: ⌈log2 n⌉·L + (n−1)/n
//! · bytes/B. The root handles log2 n messages, compared with n − 1 in the direct exchange. Each rank has three runs
//! per lane, loop and step.
//!
//! Source: MPICH's binomial scatter and gather; Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication
//! Operations in MPICH*, 2005.
//!
//! # Example
//!
//! A scatter to eight ranks. The root sends the blocks of half of the ranks, then of a quarter, then of one: ⌈log2 n⌉ =
//! 3 steps and 7 of 8 blocks.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Scatter, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Tree, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [4, 4, 4, 4, 2, 2, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Collective, Header, Program, Rank, ScheduleGenerator, Walk};

use super::bruck::{rank_after, step_count};
use super::cut::Chunking;
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of binomial gather and scatter.
pub(super) struct BinomialBlocks {
    header: Header,
    cut: Chunking,
}

/// Edge of the tree. `blocks`: number of blocks of the child's subtree, which are its own block and the following ones.
#[derive(Clone, Copy)]
struct Branch {
    parent: u32,
    child: u32,
    blocks: u32,
}

impl BinomialBlocks {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::Tree, layout, slots), cut })
    }

    fn gathers(&self) -> bool {
        self.header.call.collective == Collective::Gather
    }

    fn rank_at(&self, position: u32) -> u32 {
        rank_after(position, self.header.call.root.0, self.header.call.ranks)
    }

    /// Returns the edge that `rank` is an end of in a step, and true if `rank` is the child; `None` if the rank is
    /// idle.
    fn branch(&self, rank: u32, step: u32) -> Option<(Branch, bool)> {
        let ranks = self.header.call.ranks;
        let position = rank_after(rank, ranks - self.header.call.root.0, ranks);
        let distance = 1 << if self.gathers() { step } else { step_count(ranks) - 1 - step };
        let (is_child, below) = (position & distance != 0, position % distance);
        let parent = position & !distance;
        let child = parent + distance;
        let exists = below == 0 && child < ranks;
        exists.then(|| (Branch { parent, child, blocks: distance.min(ranks - child) }, is_child))
    }
}

impl MessagePattern for BinomialBlocks {
    fn steps(&self) -> u32 {
        step_count(self.header.call.ranks)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let ranks = self.header.call.ranks;
        let Some((branch, _)) = self.branch(rank, step).filter(|&(_, is_child)| is_child == self.gathers()) else {
            return vec![MessagePiece::empty(rank); 2];
        };
        let child = self.rank_at(branch.child);
        let is_rooted = branch.parent == 0;
        let (child_block, subtree_blocks) =
            (Walk::fixed(child), Walk::cyclic(0, rank_after(child, 1, ranks), 1, ranks));
        let at_parent = match (is_rooted, self.gathers()) {
            (false, _) => Buffer::Scratch,
            (true, true) => Buffer::Output,
            (true, false) => Buffer::Input,
        };
        // The child's own block is in its input (gather) or output (scatter); those of its subtree are in scratch.
        let (above, below) = (|walk| Parts::new(at_parent, walk), |walk| Parts::new(Buffer::Scratch, walk));
        let others = branch.blocks - 1;
        if self.gathers() {
            let to = self.rank_at(branch.parent);
            vec![
                MessagePiece::put(to, Parts::new(Buffer::Input, child_block), above(child_block), 1),
                MessagePiece::put(to, below(subtree_blocks), above(subtree_blocks), others),
            ]
        } else {
            vec![
                MessagePiece::put(child, above(child_block), Parts::new(Buffer::Output, child_block), 1),
                MessagePiece::put(child, above(subtree_blocks), below(subtree_blocks), others),
            ]
        }
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let (branch, is_child) = self.branch(rank, step)?;
        (is_child != self.gathers()).then(|| self.rank_at(if is_child { branch.parent } else { branch.child }))
    }
}

impl ScheduleGenerator for BinomialBlocks {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        if rank == self.header.call.root {
            copy_part(&self.header, &self.cut, rank.0, rank.0, program);
        }
    }
}
