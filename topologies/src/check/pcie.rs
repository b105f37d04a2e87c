//! Checks of PCIe: links slower than the devices behind them, and NICs too far from GPUs for GPUDirect RDMA.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Severity, finding, is_reached, list_ids, reachable_devices, uplink};
use crate::Bandwidth;
use crate::fabric::{Fabric, Figures, HostId, Link, LinkKind, NodeId, NodeKind};
use crate::gpus::name;
use crate::read::hardware;

/// Bandwidth of one PCIe lane in each direction, in order of generation; the first entry is generation 1.
const LANES: [Bandwidth; 6] = [
    Bandwidth(250_000_000),
    Bandwidth(500_000_000),
    hardware::PCIE_3_LANE,
    hardware::PCIE_4_LANE,
    hardware::PCIE_5_LANE,
    hardware::PCIE_6_LANE,
];

/// Generation and width of a PCIe link in the usual notation, `PCIe 4.0 x8`; `None` if the bandwidth matches no
/// generation within 1 %.
pub(super) fn pcie_name(link: &Link) -> Option<String> {
    let (rate, width) = (link.bandwidth?, u64::from(link.lanes));
    let matches_rate = |lane: &Bandwidth| (rate.0 as f64 / (lane.0 * width.max(1)) as f64 - 1.0).abs() < 0.01;
    let generation = LANES.iter().position(matches_rate)? + 1;
    Some(format!("PCIe {generation}.0 x{width}"))
}

/// Formats a line rate, given in bytes per second, in Gb/s.
fn gigabits(rate: u64) -> String {
    format!("{} Gb/s", rate as f64 / 125e6)
}

/// The first PCIe link of a device that states a bandwidth; this link is assumed to lead towards the CPU. `None` if
/// there is none.
fn pcie_link(fabric: &Fabric, device: NodeId) -> Option<&Link> {
    let links = fabric.outgoing_links(device).into_iter().map(|link| fabric.link(link));
    links.into_iter().find(|link| link.kind == LinkKind::Pcie && link.bandwidth.is_some())
}

/// The slot of a NIC: the device that the NIC is attached to, and the bus and device number of the NIC. All ports of a
/// card have the same slot.
fn slot(fabric: &Fabric, nic: NodeId) -> Option<(NodeId, String)> {
    let above = pcie_link(fabric, nic)?.to;
    let node = fabric.node(nic);
    let bus = node.attributes.iter().find(|(name, _)| &**name == "busid").map(|(_, bus)| &**bus);
    let slot = bus.map_or(&*node.id, |bus| bus.rsplit_once('.').map_or(bus, |(slot, _)| slot));
    Some((above, slot.to_owned()))
}

/// Finds network cards whose ports are in total faster than the PCIe link of the card.
pub(super) fn fast_nics(fabric: &Fabric) -> Vec<Finding> {
    let mut cards: BTreeMap<(NodeId, String), Vec<NodeId>> = BTreeMap::new();
    for (id, _) in fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic) {
        if let Some(slot) = slot(fabric, id) {
            cards.entry(slot).or_default().push(id);
        }
    }
    // Equal cards are combined into one finding.
    let mut findings: BTreeMap<(u64, String, usize), Vec<NodeId>> = BTreeMap::new();
    for ports in cards.into_values() {
        let rates = ports.iter().filter_map(|&port| match &fabric.node(port).figures {
            Figures::Nic(figures) => figures.speed,
            _ => None,
        });
        let rate: u64 = rates.map(|rate| rate.0).fold(0, u64::saturating_add);
        let Some(link) = ports.first().and_then(|&port| pcie_link(fabric, port)) else { continue };
        let carried = link.bandwidth.map_or(u64::MAX, |bandwidth| bandwidth.0);
        if rate > carried {
            let name = pcie_name(link).map_or_else(String::new, |name| format!(", {name}"));
            let link_text = format!("{}{name}", gigabits(carried / 12_500_000 * 12_500_000));
            findings.entry((rate, link_text, ports.len())).or_default().extend(ports);
        }
    }
    let worded = findings.into_iter().map(|((rate, link, ports), nics)| {
        let each =
            if ports > 1 { format!("{ports} ports of a card, {} together", gigabits(rate)) } else { gigabits(rate) };
        let message = format!("{}: {each}, over a PCIe link that carries {link}", list_ids(fabric, &nics));
        finding(Severity::Warning, message)
    });
    worded.collect()
}

/// Finds GPUs whose PCIe link is slower than 16 lanes of their own generation.
pub(super) fn slow_generations(fabric: &Fabric) -> Vec<Finding> {
    let mut findings: BTreeMap<(Bandwidth, String, String), Vec<NodeId>> = BTreeMap::new();
    for (id, node) in fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Gpu) {
        // The PCIe link of a GPU with C2C only serves management.
        let on_c2c = fabric.outgoing_links(id).into_iter().any(|link| fabric.link(link).kind == LinkKind::C2c);
        let Figures::Gpu(figures) = &node.figures else { continue };
        let model = figures.model.as_deref().and_then(|name| name::find(name).first().copied());
        let (Some(model), Some(link), false) = (model, pcie_link(fabric, id), on_c2c) else { continue };
        let nominal = model.pcie_generation.and_then(|generation| LANES.get(generation as usize - 1));
        let (Some(nominal), Some(carried)) = (nominal, link.bandwidth) else { continue };
        if carried.0 * 100 < nominal.0 * 16 * 99 {
            let found = pcie_name(link).map_or_else(|| carried.to_string(), |name| format!("{name} ({carried})"));
            let expected = format!("{} has PCIe {}.0 x16", model.name, model.pcie_generation.unwrap_or_default());
            findings.entry((carried, found, expected)).or_default().push(id);
        }
    }
    let worded = findings.into_iter().map(|((_, found, expected), gpus)| {
        let names = list_ids(fabric, &gpus);
        finding(Severity::Warning, format!("{names}: {found}, where {expected} (idle links show a lower speed)"))
    });
    worded.collect()
}

/// Finds GPUs that reach a NIC only through a CPU. NCCL then does not use GPUDirect RDMA, because `NCCL_NET_GDR_LEVEL`
/// is `PXB` by default. GPUs attached by NVLink-C2C are exempt.
pub(super) fn gpus_without_gpu_direct(fabric: &Fabric) -> Vec<Finding> {
    let nics: Vec<NodeId> = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic).map(|(id, _)| id).collect();
    let with_nic: BTreeSet<HostId> = nics.iter().map(|&nic| fabric.node(nic).host).collect();
    // GPUs without any NIC on their CPU are found by `gpus_far_from_nics`.
    let reached =
        reachable_devices(fabric, nics.iter().copied(), |kind| matches!(kind, LinkKind::Pcie | LinkKind::C2c));
    let reached_by_switches = reachable_over_switches(fabric, &nics);
    let far_gpus: Vec<NodeId> = fabric
        .gpus()
        .iter()
        .copied()
        .filter(|&gpu| {
            let on_c2c = fabric.outgoing_links(gpu).into_iter().any(|link| fabric.link(link).kind == LinkKind::C2c);
            let has_pcie = uplink(fabric, gpu).is_some();
            let host = fabric.node(gpu).host;
            with_nic.contains(&host)
                && has_pcie
                && !on_c2c
                && is_reached(&reached, gpu)
                && !is_reached(&reached_by_switches, gpu)
        })
        .collect();
    if far_gpus.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "{}: no NIC nearer than PHB (the CPU's host bridge), where NCCL does not use GPUDirect RDMA (NCCL_NET_GDR_LEVEL)",
        list_ids(fabric, &far_gpus)
    );
    vec![finding(Severity::Warning, message)]
}

/// Marks the devices that are reachable from the NICs over PCIe switches without a CPU in between.
fn reachable_over_switches(fabric: &Fabric, nics: &[NodeId]) -> Vec<bool> {
    let mut reached = vec![false; fabric.node_count()];
    let mut queue: Vec<NodeId> = nics.to_vec();
    while let Some(node) = queue.pop() {
        if std::mem::replace(&mut reached[node.0 as usize], true) {
            continue;
        }
        let kind = fabric.node(node).kind;
        if matches!(kind, NodeKind::Nic | NodeKind::PcieSwitch) {
            let links = fabric.outgoing_links(node).into_iter().map(|link| fabric.link(link));
            queue.extend(links.filter(|link| link.kind == LinkKind::Pcie).map(|link| link.to));
        }
    }
    reached
}

/// Finds PCIe switches emulated by a hypervisor. QEMU's switches have the PCI ids of TI's XIO3130, its bridges those of
/// Red Hat.
pub(super) fn virtual_switches(fabric: &Fabric) -> Vec<Finding> {
    const DRAWN: [(&str, &str); 4] =
        [("0x104c", "0x8232"), ("0x104c", "0x8233"), ("0x1b36", "0x000c"), ("0x1b36", "0x000b")];
    let drawn = |id: NodeId| {
        let node = fabric.node(id);
        let find_attribute =
            |wanted: &str| node.attributes.iter().find(|(name, _)| &**name == wanted).map(|(_, value)| &**value);
        let ids = find_attribute("vendor").zip(find_attribute("device"));
        node.kind == NodeKind::PcieSwitch && ids.is_some_and(|ids| DRAWN.contains(&ids))
    };
    let switches: Vec<NodeId> = fabric.nodes().map(|(id, _)| id).filter(|&id| drawn(id)).collect();
    if switches.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "{}: drawn by a hypervisor; where the machine joins GPU and NIC only by the host bridge (PHB), GPUDirect RDMA is \
         slow or off, whatever the file says",
        list_ids(fabric, &switches)
    );
    vec![finding(Severity::Warning, message)]
}
