//! Graphs found by NCCL's topology search: number of channels, their bandwidth, and the links they use.

mod node;
mod search;
mod speeds;

use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::PathClass;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bandwidth, Fabric, NodeId, Picos};

use super::channel_graph::{ChannelPaths, Graph, Graphs, Pattern};
use super::communicator::{Communicator, Nic, NicDistance};
use node::NodeProperties;
use speeds::CommunicatorExtent;

/// Use of NVLS graphs in the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvlsUse {
    /// NVLS graphs are searched if the switches support NVLS.
    Allowed,
    /// NVLS graphs are not searched.
    Off,
}

/// Reason why the result of NCCL's search is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchNotModelled {
    /// NVLinks form a mesh, so every channel uses a different path and the search is not modelled.
    #[error("its search is not modelled for NVLink without switches between more than two GPUs, unless NICs limit it")]
    Mesh,
    /// NCCL 2.31 and earlier do not support MIG instances.
    #[error("MIG instances are not modelled")]
    Mig,
    /// NCCL rejects several ranks on a GPU.
    #[error("it supports one rank per GPU only")]
    SharedGpu,
    /// A GPU is not from NVIDIA, so NCCL does not run on it.
    #[error("it runs on NVIDIA GPUs only")]
    NotNvidia,
    /// The fabric does not state the GPUs' compute capability, on which NCCL's tables depend.
    #[error("the fabric does not state the GPUs' compute capability")]
    UnknownGpu,
    /// There is no path between two GPUs of a node.
    #[error("some GPUs of a node cannot reach each other")]
    NoPath,
    /// No channel fits on the links at any of the channel speeds that NCCL tries.
    #[error("no channel fits at any of its speeds")]
    NothingFits,
    /// A node has no NIC.
    #[error("it needs a NIC on every node")]
    NoNics,
    /// The nodes are not equal.
    #[error("its search is not modelled for nodes that differ")]
    NodesDiffer,
}

/// Returns true if any of the devices is not an NVIDIA GPU, so that NCCL does not run.
pub(crate) fn are_not_nvidia(fabric: &Fabric, devices: &[NodeId]) -> bool {
    devices.iter().any(|&device| node::capability(fabric, device) == Err(SearchNotModelled::NotNvidia))
}

impl Communicator {
    /// Determines the communicator of ranks on a fabric as NCCL's search would.
    ///
    /// Supported are nodes with NVSwitches, nodes whose GPUs are attached to PCIe (with or without NVLink bridges
    /// between pairs of GPUs), nodes with one GPU, and several such nodes if they are equal. A node is a part of the
    /// fabric that is connected without the network: a host, or a rack on one NVLink domain.
    ///
    /// # Errors
    /// Returns [`SearchNotModelled`] for every other machine.
    pub fn from_fabric(
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        nvls: NvlsUse,
    ) -> Result<Self, SearchNotModelled> {
        let nodes = nodes(fabric, router, placement)?;
        let (Some(first), Some(min_gpus), Some(max_gpus)) = (
            nodes.first(),
            nodes.iter().map(|node| node.gpus.len()).min(),
            nodes.iter().map(|node| node.gpus.len()).max(),
        ) else {
            return Err(SearchNotModelled::NoPath);
        };
        let signature = first.signature(fabric);
        if nodes.iter().skip(1).any(|node| node.signature(fabric) != signature) {
            return Err(SearchNotModelled::NodesDiffer);
        }
        let extent = if nodes.len() > 1 { CommunicatorExtent::Between } else { CommunicatorExtent::Inside };
        let properties =
            NodeProperties::new(fabric, router, &first.gpus, if nodes.len() > 1 { &first.nics } else { &[] })?;
        if nodes.len() > 1 && properties.nics.is_empty() {
            return Err(SearchNotModelled::NoNics);
        }
        let graphs = if placement.len() == 1 {
            single_rank_graphs(&properties)
        } else {
            search::graphs(&properties, extent, nvls)?
        };
        let nic = properties.nics.iter().min_by_key(|nic| nic.nearest).map(|nic| Nic {
            bandwidth: Bandwidth::from_gb_per_s(nic.bandwidth),
            distance: if nic.nearest <= PathClass::Pxb { NicDistance::Switches } else { NicDistance::Farther },
        });
        Ok(Self {
            ranks: placement.len() as u32,
            nodes: nodes.len() as u32,
            min_ranks_per_node: min_gpus as u32,
            max_ranks_per_node: max_gpus as u32,
            capability: properties.capability,
            cpu: properties.cpu,
            graphs,
            nic,
            nvlinks: properties.nvlinks,
        })
    }
}

/// Returns the graphs of a single rank, which has no peers.
fn single_rank_graphs(properties: &NodeProperties) -> Graphs {
    let graph = |pattern| Graph {
        pattern,
        channels: 1,
        intra_bandwidth: Bandwidth::from_gb_per_s(properties.total),
        inter_bandwidth: Bandwidth::from_gb_per_s(properties.total),
        intra_class: PathClass::Loc,
        inter_class: PathClass::Pix,
        net_latency: Picos::ZERO,
        paths: ChannelPaths::Same,
    };
    Graphs { ring: graph(Pattern::Ring), tree: graph(Pattern::Tree), nvls: None }
}

/// Ranks and NICs of a part of the fabric that is connected without the network.
struct Island {
    gpus: Vec<NodeId>,
    nics: Vec<NodeId>,
}

impl Island {
    /// Properties that are equal for equal nodes, for each GPU and NIC: kind, bandwidth of its port, compute capability
    /// (GPUs) and speed (NICs).
    fn signature(&self, fabric: &Fabric) -> Vec<(NodeKind, Option<Bandwidth>, Option<u32>, u64)> {
        use fabricast_topologies::fabric::Figures;
        let describe = |&device: &NodeId| {
            let node = fabric.node(device);
            let capability = match &node.figures {
                Figures::Gpu(figures) => figures.compute_capability,
                _ => None,
            };
            let speed = if node.kind == NodeKind::Nic { speeds::nic(fabric, device) } else { 0.0 };
            (node.kind, fabric.port_bandwidth(device), capability, speed.to_bits())
        };
        self.gpus.iter().chain(&self.nics).map(describe).collect()
    }
}

fn nodes(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId]) -> Result<Vec<Island>, SearchNotModelled> {
    let mut nodes: Vec<Island> = Vec::new();
    let mut indices: rustc_hash::FxHashMap<u32, usize> = rustc_hash::FxHashMap::default();
    let mut seen = vec![false; fabric.node_count()];
    for &gpu in placement {
        match seen.get_mut(gpu.0 as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(SearchNotModelled::SharedGpu),
        }
        let island = *indices.entry(router.island_of(gpu)).or_insert_with(|| {
            nodes.push(Island { gpus: Vec::new(), nics: Vec::new() });
            nodes.len() - 1
        });
        if let Some(node) = nodes.get_mut(island) {
            node.gpus.push(gpu);
        }
    }
    for (id, node) in fabric.nodes() {
        let island = (node.kind == NodeKind::Nic).then(|| indices.get(&router.island_of(id))).flatten();
        if let Some(node) = island.and_then(|&island| nodes.get_mut(island)) {
            node.nics.push(id);
        }
    }
    Ok(nodes)
}
