//! Where a device meets the network, and which NICs are its own.
//!
//! A GPU's own NICs are the nearest ones. Where several GPUs have the same nearest NICs they divide them, as NCCL does
//! (`NCCL_NETDEVS_POLICY=AUTO`: NICs over GPUs, rounded up, for each GPU). What arrives for a GPU comes in by its own
//! NIC; what leaves may take a NIC of a neighbour if that saves network hops, by a PCIe switch that both share or by
//! NVLink through the neighbour (PXN).

use std::borrow::Cow;

use super::inside::Inside;
use super::segment::comparable;
use super::shape::Shape;
use super::{PathClass, RouteOptions};
use crate::fabric::NodeKind;

/// One way out of or into an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    /// Index of the port in its shape.
    pub port: u32,
    /// 0 for the device's own NICs.
    pub foreign: u8,
    /// 0 near (no CPU in between, or a relay by NVLink), 1 through a CPU, 2 between sockets.
    pub tier: u8,
    pub class: PathClass,
    /// Links between the device and the network, the port's own included.
    pub hops: u32,
    pub ways: u64,
    pub bandwidth: u64,
    pub latency: u64,
}

/// All ways of a device into the network and back, best first.
#[derive(Debug)]
pub(super) struct Attachments {
    pub exits: Vec<Attachment>,
    pub entries: Vec<Attachment>,
}

impl Attachments {
    pub fn new(shape: &Shape, node: u32, options: &RouteOptions) -> Self {
        let own = own_ports(shape, node, options);
        let foreign = |port: u32| u8::from(!own.contains(&port));
        let mut exits = Vec::new();
        let mut entries = Vec::new();
        for (number, port) in shape.ports().iter().enumerate() {
            let number = number as u32;
            if let (Some(figures), Some((class, way))) = (port.out, exit(shape, node, number, options)) {
                exits.push(attachment(number, foreign(number), class, &way, figures));
            }
            if let (Some(figures), Some((class, way))) = (port.back, entry(shape, node, number, options)) {
                entries.push(attachment(number, foreign(number), class, &way, figures));
            }
        }
        exits.sort_by_key(|exit| (exit.tier, exit.foreign, exit.class, exit.hops, exit.port));
        entries.sort_by_key(|entry| (entry.foreign, entry.tier, entry.class, entry.hops, entry.port));
        Self { exits, entries }
    }
}

fn attachment(
    port: u32,
    foreign: u8,
    class: PathClass,
    way: &Inside,
    (bandwidth, latency): (Option<crate::Bandwidth>, crate::Picos),
) -> Attachment {
    let tier = match class {
        PathClass::Phb => 1,
        near if near <= PathClass::Pxn => 0,
        _ => 2,
    };
    Attachment {
        port,
        foreign,
        tier,
        class,
        hops: way.segment.hops + 1,
        ways: way.segment.ways,
        bandwidth: way.segment.bandwidth.min(comparable(bandwidth)),
        latency: way.segment.latency.saturating_add(latency.0),
    }
}

/// The way from a device to a port, and its class.
pub(super) fn exit<'s>(
    shape: &'s Shape,
    node: u32,
    port: u32,
    options: &RouteOptions,
) -> Option<(PathClass, Cow<'s, Inside>)> {
    let at = shape.ports().get(port as usize)?.node;
    let way = shape.between(node, at, options)?;
    if at == node || !shape.node(at).kind.is_rank() {
        return Some((way.class, way));
    }
    // A GPU on the network by itself sends for a neighbour: a relay like one to its NIC.
    let same_host = shape.node(at).host == shape.node(node).host;
    (options.relays() && same_host && way.class == PathClass::Nvl).then_some((PathClass::Pxn, way))
}

/// The way from a port to a device, and its class. Nothing is relayed on the receiving side.
pub(super) fn entry<'s>(
    shape: &'s Shape,
    node: u32,
    port: u32,
    options: &RouteOptions,
) -> Option<(PathClass, Cow<'s, Inside>)> {
    let at = shape.ports().get(port as usize)?.node;
    let way = shape.between(at, node, options)?;
    (at == node || !shape.node(at).kind.is_rank()).then_some((way.class, way))
}

/// The nearest ports without a relay, in port order.
fn nearest(shape: &Shape, node: u32, options: &RouteOptions) -> Vec<u32> {
    let mut best = PathClass::Dis;
    let mut ports = Vec::new();
    for port in 0..shape.ports().len() as u32 {
        let Some((class, _)) = entry(shape, node, port, options) else { continue };
        if class < best {
            best = class;
            ports.clear();
        }
        if class == best {
            ports.push(port);
        }
    }
    ports
}

/// The ports that serve a device: its part of the nearest ones.
fn own_ports(shape: &Shape, node: u32, options: &RouteOptions) -> Vec<u32> {
    let ports = nearest(shape, node, options);
    let device = shape.node(node);
    if ports.len() < 2 || !device.is_rank {
        return ports;
    }
    let nics = |ports: &[u32]| {
        let mut nics: Vec<u32> = ports.iter().map(|&port| shape.ports()[port as usize].node).collect();
        // In the order of the devices, whatever the order of their cables.
        nics.sort_unstable();
        nics.dedup();
        nics
    };
    let mine = nics(&ports);
    if mine.iter().any(|&nic| shape.node(nic).kind != NodeKind::Nic) {
        return ports;
    }
    let mut sharing = Vec::new();
    for (other, candidate) in shape.nodes().iter().enumerate() {
        let other = other as u32;
        let same = candidate.is_rank && candidate.host == device.host;
        if same && (other == node || nearest(shape, other, options) == ports) {
            sharing.push(other);
        }
    }
    let position = sharing.iter().position(|&other| other == node).unwrap_or(0);
    let each = mine.len().div_ceil(sharing.len().max(1));
    let first = position * mine.len() / sharing.len().max(1);
    let own: Vec<u32> = (first..first + each).filter_map(|nic| mine.get(nic % mine.len()).copied()).collect();
    ports.into_iter().filter(|&port| own.contains(&shape.ports()[port as usize].node)).collect()
}
