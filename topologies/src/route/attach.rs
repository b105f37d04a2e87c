//! Connections of devices to the network, and the assignment of NICs to GPUs.
//!
//! A GPU's own NICs are the nearest ones. Several GPUs with the same nearest NICs divide them among each other, as in
//! NCCL (`NCCL_NETDEVS_POLICY=AUTO`: number of NICs divided by number of GPUs, rounded up). Incoming traffic of a GPU
//! uses its own NIC. Outgoing traffic may use a NIC of a neighbour if that saves network hops, over a shared PCIe
//! switch or by NVLink through the neighbour (PXN).
//!
//! NICs are assigned as if no link had failed. A GPU that has lost all its NICs uses as many NICs of its neighbours as
//! it had (one if it had none). NICs that the GPU reaches without a relay are preferred; otherwise the neighbour relays
//! by NVLink. Incoming traffic is relayed only if no other route exists.

use std::borrow::Cow;

use super::attachments::{Attachment, Attachments};
use super::island_routes::IslandRoute;
use super::segment::bandwidth_key;
use super::shape::Shape;
use super::substitute_ports::SubstitutePorts;
use super::{PathClass, RouteOptions};
use crate::fabric::NodeKind;

impl Shape {
    /// Returns the connections of a device to the network, which are computed on the first call.
    pub fn attachments(&self, node: u32, options: &RouteOptions) -> &Attachments {
        self.cached_attachments(node, || attachments(self, node, options))
    }
}

/// Computes the routes of a device to and from the network.
fn attachments(shape: &Shape, node: u32, options: &RouteOptions) -> Attachments {
    let assigned = assigned_ports(shape.as_built(), node, options);
    let foreign = |port: u32| u8::from(!assigned.contains(&port));
    let mut exits = Vec::new();
    let mut entries = Vec::new();
    for (number, port) in shape.ports().iter().enumerate() {
        let number = number as u32;
        if let (Some((bandwidth, latency)), Some((class, route))) = (port.out, exit(shape, node, number, options)) {
            exits.push(attachment(number, foreign(number), class, &route, bandwidth, latency));
        }
        if let (Some((bandwidth, latency)), Some((class, route))) = (port.back, entry(shape, node, number, options)) {
            let foreign = if class == PathClass::Pxn { 2 } else { foreign(number) };
            entries.push(attachment(number, foreign, class, &route, bandwidth, latency));
        }
    }
    exits.sort_by_key(|exit| (exit.tier, exit.foreign, exit.class, exit.hops, exit.port));
    entries.sort_by_key(|entry| (entry.foreign, entry.tier, entry.class, entry.hops, entry.port));
    let port_device = |port: &u32| shape.ports().get(*port as usize).map(|port| port.node);
    let first = assigned.iter().filter_map(port_device).max().unwrap_or(node) + 1;
    let substitutes = SubstitutePorts::new(assigned.len().max(1) as u32, first, shape.nodes().len() as u32);
    Attachments { exits, entries, substitutes }
}

fn attachment(
    port: u32,
    foreign: u8,
    class: PathClass,
    route: &IslandRoute,
    bandwidth: Option<crate::Bandwidth>,
    latency: crate::Picos,
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
        hops: route.segment.hops + 1,
        path_count: route.segment.paths,
        bandwidth: route.segment.bandwidth.min(bandwidth_key(bandwidth)),
        latency: route.segment.latency.saturating_add(latency.0),
    }
}

/// The route from a device to a port, and its path class; `None` if there is no route.
pub(super) fn exit<'s>(
    shape: &'s Shape,
    node: u32,
    port: u32,
    options: &RouteOptions,
) -> Option<(PathClass, Cow<'s, IslandRoute>)> {
    let at = shape.ports().get(port as usize)?.node;
    let route = shape.route_between(node, at, options)?;
    if at == node || !shape.node(at).kind.is_rank() {
        return Some((route.class, route));
    }
    // A GPU with its own network port sends for a neighbour, which is a relay like that of a GPU with a NIC.
    (may_relay(shape, at, node, options) && route.class == PathClass::Nvl).then_some((PathClass::Pxn, route))
}

/// The route from a port to a device, and its class; [`PathClass::Pxn`] if a neighbour relays incoming traffic.
pub(super) fn entry<'s>(
    shape: &'s Shape,
    node: u32,
    port: u32,
    options: &RouteOptions,
) -> Option<(PathClass, Cow<'s, IslandRoute>)> {
    let at = shape.ports().get(port as usize)?.node;
    if at != node && shape.node(at).kind.is_rank() {
        let route = shape.route_between(at, node, options)?;
        return (may_relay(shape, at, node, options) && route.class == PathClass::Nvl)
            .then_some((PathClass::Pxn, route));
    }
    if let Some(route) = shape.route_between(at, node, options) {
        return Some((route.class, route));
    }
    relayed_entry(shape, node, at, options).map(|route| (PathClass::Pxn, Cow::Owned(route)))
}

/// The route from a NIC to a device through the neighbour nearest to the NIC.
fn relayed_entry(shape: &Shape, node: u32, nic: u32, options: &RouteOptions) -> Option<IslandRoute> {
    let relay_through = |(middle, _): (u32, _)| {
        let is_direct = may_relay(shape, middle, node, options) && !shape.is_staged(nic, middle, options);
        let arriving = is_direct.then(|| shape.route_between(nic, middle, options)).flatten()?;
        let onward = shape.route_between(middle, node, options)?;
        let is_near = arriving.class <= PathClass::P2c && onward.class == PathClass::Nvl;
        is_near.then(|| (arriving.class, arriving.segment.followed_by(&onward.segment)))
    };
    let routes = (0u32..).zip(shape.nodes()).filter_map(relay_through);
    let (_, segment) = routes.min_by_key(|(class, segment)| (*class, segment.hops))?;
    Some(IslandRoute { class: PathClass::Pxn, segment })
}

/// Returns true if a neighbour may relay traffic between a device and the network.
fn may_relay(shape: &Shape, relay: u32, device: u32, options: &RouteOptions) -> bool {
    options.relays() && relay != device && shape.can_relay(relay) && shape.node(relay).host == shape.node(device).host
}

/// Ports in the nearest path class of a device, without a relay, in port order.
fn nearest(shape: &Shape, node: u32, options: &RouteOptions) -> Vec<u32> {
    let mut best = PathClass::Dis;
    let mut ports = Vec::new();
    for port in 0..shape.ports().len() as u32 {
        let Some((class, _)) = entry(shape, node, port, options) else { continue };
        if class == PathClass::Pxn {
            continue;
        }
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

/// The ports assigned to a device: its share of the nearest ones.
fn assigned_ports(shape: &Shape, node: u32, options: &RouteOptions) -> Vec<u32> {
    let ports = nearest(shape, node, options);
    let device = shape.node(node);
    if ports.len() < 2 || !device.is_rank {
        return ports;
    }
    let nics = |ports: &[u32]| {
        let mut nics: Vec<u32> = ports.iter().map(|&port| shape.ports()[port as usize].node).collect();
        // The order of the NICs decides the assignment, so it must not depend on the order of their cables.
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
    let assigned: Vec<u32> = (first..first + each).filter_map(|nic| mine.get(nic % mine.len()).copied()).collect();
    ports.into_iter().filter(|&port| assigned.contains(&shape.ports()[port as usize].node)).collect()
}
