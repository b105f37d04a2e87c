//! Environments of the tests: random fabrics, healthy and broken, with random profiles and late ranks, and random
//! calls.

use std::sync::Arc;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, PlanRequest};
use fabricast_sim::engine::{Recording, Watch};
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, ScheduleGenerator};
use fabricast_sim::{Folding, LaunchMode, SimulateError, SimulationOptions, Timeline, simulate};
use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::route::{BufferLocation, Ecmp, GpuDirect, PeerAccess, RouteOptions, Router};
use fabricast_topologies::{
    Bandwidth, Bytes, Fabric, FabricBuilder, FabricRequest, LinkKind, LinkSpec, NodeId, NodeKind, Picos, load,
    partition,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::generators::{Case, host_grid, is_rooted};
use crate::matrices::with_matrix;

/// Returns a fabric of GPUs on one NVSwitch with equal links; `latency` is that of each of the two links between a
/// pair.
pub(crate) fn switch(gpus: u32, bandwidth: Bandwidth, latency: Picos) -> Fabric {
    let mut builder = FabricBuilder::new("switch");
    let host = builder.host("a");
    let hub = builder.node("sw", NodeKind::Nvswitch, host, Figures::None).unwrap();
    for gpu in 0..gpus {
        let gpu = builder.node(&format!("gpu{gpu}"), NodeKind::Gpu, host, Figures::None).unwrap();
        builder.link(gpu, hub, &LinkSpec::symmetric(LinkKind::Nvlink, bandwidth, latency));
    }
    builder.finish()
}

/// Description of a fabric.
#[derive(Clone, Debug)]
pub(crate) enum FabricSpec {
    /// GPUs with a link to each of several switches; bandwidths (GB/s) and latencies (ns) cycle over the links.
    Switches { gpus: u32, planes: u32, links: Vec<(u32, u32)>, memory: Option<u32> },
    /// GPUs in a circle, each connected to the next; bandwidths (GB/s) and latencies (ns) cycle over the links.
    Ring { gpus: u32, links: Vec<(u32, u32)> },
    /// Replicas of a preset, connected by a network.
    Hosts { preset: &'static str, nodes: u32, gpus: u32, network: &'static str },
}

impl FabricSpec {
    pub(crate) fn build(&self) -> Fabric {
        match self {
            Self::Hosts { preset, nodes, gpus, network } => {
                let network = (*nodes > 1).then(|| network.parse().unwrap());
                let request = FabricRequest {
                    fabric: (*preset).to_owned(),
                    nodes: Some(*nodes),
                    gpus: Some(*gpus),
                    network,
                    gpu: None,
                    drives: None,
                };
                load(&request).unwrap()
            }
            Self::Switches { gpus, planes, links, memory } => {
                let mut builder = FabricBuilder::new("switches");
                let host = builder.host("a");
                let memory_bandwidth = memory.map(|gb_per_s| Bandwidth::from_gb_per_s(gb_per_s.into()));
                let figures = Figures::Gpu(Arc::new(GpuFigures { memory_bandwidth, ..GpuFigures::default() }));
                let hubs: Vec<_> = (0..*planes)
                    .map(|plane| builder.node(&format!("sw{plane}"), NodeKind::Nvswitch, host, Figures::None).unwrap())
                    .collect();
                for gpu in 0..*gpus {
                    let id = builder.node(&format!("gpu{gpu}"), NodeKind::Gpu, host, figures.clone()).unwrap();
                    for (plane, &hub) in hubs.iter().enumerate() {
                        builder.link(id, hub, &link(links, gpu as usize * hubs.len() + plane));
                    }
                }
                builder.finish()
            }
            Self::Ring { gpus, links } => {
                let mut builder = FabricBuilder::new("circle");
                let host = builder.host("a");
                // Accelerators forward traffic, so all pairs are connected.
                let devices: Vec<_> = (0..*gpus)
                    .map(|gpu| builder.node(&format!("tpu{gpu}"), NodeKind::Accelerator, host, Figures::None).unwrap())
                    .collect();
                for i in 0..devices.len() {
                    builder.link(devices[i], devices[(i + 1) % devices.len()], &link(links, i));
                }
                builder.finish()
            }
        }
    }
}

fn link(links: &[(u32, u32)], number: usize) -> LinkSpec {
    let (gb_per_s, ns) = links[number % links.len()];
    LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth::from_gb_per_s(gb_per_s.into()), Picos::from_ns(ns.into()))
}

/// A fabric, its faults, and the software costs on it.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) fabric_spec: FabricSpec,
    /// Links that are slowed down, with the remaining bandwidth in per cent.
    pub(crate) slowed_links: Vec<(Index, u8)>,
    /// Links out of service.
    pub(crate) failed_links: Vec<Index>,
    /// Late ranks, with delays in nanoseconds.
    pub(crate) rank_delays: Vec<(Index, u32)>,
    pub(crate) profile: &'static str,
    pub(crate) mode: (Launch, Processes),
    pub(crate) ecmp: Ecmp,
    pub(crate) p2p: PeerAccess,
    pub(crate) gdr: GpuDirect,
    /// Ranks per GPU.
    pub(crate) per_gpu: u32,
    /// Partitioning of the first GPU of each host into MIG instances, if its model supports MIG.
    pub(crate) mig: Mig,
}

/// Partitioning into MIG instances, on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mig {
    Off,
    On,
}

/// Returns the instances of the first GPU on a preset's hosts as a flag; `None` without MIG support.
fn instances(preset: &str) -> Option<&'static str> {
    match preset {
        "hgx-h200" => Some("gpu0=3g.71gb,2g.35gb,1g.18gb,1g.18gb"),
        "dgx-a100" => Some("gpu0=3g.40gb,3g.40gb"),
        "gb200-nvl72" => Some("gpu0=1g.23gb,1g.47gb"),
        "gh200" => Some("gpu0=4g.48gb,3g.48gb"),
        _ => None,
    }
}

/// Fabric, profile, delays and options built from a [`Scene`].
pub(crate) struct Testbed {
    pub(crate) fabric: Fabric,
    pub(crate) profile: Profile,
    pub(crate) delays: Vec<Picos>,
    pub(crate) mode: LaunchMode,
    pub(crate) routes: RouteOptions,
    /// Ranks per GPU.
    pub(crate) per_gpu: u32,
}

impl Scene {
    pub(crate) fn testbed(&self) -> Testbed {
        let unpartitioned = self.fabric_spec.build();
        // Links have their original names here, because links inside a partitioned GPU have no rate to slow down.
        let names = unpartitioned.link_names();
        let partitions = match &self.fabric_spec {
            FabricSpec::Hosts { preset, .. } if self.mig == Mig::On => instances(preset),
            _ => None,
        };
        let partitions: Vec<_> = partitions.into_iter().map(|text| text.parse().unwrap()).collect();
        let mut fabric = partition::apply(unpartitioned, &partitions).unwrap();
        for (index, percent) in &self.slowed_links {
            fabric = fabric.with_slowed(index.get::<String>(&names), f64::from(*percent) / 100.0).unwrap();
        }
        for index in &self.failed_links {
            fabric = fabric.with_failed(index.get::<String>(&names)).unwrap();
        }
        let ranks = fabric.gpus().len() * self.per_gpu as usize;
        let mut delays = vec![Picos::ZERO; if self.rank_delays.is_empty() { 0 } else { ranks }];
        for (index, ns) in &self.rank_delays {
            delays[index.index(ranks)] = Picos::from_ns((*ns).into());
        }
        let gpus_per_host = per_host(&fabric) * self.per_gpu;
        Testbed {
            profile: Profile::named(self.profile).unwrap(),
            delays,
            mode: LaunchMode { launch: self.mode.0, processes: self.mode.1, gpus_per_host },
            routes: RouteOptions { ecmp: self.ecmp, p2p: self.p2p, gdr: self.gdr, ..RouteOptions::default() },
            per_gpu: self.per_gpu,
            fabric,
        }
    }
}

/// Returns the number of GPUs in use on the first host; all hosts of these fabrics have equally many.
pub(crate) fn per_host(fabric: &Fabric) -> u32 {
    let host = |&gpu: &_| fabric.node(gpu).host;
    fabric.gpus().iter().filter(|gpu| host(gpu) == host(&fabric.gpus()[0])).count() as u32
}

impl Testbed {
    pub(crate) fn ideal(fabric: Fabric) -> Self {
        let profile = Profile::ideal();
        let (mode, routes) = (LaunchMode::default(), RouteOptions::default());
        Self { fabric, profile, delays: vec![], mode, routes, per_gpu: 1 }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.fabric.gpus().len() as u32 * self.per_gpu
    }

    /// Returns the testbed with the caller's buffers in another location.
    pub(crate) fn with_buffers(self, buffers: BufferLocation) -> Self {
        Self { routes: RouteOptions { buffers, ..self.routes }, ..self }
    }

    /// Returns the number of ranks on the first host.
    pub(crate) fn per_host(&self) -> u32 {
        per_host(&self.fabric) * self.per_gpu
    }

    /// Returns the device of each rank.
    pub(crate) fn placement(&self) -> Vec<NodeId> {
        self.fabric.gpus().iter().flat_map(|&gpu| std::iter::repeat_n(gpu, self.per_gpu as usize)).collect()
    }

    pub(crate) fn router(&self) -> Router<'_> {
        Router::new(&self.fabric, self.routes)
    }

    /// Returns the environment of schedules whose ranks have these devices.
    pub(crate) fn environment<'a>(&'a self, router: &'a Router<'a>, placement: &'a [NodeId]) -> Environment<'a> {
        Environment { fabric: &self.fabric, router, placement, profile: &self.profile, delays: &self.delays }
    }

    /// Returns the plan request of these tests: out of place, root 0, all candidates.
    pub(crate) fn plan_request<'a>(
        &'a self,
        (router, placement): (&'a Router<'a>, &'a [NodeId]),
        (collectives, sizes): (&'a [Collective], &'a [Bytes]),
        restriction: &'a Restriction,
    ) -> PlanRequest<'a> {
        PlanRequest {
            library: None,
            fabric: &self.fabric,
            router,
            placement,
            profile: &self.profile,
            ranks_per_node: self.per_host(),
            mode: self.mode,
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives,
            sizes,
            restriction,
            effort: Effort::Contenders,
        }
    }

    /// Runs a schedule on the first ranks of the fabric, recording the times of all operations.
    pub(crate) fn run(&self, generator: &dyn ScheduleGenerator, folding: Folding) -> Result<Timeline, SimulateError> {
        self.run_with_placement(&self.placement(), generator, folding)
    }

    /// Runs a schedule as [`Self::run`] does, but records nothing and stops unless the device side is done by `until`.
    pub(crate) fn run_without_recording(
        &self,
        generator: &dyn ScheduleGenerator,
        folding: Folding,
        until: Option<Picos>,
    ) -> Result<Timeline, SimulateError> {
        let (router, placement) = (self.router(), self.placement());
        let setting = self.environment(&router, &placement);
        let options = SimulationOptions { folding, ..SimulationOptions::default() };
        simulate(generator, setting, self.mode, options, Watch { until, ..Watch::default() })
    }

    /// Runs a schedule as [`Self::run`] does, with a given device for each rank.
    pub(crate) fn run_with_placement(
        &self,
        placement: &[NodeId],
        generator: &dyn ScheduleGenerator,
        folding: Folding,
    ) -> Result<Timeline, SimulateError> {
        let router = self.router();
        let setting = self.environment(&router, placement);
        let watch = Watch { recording: Recording::Spans, ..Watch::default() };
        let options = SimulationOptions { folding, ..SimulationOptions::default() };
        simulate(generator, setting, self.mode, options, watch)
    }
}

fn links() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let link = || (select(vec![25u32, 50, 450, 463]), select(vec![0u32, 1, 350, 700]));
    prop_oneof![4 => vec(link(), 1..=1), 1 => vec(link(), 2..=3)]
}

/// Generates locations of buffers: mostly on the GPUs.
pub(crate) fn buffer_locations() -> impl Strategy<Value = BufferLocation> {
    let elsewhere =
        vec![BufferLocation::Pinned, BufferLocation::Pageable, BufferLocation::Managed, BufferLocation::Grace];
    prop_oneof![4 => Just(BufferLocation::Device), 1 => select(elsewhere)]
}

/// Generates fabrics of up to `max_gpus` GPUs.
pub(crate) fn fabric_specs(max_gpus: u32) -> impl Strategy<Value = FabricSpec> {
    const HOSTS: [(&str, u32); 9] = [
        ("hgx-h200", 8),
        ("hgx-h200", 8),
        ("hgx-h200", 8),
        ("dgx-a100", 8),
        ("dgx-v100", 8),
        ("mi300x", 8),
        ("gb200-nvl72", 4),
        ("l40s-pcie", 8),
        ("gh200", 1),
    ];
    const NETWORKS: [&str; 12] = [
        "rail",
        "rail",
        "rail,nics_per_node=8",
        "rail,nics_per_node=2,oversubscription=2",
        "rail,nics_per_node=4,radix=4",
        "rail,nics_per_node=8,radix=4,tiers=3",
        "fat_tree,nics_per_node=4",
        "fat_tree,nics_per_node=8,radix=16",
        "fat_tree,nics_per_node=2,radix=4,oversubscription=3",
        "torus,nics_per_node=2",
        "torus,nics_per_node=8,nic=25GB/s",
        "dragonfly,nics_per_node=4",
    ];
    let hosts = (select(HOSTS.to_vec()), 1u32..=6, 1u32..=8, select(NETWORKS.to_vec())).prop_map(
        move |((preset, gpus_per_host), nodes, gpus, network)| {
            let gpus = gpus.min(gpus_per_host).min(max_gpus);
            FabricSpec::Hosts { preset, nodes: nodes.min(max_gpus / gpus), gpus, network }
        },
    );
    let memory = prop_oneof![2 => Just(None), 1 => select(vec![Some(100u32), Some(4800)])];
    let switches = (1..=max_gpus.min(17), 1u32..=3, links(), memory)
        .prop_map(|(gpus, planes, links, memory)| FabricSpec::Switches { gpus, planes, links, memory });
    let ring = (3..=max_gpus.clamp(3, 9), links()).prop_map(|(gpus, links)| FabricSpec::Ring { gpus, links });
    prop_oneof![4 => hosts, 3 => switches, 1 => ring]
}

/// Generates scenes on fabrics of up to `max_gpus` GPUs, about half of them healthy.
pub(crate) fn scenes(max_gpus: u32) -> impl Strategy<Value = Scene> {
    let fault_count = |weight| prop_oneof![5 => Just(0usize), weight => 1usize..=2];
    let slow = fault_count(2).prop_flat_map(|n| vec((any::<Index>(), select(vec![50u8, 90])), n));
    let failed = fault_count(1).prop_flat_map(|n| vec(any::<Index>(), n));
    let delays = fault_count(1).prop_flat_map(|n| vec((any::<Index>(), select(vec![0u32, 1, 20_000])), n));
    let profile = select(vec!["ideal", "nccl-2.28-h200", "nccl-2.28-h200", "kernels-h100"]);
    let mode = (select(vec![Launch::Graph, Launch::Stream]), select(vec![Processes::PerGpu, Processes::Single]));
    let ecmp = prop_oneof![3 => Just(Ecmp::Averaged), 1 => (0u64..4).prop_map(|seed| Ecmp::Hashed { seed })];
    let p2p = prop_oneof![4 => Just(PeerAccess::Allowed), 1 => Just(PeerAccess::Off)];
    let gdr = prop_oneof![4 => Just(GpuDirect::Allowed), 1 => Just(GpuDirect::Off)];
    let per_gpu = prop_oneof![4 => Just(1u32), 1 => 2u32..=3];
    let mig = prop_oneof![4 => Just(Mig::Off), 1 => Just(Mig::On)];
    let sharing = per_gpu.prop_flat_map(move |per_gpu| (Just(per_gpu), fabric_specs((max_gpus / per_gpu).max(2))));
    (sharing, slow, failed, delays, profile, mode, (ecmp, p2p, gdr, mig)).prop_map(
        |((per_gpu, fabric_spec), slow, failed, delays, profile, mode, (ecmp, p2p, gdr, mig))| {
            // Without peer access or GPUDirect, a circle of accelerators has no routes.
            let has_no_hosts = matches!(fabric_spec, FabricSpec::Ring { .. } | FabricSpec::Switches { .. });
            let p2p = if has_no_hosts { PeerAccess::Allowed } else { p2p };
            Scene {
                fabric_spec,
                slowed_links: slow,
                failed_links: failed,
                rank_delays: delays,
                profile,
                mode,
                ecmp,
                p2p,
                gdr,
                per_gpu,
                mig,
            }
        },
    )
}

/// Returns an out-of-place call on one channel and in one loop, with root 0.
pub(crate) fn single_channel_case(algorithm: Algorithm, collective: Collective, ranks: u32, bytes: u64) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    Case { algorithm, shape: Shape::new(call, Protocol::Simple) }
}

/// A call without its number of ranks.
#[derive(Clone, Debug)]
pub(crate) struct CallTemplate {
    pub(crate) algorithm: Algorithm,
    pub(crate) collective: Collective,
    protocol: Protocol,
    pub(crate) bytes: u64,
    channels: u16,
    /// Approximate number of loops per channel.
    loops: u64,
    buffers: BufferUse,
    root: Index,
    /// True if the schedule distinguishes hosts.
    is_hierarchical: bool,
    /// True if every second channel runs in the opposite direction.
    is_bidirectional: bool,
    /// Seed of the matrix of an all_to_allv.
    seed: u64,
}

impl CallTemplate {
    /// Returns the call with `bytes` bytes in one loop.
    pub(crate) fn in_one_loop(&self, bytes: u64) -> Self {
        Self { bytes, loops: 1, ..self.clone() }
    }

    /// Returns the call over `ranks` ranks, `per_host` on each host.
    pub(crate) fn case_for_ranks(&self, ranks: u32, per_host: u32) -> Case {
        let root = if is_rooted(self.collective) { self.root.index(ranks as usize) as u32 } else { 0 };
        let call = Call {
            collective: self.collective,
            bytes: Bytes(self.bytes),
            ranks,
            root: Rank(root),
            buffers: self.buffers,
        };
        let chunks = self.loops * u64::from(self.channels) * u64::from(ranks);
        let forward: Vec<Rank> = (0..ranks).map(Rank).collect();
        let backward = forward.iter().rev().copied().collect();
        let shape = Shape {
            channels: self.channels,
            chunk: (self.loops > 1).then(|| Bytes(self.bytes.div_ceil(chunks).max(1))),
            ranks_per_node: if self.is_hierarchical { per_host } else { 0 },
            grid: if self.is_hierarchical { host_grid(ranks / per_host) } else { Vec::new() },
            orders: if self.is_bidirectional { vec![forward, backward] } else { vec![] },
            ..Shape::new(call, self.protocol)
        };
        Case { algorithm: self.algorithm, shape: with_matrix(shape, self.seed) }
    }
}

/// Generates any collective with any algorithm that supports it.
pub(crate) fn call_templates() -> impl Strategy<Value = CallTemplate> {
    // Random fabrics have no switches that reduce; `nvls.rs` tests those algorithms.
    let algorithms =
        Algorithm::ALL.iter().filter(|a| !matches!(a, Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollnetChain));
    let offers: Vec<(Algorithm, Collective)> =
        algorithms.flat_map(|&a| a.collectives().iter().map(move |&c| (a, c))).collect();
    let call = (select(offers), select(Protocol::ALL.to_vec()), any::<Index>(), any::<bool>());
    let bytes = prop_oneof![1 => select(vec![0u64, 1, 7, 4096]), 3 => 1_000u64..3_000_000, 1 => Just(1 << 26)];
    let seed = prop_oneof![1 => Just(0u64), 3 => any::<u64>()];
    let loops = prop_oneof![2 => Just(1u64), 1 => 2u64..=3];
    let shape = (1u16..=4, loops, any::<bool>(), prop::bool::weighted(0.2), seed);
    (call, bytes, shape).prop_map(
        |(((algorithm, collective), protocol, root, in_place), bytes, (channels, loops, levels, both_ways, seed))| {
            CallTemplate {
                algorithm,
                collective,
                protocol,
                bytes,
                channels,
                loops,
                buffers: if in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace },
                root,
                is_hierarchical: levels,
                is_bidirectional: both_ways,
                seed,
            }
        },
    )
}

/// Returns the number of warps that copy what a block of `threads` threads sends to several peers: half of each peer's
/// warps, of which one signals if there are at least three and the protocol has no flags.
pub fn sending_warps(threads: u16, peers: usize, has_flags: bool) -> usize {
    let block = usize::from(threads.div_ceil(32));
    let peers = peers.min(8).min(block / 2).max(1);
    // Sending warps for 2, 3, … 20 warps of a peer (NCCL 2.30.7 src/device/sendrecv.h).
    let sending = match block / peers {
        0..=3 => 1,
        4 => 2,
        odd if odd % 2 == 1 => odd / 2 + 1,
        even => even / 2,
    };
    let signals = !has_flags && sending > 2;
    peers * if signals { sending - 1 } else { sending }
}
