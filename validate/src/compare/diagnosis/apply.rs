//! Conditions under which a cause is simulated: a degraded fabric, other routes, other settings or another launch mode.
//!
//! Devices of one kind are assumed to be interchangeable, so a fault of one GPU or NIC is simulated at the first one.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{LaunchCosts, NetworkCosts, Profile};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::{GpuDirect, PeerAccess, RouteOptions};
use fabricast_topologies::{Bandwidth, Fabric, LinkId, LinkKind, NodeId, Picos};

use super::candidates::nics_of_first_host;
use super::cause::{Cause, Extent, PcieDevice};
use super::defects::{KnownDefect, Slowdown};
use crate::measured::manifest::Measurement;

/// A measurement under the conditions of a cause.
pub(super) struct Hypothesis {
    /// Description of the measurement; it has no rows.
    pub measurement: Measurement,
    pub routes: RouteOptions,
    pub choice: StrategySource,
    /// Costs under the cause; `None`: those of the machine's profile.
    pub profile: Option<Box<Profile>>,
    /// Defect of the library, with its slowdown.
    pub defect: Option<(KnownDefect, Slowdown)>,
}

/// Source of the strategies that a hypothesis assumes.
pub(super) enum StrategySource {
    /// The library chooses again under the conditions of the cause, because it detects the cause.
    Library,
    /// Variant of [`Self::Library`] for this fabric: NCCL derives its choice from the kinds of paths, not from the
    /// rates that copies through host memory reach.
    LibraryFor(Arc<Fabric>),
    /// Variant of [`Self::Library`] in which a call has no time if its choice is not modelled or the library cannot run
    /// it.
    Known,
    /// Variant of [`Self::Known`] for rows that a defect affects. The predicted strategies of other rows are unchanged.
    Affected,
    /// The predicted strategies are unchanged, because the library does not detect the cause. NCCL reads the rates that
    /// PCIe links support, not the rates in effect (2.30.7, `max_link_speed` and `max_link_width` in src/graph/xml.cc).
    Unchanged,
}

impl Hypothesis {
    /// The measurement as it was described.
    pub fn undisturbed(measurement: &Measurement, routes: RouteOptions) -> Self {
        let described = Measurement { rows: Vec::new(), rejected: Vec::new(), ..measurement.clone() };
        Self { measurement: described, routes, choice: StrategySource::Library, profile: None, defect: None }
    }
}

/// Returns the conditions of a measurement under a cause; `None` if the cause is not simulated or has no effect.
/// `profile`: costs of the machine.
pub(super) fn apply(
    cause: &Cause,
    measurement: &Measurement,
    routes: RouteOptions,
    profile: &Profile,
) -> Option<Hypothesis> {
    let mut hypothesis = Hypothesis::undisturbed(measurement, routes);
    let fabric = &*measurement.fabric;
    let configuration = &mut hypothesis.measurement.configuration;
    let mut set = |names: &[&str], value: u16| {
        configuration.env.retain(|(name, _)| !names.contains(&name.as_str()));
        configuration.env.extend(names.iter().map(|name| ((*name).to_owned(), value.to_string())));
    };
    let mut degraded = None;
    match *cause {
        Cause::NvlsOff => configuration.in_network = InNetwork::Off,
        Cause::PeerAccessOff { divisor } => {
            hypothesis.routes.p2p = PeerAccess::Off;
            hypothesis.choice = StrategySource::LibraryFor(Arc::clone(&measurement.fabric));
            degraded = slower_copies(fabric, NodeKind::Gpu, divisor);
        }
        Cause::PeerAccessInSwitches { divisor } => {
            hypothesis.routes.p2p = hypothesis.routes.p2p.max(PeerAccess::Switches);
            hypothesis.choice = StrategySource::LibraryFor(Arc::clone(&measurement.fabric));
            degraded = slower_copies(fabric, NodeKind::Gpu, divisor);
        }
        // Without switches, all paths over PCIe lead through a CPU, where NCCL uses neither peer access nor GPUDirect RDMA.
        Cause::HiddenTopology { divisor } => {
            let has_nvlink = fabric.gpus().iter().any(|&gpu| !links_of(fabric, gpu, &[LinkKind::Nvlink]).is_empty());
            if !has_nvlink {
                hypothesis.routes.p2p = PeerAccess::Off;
            }
            hypothesis.routes.gdr = GpuDirect::Off;
            hypothesis.choice = StrategySource::LibraryFor(Arc::clone(&measurement.fabric));
            let kind = if has_nvlink { NodeKind::Nic } else { NodeKind::Gpu };
            degraded = slower_copies(fabric, kind, divisor);
        }
        Cause::GpuDirectOff { divisor } => {
            hypothesis.routes.gdr = GpuDirect::Off;
            hypothesis.choice = StrategySource::LibraryFor(Arc::clone(&measurement.fabric));
            degraded = slower_copies(fabric, NodeKind::Nic, divisor);
        }
        Cause::Sockets { interfaces } => {
            hypothesis.routes.gdr = GpuDirect::Off;
            hypothesis.choice = StrategySource::LibraryFor(Arc::clone(&measurement.fabric));
            hypothesis.profile = Some(Box::new(Profile { network: sockets(profile.network), ..profile.clone() }));
            let others = match interfaces {
                Extent::One => nics_beyond_the_first(fabric),
                Extent::All => Vec::new(),
            };
            degraded = Some(limit_nics(&fabric.with_failed_devices(&others), SOCKET_RATE));
        }
        // NCCL duplicates the single channel (`ncclTopoPostset`), and runs Simple because its bandwidth of 0.1 GB/s outweighs
        // all latencies.
        Cause::FallbackGraph => {
            configuration.algorithm = configuration.algorithm.or(Some(Algorithm::Ring));
            configuration.protocol = configuration.protocol.or(Some(Protocol::Simple));
            set(&["NCCL_MAX_CTAS"], 2);
            degraded = Some(fabric.with_failed_devices(&nics_beyond_the_first(fabric)));
        }
        Cause::KnownDefect(defect, slowdown) => {
            hypothesis.choice = StrategySource::Affected;
            hypothesis.defect = Some((defect, slowdown));
            if let Some((algorithm, protocol)) = defect.kernel() {
                (configuration.algorithm, configuration.protocol) = (Some(algorithm), Some(protocol));
            }
        }
        Cause::HostSlow { added } => hypothesis.profile = Some(Box::new(with_host_time(profile, added))),
        Cause::NvlinksDown { down, links } => {
            let part = f64::from(links.saturating_sub(down)) / f64::from(links.max(1));
            degraded = slowed(fabric, &devices(fabric, NodeKind::Gpu, Extent::One), &[LinkKind::Nvlink], part);
        }
        Cause::NicsDown { down, extent, .. } => {
            let nics: Vec<NodeId> = match extent {
                Extent::One => nics_of_first_host(fabric).into_iter().take(down.into()).collect(),
                Extent::All => nics_of_each_host(fabric, down.into()),
            };
            degraded = Some(fabric.with_failed_devices(&nics));
        }
        Cause::NicsSlow { divisor, extent } => {
            let nics = devices(fabric, NodeKind::Nic, extent);
            degraded = slowed(fabric, &nics, &LinkKind::NETWORK, 1.0 / f64::from(divisor.max(1)));
        }
        Cause::PcieSlow { device, divisor, extent } => {
            hypothesis.choice = StrategySource::Unchanged;
            let kind = match device {
                PcieDevice::Gpu => NodeKind::Gpu,
                PcieDevice::Nic => NodeKind::Nic,
            };
            let ends = devices(fabric, kind, extent);
            degraded = slowed(fabric, &ends, &[LinkKind::Pcie], 1.0 / f64::from(divisor.max(1)));
        }
        Cause::Strategy { algorithm, protocol } => {
            hypothesis.choice = StrategySource::Known;
            configuration.algorithm = algorithm.or(configuration.algorithm);
            configuration.protocol = protocol.or(configuration.protocol);
        }
        Cause::MaxChannels(count) => set(&["NCCL_MAX_CTAS"], count),
        Cause::MaxChannelsPerPeer(count) => set(&["NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MAX_P2P_NCHANNELS"], count),
        Cause::Launch(launch, processes) => {
            hypothesis.choice = StrategySource::Unchanged;
            (configuration.launch, configuration.processes) = (launch, processes);
        }
        Cause::ChannelsPerPeer { .. } => return None,
    }
    if let Some(degraded) = degraded {
        hypothesis.measurement.fabric = Arc::new(degraded);
    } else if matches!(cause, Cause::NvlinksDown { .. } | Cause::NicsSlow { .. } | Cause::PcieSlow { .. }) {
        return None;
    }
    Some(hypothesis)
}

/// Rate of a thread that sends over TCP: 42 Gb/s, a core of an otherwise idle host with jumbo frames and offloads (Cai et
/// al., *Understanding host network stack overheads*, SIGCOMM 2021, §3.1). NCCL has a proxy thread per GPU.
const SOCKET_RATE: Bandwidth = Bandwidth(5_250_000_000);
/// Latency of a message over TCP beyond that of the NIC's own transport: system calls, and a wake-up on each side. An
/// estimate.
const SOCKET_LATENCY: Picos = Picos(15_000_000);

/// Costs of messages over TCP sockets.
fn sockets(network: NetworkCosts) -> NetworkCosts {
    NetworkCosts { post: network.post + SOCKET_LATENCY, rendezvous: Picos::ZERO, eager: None, ..network }
}

/// Returns the fabric with network links of at most this rate per NIC.
fn limit_nics(fabric: &Fabric, rate: Bandwidth) -> Fabric {
    // NICs of one rate are limited at once, because each step copies the fabric.
    let mut by_rate: BTreeMap<Bandwidth, Vec<LinkId>> = BTreeMap::new();
    for nic in devices(fabric, NodeKind::Nic, Extent::All) {
        let links = links_of(fabric, nic, &LinkKind::NETWORK);
        let fastest = links.iter().filter_map(|&link| fabric.link(link).bandwidth).max();
        if let Some(fastest) = fastest.filter(|fastest| *fastest > rate) {
            by_rate.entry(fastest).or_default().extend(links);
        }
    }
    by_rate.into_iter().fold(fabric.clone(), |limited, (fastest, links)| {
        limited.with_slowed_links(&links, rate.0 as f64 / fastest.0 as f64).unwrap_or(limited)
    })
}

/// Returns the profile with more host time per call, in every launch mode.
fn with_host_time(profile: &Profile, added: Picos) -> Profile {
    let slower = |costs: LaunchCosts| LaunchCosts { added: costs.added + added, floor: costs.floor + added, ..costs };
    Profile { launches: profile.launches.map(|modes| modes.map(slower)), ..profile.clone() }
}

/// Returns the fabric with slower copies between host memory and devices of a kind; `None` if `divisor` is 1, the
/// predicted rate.
fn slower_copies(fabric: &Fabric, kind: NodeKind, divisor: u16) -> Option<Fabric> {
    let ends = devices(fabric, kind, Extent::All);
    (divisor > 1).then(|| slowed(fabric, &ends, &[LinkKind::Pcie, LinkKind::C2c], 1.0 / f64::from(divisor)))?
}

/// Returns the fabric in which links of the given kinds at the given devices have a part of their rate; `None` if there
/// are no such links.
fn slowed(fabric: &Fabric, ends: &[NodeId], kinds: &[LinkKind], part: f64) -> Option<Fabric> {
    let links: Vec<LinkId> = ends.iter().flat_map(|&end| links_of(fabric, end, kinds)).collect();
    fabric.with_slowed_links(&links, part)
}

/// Returns the first device of a kind on the host of the first GPU, or all devices of the kind.
fn devices(fabric: &Fabric, kind: NodeKind, extent: Extent) -> Vec<NodeId> {
    let all: Vec<NodeId> = match kind {
        NodeKind::Gpu => fabric.gpus().to_vec(),
        _ => fabric.nodes().filter(|(_, node)| node.kind == kind).map(|(id, _)| id).collect(),
    };
    match (extent, kind) {
        (Extent::All, _) => all,
        (Extent::One, NodeKind::Nic) => nics_of_first_host(fabric).into_iter().take(1).collect(),
        (Extent::One, _) => all.into_iter().take(1).collect(),
    }
}

/// Returns all NICs but the first of each host.
fn nics_beyond_the_first(fabric: &Fabric) -> Vec<NodeId> {
    let first = nics_of_each_host(fabric, 1);
    devices(fabric, NodeKind::Nic, Extent::All).into_iter().filter(|nic| !first.contains(nic)).collect()
}

/// Returns the first `count` NICs of every host.
fn nics_of_each_host(fabric: &Fabric, count: usize) -> Vec<NodeId> {
    let mut taken = vec![0; fabric.hosts().len()];
    let nics = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic);
    let chosen = nics.filter(|(_, node)| {
        let Some(number) = taken.get_mut(node.host.0 as usize) else { return false };
        *number += 1;
        *number <= count
    });
    chosen.map(|(id, _)| id).collect()
}

/// Both directions of the links of the given kinds at a device.
fn links_of(fabric: &Fabric, device: NodeId, kinds: &[LinkKind]) -> Vec<LinkId> {
    let outgoing = fabric.outgoing_links(device).into_iter().filter(|&link| kinds.contains(&fabric.link(link).kind));
    outgoing.flat_map(|link| [link, link.reverse()]).collect()
}
