//! Balance of switches: capacity into or out of a switch that no tree needs is removed.
//!
//! The removal of a switch preserves all trees if as much enters the switch as leaves it ([`super::splitting`]). Links
//! with a failed or unused direction unbalance switches. At such a switch, arcs on the side with the larger sum are
//! reduced as far as the maximum flow shows that the trees still exist. Reductions spread through the network: an arc
//! that is reduced at one end may unbalance the switch at the other.

use super::digraph::Digraph;
use super::requirement::Requirement;

/// Side of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Into,
    OutOf,
}

/// Reduces arcs of switches until as much enters each switch as leaves it, as far as the required trees permit. A graph
/// without these trees is returned unchanged.
pub(crate) fn balance_switches(graph: &Digraph, requirement: Requirement) -> Digraph {
    let mut graph = graph.clone();
    let is_balanced = |switch: u32| excess(&graph, switch).is_none();
    if (graph.terminals()..graph.vertices()).all(is_balanced) || requirement.deficit_below(&graph, 1) > 0 {
        return graph;
    }
    let mut is_reduced = true;
    while is_reduced {
        is_reduced = false;
        for switch in graph.terminals()..graph.vertices() {
            is_reduced |= balance(&mut graph, switch, requirement);
        }
    }
    graph
}

/// Reduces arcs on the side of a switch with the larger sum. Returns true if an arc was reduced.
fn balance(graph: &mut Digraph, switch: u32, requirement: Requirement) -> bool {
    let Some((side, mut left)) = excess(graph, switch) else { return false };
    let mut arcs: Vec<(u32, u32)> = match side {
        Side::Into => graph.predecessors(switch).iter().map(|arc| (arc.0, switch)).collect(),
        Side::OutOf => graph.successors(switch).iter().map(|arc| (switch, arc.0)).collect(),
    };
    // An arc whose reduction also balances the switch at its other end comes first.
    let balances_both = |&(from, to): &(u32, u32)| {
        let (other, needed) = if side == Side::Into { (from, Side::OutOf) } else { (to, Side::Into) };
        other >= graph.terminals() && excess(graph, other).is_some_and(|(side, _)| side == needed)
    };
    arcs.sort_by_key(|arc| !balances_both(arc));
    let before = left;
    for (from, to) in arcs {
        left -= reduce(graph, from, to, left, requirement);
    }
    left < before
}

/// Reduces an arc by up to `amount`, as far as the required trees permit. Returns the reduction.
fn reduce(graph: &mut Digraph, from: u32, to: u32, amount: u64, requirement: Requirement) -> u64 {
    let mut amount = amount.min(graph.capacity(from, to));
    while amount > 0 {
        let mut after = graph.clone();
        after.reduce(from, to, amount);
        // Cuts through the arc lose the amount, so the largest deficit is the part that is needed.
        let deficit = requirement.deficit(&after);
        if deficit == 0 {
            *graph = after;
            break;
        }
        amount = amount.saturating_sub(deficit);
    }
    amount
}

/// Returns the side of a switch with the larger sum of capacities and the difference; `None` if the sums are equal.
fn excess(graph: &Digraph, switch: u32) -> Option<(Side, u64)> {
    let sum = |arcs: Vec<(u32, u64)>| arcs.iter().fold(0u64, |sum, arc| sum.saturating_add(arc.1));
    let [into, out] = [graph.predecessors(switch), graph.successors(switch)].map(sum);
    match into.cmp(&out) {
        std::cmp::Ordering::Less => Some((Side::OutOf, out - into)),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some((Side::Into, into - out)),
    }
}
