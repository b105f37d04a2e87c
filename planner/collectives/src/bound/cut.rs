//! Minimum cuts: among all sets of ranks, the set that needs the longest time to send its bytes out.
//!
//! Zhao et al. (*ForestColl*, arXiv 2402.06787, §4) state it for all_gather: with B⁺(S) the bandwidth that leaves a set
//! S of vertices, the maximum of |S ∩ ranks| ÷ B⁺(S) times a rank's bytes, over all S that do not contain all ranks, is
//! a lower bound on the time of any schedule, and trees packed into the graph reach it. They find the maximum by a
//! search over the rate x at which each rank can be drained, with one maximum flow per rank and probe. This module uses
//! Dinkelbach's method instead: each failing probe gives the minimum cut that limits the rate, and the next probe is at
//! the rate of that cut. Rates are exact fractions and only decrease, and hardly any rank except the first few needs a
//! second flow.
//!
//! Draining a rank is a gather; reduce_scatter is the reverse of all_gather, and scatter the reverse of gather. A
//! broadcast needs the minimum cut between the root and another rank (Edmonds, *Edge-disjoint branchings*, 1973), a
//! reduction the reverse.

use super::wiring::Wiring;
use crate::flow::{Arc, FlowNetwork, UNLIMITED};

/// Direction of flow in the searched graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Along the links, away from the start of the search.
    Away,
    /// Against the links, for flow towards the start of the search.
    Towards,
}

impl Direction {
    /// Returns the opposite direction.
    pub(crate) fn reversed(self) -> Self {
        match self {
            Self::Away => Self::Towards,
            Self::Towards => Self::Away,
        }
    }

    /// Arc of the searched graph for an arc of the fabric.
    pub(crate) fn directed(self, (from, to, capacity): Arc) -> Arc {
        match self {
            Self::Away => (from, to, capacity),
            Self::Towards => (to, from, capacity),
        }
    }
}

/// Cut found by a search: the ranks that are cut off from the start of the search, and the bandwidth across the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// True for each device on the far side of the cut, indexed by device.
    pub beyond: Vec<bool>,
    /// True for each vertex on the far side of the cut. Devices precede the other vertices.
    pub vertices_beyond: Vec<bool>,
    /// Number of ranks on the far side of the cut.
    pub ranks: u128,
    /// Bandwidth between the two sides in the direction of the search, in bytes per second.
    pub through: u128,
}

/// Number of ranks on the far side of a cut, and bytes per second through the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutRatio {
    pub ranks: u128,
    pub through: u128,
}

/// Minimum cut around a set of devices, given by a flag for each device: the maximum flow from all of them to the others.
pub(super) fn around(wiring: &Wiring, ranks: &[u32], inside: &[bool], direction: Direction) -> Cut {
    let arcs: Vec<Arc> = wiring.arcs().into_iter().map(|arc| direction.directed(arc)).collect();
    let Separation { vertices_beyond, through } = separate(wiring.vertices, &arcs, inside);
    let others = ranks.iter().zip(inside).filter(|(_, inside)| !**inside);
    let ranks = others.map(|(&ranks, _)| u128::from(ranks)).sum();
    Cut { beyond: inside.iter().map(|inside| !inside).collect(), vertices_beyond, ranks, through }
}

/// Minimum cut between some of the first vertices of a graph and the others of them.
pub(super) struct Separation {
    /// True for each vertex on the far side of the cut.
    pub vertices_beyond: Vec<bool>,
    /// Capacity from the near side to the far side.
    pub through: u128,
}

/// Finds the minimum cut between devices, the first vertices of a graph, given by a flag for each device, and all other
/// devices.
pub(super) fn separate(vertices: u32, arcs: &[Arc], inside: &[bool]) -> Separation {
    let devices = |is_inside: bool| {
        (0u32..).zip(inside).filter(move |(_, inside)| **inside == is_inside).map(|(device, _)| device)
    };
    let members = devices(true).map(|device| (vertices, device, UNLIMITED));
    let arcs: Vec<Arc> = arcs.iter().copied().chain(members).collect();
    let mut network = FlowNetwork::new(vertices as usize + 1, &arcs);
    let through = network.run(vertices, devices(false).map(|device| (device, UNLIMITED)), 1);
    let mut vertices_beyond = network.far_side();
    vertices_beyond.truncate(vertices as usize);
    Separation { vertices_beyond, through }
}

/// Search for cuts in a graph with a number of ranks on each device.
pub(crate) struct Search<'a> {
    network: FlowNetwork,
    /// Number of ranks of each device. Devices are the first vertices.
    ranks: &'a [u32],
    total: u128,
}

impl<'a> Search<'a> {
    pub(super) fn new(wiring: &Wiring, ranks: &'a [u32], direction: Direction) -> Self {
        Self::on_arcs(wiring.vertices as usize, &wiring.arcs(), ranks, direction)
    }

    /// Creates a search in a graph of these arcs. Its first vertices are the devices with `ranks` ranks.
    pub(crate) fn on_arcs(vertices: usize, arcs: &[Arc], ranks: &'a [u32], direction: Direction) -> Self {
        let arcs: Vec<Arc> = arcs.iter().map(|&arc| direction.directed(arc)).collect();
        let network = FlowNetwork::new(vertices, &arcs);
        Self { network, ranks, total: ranks.iter().map(|&ranks| u128::from(ranks)).sum() }
    }

    /// Finds the set of ranks that needs the longest time to exchange equal blocks with the ranks of `device`; `None`
    /// if no set has a ratio above that of `slowest`, which is updated to the ratio of the set found.
    pub(crate) fn slowest_blocks(&mut self, device: u32, slowest: &mut CutRatio) -> Option<Cut> {
        let mut slowest_cut = None;
        loop {
            let CutRatio { ranks, through } = *slowest;
            if through == 0 {
                return slowest_cut;
            }
            let device_ranks = u128::from(self.ranks[device as usize]);
            let drains = self.others(device).map(|(vertex, ranks)| (vertex, through * u128::from(ranks)));
            let drains: Vec<(u32, u128)> = drains.collect();
            let flow = self.network.run(device, drains, ranks);
            if flow >= through * (self.total - device_ranks) {
                return slowest_cut;
            }
            let beyond = self.beyond();
            let ranks_beyond: u128 = self.count_ranks(&beyond);
            // The flow consists of the full drains on this side and of the cut.
            let crossing = (flow - through * (self.total - device_ranks - ranks_beyond)) / ranks;
            *slowest = CutRatio { ranks: ranks_beyond, through: crossing };
            let vertices_beyond = self.network.far_side();
            slowest_cut = Some(Cut { beyond, vertices_beyond, ranks: ranks_beyond, through: crossing });
        }
    }

    /// Returns the minimum cut between `device` and `other`; `None` if its bandwidth is at least `through`.
    pub(crate) fn minimum_cut(&mut self, device: u32, other: u32, through: u128) -> Option<Cut> {
        let flow = self.network.run(device, [(other, through)], 1);
        if flow >= through {
            return None;
        }
        let beyond = self.beyond();
        let vertices_beyond = self.network.far_side();
        Some(Cut { ranks: self.count_ranks(&beyond), beyond, vertices_beyond, through: flow })
    }

    /// Returns the total bandwidth between `device` and all other devices, in bytes per second.
    pub(crate) fn port(&mut self, device: u32) -> u128 {
        let drains: Vec<(u32, u128)> = self.others(device).map(|(vertex, _)| (vertex, UNLIMITED)).collect();
        self.network.run(device, drains, 1)
    }

    /// True for each vertex on the far side of the minimum cut of the last flow.
    pub(crate) fn far_side(&self) -> Vec<bool> {
        self.network.far_side()
    }

    fn others(&self, device: u32) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let ranks = self.ranks;
        (0..).zip(ranks.iter().copied()).filter(move |&(vertex, _)| vertex != device)
    }

    fn beyond(&self) -> Vec<bool> {
        (0..self.ranks.len() as u32).map(|device| !self.network.on_source_side(device)).collect()
    }

    fn count_ranks(&self, devices: &[bool]) -> u128 {
        devices.iter().zip(self.ranks).filter(|(inside, _)| **inside).map(|(_, &ranks)| u128::from(ranks)).sum()
    }
}
