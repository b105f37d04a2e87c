//! Removal of switches: pairs of arcs into and out of a switch are replaced by arcs that bypass it, without losing
//! trees.
//!
//! If as much enters a switch as leaves it, its arcs can be paired so that the graph without it contains the same
//! number of trees (Bang-Jensen, Frank & Jackson 1995; Zhao et al., *ForestColl*, arXiv 2402.06787, §5). First all pairs
//! that routes between ranks make are given equal shares, which keeps trees short, then all pairs that routes may make; if trees are lost, pairs are split one by one, each
//! as far as the maximum flow permits. Switches with unequal sums are balanced first ([`balance_switches`]); where that is
//! impossible, trees may be lost, and the caller compares the optimum.

use super::balance::balance_switches;
use super::digraph::Digraph;
use super::requirement::Requirement;

/// Suitability of a pair of arcs through a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// The route between two ranks makes the turn.
    Direct,
    /// A route may make the turn: an end is another switch.
    Routed,
    /// No route between the two ends passes the switch.
    Unrouted,
}

/// Capacity of a pair of arcs through a switch that is replaced by an arc that bypasses the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    from: u32,
    to: u32,
    amount: u64,
}

/// Removes all switches from a graph. `turn` classifies a turn at a switch: (from, switch, to). If trees of only some
/// roots would remain, capacities are doubled until trees of all do: the trees of several roots may need one capacity
/// that each cut counts once.
pub(crate) fn remove_switches(
    graph: &Digraph,
    requirement: Requirement,
    turn: &dyn Fn(u32, u32, u32) -> Turn,
) -> Digraph {
    let one_tree = Requirement { units: 1, ..requirement };
    let without =
        |widening: u32| remove_all(&graph.map(|capacity| capacity.saturating_mul(1 << widening)), requirement, turn);
    let first = without(0);
    if one_tree.deficit_below(&first, 1) == 0 {
        return first;
    }
    let widenings = 1..=graph.vertices().ilog2() + 1;
    widenings.map(without).find(|graph| one_tree.deficit_below(graph, 1) == 0).unwrap_or(first)
}

/// Removes all switches, as far as possible without the loss of a required tree.
fn remove_all(graph: &Digraph, requirement: Requirement, turn: &dyn Fn(u32, u32, u32) -> Turn) -> Digraph {
    let mut graph = balance_switches(graph, requirement);
    let mut left: Vec<u32> = (graph.terminals()..graph.vertices()).collect();
    // Devices in series first, so that the ends of arcs at hubs are terminals.
    while let Some(index) = (0..left.len()).min_by_key(|&index| (degree(&graph, left[index]), left[index])) {
        let switch = left.swap_remove(index);
        graph = remove(&graph, switch, requirement, turn);
    }
    graph
}

fn degree(graph: &Digraph, vertex: u32) -> usize {
    graph.successors(vertex).len() + graph.predecessors(vertex).len()
}

fn remove(graph: &Digraph, switch: u32, requirement: Requirement, turn: &dyn Fn(u32, u32, u32) -> Turn) -> Digraph {
    let (into, out) = (graph.predecessors(switch), graph.successors(switch));
    let share = |worst: Turn| equal_shares(&into, &out, |from, to| turn(from, switch, to) <= worst);
    let bypass = |pairs: &[Pair]| {
        let mut proposed = graph.clone();
        for pair in pairs {
            proposed.add(pair.from, pair.to, pair.amount);
        }
        proposed.isolate(switch);
        Some(proposed).filter(|proposed| requirement.deficit_below(proposed, 1) == 0)
    };
    let (direct, pairs) = (share(Turn::Direct), share(Turn::Routed));
    let proposals = [(!direct.is_empty() && direct != pairs).then_some(&direct), Some(&pairs)];
    if let Some(proposed) = proposals.into_iter().flatten().find_map(|pairs| bypass(pairs)) {
        return proposed;
    }
    // Trees that the removal of an earlier switch lost stay lost.
    let tolerated = requirement.deficit(graph);
    let mut split = graph.clone();
    for pair in pairs {
        split_off(&mut split, switch, pair, requirement, tolerated);
    }
    let mut turns: Vec<(Turn, u32, u32)> = into
        .iter()
        .flat_map(|&(from, _)| out.iter().map(move |&(to, _)| (from, to)))
        .filter(|(from, to)| from != to)
        .map(|(from, to)| (turn(from, switch, to), from, to))
        .collect();
    turns.sort_unstable();
    for (_, from, to) in turns {
        split_off(&mut split, switch, Pair { from, to, amount: u64::MAX }, requirement, tolerated);
    }
    split.isolate(switch);
    split
}

/// Replaces a pair of arcs, up to its capacity and with at most `tolerated` trees missing.
fn split_off(graph: &mut Digraph, switch: u32, pair: Pair, requirement: Requirement, tolerated: u64) {
    let Pair { from, to, .. } = pair;
    let mut amount = pair.amount.min(graph.capacity(from, switch)).min(graph.capacity(switch, to));
    while amount > 0 {
        let mut after = graph.clone();
        after.reduce(from, switch, amount);
        after.reduce(switch, to, amount);
        after.add(from, to, amount);
        // A cut that separates both ends from the switch loses the amount, so its deficit is the excess.
        let excess = requirement.deficit_below(&after, tolerated + 1).saturating_sub(tolerated);
        if excess == 0 {
            *graph = after;
            return;
        }
        amount = amount.saturating_sub(excess);
    }
}

/// Pairs of arcs through a switch in equal shares, in whole units. Shares that do not divide evenly go to the pairs that
/// follow each other at equal distances.
fn equal_shares(into: &[(u32, u64)], out: &[(u32, u64)], is_routed: impl Fn(u32, u32) -> bool) -> Vec<Pair> {
    let mut left_in: Vec<u64> = into.iter().map(|arc| arc.1).collect();
    let mut left_out: Vec<u64> = out.iter().map(|arc| arc.1).collect();
    let is_pair = |i: usize, j: usize| into[i].0 != out[j].0 && is_routed(into[i].0, out[j].0);
    // Distances start at the arc back to the same neighbour, so that they are the same from every neighbour.
    let start = |i: usize| out.iter().position(|arc| arc.0 == into[i].0).unwrap_or(i % out.len().max(1));
    let mut pairs = vec![vec![0u64; out.len()]; into.len()];
    let partners = (0..into.len()).map(|i| (0..out.len()).filter(|&j| is_pair(i, j)).count()).max().unwrap_or(0) as u64;
    let quota = left_in.iter().copied().max().unwrap_or(0).checked_div(partners).unwrap_or(0);
    for quota in [quota, 1, u64::MAX] {
        for distance in 1..=out.len() {
            for i in 0..into.len() {
                let j = (start(i) + distance) % out.len();
                if is_pair(i, j) {
                    let amount = quota.min(left_in[i]).min(left_out[j]);
                    left_in[i] -= amount;
                    left_out[j] -= amount;
                    pairs[i][j] += amount;
                }
            }
        }
    }
    let all =
        pairs.iter().enumerate().flat_map(|(i, row)| row.iter().enumerate().map(move |(j, &amount)| (i, j, amount)));
    all.filter(|&(_, _, amount)| amount > 0)
        .map(|(i, j, amount)| Pair { from: into[i].0, to: out[j].0, amount })
        .collect()
}
