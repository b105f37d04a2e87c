//! NCCL's topology search, for machines where a closed form replaces it: nodes with NVSwitches, nodes whose GPUs are
//! attached to PCIe, pairs, and several such nodes with NICs.
//!
//! NCCL tries channel speeds from the fastest that the links support, fits as many channels as possible at each, and
//! retains the maximum product (`ncclTopoCompute`, NCCL 2.30.7 `src/graph/search.cc`). On these machines the number of
//! channels follows from the link loads of a ring, so no search is needed. Meshes of NVLink without switches, where
//! every channel uses a different path, are supported if their NICs are the bottleneck.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

use super::node::{Load, NodeFacts, Ways};
use super::speeds::{Reach, speeds};
use super::{Channels, Graph, Graphs, Pattern, Uncovered};

/// Maximum number of channels of a search.
const MOST: u16 = 32;
/// The next speed is tried while it exceeds this fraction of the speed found.
const NEXT: f64 = 0.49;
/// Tolerance for floating-point errors in an exact fit.
const SLACK: f64 = 1.0 + 1e-9;

/// Number of channels and their speeds, GB/s.
#[derive(Clone, Copy, Debug)]
struct Found {
    channels: u16,
    inside: f64,
    between: f64,
}

impl Found {
    fn whole(&self) -> f64 {
        f64::from(self.channels) * self.inside
    }
}

/// Graphs of one node, or of several equal nodes.
pub(super) fn graphs(node: &NodeFacts, reach: Reach, nvls: super::NvlsUse) -> Result<Graphs, Uncovered> {
    let search = Search { node, reach, speeds: speeds(node.capability.0, reach) };
    let ring = search.ring()?;
    let tree = search.tree(&ring);
    let heads = match nvls {
        super::NvlsUse::Off => None,
        super::NvlsUse::Allowed => search.nvls(),
    };
    Ok(Graphs {
        ring: search.graph(Pattern::Ring, &ring),
        tree: search.graph(search.tree_pattern(), &tree),
        nvls: heads.map(|found| search.graph(Pattern::Nvls, &found)),
    })
}

struct Search<'a> {
    node: &'a NodeFacts,
    reach: Reach,
    speeds: &'static [f64],
}

impl Search<'_> {
    fn ring(&self) -> Result<Found, Uncovered> {
        let fastest = match self.reach {
            Reach::Inside => self.node.best,
            Reach::Between => self.fastest_nic(),
        };
        let mut found: Option<Found> = None;
        for &speed in self.speeds.iter().filter(|&&speed| speed <= fastest * SLACK && speed <= self.node.total * SLACK)
        {
            if found.is_some_and(|known| speed / known.inside <= NEXT) {
                break;
            }
            let channels = self.fit(&self.node.ring, speed, speed).min(MOST);
            let next = Found { channels, inside: speed, between: speed };
            if channels > 0 && found.is_none_or(|known| next.whole() > known.whole() * SLACK) {
                found = Some(next);
            }
            if found.is_some_and(|known| known.whole() * SLACK >= self.node.total) {
                break;
            }
        }
        let found = found.ok_or(Uncovered::NothingFits)?;
        // Other paths inside might carry more than this one, unless the NICs are the bottleneck.
        let by_nics = self.reach == Reach::Between && u32::from(found.channels) == self.nics_fit(found.between);
        if self.node.ways == Ways::Differ && !by_nics {
            return Err(Uncovered::Mesh);
        }
        Ok(self.doubled(found))
    }

    /// Halves the speed and doubles the channels if a channel is fast, except if there are already many on Hopper.
    fn doubled(&self, found: Found) -> Found {
        let many = self.node.capability.0 > 80 && found.inside < 50.0 && found.channels > 4;
        if found.inside < 25.0 || many || found.channels > MOST / 2 {
            return found;
        }
        Found { channels: found.channels * 2, inside: found.inside / 2.0, between: found.between / 2.0 }
    }

    /// Same number of channels as the ring; inside a node faster if links allow, up to twice the network's share.
    fn tree(&self, ring: &Found) -> Found {
        let mut found = *ring;
        for &speed in self.speeds.iter().rev().filter(|&&speed| speed > ring.inside) {
            let fits = match self.node.ways {
                Ways::Alike => self.inside_fit(&self.node.chain, speed) >= ring.channels,
                // Chains on different paths share all pairs of GPUs evenly.
                Ways::Differ => self.pairs_fit(speed) >= ring.channels,
            };
            if found.inside >= 2.0 * found.between || !fits {
                break;
            }
            found.inside = speed;
        }
        found
    }

    /// Pattern of the trees. From Hopper on, plain trees are tried before longer paths to NICs (`ncclTopoCompute`, "Try
    /// a simpler tree", since NCCL 2.18.3). A balanced tree needs the second GPU to be as near to the NIC as the first
    /// one, so hosts with a NIC at each GPU's switch get plain trees, for which the cost model deducts 15 %.
    fn tree_pattern(&self) -> Pattern {
        let near = |nic: &super::node::NodeNic| Some(nic.second) <= self.farthest_nearest();
        let is_plain = match self.reach {
            _ if self.node.gpus == 1 => true,
            Reach::Inside => false,
            Reach::Between => self.node.capability.0 >= 90 && !self.node.nics.iter().all(near),
        };
        if is_plain { Pattern::Tree } else { Pattern::BalancedTree }
    }

    /// Class of the most distant NIC from its own nearest GPU.
    fn farthest_nearest(&self) -> Option<PathClass> {
        self.node.nics.iter().map(|nic| nic.nearest).max()
    }

    /// Number of channels that fit if each chain through n GPUs loads n − 1 of the n(n − 1) connections between two of
    /// them.
    fn pairs_fit(&self, speed: f64) -> u16 {
        let narrowest = self.node.chain.iter().map(|load| load.capacity).fold(f64::INFINITY, f64::min);
        (narrowest * f64::from(self.node.gpus) * SLACK / speed).floor() as u16
    }

    /// NVLS graph with one head per GPU: a GPU's links carry its own channel twice and those of the others once.
    fn nvls(&self) -> Option<Found> {
        let node = self.node;
        if node.switched == 0.0 {
            return None;
        }
        let heads_at = |speed: f64| (node.switched * SLACK / speed).floor().max(1.0) as u32 - 1;
        let mut found: Option<Found> = None;
        for &speed in self.speeds.iter().filter(|&&speed| speed <= node.switched) {
            let heads = match self.reach {
                // With more GPUs, only the first are heads (NCCL_MAX_NVLS_ARITY).
                Reach::Inside => node.gpus.min(MOST.into()),
                Reach::Between => node.gpus.min(self.nics_fit(speed)),
            };
            let heads = if heads_at(speed) >= heads {
                heads
            } else if self.reach == Reach::Inside {
                0
            } else {
                heads_at(speed)
            };
            if heads > found.map_or(0, |known| u32::from(known.channels)) {
                found = Some(Found { channels: heads as u16, inside: speed, between: speed });
            }
        }
        let mut found = found?;
        for &speed in self.speeds.iter().rev().filter(|&&speed| speed > found.inside) {
            let fits = self.reach == Reach::Inside || self.nics_fit(speed) >= u32::from(found.channels);
            if found.between >= 2.0 * found.inside || !fits {
                break;
            }
            found.between = speed;
        }
        Some(found)
    }

    fn fastest_nic(&self) -> f64 {
        self.node.nics.iter().map(|nic| nic.bandwidth).fold(0.0, f64::max)
    }

    /// Number of channels that fit on the NICs, each on a single NIC.
    fn nics_fit(&self, speed: f64) -> u32 {
        self.node.nics.iter().map(|nic| (nic.bandwidth * SLACK / speed).floor() as u32).sum()
    }

    fn inside_fit(&self, loads: &[Load], speed: f64) -> u16 {
        let each = loads.iter().map(|load| (load.capacity * SLACK / (load.taken * speed)).floor());
        each.fold(f64::from(u16::MAX), f64::min) as u16
    }

    fn fit(&self, loads: &[Load], inside: f64, between: f64) -> u16 {
        let channels = self.inside_fit(loads, inside);
        match self.reach {
            Reach::Inside => channels,
            Reach::Between => channels.min(self.nics_fit(between).min(u32::from(u16::MAX)) as u16),
        }
    }

    fn graph(&self, pattern: Pattern, found: &Found) -> Graph {
        // A plain tree enters and leaves at the GPU next to the NIC.
        let by_one = self.node.gpus == 1 || pattern == Pattern::Tree;
        let farthest = |nic: &super::node::NodeNic| if by_one { nic.nearest } else { nic.nearest.max(nic.second) };
        let between_class = match self.reach {
            // Initial value of the search, since no path leaves the node.
            Reach::Inside => PathClass::Pix,
            Reach::Between => self.node.nics.iter().map(farthest).max().unwrap_or(PathClass::Sys),
        };
        Graph {
            pattern,
            channels: found.channels,
            inside: Bandwidth::from_gbps(found.inside),
            between: Bandwidth::from_gbps(found.between),
            inside_class: self.node.class,
            between_class,
            net_latency: Picos::ZERO,
            // Channels of several NICs start at different GPUs (NVIDIA/nccl issues 601 and 1189).
            same: if self.reach == Reach::Between && self.node.nics.len() > 1 {
                Channels::Differ
            } else {
                Channels::Same
            },
        }
    }
}
