//! Construction of a [`Fabric`] device by device and link by link.

use petgraph::graph::NodeIndex;
use rustc_hash::FxHashMap;

use super::{Fabric, Figures, HostId, Link, LinkId, LinkKind, Node, NodeId, NodeKind};
use crate::{Bandwidth, Picos};

/// Builder that collects devices and links; [`FabricBuilder::finish`] returns the fabric.
#[derive(Debug)]
pub struct FabricBuilder {
    fabric: Fabric,
    host_ids: FxHashMap<Box<str>, HostId>,
}

/// Properties of a link in both directions; `a` and `b` are its ends.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Technology of the link.
    pub kind: LinkKind,
    /// Number of lanes or bonded links; the bandwidths below are sums over all of them.
    pub lanes: u16,
    /// Bandwidth from `a` to `b`; `None` is unlimited.
    pub forward: Option<Bandwidth>,
    /// Bandwidth from `b` to `a`; `None` is unlimited.
    pub backward: Option<Bandwidth>,
    /// Latency of the first byte, equal in both directions.
    pub latency: Picos,
}

impl LinkSpec {
    /// A link with equal bandwidth in both directions and one lane.
    #[must_use]
    pub fn symmetric(kind: LinkKind, bandwidth: Bandwidth, latency: Picos) -> Self {
        Self { kind, lanes: 1, forward: Some(bandwidth), backward: Some(bandwidth), latency }
    }

    /// Returns this link with `lanes` lanes; its bandwidth is unchanged.
    #[must_use]
    pub fn lanes(self, lanes: u16) -> Self {
        Self { lanes, ..self }
    }
}

impl FabricBuilder {
    /// Creates a builder of a fabric with this name; the fabric has no devices yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let fabric = Fabric {
            name: name.to_owned(),
            graph: petgraph::graph::DiGraph::new(),
            by_id: FxHashMap::default(),
            hosts: Vec::new(),
            gpus: Vec::new(),
            host_grid: Vec::new(),
            routing: crate::route::Routing::default(),
            sources: Vec::new(),
            warnings: Vec::new(),
            gpu_candidates: Vec::new(),
            drives: None,
            intact: super::as_built::IntactCopy::default(),
        };
        Self { fabric, host_ids: FxHashMap::default() }
    }

    /// Creates a builder of a fabric that is derived from another, with another name: it has the sources, warnings,
    /// candidate GPU models and routing settings of `fabric`, and no devices yet.
    pub(crate) fn derived_from(fabric: &Fabric, name: &str) -> Self {
        let mut builder = Self::new(name);
        builder.fabric.sources.clone_from(&fabric.sources);
        builder.fabric.warnings.clone_from(&fabric.warnings);
        builder.fabric.gpu_candidates.clone_from(&fabric.gpu_candidates);
        builder.fabric.drives = fabric.drives;
        builder.fabric.routing = fabric.routing;
        builder
    }

    /// Reopens a finished fabric to add to it.
    #[must_use]
    pub fn reopen(fabric: Fabric) -> Self {
        let host_ids = (0..).map(HostId).zip(&fabric.hosts).map(|(id, name)| (name.clone(), id)).collect();
        // The copy as built would miss what is added.
        let intact = super::as_built::IntactCopy::default();
        Self { fabric: Fabric { intact, ..fabric }, host_ids }
    }

    /// Reserves capacity for this many additional devices and link directions.
    pub fn reserve(&mut self, nodes: usize, links: usize) {
        self.fabric.graph.reserve_nodes(nodes);
        self.fabric.graph.reserve_edges(links);
        self.fabric.by_id.reserve(nodes);
    }

    /// Sets the side lengths of the grid (torus) of the hosts.
    pub fn set_host_grid(&mut self, sides: Vec<u32>) {
        self.fabric.host_grid = sides;
    }

    /// Sets the machine settings that restrict routes.
    pub fn set_routing(&mut self, routing: crate::route::Routing) {
        self.fabric.routing = routing;
    }

    /// Takes one direction of a link out of service.
    pub fn fail(&mut self, link: LinkId) {
        if let Some(link) = self.fabric.graph.edge_weight_mut(petgraph::graph::EdgeIndex::new(link.0 as usize)) {
            link.failed = true;
        }
    }

    /// Sets the failures and slowed rates of both directions of a link; the first element of each array is for `link`,
    /// the second for its reverse. `failed` takes a direction out of service; `slowed` replaces its bandwidth, and
    /// `None` leaves the bandwidth unchanged.
    pub(crate) fn degrade(&mut self, link: LinkId, failed: [bool; 2], slowed: [Option<Bandwidth>; 2]) {
        for ((direction, failed), slowed) in [link, link.reverse()].into_iter().zip(failed).zip(slowed) {
            let index = petgraph::graph::EdgeIndex::new(direction.0 as usize);
            let Some(link) = self.fabric.graph.edge_weight_mut(index) else { continue };
            link.failed |= failed;
            link.bandwidth = slowed.or(link.bandwidth);
        }
    }

    /// Adds a copy of a link of another fabric between two devices of this one, in both directions, with its failures
    /// and slowed rates.
    pub(crate) fn copy_link(&mut self, fabric: &Fabric, link: LinkId, a: NodeId, b: NodeId) -> LinkId {
        let both = [fabric.link(link), fabric.link(link.reverse())];
        let copy = self.link(a, b, &fabric.link_spec(link));
        self.degrade(copy, both.map(|link| link.failed), both.map(|link| link.bandwidth));
        copy
    }

    /// Removes a GPU from the ranks. The GPU stays in the fabric as an idle GPU.
    pub fn set_idle(&mut self, gpu: NodeId) {
        self.fabric.gpus.retain(|&rank| rank != gpu);
    }

    /// Adds an entry to [`Fabric::sources`], the origins of the figures.
    pub fn add_source(&mut self, source: impl Into<String>) {
        self.fabric.sources.push(source.into());
    }

    /// Adds an entry to [`Fabric::warnings`].
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.fabric.warnings.push(warning.into());
    }

    /// Returns the host of this name; creates it if it does not exist.
    pub fn host(&mut self, name: &str) -> HostId {
        if let Some(&id) = self.host_ids.get(name) {
            return id;
        }
        let id = HostId(self.fabric.hosts.len() as u32);
        self.fabric.hosts.push(name.into());
        self.host_ids.insert(name.into(), id);
        id
    }

    /// Adds a device; returns `None` if the id is already in use. Devices that can be ranks become ranks in the order
    /// of addition.
    pub fn node(&mut self, id: &str, kind: NodeKind, host: HostId, figures: Figures) -> Option<NodeId> {
        self.add_node(Node { id: id.into(), kind, host, figures, attributes: Box::default() })
    }

    /// Variant of [`Self::node`] with all properties of the device; returns `None` if the id is already in use.
    pub fn add_node(&mut self, mut node: Node) -> Option<NodeId> {
        if self.fabric.by_id.contains_key(&node.id) {
            return None;
        }
        let id = NodeId(self.fabric.graph.node_count() as u32);
        self.fabric.by_id.insert(node.id.clone(), id);
        if node.kind.is_rank() {
            self.fabric.gpus.push(id);
        }
        if node.figures.is_unknown() {
            node.figures = Figures::None;
        }
        self.fabric.graph.add_node(node);
        Some(id)
    }

    /// Looks up a device added so far by its textual id; `None` if there is none.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<NodeId> {
        self.fabric.find(id)
    }

    /// The added device with this id.
    #[must_use]
    pub fn get(&self, id: NodeId) -> &Node {
        self.fabric.node(id)
    }

    /// Sets the candidate models of the GPUs; empty if the model is known.
    pub fn gpu_candidates(&mut self, models: Vec<String>) {
        self.fabric.gpu_candidates = models;
    }

    /// Ids of all devices added so far, in order of addition.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        (0..self.fabric.node_count() as u32).map(NodeId).collect()
    }

    /// Links that leave a device and have not failed.
    pub(crate) fn outgoing_links(&self, id: NodeId) -> Vec<&Link> {
        self.fabric.outgoing_links(id).into_iter().map(|link| self.fabric.link(link)).collect()
    }

    /// Devices at the other ends of a device's working links, one entry per link.
    pub(crate) fn neighbours(&self, id: NodeId) -> Vec<NodeId> {
        self.outgoing_links(id).into_iter().map(|link| link.to).collect()
    }

    /// Replaces the figures of a device.
    pub fn set_figures(&mut self, id: NodeId, figures: Figures) {
        if let Some(node) = self.fabric.graph.node_weight_mut(NodeIndex::new(id.0 as usize)) {
            node.figures = figures;
        }
    }

    /// Adds a link and returns its direction from `a` to `b`; the other direction is its [`LinkId::reverse`]. A link
    /// between a GPU and a MIG instance removes the GPU from the ranks, because its instances replace it.
    pub fn link(&mut self, a: NodeId, b: NodeId, spec: &LinkSpec) -> LinkId {
        for (gpu, instance) in [(a, b), (b, a)] {
            if (self.get(gpu).kind, self.get(instance).kind) == (NodeKind::Gpu, NodeKind::Mig) {
                self.fabric.gpus.retain(|&rank| rank != gpu);
            }
        }
        let (x, y) = (NodeIndex::new(a.0 as usize), NodeIndex::new(b.0 as usize));
        let direction = |from, to, bandwidth| Link {
            from,
            to,
            kind: spec.kind,
            lanes: spec.lanes,
            bandwidth,
            nominal_bandwidth: bandwidth,
            latency: spec.latency,
            failed: false,
        };
        let forward = self.fabric.graph.add_edge(x, y, direction(a, b, spec.forward));
        self.fabric.graph.add_edge(y, x, direction(b, a, spec.backward));
        LinkId(forward.index() as u32)
    }

    /// Devices that are ranks so far, in rank order.
    #[must_use]
    pub fn ranks(&self) -> &[NodeId] {
        &self.fabric.gpus
    }

    /// Replaces the rank order, for files that number GPUs in another order than they list them.
    pub fn set_rank_order(&mut self, gpus: Vec<NodeId>) {
        self.fabric.gpus = gpus;
    }

    /// Returns the finished fabric.
    #[must_use]
    pub fn finish(self) -> Fabric {
        self.fabric
    }
}
