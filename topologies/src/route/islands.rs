//! Partition of a fabric into islands: components that are connected without the network.
//!
//! A host is an island, and so is a rack whose hosts share NVLink. A large cluster consists of thousands of copies of
//! one island. Equal islands (same devices, links and figures, in the same order) share one [`Shape`], and all routing
//! inside an island is computed once per shape.

use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use petgraph::unionfind::UnionFind;
use rustc_hash::{FxHashMap, FxHasher};

use super::shape::Shape;
use super::shape_graph::{IslandPort, ShapeKey, ShapeLink, ShapeNode};
use crate::fabric::{Figures, NodeKind};
use crate::{Fabric, LinkId, LinkKind, NodeId};

/// Returns true if a link belongs to the network; all other links are inside an island.
///
/// A link of a NIC is classified by its other end (whatever technology a file states), other links by technology.
pub(super) fn is_network(a: NodeKind, b: NodeKind, kind: LinkKind) -> bool {
    let network_side = |kind| matches!(kind, NodeKind::Switch | NodeKind::Nic);
    match (a, b) {
        (NodeKind::Nic, other) | (other, NodeKind::Nic) => network_side(other),
        _ => matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet),
    }
}

/// The islands of a fabric and the shapes that they share.
#[derive(Debug)]
pub(super) struct Islands {
    /// Index of the island of each device, by [`NodeId`].
    node_islands: Vec<u32>,
    /// Number of each device inside its island, by [`NodeId`].
    local: Vec<u32>,
    /// Devices (`NodeId`) grouped by island, in id order.
    nodes: Vec<u32>,
    node_start: Vec<u32>,
    /// Links (`LinkId / 2`) inside islands, by island, in id order.
    links: Vec<u32>,
    link_start: Vec<u32>,
    /// Link direction from each port to the network, by island.
    ports: Vec<u32>,
    port_start: Vec<u32>,
    /// Index in `shapes` of the shape of each island.
    island_shapes: Vec<u32>,
    pub shapes: Vec<Shape>,
}

impl Islands {
    pub fn new(fabric: &Fabric) -> Self {
        let mut islands = Self::partition(fabric);
        islands.share_shapes(fabric);
        islands
    }

    /// Index of the island of a device.
    pub fn island_of(&self, node: NodeId) -> u32 {
        self.node_islands[node.0 as usize]
    }

    /// Number of a device within its island, which is its number in the island's shape.
    pub fn local(&self, node: NodeId) -> u32 {
        self.local[node.0 as usize]
    }

    /// The shape of an island.
    pub fn shape(&self, island: u32) -> &Shape {
        &self.shapes[self.island_shapes[island as usize] as usize]
    }

    /// Index of the shape of an island.
    pub fn shape_number(&self, island: u32) -> u32 {
        self.island_shapes[island as usize]
    }

    /// The device with number `local` of the shape, in this island.
    pub fn node(&self, island: u32, local: u32) -> NodeId {
        NodeId(self.nodes[(self.node_start[island as usize] + local) as usize])
    }

    /// The link with number `link` of the shape, in this island.
    pub fn link(&self, island: u32, link: u32) -> LinkId {
        let pair = self.links[(self.link_start[island as usize] + (link >> 1)) as usize];
        LinkId(pair * 2 + (link & 1))
    }

    /// Number of islands.
    pub fn count(&self) -> usize {
        self.island_shapes.len()
    }

    /// Number of ports of an island, each with its own link to the network.
    pub fn port_count(&self, island: u32) -> u32 {
        self.port_start[island as usize + 1] - self.port_start[island as usize]
    }

    /// The link direction from a port of an island to the network.
    pub fn port(&self, island: u32, port: u32) -> LinkId {
        LinkId(self.ports[(self.port_start[island as usize] + port) as usize])
    }

    fn partition(fabric: &Fabric) -> Self {
        let count = fabric.node_count();
        let mut connected = UnionFind::<u32>::new(count);
        let mut inside = Vec::with_capacity(fabric.link_count() / 2);
        let mut network = Vec::new();
        for (id, link) in fabric.links() {
            let (from, to) = (fabric.node(link.from).kind, fabric.node(link.to).kind);
            if is_network(from, to, link.kind) {
                network.push(id.0);
            } else if id.0 % 2 == 0 {
                inside.push(id.0 / 2);
                // A link joins its ends even if it has failed in both directions, so that failures do not change
                // islands.
                connected.union(link.from.0, link.to.0);
            }
        }

        let mut node_islands = vec![0; count];
        let mut root_islands: Vec<u32> = vec![u32::MAX; count];
        let mut islands = 0;
        for node in 0..count as u32 {
            let root = connected.find_mut(node) as usize;
            if root_islands[root] == u32::MAX {
                root_islands[root] = islands;
                islands += 1;
            }
            node_islands[node as usize] = root_islands[root];
        }

        let source_node = |link: u32| fabric.link(LinkId(link)).from.0 as usize;
        let (nodes, node_start) = group(islands, (0..count as u32).collect(), |node| node_islands[node as usize]);
        let (links, link_start) = group(islands, inside, |pair| node_islands[source_node(pair * 2)]);
        let (ports, port_start) = group(islands, network, |link| node_islands[source_node(link)]);
        let mut local = vec![0; count];
        for island in 0..islands as usize {
            let range = node_start[island] as usize..node_start[island + 1] as usize;
            for (number, &node) in nodes[range].iter().enumerate() {
                local[node as usize] = number as u32;
            }
        }
        let shapes = Vec::new();
        Self {
            node_islands,
            local,
            nodes,
            node_start,
            links,
            link_start,
            ports,
            port_start,
            island_shapes: Vec::new(),
            shapes,
        }
    }

    fn share_shapes(&mut self, fabric: &Fabric) {
        let mut is_rank = vec![false; fabric.node_count()];
        for gpu in fabric.gpus() {
            is_rank[gpu.0 as usize] = true;
        }
        let mut known: FxHashMap<u64, Vec<u32>> = FxHashMap::default();
        for island in 0..self.node_start.len().saturating_sub(1) {
            let key = self.key(fabric, island, &is_rank);
            let mut hasher = FxHasher::default();
            key.hash(&mut hasher);
            let shape = match known.entry(hasher.finish()) {
                Entry::Occupied(mut entry) => {
                    let same = entry.get().iter().copied().find(|&shape| self.shapes[shape as usize].matches(&key));
                    same.unwrap_or_else(|| {
                        let shape = self.shapes.len() as u32;
                        entry.get_mut().push(shape);
                        self.shapes.push(Shape::new(key));
                        shape
                    })
                }
                Entry::Vacant(entry) => {
                    let shape = self.shapes.len() as u32;
                    entry.insert(vec![shape]);
                    self.shapes.push(Shape::new(key));
                    shape
                }
            };
            self.island_shapes.push(shape);
        }
    }

    /// All properties of an island that affect routing inside it.
    fn key(&self, fabric: &Fabric, island: usize, is_rank: &[bool]) -> ShapeKey {
        let slice =
            |items: &'_ [u32], start: &[u32]| items[start[island] as usize..start[island + 1] as usize].to_vec();
        let members = slice(&self.nodes, &self.node_start);
        let first_host = members.first().map_or(0, |&node| fabric.node(NodeId(node)).host.0);
        let nodes = members.iter().map(|&id| {
            let node = fabric.node(NodeId(id));
            let direct = !matches!(&node.figures, Figures::Nic(nic) if nic.gdr == Some(false));
            // Hosts are relative to the first, so that copies compare equal.
            let host = node.host.0.wrapping_sub(first_host);
            ShapeNode { kind: node.kind, host, is_rank: is_rank[id as usize], relays: !node.is_amd(), direct }
        });
        let links = slice(&self.links, &self.link_start);
        let links = links.iter().flat_map(|&pair| [pair * 2, pair * 2 + 1]).map(|id| {
            let link = fabric.link(LinkId(id));
            ShapeLink {
                from: self.local(link.from),
                to: self.local(link.to),
                kind: link.kind,
                bandwidth: link.nominal_bandwidth,
                latency: link.latency,
                failed: link.failed,
            }
        });
        let ports = slice(&self.ports, &self.port_start);
        let ports = ports.iter().map(|&id| {
            let (out, back) = (fabric.link(LinkId(id)), fabric.link(LinkId(id).reverse()));
            IslandPort {
                node: self.local(out.from),
                out: (!out.failed).then_some((out.bandwidth, out.latency)),
                back: (!back.failed).then_some((back.bandwidth, back.latency)),
            }
        });
        ShapeKey { nodes: nodes.collect(), links: links.collect(), ports: ports.collect() }
    }
}

/// Sorts items into groups in stable order; returns them with the start index of each group.
fn group(groups: u32, items: Vec<u32>, key: impl Fn(u32) -> u32) -> (Vec<u32>, Vec<u32>) {
    let mut start = vec![0u32; groups as usize + 1];
    for &item in &items {
        start[key(item) as usize + 1] += 1;
    }
    for i in 1..start.len() {
        start[i] += start[i - 1];
    }
    let mut next = start.clone();
    let mut sorted = vec![0; items.len()];
    for item in items {
        let slot = &mut next[key(item) as usize];
        sorted[*slot as usize] = item;
        *slot += 1;
    }
    (sorted, start)
}
