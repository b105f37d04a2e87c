//! The network between islands: what forwards there, how far apart the switches are, and the ways between them.

use std::collections::VecDeque;
use std::sync::OnceLock;

use super::islands::is_network;
use super::rules::is_switch;
use super::segment::{Segment, Step, comparable, settle};
use crate::fabric::NodeKind;
use crate::{Fabric, LinkId, NodeId};

const NONE: u32 = u32::MAX;
const FAR: u16 = u16::MAX;

/// The devices that forward network traffic, numbered from 0, and their links.
#[derive(Debug)]
pub(super) struct Network {
    /// Number of each vertex of the fabric among the forwarding ones.
    number: Vec<u32>,
    /// Links that leave each forwarding device for another, failed ones too.
    leaving: Vec<Edge>,
    leaving_start: Vec<u32>,
    from: Vec<OnceLock<Box<Reach>>>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    link: LinkId,
    failed: bool,
    back_failed: bool,
}

/// How far the other switches are from one of them, and the ways there.
#[derive(Debug)]
struct Reach {
    distance: Box<[u16]>,
    segments: Box<[OnceLock<Box<Segment>>]>,
}

impl Network {
    pub fn new(fabric: &Fabric) -> Self {
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
        let mut links = Vec::new();
        for (id, link) in fabric.links() {
            let (from, to) = (number[link.from.0 as usize], number[link.to.0 as usize]);
            let network = || is_network(fabric.node(link.from).kind, fabric.node(link.to).kind, link.kind);
            if from != NONE && to != NONE && network() {
                let back_failed = fabric.link(id.reverse()).failed;
                links.push((from, Edge { to, link: id, failed: link.failed, back_failed }));
            }
        }
        links.sort_by_key(|&(from, _)| from);
        let mut leaving_start = vec![0u32; count as usize + 1];
        for &(from, _) in &links {
            leaving_start[from as usize + 1] += 1;
        }
        for i in 1..leaving_start.len() {
            leaving_start[i] += leaving_start[i - 1];
        }
        let leaving = links.into_iter().map(|(_, edge)| edge).collect();
        let from = std::iter::repeat_with(OnceLock::new).take(count as usize).collect();
        Self { number, leaving, leaving_start, from }
    }

    /// The forwarding device at a vertex.
    pub fn at(&self, node: NodeId) -> Option<u32> {
        self.number.get(node.0 as usize).copied().filter(|&number| number != NONE)
    }

    /// Links between two forwarding devices; `None` where no way leads there.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let distance = self.reach(from)?.distance.get(to as usize).copied()?;
        (distance != FAR).then(|| u32::from(distance))
    }

    /// The ways between two forwarding devices, as global link ids; `weight` picks one where there are too many.
    pub fn segment(
        &self,
        fabric: &Fabric,
        from: u32,
        to: u32,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<&Segment> {
        let reach = self.reach(from)?;
        let slot = reach.segments.get(to as usize)?;
        if let Some(segment) = slot.get() {
            return Some(segment);
        }
        let segment = self.ways(fabric, reach, from, to, weight)?;
        Some(slot.get_or_init(|| Box::new(segment)))
    }

    /// Whether every forwarding device reaches every other.
    pub fn is_joined(&self) -> bool {
        let count = self.from.len();
        let mut seen = vec![false; count];
        let mut queue: Vec<u32> = (count > 0).then_some(0).into_iter().collect();
        seen.iter_mut().take(1).for_each(|first| *first = true);
        while let Some(at) = queue.pop() {
            // A cable that has failed in one direction serves in none here: what is reached then reaches back.
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
        from: u32,
        to: u32,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<Segment> {
        if from == to {
            return Some(Segment::empty());
        }
        let length = reach.distance.get(to as usize).copied().filter(|&d| d != FAR)?;
        let mut dense: rustc_hash::FxHashMap<u32, u32> = rustc_hash::FxHashMap::default();
        dense.insert(to, 0);
        let mut layer = vec![to];
        let mut steps = Vec::new();
        for distance in (0..length).rev() {
            let mut before = Vec::new();
            for &state in &layer {
                for edge in self.leaving(state).iter().filter(|edge| reach.distance[edge.to as usize] == distance) {
                    let (previous, arriving) = (edge.to, edge.link.reverse());
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
                        layer: u32::from(distance),
                        bandwidth: comparable(link.bandwidth),
                        latency: link.latency.0,
                    });
                }
            }
            layer = before;
        }
        steps.sort_by_key(|step| (step.layer, step.link));
        settle(dense.len(), *dense.get(&from)?, &[0], &steps, weight)
    }
}
