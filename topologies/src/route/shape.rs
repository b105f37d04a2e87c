//! Shape of an island, with devices and links numbered from 0; shared by all islands that are copies of it.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::attachments::Attachments;
use super::island_routes::{IslandRoute, RouteTable};
use super::rules::Access;
use super::segment::PathSelection;
use super::shape_graph::{IslandPort, ShapeGraph, ShapeKey, ShapeLink, ShapeNode};
use super::twins::{Pair, Twins};
use super::{PathClass, PeerAccess, RouteOptions};
use crate::LinkKind;
use crate::fabric::NodeKind;

/// An island with its routes, which are computed on first use.
#[derive(Debug)]
pub(super) struct Shape {
    graph: ShapeGraph,
    inside: Vec<OnceLock<Box<RouteTable>>>,
    attachments: Vec<OnceLock<Box<Attachments>>>,
    twins: OnceLock<Twins>,
    built: OnceLock<Option<Box<Shape>>>,
    bare: OnceLock<Box<Shape>>,
}

impl Shape {
    pub fn new(key: ShapeKey) -> Self {
        Self::from_graph(ShapeGraph::new(key))
    }

    fn from_graph(graph: ShapeGraph) -> Self {
        let count = graph.nodes().len();
        let inside = std::iter::repeat_with(OnceLock::new).take(count).collect();
        let attachments = std::iter::repeat_with(OnceLock::new).take(count).collect();
        let (twins, built, bare) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { graph, inside, attachments, twins, built, bare }
    }

    /// Returns true if an island with this key has this shape.
    pub fn matches(&self, key: &ShapeKey) -> bool {
        self.graph.matches(key)
    }

    /// The devices and links of the island, without routes.
    pub fn graph(&self) -> &ShapeGraph {
        &self.graph
    }

    pub fn nodes(&self) -> &[ShapeNode] {
        self.graph.nodes()
    }

    pub fn node(&self, node: u32) -> ShapeNode {
        self.graph.node(node)
    }

    pub fn link(&self, link: u32) -> &ShapeLink {
        self.graph.link(link)
    }

    /// Number of link directions inside the island.
    pub fn link_count(&self) -> u32 {
        self.graph.link_count()
    }

    pub fn ports(&self) -> &[IslandPort] {
        self.graph.ports()
    }

    /// Links that leave a device, including failed ones.
    pub fn outgoing_links(&self, node: u32) -> &[u32] {
        self.graph.outgoing_links(node)
    }

    /// Returns true if a device is a rank whose software relays traffic of others.
    pub fn can_relay(&self, node: u32) -> bool {
        self.graph.can_relay(node)
    }

    /// The shape with all inside links in service.
    pub fn as_built(&self) -> &Self {
        let build = || Box::new(Self::from_graph(self.graph.with_failures(|_| false)));
        let built = self.built.get_or_init(|| self.graph.has_failures().then(build));
        built.as_deref().unwrap_or(self)
    }

    /// The shape with all NVLinks out of service; links have the same numbers.
    pub fn without_nvlinks(&self) -> &Self {
        self.bare.get_or_init(|| {
            let fails = |link: &ShapeLink| link.failed || link.kind == LinkKind::Nvlink;
            Box::new(Self::from_graph(self.graph.with_failures(fails)))
        })
    }

    /// The groups of interchangeable devices of the island.
    pub fn twins(&self) -> &Twins {
        self.twins.get_or_init(|| Twins::new(&self.graph))
    }

    /// The routes from a device to all others of the island.
    fn routes_from(&self, source: u32, options: &RouteOptions) -> &RouteTable {
        self.inside[source as usize].get_or_init(|| Box::new(RouteTable::new(&self.graph, source, options)))
    }

    /// Returns the connections of a device to the network, which `compute` finds on the first call.
    pub(super) fn cached_attachments(&self, node: u32, compute: impl FnOnce() -> Attachments) -> &Attachments {
        self.attachments[node as usize].get_or_init(|| Box::new(compute()))
    }

    /// The route between two devices of the island, direct or staged as peer access permits.
    ///
    /// The search runs once for all twins of the two devices, because *n* devices on a switch have n² equivalent
    /// routes.
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
            // If there are too many paths, one of them is selected by link numbers, so twins do not have equivalent
            // routes.
            self.search_route(twins, options).map(Cow::Borrowed)
        } else {
            Some(Cow::Owned(self.twins().map_route(&self.graph, route, pair, twins)))
        }
    }

    /// The route between two devices, found by the search from the first one; `None` if its class is beyond
    /// [`PathClass::Sys`].
    pub(super) fn search_route(&self, pair: Pair, options: &RouteOptions) -> Option<&IslandRoute> {
        let access = self.access(pair, options);
        self.routes_from(pair.from, options)
            .to(&self.graph, pair.to, access, options)
            .filter(|route| route.class <= PathClass::Sys)
    }

    /// Returns true if traffic between the two devices is staged in host memory because they have no peer access.
    pub fn is_staged(&self, from: u32, to: u32, options: &RouteOptions) -> bool {
        self.access(Pair { from, to }, options) == Access::Staged
    }

    /// The memory access that is possible between two devices.
    fn access(&self, pair: Pair, options: &RouteOptions) -> Access {
        let (a, b) = (self.node(pair.from), self.node(pair.to));
        let peers = a.kind.is_rank() && b.kind.is_rank() && pair.from != pair.to;
        let mig = a.kind == NodeKind::Mig || b.kind == NodeKind::Mig;
        let nic = |x: ShapeNode, y: ShapeNode| x.kind == NodeKind::Nic && y.kind.is_rank();
        let to_nic = nic(a, b) || nic(b, a);
        let is_far = || {
            let direct = self.routes_from(pair.from, options).to(&self.graph, pair.to, Access::Direct, options);
            direct.is_some_and(|route| route.class > PathClass::Pxb)
        };
        let is_limited = options.p2p == PeerAccess::Switches;
        if (peers && (mig || !options.peer_access() || is_limited && is_far()))
            || (to_nic && !(options.direct_nics() && a.direct && b.direct))
        {
            Access::Staged
        } else {
            Access::Direct
        }
    }
}
