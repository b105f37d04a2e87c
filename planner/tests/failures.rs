//! Monotonicity under failures: no failed or slowed link, lost NIC or lost idle GPU improves a bound or the fastest
//! candidate.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test binary: it states expectations

use std::sync::Arc;

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::{Bound, Bounds, InNetwork};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy as Candidate;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, PlanRequest, plan};
use fabricast_sim::lower::Environment;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{LaunchMode, SimulationOptions, engine, simulate};
use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{
    Bandwidth, Bytes, Fabric, FabricBuilder, FabricRequest, LinkId, LinkKind, LinkSpec, NodeId, NodeKind, Picos, load,
    preset,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Specification of a test machine.
#[derive(Clone, Debug)]
enum Machine {
    /// Preset with this number of GPUs in use per host. Several hosts are connected by the named network.
    Preset { name: &'static str, nodes: u32, gpus: u32, network: &'static str },
    /// GPUs of one host. Some are joined by NVLinks of various bandwidths; each is attached by PCIe to one of two CPUs.
    Mesh { gpus: u32, links: Vec<(Index, Index, u32)> },
}

impl Machine {
    /// Returns the machine; `None` if the preset has fewer GPUs, or a network of its own.
    fn build(&self) -> Option<Fabric> {
        let fabric = match self {
            Self::Preset { name, nodes, gpus, network } => {
                let network = (*nodes > 1).then(|| network.parse().unwrap());
                let request = FabricRequest {
                    fabric: (*name).to_owned(),
                    nodes: Some(*nodes),
                    gpus: Some(*gpus),
                    network,
                    gpu: None,
                    drives: None,
                };
                load(&request).ok()?
            }
            Self::Mesh { gpus, links } => {
                let mut builder = FabricBuilder::new("mesh");
                let host = builder.host("a");
                let link = |kind, gb_per_s, ns| {
                    LinkSpec::symmetric(kind, Bandwidth::from_gb_per_s(gb_per_s), Picos::from_ns(ns))
                };
                let cpus = ["cpu0", "cpu1"].map(|id| builder.node(id, NodeKind::Cpu, host, Figures::None).unwrap());
                builder.link(cpus[0], cpus[1], &link(LinkKind::Upi, 12.0, 100.0));
                let figures = GpuFigures {
                    compute_capability: Some(70),
                    memory_bandwidth: Some(Bandwidth::from_gb_per_s(900.0)),
                    ..GpuFigures::default()
                };
                let figures = Figures::Gpu(Arc::new(figures));
                let mut added = Vec::new();
                for gpu in 0..*gpus {
                    let id = builder.node(&format!("gpu{gpu}"), NodeKind::Gpu, host, figures.clone()).unwrap();
                    builder.link(id, cpus[(2 * gpu / gpus) as usize], &link(LinkKind::Pcie, 15.75, 250.0));
                    added.push(id);
                }
                for (a, b, gb_per_s) in links {
                    let (a, b) = (*a.get(&added), *b.get(&added));
                    if a != b {
                        builder.link(a, b, &link(LinkKind::Nvlink, f64::from(*gb_per_s), 250.0));
                    }
                }
                builder.finish()
            }
        };
        Some(fabric)
    }
}

/// Networks between two hosts.
const NETWORKS: [&str; 5] = ["rail", "rail,tiers=1", "fat_tree", "dragonfly", "torus"];

/// Every preset, on one host or on two, with few GPUs in use; and meshes.
fn machines() -> impl Strategy<Value = Machine> {
    let presets = || select(preset::names().collect::<Vec<_>>());
    let single_host =
        (presets(), 2u32..=8).prop_map(|(name, gpus)| Machine::Preset { name, nodes: 1, gpus, network: "" });
    let two_hosts = (presets(), 1u32..=4, select(NETWORKS.to_vec()))
        .prop_map(|(name, gpus, network)| Machine::Preset { name, nodes: 2, gpus, network });
    let links = vec((any::<Index>(), any::<Index>(), select(vec![25u32, 50, 100])), 2..14);
    let mesh = (3u32..=6, links).prop_map(|(gpus, links)| Machine::Mesh { gpus, links });
    prop_oneof![3 => single_host, 4 => two_hosts, 2 => mesh]
}

/// Costs of the software of a call.
#[derive(Clone, Copy, Debug)]
enum Costs {
    /// The profile that fits the machine.
    Fitting,
    /// The shipped profile of this name.
    Named(&'static str),
}

impl Costs {
    fn profile(self, fabric: &Fabric) -> Profile {
        match self {
            // A mesh of unnamed GPUs has no profile of its own.
            Self::Fitting => Profile::for_fabric(fabric).unwrap_or_else(|_| Profile::ideal()),
            Self::Named(name) => Profile::named(name).unwrap(),
        }
    }
}

fn costs() -> impl Strategy<Value = Costs> {
    let shipped = select(Profile::names().collect::<Vec<_>>()).prop_map(Costs::Named);
    prop_oneof![1 => Just(Costs::Named("ideal")), 2 => Just(Costs::Fitting), 1 => shipped]
}

/// Protocols and channel count of the candidates.
fn variants() -> impl Strategy<Value = (Vec<Protocol>, u16)> {
    let protocols = vec![
        vec![Protocol::Simple, Protocol::Ll],
        vec![Protocol::Ll128, Protocol::CopyEngine],
        vec![Protocol::Symmetric],
    ];
    (select(protocols), select(vec![1u16, 2, 16]))
}

/// Failure that is applied to a machine.
#[derive(Clone, Debug)]
enum Failure {
    Link(Index),
    Slow(Index, u8),
    Nic(Index),
    IdleGpu(Index),
}

impl Failure {
    /// Returns the machine after the failure, and the name of the failed part; `None` if the machine has no such part.
    fn apply(&self, fabric: &Fabric) -> Option<(Fabric, String)> {
        let devices = |matches: &dyn Fn(NodeId) -> bool| -> Vec<String> {
            fabric.nodes().filter(|&(id, _)| matches(id)).map(|(_, node)| node.id.to_string()).collect()
        };
        let pick = |index: &Index, ids: Vec<String>| (!ids.is_empty()).then(|| index.get::<String>(&ids).clone());
        let names = fabric.link_names();
        let (name, part) = match self {
            Self::Link(index) => (index.get::<String>(&names).clone(), None),
            Self::Slow(index, percent) => (index.get::<String>(&names).clone(), Some(f64::from(*percent) / 100.0)),
            Self::Nic(index) => (pick(index, devices(&|id| fabric.node(id).kind == NodeKind::Nic))?, None),
            Self::IdleGpu(index) => {
                let is_idle = |id| fabric.node(id).kind == NodeKind::Gpu && !fabric.gpus().contains(&id);
                (pick(index, devices(&is_idle))?, None)
            }
        };
        match part {
            Some(part) => fabric.with_slowed(&name, part).ok().map(|slowed| (slowed, format!("{name}={part}"))),
            None => fabric.with_failed(&name).ok().map(|broken| (broken, name)),
        }
    }
}

fn failures() -> impl Strategy<Value = Failure> {
    prop_oneof![
        4 => any::<Index>().prop_map(Failure::Link),
        2 => (any::<Index>(), select(vec![10u8, 50, 90])).prop_map(|(link, percent)| Failure::Slow(link, percent)),
        2 => any::<Index>().prop_map(Failure::Nic),
        1 => any::<Index>().prop_map(Failure::IdleGpu),
    ]
}

const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

fn bound(fabric: &Fabric, collective: Collective, bytes: Bytes) -> Picos {
    full_bound(fabric, collective, bytes).time
}

fn full_bound(fabric: &Fabric, collective: Collective, bytes: Bytes) -> Bound {
    let ranks = fabric.gpus().len() as u32;
    let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let router = Router::new(fabric, RouteOptions::default());
    Bounds::new(fabric, &router, fabric.gpus(), 0).bound(&call)
}

/// Returns true if all ranks can still reach each other.
fn is_connected(fabric: &Fabric) -> bool {
    Router::new(fabric, RouteOptions::default()).unreachable_pairs(fabric.gpus(), 1).is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn failures_never_improve_bounds(machine in machines(), failure in failures()) {
        let Some(fabric) = machine.build() else { return Ok(()) };
        let Some((broken, name)) = failure.apply(&fabric) else { return Ok(()) };
        prop_assume!(is_connected(&fabric) && is_connected(&broken));
        for collective in COLLECTIVES {
            for bytes in [Bytes(8), Bytes(1 << 30)] {
                let (whole, degraded) = (full_bound(&fabric, collective, bytes), bound(&broken, collective, bytes));
                let healthy = whole.time;
                // The search returns the slowest cut. A slowed link may make it another one, and the transfer time of a
                // call of a few bytes through the former cut is then missing. The latency is not.
                let missing = if matches!(failure, Failure::Slow(..)) && bytes == Bytes(8) { whole.transfer } else { Picos::ZERO };
                prop_assert!(healthy <= degraded + missing, "{collective} of {bytes} without {name}: {healthy:?}, then {degraded:?}");
            }
        }
    }
}

/// Returns the time for which the transfers on a call's critical path wait because they share links with others.
fn sharing_time(fabric: &Fabric, profile: &Profile, call: Call, candidate: Candidate) -> Picos {
    let router = Router::new(fabric, RouteOptions::default());
    let per_host = fabric.max_devices_per_host(fabric.gpus());
    let capabilities = FabricCapabilities::new(fabric, &router, fabric.gpus(), per_host, InNetwork::Allowed);
    let grid = fabric.host_grid().to_vec();
    let shape = Shape { grid, ..candidate.shape(call, profile, per_host, &capabilities) };
    let generator = generator(candidate.algorithm, &shape).unwrap();
    let setting = Environment { fabric, router: &router, placement: fabric.gpus(), profile, delays: &[] };
    let mode = LaunchMode { gpus_per_host: per_host, ..LaunchMode::default() };
    let timeline = simulate(&*generator, setting, mode, SimulationOptions::default(), engine::Watch::default());
    timeline.unwrap().costs.sharing()
}

/// Tolerance for rounding: one picosecond for each transfer of a critical path, which has fewer than 1,000 transfers
/// here.
const ROUNDINGS: Picos = Picos(1000);

/// Returns all candidates of a plan with their times; `None` if the call cannot be planned.
fn candidates_of(
    fabric: &Fabric,
    profile: &Profile,
    (collective, bytes): (Collective, Bytes),
    (protocols, channels): &(Vec<Protocol>, u16),
) -> Option<Vec<(Candidate, Picos)>> {
    let router = Router::new(fabric, RouteOptions::default());
    let gpus_per_host = fabric.max_devices_per_host(fabric.gpus());
    let restriction = Restriction { protocols: protocols.clone(), channels: vec![*channels], ..Restriction::default() };
    let request = PlanRequest {
        library: None,
        fabric,
        router: &router,
        placement: fabric.gpus(),
        profile,
        ranks_per_node: gpus_per_host,
        mode: LaunchMode { gpus_per_host, ..LaunchMode::default() },
        buffers: BufferUse::OutOfPlace,
        root: 0,
        matrix: None,
        collectives: &[collective],
        sizes: &[bytes],
        restriction: &restriction,
        effort: Effort::EveryPair,
    };
    let plan = plan(&request, Monitor::default()).ok()?;
    Some(plan.rows.iter().flat_map(|row| row.pairs.iter().map(|pair| (pair.strategy, pair.time))).collect())
}

/// Variant of [`candidates_of`] with two protocols, two channels and a named profile.
fn candidates(fabric: &Fabric, profile: &str, collective: Collective, bytes: Bytes) -> Option<Vec<(Candidate, Picos)>> {
    let variant = (vec![Protocol::Simple, Protocol::Ll], 2);
    candidates_of(fabric, &Profile::named(profile).unwrap(), (collective, bytes), &variant)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A failure makes an algorithm, the fastest one included, faster only if flows share links differently after it, and
    /// at most by the time for which its critical path waited for other flows. (A substitute route is charged with what
    /// it replaces, so that the same rates are possible without the failure.)
    #[test]
    fn failures_improve_an_algorithm_only_through_link_sharing(
        machine in machines(),
        failure in failures(),
        collective in select(COLLECTIVES.to_vec()),
        bytes in select(vec![8u64, 1 << 10, 1 << 20, 1 << 26]),
        costs in costs(),
        variant in variants(),
    ) {
        let Some(fabric) = machine.build() else { return Ok(()) };
        let Some((broken, name)) = failure.apply(&fabric) else { return Ok(()) };
        let profile = costs.profile(&fabric);
        let call = (collective, Bytes(bytes));
        let (Some(healthy), Some(degraded)) =
            (candidates_of(&fabric, &profile, call, &variant), candidates_of(&broken, &profile, call, &variant))
        else {
            return Ok(());
        };
        for (candidate, before) in healthy {
            let Some(&(_, after)) = degraded.iter().find(|(other, _)| *other == candidate) else { continue };
            if before - after <= ROUNDINGS {
                continue;
            }
            let ranks = fabric.gpus().len() as u32;
            let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shared = sharing_time(&fabric, &profile, call, candidate);
            prop_assert!(
                before - after <= shared,
                "{collective} of {bytes} B, {candidate} without {name}, {}: {before:?}, of which {shared:?} for others, then {after:?}",
                profile.name
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The fastest candidate after a failure gains at most the time for which its critical path waited for other flows on
    /// the machine as built.
    #[test]
    fn failures_improve_the_fastest_candidate_only_through_link_sharing(
        machine in machines(),
        failure in failures(),
        collective in select(COLLECTIVES.to_vec()),
        bytes in select(vec![1u64 << 10, 1 << 20, 1 << 26]),
        costs in costs(),
        variant in variants(),
    ) {
        let Some(fabric) = machine.build() else { return Ok(()) };
        let Some((broken, name)) = failure.apply(&fabric) else { return Ok(()) };
        let profile = costs.profile(&fabric);
        let fastest = |fabric: &Fabric| {
            let times = candidates_of(fabric, &profile, (collective, Bytes(bytes)), &variant)?;
            times.into_iter().min_by_key(|&(_, time)| time)
        };
        let (Some((before, healthy)), Some((after, degraded))) = (fastest(&fabric), fastest(&broken)) else { return Ok(()) };
        if healthy <= degraded + ROUNDINGS {
            return Ok(());
        }
        let ranks = fabric.gpus().len() as u32;
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let shared = sharing_time(&fabric, &profile, call, after);
        prop_assert!(
            healthy <= degraded + shared,
            "{collective} of {bytes} B, {} without {name}: {before} {healthy:?}, then {after} {degraded:?}, which had waited {shared:?}",
            profile.name
        );
    }
}

/// Ring orders of a broadcast on all ranks of a fabric.
fn ring_orders(fabric: &Fabric) -> Vec<Vec<Rank>> {
    let (router, profile) = (Router::new(fabric, RouteOptions::default()), Profile::ideal());
    let per_host = fabric.max_devices_per_host(fabric.gpus());
    let capabilities = FabricCapabilities::new(fabric, &router, fabric.gpus(), per_host, InNetwork::Allowed);
    let ranks = fabric.gpus().len() as u32;
    let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
    let call = Call { collective, bytes: Bytes(1 << 26), ranks, root: Rank(0), buffers };
    Candidate::new(Algorithm::Ring, Protocol::Simple, 2).shape(call, &profile, per_host, &capabilities).orders
}

/// Rings over a mesh of NVLinks keep their order when a link fails. In another order they could avoid the slower links of
/// a DGX-1, and would put all channels of an MI300X on one path.
#[test]
fn rings_over_meshes_keep_their_order_after_a_failure() {
    for (name, nodes, gpus, link) in
        [("dgx-v100", 2, 4, "n1/gpu3->n1/gpu0"), ("mi300x", 2, 8, "n0/gpu0-n0/gpu1"), ("mi300x", 1, 8, "gpu0-gpu1")]
    {
        let network = if nodes > 1 { "rail,tiers=1" } else { "" };
        let fabric = Machine::Preset { name, nodes, gpus, network }.build().unwrap();
        let broken = fabric.with_failed(link).unwrap();
        let orders = ring_orders(&fabric);
        assert!(orders.len() > 1 && orders == ring_orders(&broken), "{name}: {orders:?}");
        let ring_times = |fabric: &Fabric| -> Vec<(Candidate, Picos)> {
            let all = candidates(fabric, "ideal", Collective::Broadcast, Bytes(1 << 26)).unwrap();
            all.into_iter().filter(|(candidate, _)| candidate.algorithm == Algorithm::Ring).collect()
        };
        let (healthy, degraded) = (ring_times(&fabric), ring_times(&broken));
        assert!(!healthy.is_empty() && healthy.len() == degraded.len());
        for ((candidate, before), (_, after)) in healthy.iter().zip(&degraded) {
            assert!(before <= after, "{candidate} on {name} without {link}: {before:?}, then {after:?}");
        }
    }
}

/// Two hosts have eight GPUs each and one NIC link per GPU, except that the first GPU of the first host has no NIC
/// link. It uses the other NICs of its host.
#[test]
fn host_with_a_dead_nic_uses_its_other_nics() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/synthesis/h100-2x8-nic-dead.toml");
    let fabric = load(&FabricRequest::new(file)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    assert!(router.unreachable_pairs(fabric.gpus(), usize::MAX).is_empty());
    // The traffic enters and leaves through one neighbour, at the full rate of a NIC.
    let [dead, peer] = ["g0_0", "g1_0"].map(|id| fabric.find(id).unwrap());
    let gb_per_s = |path: fabricast_topologies::route::Path| path.bandwidth.unwrap().gb_per_s();
    for (from, to) in [(dead, peer), (peer, dead)] {
        let path = router.path(from, to).unwrap();
        let relays: Vec<NodeId> = router.relays(&path.hops, to).map(|(relay, _)| relay).collect();
        assert_eq!((relays.len(), gb_per_s(path)), (1, 50.0));
    }
    let best = candidates(&fabric, "ideal", Collective::AllReduce, Bytes(1 << 26)).unwrap();
    assert!(!best.is_empty());
    assert!(bound(&fabric, Collective::AllReduce, Bytes(1 << 26)) <= best.iter().map(|&(_, time)| time).min().unwrap());
}

/// Two hosts can be planned on every network if one has lost its first NIC or that NIC's cable.
#[test]
fn lost_nics_are_planned_on_every_network() {
    for network in ["rail", "rail,tiers=1", "fat_tree", "dragonfly", "torus"] {
        for name in ["hgx-h100", "mi300x", "dgx-v100"] {
            let fabric = Machine::Preset { name, nodes: 2, gpus: 4, network }.build().unwrap();
            let nic = fabric.find("n0/nic0").unwrap();
            let cables = fabric.outgoing_links(nic).into_iter().filter(|&link| {
                let (_, peer) = fabric.ends(link);
                matches!(fabric.node(peer).kind, NodeKind::Switch | NodeKind::Nic)
            });
            let cable_links = cables.flat_map(|link: LinkId| [link, link.reverse()]).collect::<Vec<_>>();
            for broken in [fabric.with_failed("n0/nic0").unwrap(), fabric.with_failed_links(&cable_links)] {
                assert!(is_connected(&broken), "{name} on {network}");
                let lower_bound = |fabric: &Fabric| bound(fabric, Collective::AllReduce, Bytes(1 << 30));
                assert!(lower_bound(&fabric) <= lower_bound(&broken), "{name} on {network}");
                for collective in [Collective::AllReduce, Collective::AllToAll] {
                    let time = |fabric: &Fabric| {
                        let times = candidates(fabric, "ideal", collective, Bytes(1 << 24)).unwrap();
                        times.into_iter().map(|(_, time)| time).min().unwrap()
                    };
                    assert!(time(&fabric) <= time(&broken), "{collective} on {name}, {network}");
                }
            }
        }
    }
}

/// If the direct link between two GPUs is cut, idle GPUs do not relay for them.
#[test]
fn idle_gpus_do_not_relay_for_a_failed_link() {
    for (name, gpus) in [("mi300x", 2), ("dgx-v100", 2), ("gh200", 2), ("mi300x", 8), ("dgx-v100", 8), ("gh200", 4)] {
        let fabric = Machine::Preset { name, nodes: 1, gpus, network: "" }.build().unwrap();
        let direct_links: Vec<LinkId> = fabric
            .links()
            .filter(|(_, link)| [link.from, link.to].iter().all(|end| fabric.gpus()[..2].contains(end)))
            .map(|(id, _)| id)
            .collect();
        let broken = fabric.with_failed_links(&direct_links);
        let bytes = Bytes(256 << 20);
        assert!(bound(&fabric, Collective::AllReduce, bytes) <= bound(&broken, Collective::AllReduce, bytes), "{name}");
        let fitting = Profile::for_fabric(&fabric).unwrap();
        for profile in [Profile::ideal(), fitting] {
            for (collective, variant) in [
                (Collective::AllReduce, (vec![Protocol::Simple, Protocol::Ll], 2)),
                (Collective::AllGather, (vec![Protocol::CopyEngine], 16)),
            ] {
                let call = (collective, bytes);
                let time = |fabric: &Fabric| candidates_of(fabric, &profile, call, &variant).unwrap();
                let degraded = time(&broken);
                for (candidate, before) in time(&fabric) {
                    let after = degraded.iter().find(|(other, _)| *other == candidate).map(|&(_, time)| time);
                    assert!(
                        after.is_none_or(|after| before <= after + ROUNDINGS),
                        "{candidate} on {gpus} of {name}: {before:?}, {after:?}"
                    );
                }
            }
        }
    }
}

/// With separate rails, a rank that has lost its route to a rail reaches the receivers there through other NICs of
/// their hosts. This must not increase the rate at which they can receive.
#[test]
fn lost_rails_widen_no_receiver() {
    let cases = [
        ("mi300x", 2, 3, "n1/cpu0->n1/pcie_switch0"),
        ("mi300x", 3, 2, "n1/nic0"),
        ("hgx-h100", 3, 1, "n1/nic0"),
        ("dgx-v100", 3, 2, "n1/pcie_switch0->n1/nic0"),
        ("gh200", 3, 1, "n1/cpu0->n1/nic0"),
    ];
    for (name, nodes, gpus, part) in cases {
        let fabric = Machine::Preset { name, nodes, gpus, network: "rail,tiers=1" }.build().unwrap();
        let broken = fabric.with_failed(part).unwrap();
        assert!(is_connected(&broken), "{name}");
        for collective in COLLECTIVES {
            let [healthy, degraded] = [&fabric, &broken].map(|fabric| bound(fabric, collective, Bytes(1 << 30)));
            assert!(healthy <= degraded, "{collective} on {name}: {healthy:?}, then {degraded:?}");
        }
        let [healthy, degraded] = [&fabric, &broken].map(|fabric| {
            let times = candidates(fabric, "ideal", Collective::Gather, Bytes(1 << 26)).unwrap();
            times.into_iter().map(|(_, time)| time).min().unwrap()
        });
        assert!(healthy <= degraded, "gather on {name}: {healthy:?}, then {degraded:?}");
    }
}

/// Failed part of a machine, and a call that was faster without it when a substitute was charged only with its own
/// links.
struct Detour {
    machine: Machine,
    part: &'static str,
    collective: Collective,
    bytes: u64,
    protocol: Protocol,
    channels: u16,
}

/// Detours that reach hardware which the machine as built leaves idle: PCIe at a higher efficiency than xGMI, NICs
/// instead of the link between CPU sockets, C2C in addition to NVLink, a second NIC of the root.
#[test]
fn detours_over_idle_hardware_help_no_call() {
    use Collective::{AllGather, Gather, Reduce, ReduceScatter, Scatter};
    use Protocol::{CopyEngine, Ll128, Simple, Symmetric};
    let preset = |name, nodes, gpus, network| Machine::Preset { name, nodes, gpus, network };
    let detour = |machine, part, collective, bytes, protocol, channels| Detour {
        machine,
        part,
        collective,
        bytes,
        protocol,
        channels,
    };
    let detours = [
        detour(preset("mi300x", 1, 2, ""), "gpu0-gpu1", AllGather, 256 << 20, CopyEngine, 16),
        detour(preset("h100-pcie", 2, 6, "dragonfly"), "n1/gpu4-n1/pcie_switch2", ReduceScatter, 1 << 30, Simple, 16),
        detour(preset("h100-pcie", 3, 8, "fat_tree"), "n2/pcie_switch3-n2/cpu1", ReduceScatter, 16 << 20, Simple, 16),
        detour(preset("gb200-nvl72", 2, 4, "rail"), "nvswitch0-n0/gpu1", Scatter, 1 << 30, Symmetric, 1),
        detour(preset("gb200-nvl72", 2, 3, "fat_tree"), "n1/gpu1->nvswitch0", Gather, 256 << 20, Symmetric, 1),
        detour(preset("h200-nvl", 3, 8, "rail,tiers=1"), "leaf0->n1/nic0", Scatter, 16 << 20, Ll128, 16),
        detour(preset("h100-nvl", 2, 6, "rail,tiers=1"), "n0/nic2", Reduce, 16 << 20, Simple, 16),
        detour(preset("h100-pcie", 2, 8, "dragonfly"), "n1/nic1", AllGather, 1 << 20, Simple, 16),
        detour(preset("dgx-a100-40gb", 1, 5, ""), "nvswitch0-gpu1", Scatter, 1 << 10, Simple, 2),
    ];
    for Detour { machine, part, collective, bytes, protocol, channels } in detours {
        let fabric = machine.build().unwrap();
        let broken = fabric.with_failed(part).unwrap();
        let case = format!("{collective} of {bytes} B on {machine:?} without {part}");
        let bounds = [&fabric, &broken].map(|fabric| bound(fabric, collective, Bytes(bytes)));
        assert!(bounds[0] <= bounds[1], "{case}: bounds {bounds:?}");
        for profile in [Profile::ideal(), Profile::for_fabric(&fabric).unwrap()] {
            let [(_, healthy), (after, degraded)] = [&fabric, &broken].map(|fabric| {
                let call = (collective, Bytes(bytes));
                let times = candidates_of(fabric, &profile, call, &(vec![protocol], channels)).unwrap();
                times.into_iter().min_by_key(|&(_, time)| time).unwrap()
            });
            let ranks = fabric.gpus().len() as u32;
            let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shared = if healthy > degraded { sharing_time(&fabric, &profile, call, after) } else { Picos::ZERO };
            assert!(healthy <= degraded + shared, "{case}, {}: {healthy:?}, then {degraded:?}", profile.name);
        }
    }
}
