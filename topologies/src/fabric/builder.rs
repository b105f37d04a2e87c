//! Builds a [`Fabric`] vertex by vertex and link by link, refusing what cannot be.

use petgraph::graph::NodeIndex;
use rustc_hash::FxHashMap;

use super::{Fabric, Figures, HostId, Link, LinkId, LinkKind, Node, NodeId, NodeKind};
use crate::{Bandwidth, Picos};

/// Collects vertices and links; [`FabricBuilder::finish`] makes the fabric.
#[derive(Debug)]
pub struct FabricBuilder {
    fabric: Fabric,
    host_ids: FxHashMap<Box<str>, HostId>,
}

/// The two directions of a link and what they share.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Technology.
    pub kind: LinkKind,
    /// Lanes or bonded links.
    pub lanes: u16,
    /// Bandwidth from `a` to `b`; `None` is unlimited.
    pub forward: Option<Bandwidth>,
    /// Bandwidth from `b` to `a`.
    pub backward: Option<Bandwidth>,
    /// Latency of both directions.
    pub latency: Picos,
}

impl LinkSpec {
    /// A link with the same bandwidth both ways and one lane.
    #[must_use]
    pub fn symmetric(kind: LinkKind, bandwidth: Bandwidth, latency: Picos) -> Self {
        Self { kind, lanes: 1, forward: Some(bandwidth), backward: Some(bandwidth), latency }
    }

    /// The same with a lane count.
    #[must_use]
    pub fn lanes(self, lanes: u16) -> Self {
        Self { lanes, ..self }
    }
}

impl FabricBuilder {
    /// An empty fabric of this name.
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
        };
        Self { fabric, host_ids: FxHashMap::default() }
    }

    /// A finished fabric, to be added to.
    #[must_use]
    pub fn reopen(fabric: Fabric) -> Self {
        let host_ids = (0..).map(HostId).zip(&fabric.hosts).map(|(id, name)| (name.clone(), id)).collect();
        Self { fabric, host_ids }
    }

    /// Makes room for this many more vertices and link directions.
    pub fn reserve(&mut self, nodes: usize, links: usize) {
        self.fabric.graph.reserve_nodes(nodes);
        self.fabric.graph.reserve_edges(links);
        self.fabric.by_id.reserve(nodes);
    }

    /// Says that the hosts stand in a grid of these sides.
    pub fn host_grid(&mut self, sides: Vec<u32>) {
        self.fabric.host_grid = sides;
    }

    /// States settings of the machine that restrict its routes.
    pub fn routing(&mut self, routing: crate::route::Routing) {
        self.fabric.routing = routing;
    }

    /// Takes one direction of a link out of service.
    pub fn fail(&mut self, link: LinkId) {
        if let Some(link) = self.fabric.graph.edge_weight_mut(petgraph::graph::EdgeIndex::new(link.0 as usize)) {
            link.failed = true;
        }
    }

    /// Takes directions of a link out of service and leaves a part of the bandwidth of others: its own direction, then back.
    pub(crate) fn degrade(&mut self, link: LinkId, failed: [bool; 2], slowed: [Option<Bandwidth>; 2]) {
        for ((direction, failed), slowed) in [link, link.reverse()].into_iter().zip(failed).zip(slowed) {
            let index = petgraph::graph::EdgeIndex::new(direction.0 as usize);
            let Some(link) = self.fabric.graph.edge_weight_mut(index) else { continue };
            link.failed |= failed;
            link.bandwidth = slowed.or(link.bandwidth);
        }
    }

    /// Makes a GPU no rank: it is there and takes no part.
    pub fn idle(&mut self, gpu: NodeId) {
        self.fabric.gpus.retain(|&rank| rank != gpu);
    }

    /// Notes where figures come from.
    pub fn source(&mut self, source: impl Into<String>) {
        self.fabric.sources.push(source.into());
    }

    /// Notes something the user should know.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.fabric.warnings.push(warning.into());
    }

    /// The host of this name, made if new.
    pub fn host(&mut self, name: &str) -> HostId {
        if let Some(&id) = self.host_ids.get(name) {
            return id;
        }
        let id = HostId(self.fabric.hosts.len() as u32);
        self.fabric.hosts.push(name.into());
        self.host_ids.insert(name.into(), id);
        id
    }

    /// Adds a vertex; `None` where the id is taken. Vertices that can be ranks become ranks in the order they come.
    pub fn node(&mut self, id: &str, kind: NodeKind, host: HostId, figures: Figures) -> Option<NodeId> {
        self.node_with(Node { id: id.into(), kind, host, figures, attributes: Box::default() })
    }

    /// Adds a vertex with everything that is known of it; `None` where the id is taken.
    pub fn node_with(&mut self, mut node: Node) -> Option<NodeId> {
        if self.fabric.by_id.contains_key(&node.id) {
            return None;
        }
        let id = NodeId(self.fabric.graph.node_count() as u32);
        self.fabric.by_id.insert(node.id.clone(), id);
        if node.kind.is_rank() {
            self.fabric.gpus.push(id);
        }
        if node.figures.all_unknown() {
            node.figures = Figures::None;
        }
        self.fabric.graph.add_node(node);
        Some(id)
    }

    /// The vertex with this id, if it was added.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<NodeId> {
        self.fabric.find(id)
    }

    /// A vertex added earlier.
    #[must_use]
    pub fn get(&self, id: NodeId) -> &Node {
        self.fabric.node(id)
    }

    /// Says which models the GPUs may be of; none where that is known.
    pub fn gpu_candidates(&mut self, models: Vec<String>) {
        self.fabric.gpu_candidates = models;
    }

    /// All vertices so far.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        (0..self.fabric.node_count() as u32).map(NodeId).collect()
    }

    /// The links that leave a vertex.
    pub(crate) fn links_of(&self, id: NodeId) -> Vec<&Link> {
        self.fabric.leaving(id).into_iter().map(|link| self.fabric.link(link)).collect()
    }

    /// The vertices at the other ends of the links of a vertex.
    pub(crate) fn neighbours(&self, id: NodeId) -> Vec<NodeId> {
        self.links_of(id).into_iter().map(|link| link.to).collect()
    }

    /// Gives a vertex other figures: what is known of it beyond the file that it was read from.
    pub fn describe(&mut self, id: NodeId, figures: Figures) {
        if let Some(node) = self.fabric.graph.node_weight_mut(NodeIndex::new(id.0 as usize)) {
            node.figures = figures;
        }
    }

    /// Adds a link; returns the direction from `a` to `b` (the other is its [`LinkId::reverse`]). A GPU that a MIG
    /// instance is linked to carries it, and is no rank any more.
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
            built: bandwidth,
            latency: spec.latency,
            failed: false,
        };
        let forward = self.fabric.graph.add_edge(x, y, direction(a, b, spec.forward));
        self.fabric.graph.add_edge(y, x, direction(b, a, spec.backward));
        LinkId(forward.index() as u32)
    }

    /// The ranks so far, in order.
    #[must_use]
    pub fn ranks(&self) -> &[NodeId] {
        &self.fabric.gpus
    }

    /// Replaces the rank order (a file that numbers its GPUs otherwise than it lists them).
    pub fn rank_order(&mut self, gpus: Vec<NodeId>) {
        self.fabric.gpus = gpus;
    }

    /// The finished fabric.
    #[must_use]
    pub fn finish(self) -> Fabric {
        self.fabric
    }
}
