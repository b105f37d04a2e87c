//! The network between islands: forwarding devices, their distances, and the paths between them.

use std::collections::VecDeque;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::alike::{Alike, Joint, Multiple};
use super::islands::is_network;
use super::rules::is_switch;
use super::segment::{MOST_WAYS, Segment, Step, comparable, settle};
use super::{Ecmp, Links};
use crate::fabric::{Figures, NodeKind};
use crate::{Fabric, LinkId, NodeId};

const NONE: u32 = u32::MAX;
const FAR: u16 = u16::MAX;

/// The devices that forward network traffic, numbered from 0, and their links; or equivalence classes of these devices.
#[derive(Debug)]
pub(super) struct Network {
    /// Number of each device of the fabric among the forwarding ones; [`NONE`] for others.
    number: Vec<u32>,
    /// Links represented by each representative link.
    members: FxHashMap<LinkId, Vec<LinkId>>,
    /// Links from each forwarding device to another, including failed ones.
    leaving: Vec<Edge>,
    leaving_start: Vec<u32>,
    from: Vec<OnceLock<Box<Reach>>>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    link: LinkId,
    /// The reverse link.
    back: LinkId,
    multiple: Multiple,
    failed: bool,
    back_failed: bool,
}

/// Distances from one switch to the others, and the paths to them.
#[derive(Debug)]
struct Reach {
    distance: Box<[u16]>,
    segments: Box<[OnceLock<Box<Segment>>]>,
}

impl Network {
    /// Builds the network. Representative links are used only where they do not change results: if no switch has a
    /// capacity (which would also limit links that are not listed), and no two devices have more than [`MOST_WAYS`]
    /// paths, of which a single one is used.
    pub fn new(fabric: &Fabric, listed: Links) -> Self {
        let network = Self::listing(fabric, listed);
        let limits = |figures: &Figures| matches!(figures, Figures::Switch(switch) if switch.capacity.is_some());
        let are_limited = || fabric.nodes().any(|(id, node)| network.at(id).is_some() && limits(&node.figures));
        match network.lists_alike() && (are_limited() || network.most_ways() > MOST_WAYS) {
            true => Self::listing(fabric, Links::Each),
            false => network,
        }
    }

    fn listing(fabric: &Fabric, listed: Links) -> Self {
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
                joints.push(Joint { from, to, link: id });
            } else if let Some(joined) = is_joined.get_mut(from as usize) {
                *joined = true;
            }
        }
        let alike = match listed {
            Links::Each => Alike {
                class: (0..count).collect(),
                joints: joints.into_iter().map(|joint| (joint, Multiple::ONE)).collect(),
                members: FxHashMap::default(),
            },
            Links::OneOfAlike => Alike::of(fabric, &is_joined, &joints),
        };
        let class = |number: u32| alike.class.get(number as usize).copied().unwrap_or(NONE);
        number.iter_mut().filter(|number| **number != NONE).for_each(|number| *number = class(*number));
        let count = alike.class.iter().max().map_or(0, |last| last + 1);
        // If both ends of a link are in one class, its two directions are of one kind and share a representative.
        let standing: FxHashMap<LinkId, LinkId> =
            alike.members.iter().flat_map(|(&first, all)| all.iter().map(move |&link| (link, first))).collect();
        let edge = |&(Joint { to, link, .. }, multiple): &(Joint, Multiple)| {
            let back = standing.get(&link.reverse()).copied().unwrap_or(link.reverse());
            let (failed, back_failed) = (fabric.link(link).failed, fabric.link(link.reverse()).failed);
            Edge { to, link, back, multiple, failed, back_failed }
        };
        let mut links: Vec<(u32, Edge)> = alike.joints.iter().map(|one| (one.0.from, edge(one))).collect();
        links.sort_by_key(|&(from, edge)| (from, edge.link));
        let mut leaving_start = vec![0u32; count as usize + 1];
        for &(from, _) in &links {
            leaving_start[from as usize + 1] += 1;
        }
        for i in 1..leaving_start.len() {
            leaving_start[i] += leaving_start[i - 1];
        }
        let leaving = links.into_iter().map(|(_, edge)| edge).collect();
        let from = std::iter::repeat_with(OnceLock::new).take(count as usize).collect();
        Self { number, members: alike.members, leaving, leaving_start, from }
    }

    /// Links that this link represents, including itself, in ascending order; `None` if it represents only itself.
    pub fn members(&self, link: LinkId) -> Option<&[LinkId]> {
        self.members.get(&link).map(Vec::as_slice)
    }

    /// Returns true if some links represent others.
    pub fn lists_alike(&self) -> bool {
        !self.members.is_empty()
    }

    /// Number of a device among the forwarding ones; `None` for others.
    pub fn at(&self, node: NodeId) -> Option<u32> {
        self.number.get(node.0 as usize).copied().filter(|&number| number != NONE)
    }

    /// Number of links between two forwarding devices; `None` if no path joins them.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let distance = self.reach(from)?.distance.get(to as usize).copied()?;
        (distance != FAR).then(|| u32::from(distance))
    }

    /// The paths between two forwarding devices, as global link ids; `weight` selects one if there are too many.
    pub fn segment(
        &self,
        fabric: &Fabric,
        from: u32,
        to: u32,
        ecmp: Ecmp,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<&Segment> {
        let reach = self.reach(from)?;
        let slot = reach.segments.get(to as usize)?;
        if let Some(segment) = slot.get() {
            return Some(segment);
        }
        let segment = self.ways(fabric, reach, (from, to), ecmp, weight)?;
        Some(slot.get_or_init(|| Box::new(segment)))
    }

    /// Largest number of shortest paths between any two forwarding devices, regardless of bandwidth and latency.
    fn most_ways(&self) -> u64 {
        let of = |from: u32| {
            let mut ways: FxHashMap<u32, u64> = FxHashMap::from_iter([(from, 1)]);
            let mut layer = vec![from];
            let mut most = 1;
            while !layer.is_empty() {
                let mut next: FxHashMap<u32, u64> = FxHashMap::default();
                for &at in &layer {
                    let here = ways.get(&at).copied().unwrap_or_default();
                    for edge in self.leaving(at).iter().filter(|edge| !edge.failed && !ways.contains_key(&edge.to)) {
                        let there = next.entry(edge.to).or_default();
                        *there = there.saturating_add(here.saturating_mul(edge.multiple.into));
                    }
                }
                most = next.values().copied().fold(most, u64::max);
                layer = next.keys().copied().collect();
                ways.extend(next);
            }
            most
        };
        (0..self.from.len() as u32).map(of).max().unwrap_or_default()
    }

    /// Returns true if every forwarding device reaches every other.
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
        &self.leaving[start..self.leaving_start[number as usize + 1] as usize]
    }

    fn reach(&self, from: u32) -> Option<&Reach> {
        let slot = self.from.get(from as usize)?;
        Some(slot.get_or_init(|| {
            let mut distance = vec![FAR; self.from.len()];
            distance[from as usize] = 0;
            let mut queue = VecDeque::from([from]);
            while let Some(at) = queue.pop_front() {
                let beyond = distance[at as usize].saturating_add(1);
                for edge in self.leaving(at).iter().filter(|edge| !edge.failed) {
                    let there = &mut distance[edge.to as usize];
                    if *there == FAR && beyond < FAR {
                        *there = beyond;
                        queue.push_back(edge.to);
                    }
                }
            }
            let segments = std::iter::repeat_with(OnceLock::new).take(self.from.len()).collect();
            Box::new(Reach { distance: distance.into(), segments })
        }))
    }

    fn ways(
        &self,
        fabric: &Fabric,
        reach: &Reach,
        (from, to): (u32, u32),
        ecmp: Ecmp,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<Segment> {
        if from == to {
            return Some(Segment::empty());
        }
        let length = reach.distance.get(to as usize).copied().filter(|&d| d != FAR)?;
        let mut dense: FxHashMap<u32, u32> = FxHashMap::default();
        dense.insert(to, 0);
        let mut layer = vec![to];
        let mut steps = Vec::new();
        for distance in (0..length).rev() {
            let mut before = Vec::new();
            for &state in &layer {
                for edge in self.leaving(state).iter().filter(|edge| reach.distance[edge.to as usize] == distance) {
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
                    steps.push(Step {
                        from: number,
                        to: dense[&state],
                        link: arriving.0,
                        multiple: Multiple { out: edge.multiple.into, into: edge.multiple.out },
                        layer: u32::from(distance),
                        bandwidth: comparable(link.bandwidth),
                        latency: link.latency.0,
                    });
                }
            }
            layer = before;
        }
        steps.sort_by_key(|step| (step.layer, step.link));
        settle(dense.len(), *dense.get(&from)?, &[0], &steps, ecmp, weight)
    }
}
