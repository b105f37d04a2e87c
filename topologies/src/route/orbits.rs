//! Orbits of devices and links under symmetries of a fabric.
//!
//! A rotation of the ranks is a symmetry if it extends to all devices and links. This requires a permutation of the
//! islands that maps each rank to its image, each island to an island of the same shape (device by device in the order
//! of the shape), and every link to a link with the same figures. Islands with ranks determine the images of the
//! switches that they are connected to, and so on through the network. Where several images of a switch's neighbours
//! are possible, the neighbours are paired in the order of their ids. The result of this pairing may be no symmetry, so
//! all devices and links are compared afterwards.
//!
//! Routes depend only on shapes, on device numbers inside islands and on distances in the network, so a symmetry maps
//! routes to routes. All members of an orbit therefore carry equal traffic if the ranks' programs have the same
//! symmetry, and one member represents the orbit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::{Ecmp, Router};
use crate::fabric::Link;
use crate::{LinkId, NodeId};

/// Results of all queries so far; `None` for rotations that are no symmetry.
pub(super) type OrbitCache = Mutex<FxHashMap<Query, Option<Arc<Orbits>>>>;

/// Ranks' devices, and their images under each rotation.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Query {
    placement: Vec<NodeId>,
    images: Vec<Vec<NodeId>>,
}

/// Marks an island that has no image yet, or is not yet the image of another.
const NONE: u32 = u32::MAX;

/// Orbits of the devices and links of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orbits {
    nodes: Classes,
    links: Classes,
}

/// Member of an orbit with the smallest id, and the number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orbit<T> {
    /// Member with the smallest id.
    pub representative: T,
    /// Number of members.
    pub size: u32,
}

impl Orbits {
    /// Returns the orbit of a device.
    #[must_use]
    pub fn node_orbit(&self, node: NodeId) -> Orbit<NodeId> {
        let representative = self.nodes.first[node.0 as usize];
        Orbit { representative: NodeId(representative), size: self.nodes.sizes[representative as usize] }
    }

    /// Returns the orbit of a link direction.
    #[must_use]
    pub fn link_orbit(&self, link: LinkId) -> Orbit<LinkId> {
        let representative = self.links.first[link.0 as usize];
        Orbit { representative: LinkId(representative), size: self.links.sizes[representative as usize] }
    }

    /// Returns the devices of a representative's orbit, in ascending order.
    pub fn node_members(&self, representative: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.members(representative.0).map(NodeId)
    }

    /// Returns the link directions of a representative's orbit, in ascending order.
    pub fn link_members(&self, representative: LinkId) -> impl Iterator<Item = LinkId> + '_ {
        self.links.members(representative.0).map(LinkId)
    }
}

/// Partition of ids into classes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Classes {
    /// Smallest member of the class of each id.
    first: Vec<u32>,
    /// Number of members by smallest member; 0 for all other ids.
    sizes: Vec<u32>,
    /// Next larger member of the class of each id; [`NONE`] for the largest.
    next: Vec<u32>,
}

impl Classes {
    /// Creates the orbits of the ids `0..count` under permutations.
    fn from_permutations(count: usize, permutations: &[Vec<u32>]) -> Self {
        let mut first = vec![NONE; count];
        let mut sizes = vec![0; count];
        let mut pending = Vec::new();
        for id in 0..count as u32 {
            if first[id as usize] != NONE {
                continue;
            }
            first[id as usize] = id;
            pending.push(id);
            // A permutation has finite order, so repeated images reach the whole orbit without the inverse.
            while let Some(member) = pending.pop() {
                sizes[id as usize] += 1;
                for permutation in permutations {
                    let image = permutation[member as usize];
                    if first[image as usize] == NONE {
                        first[image as usize] = id;
                        pending.push(image);
                    }
                }
            }
        }
        let mut next = vec![NONE; count];
        let mut last: Vec<u32> = (0..count as u32).collect();
        for (id, &first) in (0u32..).zip(&first).filter(|&(id, &first)| id != first) {
            let last = &mut last[first as usize];
            next[*last as usize] = id;
            *last = id;
        }
        Self { first, sizes, next }
    }

    /// Returns the members of the class with this smallest member, in ascending order.
    fn members(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(first), |&id| Some(self.next[id as usize]).filter(|&next| next != NONE))
    }
}

/// Permutation of a fabric that maps routes to routes: image of each device and of each link direction.
pub(super) struct Permutation {
    pub nodes: Vec<u32>,
    pub links: Vec<u32>,
}

impl Router<'_> {
    /// Returns the orbits under symmetries of the fabric. Each element of `images` lists the images of the devices of
    /// `placement`, in their order. `None` if one of the permutations is no symmetry, or if flows are hashed, because
    /// their paths depend on ids.
    #[must_use]
    pub fn orbits(&self, placement: &[NodeId], images: &[Vec<NodeId>]) -> Option<Arc<Orbits>> {
        if self.options.ecmp != Ecmp::Averaged {
            return None;
        }
        let query = Query { placement: placement.to_vec(), images: images.to_vec() };
        let known = || self.orbits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&query) {
            return found.clone();
        }
        let found = self.find_orbits(placement, images).map(Arc::new);
        known().insert(query, found.clone());
        found
    }

    fn find_orbits(&self, placement: &[NodeId], images: &[Vec<NodeId>]) -> Option<Orbits> {
        let permutations: Vec<Permutation> =
            images.iter().map(|images| self.permutation(placement, images)).collect::<Option<_>>()?;
        let (nodes, links): (Vec<_>, Vec<_>) = permutations.into_iter().map(|one| (one.nodes, one.links)).unzip();
        Some(Orbits {
            nodes: Classes::from_permutations(self.fabric.node_count(), &nodes),
            links: Classes::from_permutations(self.fabric.link_count(), &links),
        })
    }

    pub(super) fn permutation(&self, placement: &[NodeId], images: &[NodeId]) -> Option<Permutation> {
        let islands = self.island_images(placement, images)?;
        let mut nodes = Vec::with_capacity(self.fabric.node_count());
        for (id, node) in self.fabric.nodes() {
            let image = self.islands.node(islands[self.islands.island_of(id) as usize], self.islands.local(id));
            let other = self.fabric.node(image);
            if (node.kind, &node.figures) != (other.kind, &other.figures) {
                return None;
            }
            nodes.push(image.0);
        }
        let links = self.link_images(&nodes)?;
        self.retains_rank_order(&nodes).then_some(Permutation { nodes, links })
    }

    /// Returns true if the ranks of each island are in the same order as their images. The order matters because, of
    /// several GPUs that could relay for a missing link, the one with the smallest rank is selected.
    fn retains_rank_order(&self, nodes: &[u32]) -> bool {
        let mut last: Vec<Option<u32>> = vec![None; self.islands.count()];
        self.fabric.gpus().iter().all(|&gpu| {
            let image = self.rank(NodeId(nodes[gpu.0 as usize]));
            let before = std::mem::replace(&mut last[self.islands.island_of(gpu) as usize], image);
            image > before
        })
    }

    /// Returns the image of each island; `None` if ranks of one island have images in several, or in another order.
    fn island_images(&self, placement: &[NodeId], images: &[NodeId]) -> Option<Vec<u32>> {
        let count = self.islands.count();
        let mut found =
            IslandImages { images: vec![NONE; count], is_image: vec![false; count], pending: VecDeque::new() };
        for (&rank, &image) in placement.iter().zip(images) {
            if self.islands.local(rank) != self.islands.local(image) {
                return None;
            }
            self.map_island(&mut found, self.islands.island_of(rank), self.islands.island_of(image))?;
        }
        while let Some(island) = found.pending.pop_front() {
            let image = found.images[island as usize];
            let (near, far) = (self.neighbours(island), self.neighbours(image));
            if near.len() != far.len() {
                return None;
            }
            if self.islands.shape(island).nodes().len() > 1 {
                // Ports of a host are in the order of its shape.
                for (from, to) in near.into_iter().zip(far) {
                    self.map_island(&mut found, from, to)?;
                }
                continue;
            }
            let mut free: Vec<u32> = far.into_iter().filter(|&other| !found.is_image[other as usize]).collect();
            free.sort_unstable();
            free.dedup();
            let mut free = free.into_iter();
            let mut open: Vec<u32> = near.into_iter().filter(|&one| found.images[one as usize] == NONE).collect();
            open.sort_unstable();
            open.dedup();
            for one in open {
                self.map_island(&mut found, one, free.next()?)?;
            }
        }
        for island in 0..count as u32 {
            if found.images[island as usize] == NONE {
                self.map_island(&mut found, island, island)?;
            }
        }
        Some(found.images)
    }

    /// Records the image of an island. Returns `None` if the island already has another image, if `image` is already
    /// the image of another island, or if the two differ in shape.
    fn map_island(&self, found: &mut IslandImages, island: u32, image: u32) -> Option<()> {
        let known = &mut found.images[island as usize];
        if *known == image {
            return Some(());
        }
        let is_possible = *known == NONE
            && !found.is_image[image as usize]
            && self.islands.shape_number(island) == self.islands.shape_number(image);
        if !is_possible {
            return None;
        }
        *known = image;
        found.is_image[image as usize] = true;
        found.pending.push_back(island);
        Some(())
    }

    /// Returns the islands at the other ends of an island's ports, in the order of the ports.
    fn neighbours(&self, island: u32) -> Vec<u32> {
        let ports = 0..self.islands.port_count(island);
        ports.map(|port| self.islands.island_of(self.fabric.ends(self.islands.port(island, port)).1)).collect()
    }

    /// Returns the image of each link direction under a permutation of the devices; `None` if the links between two
    /// devices differ from those between their images. Parallel links are paired in the order of their ids.
    fn link_images(&self, nodes: &[u32]) -> Option<Vec<u32>> {
        let mut by_ends: FxHashMap<(u32, u32), Vec<u32>> = FxHashMap::default();
        for (id, link) in self.fabric.links() {
            by_ends.entry((link.from.0, link.to.0)).or_default().push(id.0);
        }
        let mut images = vec![NONE; self.fabric.link_count()];
        for (&(from, to), links) in &by_ends {
            let others = by_ends.get(&(nodes[from as usize], nodes[to as usize]))?;
            if others.len() != links.len() {
                return None;
            }
            for (&link, &other) in links.iter().zip(others) {
                let (one, image) = (self.fabric.link(LinkId(link)), self.fabric.link(LinkId(other)));
                if *image != (Link { from: image.from, to: image.to, ..one.clone() }) {
                    return None;
                }
                images[link as usize] = other;
            }
        }
        Some(images)
    }
}

/// Images of islands found so far.
struct IslandImages {
    images: Vec<u32>,
    /// True for islands that are the image of some island.
    is_image: Vec<bool>,
    /// Islands whose neighbours have not been mapped yet.
    pending: VecDeque<u32>,
}
