//! Binary tree that preserves the order of the ranks: reduce for non-commutative operations.
//!
//! The last rank is the top. Of the ranks below a rank, the first half (rounded down) forms the right subtree and the
//! rest the left. The last rank of each subtree is its top, so every subtree is a contiguous range that ends with its
//! top. Sums from both subtrees travel up concurrently; if the root is not the last rank, the last rank sends it the
//! result. There are ⌊log₂ n⌋ steps plus that one. Time on equal links of latency L and bandwidth B with one chunk and
//! n = 2ᵏ − 1: (k−1)(L + 2·bytes/B), plus L + bytes/B. Chunks are pipelined. Runs per rank and lane: one per child, at
//! least one; one more at the last rank.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_in_order_bintree), coll_base_reduce.c.
//!
//! # Example
//!
//! A reduce of seven ranks to the last one. Every subtree is a contiguous range that ends with its top: 0 to 2 below
//! rank 2, 3 to 5 below rank 5.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Reduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 7, root: Rank(6), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::InOrderTree, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let edges: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0)).collect();
//! assert_eq!(edges, [(0, 2), (1, 2), (2, 6), (3, 5), (4, 5), (5, 6)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, Program, Rank, ScheduleGenerator, Walk};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::lane::Lane;
use super::rooted::{ParentEdge, Stream, Tree, TreePlacement};
use super::{Algorithm, Shape, Unsupported};

/// In-order tree. The last rank is position 0; any other rank r is position r + 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct InOrder {
    pub(super) ranks: u32,
}

/// Node of the tree: the edge from a position to its parent, and the children of the position.
struct TreeNode {
    parent: Option<ParentEdge>,
    children: Vec<u32>,
}

impl InOrder {
    fn find(self, position: u32) -> TreeNode {
        // Current subtree: `size` ranks from `first`, the last of which is the top.
        let (mut first, mut size, mut parent) = (0, self.ranks.max(1), None);
        let rank = (position + self.ranks - 1) % self.ranks;
        let to_position = |rank: u32| (rank + 1) % self.ranks;
        loop {
            let top = first + size - 1;
            let right = size / 2;
            let left = size - 1 - right;
            // The root of the left subtree is the first child, unless the left subtree is empty.
            let (mut children, mut ranges) = (Vec::new(), Vec::new());
            if left > 0 {
                children.push(to_position(top - 1));
                ranges.push((first + right, left));
            }
            if right > 0 {
                children.push(to_position(first + right - 1));
                ranges.push((first, right));
            }
            if rank == top {
                return TreeNode { parent, children };
            }
            for ((from, len), index) in ranges.into_iter().zip(0..) {
                if (from..from + len).contains(&rank) {
                    parent = Some(ParentEdge { parent: to_position(top), index });
                    (first, size) = (from, len);
                    break;
                }
            }
        }
    }
}

impl Tree for InOrder {
    fn children(&self, position: u32) -> Vec<u32> {
        self.find(position).children
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        self.find(position).parent
    }
}

/// Schedule generator of the in-order reduce.
pub(super) struct InOrderReduce {
    header: Header,
    cut: Chunking,
    placement: TreePlacement<InOrder>,
}

impl InOrderReduce {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let ranks = shape.call.ranks;
        let placement = TreePlacement { tree: InOrder { ranks }, ranks, first: Rank(ranks - 1) };
        let slots = check_chunks(u64::from(layout.chunks()) * u64::from(placement.slots()))?;
        Ok(Self { header: shape.header(Algorithm::InOrderTree, layout, slots), cut, placement })
    }
}

impl ScheduleGenerator for InOrderReduce {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (root, top) = (self.header.call.root, self.placement.first);
        let sum = if root == top { Buffer::Output } else { Buffer::Scratch };
        let lanes = (0..self.cut.lanes).map(|lane| {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            (at, Stream { lane, walk: self.cut.over_loops(0, lane), len: self.cut.loops, span: 1 })
        });
        for (at, stream) in lanes.clone() {
            self.placement.reduce(at, stream, sum, &self.header.layout, program);
        }
        if rank != top || root == top {
            return;
        }
        for (at, stream) in lanes {
            let chunk_before = Dependency::shifted(rank, program.runs().len() as u32, -1);
            let awaited: Vec<Dependency> =
                self.placement.sum_dependency(0, stream.lane).into_iter().chain([chunk_before]).collect();
            let (src, dst) = ((Buffer::Scratch, stream.walk), (Buffer::Output, stream.walk));
            program.push(at.put(stream.len, Walk::fixed(root.0), src, dst), &awaited);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The children of each rank, left child first, equal those in the examples drawn in Open MPI's source.
    #[test]
    fn trees_match_open_mpi_examples() {
        let child_ranks = |ranks: u32, rank: u32| {
            let children = InOrder { ranks }.children((rank + 1) % ranks);
            children.into_iter().map(|position| position - 1).collect::<Vec<_>>()
        };
        assert_eq!(child_ranks(2, 1), [0]);
        assert_eq!((child_ranks(3, 2), child_ranks(4, 3), child_ranks(4, 1)), (vec![1, 0], vec![2, 1], vec![0]));
        assert_eq!((child_ranks(9, 8), child_ranks(9, 7), child_ranks(9, 3)), (vec![7, 3], vec![6, 5], vec![2, 1]));
        assert_eq!((child_ranks(9, 5), child_ranks(9, 1)), (vec![4], vec![0]));
    }
}
