//! Gather and scatter over a binomial tree, with the blocks of a whole subtree in one message.
//!
//! Ranks are counted from the root; the parent of place p is p with its lowest set bit cleared. **scatter** sends over
//! distances 2ᵐ⁻¹, …, 2, 1 the blocks of the receiver and its subtree; **gather** sends over 1, 2, … the blocks of the
//! sender and its subtree. ⌈log2 n⌉ steps; the root sends or receives (n−1)/n of the bytes. Time on equal links of
//! latency L and bandwidth B: ⌈log2 n⌉·L + (n−1)/n · bytes/B. The root handles log2 n messages, compared with n − 1 in
//! the direct exchange. Three runs per rank, lane, loop and step.
//!
//! Source: MPICH's binomial scatter and gather; Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication
//! Operations in MPICH*, 2005.

use fabricast_sim::schedule::{Buffer, Collective, Generate, Header, Program, Rank, Walk};

use super::bruck::{on, steps_of};
use super::cut::Cut;
use super::ring::copy_own;
use super::steps::{self, Parts, Pattern, Piece};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of binomial gather and scatter.
pub(super) struct BinomialBlocks {
    header: Header,
    cut: Cut,
}

/// Edge of the tree. `blocks` counts the blocks of the child's subtree: its own and the following ones.
#[derive(Clone, Copy)]
struct Branch {
    parent: u32,
    child: u32,
    blocks: u32,
}

impl BinomialBlocks {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        let slots = layout.chunks();
        Ok(Self { header: shape.header(Algorithm::Tree, layout, slots), cut })
    }

    fn gathers(&self) -> bool {
        self.header.call.collective == Collective::Gather
    }

    fn rank_at(&self, place: u32) -> u32 {
        on(place, self.header.call.root.0, self.header.call.ranks)
    }

    /// The branch that `rank` is an end of in a step, and true if it is the child.
    fn branch(&self, rank: u32, step: u32) -> Option<(Branch, bool)> {
        let ranks = self.header.call.ranks;
        let place = on(rank, ranks - self.header.call.root.0, ranks);
        let distance = 1 << if self.gathers() { step } else { steps_of(ranks) - 1 - step };
        let (is_child, below) = (place & distance != 0, place % distance);
        let parent = place & !distance;
        let child = parent + distance;
        let there = below == 0 && child < ranks;
        there.then(|| (Branch { parent, child, blocks: distance.min(ranks - child) }, is_child))
    }
}

impl Pattern for BinomialBlocks {
    fn steps(&self) -> u32 {
        steps_of(self.header.call.ranks)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<Piece> {
        let ranks = self.header.call.ranks;
        let Some((branch, _)) = self.branch(rank, step).filter(|&(_, is_child)| is_child == self.gathers()) else {
            return vec![Piece::nothing(rank); 2];
        };
        let child = self.rank_at(branch.child);
        let is_rooted = branch.parent == 0;
        let (own, next) = (Walk::fixed(child), Walk::cyclic(0, on(child, 1, ranks), 1, ranks));
        let at_parent = match (is_rooted, self.gathers()) {
            (false, _) => Buffer::Scratch,
            (true, true) => Buffer::Output,
            (true, false) => Buffer::Input,
        };
        // The child's own block is in a different buffer than those of its subtree.
        let (above, below) = (|walk| Parts::of(at_parent, walk), |walk| Parts::of(Buffer::Scratch, walk));
        let others = branch.blocks - 1;
        if self.gathers() {
            let to = self.rank_at(branch.parent);
            vec![
                Piece::put(to, Parts::of(Buffer::Input, own), above(own), 1),
                Piece::put(to, below(next), above(next), others),
            ]
        } else {
            vec![
                Piece::put(child, above(own), Parts::of(Buffer::Output, own), 1),
                Piece::put(child, above(next), below(next), others),
            ]
        }
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let (branch, is_child) = self.branch(rank, step)?;
        (is_child != self.gathers()).then(|| self.rank_at(if is_child { branch.parent } else { branch.child }))
    }
}

impl Generate for BinomialBlocks {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        if rank == self.header.call.root {
            copy_own(&self.header, &self.cut, rank.0, rank.0, program);
        }
    }
}
