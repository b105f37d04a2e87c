//! Compares NCCL's modelled selection with NCCL's logs and worked examples, and checks properties for random
//! communicators.

mod choices;
mod measured;
mod older;
mod plans;
mod properties;
mod search;
mod worked;

use fabricast_libraries::nccl::{ChannelPaths, Graph, Graphs, Pattern};
use fabricast_libraries::nccl::{Communicator, CostTable, Cpu, Function, NcclVersion, Pick, Request, Settings, pick};
use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Bytes, Picos};

/// Returns a graph of `channels` channels, with bandwidths in GB/s inside and between nodes.
pub fn graph(pattern: Pattern, channels: u16, inside: f64, between: f64) -> Graph {
    Graph {
        pattern,
        channels,
        intra_bandwidth: Bandwidth::from_gb_per_s(inside),
        inter_bandwidth: Bandwidth::from_gb_per_s(between),
        intra_class: PathClass::Nvl,
        inter_class: PathClass::Pix,
        net_latency: Picos::ZERO,
        paths: ChannelPaths::Same,
    }
}

/// Returns a communicator of nodes with equally many GPUs, whose rings and trees have the same channels. `sm` is the
/// compute capability times ten; `speed` the total bandwidth in GB/s.
pub fn communicator(nodes: u32, per_node: u32, sm: u32, channels: u16, speed: f64) -> Communicator {
    Communicator {
        ranks: nodes * per_node,
        nodes,
        min_ranks_per_node: per_node,
        max_ranks_per_node: per_node,
        capability: (sm, sm),
        cpu: Cpu::Intel,
        graphs: Graphs {
            ring: graph(Pattern::Ring, channels, speed, speed),
            tree: graph(Pattern::BalancedTree, channels, speed, speed),
            nvls: None,
        },
        nic: None,
        nvlinks: 18,
    }
}

/// NCCL's choices for a communicator.
pub struct Picker {
    pub communicator: Communicator,
    pub version: NcclVersion,
    pub settings: Settings,
    pub table: CostTable,
}

impl Picker {
    pub fn new(communicator: Communicator, version: NcclVersion) -> Self {
        let settings = Settings::default();
        let table = CostTable::new(&communicator, version, &settings);
        Self { communicator, version, settings, table }
    }

    pub fn pick(&self, function: Function, bytes: u64) -> Pick {
        let request = Request::new(function, Bytes(bytes));
        let channels = self.communicator.channels(&self.settings);
        pick(&self.communicator, channels, self.version, &self.table, &request).unwrap()
    }
}
