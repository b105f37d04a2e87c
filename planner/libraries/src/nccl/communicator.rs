//! Properties of a communicator that NCCL's cost model uses, and its channels.

use fabricast_topologies::{Bandwidth, Bytes};

use super::channel_graph::{Graphs, Pattern};
use super::nvls_shape::{MAX_CHANNELS, NvlsShape};
use super::settings::Settings;
use super::version::{BlackwellNvls, NcclVersion};

/// CPU vendor; vendors that the cost model does not distinguish are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cpu {
    /// Intel, x86-64.
    Intel,
    /// AMD, x86-64, or a mixture of vendors.
    Amd,
    /// IBM POWER.
    Power,
    /// Arm and all others.
    #[default]
    Other,
}

/// Properties of a communicator that NCCL uses to estimate times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Number of nodes: hosts, or NVLink domains if those span hosts.
    pub nodes: u32,
    /// Number of ranks on the node with the fewest ranks.
    pub min_ranks_per_node: u32,
    /// Number of ranks on the node with the most ranks.
    pub max_ranks_per_node: u32,
    /// Minimum and maximum compute capability of the GPUs, × 10.
    pub capability: (u32, u32),
    /// Vendor of the nodes' CPUs.
    pub cpu: Cpu,
    /// Graphs found by the topology search.
    pub graphs: Graphs,
    /// The nearest NIC of a GPU, which determines the number of NVLS channels over several Blackwell nodes; `None` on a
    /// single node.
    pub nic: Option<Nic>,
    /// Number of NVLinks from each GPU to its peers; 0 if the GPUs are connected by PCIe.
    pub nvlinks: u16,
}

/// NIC near a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Bandwidth of the path to the network.
    pub bandwidth: Bandwidth,
    /// Distance class between the NIC and its nearest GPU.
    pub distance: NicDistance,
}

/// Distance class of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicDistance {
    /// Only PCIe switches between NIC and GPU (PXB or nearer).
    Switches,
    /// Farther away than PXB.
    Farther,
}

impl Communicator {
    /// Number of ranks per node; not an integer if nodes differ.
    #[must_use]
    pub fn ranks_per_node(&self) -> f64 {
        f64::from(self.ranks) / f64::from(self.nodes.max(1))
    }

    /// Number of channels of rings and trees (`src/graph/connect.cc`, `ncclTopoPostset`): twice the number that the
    /// search found. On several nodes of Hopper or later GPUs, the number is doubled again if a channel is faster than
    /// 45 GB/s and there are fewer than 16 channels. The limits of `settings` are applied last.
    #[must_use]
    pub fn channels(&self, settings: &Settings) -> u16 {
        let searched = self.graphs.ring.channels.min(self.graphs.tree.channels).max(1);
        let mut channels = searched.saturating_mul(2).min(MAX_CHANNELS);
        let fast = self.graphs.ring.intra_bandwidth > Bandwidth::from_gb_per_s(45.0);
        if self.capability.0 >= 90 && self.nodes > 1 && fast && channels < 16 {
            channels = channels.saturating_mul(2).min(MAX_CHANNELS);
        }
        settings.bound_channels(channels)
    }

    /// Number of channels and chunk sizes of NVLS (`src/transport/nvls.cc`): 16 channels on Hopper, 24 or 32 on
    /// Blackwell. Over several Blackwell nodes, the number depends on the NICs. Earlier versions of NCCL have simpler
    /// rules for Blackwell.
    #[must_use]
    pub fn nvls_shape(&self, version: NcclVersion, settings: &Settings) -> NvlsShape {
        const KIB: u64 = 1 << 10;
        let rule = version.rules().nvls_channels;
        let mut channels = match (rule, self.nodes) {
            _ if self.capability.0 < 100 => 16,
            (BlackwellNvls::AsHopper, _) => 16,
            (BlackwellNvls::ByNodes | BlackwellNvls::ByNics, 1) => 24,
            (BlackwellNvls::Always32 | BlackwellNvls::ByNodes | BlackwellNvls::ByNics, _) => 32,
        };
        let blackwell = self.capability.0 >= 100 && rule == BlackwellNvls::ByNics;
        let mut chunk = 128 * KIB;
        let mut tree_chunk = if self.nodes >= 4 { 64 * KIB } else { chunk };
        if let (true, true, Some(nic)) = (blackwell, self.nodes > 1, self.nic) {
            let speed = nic.bandwidth.gb_per_s();
            let local = self.max_ranks_per_node;
            let is_near = nic.distance == NicDistance::Switches;
            if self.nodes == 2 && speed >= 48.0 {
                (channels, tree_chunk) = (32, 128 * KIB);
                if local <= 4 {
                    (chunk, tree_chunk) = (256 * KIB, 256 * KIB);
                } else if local >= 16 || (local <= 8 && is_near && speed < 96.0) {
                    tree_chunk = 64 * KIB;
                }
            } else if speed >= 96.0 {
                if local <= 8 {
                    (channels, chunk, tree_chunk) = (24, 256 * KIB, 256 * KIB);
                } else {
                    (channels, tree_chunk) = (32, if local >= 32 { 64 * KIB } else { 128 * KIB });
                }
            } else if speed >= 48.0 {
                (channels, tree_chunk) = (24, if is_near { 64 * KIB } else { 128 * KIB });
            }
        }
        settings.nvls_shape(NvlsShape { channels, chunk: Bytes(chunk), tree_chunk: Bytes(tree_chunk) })
    }

    /// Number of NVLS heads: GPUs that each reduce and broadcast a part of the buffer.
    #[must_use]
    pub fn nvls_heads(&self) -> u16 {
        self.graphs.nvls.map_or(0, |graph| graph.channels)
    }

    /// Returns true if the tree pattern is [`Pattern::Tree`](super::channel_graph::Pattern::Tree), for which the cost
    /// model reduces the bandwidth by 15 %.
    pub(super) fn has_plain_trees(&self) -> bool {
        self.graphs.tree.pattern == Pattern::Tree
    }
}
