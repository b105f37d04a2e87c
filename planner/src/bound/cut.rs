//! The least cuts: which set of ranks takes longest to get its bytes out, of all sets.
//!
//! Zhao et al. (*ForestColl*, arXiv 2402.06787, §4) state it for all_gather: with B⁺(S) the bandwidth that leaves a set S
//! of vertices, no schedule beats max |S ∩ ranks| ÷ B⁺(S) times a rank's bytes, over all S that leave a rank out, and
//! trees packed into the graph reach it. They find it by searching the rate x at which each rank can be drained, with
//! one maximum flow per rank and probe. Here each probe that fails yields the least cut that it failed by, and the next
//! probe is at that cut's own rate (Dinkelbach's method): rates are exact fractions, they only fall, and hardly any rank
//! but the first few needs a second flow.
//!
//! A rank being drained is a gather; reduce_scatter is all_gather backwards, scatter is gather backwards. A broadcast
//! needs the least cut between the root and another rank (Edmonds, *Edge-disjoint branchings*, 1973), a reduction the
//! same backwards.

use super::flow::{Arc, FlowNetwork, UNLIMITED};
use super::wiring::Wiring;

/// Which way bytes flow through the graph that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Along the links, away from the rank that the search starts at.
    Away,
    /// Against the links: what is searched is what flows to that rank.
    Towards,
}

impl Direction {
    /// The other one.
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Away => Self::Towards,
            Self::Towards => Self::Away,
        }
    }
}

/// Ranks that are cut off from the rank that a search starts at, and how fast bytes cross.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// By device.
    pub beyond: Vec<bool>,
    /// Ranks beyond.
    pub ranks: u128,
    /// Bytes per second between the two sides.
    pub through: u128,
}

/// The graph, and how many ranks each of its devices has.
pub(super) struct Search<'a> {
    network: FlowNetwork,
    /// Ranks of each device; devices are the first vertices.
    ranks: &'a [u32],
    total: u128,
}

impl<'a> Search<'a> {
    pub(super) fn new(wiring: &Wiring, ranks: &'a [u32], direction: Direction) -> Self {
        let arc = |from: u32, to: u32, capacity: u128| match direction {
            Direction::Away => (from, to, capacity),
            Direction::Towards => (to, from, capacity),
        };
        let arcs: Vec<Arc> = wiring.wires.iter().map(|wire| arc(wire.from, wire.to, wire.capacity)).collect();
        let network = FlowNetwork::new(wiring.vertices as usize, &arcs);
        Self { network, ranks, total: ranks.iter().map(|&ranks| u128::from(ranks)).sum() }
    }

    /// The set of ranks that takes longest to exchange equal blocks with the ranks of `device`; of the sets that take no
    /// longer than `ranks / through` (a pair), none is looked for.
    pub(super) fn slowest_blocks(&mut self, device: u32, slowest: &mut (u128, u128)) -> Option<Cut> {
        let mut found = None;
        loop {
            let (ranks, through) = *slowest;
            if through == 0 {
                return found;
            }
            let own = u128::from(self.ranks[device as usize]);
            let drains = self.others(device).map(|(vertex, ranks)| (vertex, through * u128::from(ranks)));
            let drains: Vec<(u32, u128)> = drains.collect();
            let flow = self.network.run(device, drains, ranks);
            if flow >= through * (self.total - own) {
                return found;
            }
            let beyond = self.beyond();
            let ranks_beyond: u128 = self.counted(&beyond);
            // What flows are the drains on this side, full, and the cut.
            let crossing = (flow - through * (self.total - own - ranks_beyond)) / ranks;
            *slowest = (ranks_beyond, crossing);
            found = Some(Cut { beyond, ranks: ranks_beyond, through: crossing });
        }
    }

    /// The least cut between `device` and `other`, if less than `through` crosses it.
    pub(super) fn least_cut(&mut self, device: u32, other: u32, through: u128) -> Option<Cut> {
        let flow = self.network.run(device, [(other, through)], 1);
        if flow >= through {
            return None;
        }
        let beyond = self.beyond();
        Some(Cut { ranks: self.counted(&beyond), beyond, through: flow })
    }

    /// How much `device` exchanges with all others together.
    pub(super) fn port(&mut self, device: u32) -> u128 {
        let drains: Vec<(u32, u128)> = self.others(device).map(|(vertex, _)| (vertex, UNLIMITED)).collect();
        self.network.run(device, drains, 1)
    }

    fn others(&self, device: u32) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let ranks = self.ranks;
        (0..).zip(ranks.iter().copied()).filter(move |&(vertex, _)| vertex != device)
    }

    fn beyond(&self) -> Vec<bool> {
        (0..self.ranks.len() as u32).map(|device| !self.network.on_source_side(device)).collect()
    }

    fn counted(&self, devices: &[bool]) -> u128 {
        devices.iter().zip(self.ranks).filter(|(inside, _)| **inside).map(|(_, &ranks)| u128::from(ranks)).sum()
    }
}
