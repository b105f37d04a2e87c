//! Contraction of switches that only connect links in series, such as a NIC between a PCIe switch and a network switch.
//!
//! The contraction preserves all flows between other vertices exactly, so that it needs no maximum flow and precedes the
//! removal of the other switches ([`super::splitting`]).

use std::collections::BTreeSet;

use super::digraph::Digraph;

/// Returns a graph with the same flows between terminals, in which no switch has only one other vertex at an end.
pub(super) fn contract_series(graph: &Digraph) -> Digraph {
    let mut contraction = Contraction::new(graph);
    let mut open: BTreeSet<u32> = (graph.terminals()..graph.vertices()).collect();
    while let Some(switch) = open.pop_first() {
        let neighbours: Vec<u32> = contraction.neighbours(switch).collect();
        if contraction.contract(switch) {
            open.extend(neighbours.into_iter().filter(|&vertex| vertex >= graph.terminals()));
        }
    }
    contraction.graph
}

/// Graph during the contraction.
struct Contraction {
    graph: Digraph,
    /// Tails of the arcs that enter each vertex.
    predecessors: Vec<BTreeSet<u32>>,
}

impl Contraction {
    fn new(graph: &Digraph) -> Self {
        let mut predecessors = vec![BTreeSet::new(); graph.vertices() as usize];
        for (from, to, _) in graph.arcs() {
            predecessors[to as usize].insert(from);
        }
        Self { graph: graph.clone(), predecessors }
    }

    fn neighbours(&self, vertex: u32) -> impl Iterator<Item = u32> + use<'_> {
        let successors = self.graph.successors(vertex).into_iter().map(|(to, _)| to);
        self.predecessors[vertex as usize].iter().copied().chain(successors)
    }

    /// Contracts a switch if that preserves all flows. Returns true if it did.
    fn contract(&mut self, switch: u32) -> bool {
        let into: Vec<(u32, u64)> =
            self.predecessors[switch as usize].iter().map(|&from| (from, self.graph.capacity(from, switch))).collect();
        let out = self.graph.successors(switch);
        if into.is_empty() && out.is_empty() {
            return false;
        }
        let Some(bypasses) = bypasses(&into, &out) else { return false };
        for &(from, _) in &into {
            self.graph.reduce(from, switch, u64::MAX);
        }
        for &(to, _) in &out {
            self.graph.reduce(switch, to, u64::MAX);
            self.predecessors[to as usize].remove(&switch);
        }
        self.predecessors[switch as usize].clear();
        for Bypass { from, to, capacity } in bypasses {
            self.graph.add(from, to, capacity);
            self.predecessors[to as usize].insert(from);
        }
        true
    }
}

/// Arc that replaces the arcs through a switch.
struct Bypass {
    from: u32,
    to: u32,
    capacity: u64,
}

/// Returns the arcs that replace a switch with these arcs; `None` if the switch limits flows that share it.
fn bypasses(into: &[(u32, u64)], out: &[(u32, u64)]) -> Option<Vec<Bypass>> {
    let sum = |arcs: &[(u32, u64)], except: u32| {
        arcs.iter().filter(|arc| arc.0 != except).fold(0u64, |sum, arc| sum.saturating_add(arc.1))
    };
    let arc = |from: u32, to: u32, capacity: u64| (from != to).then_some(Bypass { from, to, capacity });
    match (into, out) {
        // Between two vertices, each direction is limited by its narrower arc.
        _ if is_between_two(into, out) => {
            let pairs = into.iter().flat_map(|&(from, entering)| {
                out.iter().filter_map(move |&(to, leaving)| arc(from, to, entering.min(leaving)))
            });
            Some(pairs.collect())
        }
        // The only arc on one side is as wide as all arcs on the other side.
        (&[(from, entering)], _) if entering >= sum(out, from) => {
            Some(out.iter().filter_map(|&(to, leaving)| arc(from, to, leaving)).collect())
        }
        (_, &[(to, leaving)]) if leaving >= sum(into, to) => {
            Some(into.iter().filter_map(|&(from, entering)| arc(from, to, entering)).collect())
        }
        _ if into.is_empty() || out.is_empty() => Some(Vec::new()),
        _ => None,
    }
}

/// Returns true if the arcs join a switch to at most two vertices.
fn is_between_two(into: &[(u32, u64)], out: &[(u32, u64)]) -> bool {
    let ends: BTreeSet<u32> = into.iter().chain(out).map(|arc| arc.0).collect();
    ends.len() <= 2
}
