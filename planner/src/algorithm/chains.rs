//! Several chains that begin at the root: broadcast and reduce for large messages and few ranks.
//!
//! The other ranks, counted from the root, fall into four chains one after the other, as long as one another but for one rank;
//! the longest has l = ⌈(n−1)/4⌉. The root sends to the heads of all chains at once (or gets from all), every other rank to the
//! next of its chain. l steps. Equal links of latency L and bandwidth B: l·L + (l − 1 + min(4, n−1))·bytes/B for one chunk of a
//! broadcast, and for one of a reduce where all chains are as long. Chunks follow one another. Per rank and lane a run for
//! each child; of a reduce at least one. One chain is [`super::ring`]'s.
//!
//! Source: Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_topo.c (build_chain). Its fan-out is 4 where it is set by nobody
//! (coll_tuned_bcast_algorithm_chain_fanout); its fixed decisions give none, which it takes for one chain.

use super::rooted::Tree;

/// Chains, as far as there are ranks.
const CHAINS: u32 = 4;

/// The chains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chains {
    pub(super) ranks: u32,
}

impl Chains {
    fn chains(self) -> u32 {
        CHAINS.min(self.ranks - 1)
    }

    /// The first place of a chain; of the chain behind the last, the number of places.
    fn head(self, chain: u32) -> u32 {
        let (others, chains) = (self.ranks - 1, self.chains());
        1 + chain * (others / chains) + chain.min(others % chains)
    }
}

impl Tree for Chains {
    fn children(&self, place: u32) -> Vec<u32> {
        if self.ranks < 2 {
            return Vec::new();
        }
        let mut heads = (0..=self.chains()).map(|chain| self.head(chain));
        match place {
            0 => heads.take(self.chains() as usize).collect(),
            _ if heads.any(|head| head == place + 1) => Vec::new(),
            _ => vec![place + 1],
        }
    }

    fn parent(&self, place: u32) -> Option<(u32, u32)> {
        if place == 0 {
            return None;
        }
        let chain = (0..self.chains()).find(|&chain| self.head(chain) == place);
        Some(chain.map_or((place - 1, 0), |chain| (0, chain)))
    }
}
