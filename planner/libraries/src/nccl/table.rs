//! NCCL's own estimates of every algorithm and protocol: latency and bandwidth, or the reason why the combination is
//! not available.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc` (`ncclTopoTuneModel`), with the differences of other versions
//! ([`super::version`]). In-network reduction (CollNet) is not modelled, because it requires a network plugin that
//! supports it. Its cells have the latencies that NCCL logs, and no bandwidth.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

use super::channel_graph::{ChannelPaths, Graph};
use super::communicator::{Communicator, Cpu};
use super::constants::{self, Generation, Hardware, Scale};
use super::index::{Algo, Function, Proto};
use super::settings::{PatSetting, Settings};
use super::version::{
    ChainHop, ChannelSpeed, Ll128Gpus, Ll128Test, NcclVersion, NvlsSpeed, Pat, RingLl, RingNetworkHops,
    SingleRankNodes, VersionRules,
};

/// Reason why NCCL never uses an algorithm and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The function has no such algorithm, or the algorithm no such protocol.
    #[error("NCCL has no such kernel")]
    NoKernel,
    /// CollNet is not modelled, because it needs a network that reduces.
    #[error("needs a network that reduces (CollNet)")]
    NoCollNet,
    /// NVLS is off, or the switches do not support reduction and multicast.
    #[error("NVLS is off, or there are no NVSwitches that reduce and multicast")]
    NoNvls,
    /// NVLS needs a single node.
    #[error("the switches of one node reach its GPUs only")]
    NvlsNeedsOneNode,
    /// NVLSTree needs several nodes.
    #[error("NVLSTree needs several nodes")]
    NvlsTreeNeedsSeveralNodes,
    /// NCCL_PAT_ENABLE=0 excludes PAT.
    #[error("excluded by NCCL_PAT_ENABLE")]
    PatExcluded,
    /// PAT is not used by default if a node has several ranks.
    #[error("PAT needs one rank per node")]
    PatNeedsSingleRankNodes,
    /// PAT is not used by default on GPUs older than Pascal.
    #[error("PAT needs Pascal GPUs or later")]
    PatNeedsPascal,
    /// LL128 needs stores of 128 bytes to arrive atomically, which these paths or GPUs do not guarantee.
    #[error("LL128 is not safe over these paths or GPUs")]
    UnsafeLl128,
    /// NCCL_ALGO or NCCL_PROTO excludes the algorithm or protocol.
    #[error("excluded by NCCL_ALGO or NCCL_PROTO")]
    Excluded,
    /// NCCL's search found fewer than two channels.
    #[error("needs at least two channels")]
    TooFewChannels,
}

/// Estimate of one algorithm and protocol for a function: latency and bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Latency of a call in NCCL's model, to which the model adds the transfer time of the message.
    pub latency: Picos,
    /// Bytes of the call (nccl-tests' size) per second; 0 if the cell is never used.
    pub bandwidth: Bandwidth,
    /// `Ok` if NCCL can use the cell.
    pub availability: Result<(), Unavailable>,
}

/// Estimates of all functions, algorithms and protocols of a communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    cells: [[[Cell; 3]; 7]; 5],
}

impl CostTable {
    /// Computes the estimates of a version for a communicator.
    #[must_use]
    pub fn new(communicator: &Communicator, version: NcclVersion, settings: &Settings) -> Self {
        let model = CostModel::new(communicator, version, settings);
        let cells = Function::ALL
            .map(|function| Algo::ALL.map(|algo| Proto::ALL.map(|proto| model.cell(function, algo, proto))));
        Self { cells }
    }

    /// Returns the estimate of one function, algorithm and protocol.
    #[must_use]
    pub fn cell(&self, function: Function, algo: Algo, proto: Proto) -> &Cell {
        &self.cells[function as usize][algo as usize][proto as usize]
    }
}

/// Set of available cells of a communicator (105 combinations), without their estimates.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cells(u128);

impl Cells {
    /// Set of all cells.
    pub const ALL: Self = Self(u128::MAX);

    /// Returns the available cells of a table.
    #[must_use]
    pub fn from_table(table: &CostTable) -> Self {
        let pairs = Function::ALL.into_iter().flat_map(|f| Algo::ALL.into_iter().map(move |a| (f, a)));
        let cells = pairs.flat_map(|(f, a)| Proto::ALL.into_iter().map(move |p| (f, a, p)));
        let available = cells.filter(|&(f, a, p)| table.cell(f, a, p).availability.is_ok());
        Self(available.fold(0, |bits, (f, a, p)| bits | 1 << bit(f, a, p)))
    }

    /// Returns true if a cell is available.
    #[must_use]
    pub fn has(self, function: Function, algo: Algo, proto: Proto) -> bool {
        self.0 >> bit(function, algo, proto) & 1 == 1
    }
}

fn bit(function: Function, algo: Algo, proto: Proto) -> usize {
    (function as usize * Algo::ALL.len() + algo as usize) * Proto::ALL.len() + proto as usize
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cells({:#x})", self.0)
    }
}

struct CostModel<'a> {
    communicator: &'a Communicator,
    rules: &'a VersionRules,
    settings: &'a Settings,
    generation: Generation,
    scale: Scale,
}

impl<'a> CostModel<'a> {
    fn new(communicator: &'a Communicator, version: NcclVersion, settings: &'a Settings) -> Self {
        let generation = Generation::from_capability(communicator.capability.0);
        Self {
            communicator,
            rules: version.rules(),
            settings,
            generation,
            scale: Scale::from_nodes(communicator.nodes),
        }
    }

    fn cell(&self, function: Function, algo: Algo, proto: Proto) -> Cell {
        let absent = |reason, latency| Cell { latency, bandwidth: Bandwidth(0), availability: Err(reason) };
        if !has_kernel(function, algo, proto) || (algo == Algo::Pat && self.rules.pat == Pat::Missing) {
            return absent(Unavailable::NoKernel, Picos::ZERO);
        }
        if let (Algo::Pat, Err(reason)) = (algo, self.pat_availability()) {
            return absent(reason, Picos::ZERO);
        }
        let latency = Picos::from_us(self.latency(function, algo, proto));
        match self
            .bandwidth(function, algo, proto)
            .and_then(|gb_per_s| self.enabled(function, algo, proto).map(|()| gb_per_s))
        {
            Ok(gb_per_s) => Cell { latency, bandwidth: Bandwidth::from_gb_per_s(gb_per_s), availability: Ok(()) },
            Err(reason) => absent(reason, latency),
        }
    }

    fn graph(&self, algo: Algo) -> Result<&Graph, Unavailable> {
        match algo {
            Algo::Ring => Ok(&self.communicator.graphs.ring),
            Algo::Tree | Algo::Pat => Ok(&self.communicator.graphs.tree),
            Algo::Nvls | Algo::NvlsTree => self.communicator.graphs.nvls.as_ref().ok_or(Unavailable::NoNvls),
            Algo::CollNetDirect | Algo::CollNetChain => Err(Unavailable::NoCollNet),
        }
    }

    /// Number of sequential steps of a ring for a function.
    fn steps(&self, function: Function) -> f64 {
        function.ring_steps(self.communicator.ranks)
    }

    /// Bandwidth of a call in NCCL's model, GB/s, in terms of the message size.
    fn bandwidth(&self, function: Function, algo: Algo, proto: Proto) -> Result<f64, Unavailable> {
        let graph = self.graph(algo)?;
        let channels = f64::from(graph.channels);
        if algo.is_nvls() && graph.channels < 2 {
            return Err(Unavailable::TooFewChannels);
        }
        let bus = channels * self.channel_speed(function, algo, graph);
        let bus = match (algo, proto) {
            (Algo::Ring, Proto::Ll) => self.ll_limit().min(bus * self.ring_ll_part(function)),
            (Algo::Ring, Proto::Ll128) => (self.ring_line() * bus).min(channels * self.limit(algo, proto)),
            (Algo::Tree, _) => self.tree_bandwidth(function, proto, bus, channels),
            (Algo::Pat, _) => 0.75 * bus,
            _ => bus,
        };
        // Converts bytes that pass a link to bytes of the message size.
        let factor = match (algo, self.rules.nvls_speed) {
            (Algo::Ring, _) => f64::from(self.communicator.ranks) / self.steps(function),
            (Algo::Nvls | Algo::NvlsTree, NvlsSpeed::FiveSixths) => 5.0 / 6.0,
            // NCCL converts the bandwidth of rings and of AllReduce only.
            _ if function.is_blockwise() => 1.0,
            (Algo::Nvls | Algo::NvlsTree, NvlsSpeed::ByGeneration) => {
                f64::from(self.communicator.ranks) / self.steps(function)
            }
            (Algo::Nvls | Algo::NvlsTree, _) => 5.0 / 6.0,
            _ => 0.5,
        };
        Ok(bus * factor)
    }

    /// Maximum bandwidth of a channel, GB/s; infinite if there is no limit.
    fn limit(&self, algo: Algo, proto: Proto) -> f64 {
        self.rules.constants.channel(algo, proto, self.generation, self.scale)
    }

    fn ring_ll_part(&self, function: Function) -> f64 {
        match self.rules.ring_ll {
            RingLl::Half => 0.5,
            RingLl::ThirdOrQuarter if self.communicator.nodes > 1 => 0.25,
            RingLl::ThirdOrQuarter if matches!(function, Function::AllReduce | Function::Reduce) => 0.25,
            RingLl::ThirdOrQuarter => 1.0 / 3.0,
        }
    }

    /// Fraction of the wire rate that rings with LL128 achieve in NCCL's model.
    fn ring_line(&self) -> f64 {
        match self.rules.single_rank_nodes {
            SingleRankNodes::OwnLatencyAndLowerLl128 if self.communicator.ranks_per_node() < 2.0 => 0.7,
            _ => 0.92,
        }
    }

    fn channel_speed(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let (inside, between) = (graph.intra_bandwidth.gb_per_s(), graph.inter_bandwidth.gb_per_s());
        match (algo, self.rules.speed) {
            (Algo::Nvls | Algo::NvlsTree, _) => self.nvls_speed(function, algo, graph),
            (_, ChannelSpeed::InsideUpToTwoNodes) if self.communicator.nodes <= 2 => inside,
            (_, ChannelSpeed::InsideUpToTwoNodes) => between,
            (Algo::Ring, ChannelSpeed::BetweenNodesFromTwo) if self.communicator.nodes <= 1 => inside,
            (Algo::Ring, ChannelSpeed::BetweenNodesFromTwo) => between,
            (_, ChannelSpeed::BetweenNodesFromTwo) => inside.min(between),
        }
    }

    fn nvls_speed(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let (inside, between) = (graph.intra_bandwidth.gb_per_s(), graph.inter_bandwidth.gb_per_s());
        let per_node = self.communicator.ranks_per_node();
        let beyond_two = algo == Algo::NvlsTree && self.communicator.nodes > 2;
        match self.rules.nvls_speed {
            NvlsSpeed::ByGeneration => self.switch_bandwidth(function, algo, graph),
            NvlsSpeed::FiveSixthsOrRemoteShare if function != Function::AllReduce => {
                (inside * (per_node - 1.0) / per_node).min(0.9 * between)
            }
            _ if beyond_two => inside.min(between / 2.0),
            _ => inside.min(between),
        }
    }

    /// Bandwidth through the NVSwitches, GB/s. The data of a GPU passes each link once; for AllReduce it passes in both
    /// directions concurrently.
    fn switch_bandwidth(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let channels = f64::from(graph.channels);
        let part = constants::nvls_efficiency(self.generation) * (channels - 1.0) / channels;
        let per_node = match self.rules.speed {
            ChannelSpeed::InsideUpToTwoNodes => self.communicator.ranks_per_node(),
            ChannelSpeed::BetweenNodesFromTwo => f64::from(self.communicator.min_ranks_per_node),
        };
        let directions = if function == Function::AllReduce { 2.0 } else { (per_node - 1.0) / per_node };
        let inside = graph.intra_bandwidth.gb_per_s() * part * directions;
        let two_trees = algo == Algo::NvlsTree && self.communicator.nodes <= 2;
        let between = graph.inter_bandwidth.gb_per_s() * if two_trees { 2.0 } else { 1.0 };
        inside.min(between).min(self.limit(algo, Proto::Simple))
    }

    fn tree_bandwidth(&self, function: Function, proto: Proto, bus: f64, channels: f64) -> f64 {
        let limit = |proto| channels * self.limit(Algo::Tree, proto);
        let simple = match function {
            Function::AllReduce => (0.92 * bus).min(limit(Proto::Simple)),
            _ => bus,
        };
        let line = if self.communicator.nodes <= 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
        let bus = match proto {
            Proto::Ll => (simple / 3.8).min(self.ll_limit()),
            Proto::Ll128 => (simple * line).min(limit(Proto::Ll128)),
            Proto::Simple => simple,
        };
        if self.communicator.has_plain_trees() { 0.85 * bus } else { bus }
    }

    /// Maximum bandwidth of LL, GB/s. On one node the GPUs determine it, on several nodes the CPUs, because the flags
    /// pass host memory.
    fn ll_limit(&self) -> f64 {
        let row = match (self.communicator.nodes, self.communicator.cpu) {
            (0 | 1, _) => self.generation,
            (_, Cpu::Amd) => Generation::Ampere,
            _ => Generation::Volta,
        };
        self.rules.constants.ll(row, self.scale)
    }

    /// Latency of a call in NCCL's model, µs.
    fn latency(&self, function: Function, algo: Algo, proto: Proto) -> f64 {
        let base = self.rules.constants.base(algo, proto);
        let graph = self.graph(algo).ok();
        let hardware = match graph {
            Some(graph) if graph.intra_class == PathClass::Nvl => Hardware::Nvlink,
            _ => Hardware::Pci,
        };
        let inside = self.intra_node_hop(hardware, algo, proto);
        let between = self.inter_node_hop(graph, algo, proto, inside);
        let nodes = f64::from(self.communicator.nodes);
        let local = f64::from((self.communicator.ranks / self.communicator.nodes.max(1)).saturating_sub(1));
        let depth = f64::from(self.communicator.nodes.max(1).ilog2());
        match algo {
            Algo::Ring if function.is_blockwise() || function == Function::AllReduce => {
                let crossings = match (self.communicator.nodes, function, self.rules.ring_network_hops) {
                    (0 | 1, ..) => 0.0,
                    (_, Function::AllReduce, RingNetworkHops::BetweenNodes) => 2.0 * (nodes - 1.0),
                    (_, Function::AllReduce, RingNetworkHops::Around) => 2.0 * nodes,
                    _ => nodes - 1.0,
                };
                let inside = if self.communicator.nodes > 1 { inside.max(self.post_overhead(proto)) } else { inside };
                base + (self.steps(function) - crossings) * inside + crossings * between
            }
            Algo::Ring => self.chain_latency(hardware, proto, base),
            Algo::Tree => base + 2.0 * (local * inside + depth * between),
            Algo::CollNetDirect => base + 2.0 * (local.min(1.0) * inside + 0.4 * local) + between,
            Algo::CollNetChain => base + 2.0 * local * inside + between,
            Algo::Nvls if self.communicator.nodes > 1 => inside + between,
            Algo::Nvls => inside,
            Algo::NvlsTree => base + inside + 2.0 * depth * between,
            Algo::Pat => base + depth * between / 3.5 + 2.8 * f64::from(self.communicator.ranks),
        }
    }

    fn intra_node_hop(&self, hardware: Hardware, algo: Algo, proto: Proto) -> f64 {
        // On POWER CPUs, tree hops with Simple have the latency of ring hops.
        if self.communicator.cpu == Cpu::Power && (hardware, algo, proto) == (Hardware::Pci, Algo::Tree, Proto::Simple)
        {
            return self.rules.constants.hop(Hardware::Pci, Algo::Ring, Proto::Simple);
        }
        self.rules.constants.hop(hardware, algo, proto)
    }

    fn inter_node_hop(&self, graph: Option<&Graph>, algo: Algo, proto: Proto, inside: f64) -> f64 {
        let single_rank = self.communicator.ranks == self.communicator.nodes;
        let net = match self.rules.single_rank_nodes {
            SingleRankNodes::TreeLatency if single_rank => self.rules.constants.hop(Hardware::Net, Algo::Tree, proto),
            SingleRankNodes::OwnLatency if self.communicator.nodes <= 1 => return inside,
            _ => self.rules.constants.hop(Hardware::Net, algo, proto),
        };
        let reported = graph.map_or(0.0, |graph| graph.net_latency.us());
        // Simple adds the NIC latency twice; the second is for the read that flushes the NIC's writes (NVIDIA/nccl
        // issue 2274).
        net + reported * if proto == Proto::Simple { 2.0 } else { 1.0 }
    }

    /// Latency of Broadcast and Reduce along a chain, µs. The model counts the chain as one hop if all channels use the
    /// same path.
    fn chain_latency(&self, hardware: Hardware, proto: Proto, base: f64) -> f64 {
        let hardware = match self.rules.chain_hop {
            ChainHop::Slowest if self.communicator.nodes > 1 => Hardware::Net,
            _ => hardware,
        };
        match self.communicator.graphs.ring.paths {
            ChannelPaths::Same => base + self.rules.constants.hop(hardware, Algo::Ring, proto),
            ChannelPaths::Differ => {
                let algo = if proto == Proto::Simple { Algo::Tree } else { Algo::Ring };
                base + f64::from(self.communicator.ranks) * self.rules.constants.hop(hardware, algo, proto)
            }
        }
    }

    /// Overhead of posting a message to the network, µs: NCCL_NET_OVERHEAD, or a default that depends on the CPU; three
    /// times as much for Simple.
    fn post_overhead(&self, proto: Proto) -> f64 {
        let default = if self.communicator.cpu == Cpu::Amd { 2.0 } else { 1.0 };
        let overhead = self.settings.net_overhead.map_or(default, Picos::us);
        if proto == Proto::Simple { 3.0 * overhead } else { overhead }
    }

    fn pat_availability(&self) -> Result<(), Unavailable> {
        match self.settings.pat {
            PatSetting::Off => Err(Unavailable::PatExcluded),
            PatSetting::On => Ok(()),
            PatSetting::Auto if self.communicator.nodes < self.communicator.ranks => {
                Err(Unavailable::PatNeedsSingleRankNodes)
            }
            PatSetting::Auto if self.communicator.capability.0 < 60 => Err(Unavailable::PatNeedsPascal),
            PatSetting::Auto => Ok(()),
        }
    }

    fn enabled(&self, function: Function, algo: Algo, proto: Proto) -> Result<(), Unavailable> {
        if !self.settings.allows(function, algo, proto) {
            return Err(Unavailable::Excluded);
        }
        match algo {
            Algo::NvlsTree if self.communicator.nodes <= 1 => return Err(Unavailable::NvlsTreeNeedsSeveralNodes),
            // Between nodes, NVLS would need a network that reduces.
            Algo::Nvls if self.communicator.nodes > 1 => return Err(Unavailable::NvlsNeedsOneNode),
            // Maximum number of ranks per node whose blocks the NVLS kernels distinguish (NCCL_MAX_NVLS_ARITY).
            Algo::Nvls if function != Function::AllReduce && self.communicator.max_ranks_per_node > 32 => {
                return Err(Unavailable::NoKernel);
            }
            _ => {}
        }
        let checks_path = match self.rules.ll128 {
            Ll128Test::UnlessForced => !self.settings.mentions_protocols(function),
            Ll128Test::WhenForced => self.settings.mentions_protocols(function),
        };
        if proto == Proto::Ll128 && checks_path && !self.ll128_is_safe(self.graph(algo)?) {
            return Err(Unavailable::UnsafeLl128);
        }
        Ok(())
    }

    fn ll128_gpus(&self, min: u32, max: u32) -> bool {
        let equal = min == max;
        match self.rules.ll128_gpus {
            Ll128Gpus::EqualUpToHopper => equal && matches!(min, 70 | 80 | 90),
            Ll128Gpus::Equal => equal && min >= 70,
            Ll128Gpus::EqualOrHopperUp => min >= 70 && (equal || min >= 90),
        }
    }

    /// Returns true if stores of 128 bytes arrive atomically: over NVLink, and from Hopper on over NICs through a peer
    /// (PXN).
    fn ll128_is_safe(&self, graph: &Graph) -> bool {
        let (min, max) = self.communicator.capability;
        let farthest = if min >= 90 { PathClass::Pxn } else { PathClass::Pxb };
        graph.inter_class <= farthest && graph.intra_class <= PathClass::Nvb && self.ll128_gpus(min, max)
    }
}

/// Returns true if NCCL has a kernel for the combination on some fabric.
#[must_use]
pub fn has_kernel(function: Function, algo: Algo, proto: Proto) -> bool {
    let offered = match function {
        Function::Broadcast | Function::Reduce => algo == Algo::Ring,
        Function::AllGather | Function::ReduceScatter => {
            matches!(algo, Algo::Ring | Algo::Pat | Algo::Nvls | Algo::CollNetDirect)
        }
        Function::AllReduce => algo != Algo::Pat,
    };
    // CollNet cells have latencies for all protocols, but a bandwidth for Simple only.
    let has_protocol = algo.is_collnet() || proto == Proto::Simple || matches!(algo, Algo::Tree | Algo::Ring);
    offered && has_protocol
}
