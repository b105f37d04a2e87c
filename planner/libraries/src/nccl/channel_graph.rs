//! Graphs of a communicator's channels, as NCCL's topology search finds them.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

/// Pattern of a graph within a node, numbered 1 to 6 by NCCL (`src/include/graph.h`, 2.30.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Tree whose first GPU is connected to the parent and one child, the second GPU to the other child.
    BalancedTree,
    /// Tree whose second GPU is connected to both children.
    SplitTree,
    /// Tree whose first GPU is connected to the parent and both children.
    Tree,
    /// Ring through the GPUs of the node.
    Ring,
    /// Reduction and multicast in the NVSwitches.
    Nvls,
}

/// Use of equal or different paths by the channels of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChannelPaths {
    /// All channels use the same path.
    #[default]
    Same,
    /// Channels use different paths.
    Differ,
}

/// Graph of one pattern as found by NCCL's topology search, before channels are doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Pattern within a node.
    pub pattern: Pattern,
    /// Number of channels found.
    pub channels: u16,
    /// Bandwidth of a channel inside a node.
    pub intra_bandwidth: Bandwidth,
    /// Bandwidth of a channel between nodes; on a single node, the initial value of the search, which the search does
    /// not change.
    pub inter_bandwidth: Bandwidth,
    /// Path class of the most distant pair inside a node.
    pub intra_class: PathClass,
    /// Path class between a GPU and its NIC, for the most distant of the NICs.
    pub inter_class: PathClass,
    /// Latency reported by the network plugin.
    pub net_latency: Picos,
    /// Use of equal or different paths by the channels.
    pub paths: ChannelPaths,
}

/// Graphs of a communicator, by the algorithms that use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graphs {
    /// Graph of rings.
    pub ring: Graph,
    /// Graph of trees and PAT.
    pub tree: Graph,
    /// Graph of NVLS and NVLSTree, if there is one.
    pub nvls: Option<Graph>,
}
