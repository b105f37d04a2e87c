//! Linear: the root communicates with all other ranks concurrently. Broadcast and reduce need one step, a barrier two.
//!
//! **broadcast.** The root sends the whole buffer to each rank, (n−1) buffers through its port. **reduce.** Each rank
//! sends its input to the root, which reduces the first on arrival and the others through n − 1 buffers of scratch.
//! Time on equal links of latency L and bandwidth B: L + (n−1)·bytes/B. **barrier.** All ranks signal rank 0, and rank
//! 0 signals all: 2·L ([`super::barrier`]). Linear gather, scatter and all_to_all are in [`super::direct`]. Runs per
//! lane: n − 1 at the root, one at the others.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_bcast.c, coll_base_reduce.c, coll_base_barrier.c
//! (basic_linear).
//!
//! # Example
//!
//! A broadcast to eight ranks in one step. The root sends the whole buffer seven times.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Linear, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 1);
//! assert_eq!(receivers, [1, 2, 3, 4, 5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::rooted::{ParentEdge, Tree};

/// Tree of one level: position 0 is the parent of all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Star {
    pub(super) ranks: u32,
}

impl Tree for Star {
    fn children(&self, position: u32) -> Vec<u32> {
        if position == 0 { (1..self.ranks).collect() } else { Vec::new() }
    }

    fn count(&self, position: u32) -> u32 {
        if position == 0 { self.ranks - 1 } else { 0 }
    }

    fn parent(&self, position: u32) -> Option<ParentEdge> {
        position.checked_sub(1).map(|index| ParentEdge { parent: 0, index })
    }
}
