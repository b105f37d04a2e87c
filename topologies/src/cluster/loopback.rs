//! One machine split into several nodes that communicate over sockets, as with `NCCL_HOSTID` set differently per
//! process.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fabric::{Fabric, FabricBuilder, Figures, LinkKind, LinkSpec, NicFigures, Node, NodeKind};
use crate::network_spec::NetworkSpec;
use crate::read::spec::NETWORK_HOST;
use crate::{Bandwidth, LinkId, NodeId, Picos};

/// Model name of the loopback interface, the only NIC of each node.
pub const LOOPBACK_NIC: &str = "loopback";

/// Bandwidth of the loopback interface in each direction. Derived from a ring all_reduce of 256 MiB on 2 × 4 GPUs of
/// one H200 host, which sends 470 MB in each direction in 130 ms (NCCL 2.28.9 over sockets).
const LOOPBACK: Bandwidth = Bandwidth(3_600_000_000);

/// Latency from GPU to GPU over a socket. Derived from a ring all_reduce of 1 KiB with the LL protocol on the same H200
/// host: 180 µs, of which 3.5 socket transfers account for nearly all time other than the kernel launch.
const LATENCY: Picos = Picos(40_000_000);

/// Splits the GPUs of a host into `nodes` nodes of `gpus` GPUs each (default: an equal share of all).
///
/// Each node has its GPUs, the devices they are attached to, and a loopback interface at its first CPU. NVSwitches,
/// PCIe switches and CPUs appear in each node that uses them.
pub(super) fn split(host: &Fabric, nodes: u32, gpus: Option<u32>, spec: &NetworkSpec) -> Result<Fabric> {
    let total = host.gpus().len() as u32;
    let each = gpus.unwrap_or(total / nodes);
    if each == 0 || u64::from(each) * u64::from(nodes) > u64::from(total) {
        let message = format!(
            "network tcp-loopback divides one machine: {} has {total} GPUs, not {nodes} x {}",
            host.name(),
            each.max(1)
        );
        return Err(Error::Request(message));
    }
    let mut builder = FabricBuilder::derived_from(host, &format!("{} in {nodes} parts", host.name()));
    if spec.nic.is_none() {
        builder
            .add_source("Sockets over the loopback interface: 3.6 GB/s each way, 40 us, measured on an 8 x H200 host");
    }
    let network = builder.host(NETWORK_HOST);
    let speed = spec.nic.unwrap_or(LOOPBACK);
    let latency = spec.nic_latency.map_or(LATENCY, |nic| nic + spec.switch_latency.unwrap_or_default());
    for (part, ranks) in host.gpus().chunks(each as usize).take(nodes as usize).enumerate() {
        let map = copy_part(&mut builder, host, part, ranks);
        let copies: Vec<NodeId> = map.iter().copied().flatten().collect();
        let nic_host = builder.host(&format!("n{part}"));
        let figures = NicFigures {
            model: Some(LOOPBACK_NIC.to_owned()),
            speed: Some(speed),
            gdr: Some(false),
            ..NicFigures::default()
        };
        let nic = Node {
            id: format!("n{part}/nic0").into(),
            kind: NodeKind::Nic,
            host: nic_host,
            figures: Figures::Nic(Arc::new(figures)),
            attributes: Box::default(),
        };
        let duplicate_error = || Error::Request(format!("{} has a device called nic0 that is no NIC", host.name()));
        let nic = builder.add_node(nic).ok_or_else(duplicate_error)?;
        let cpu = copies.into_iter().find(|&copy| builder.get(copy).kind == NodeKind::Cpu);
        let cpu = cpu.ok_or_else(|| Error::Request(format!("{} has no CPU for a socket to end at", host.name())))?;
        // The link inside the node is unlimited, because the link between NIC and switch has the bandwidth and the
        // latency of the socket.
        let inside = LinkSpec { kind: LinkKind::Pcie, lanes: 1, forward: None, backward: None, latency: Picos::ZERO };
        builder.link(nic, cpu, &inside);
        let switch = match builder.find("loopback") {
            Some(switch) => Some(switch),
            None => builder.node("loopback", NodeKind::Switch, network, Figures::None),
        };
        if let Some(switch) = switch {
            let kind = spec.link.unwrap_or(LinkKind::Ethernet);
            builder.link(nic, switch, &LinkSpec::symmetric(kind, speed, Picos(latency.0 / 2)));
        }
    }
    Ok(builder.finish())
}

/// Copies the devices of the host that one node has: all devices except NICs, network switches and the GPUs of other
/// nodes. Returns the copy of each device by its id in `host`; `None` for devices that are not copied.
fn copy_part(builder: &mut FabricBuilder, host: &Fabric, part: usize, ranks: &[NodeId]) -> Vec<Option<NodeId>> {
    let number = builder.host(&format!("n{part}"));
    let mut map = vec![None; host.node_count()];
    for (device, node) in host.nodes() {
        let left_out = matches!(node.kind, NodeKind::Nic | NodeKind::Switch);
        if left_out || (node.kind.is_rank() && !ranks.contains(&device)) || !serves(host, device, ranks) {
            continue;
        }
        // GPUs are numbered from 0 in each node, as in any other cluster.
        let id = match ranks.iter().position(|&rank| rank == device) {
            Some(position) => format!("n{part}/{}{position}", node.id.trim_end_matches(|c: char| c.is_ascii_digit())),
            None => format!("n{part}/{}", node.id),
        };
        let copy = Node { id: id.into(), host: number, ..node.clone() };
        if let Some(slot) = map.get_mut(device.0 as usize) {
            *slot = builder.add_node(copy);
        }
    }
    for link in (0..host.link_count() as u32).step_by(2).map(LinkId) {
        let (from, to) = host.ends(link);
        let end = |node: NodeId| map.get(node.0 as usize).copied().flatten();
        if let (Some(a), Some(b)) = (end(from), end(to)) {
            builder.copy_link(host, link, a, b);
        }
    }
    map
}

/// Returns true if a node with the GPUs `ranks` has a copy of the device. Only PCIe switches that are linked neither to
/// one of these GPUs nor to another PCIe switch are left out.
fn serves(host: &Fabric, id: NodeId, ranks: &[NodeId]) -> bool {
    if host.node(id).kind != NodeKind::PcieSwitch {
        return true;
    }
    host.outgoing_links(id).into_iter().any(|link| {
        let end = host.ends(link).1;
        // Switches in a hierarchy are always copied, whether or not they are needed.
        ranks.contains(&end) || host.node(end).kind == NodeKind::PcieSwitch
    })
}
