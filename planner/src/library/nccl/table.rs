//! NCCL's own estimates of every algorithm and protocol: latency and bandwidth, or the reason why it is not available.
//!
//! Formulas of NCCL 2.30.7 `src/graph/tuning.cc` (`ncclTopoTuneModel`), with the differences of other versions
//! ([`super::version`]). In-network reduction (CollNet) is not modelled, because it requires a network plugin that
//! supports it; its cells have the latencies that NCCL prints and no bandwidth.

use fabricast_topologies::route::PathClass;
use fabricast_topologies::{Bandwidth, Picos};

use super::communicator::{Communicator, Cpu};
use super::constants::{self, Generation, Hardware, Scale};
use super::graph::{Channels, Graph};
use super::index::{Algo, Function, Proto};
use super::settings::{PatSetting, Settings};
use super::version::{
    ChainHop, ChannelSpeed, Crossings, Ll128Gpus, Ll128Test, LoneRanks, NvlsSpeed, Pat, RingLl, Rules, Version,
};

/// Reason why NCCL never uses an algorithm and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The function has no such algorithm, or the algorithm no such protocol.
    #[error("NCCL has no such kernel")]
    NoKernel,
    /// No in-network reduction.
    #[error("needs a network that reduces (CollNet)")]
    NoCollNet,
    /// No NVLS.
    #[error("needs NVSwitches that reduce and multicast")]
    NoNvls,
    /// NVLSTree needs several nodes, and NVLS a single one.
    #[error("the switches of one node reach its GPUs only")]
    WrongNodes,
    /// PAT needs one rank per node.
    #[error("PAT is taken with one rank a node only")]
    PatNeedsLoneRanks,
    /// LL128 needs stores of 128 bytes to arrive atomically.
    #[error("LL128 is not safe over these paths or GPUs")]
    UnsafeLl128,
    /// Excluded by NCCL_ALGO or NCCL_PROTO.
    #[error("excluded by NCCL_ALGO or NCCL_PROTO")]
    Excluded,
    /// The search found too few channels.
    #[error("needs two channels at least")]
    TooFewChannels,
}

/// Estimate of one algorithm and protocol for a function: latency and bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Base latency of a call.
    pub latency: Picos,
    /// Bytes of the call (nccl-tests' size) per second; 0 if the cell is never used.
    pub bandwidth: Bandwidth,
    /// `Ok` if NCCL can use the cell.
    pub taken: Result<(), Absent>,
}

/// Estimates of all functions, algorithms and protocols of a communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    cells: [[[Cell; 3]; 7]; 5],
}

impl Table {
    /// Computes the estimates of a version for a communicator.
    #[must_use]
    pub fn new(communicator: &Communicator, version: Version, settings: &Settings) -> Self {
        let model = Model::new(communicator, version, settings);
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

/// Availability of the cells of a communicator, without their estimates: 105 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cells(u128);

impl Cells {
    /// All cells.
    pub const ALL: Self = Self(u128::MAX);

    /// Returns the available cells of a table.
    #[must_use]
    pub fn of(table: &Table) -> Self {
        let all = Function::ALL.into_iter().flat_map(|f| Algo::ALL.into_iter().map(move |a| (f, a)));
        let ways = all.flat_map(|(f, a)| Proto::ALL.into_iter().map(move |p| (f, a, p)));
        let taken = ways.filter(|&(f, a, p)| table.cell(f, a, p).taken.is_ok());
        Self(taken.fold(0, |bits, way| bits | 1 << bit(way)))
    }

    /// Returns true if a cell is available.
    #[must_use]
    pub fn has(self, function: Function, algo: Algo, proto: Proto) -> bool {
        self.0 >> bit((function, algo, proto)) & 1 == 1
    }
}

fn bit((function, algo, proto): (Function, Algo, Proto)) -> usize {
    (function as usize * Algo::ALL.len() + algo as usize) * Proto::ALL.len() + proto as usize
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cells({:#x})", self.0)
    }
}

struct Model<'a> {
    of: &'a Communicator,
    rules: &'a Rules,
    settings: &'a Settings,
    generation: Generation,
    scale: Scale,
}

impl<'a> Model<'a> {
    fn new(of: &'a Communicator, version: Version, settings: &'a Settings) -> Self {
        let generation = Generation::of(of.capability.0);
        Self { of, rules: version.rules(), settings, generation, scale: Scale::of(of.nodes) }
    }

    fn cell(&self, function: Function, algo: Algo, proto: Proto) -> Cell {
        let absent = |why, latency| Cell { latency, bandwidth: Bandwidth(0), taken: Err(why) };
        if !has_kernel(function, algo, proto) || (algo == Algo::Pat && self.rules.pat == Pat::Missing) {
            return absent(Absent::NoKernel, Picos::ZERO);
        }
        if algo == Algo::Pat && !self.pat_fits() {
            return absent(Absent::PatNeedsLoneRanks, Picos::ZERO);
        }
        let latency = Picos::from_us(self.latency(function, algo, proto));
        match self.bandwidth(function, algo, proto).and_then(|gbps| self.enabled(function, algo, proto).map(|()| gbps))
        {
            Ok(gbps) => Cell { latency, bandwidth: Bandwidth::from_gbps(gbps), taken: Ok(()) },
            Err(why) => absent(why, latency),
        }
    }

    fn graph(&self, algo: Algo) -> Result<&Graph, Absent> {
        match algo {
            Algo::Ring => Ok(&self.of.graphs.ring),
            Algo::Tree | Algo::Pat => Ok(&self.of.graphs.tree),
            Algo::Nvls | Algo::NvlsTree => self.of.graphs.nvls.as_ref().ok_or(Absent::NoNvls),
            Algo::CollNetDirect | Algo::CollNetChain => Err(Absent::NoCollNet),
        }
    }

    /// Number of sequential steps.
    fn steps(&self, function: Function) -> f64 {
        let ranks = f64::from(self.of.ranks);
        match function {
            Function::AllReduce => 2.0 * (ranks - 1.0),
            Function::AllGather | Function::ReduceScatter => ranks - 1.0,
            Function::Broadcast | Function::Reduce => ranks,
        }
    }

    /// Bandwidth of the call's bytes, GB/s.
    fn bandwidth(&self, function: Function, algo: Algo, proto: Proto) -> Result<f64, Absent> {
        let graph = self.graph(algo)?;
        let channels = f64::from(graph.channels);
        if algo.is_nvls() && graph.channels < 2 {
            return Err(Absent::TooFewChannels);
        }
        let bus = channels * self.channel_speed(function, algo, graph);
        let bus = match (algo, proto) {
            (Algo::Ring, Proto::Ll) => self.ll_limit().min(bus * self.ring_ll_part(function)),
            (Algo::Ring, Proto::Ll128) => (self.ring_line() * bus).min(channels * self.limit(algo, proto)),
            (Algo::Tree, _) => self.tree_bandwidth(function, proto, bus, channels),
            (Algo::Pat, _) => 0.75 * bus,
            _ => bus,
        };
        // Converts bytes through a link to the call's bytes.
        let turned = match (algo, self.rules.nvls_speed) {
            (Algo::Ring, _) => f64::from(self.of.ranks) / self.steps(function),
            (Algo::Nvls | Algo::NvlsTree, NvlsSpeed::FiveSixths) => 5.0 / 6.0,
            // Only rings and AllReduce are converted.
            _ if function.is_blockwise() => 1.0,
            (Algo::Nvls | Algo::NvlsTree, NvlsSpeed::ByGeneration) => f64::from(self.of.ranks) / self.steps(function),
            (Algo::Nvls | Algo::NvlsTree, _) => 5.0 / 6.0,
            _ => 0.5,
        };
        Ok(bus * turned)
    }

    /// Maximum bandwidth of a channel, GB/s.
    fn limit(&self, algo: Algo, proto: Proto) -> f64 {
        self.rules.constants.channel(algo, proto, self.generation, self.scale)
    }

    fn ring_ll_part(&self, function: Function) -> f64 {
        match self.rules.ring_ll {
            RingLl::Half => 0.5,
            RingLl::ThirdOrQuarter if self.of.nodes > 1 => 0.25,
            RingLl::ThirdOrQuarter if matches!(function, Function::AllReduce | Function::Reduce) => 0.25,
            RingLl::ThirdOrQuarter => 1.0 / 3.0,
        }
    }

    /// Fraction of the wire rate that rings with LL128 achieve.
    fn ring_line(&self) -> f64 {
        match self.rules.lone_ranks {
            LoneRanks::ReachLess if self.of.ranks_per_node() < 2.0 => 0.7,
            _ => 0.92,
        }
    }

    fn channel_speed(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let (inside, between) = (graph.inside.gbps(), graph.between.gbps());
        match (algo, self.rules.speed) {
            (Algo::Nvls | Algo::NvlsTree, _) => self.nvls_speed(function, algo, graph),
            (_, ChannelSpeed::InsideUpToTwoNodes) if self.of.nodes <= 2 => inside,
            (_, ChannelSpeed::InsideUpToTwoNodes) => between,
            (Algo::Ring, ChannelSpeed::BetweenBeyondOne) if self.of.nodes <= 1 => inside,
            (Algo::Ring, ChannelSpeed::BetweenBeyondOne) => between,
            (_, ChannelSpeed::BetweenBeyondOne) => inside.min(between),
        }
    }

    fn nvls_speed(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let (inside, between) = (graph.inside.gbps(), graph.between.gbps());
        let per_node = self.of.ranks_per_node();
        let beyond_two = algo == Algo::NvlsTree && self.of.nodes > 2;
        match self.rules.nvls_speed {
            NvlsSpeed::ByGeneration => self.switched(function, algo, graph),
            NvlsSpeed::FiveSixthsOrOthersPart if function != Function::AllReduce => {
                (inside * (per_node - 1.0) / per_node).min(0.9 * between)
            }
            _ if beyond_two => inside.min(between / 2.0),
            _ => inside.min(between),
        }
    }

    /// Bandwidth through the switches: a GPU's data returns once, for AllReduce in both directions concurrently.
    fn switched(&self, function: Function, algo: Algo, graph: &Graph) -> f64 {
        let channels = f64::from(graph.channels);
        let part = constants::nvls_efficiency(self.generation) * (channels - 1.0) / channels;
        let per_node = match self.rules.speed {
            ChannelSpeed::InsideUpToTwoNodes => self.of.ranks_per_node(),
            ChannelSpeed::BetweenBeyondOne => f64::from(self.of.fewest_ranks),
        };
        let ways = if function == Function::AllReduce { 2.0 } else { (per_node - 1.0) / per_node };
        let inside = graph.inside.gbps() * part * ways;
        let two_trees = algo == Algo::NvlsTree && self.of.nodes <= 2;
        let between = graph.between.gbps() * if two_trees { 2.0 } else { 1.0 };
        inside.min(between).min(self.limit(algo, Proto::Simple))
    }

    fn tree_bandwidth(&self, function: Function, proto: Proto, bus: f64, channels: f64) -> f64 {
        let limit = |proto| channels * self.limit(Algo::Tree, proto);
        let whole = match function {
            Function::AllReduce => (0.92 * bus).min(limit(Proto::Simple)),
            _ => bus,
        };
        let line = if self.of.nodes <= 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
        let bus = match proto {
            Proto::Ll => (whole / 3.8).min(self.ll_limit()),
            Proto::Ll128 => (whole * line).min(limit(Proto::Ll128)),
            Proto::Simple => whole,
        };
        if self.of.has_plain_trees() { 0.85 * bus } else { bus }
    }

    /// Maximum bandwidth of LL: on one node by the GPUs, on several by the CPUs, whose memory the flags pass through.
    fn ll_limit(&self) -> f64 {
        let row = match (self.of.nodes, self.of.cpu) {
            (0 | 1, _) => self.generation,
            (_, Cpu::Amd) => Generation::Ampere,
            _ => Generation::Volta,
        };
        self.rules.constants.ll(row, self.scale)
    }

    /// Latency, µs.
    fn latency(&self, function: Function, algo: Algo, proto: Proto) -> f64 {
        let base = self.rules.constants.base(algo, proto);
        let graph = self.graph(algo).ok();
        let hardware = match graph {
            Some(graph) if graph.inside_class == PathClass::Nvl => Hardware::Nvlink,
            _ => Hardware::Pci,
        };
        let inside = self.inside_hop(hardware, algo, proto);
        let between = self.between_hop(graph, algo, proto, inside);
        let nodes = f64::from(self.of.nodes);
        let local = f64::from((self.of.ranks / self.of.nodes.max(1)).saturating_sub(1));
        let depth = f64::from(self.of.nodes.max(1).ilog2());
        match algo {
            Algo::Ring if function.is_blockwise() || function == Function::AllReduce => {
                let crossings = match (self.of.nodes, function, self.rules.crossings) {
                    (0 | 1, ..) => 0.0,
                    (_, Function::AllReduce, Crossings::BetweenNodes) => 2.0 * (nodes - 1.0),
                    (_, Function::AllReduce, Crossings::Around) => 2.0 * nodes,
                    _ => nodes - 1.0,
                };
                let inside = if self.of.nodes > 1 { inside.max(self.post(proto)) } else { inside };
                base + (self.steps(function) - crossings) * inside + crossings * between
            }
            Algo::Ring => self.chain_latency(hardware, proto, base),
            Algo::Tree => base + 2.0 * (local * inside + depth * between),
            Algo::CollNetDirect => base + 2.0 * (local.min(1.0) * inside + 0.4 * local) + between,
            Algo::CollNetChain => base + 2.0 * local * inside + between,
            Algo::Nvls if self.of.nodes > 1 => inside + between,
            Algo::Nvls => inside,
            Algo::NvlsTree => base + inside + 2.0 * depth * between,
            Algo::Pat => base + depth * between / 3.5 + 2.8 * f64::from(self.of.ranks),
        }
    }

    fn inside_hop(&self, hardware: Hardware, algo: Algo, proto: Proto) -> f64 {
        // On POWER, tree hops with Simple have the latency of ring hops.
        if self.of.cpu == Cpu::Power && (hardware, algo, proto) == (Hardware::Pci, Algo::Tree, Proto::Simple) {
            return self.rules.constants.hop(Hardware::Pci, Algo::Ring, Proto::Simple);
        }
        self.rules.constants.hop(hardware, algo, proto)
    }

    fn between_hop(&self, graph: Option<&Graph>, algo: Algo, proto: Proto, inside: f64) -> f64 {
        let lone = self.of.ranks == self.of.nodes;
        let net = match self.rules.lone_ranks {
            LoneRanks::PayTrees if lone => self.rules.constants.hop(Hardware::Net, Algo::Tree, proto),
            LoneRanks::PayTheirs if self.of.nodes <= 1 => return inside,
            _ => self.rules.constants.hop(Hardware::Net, algo, proto),
        };
        let said = graph.map_or(0.0, |graph| graph.net_latency.us());
        // Simple adds it twice: the second is for the read that flushes the NIC's writes (NVIDIA/nccl issue 2274).
        net + said * if proto == Proto::Simple { 2.0 } else { 1.0 }
    }

    /// Latency of Broadcast and Reduce along a chain, which the model counts as one hop if all channels are equal.
    fn chain_latency(&self, hardware: Hardware, proto: Proto, base: f64) -> f64 {
        let hardware = match self.rules.chain_hop {
            ChainHop::Slowest if self.of.nodes > 1 => Hardware::Net,
            _ => hardware,
        };
        match self.of.graphs.ring.same {
            Channels::Same => base + self.rules.constants.hop(hardware, Algo::Ring, proto),
            Channels::Differ => {
                let algo = if proto == Proto::Simple { Algo::Tree } else { Algo::Ring };
                base + f64::from(self.of.ranks) * self.rules.constants.hop(hardware, algo, proto)
            }
        }
    }

    /// Overhead of posting a message to the network, µs: NCCL_NET_OVERHEAD, or by the CPU; three times for Simple.
    fn post(&self, proto: Proto) -> f64 {
        let usual = if self.of.cpu == Cpu::Amd { 2.0 } else { 1.0 };
        let once = self.settings.net_overhead.map_or(usual, Picos::us);
        if proto == Proto::Simple { 3.0 * once } else { once }
    }

    fn pat_fits(&self) -> bool {
        match self.settings.pat {
            PatSetting::Off => false,
            PatSetting::On => true,
            // By default, PAT is used with one rank per node on Pascal GPUs and later.
            PatSetting::Auto => self.of.nodes == self.of.ranks && self.of.capability.0 >= 60,
        }
    }

    fn enabled(&self, function: Function, algo: Algo, proto: Proto) -> Result<(), Absent> {
        if !self.settings.allows(function, algo, proto) {
            return Err(Absent::Excluded);
        }
        match algo {
            Algo::NvlsTree if self.of.nodes <= 1 => return Err(Absent::WrongNodes),
            // Between nodes, the switches would need a network that reduces.
            Algo::Nvls if self.of.nodes > 1 => return Err(Absent::WrongNodes),
            // Maximum number of ranks per node whose blocks the NVLS kernels distinguish (NCCL_MAX_NVLS_ARITY).
            Algo::Nvls if function != Function::AllReduce && self.of.most_ranks > 32 => return Err(Absent::NoKernel),
            _ => {}
        }
        let tested = match self.rules.ll128 {
            Ll128Test::UnlessForced => !self.settings.names_protocols(function),
            Ll128Test::WhenForced => self.settings.names_protocols(function),
        };
        if proto == Proto::Ll128 && tested && !self.ll128_is_safe(self.graph(algo)?) {
            return Err(Absent::UnsafeLl128);
        }
        Ok(())
    }

    fn ll128_gpus(&self, least: u32, greatest: u32) -> bool {
        let alike = least == greatest;
        match self.rules.ll128_gpus {
            Ll128Gpus::AlikeToHopper => alike && matches!(least, 70 | 80 | 90),
            Ll128Gpus::Alike => alike && least >= 70,
            Ll128Gpus::AlikeOrNew => least >= 70 && (alike || least >= 90),
        }
    }

    /// Returns true if stores of 128 bytes arrive atomically: over NVLink, and from Hopper on over NICs through a peer
    /// (PXN).
    fn ll128_is_safe(&self, graph: &Graph) -> bool {
        let (least, greatest) = self.of.capability;
        let farthest = if least >= 90 { PathClass::Pxn } else { PathClass::Pxb };
        graph.between_class <= farthest && graph.inside_class <= PathClass::Nvb && self.ll128_gpus(least, greatest)
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
    // CollNet has latencies for all protocols and bandwidth for one.
    let has_protocol = algo.is_collnet() || proto == Proto::Simple || matches!(algo, Algo::Tree | Algo::Ring);
    offered && has_protocol
}
