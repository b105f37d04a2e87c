//! NCCL's topology search in closed form, for nodes with NVSwitches, nodes whose GPUs are attached to PCIe (also with
//! NVLink pairs), and several such nodes with NICs.
//!
//! NCCL tries channel speeds from the highest that the links support downwards, fits as many channels as possible at
//! each speed, and retains the maximum product of speed and channels (`ncclTopoCompute`, NCCL 2.30.7
//! `src/graph/search.cc`). On these machines the number of channels follows from the link loads of a ring, so no search
//! is needed. NVLink meshes without switches, in which every channel uses a different path, are supported if their NICs
//! are the bottleneck.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

use super::super::channel_graph::{ChannelPaths, Graph, Graphs, Pattern};
use super::SearchNotModelled;
use super::node::{InsidePaths, Load, NodeProperties};
use super::speeds::{CommunicatorExtent, speeds};

/// Maximum number of channels of a search (`MAXCHANNELS / 2`).
const MAX_SEARCH_CHANNELS: u16 = 32;
/// Ratio of a speed to the best speed found, at and below which the search stops (`ncclTopoCompute`).
const MIN_SPEED_RATIO: f64 = 0.49;
/// Tolerance factor for rounding errors when the channels use the whole capacity of a link.
const SLACK: f64 = 1.0 + 1e-9;

/// Number of channels and their speeds, GB/s.
#[derive(Clone, Copy, Debug)]
struct SearchResult {
    channels: u16,
    inside: f64,
    between: f64,
}

impl SearchResult {
    fn total_bandwidth(&self) -> f64 {
        f64::from(self.channels) * self.inside
    }
}

/// Graphs of one node, or of several equal nodes.
pub(super) fn graphs(
    node: &NodeProperties,
    extent: CommunicatorExtent,
    nvls: super::NvlsUse,
) -> Result<Graphs, SearchNotModelled> {
    let search = Search { node, extent, speeds: speeds(node.capability.0, extent) };
    let ring = search.ring()?;
    let tree = search.tree(&ring);
    let heads = match nvls {
        super::NvlsUse::Off => None,
        super::NvlsUse::Allowed => search.nvls(),
    };
    Ok(Graphs {
        ring: search.graph(Pattern::Ring, &ring),
        tree: search.graph(search.tree_pattern(), &tree),
        nvls: heads.map(|result| search.graph(Pattern::Nvls, &result)),
    })
}

struct Search<'a> {
    node: &'a NodeProperties,
    extent: CommunicatorExtent,
    speeds: &'static [f64],
}

impl Search<'_> {
    fn ring(&self) -> Result<SearchResult, SearchNotModelled> {
        let fastest = match self.extent {
            CommunicatorExtent::Inside => self.node.max_pair_bandwidth,
            CommunicatorExtent::Between => self.fastest_nic(),
        };
        let mut best: Option<SearchResult> = None;
        for &speed in self.speeds.iter().filter(|&&speed| speed <= fastest * SLACK && speed <= self.node.total * SLACK)
        {
            if best.is_some_and(|known| speed / known.inside <= MIN_SPEED_RATIO) {
                break;
            }
            let channels = self.fit(&self.node.ring, speed, speed).min(MAX_SEARCH_CHANNELS);
            let next = SearchResult { channels, inside: speed, between: speed };
            if channels > 0 && best.is_none_or(|known| next.total_bandwidth() > known.total_bandwidth() * SLACK) {
                best = Some(next);
            }
            if best.is_some_and(|known| known.total_bandwidth() * SLACK >= self.node.total) {
                break;
            }
        }
        let best = best.ok_or(SearchNotModelled::NothingFits)?;
        // Channels on other paths might fit on the links inside the node, unless the NICs are the bottleneck.
        let nics_limit =
            self.extent == CommunicatorExtent::Between && u32::from(best.channels) == self.nics_fit(best.between);
        if self.node.paths == InsidePaths::Differ && !nics_limit {
            return Err(SearchNotModelled::Mesh);
        }
        Ok(self.doubled(best))
    }

    /// Halves the channel speed and doubles the number of channels if a channel is fast, except on Hopper if there are
    /// already many channels.
    fn doubled(&self, result: SearchResult) -> SearchResult {
        let has_many = self.node.capability.0 > 80 && result.inside < 50.0 && result.channels > 4;
        if result.inside < 25.0 || has_many || result.channels > MAX_SEARCH_CHANNELS / 2 {
            return result;
        }
        SearchResult { channels: result.channels * 2, inside: result.inside / 2.0, between: result.between / 2.0 }
    }

    /// Search result for trees: as many channels as the ring has. Inside a node, channels are faster if the links allow
    /// it, up to twice the speed between nodes.
    fn tree(&self, ring: &SearchResult) -> SearchResult {
        let mut result = *ring;
        for &speed in self.speeds.iter().rev().filter(|&&speed| speed > ring.inside) {
            let fits = match self.node.paths {
                InsidePaths::Same => self.inside_fit(&self.node.chain, speed) >= ring.channels,
                // Chains on different paths load all pairs of GPUs evenly.
                InsidePaths::Differ => self.pairs_fit(speed) >= ring.channels,
            };
            if result.inside >= 2.0 * result.between || !fits {
                break;
            }
            result.inside = speed;
        }
        result
    }

    /// Pattern of the trees. From Hopper on, plain trees are tried before longer paths to NICs (`ncclTopoCompute`, "Try
    /// a simpler tree", since NCCL 2.18.3). A balanced tree needs a second GPU that is as near to the NIC as the first
    /// one. Hosts with one NIC per GPU at the GPU's own switch therefore get plain trees, whose bandwidth the cost
    /// model reduces by 15 %.
    fn tree_pattern(&self) -> Pattern {
        let is_near = |nic: &super::node::NodeNic| Some(nic.second) <= self.max_nic_distance();
        let is_plain = match self.extent {
            _ if self.node.gpus == 1 => true,
            CommunicatorExtent::Inside => false,
            CommunicatorExtent::Between => self.node.capability.0 >= 90 && !self.node.nics.iter().all(is_near),
        };
        if is_plain { Pattern::Tree } else { Pattern::BalancedTree }
    }

    /// Path class between a NIC and its nearest GPU, for the NIC where it is most distant; `None` without NICs.
    fn max_nic_distance(&self) -> Option<PathClass> {
        self.node.nics.iter().map(|nic| nic.nearest).max()
    }

    /// Number of channels of `speed` GB/s that fit on the links between all pairs of *n* GPUs. Each channel is a chain
    /// that uses *n* − 1 of the *n*(*n* − 1) connections.
    fn pairs_fit(&self, speed: f64) -> u16 {
        let narrowest = self.node.chain.iter().map(|load| load.capacity).fold(f64::INFINITY, f64::min);
        (narrowest * f64::from(self.node.gpus) * SLACK / speed).floor() as u16
    }

    /// Search result for NVLS, with one head per GPU. The links of a GPU carry its own channel twice and the channels
    /// of the other GPUs once. `None` if the switches do not support NVLS or no channel fits.
    fn nvls(&self) -> Option<SearchResult> {
        let node = self.node;
        if node.switch_bandwidth == 0.0 {
            return None;
        }
        let max_heads = |speed: f64| (node.switch_bandwidth * SLACK / speed).floor().max(1.0) as u32 - 1;
        let mut best: Option<SearchResult> = None;
        for &speed in self.speeds.iter().filter(|&&speed| speed <= node.switch_bandwidth) {
            let heads = match self.extent {
                // At most 32 GPUs are heads (NCCL_MAX_NVLS_ARITY).
                CommunicatorExtent::Inside => node.gpus.min(MAX_SEARCH_CHANNELS.into()),
                CommunicatorExtent::Between => node.gpus.min(self.nics_fit(speed)),
            };
            let heads = if max_heads(speed) >= heads {
                heads
            } else if self.extent == CommunicatorExtent::Inside {
                0
            } else {
                max_heads(speed)
            };
            if heads > best.map_or(0, |known| u32::from(known.channels)) {
                best = Some(SearchResult { channels: heads as u16, inside: speed, between: speed });
            }
        }
        let mut best = best?;
        for &speed in self.speeds.iter().rev().filter(|&&speed| speed > best.inside) {
            let fits = self.extent == CommunicatorExtent::Inside || self.nics_fit(speed) >= u32::from(best.channels);
            if best.between >= 2.0 * best.inside || !fits {
                break;
            }
            best.between = speed;
        }
        Some(best)
    }

    fn fastest_nic(&self) -> f64 {
        self.node.nics.iter().map(|nic| nic.bandwidth).fold(0.0, f64::max)
    }

    /// Number of channels of `speed` GB/s that fit on the NICs if each channel uses a single NIC.
    fn nics_fit(&self, speed: f64) -> u32 {
        self.node.nics.iter().map(|nic| (nic.bandwidth * SLACK / speed).floor() as u32).sum()
    }

    fn inside_fit(&self, loads: &[Load], speed: f64) -> u16 {
        let counts = loads.iter().map(|load| (load.capacity * SLACK / (load.used * speed)).floor());
        counts.fold(f64::from(u16::MAX), f64::min) as u16
    }

    fn fit(&self, loads: &[Load], inside: f64, between: f64) -> u16 {
        let channels = self.inside_fit(loads, inside);
        match self.extent {
            CommunicatorExtent::Inside => channels,
            CommunicatorExtent::Between => channels.min(self.nics_fit(between).min(u32::from(u16::MAX)) as u16),
        }
    }

    fn graph(&self, pattern: Pattern, result: &SearchResult) -> Graph {
        // A plain tree enters and leaves the node at the GPU next to the NIC.
        let single_gpu = self.node.gpus == 1 || pattern == Pattern::Tree;
        let farthest = |nic: &super::node::NodeNic| if single_gpu { nic.nearest } else { nic.nearest.max(nic.second) };
        let between_class = match self.extent {
            // No path leaves the node, so the search's initial value remains.
            CommunicatorExtent::Inside => PathClass::Pix,
            CommunicatorExtent::Between => self.node.nics.iter().map(farthest).max().unwrap_or(PathClass::Sys),
        };
        Graph {
            pattern,
            channels: result.channels,
            intra_bandwidth: Bandwidth::from_gb_per_s(result.inside),
            inter_bandwidth: Bandwidth::from_gb_per_s(result.between),
            intra_class: self.node.class,
            inter_class: between_class,
            net_latency: Picos::ZERO,
            // Channels of several NICs start at different GPUs (NVIDIA/nccl issues 601 and 1189).
            paths: if self.extent == CommunicatorExtent::Between && self.node.nics.len() > 1 {
                ChannelPaths::Differ
            } else {
                ChannelPaths::Same
            },
        }
    }
}
