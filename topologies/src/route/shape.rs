//! Shape of an island, with devices and links numbered from 0; shared by all islands that are copies of it.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::PathClass;
use super::RouteOptions;
use super::attach::Attachments;
use super::island_routes::{IslandRoute, RouteTable};
use super::islands::ShapeKey;
use super::rules::{Access, DeviceContext};
use super::segment::PathSelection;
use super::twins::{Pair, Twins};
use crate::fabric::NodeKind;
use crate::{Bandwidth, LinkKind, Picos};

/// A device of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeNode {
    pub kind: NodeKind,
    /// Host, relative to the host of the shape's first device.
    pub host: u32,
    pub is_rank: bool,
    /// True where the device's software relays traffic of others: NCCL does, RCCL does not.
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
    /// Bandwidth before any slowdown: route selection does not know that a link is slow.
    pub bandwidth: Option<Bandwidth>,
    pub latency: Picos,
    pub failed: bool,
}

/// A link from an island to the network: its device, and bandwidth and latency in both directions. A direction is
/// `None` if it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Port {
    pub node: u32,
    pub out: Option<(Option<Bandwidth>, Picos)>,
    pub back: Option<(Option<Bandwidth>, Picos)>,
}

/// An island with its routes, which are computed on first use.
#[derive(Debug)]
pub(super) struct Shape {
    key: ShapeKey,
    has_c2c: Vec<bool>,
    /// GPUs that carry MIG instances.
    carries: Vec<bool>,
    /// Links that leave each device, in id order, including failed ones.
    leaving: Vec<u32>,
    leaving_start: Vec<u32>,
    inside: Vec<OnceLock<Box<RouteTable>>>,
    attachments: Vec<OnceLock<Box<Attachments>>>,
    twins: OnceLock<Twins>,
    built: OnceLock<Option<Box<Shape>>>,
    bare: OnceLock<Box<Shape>>,
}

impl Shape {
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
        let inside = std::iter::repeat_with(OnceLock::new).take(count).collect();
        let attachments = std::iter::repeat_with(OnceLock::new).take(count).collect();
        let (twins, built, bare) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { key, has_c2c, carries, leaving, leaving_start, inside, attachments, twins, built, bare }
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

    pub fn ports(&self) -> &[Port] {
        &self.key.ports
    }

    /// Links that leave a device, including failed ones.
    pub fn outgoing_links(&self, node: u32) -> &[u32] {
        let range = self.leaving_start[node as usize] as usize..self.leaving_start[node as usize + 1] as usize;
        &self.leaving[range]
    }

    /// The shape with all inside links in service.
    pub fn as_built(&self) -> &Self {
        let built = self.built.get_or_init(|| {
            self.key.links.iter().any(|link| link.failed).then(|| {
                let links = self.key.links.iter().map(|&link| ShapeLink { failed: false, ..link }).collect();
                let (nodes, ports) = (self.key.nodes.clone(), self.key.ports.clone());
                Box::new(Self::new(ShapeKey { nodes, links, ports }))
            })
        });
        built.as_deref().unwrap_or(self)
    }

    /// The shape with all NVLinks out of service; links have the same numbers.
    pub fn without_nvlinks(&self) -> &Self {
        self.bare.get_or_init(|| {
            let fails = |link: &ShapeLink| link.failed || link.kind == LinkKind::Nvlink;
            let links = self.key.links.iter().map(|link| ShapeLink { failed: fails(link), ..*link }).collect();
            let (nodes, ports) = (self.key.nodes.clone(), self.key.ports.clone());
            Box::new(Self::new(ShapeKey { nodes, links, ports }))
        })
    }

    /// The interchangeable devices.
    pub fn twins(&self) -> &Twins {
        self.twins.get_or_init(|| Twins::new(self))
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

    /// The routes from a device to all others of the island.
    fn routes_from(&self, source: u32, options: &RouteOptions) -> &RouteTable {
        self.inside[source as usize].get_or_init(|| Box::new(RouteTable::new(self, source, options)))
    }

    /// The connections of a device to the network.
    pub fn attachments(&self, node: u32, options: &RouteOptions) -> &Attachments {
        self.attachments[node as usize].get_or_init(|| Box::new(Attachments::new(self, node, options)))
    }

    /// The route between two devices of the island, direct or staged as peer access permits.
    ///
    /// The search runs once for all twins of the two devices: n devices of a switch have n² equivalent routes.
    pub fn route_between(&self, from: u32, to: u32, options: &RouteOptions) -> Option<Cow<'_, IslandRoute>> {
        let twins = Pair { from, to };
        if from == to {
            return self.search_route(twins, options).map(Cow::Borrowed);
        }
        let pair = self.twins().representative_pair(from, to);
        let route = self.search_route(pair, options)?;
        if pair == twins {
            Some(Cow::Borrowed(route))
        } else if route.segment.selection == PathSelection::One {
            // The selection of one of too many paths depends on link numbers.
            self.search_route(twins, options).map(Cow::Borrowed)
        } else {
            Some(Cow::Owned(self.twins().map_route(self, route, pair, twins)))
        }
    }

    /// The route between two devices from the search of the first one; `None` beyond [`PathClass::Sys`].
    pub(super) fn search_route(&self, pair: Pair, options: &RouteOptions) -> Option<&IslandRoute> {
        let access = self.access(pair.from, pair.to, options);
        self.routes_from(pair.from, options)
            .to(self, pair.to, access, options)
            .filter(|route| route.class <= PathClass::Sys)
    }

    /// Returns true if traffic between the two devices is staged in host memory because they cannot access each
    /// other's.
    pub fn is_staged(&self, from: u32, to: u32, options: &RouteOptions) -> bool {
        self.access(from, to, options) == Access::Staged
    }

    /// The memory access that is possible between two devices.
    fn access(&self, from: u32, to: u32, options: &RouteOptions) -> Access {
        let (a, b) = (self.node(from), self.node(to));
        let peers = a.kind.is_rank() && b.kind.is_rank() && from != to;
        let mig = a.kind == NodeKind::Mig || b.kind == NodeKind::Mig;
        let nic = |x: ShapeNode, y: ShapeNode| x.kind == NodeKind::Nic && y.kind.is_rank();
        let to_nic = nic(a, b) || nic(b, a);
        if (peers && (mig || !options.peer_access())) || (to_nic && !(options.direct_nics() && a.direct && b.direct)) {
            Access::Staged
        } else {
            Access::Direct
        }
    }
}
