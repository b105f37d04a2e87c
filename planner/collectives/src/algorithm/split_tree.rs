//! Split binary tree: a broadcast sends half of the bytes down each side of a binary tree, then neighbours swap halves.
//!
//! The tree is that of [`super::binary_tree`]: positions are counted from the root, with odd ones below its first child
//! and even ones below its second. The root sends the first half to its first child and the second half to its second;
//! every other rank forwards the half that it receives to both its children concurrently. Positions 2i − 1 and 2i then
//! exchange their halves; if the last position has no neighbour, the root sends it the second half. The number of steps
//! is ⌊log₂ n⌋ + 1; no rank sends more than 1½ buffers. Time on equal links of latency L and bandwidth B with one chunk
//! per half, n = 2ᵏ − 1, k > 1: half that of the tree plus the exchange, k·L + (k − ½)·bytes/B. Chunks are pipelined.
//! Each rank has three runs per lane.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_bcast.c (split_bintree).
//!
//! # Example
//!
//! A broadcast to seven ranks. The root sends each half of the buffer once. Rank 1 forwards the first half to its
//! children 3 and 5, then swaps halves with rank 2.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 7, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::SplitTree, &shape)?)?;
//! let receivers = |rank: Rank| -> Vec<u32> {
//!     let sent = schedule.operations().filter(|op| op.rank == rank && op.kind.is_transfer());
//!     sent.map(|op| op.peer.0).collect()
//! };
//! assert_eq!(schedule.header().layout.chunks(), 2);
//! assert_eq!((receivers(Rank(0)), receivers(Rank(1))), (vec![1, 2], vec![3, 5, 2]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Dependency, Header, Program, Rank, ScheduleGenerator, Walk};

use super::binary_tree::BinaryTree;
use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::ring::copy_parts;
use super::rooted::{Tree, TreePlacement};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the split binary tree broadcast.
pub(super) struct SplitTree {
    header: Header,
    cut: Chunking,
    placement: TreePlacement<BinaryTree>,
}

/// Run by which a position sends its half to its neighbour. The runs of a lane have this order on every rank: to the
/// first child, to the second child, to the neighbour.
const SWAP: u32 = 2;
const RUNS_PER_LANE: u32 = 3;

impl SplitTree {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 2)?;
        let ranks = shape.call.ranks;
        let placement = TreePlacement { tree: BinaryTree { ranks }, ranks, first: shape.call.root };
        Ok(Self { header: shape.header(Algorithm::SplitTree, layout, 0), cut, placement })
    }

    /// Returns the position to which a position sends its half at the end; `None` if there is none.
    fn neighbour(&self, position: u32) -> Option<u32> {
        let last = self.placement.ranks - 1;
        match position {
            0 => (last % 2 == 1).then_some(last),
            _ if position.is_multiple_of(2) => Some(position - 1),
            _ => (position < last).then_some(position + 1),
        }
    }
}

/// Returns the half of the buffer that a position receives from its parent: 0 for the first half, 1 for the second.
fn half(position: u32) -> u32 {
    (position + 1) % 2
}

impl ScheduleGenerator for SplitTree {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let position = self.placement.position(rank.0);
        let children = self.placement.tree.children(position);
        let buffer = if position == 0 { Buffer::Input } else { Buffer::Output };
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let run = |index: u32| lane * RUNS_PER_LANE + index;
            let arrival = self
                .placement
                .tree
                .parent(position)
                .map(|edge| Dependency::shifted(self.placement.rank(edge.parent), run(edge.index), 0));
            let mut send = |index: u32, to: Option<u32>, half: u32| {
                let chunks = self.cut.over_loops(half, lane);
                let (to, len) = to.map_or((rank, 0), |to| (self.placement.rank(to), self.cut.loops));
                let mut awaited: Vec<Dependency> =
                    arrival.into_iter().chain([Dependency::shifted(rank, run(index), -1)]).collect();
                if index == SWAP {
                    // Data is sent to the children first.
                    awaited.extend((0..children.len() as u32).map(|child| Dependency::shifted(rank, run(child), 0)));
                }
                program.push(at.put(len, Walk::fixed(to.0), (buffer, chunks), (Buffer::Output, chunks)), &awaited);
            };
            for (index, child) in [children.first(), children.get(1)].into_iter().enumerate() {
                send(index as u32, child.copied(), if position == 0 { index as u32 } else { half(position) });
            }
            send(SWAP, self.neighbour(position), if position == 0 { 1 } else { half(position) });
        }
        if position == 0 {
            copy_parts(&self.header, &self.cut, rank.0, 0..2, program);
        }
    }
}
