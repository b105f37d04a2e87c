//! Binary tree filled level by level: broadcast and reduce in ⌊log₂ n⌋ steps of at most two messages each.
//!
//! Positions are numbered from the root; level l starts at position 2ˡ − 1. Position p of level l has the children
//! `p + 2ˡ` and `p + 2·2ˡ`, if they exist, and sends to both concurrently, so a broadcast sends at most 2 buffers out
//! of a rank. On equal links of latency L and bandwidth B with one chunk, a level whose ranks have two children takes
//! the time L + 2·bytes/B, and a level of single children L + bytes/B. With d = ⌊log₂ n⌋ and m = n + 1 − 2ᵈ ranks in
//! the last level, the total time is d·L + (2(d−1) + (2 if 2m > 2ᵈ, else 1))·bytes/B. A reduce runs in the opposite
//! direction; over a full tree, n = 2ᵏ − 1, the time is the same. Chunks are pipelined. Runs per rank and lane: one per
//! child, and at least one for a reduce.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_tree, fan-out 2), coll_base_bcast.c,
//! coll_base_reduce.c.
//!
//! # Example
//! A broadcast to seven ranks in ⌊log₂ n⌋ = 2 steps. No rank sends to more than two children.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 7, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::BinaryTree, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let edges: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0)).collect();
//! assert_eq!(edges, [(0, 1), (0, 2), (1, 3), (1, 5), (2, 4), (2, 6)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::rooted::{ParentEdge, Tree};

/// Binary tree over `ranks` positions, filled level by level.
#[derive(Clone, Copy, Debug)]
pub(super) struct BinaryTree {
    pub(super) ranks: u32,
}

impl BinaryTree {
    /// Number of positions in the level of `position`.
    fn width(position: u32) -> u64 {
        1 << (u64::from(position) + 1).ilog2()
    }
}

impl Tree for BinaryTree {
    fn children(&self, position: u32) -> Vec<u32> {
        let width = Self::width(position);
        let children = [1, 2].map(|number| u64::from(position) + number * width);
        children.into_iter().filter(|&child| child < u64::from(self.ranks)).map(|child| child as u32).collect()
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        // The positions in the first half of a level are first children, those in the second half are second children.
        let width = Self::width(position) as u32;
        let above = width / 2;
        let index = u32::from(position >= width - 1 + above);
        (position > 0).then(|| ParentEdge { parent: position - (1 + index) * above, index })
    }
}
