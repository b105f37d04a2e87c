//! Linear: the root communicates with all other ranks concurrently. Broadcast and reduce in one step, barrier in two.
//!
//! **broadcast.** The root sends the whole buffer to each rank, (n−1) buffers through its port. **reduce.** Each rank
//! sends its input to the root, which reduces the first on arrival and the others through n − 1 buffers of scratch.
//! Time on equal links of latency L and bandwidth B: L + (n−1)·bytes/B. **barrier.** All ranks signal rank 0, and rank
//! 0 signals all: 2·L ([`super::barrier`]). Linear gather, scatter and all_to_all are in [`super::direct`]. Runs per
//! lane: n − 1 at the root, one at the others.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_bcast.c, coll_base_reduce.c, coll_base_barrier.c
//! (basic_linear).

use super::rooted::Tree;

/// Tree of one level.
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

    fn parent(&self, position: u32) -> Option<(u32, u32)> {
        position.checked_sub(1).map(|index| (0, index))
    }
}
