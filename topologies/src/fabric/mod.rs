//! The fabric: devices, links, hosts and the rank order of its GPUs.
//!
//! A `Fabric` is immutable once built. Failures and slowed links are modelled as a mask on the links, so that ids stay
//! dense and a degraded fabric can be compared with the healthy one id by id.

mod as_built;
mod builder;
mod degrade;
mod device;
mod drives;
mod link;
mod names;
mod suggestions;

use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;
use rustc_hash::FxHashMap;

pub use builder::{FabricBuilder, LinkSpec};
pub use device::{Attributes, CpuArch, CpuFigures, Figures, GpuFigures, NicFigures, Node, NodeKind, SwitchFigures};
pub use drives::HostDrives;
pub use link::{Link, LinkKind};
pub use suggestions::suggest_names;

use crate::Bandwidth;
use crate::route::Routing;

/// Id of a device (a vertex of the fabric). Ids are dense, from 0, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Id of one direction of a link. Ids are dense, from 0. The two directions of a link have adjacent ids (`a->b` even,
/// `b->a` odd).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Id of a host (a machine). Ids are dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl LinkId {
    /// The opposite direction of the same link.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// A fabric: a directed multigraph of devices and links.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(crate) name: String,
    pub(crate) graph: DiGraph<Node, Link>,
    pub(crate) by_id: FxHashMap<Box<str>, NodeId>,
    pub(crate) hosts: Vec<Box<str>>,
    pub(crate) gpus: Vec<NodeId>,
    pub(crate) host_grid: Vec<u32>,
    pub(crate) routing: Routing,
    pub(crate) sources: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) gpu_candidates: Vec<String>,
    pub(crate) drives: Option<HostDrives>,
    pub(crate) intact: as_built::IntactCopy,
}

impl Fabric {
    /// Name of the fabric: that of the preset, the spec or the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Origins of the figures (data sheets, measurements, files), one entry each.
    #[must_use]
    pub fn sources(&self) -> &[String] {
        &self.sources
    }

    /// Warnings of the reader (a tab in a matrix that NCCL itself rejects, an assumed link).
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Candidate models of the GPUs if the source file does not identify the model: names of
    /// [`gpus::models`](crate::gpus::models). Empty if the model is known.
    #[must_use]
    pub fn gpu_candidates(&self) -> &[String] {
        &self.gpu_candidates
    }

    /// Devices that are ranks (GPUs, MIG instances, accelerators), in rank order.
    #[must_use]
    pub fn gpus(&self) -> &[NodeId] {
        &self.gpus
    }

    /// Side lengths of the grid (torus) of the hosts; host numbers vary fastest along the first side. Empty if the
    /// network is not a torus, and for fabrics read from a file that lists links.
    #[must_use]
    pub fn host_grid(&self) -> &[u32] {
        &self.host_grid
    }

    /// Machine settings that restrict the routes of this fabric, independent of the options of a router.
    #[must_use]
    pub fn routing(&self) -> Routing {
        self.routing
    }

    /// Returns a copy of the fabric whose machine settings are replaced by these.
    #[must_use]
    pub fn with_routing(&self, routing: Routing) -> Self {
        Self { routing, ..self.clone() }
    }

    /// GPUs that are neither ranks nor carriers of MIG instances, in id order.
    #[must_use]
    pub fn idle_gpus(&self) -> Vec<NodeId> {
        let mut used: rustc_hash::FxHashSet<NodeId> = self.gpus.iter().copied().collect();
        used.extend(
            self.links().filter(|(_, link)| self.node(link.to).kind == NodeKind::Mig).map(|(_, link)| link.from),
        );
        let idle = |(id, node): &(NodeId, &Node)| node.kind.is_rank() && !used.contains(id);
        self.nodes().filter(idle).map(|(id, _)| id).collect()
    }

    /// Names of the hosts, indexed by [`HostId`].
    #[must_use]
    pub fn hosts(&self) -> &[Box<str>] {
        &self.hosts
    }

    /// Groups devices by host. Hosts are in order of first appearance in `devices`, as are the devices of each host.
    #[must_use]
    pub fn group_by_host(&self, devices: &[NodeId]) -> Vec<Vec<NodeId>> {
        let mut host_indices: FxHashMap<HostId, usize> = FxHashMap::default();
        let mut hosts: Vec<Vec<NodeId>> = Vec::new();
        for &device in devices {
            let index = *host_indices.entry(self.node(device).host).or_insert(hosts.len());
            match hosts.get_mut(index) {
                Some(host) => host.push(device),
                None => hosts.push(vec![device]),
            }
        }
        hosts
    }

    /// Largest number of these devices on one host; at least 1.
    #[must_use]
    pub fn max_devices_per_host(&self, devices: &[NodeId]) -> u32 {
        let mut counts = vec![0; self.hosts.len()];
        for &device in devices {
            if let Some(count) = counts.get_mut(self.node(device).host.0 as usize) {
                *count += 1;
            }
        }
        counts.into_iter().max().unwrap_or(1).max(1)
    }

    /// Number of devices of all kinds.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// Number of link directions (twice the number of links).
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.graph.edge_count()
    }

    /// The device with this id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.graph[NodeIndex::new(id.0 as usize)]
    }

    /// Specification of a link in both directions, before any slowdown or failure; `link` is its forward direction.
    pub(crate) fn link_spec(&self, link: LinkId) -> LinkSpec {
        let (forward, backward) = (self.link(link), self.link(link.reverse()));
        LinkSpec {
            kind: forward.kind,
            lanes: forward.lanes,
            forward: forward.nominal_bandwidth,
            backward: backward.nominal_bandwidth,
            latency: forward.latency,
        }
    }

    /// The link direction with this id.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.graph[EdgeIndex::new(id.0 as usize)]
    }

    /// All devices with their ids, in id order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.graph.raw_nodes().iter().enumerate().map(|(i, node)| (NodeId(i as u32), &node.weight))
    }

    /// All link directions with their ids, in id order.
    pub fn links(&self) -> impl ExactSizeIterator<Item = (LinkId, &Link)> {
        self.graph.raw_edges().iter().enumerate().map(|(i, edge)| (LinkId(i as u32), &edge.weight))
    }

    /// All links, in id order: the id of the direction `a->b`, and the directions `a->b` and `b->a`.
    pub fn link_pairs(&self) -> impl ExactSizeIterator<Item = (LinkId, [&Link; 2])> {
        let (pairs, _) = self.graph.raw_edges().as_chunks::<2>();
        pairs
            .iter()
            .enumerate()
            .map(|(i, [forward, backward])| (LinkId(2 * i as u32), [&forward.weight, &backward.weight]))
    }

    /// The two ends of a link direction: from, to.
    #[must_use]
    pub fn ends(&self, id: LinkId) -> (NodeId, NodeId) {
        let link = self.link(id);
        (link.from, link.to)
    }

    /// Link directions that leave a device and have not failed, in id order.
    #[must_use]
    pub fn outgoing_links(&self, id: NodeId) -> Vec<LinkId> {
        let mut links: Vec<LinkId> = self
            .graph
            .edges(NodeIndex::new(id.0 as usize))
            .filter(|edge| !edge.weight().failed)
            .map(|edge| LinkId(edge.id().index() as u32))
            .collect();
        links.sort_unstable();
        links
    }

    /// Link directions that leave a device, including those that have failed, in no particular order.
    pub fn built_links(&self, id: NodeId) -> impl Iterator<Item = LinkId> + '_ {
        self.graph.edges(NodeIndex::new(id.0 as usize)).map(|edge| LinkId(edge.id().index() as u32))
    }

    /// Looks up a device by its textual id (`gpu0`, `n3/gpu0`).
    #[must_use]
    pub fn find(&self, id: &str) -> Option<NodeId> {
        self.by_id.get(id).copied()
    }

    /// Sum of the bandwidths of the links that leave a device and have not failed; `None` if there is no such link or
    /// one of them is unlimited.
    #[must_use]
    pub fn port_bandwidth(&self, id: NodeId) -> Option<Bandwidth> {
        let links = self.outgoing_links(id);
        if links.is_empty() {
            return None;
        }
        links.into_iter().map(|link| self.link(link).bandwidth.map(|b| b.0)).sum::<Option<u64>>().map(Bandwidth)
    }
}
