//! Devices and links of an island, numbered from 0, without routes.

use super::RouteOptions;
use super::rules::DeviceContext;
use crate::fabric::NodeKind;
use crate::{Bandwidth, LinkKind, Picos};

/// A device of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeNode {
    pub kind: NodeKind,
    /// Number of its host minus that of the host of the shape's first device (wrapping).
    pub host: u32,
    pub is_rank: bool,
    /// True if the device's software relays traffic of others: NCCL does, RCCL does not.
    pub relays: bool,
    /// False for a NIC that is known to lack GPUDirect RDMA.
    pub direct: bool,
}

/// One direction of a link of a shape. As in a fabric, `2k` and `2k + 1` are opposite directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeLink {
    pub from: u32,
    pub to: u32,
    pub kind: LinkKind,
    /// Bandwidth before any slowdown: route selection ignores slowdowns.
    pub bandwidth: Option<Bandwidth>,
    pub latency: Picos,
    pub failed: bool,
}

/// A link from an island to the network: its device, and bandwidth and latency in both directions. A direction is
/// `None` if it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IslandPort {
    pub node: u32,
    pub out: Option<(Option<Bandwidth>, Picos)>,
    pub back: Option<(Option<Bandwidth>, Picos)>,
}

/// Properties of an island that determine its routes; islands with equal keys share a shape.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeKey {
    pub nodes: Vec<ShapeNode>,
    pub links: Vec<ShapeLink>,
    pub ports: Vec<IslandPort>,
}

/// Devices and links of an island.
#[derive(Debug)]
pub(super) struct ShapeGraph {
    key: ShapeKey,
    has_c2c: Vec<bool>,
    /// True for each GPU that carries MIG instances, by device number.
    carries: Vec<bool>,
    /// Links that leave each device, in id order, including failed ones, grouped by device.
    leaving: Vec<u32>,
    leaving_start: Vec<u32>,
}

impl ShapeGraph {
    pub fn new(key: ShapeKey) -> Self {
        let count = key.nodes.len();
        let mut leaving_start = vec![0u32; count + 1];
        let mut has_c2c = vec![false; count];
        let mut carries = vec![false; count];
        for link in &key.links {
            leaving_start[link.from as usize + 1] += 1;
            has_c2c[link.from as usize] |= link.kind == LinkKind::C2c;
            let kind = |node: u32| key.nodes[node as usize].kind;
            carries[link.from as usize] |= (kind(link.from), kind(link.to)) == (NodeKind::Gpu, NodeKind::Mig);
        }
        for i in 1..leaving_start.len() {
            leaving_start[i] += leaving_start[i - 1];
        }
        let mut next = leaving_start.clone();
        let mut leaving = vec![0; key.links.len()];
        for (id, link) in key.links.iter().enumerate() {
            let slot = &mut next[link.from as usize];
            leaving[*slot as usize] = id as u32;
            *slot += 1;
        }
        Self { key, has_c2c, carries, leaving, leaving_start }
    }

    /// Returns true if an island with this key has this shape.
    pub fn matches(&self, key: &ShapeKey) -> bool {
        self.key == *key
    }

    pub fn nodes(&self) -> &[ShapeNode] {
        &self.key.nodes
    }

    pub fn node(&self, node: u32) -> ShapeNode {
        self.key.nodes[node as usize]
    }

    pub fn link(&self, link: u32) -> &ShapeLink {
        &self.key.links[link as usize]
    }

    /// Number of link directions inside the island.
    pub fn link_count(&self) -> u32 {
        self.key.links.len() as u32
    }

    pub fn ports(&self) -> &[IslandPort] {
        &self.key.ports
    }

    /// Links that leave a device, including failed ones.
    pub fn outgoing_links(&self, node: u32) -> &[u32] {
        let range = self.leaving_start[node as usize] as usize..self.leaving_start[node as usize + 1] as usize;
        &self.leaving[range]
    }

    /// Returns a copy in which exactly the links for which `is_failed` is true are out of service.
    pub fn with_failures(&self, is_failed: impl Fn(&ShapeLink) -> bool) -> Self {
        let links = self.key.links.iter().map(|link| ShapeLink { failed: is_failed(link), ..*link }).collect();
        let (nodes, ports) = (self.key.nodes.clone(), self.key.ports.clone());
        Self::new(ShapeKey { nodes, links, ports })
    }

    /// Returns true if some link has failed.
    pub fn has_failures(&self) -> bool {
        self.key.links.iter().any(|link| link.failed)
    }

    /// The properties of a device that the forwarding rules use on a path from `source`.
    pub fn device_context(&self, node: u32, source: u32, options: &RouteOptions) -> DeviceContext {
        let device = self.node(node);
        let may_relay = options.relays() && self.can_relay(node) && device.host == self.node(source).host;
        DeviceContext {
            kind: device.kind,
            is_source: false,
            may_relay,
            has_c2c: self.has_c2c[node as usize],
            carries_mig: self.carries[node as usize],
        }
    }

    /// Returns true if a device is a rank whose software relays traffic of others.
    pub fn can_relay(&self, node: u32) -> bool {
        let device = self.node(node);
        device.is_rank && device.relays
    }
}
