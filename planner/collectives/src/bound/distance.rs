//! Latency of a first byte: shortest paths by latency, through switches and ranks.
//!
//! A third rank may forward data, so the latency of a direct route is not a lower bound; that of the shortest path is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;

use super::cut::Direction;
use super::wiring::Wiring;

/// Directed graph with edge lengths, which are latencies in picoseconds unless stated otherwise.
pub(super) struct Distances {
    start: Vec<u32>,
    /// Edges, ordered by start vertex.
    onward: Vec<Edge>,
    /// Number of devices with ranks; they are the first vertices.
    devices: usize,
    distances: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Edge of the graph, seen from its start vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub to: u32,
    /// Number of the wire.
    pub wire: u32,
    pub length: u64,
}

/// Edge of a tree of shortest paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeEdge {
    pub from: u32,
    pub edge: Edge,
}

impl Distances {
    /// Creates the graph with latencies in picoseconds as edge lengths.
    pub(super) fn new(wiring: &Wiring, devices: usize, direction: Direction) -> Self {
        Self::with_lengths(wiring, devices, direction, |wire| wiring.wires[wire].latency.0)
    }

    /// Creates the graph with other edge lengths. `length` returns the length of a wire, given the number of the wire.
    pub(super) fn with_lengths(
        wiring: &Wiring,
        devices: usize,
        direction: Direction,
        length: impl Fn(usize) -> u64,
    ) -> Self {
        let ends = |wire: &super::wiring::Wire| match direction {
            Direction::Away => (wire.from, wire.to),
            Direction::Towards => (wire.to, wire.from),
        };
        let mut start = vec![0u32; wiring.vertices as usize + 1];
        for wire in &wiring.wires {
            start[ends(wire).0 as usize + 1] += 1;
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        let mut next_slot = start.clone();
        let mut onward = vec![Edge { to: 0, wire: 0, length: 0 }; wiring.wires.len()];
        for (number, wire) in wiring.wires.iter().enumerate() {
            let (from, to) = ends(wire);
            let slot = &mut next_slot[from as usize];
            onward[*slot as usize] = Edge { to, wire: number as u32, length: length(number) };
            *slot += 1;
        }
        let distances = vec![u64::MAX; wiring.vertices as usize];
        Self { start, onward, devices, distances, queue: BinaryHeap::new() }
    }

    /// Returns the distances from a set of devices to each device; `u64::MAX` if there is no path.
    pub(super) fn distances_from(&mut self, sources: impl IntoIterator<Item = u32>) -> &[u64] {
        self.search(sources, |_| false);
        &self.distances[..self.devices]
    }

    /// Replaces the lengths of all edges. `length` returns the length of a wire, given the number of the wire.
    pub(super) fn set_lengths(&mut self, length: impl Fn(usize) -> u64) {
        for edge in &mut self.onward {
            edge.length = length(edge.wire as usize);
        }
    }

    /// Returns the tree of the shortest paths from a device to all vertices that it reaches. The edge to a vertex precedes
    /// the edges from it.
    pub(super) fn tree_from(&mut self, source: u32) -> Vec<TreeEdge> {
        self.search([source], |_| false);
        let mut is_reached = vec![false; self.distances.len()];
        is_reached[source as usize] = true;
        let mut tree: Vec<TreeEdge> = Vec::new();
        let mut next = 0;
        let mut at = source;
        loop {
            for &edge in self.edges_from(at) {
                let is_shortest =
                    self.distances[at as usize].saturating_add(edge.length) == self.distances[edge.to as usize];
                if is_shortest && !is_reached[edge.to as usize] {
                    is_reached[edge.to as usize] = true;
                    tree.push(TreeEdge { from: at, edge });
                }
            }
            let Some(reached) = tree.get(next) else { return tree };
            (at, next) = (reached.edge.to, next + 1);
        }
    }

    /// Returns the number of vertices.
    pub(super) fn vertices(&self) -> usize {
        self.distances.len()
    }

    fn edges_from(&self, vertex: u32) -> &[Edge] {
        &self.onward[self.start[vertex as usize] as usize..self.start[vertex as usize + 1] as usize]
    }

    /// Returns the latency of the shortest path from one device to another; `None` if there is no path.
    pub(super) fn between(&mut self, from: u32, to: u32) -> Option<Picos> {
        self.search([from], |vertex| vertex == to).map(Picos)
    }

    /// Returns the latency of the shortest path from the devices inside a set to the nearest device outside; `None` if
    /// there is no path.
    pub(super) fn nearest_outside(&mut self, inside: &[bool]) -> Option<Picos> {
        let sources: Vec<u32> = (0..).zip(inside).filter(|(_, inside)| **inside).map(|(device, _)| device).collect();
        let outside = |vertex: u32| inside.get(vertex as usize).is_some_and(|inside| !inside);
        self.search(sources, outside).map(Picos)
    }

    /// Returns, for each part of the devices, the latency of the shortest path from the nearest device of any other
    /// part; `None` if there is no path. `part_by_device`: part of each device. One search serves all parts: Dijkstra's
    /// method with all devices as sources, which stores the two nearest parts of each vertex, because a part is nearest
    /// to its own devices.
    pub(super) fn nearest_other_parts(&self, part_by_device: &[u32], parts: usize) -> Vec<Option<Picos>> {
        const NONE: (u64, u32) = (u64::MAX, u32::MAX);
        let mut nearest = vec![[NONE; 2]; self.distances.len()];
        let mut queue: BinaryHeap<Reverse<(u64, u32, u32)>> =
            (0..).zip(part_by_device).map(|(device, &part)| Reverse((0, device, part))).collect();
        while let Some(Reverse((distance, at, part))) = queue.pop() {
            let [first, second] = &mut nearest[at as usize];
            match (first.1, second.1) {
                (u32::MAX, _) => *first = (distance, part),
                (known, u32::MAX) if known != part => *second = (distance, part),
                _ => continue,
            }
            for &Edge { to, length, .. } in self.edges_from(at) {
                let [first, second] = &nearest[to as usize];
                if second.1 == u32::MAX && first.1 != part {
                    queue.push(Reverse((distance.saturating_add(length), to, part)));
                }
            }
        }
        let mut result = vec![None; parts];
        for (device_part, candidates) in part_by_device.iter().zip(&nearest) {
            let other = candidates
                .iter()
                .find(|(_, part)| part != device_part && *part != u32::MAX)
                .map(|&(distance, _)| Picos(distance));
            if let (Some(slot), Some(distance)) = (result.get_mut(*device_part as usize), other) {
                *slot = Some(slot.map_or(distance, |known: Picos| known.min(distance)));
            }
        }
        result
    }

    /// Runs Dijkstra's method from `sources`. Returns the distance of the first settled vertex for which `is_end` is
    /// true; `None` if there is none.
    fn search(&mut self, sources: impl IntoIterator<Item = u32>, is_end: impl Fn(u32) -> bool) -> Option<u64> {
        self.distances.fill(u64::MAX);
        self.queue.clear();
        for source in sources {
            self.distances[source as usize] = 0;
            self.queue.push(Reverse((0, source)));
        }
        while let Some(Reverse((distance, at))) = self.queue.pop() {
            if distance > self.distances[at as usize] {
                continue;
            }
            if is_end(at) {
                return Some(distance);
            }
            let edges = self.start[at as usize] as usize..self.start[at as usize + 1] as usize;
            for &Edge { to, length, .. } in &self.onward[edges] {
                let total = distance.saturating_add(length);
                if total < self.distances[to as usize] {
                    self.distances[to as usize] = total;
                    self.queue.push(Reverse((total, to)));
                }
            }
        }
        None
    }
}
