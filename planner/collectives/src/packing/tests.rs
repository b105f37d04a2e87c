//! Pure graph algorithms against brute force over all cuts.

use proptest::prelude::*;

use super::arborescences::pack;
use super::balance::balance_switches;
use super::dense_flow::DenseFlow;
use super::digraph::Digraph;
use super::optimum::{Ratio, optimum, scale_to_optimum, scale_to_units};
use super::requirement::{Requirement, Roots};
use super::series::contract_series;
use super::splitting::{Turn, remove_switches};
use crate::flow::FlowNetwork;

/// Graphs of up to six terminals and three switches. Links have equal capacities in both directions.
fn graphs() -> impl Strategy<Value = Digraph> {
    (2u32..=6, 0u32..=3).prop_flat_map(|(terminals, switches)| {
        let vertices = terminals + switches;
        let pairs = (0..vertices).flat_map(|a| (a + 1..vertices).map(move |b| (a, b)));
        let pairs: Vec<(u32, u32)> = pairs.collect();
        prop::collection::vec(prop_oneof![3 => Just(0u64), 4 => 1u64..8], pairs.len()).prop_map(move |capacities| {
            let mut graph = Digraph::new(terminals, vertices);
            for (&(a, b), capacity) in pairs.iter().zip(capacities) {
                graph.add(a, b, capacity);
                graph.add(b, a, capacity);
            }
            graph
        })
    })
}

/// Graphs whose arcs have independent capacities.
fn one_way_graphs() -> impl Strategy<Value = Digraph> {
    (2u32..=5, 0u32..=2).prop_flat_map(|(terminals, switches)| {
        let vertices = terminals + switches;
        let pairs: Vec<(u32, u32)> =
            (0..vertices).flat_map(|a| (0..vertices).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
        prop::collection::vec(prop_oneof![1 => Just(0u64), 2 => 1u64..8], pairs.len()).prop_map(move |capacities| {
            let mut graph = Digraph::new(terminals, vertices);
            for (&(from, to), capacity) in pairs.iter().zip(capacities) {
                graph.add(from, to, capacity);
            }
            graph
        })
    })
}

/// Optimal rate by enumeration of all sets of vertices.
fn brute_force(graph: &Digraph, roots: Roots) -> Ratio {
    let mut best: Option<(u128, u128)> = None;
    for set in 1u32..(1 << graph.vertices()) - 1 {
        let inside = |vertex: u32| set >> vertex & 1 == 1;
        let count = roots.ranks(graph.terminals()).filter(|&root| inside(root)).count() as u128;
        if count == 0 || (0..graph.terminals()).all(inside) {
            continue;
        }
        let leaving = graph.arcs().filter(|&(from, to, _)| inside(from) && !inside(to));
        let through: u128 = leaving.map(|arc| u128::from(arc.2)).sum();
        if best.is_none_or(|(other, of)| through * of < other * count) {
            best = Some((through, count));
        }
    }
    best.map_or(Ratio::new(0, 1), |(through, count)| Ratio::new(through, count))
}

fn assert_packed(graph: &Digraph, requirement: Requirement) -> Result<(), TestCaseError> {
    let trees = pack(graph, requirement);
    prop_assert!(trees.is_some());
    let trees = trees.unwrap_or_default();
    let mut left = graph.clone();
    for root in requirement.roots.ranks(graph.terminals()) {
        let units: u64 = trees.iter().filter(|tree| tree.root == root).map(|tree| tree.units).sum();
        prop_assert_eq!(units, requirement.units);
    }
    for tree in &trees {
        prop_assert_eq!(tree.parents.len(), graph.terminals() as usize);
        for child in 0..graph.terminals() {
            let (mut above, mut steps) = (child, 0);
            while above != tree.root {
                above = tree.parents[above as usize];
                steps += 1;
                prop_assert!(steps < graph.terminals(), "no path from the root");
            }
            if child != tree.root {
                let parent = tree.parents[child as usize];
                prop_assert!(left.capacity(parent, child) >= tree.units, "an arc carries too many trees");
                left.reduce(parent, child, tree.units);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn optimum_equals_the_slowest_of_all_cuts(graph in graphs(), one_way in one_way_graphs(), root in 0u32..2) {
        for graph in [graph, one_way] {
            for roots in [Roots::All, Roots::One(root)] {
                let found = optimum(&graph, roots);
                let expected = brute_force(&graph, roots);
                prop_assert_eq!(found.rate, expected);
                // The reported cut is one that limits the rate.
                let sends = |vertex: u32| found.sending_side[vertex as usize];
                let count = roots.ranks(graph.terminals()).filter(|&root| sends(root)).count() as u128;
                let leaving = graph.arcs().filter(|&(from, to, _)| sends(from) && !sends(to));
                let through: u128 = leaving.map(|arc| u128::from(arc.2)).sum();
                prop_assert!(count > 0 && (0..graph.terminals()).any(|vertex| !sends(vertex)));
                prop_assert_eq!(Ratio::new(through, count), expected);
            }
        }
    }

    /// Several flows, so that each begins with the residual state that another has left.
    #[test]
    fn dense_flows_equal_sparse_flows(
        graph in one_way_graphs(),
        flows in prop::collection::vec((0u32..5, prop::collection::vec(0u64..20, 5)), 1..8),
        change in (0u32..5, 0u32..5, 0u64..10),
    ) {
        let mut graph = graph;
        let mut dense = DenseFlow::reversed(&graph);
        let terminals = graph.terminals();
        for (number, (source, limits)) in flows.into_iter().enumerate() {
            let (from, to, capacity) = change;
            if number == 2 && from != to && from < terminals && to < terminals {
                graph.reduce(from, to, u64::MAX);
                graph.add(from, to, capacity);
                dense.set_capacity(from, to, capacity);
            }
            let source = source % terminals;
            let drains: Vec<(u32, u64)> = (0..terminals).zip(limits).filter(|drain| drain.0 != source).collect();
            let mut sparse = FlowNetwork::new(graph.vertices() as usize, &graph.reversed().flow_arcs());
            let expected = sparse.run(source, drains.iter().map(|&(vertex, limit)| (vertex, limit.into())), 1);
            prop_assert_eq!(u128::from(dense.run(source, drains.iter().copied())), expected);
            if expected < drains.iter().map(|drain| u128::from(drain.1)).sum() {
                for terminal in 0..terminals {
                    prop_assert_eq!(dense.is_on_source_side(terminal), sparse.on_source_side(terminal));
                }
            }
        }
    }

    #[test]
    fn contraction_of_series_preserves_the_optimum(graph in graphs(), one_way in one_way_graphs(), root in 0u32..2) {
        for graph in [graph, one_way] {
            let contracted = contract_series(&graph);
            for roots in [Roots::All, Roots::One(root)] {
                prop_assert_eq!(optimum(&contracted, roots).rate, optimum(&graph, roots).rate);
            }
            for switch in graph.terminals()..graph.vertices() {
                let mut ends: Vec<u32> =
                    contracted.arcs().filter(|arc| arc.0 == switch || arc.1 == switch).map(|arc| arc.0 + arc.1 - switch).collect();
                ends.sort_unstable();
                ends.dedup();
                prop_assert!(ends.is_empty() || ends.len() > 2, "a switch remains between two vertices");
            }
        }
    }

    #[test]
    fn trees_reach_the_optimum_without_switches_in_the_way(graph in graphs(), root in 0u32..2) {
        for roots in [Roots::All, Roots::One(root)] {
            let rate = optimum(&graph, roots).rate;
            prop_assume!(rate.numerator > 0);
            let scaled = scale_to_optimum(&graph, roots, rate, u64::MAX);
            prop_assert!(scaled.is_some());
            let Some(scaled) = scaled else { continue };
            prop_assert_eq!(scaled.requirement.deficit(&scaled.graph), 0);
            // Units of one more tree per root do not exist.
            let above = Requirement { units: scaled.requirement.units + 1, ..scaled.requirement };
            prop_assert!(above.deficit(&scaled.graph) > 0);
            let logical = remove_switches(&scaled.graph, scaled.requirement, &|_, _, _| Turn::Direct);
            prop_assert!(logical.arcs().all(|(from, to, _)| from < graph.terminals() && to < graph.terminals()));
            prop_assert_eq!(scaled.requirement.deficit(&logical), 0);
            assert_packed(&logical, scaled.requirement)?;
        }
    }

    #[test]
    fn trees_reach_the_optimum_between_terminals_with_one_way_links(graph in one_way_graphs()) {
        let mut terminals = Digraph::new(graph.terminals(), graph.terminals());
        let between = |vertex: u32| vertex < graph.terminals();
        for (from, to, capacity) in graph.arcs().filter(|&(from, to, _)| between(from) && between(to)) {
            terminals.add(from, to, capacity);
        }
        let graph = terminals;
        let rate = optimum(&graph, Roots::All).rate;
        prop_assume!(rate.numerator > 0);
        let Some(scaled) = scale_to_optimum(&graph, Roots::All, rate, u64::MAX) else { return Ok(()) };
        assert_packed(&scaled.graph, scaled.requirement)?;
    }

    #[test]
    fn fixed_numbers_of_trees_exist_at_their_rate_and_not_above(graph in graphs(), units in 1u64..4) {
        let graph = graph.map(|capacity| capacity * 1000);
        let rate = optimum(&graph, Roots::All).rate;
        prop_assume!(rate.numerator > 0);
        let scaled = scale_to_units(&graph, Roots::All, rate, units, 0);
        prop_assert!(scaled.is_some());
        let Some(scaled) = scaled else { return Ok(()) };
        prop_assert_eq!(scaled.requirement.deficit(&scaled.graph), 0);
        let faster = graph.map(|capacity| capacity / (scaled.unit.numerator as u64 + 1));
        prop_assert!(scaled.requirement.deficit(&faster) > 0);
    }

    /// Capacity that no tree needs is removed from unbalanced switches, and trees remain when the switches are removed.
    #[test]
    fn unbalanced_switches_keep_trees(graph in one_way_graphs()) {
        let rate = optimum(&graph, Roots::All).rate;
        prop_assume!(rate.numerator > 0);
        let Some(scaled) = scale_to_optimum(&graph, Roots::All, rate, u64::MAX) else { return Ok(()) };
        let balanced = balance_switches(&scaled.graph, scaled.requirement);
        prop_assert_eq!(scaled.requirement.deficit(&balanced), 0);
        prop_assert!(balanced.arcs().all(|(from, to, capacity)| capacity <= scaled.graph.capacity(from, to)));
        let logical = remove_switches(&scaled.graph, scaled.requirement, &|_, _, _| Turn::Direct);
        let left = optimum(&logical, Roots::All).rate;
        prop_assert!(left.numerator > 0);
    }
}
