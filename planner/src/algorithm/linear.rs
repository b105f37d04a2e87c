//! Linear: the root deals with every other rank, with all at once. Broadcast and reduce in one step, barrier in two.
//!
//! **broadcast.** The root sends the whole buffer to each: (n−1) buffers out of its port. **reduce.** Each sends its input to
//! the root, which adds the first as it arrives and the others by way of scratch, n − 1 buffers of it. Equal links of
//! latency L and bandwidth B: L + (n−1)·bytes/B. **barrier.** All signal rank 0, and rank 0 signals all: 2·L ([`super::barrier`]).
//! (gather, scatter and all_to_all of this kind are [`super::direct`]'s.) The root has n − 1 runs a lane, the others one.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_bcast.c, coll_base_reduce.c, coll_base_barrier.c (basic_linear).

use super::rooted::Tree;

/// A tree of one level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Star {
    pub(super) ranks: u32,
}

impl Tree for Star {
    fn children(&self, place: u32) -> Vec<u32> {
        if place == 0 { (1..self.ranks).collect() } else { Vec::new() }
    }

    fn count(&self, place: u32) -> u32 {
        if place == 0 { self.ranks - 1 } else { 0 }
    }

    fn parent(&self, place: u32) -> Option<(u32, u32)> {
        place.checked_sub(1).map(|which| (0, which))
    }
}
