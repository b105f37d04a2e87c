//! Hashes that select one of several equal links for a flow, as ECMP does.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::{Ecmp, Router};
use crate::{LinkId, NodeId};

impl Router<'_> {
    /// Hash of the flow with the label `flow` between two devices; `None` if flows are not hashed.
    pub(super) fn flow_hash(&self, from: NodeId, to: NodeId, flow: u64) -> Option<u64> {
        match self.options.ecmp {
            Ecmp::Averaged => None,
            Ecmp::Hashed { seed } => Some(self.hash_flow(from, to, flow, seed)),
        }
    }

    pub(super) fn hash_flow(&self, from: NodeId, to: NodeId, flow: u64, seed: u64) -> u64 {
        mix(&[self.name(from), self.name(to), flow, seed])
    }

    /// Hash that a flow assigns to a link; the link with the greatest hash is selected. The hash depends on the ids of
    /// the link's ends and on its index among parallel links, so that renumbering devices and links does not change it.
    pub(super) fn weight(&self, flow: u64, link: LinkId, parallel: u32) -> u64 {
        let (from, to) = self.fabric.ends(link);
        mix(&[flow, self.name(from), self.name(to), u64::from(parallel)])
    }

    fn name(&self, node: NodeId) -> u64 {
        let names = self.names.get_or_init(|| {
            let hash = |id: &str| {
                let mut hasher = FxHasher::default();
                id.hash(&mut hasher);
                hasher.finish()
            };
            self.fabric.nodes().map(|(_, node)| hash(&node.id)).collect()
        });
        names.get(node.0 as usize).copied().unwrap_or(0)
    }
}

/// SplitMix64's finaliser over a sequence (Steele, Lea, Flood, OOPSLA 2014).
fn mix(values: &[u64]) -> u64 {
    values.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, &value| {
        let mut z = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
