//! The graphs that NCCL's topology search finds: how many channels, how fast, over what.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

/// How a graph goes through a node; NCCL numbers them 1 to 6 (`src/include/graph.h`, 2.30.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// A tree whose first GPU talks to the parent and one child, the second to the other child.
    BalancedTree,
    /// A tree whose second GPU talks to both children.
    SplitTree,
    /// A tree whose first GPU talks to all.
    Tree,
    /// A ring.
    Ring,
    /// Reduction and multicast in the NVSwitches.
    Nvls,
}

/// Whether all channels go the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Channels {
    /// They do.
    #[default]
    Same,
    /// They do not.
    Differ,
}

/// A graph, as the search leaves it: before channels are doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// How it goes through a node.
    pub pattern: Pattern,
    /// Channels found.
    pub channels: u16,
    /// Bandwidth of a channel inside a node.
    pub inside: Bandwidth,
    /// Bandwidth of a channel between nodes; on one node what the search left there.
    pub between: Bandwidth,
    /// The farthest pair inside a node.
    pub inside_class: PathClass,
    /// The farthest way to a NIC.
    pub between_class: PathClass,
    /// What the network's plugin says of its latency.
    pub net_latency: Picos,
    /// Whether channels are alike.
    pub same: Channels,
}

/// The graphs of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graphs {
    /// Of rings.
    pub ring: Graph,
    /// Of trees, and of PAT.
    pub tree: Graph,
    /// Of NVLS and NVLSTree, where there is one.
    pub nvls: Option<Graph>,
}
