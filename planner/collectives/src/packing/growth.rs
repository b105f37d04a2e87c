//! Trees of all roots of a graph without switches, at the highest rate that a variant permits.

use fabricast_sim::schedule::Symmetry;

use super::arborescences::{Arborescence, pack};
use super::digraph::Digraph;
use super::error::PackingError;
use super::forest::{BlockKind, Forest, PackedTree};
use super::optimum::{Ratio, ScaledGraph, optimum, scale_to_optimum, scale_to_units};
use super::requirement::{Requirement, Roots};
use super::variant::TreeVariant;
use crate::bound::line::gcd;

/// Largest number of trees per root at which rates are exact.
const MAX_EXACT_UNITS: u64 = 32;

/// Largest number of trees per root. An arc carries a whole number of trees, so that at most 1/64 of the throughput per
/// tree is lost on an arc.
const MAX_UNITS: u64 = 64;

/// Share of the optimal throughput, in percent, that a rounded number of trees per root must reach. The first number
/// that does is used, because the time to pack and to simulate trees grows with it.
const MIN_ROUNDED_PERCENT: u128 = 99;

/// Fractions of a unit of capacity with which the rate of trees is found that remain after the removal of switches.
const FEW_TREES_RESOLUTION: u64 = 1 << 10;

/// Packs trees into the graph without switches. If the removal of switches lost trees, as many as remain are packed, at a
/// lower rate.
pub(super) fn grow_trees(
    scaled: &ScaledGraph,
    logical: &Digraph,
    variant: TreeVariant,
) -> Result<Forest, PackingError> {
    if let Some(trees) = pack(logical, scaled.requirement) {
        return forest(scaled.requirement, trees);
    }
    let roots = scaled.requirement.roots;
    // Capacities count trees: finer ones permit rates of a few trees that are fractions of a unit.
    let graph = match variant {
        TreeVariant::AtMost(_) => logical.map(|capacity| capacity.saturating_mul(FEW_TREES_RESOLUTION)),
        TreeVariant::Optimal | TreeVariant::Widened(_) => logical.clone(),
    };
    let rate = optimum(&graph, roots).rate;
    let reduced = scale(&graph, roots, rate, variant).ok_or(PackingError::NoTrees)?;
    forest(reduced.requirement, pack(&reduced.graph, reduced.requirement).ok_or(PackingError::NoTrees)?)
}

/// Returns the trees of a packing, with units as large as possible.
fn forest(requirement: Requirement, trees: Vec<Arborescence>) -> Result<Forest, PackingError> {
    let common = trees.iter().fold(requirement.units.into(), |common, tree| gcd(common, tree.units.into()));
    let units = |units: u64| u32::try_from(u128::from(units) / common).map_err(|_| PackingError::NoTrees);
    let trees = trees
        .into_iter()
        .map(|tree| Ok(PackedTree { root: tree.root, units: units(tree.units)?, parents: tree.parents }));
    Ok(Forest {
        roots: requirement.roots,
        blocks: BlockKind::Common,
        symmetry: Symmetry::None,
        units: units(requirement.units)?,
        trees: trees.collect::<Result<_, PackingError>>()?,
    })
}

/// Scales a graph to the highest throughput that the number of trees per root of a variant permits.
pub(super) fn scale(graph: &Digraph, roots: Roots, rate: Ratio, variant: TreeVariant) -> Option<ScaledGraph> {
    match variant {
        TreeVariant::Optimal | TreeVariant::Widened(_) => scale_to_few_units(graph, roots, rate),
        TreeVariant::AtMost(units) => scale_to_optimum(graph, roots, rate, units.into())
            .or_else(|| scale_to_units(graph, roots, rate, units.into(), 0)),
    }
}

/// Scales a graph to the optimal throughput, or near it if that needs many trees per root.
fn scale_to_few_units(graph: &Digraph, roots: Roots, rate: Ratio) -> Option<ScaledGraph> {
    let near = |units: u64| scale_to_units(graph, roots, rate, units, MIN_ROUNDED_PERCENT);
    scale_to_optimum(graph, roots, rate, MAX_EXACT_UNITS)
        .or_else(|| (1..=MAX_UNITS).find_map(near))
        .or_else(|| scale_to_units(graph, roots, rate, MAX_UNITS, 0))
}

pub(super) fn is_faster(time: Option<Ratio>, other: Option<Ratio>) -> bool {
    match (time, other) {
        (Some(time), Some(other)) => other.is_above(time) == Some(true),
        (time, _) => time.is_some(),
    }
}
