//! Links of a topology file. Those of the PCIe tree are added first, so they have the lowest ids.

use std::collections::BTreeMap;

use super::parse_tree::{ParsedTopology, Target};
use crate::fabric::{FabricBuilder, Figures, HostId, LinkKind, LinkSpec, NodeId, NodeKind};
use crate::read::hardware::{self, C2C_HOP, NVLINK_DIRECT, NVLINK_HOP, PCIE_HOP, SOCKET_HOP};
use crate::{Bandwidth, Picos};

/// Specification of a link; `bandwidths` are those of the forward and the backward direction.
fn spec(kind: LinkKind, lanes: u16, bandwidths: [Option<Bandwidth>; 2], latency: Picos) -> LinkSpec {
    LinkSpec { kind, lanes, forward: bandwidths[0], backward: bandwidths[1], latency }
}

/// Adds all links of the file, and the NVSwitch if GPUs are linked to one. `vertices`: the device of the fabric for
/// each device of the file; `None` for devices that were merged.
pub(super) fn add(
    found: &mut ParsedTopology,
    vertices: &[Option<NodeId>],
    switch_host: HostId,
    builder: &mut FabricBuilder,
) {
    let vertex = |device: usize| vertices.get(device).copied().flatten();
    for (i, device) in found.devices.iter().enumerate() {
        if let (Some(child), Some((parent, up))) = (vertex(i), device.parent)
            && let Some(parent) = vertex(parent)
        {
            builder.link(child, parent, &spec(LinkKind::Pcie, up.lanes, [up.bandwidth; 2], PCIE_HOP));
        }
    }
    add_ports(found, vertices, switch_host, builder);
    for &(gpu, bandwidth, lanes) in &found.c2c {
        if let (Some(gpu), Some(cpu)) = (vertex(gpu), root_cpu(found, gpu).and_then(vertex)) {
            builder.link(gpu, cpu, &spec(LinkKind::C2c, lanes, [Some(bandwidth); 2], C2C_HOP));
        }
    }
    add_pci_links(found, vertices, builder);
    add_sockets(found, vertices, builder);
}

/// Index of the CPU at the root of a device's PCIe tree.
fn root_cpu(found: &ParsedTopology, device: usize) -> Option<usize> {
    let mut at = device;
    while let Some((parent, _)) = found.devices.get(at)?.parent {
        at = parent;
    }
    Some(at)
}

/// Total bandwidth of `count` links.
fn total_bandwidth(count: u32, per_link: Bandwidth) -> Bandwidth {
    Bandwidth(per_link.0.saturating_mul(u64::from(count))).min(Bandwidth::MAX)
}

fn lanes(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Adds NVLink and xGMI links to the switch, to CPUs and between GPUs. All links between the same two devices are
/// bonded into one.
fn add_ports(
    found: &mut ParsedTopology,
    vertices: &[Option<NodeId>],
    switch_host: HostId,
    builder: &mut FabricBuilder,
) {
    let vertex = |device: usize| vertices.get(device).copied().flatten();
    let mut to_switch: BTreeMap<usize, (u32, Bandwidth)> = BTreeMap::new();
    let mut to_cpu: BTreeMap<usize, (u32, Bandwidth)> = BTreeMap::new();
    // Number and bandwidth of the links that each of the two GPUs lists, by pair of GPUs with the lower index first.
    let mut counts_by_pair: BTreeMap<(usize, usize), [(u32, Bandwidth); 2]> = BTreeMap::new();
    let none = (0u32, Bandwidth(0));
    let bond = |entry: &mut (u32, Bandwidth), count: u16, per_link| {
        *entry = (entry.0.saturating_add(u32::from(count)), per_link);
    };
    for port in &found.ports {
        match &port.target {
            Target::Switch => bond(to_switch.entry(port.gpu).or_insert(none), port.count, port.per_link),
            Target::Cpu => bond(to_cpu.entry(port.gpu).or_insert(none), port.count, port.per_link),
            Target::Gpu(bus) => {
                let host = found.devices.get(port.gpu).map_or(0, |device| device.host);
                let peer = found.by_bus.get(&(host, bus.clone())).copied();
                let peer = peer.filter(|&peer| found.devices.get(peer).is_some_and(|device| device.kind.is_rank()));
                match peer {
                    None => found.warnings.add(format!("an NVLink to `{bus}` is ignored: no GPU has this bus id")),
                    Some(peer) if peer == port.gpu => {
                        found.warnings.add(format!("an NVLink from `{bus}` to itself is ignored"));
                    }
                    Some(peer) => {
                        let ends = (port.gpu.min(peer), port.gpu.max(peer));
                        let sides = counts_by_pair.entry(ends).or_insert([none; 2]);
                        bond(&mut sides[usize::from(port.gpu != ends.0)], port.count, port.per_link);
                    }
                }
            }
        }
    }
    for (&(a, b), &[(forward, forward_rate), (backward, backward_rate)]) in &counts_by_pair {
        let (Some(x), Some(y)) = (vertex(a), vertex(b)) else { continue };
        if forward != backward {
            let (x, y) = (&builder.get(x).id, &builder.get(y).id);
            found.warnings.add(format!("{x} lists {forward} NVLinks to {y}, and {y} lists {backward} back"));
        }
        // If one side lists no links, those of the other side apply to both.
        let bandwidths = match (forward, backward) {
            (0, _) => [total_bandwidth(backward, backward_rate); 2],
            (_, 0) => [total_bandwidth(forward, forward_rate); 2],
            _ => [total_bandwidth(forward, forward_rate), total_bandwidth(backward, backward_rate)],
        };
        builder.link(x, y, &spec(LinkKind::Nvlink, lanes(forward.max(backward)), bandwidths.map(Some), NVLINK_DIRECT));
    }
    for (&gpu, &(count, each)) in &to_cpu {
        if let (Some(x), Some(y)) = (vertex(gpu), root_cpu(found, gpu).and_then(vertex)) {
            builder.link(
                x,
                y,
                &spec(LinkKind::Nvlink, lanes(count), [Some(total_bandwidth(count, each)); 2], NVLINK_HOP),
            );
        }
    }
    if !to_switch.is_empty()
        && let Some(switch) = builder.node("nvswitch0", NodeKind::Nvswitch, switch_host, Figures::None)
    {
        for (&gpu, &(count, each)) in &to_switch {
            let Some(gpu) = vertex(gpu) else { continue };
            builder.link(
                gpu,
                switch,
                &spec(LinkKind::Nvlink, lanes(count), [Some(total_bandwidth(count, each)); 2], NVLINK_HOP),
            );
        }
    }
}

/// Adds links between PCIe switches that are joined by `<pcilink>`, which NCCL treats as one location.
fn add_pci_links(found: &mut ParsedTopology, vertices: &[Option<NodeId>], builder: &mut FabricBuilder) {
    let vertex = |device: usize| vertices.get(device).copied().flatten();
    let mut joined = std::collections::BTreeSet::new();
    for (from, bus) in &found.pci_links {
        let host = found.devices.get(*from).map_or(0, |device| device.host);
        let to = found.by_bus.get(&(host, bus.clone())).copied();
        match (vertex(*from), to.and_then(vertex)) {
            (Some(x), Some(y)) if x != y => {
                if joined.insert((x.min(y), x.max(y))) {
                    builder.link(x, y, &spec(LinkKind::Pcie, 1, [None; 2], PCIE_HOP));
                }
            }
            _ => found.warnings.add(format!("a <pcilink> to `{bus}` is ignored: no other switch has this bus id")),
        }
    }
}

/// Adds links between all pairs of sockets of a host, each direction at the rate of the sending socket.
fn add_sockets(found: &ParsedTopology, vertices: &[Option<NodeId>], builder: &mut FabricBuilder) {
    let mut sockets: BTreeMap<usize, Vec<(NodeId, Option<Bandwidth>)>> = BTreeMap::new();
    for (device, vertex) in found.devices.iter().zip(vertices) {
        if let (Figures::Cpu(cpu), Some(vertex)) = (&device.figures, vertex) {
            let arch = cpu.arch.map_or("", |arch| arch.name());
            let vendor = cpu.vendor.as_deref().unwrap_or_default();
            let (family, model) = (cpu.family.unwrap_or_default(), cpu.model_id.unwrap_or_default());
            let rate = hardware::socket_bandwidth(arch, vendor, family, model);
            sockets.entry(device.host).or_default().push((*vertex, rate));
        }
    }
    for host in sockets.values() {
        for (i, &(a, from_a)) in host.iter().enumerate() {
            for &(b, from_b) in host.iter().skip(i + 1) {
                builder.link(a, b, &spec(LinkKind::Upi, 1, [from_a, from_b], SOCKET_HOP));
            }
        }
    }
}
