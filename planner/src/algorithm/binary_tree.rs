//! A binary tree, level by level: broadcast and reduce in ⌊log₂ n⌋ steps, of two messages each at most.
//!
//! Places are numbered from the root, those of level l from 2ˡ − 1 on. Place p of level l has the children p + 2ˡ and
//! p + 2·2ˡ, as far as there are such, and sends to both at once; a broadcast moves 2 buffers out of a rank at most. Equal
//! links of latency L and bandwidth B, one chunk: a level whose ranks have two children takes L + 2·bytes/B, one of single
//! children L + bytes/B; with d = ⌊log₂ n⌋ and m = n + 1 − 2ᵈ ranks in the last level, d·L + (2(d−1) + (2 if 2m > 2ᵈ, or
//! else 1))·bytes/B. A reduce goes the other way; of a full tree, n = 2ᵏ − 1, it takes the same. Chunks follow one another.
//! Per rank and lane a run for each child; of a reduce at least one.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_tree, fan-out 2), coll_base_bcast.c,
//! coll_base_reduce.c.

use super::rooted::Tree;

/// The binary tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct BinaryTree {
    pub(super) ranks: u32,
}

impl BinaryTree {
    /// Places of the level of a place.
    fn width(place: u32) -> u64 {
        1 << (u64::from(place) + 1).ilog2()
    }
}

impl Tree for BinaryTree {
    fn children(&self, place: u32) -> Vec<u32> {
        let width = Self::width(place);
        let children = [1, 2].map(|which| u64::from(place) + which * width);
        children.into_iter().filter(|&child| child < u64::from(self.ranks)).map(|child| child as u32).collect()
    }

    fn parent(&self, place: u32) -> Option<(u32, u32)> {
        // The first half of a level are first children, the other half second ones.
        let width = Self::width(place) as u32;
        let above = width / 2;
        let which = u32::from(place >= width - 1 + above);
        (place > 0).then(|| (place - (1 + which) * above, which))
    }
}
