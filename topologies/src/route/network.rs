//! The network between islands: forwarding devices, their distances, and the paths between them.

use std::collections::VecDeque;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::islands::is_network;
use super::link_classes::{LinkClasses, Multiplicity, NetworkLink};
use super::rules::is_switch;
use super::segment::{LayeredLink, MAX_PATHS, Segment, bandwidth_key, select_paths};
use super::{Ecmp, LinkListing};
use crate::fabric::{Figures, NodeKind};
use crate::{Fabric, LinkId, NodeId};

const NONE: u32 = u32::MAX;
const FAR: u16 = u16::MAX;

/// The devices that forward network traffic, numbered from 0, and their links; or equivalence classes of these devices.
#[derive(Debug)]
pub(super) struct NetworkGraph {
    /// Number of each device of the fabric among the forwarding devices; [`NONE`] for devices that do not forward.
    number: Vec<u32>,
    /// Links represented by each representative link.
    members: FxHashMap<LinkId, Vec<LinkId>>,
    /// Links from each forwarding device to another, including failed ones.
    outgoing: Vec<Edge>,
    leaving_start: Vec<u32>,
    from: Vec<OnceLock<Box<DistanceTable>>>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    link: LinkId,
    /// Opposite direction of `link`; if that direction is represented by another link, its representative.
    back: LinkId,
    multiple: Multiplicity,
    failed: bool,
    back_failed: bool,
}

/// Distances from one switch to the others, and the paths to them.
#[derive(Debug)]
struct DistanceTable {
    distance: Box<[u16]>,
    segments: Box<[OnceLock<Box<Segment>>]>,
}

impl NetworkGraph {
    /// Builds the network. Representative links are used only where they do not change results. They are not used if a
    /// switch has a capacity, which would also limit links that are not listed, or if more than [`MAX_PATHS`] paths
    /// join two devices, of which a flow would use a single one.
    pub fn new(fabric: &Fabric, listed: LinkListing) -> Self {
        let network = Self::listing(fabric, listed);
        let limits = |figures: &Figures| matches!(figures, Figures::Switch(switch) if switch.capacity.is_some());
        let are_limited = || fabric.nodes().any(|(id, node)| network.number(id).is_some() && limits(&node.figures));
        match network.has_representatives() && (are_limited() || network.max_path_count() > MAX_PATHS) {
            true => Self::listing(fabric, LinkListing::All),
            false => network,
        }
    }

    fn listing(fabric: &Fabric, listed: LinkListing) -> Self {
        let mut number = vec![NONE; fabric.node_count()];
        let mut count = 0;
        for (_, link) in fabric.links() {
            let (from, to) = (fabric.node(link.from).kind, fabric.node(link.to).kind);
            let slot = &mut number[link.from.0 as usize];
            if *slot == NONE && (is_switch(from) || from == NodeKind::Cpu) && is_network(from, to, link.kind) {
                *slot = count;
                count += 1;
            }
        }
        let mut joints = Vec::new();
        let mut is_joined = vec![false; count as usize];
        for (id, link) in fabric.links() {
            let (from, to) = (number[link.from.0 as usize], number[link.to.0 as usize]);
            let network = || is_network(fabric.node(link.from).kind, fabric.node(link.to).kind, link.kind);
            if from != NONE && to != NONE && network() {
                joints.push(NetworkLink { from, to, link: id });
            } else if let Some(joined) = is_joined.get_mut(from as usize) {
                *joined = true;
            }
        }
        let link_classes = match listed {
            LinkListing::All => LinkClasses {
                class: (0..count).collect(),
                links: joints.into_iter().map(|joint| (joint, Multiplicity::ONE)).collect(),
                members: FxHashMap::default(),
            },
            LinkListing::Representatives => LinkClasses::new(fabric, &is_joined, &joints),
        };
        let class = |number: u32| link_classes.class.get(number as usize).copied().unwrap_or(NONE);
        number.iter_mut().filter(|number| **number != NONE).for_each(|number| *number = class(*number));
        let count = link_classes.class.iter().max().map_or(0, |last| last + 1);
        // If both ends of a link are in one class, its two directions are of one kind and share a representative.
        let representatives: FxHashMap<LinkId, LinkId> =
            link_classes.members.iter().flat_map(|(&first, all)| all.iter().map(move |&link| (link, first))).collect();
        let edge = |&(NetworkLink { to, link, .. }, multiple): &(NetworkLink, Multiplicity)| {
            let back = representatives.get(&link.reverse()).copied().unwrap_or(link.reverse());
            let (failed, back_failed) = (fabric.link(link).failed, fabric.link(link.reverse()).failed);
            Edge { to, link, back, multiple, failed, back_failed }
        };
        let mut links: Vec<(u32, Edge)> = link_classes.links.iter().map(|joint| (joint.0.from, edge(joint))).collect();
        links.sort_by_key(|&(from, edge)| (from, edge.link));
        let mut leaving_start = vec![0u32; count as usize + 1];
        for &(from, _) in &links {
            leaving_start[from as usize + 1] += 1;
        }
        for i in 1..leaving_start.len() {
            leaving_start[i] += leaving_start[i - 1];
        }
        let outgoing = links.into_iter().map(|(_, edge)| edge).collect();
        let from = std::iter::repeat_with(OnceLock::new).take(count as usize).collect();
        Self { number, members: link_classes.members, outgoing, leaving_start, from }
    }

    /// Links that this link represents, including itself, in ascending order; `None` if it represents only itself.
    pub fn members(&self, link: LinkId) -> Option<&[LinkId]> {
        self.members.get(&link).map(Vec::as_slice)
    }

    /// Returns true if some links represent others.
    pub fn has_representatives(&self) -> bool {
        !self.members.is_empty()
    }

    /// Number of a device among the forwarding devices; `None` if it does not forward.
    pub fn number(&self, node: NodeId) -> Option<u32> {
        self.number.get(node.0 as usize).copied().filter(|&number| number != NONE)
    }

    /// Number of links between two forwarding devices; `None` if no path joins them.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let distance = self.distance_table(from)?.distance.get(to as usize).copied()?;
        (distance != FAR).then(|| u32::from(distance))
    }

    /// The paths between two forwarding devices, as global link ids; `weight` selects one of them if there are more
    /// than [`MAX_PATHS`].
    pub fn segment(
        &self,
        fabric: &Fabric,
        from: u32,
        to: u32,
        ecmp: Ecmp,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<&Segment> {
        let distances = self.distance_table(from)?;
        let slot = distances.segments.get(to as usize)?;
        if let Some(segment) = slot.get() {
            return Some(segment);
        }
        let segment = self.search_paths(fabric, distances, from, to, ecmp, weight)?;
        Some(slot.get_or_init(|| Box::new(segment)))
    }

    /// Largest number of shortest paths between any two forwarding devices, regardless of bandwidth and latency.
    fn max_path_count(&self) -> u64 {
        let max_from = |from: u32| {
            let mut path_counts: FxHashMap<u32, u64> = FxHashMap::from_iter([(from, 1)]);
            let mut layer = vec![from];
            let mut max_count = 1;
            while !layer.is_empty() {
                let mut next: FxHashMap<u32, u64> = FxHashMap::default();
                for &at in &layer {
                    let count = path_counts.get(&at).copied().unwrap_or_default();
                    for edge in
                        self.leaving(at).iter().filter(|edge| !edge.failed && !path_counts.contains_key(&edge.to))
                    {
                        let next_count = next.entry(edge.to).or_default();
                        *next_count = next_count.saturating_add(count.saturating_mul(edge.multiple.into));
                    }
                }
                max_count = next.values().copied().fold(max_count, u64::max);
                layer = next.keys().copied().collect();
                path_counts.extend(next);
            }
            max_count
        };
        (0..self.from.len() as u32).map(max_from).max().unwrap_or_default()
    }

    /// Returns true if every forwarding device can reach every other.
    pub fn is_joined(&self) -> bool {
        let count = self.from.len();
        let mut seen = vec![false; count];
        let mut queue: Vec<u32> = (count > 0).then_some(0).into_iter().collect();
        seen.iter_mut().take(1).for_each(|first| *first = true);
        while let Some(at) = queue.pop() {
            // A cable that failed in one direction is ignored in both, which makes reachability symmetric.
            for edge in self.leaving(at).iter().filter(|edge| !edge.failed && !edge.back_failed) {
                if !std::mem::replace(&mut seen[edge.to as usize], true) {
                    queue.push(edge.to);
                }
            }
        }
        seen.into_iter().all(|seen| seen)
    }

    fn leaving(&self, number: u32) -> &[Edge] {
        let start = self.leaving_start[number as usize] as usize;
        &self.outgoing[start..self.leaving_start[number as usize + 1] as usize]
    }

    fn distance_table(&self, from: u32) -> Option<&DistanceTable> {
        let slot = self.from.get(from as usize)?;
        Some(slot.get_or_init(|| {
            let mut distance = vec![FAR; self.from.len()];
            distance[from as usize] = 0;
            let mut queue = VecDeque::from([from]);
            while let Some(at) = queue.pop_front() {
                let next_distance = distance[at as usize].saturating_add(1);
                for edge in self.leaving(at).iter().filter(|edge| !edge.failed) {
                    let entry = &mut distance[edge.to as usize];
                    if *entry == FAR && next_distance < FAR {
                        *entry = next_distance;
                        queue.push_back(edge.to);
                    }
                }
            }
            let segments = std::iter::repeat_with(OnceLock::new).take(self.from.len()).collect();
            Box::new(DistanceTable { distance: distance.into(), segments })
        }))
    }

    fn search_paths(
        &self,
        fabric: &Fabric,
        distances: &DistanceTable,
        from: u32,
        to: u32,
        ecmp: Ecmp,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<Segment> {
        if from == to {
            return Some(Segment::empty());
        }
        let length = distances.distance.get(to as usize).copied().filter(|&d| d != FAR)?;
        let mut dense: FxHashMap<u32, u32> = FxHashMap::default();
        dense.insert(to, 0);
        let mut layer = vec![to];
        let mut steps = Vec::new();
        for distance in (0..length).rev() {
            let mut before = Vec::new();
            for &state in &layer {
                for edge in self.leaving(state).iter().filter(|edge| distances.distance[edge.to as usize] == distance) {
                    let (previous, arriving) = (edge.to, edge.back);
                    let link = fabric.link(arriving);
                    if link.failed {
                        continue;
                    }
                    let next = dense.len() as u32;
                    let number = *dense.entry(previous).or_insert_with(|| {
                        before.push(previous);
                        next
                    });
                    steps.push(LayeredLink {
                        from: number,
                        to: dense[&state],
                        link: arriving.0,
                        multiple: Multiplicity { out: edge.multiple.into, into: edge.multiple.out },
                        layer: u32::from(distance),
                        bandwidth: bandwidth_key(link.bandwidth),
                        latency: link.latency.0,
                    });
                }
            }
            layer = before;
        }
        steps.sort_by_key(|step| (step.layer, step.link));
        select_paths(dense.len(), *dense.get(&from)?, &[0], &steps, ecmp, weight)
    }
}
