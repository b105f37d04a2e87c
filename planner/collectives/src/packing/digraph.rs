//! Directed graph with integer capacities between terminals (ranks) and switches.

use std::collections::BTreeMap;

use crate::flow::Arc;

/// Directed graph with integer capacities. Its first vertices are the terminals, one per rank; the others are switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digraph {
    terminals: u32,
    vertices: u32,
    /// Capacity of each arc with a capacity above 0, by tail and head.
    capacities: BTreeMap<(u32, u32), u64>,
}

impl Digraph {
    /// Creates a graph without arcs.
    pub(crate) fn new(terminals: u32, vertices: u32) -> Self {
        Self { terminals, vertices: vertices.max(terminals), capacities: BTreeMap::new() }
    }

    /// Number of terminals.
    pub(crate) fn terminals(&self) -> u32 {
        self.terminals
    }

    /// Number of vertices, terminals included.
    pub(crate) fn vertices(&self) -> u32 {
        self.vertices
    }

    /// Capacity from one vertex to another; 0 without an arc.
    pub(crate) fn capacity(&self, from: u32, to: u32) -> u64 {
        self.capacities.get(&(from, to)).copied().unwrap_or(0)
    }

    /// Adds capacity from one vertex to another. Loops are ignored.
    pub(crate) fn add(&mut self, from: u32, to: u32, capacity: u64) {
        if from != to && capacity > 0 {
            let sum = self.capacities.entry((from, to)).or_default();
            *sum = sum.saturating_add(capacity);
        }
    }

    /// Removes up to `capacity` from an arc.
    pub(crate) fn reduce(&mut self, from: u32, to: u32, capacity: u64) {
        if let Some(left) = self.capacities.get_mut(&(from, to)) {
            *left = left.saturating_sub(capacity);
            if *left == 0 {
                self.capacities.remove(&(from, to));
            }
        }
    }

    /// Returns all arcs by tail and head, with their capacities.
    pub(crate) fn arcs(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.capacities.iter().map(|(&(from, to), &capacity)| (from, to, capacity))
    }

    /// Returns the arcs as input of a flow network.
    pub(crate) fn flow_arcs(&self) -> Vec<Arc> {
        self.arcs().map(|(from, to, capacity)| (from, to, u128::from(capacity))).collect()
    }

    /// Returns the heads of the arcs that leave a vertex, ascending, with the capacities.
    pub(crate) fn successors(&self, vertex: u32) -> Vec<(u32, u64)> {
        self.capacities.range((vertex, 0)..=(vertex, u32::MAX)).map(|(&(_, to), &capacity)| (to, capacity)).collect()
    }

    /// Returns the tails of the arcs that enter a vertex, ascending, with the capacities.
    pub(crate) fn predecessors(&self, vertex: u32) -> Vec<(u32, u64)> {
        self.arcs().filter(|arc| arc.1 == vertex).map(|(from, _, capacity)| (from, capacity)).collect()
    }

    /// Removes all arcs of a vertex.
    pub(crate) fn isolate(&mut self, vertex: u32) {
        self.capacities.retain(|&(from, to), _| from != vertex && to != vertex);
    }

    /// Returns the graph with all arcs reversed.
    pub(crate) fn reversed(&self) -> Self {
        let capacities = self.capacities.iter().map(|(&(from, to), &capacity)| ((to, from), capacity)).collect();
        Self { capacities, ..*self }
    }

    /// Returns the graph with every capacity replaced.
    pub(crate) fn map(&self, capacity: impl Fn(u64) -> u64) -> Self {
        let mapped = self.arcs().map(|(from, to, old)| ((from, to), capacity(old)));
        Self { capacities: mapped.filter(|&(_, capacity)| capacity > 0).collect(), ..*self }
    }
}
