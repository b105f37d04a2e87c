//! Trees that each collective uses.

use fabricast_sim::schedule::Collective;

use super::forest::BlockKind;
use super::requirement::Roots;

/// Trees over which a collective moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeUse {
    pub roots: Roots,
    pub blocks: BlockKind,
    /// True if data moves from the leaves to the roots.
    pub collects: bool,
    /// True if data moves from the roots to the leaves, after the collection if there is one.
    pub spreads: bool,
}

impl TreeUse {
    /// Returns the trees of a collective; `None` if it is not computed over trees. `root`: root of a rooted collective.
    pub(crate) fn of(collective: Collective, root: u32) -> Option<Self> {
        use BlockKind::{Common, PerRank};
        let root = Roots::One(root);
        let (roots, blocks, collects, spreads) = match collective {
            Collective::AllGather => (Roots::All, Common, false, true),
            Collective::ReduceScatter => (Roots::All, Common, true, false),
            Collective::AllReduce => (Roots::All, Common, true, true),
            Collective::Broadcast => (root, Common, false, true),
            Collective::Reduce => (root, Common, true, false),
            Collective::AllToAll => (Roots::All, PerRank, false, true),
            Collective::Scatter => (root, PerRank, false, true),
            Collective::Gather => (root, PerRank, true, false),
            Collective::AllToAllV | Collective::SendRecv | Collective::Barrier => return None,
        };
        Some(Self { roots, blocks, collects, spreads })
    }

    /// Returns true if ranks add what they collect.
    pub(crate) fn reduces(self) -> bool {
        self.collects && self.blocks == BlockKind::Common
    }
}
