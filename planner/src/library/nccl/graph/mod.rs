//! Graphs found by NCCL's topology search: number of channels, their bandwidth, and the links they use.

mod node;
mod search;
mod speeds;

use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::PathClass;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bandwidth, Fabric, NodeId, Picos};

use super::communicator::{Communicator, Nearness, Nic};
use node::NodeFacts;
use speeds::Reach;

/// Pattern of a graph within a node, numbered 1 to 6 by NCCL (`src/include/graph.h`, 2.30.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Tree whose first GPU is connected to the parent and one child, the second GPU to the other child.
    BalancedTree,
    /// Tree whose second GPU is connected to both children.
    SplitTree,
    /// Tree whose first GPU is connected to the parent and both children.
    Tree,
    /// Ring.
    Ring,
    /// Reduction and multicast in the NVSwitches.
    Nvls,
}

/// Equality of the channels' paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Channels {
    /// All channels use the same path.
    #[default]
    Same,
    /// Channels use different paths.
    Differ,
}

/// Graph as found by the search, before channels are doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Pattern within a node.
    pub pattern: Pattern,
    /// Number of channels found.
    pub channels: u16,
    /// Bandwidth of a channel inside a node.
    pub inside: Bandwidth,
    /// Bandwidth of a channel between nodes; on one node, the value left by the search.
    pub between: Bandwidth,
    /// Path class of the most distant pair inside a node.
    pub inside_class: PathClass,
    /// Path class of the most distant NIC.
    pub between_class: PathClass,
    /// Latency reported by the network plugin.
    pub net_latency: Picos,
    /// Equality of the channels' paths.
    pub same: Channels,
}

/// Graphs of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graphs {
    /// Graph of rings.
    pub ring: Graph,
    /// Graph of trees and PAT.
    pub tree: Graph,
    /// Graph of NVLS and NVLSTree, if there is one.
    pub nvls: Option<Graph>,
}

/// Use of NVLS graphs in the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvlsUse {
    /// Searched if the switches support it.
    Allowed,
    /// Not searched.
    Off,
}

/// Reason why the result of NCCL's search is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncovered {
    /// Every channel uses a different path in a mesh of NVLinks.
    #[error("its search is not modelled for NVLink without switches between more than two GPUs, unless NICs limit it")]
    Mesh,
    /// NCCL 2.31 and earlier do not support MIG instances.
    #[error("MIG instances are not modelled")]
    Mig,
    /// NCCL rejects several ranks on a GPU.
    #[error("it takes one rank a GPU only")]
    SharedGpu,
    /// Other libraries run on other vendors' GPUs.
    #[error("it runs on NVIDIA GPUs only")]
    OtherMaker,
    /// The tables depend on the compute capability.
    #[error("the fabric does not state the GPUs' compute capability")]
    UnknownGpu,
    /// There is no path between two GPUs of a node.
    #[error("some GPUs of a node do not reach each other")]
    Apart,
    /// No channel fits at any speed.
    #[error("no channel fits at any of its speeds")]
    NothingFits,
    /// Nodes without NICs.
    #[error("it needs a NIC on every node")]
    NoNics,
    /// Nodes differ.
    #[error("its search is not modelled for nodes that differ")]
    Uneven,
}

/// Returns true if any of the GPUs is of another vendor, so that NCCL does not run.
pub(crate) fn are_of_another_maker(fabric: &Fabric, devices: &[NodeId]) -> bool {
    devices.iter().any(|&device| node::capability(fabric, device) == Err(Uncovered::OtherMaker))
}

impl Communicator {
    /// Determines the communicator of ranks on a fabric as NCCL's search would.
    ///
    /// Supported: nodes with NVSwitches, nodes whose GPUs are attached to PCIe (with NVLink bridges between pairs or
    /// without), one GPU per node; several such nodes if they are equal. A node is a part of the fabric that is
    /// connected without the network: a host, or a rack on one NVLink domain.
    ///
    /// # Errors
    /// Returns [`Uncovered`] for every other machine.
    pub fn of(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], nvls: NvlsUse) -> Result<Self, Uncovered> {
        let nodes = nodes(fabric, router, placement)?;
        let (Some(first), Some(fewest), Some(most)) = (
            nodes.first(),
            nodes.iter().map(|node| node.gpus.len()).min(),
            nodes.iter().map(|node| node.gpus.len()).max(),
        ) else {
            return Err(Uncovered::Apart);
        };
        let signature = first.signature(fabric);
        if nodes.iter().skip(1).any(|node| node.signature(fabric) != signature) {
            return Err(Uncovered::Uneven);
        }
        let reach = if nodes.len() > 1 { Reach::Between } else { Reach::Inside };
        let facts = NodeFacts::of(fabric, router, &first.gpus, if nodes.len() > 1 { &first.nics } else { &[] })?;
        if nodes.len() > 1 && facts.nics.is_empty() {
            return Err(Uncovered::NoNics);
        }
        let graphs = if placement.len() == 1 { lone(&facts) } else { search::graphs(&facts, reach, nvls)? };
        let nic = facts.nics.iter().min_by_key(|nic| nic.nearest).map(|nic| Nic {
            bandwidth: Bandwidth::from_gbps(nic.bandwidth),
            nearness: if nic.nearest <= PathClass::Pxb { Nearness::Switches } else { Nearness::Farther },
        });
        Ok(Self {
            ranks: placement.len() as u32,
            nodes: nodes.len() as u32,
            fewest_ranks: fewest as u32,
            most_ranks: most as u32,
            capability: facts.capability,
            cpu: facts.cpu,
            graphs,
            nic,
            nvlinks: facts.nvlinks,
        })
    }
}

/// Graphs of a single rank, which has no peers.
fn lone(facts: &NodeFacts) -> Graphs {
    let graph = |pattern| Graph {
        pattern,
        channels: 1,
        inside: Bandwidth::from_gbps(facts.total),
        between: Bandwidth::from_gbps(facts.total),
        inside_class: PathClass::Loc,
        between_class: PathClass::Pix,
        net_latency: Picos::ZERO,
        same: Channels::Same,
    };
    Graphs { ring: graph(Pattern::Ring), tree: graph(Pattern::Tree), nvls: None }
}

/// Ranks and NICs of a part of the fabric that is connected without the network.
struct Island {
    gpus: Vec<NodeId>,
    nics: Vec<NodeId>,
}

impl Island {
    /// Properties that must agree for nodes to be equal: GPUs with their port, NICs with their speed.
    fn signature(&self, fabric: &Fabric) -> Vec<(NodeKind, Option<Bandwidth>, Option<u32>, u64)> {
        use fabricast_topologies::fabric::Figures;
        let of = |&device: &NodeId| {
            let node = fabric.node(device);
            let capability = match &node.figures {
                Figures::Gpu(figures) => figures.compute_capability,
                _ => None,
            };
            let speed = if node.kind == NodeKind::Nic { speeds::nic(fabric, device) } else { 0.0 };
            (node.kind, fabric.port_bandwidth(device), capability, speed.to_bits())
        };
        self.gpus.iter().chain(&self.nics).map(of).collect()
    }
}

fn nodes(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId]) -> Result<Vec<Island>, Uncovered> {
    let mut nodes: Vec<Island> = Vec::new();
    let mut place: rustc_hash::FxHashMap<u32, usize> = rustc_hash::FxHashMap::default();
    let mut seen = vec![false; fabric.node_count()];
    for &gpu in placement {
        match seen.get_mut(gpu.0 as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(Uncovered::SharedGpu),
        }
        let island = *place.entry(router.island_of(gpu)).or_insert_with(|| {
            nodes.push(Island { gpus: Vec::new(), nics: Vec::new() });
            nodes.len() - 1
        });
        if let Some(node) = nodes.get_mut(island) {
            node.gpus.push(gpu);
        }
    }
    for (id, node) in fabric.nodes() {
        let island = (node.kind == NodeKind::Nic).then(|| place.get(&router.island_of(id))).flatten();
        if let Some(node) = island.and_then(|&island| nodes.get_mut(island)) {
            node.nics.push(id);
        }
    }
    Ok(nodes)
}
