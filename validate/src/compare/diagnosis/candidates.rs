//! Possible causes on a machine, in the order of their likelihood.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_libraries::Library;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::{Fabric, LinkKind, NodeId, Picos};

use super::super::Compared;
use super::basis::{self, Basis};
use super::cause::{Cause, Extent, PcieDevice};
use super::defects::{KnownDefect, SLOWDOWNS};
use super::rules;
use crate::measured::manifest::Measurement;
use crate::measured_strategy::library;

/// Divisors of PCIe link rates that are tried; `NIC_DIVISORS` are those of NIC rates. Half the lanes, or a PCIe
/// generation one step older, halve the rate; NICs fall back to half or a quarter of their rate.
const PCIE_DIVISORS: [u16; 4] = [2, 4, 8, 16];
const NIC_DIVISORS: [u16; 2] = [2, 4];
/// Divisors of the rate of copies through host memory: measured rates are 0.1 to 1.4 times the predicted ones
/// (validate/data/confirmed-logs).
const COPY_DIVISORS: [u16; 4] = [1, 2, 4, 8];
/// Additional host times per call: PyTorch adds some 10 to 20 µs, a process for eight GPUs up to 50 µs
/// (validate/data/confirmed-logs).
const HOST_TIMES: [Picos; 3] = [Picos(10_000_000), Picos(20_000_000), Picos(40_000_000)];
/// Limits of the number of channels that are tried.
const CHANNELS: [u16; 5] = [1, 2, 4, 8, 16];

/// Algorithms and protocols that NCCL chooses by itself (`ncclAlgo_t`, `ncclProto_t` of its nccl_common.h).
const ALGORITHMS: [Algorithm; 4] = [Algorithm::Ring, Algorithm::Tree, Algorithm::Nvls, Algorithm::NvlsTree];
const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// Lists the causes that can slow down the given rows of a measurement. Faults of single devices precede faults of all
/// devices, and smaller faults precede larger ones.
pub(super) fn candidates(measurement: &Measurement, rows: &[&Compared]) -> Vec<Cause> {
    let (fabric, configuration) = (&*measurement.fabric, &measurement.configuration);
    let mut causes = Vec::new();
    let uses_switches = |row: &&Compared| row.strategy.algorithm.in_network() == InNetwork::Allowed;
    if configuration.in_network == InNetwork::Allowed && rows.iter().any(uses_switches) {
        causes.push(Cause::NvlsOff);
    }
    if configuration.gpus > 1 {
        causes.extend(COPY_DIVISORS.map(|divisor| Cause::PeerAccessOff { divisor }));
        let gpus = fabric.gpus();
        let of_host = gpus.get(..configuration.gpus as usize).unwrap_or(gpus);
        if rules::has_pairs_through_cpu(fabric, of_host) {
            causes.extend(COPY_DIVISORS.map(|divisor| Cause::PeerAccessInSwitches { divisor }));
        }
    }
    if configuration.nodes > 1 {
        causes.extend(COPY_DIVISORS.map(|divisor| Cause::GpuDirectOff { divisor }));
        causes.extend([Extent::One, Extent::All].map(|interfaces| Cause::Sockets { interfaces }));
        causes.extend(network_faults(fabric));
    }
    causes.extend(nvlink_faults(fabric));
    let staged = configuration.nodes > 1 || !has_links(fabric, NodeKind::Gpu, LinkKind::Nvlink);
    for (device, kind) in [(PcieDevice::Gpu, NodeKind::Gpu), (PcieDevice::Nic, NodeKind::Nic)] {
        let is_used = staged && (device == PcieDevice::Gpu || configuration.nodes > 1);
        if is_used && has_links(fabric, kind, LinkKind::Pcie) {
            for extent in [Extent::One, Extent::All] {
                causes.extend(PCIE_DIVISORS.map(|divisor| Cause::PcieSlow { device, divisor, extent }));
            }
        }
    }
    if matches!(library(measurement), Some(Library::Nccl(_))) {
        causes.extend(settings(measurement, rows));
    }
    causes.extend(special_causes(measurement, rows));
    causes.extend(HOST_TIMES.map(|added| Cause::HostSlow { added }));
    let described = (configuration.launch, configuration.processes);
    for launch in [Launch::Stream, Launch::Graph] {
        for processes in [Processes::PerGpu, Processes::Single] {
            if (launch, processes) != described {
                causes.push(Cause::Launch(launch, processes));
            }
        }
    }
    causes.retain(|cause| !basis::is_refuted(cause, measurement));
    causes
}

/// Causes that are possible only if there is a reason to expect them: what the log states, and rules and defects of the
/// library's release.
fn special_causes(measurement: &Measurement, rows: &[&Compared]) -> Vec<Cause> {
    let is_affected_by_switches =
        measurement.configuration.nodes > 1 || !has_links(&measurement.fabric, NodeKind::Gpu, LinkKind::Nvlink);
    let mut divisors = Vec::from(COPY_DIVISORS);
    divisors.extend(rules::cross_socket_divisor(&measurement.fabric).filter(|divisor| !divisors.contains(divisor)));
    let hidden =
        divisors.into_iter().map(|divisor| Cause::HiddenTopology { divisor }).filter(|_| is_affected_by_switches);
    let is_pairwise = measurement.configuration.collective.is_pairwise();
    let fallback = Some(Cause::FallbackGraph).into_iter().filter(|_| !is_pairwise);
    let expected = hidden.chain(fallback).filter(|cause| basis::basis(cause, measurement) != Basis::Assumed);
    let is_affected = |defect: &KnownDefect| defect.applies(measurement) && rows.iter().any(|row| defect.affects(row));
    let defects = KnownDefect::ALL.into_iter().filter(is_affected);
    let variants = |defect| SLOWDOWNS.map(|slowdown| Cause::KnownDefect(defect, slowdown));
    expected.chain(defects.flat_map(variants)).collect()
}

/// Choices of NCCL other than the predicted ones, and limits of its channels.
fn settings(measurement: &Measurement, rows: &[&Compared]) -> Vec<Cause> {
    let configuration = &measurement.configuration;
    let mut causes = Vec::new();
    let is_pairwise = configuration.collective.is_pairwise();
    let most = rows.iter().map(|row| row.strategy.channels).max().unwrap_or_default();
    let limits = || CHANNELS.into_iter().rev().filter(move |&count| count < most);
    if is_pairwise {
        if configuration.nodes > 1 {
            causes.extend(limits().map(Cause::MaxChannelsPerPeer));
        }
        return causes;
    }
    if configuration.channels.is_none() {
        causes.extend(limits().map(Cause::MaxChannels));
    }
    let algorithms = ALGORITHMS.into_iter().map(Some).filter(|_| configuration.algorithm.is_none());
    let protocols = PROTOCOLS.into_iter().map(Some).filter(|_| configuration.protocol.is_none());
    for algorithm in [None].into_iter().chain(algorithms) {
        for protocol in [None].into_iter().chain(protocols.clone()) {
            // NVLS kernels exist for Simple only (NCCL 2.30.7, src/device/generate.py).
            let uses_switches = algorithm.is_some_and(|algorithm| algorithm.in_network() == InNetwork::Allowed);
            let exists = !uses_switches || protocol.is_none_or(|protocol| protocol == Protocol::Simple);
            if exists && (algorithm.is_some() || protocol.is_some()) {
                causes.push(Cause::Strategy { algorithm, protocol });
            }
        }
    }
    causes
}

/// NICs that are down or slow.
fn network_faults(fabric: &Fabric) -> Vec<Cause> {
    let nics = nics_of_first_host(fabric).len() as u16;
    let mut causes = Vec::new();
    if nics > 1 {
        causes.push(Cause::NicsDown { down: 1, nics, extent: Extent::One });
    }
    causes.extend(NIC_DIVISORS.map(|divisor| Cause::NicsSlow { divisor, extent: Extent::One }));
    for down in [1, nics / 2, nics.saturating_sub(nics / 4), nics.saturating_sub(1)] {
        let cause = Cause::NicsDown { down, nics, extent: Extent::All };
        if down > 0 && down < nics && !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    causes.extend(NIC_DIVISORS.map(|divisor| Cause::NicsSlow { divisor, extent: Extent::All }));
    causes
}

/// NVLinks of a GPU that are down: one link, or a fraction of all.
fn nvlink_faults(fabric: &Fabric) -> Vec<Cause> {
    let Some(&gpu) = fabric.gpus().first() else { return Vec::new() };
    let links = nvlinks(fabric, gpu);
    let mut causes = Vec::new();
    for down in [1, 2, links / 6, links / 3, links / 2, links * 2 / 3, links * 5 / 6] {
        let cause = Cause::NvlinksDown { down, links };
        if down > 0 && down < links && !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    causes
}

/// Number of NVLinks of a GPU, from the lanes that its links state.
fn nvlinks(fabric: &Fabric, gpu: NodeId) -> u16 {
    let links = fabric.outgoing_links(gpu).into_iter().map(|link| fabric.link(link));
    links.filter(|link| link.kind == LinkKind::Nvlink && !link.failed).map(|link| link.lanes.max(1)).sum()
}

/// NICs of the host of the first GPU.
pub(super) fn nics_of_first_host(fabric: &Fabric) -> Vec<NodeId> {
    let host = fabric.gpus().first().map(|&gpu| fabric.node(gpu).host);
    let is_nic = |node: &fabricast_topologies::fabric::Node| node.kind == NodeKind::Nic && Some(node.host) == host;
    fabric.nodes().filter(|(_, node)| is_nic(node)).map(|(id, _)| id).collect()
}

fn has_links(fabric: &Fabric, node: NodeKind, link: LinkKind) -> bool {
    fabric.links().any(|(_, candidate)| candidate.kind == link && fabric.node(candidate.from).kind == node)
}
