//! Several chains that start at the root: broadcast and reduce for large messages and few ranks.
//!
//! The other ranks, counted from the root, are divided into four consecutive chains whose lengths differ by at most
//! one; the longest has l = ⌈(n−1)/4⌉ ranks. The root sends to the heads of all chains concurrently (for a reduce,
//! receives from them), and every other rank sends to the next rank of its chain. There are l steps. Time on equal
//! links of latency L and bandwidth B for one chunk: l·L + (l − 1 + min(4, n−1))·bytes/B for a broadcast, and for a
//! reduce if all chains have the same length. Chunks are pipelined. Runs per rank and lane: one per child, and at least
//! one for a reduce. A single chain is in [`super::ring`].
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_chain). The default fan-out is 4
//! (coll_tuned_bcast_algorithm_chain_fanout); the fixed decision rules pass none, which means one chain.
//!
//! # Example
//!
//! A broadcast to nine ranks. The root feeds four chains of two ranks each, so that the last rank has the buffer after
//! two steps; a single chain needs eight.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 9, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Chains, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.kind.is_transfer());
//! let edges: Vec<_> = sent.map(|op| (op.rank.0, op.peer.0)).collect();
//! assert_eq!(edges, [(0, 1), (0, 3), (0, 5), (0, 7), (1, 2), (3, 4), (5, 6), (7, 8)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::rooted::{ParentEdge, Tree};

/// Maximum number of chains; Open MPI uses four by default.
const CHAINS: u32 = 4;

/// Tree of `ranks` positions: up to four chains that start at position 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chains {
    pub(super) ranks: u32,
}

impl Chains {
    fn chains(self) -> u32 {
        CHAINS.min(self.ranks - 1)
    }

    /// Returns the first position of a chain, or the number of positions for the index after the last chain.
    fn head(self, chain: u32) -> u32 {
        let (others, chains) = (self.ranks - 1, self.chains());
        1 + chain * (others / chains) + chain.min(others % chains)
    }
}

impl Tree for Chains {
    fn children(&self, position: u32) -> Vec<u32> {
        if self.ranks < 2 {
            return Vec::new();
        }
        let mut heads = (0..=self.chains()).map(|chain| self.head(chain));
        match position {
            0 => heads.take(self.chains() as usize).collect(),
            _ if heads.any(|head| head == position + 1) => Vec::new(),
            _ => vec![position + 1],
        }
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        if position == 0 {
            return None;
        }
        let chain = (0..self.chains()).find(|&chain| self.head(chain) == position);
        Some(match chain {
            Some(index) => ParentEdge { parent: 0, index },
            None => ParentEdge { parent: position - 1, index: 0 },
        })
    }
}
