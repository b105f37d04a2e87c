//! Interchangeable devices (twins) of an island. The routes of a few devices determine those of all their twins.
//!
//! Twins have equal properties and the same links to the same neighbours. Exchanging two of them maps the island onto
//! itself and every route in it onto another route. The GPUs of one switch are twins, and so are switches that each
//! join all GPUs. The links of a device are sorted; the exchange maps a link of one twin to the link of the other at
//! the same position.

use rustc_hash::FxHashMap;

use super::island_routes::IslandRoute;
use super::segment::{Part, Segment};
use super::shape_graph::{ShapeGraph, ShapeLink, ShapeNode};

/// Properties that distinguish a link of a device: the neighbour, and the figures of both directions that routing uses.
type LinkIdentity = (u32, [TwinKey; 2]);
type TwinKey = (crate::LinkKind, Option<crate::Bandwidth>, crate::Picos, bool);

/// Groups of twins among the devices of a shape.
#[derive(Debug)]
pub(super) struct Twins {
    /// First twin of each device; the device itself if it is the first.
    pub(super) first: Vec<u32>,
    /// Second twin, for each device that is the first of its twins.
    second: Vec<Option<u32>>,
    /// Links that leave each device, sorted by identity, then by id.
    leaving: Vec<Vec<u32>>,
    /// Position of each link direction among those that leave its device.
    positions: Vec<u32>,
}

impl Twins {
    pub fn new(shape: &ShapeGraph) -> Self {
        let count = shape.nodes().len() as u32;
        let mut positions = vec![0; shape.link_count() as usize];
        let mut known: FxHashMap<(ShapeNode, Vec<LinkIdentity>), u32> = FxHashMap::default();
        let (mut first, mut leaving) = (Vec::new(), Vec::new());
        let mut second = vec![None; count as usize];
        for node in 0..count {
            let mut links = shape.outgoing_links(node).to_vec();
            links.sort_by_cached_key(|&link| (link_identity(shape, link), link));
            for (at, &link) in (0..).zip(&links) {
                positions[link as usize] = at;
            }
            let around: Vec<LinkIdentity> = links.iter().map(|&link| link_identity(shape, link)).collect();
            let joins_itself = around.iter().any(|&(neighbour, _)| neighbour == node);
            let twin = if joins_itself { node } else { *known.entry((shape.node(node), around)).or_insert(node) };
            if twin != node {
                second[twin as usize].get_or_insert(node);
            }
            first.push(twin);
            leaving.push(links);
        }
        Self { first, second, leaving, positions }
    }

    /// Representative of a pair of different devices: the pair of their first twins; the first and second twin if the
    /// two devices are twins of each other.
    pub fn representative_pair(&self, from: u32, to: u32) -> Pair {
        let (x, y) = (self.first[from as usize], self.first[to as usize]);
        let y = if x == y { self.second[x as usize].unwrap_or(y) } else { y };
        Pair { from: x, to: y }
    }

    /// Maps the route between the devices of `pair` to the route between their twins, the devices of `twins`.
    pub fn map_route(&self, shape: &ShapeGraph, route: &IslandRoute, pair: Pair, twins: Pair) -> IslandRoute {
        // Exchanging the first device of the pair with its twin may move the second.
        let moved_to = exchange(pair.to, pair.from, twins.from);
        let exchange_ends = |device| exchange(exchange(device, pair.from, twins.from), moved_to, twins.to);
        let carried = |part: &Part| {
            let ends = shape.link(part.link);
            Part { link: self.map_link(shape, part.link, exchange_ends(ends.from), exchange_ends(ends.to)), ..*part }
        };
        let mut parts: Box<[Part]> = route.segment.parts.iter().map(carried).collect();
        // The search produces parts in this order.
        parts.sort_by_key(|part| (part.layer, part.link));
        IslandRoute { class: route.class, segment: Segment { parts, ..route.segment } }
    }

    /// Image of a link when its ends are exchanged for these twins.
    pub(super) fn map_link(&self, shape: &ShapeGraph, link: u32, from: u32, to: u32) -> u32 {
        let at = |device: u32, position: u32| self.leaving[device as usize][position as usize];
        let started = at(from, self.positions[link as usize]);
        debug_assert_eq!(shape.link(started).to, shape.link(link).to);
        let back = started ^ 1;
        at(to, self.positions[back as usize]) ^ 1
    }
}

/// Two devices of a shape, by number: source and destination of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub from: u32,
    pub to: u32,
}

/// Image of a device when `a` and `b` are exchanged.
fn exchange(device: u32, a: u32, b: u32) -> u32 {
    if device == a {
        b
    } else if device == b {
        a
    } else {
        device
    }
}

fn link_identity(shape: &ShapeGraph, link: u32) -> LinkIdentity {
    let record = |link: &ShapeLink| (link.kind, link.bandwidth, link.latency, link.failed);
    (shape.link(link).to, [record(shape.link(link)), record(shape.link(link ^ 1))])
}
