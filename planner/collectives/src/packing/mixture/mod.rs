//! Mixtures of spanning trees over the routes between ranks, by linear programs.
//!
//! ```text
//! Routes ─► network: edges between ranks, with the links of each
//!             ├► shortest_trees: tree of the cheapest paths, for given prices of links    (a block for each rank)
//!             └► arborescence: tree of the cheapest edges                                 (a block for all ranks)
//!                  └► linear_program: trees with rates ─► rounding: trees with units
//! ```
//!
//! Every root sends a separate block to each rank, or receives one from each, in an all_to_all, scatter and gather: a link
//! from a parent to a child carries the blocks of all ranks below it. The fastest way to move all blocks is a
//! multicommodity flow: rates on paths, of which no link carries more than its bandwidth. The paths of one root form
//! trees, so that its flow is a mixture of spanning trees. By duality, prices of links prove that no mixture is faster: the
//! price of all bandwidth, times the time, is at least the sum over all blocks of the price of their cheapest path
//! (Shahrokhi & Matula, *The maximum concurrent flow problem*, J. ACM 1990).
//!
//! In other collectives, an edge carries the block of its root once, and trees compete by the prices of their edges. The
//! trees of ForestColl are packed exactly, but for each root; the program finds those of one root per class of alike ranks.

mod arborescence;
mod linear_program;
mod network;
mod rounding;
mod shortest_trees;
#[cfg(test)]
mod tests;

pub(super) use network::Network;

use super::error::PackingError;
use super::forest::{BlockKind, Forest, PackedTree};
use super::optimum::Ratio;
use super::variant::TreeVariant;
use arborescence::cheapest_arborescence;
use linear_program::{MixedTree, Mixture, Objective, mix, solve};
use rounding::Division;
use shortest_trees::shortest_tree;

/// Trees with their lower bound.
#[derive(Clone, Debug)]
pub(super) struct MixedForest {
    pub forest: Forest,
    /// Prices of links that prove the bound, by number of the link in the network.
    pub prices: Vec<u64>,
    /// Time that no mixture of trees is below, in seconds per byte of the call.
    pub lower: Ratio,
}

/// Finds trees of a variant whose edges carry a block for each rank below them.
///
/// # Errors
/// [`PackingError::Disconnected`] if a root cannot reach some rank, [`PackingError::NoMixture`] if the program has no
/// solution in floating point, [`PackingError::TooManyPaths`] if exact shares of paths exceed 128 bits.
pub(super) fn personalised_trees(network: &Network, variant: TreeVariant) -> Result<MixedForest, PackingError> {
    if let Some(rank) = network.unreachable() {
        return Err(PackingError::Disconnected { rank });
    }
    let fastest = solve(network, Objective::ShortestTime).ok_or(PackingError::NoMixture)?;
    let prices = network.integer_prices(&fastest.prices);
    let lower = network.proven_time(&prices).ok_or(PackingError::TooManyPaths)?;
    let time = lower.value() / network.block_time() * f64::from(variant.widening());
    let mixture = match variant.widening() {
        1 => fastest,
        _ => solve(network, Objective::FewestHops { time }).ok_or(PackingError::NoMixture)?,
    };
    Ok(MixedForest { forest: of_whole_units(network, &mixture, variant, time), prices, lower })
}

/// Finds trees of a variant whose edges carry the block of their root once. Those of the shortest time are a mixture of the
/// cheapest trees; among them, and among trees of cheap and short paths, those of the fewest hops in the time of the variant
/// are used.
///
/// # Errors
/// [`PackingError::Disconnected`] if a root cannot reach some rank, [`PackingError::NoMixture`] if the program has no
/// solution in floating point.
pub(super) fn common_trees(network: &Network, variant: TreeVariant) -> Result<Forest, PackingError> {
    if let Some(rank) = network.unreachable() {
        return Err(PackingError::Disconnected { rank });
    }
    let fastest = solve(network, Objective::ShortestTime).ok_or(PackingError::NoMixture)?;
    let time = fastest.time() * f64::from(variant.widening());
    let objective = match variant.widening() {
        1 => Objective::ShortestTime,
        _ => Objective::FewestHops { time },
    };
    let shallow = network.first_roots().iter().flat_map(|&root| shallow_trees(network, root, &fastest.prices));
    let trees = fastest.trees.into_iter().map(|mixed| mixed.tree).chain(shallow).collect();
    let mut trees = mix(network, trees, objective).ok_or(PackingError::NoMixture)?;
    let between: Vec<PackedTree> = network.first_roots().iter().flat_map(|&root| blends(&trees, root)).collect();
    trees.extend(between.into_iter().map(|tree| MixedTree { times: network.times(&tree), tree, share: 0.0 }));
    let mixture = Mixture { trees, prices: fastest.prices };
    Ok(of_whole_units(network, &mixture, variant, time))
}

/// Prices of a hop, relative to the mean price of an edge in the cheapest tree, of the trees of cheap and short paths.
const HOP_PRICES: [f64; 6] = [0.01, 0.1, 0.5, 1.0, 3.0, 100.0];

/// Trees of cheap and short paths from a root.
fn shallow_trees(network: &Network, root: u32, prices: &[f64]) -> Vec<PackedTree> {
    let price = |edge: usize| network.uses(edge).iter().map(|used| used.time * prices[used.link]).sum::<f64>();
    let cheapest = cheapest_arborescence(network, root, price);
    let total: f64 =
        cheapest.edges().filter_map(|(parent, child)| network.edge_between(parent, child)).map(price).sum();
    let mean = (total / f64::from(network.ranks())).max(f64::MIN_POSITIVE);
    let tree = |hop: &f64| {
        let tree = shortest_tree(network, root, |edge| hop * mean + price(edge));
        PackedTree { root, units: 1, parents: tree.parents }
    };
    HOP_PRICES.iter().map(tree).chain([cheapest]).collect()
}

/// Largest number of trees between two trees of a root.
const MAX_BLENDS: usize = 8;

/// Trees between the two trees of a root with the largest shares: the ranks of the first one move to their parents in the
/// second one by one. With one of them, a few units often have the loads of the mixture exactly.
fn blends(trees: &[MixedTree], root: u32) -> Vec<PackedTree> {
    let mut of_root: Vec<&MixedTree> = trees.iter().filter(|mixed| mixed.tree.root == root).collect();
    of_root.sort_by(|a, b| b.share.total_cmp(&a.share));
    let [first, second, ..] = of_root.as_slice() else { return Vec::new() };
    let mut tree = first.tree.clone();
    // In the order of the second tree, each new parent is already linked to the root by edges of that tree.
    let moves = second.tree.order().into_iter().filter_map(|rank| {
        let parent = second.tree.parents[rank as usize];
        let is_moved = std::mem::replace(&mut tree.parents[rank as usize], parent) != parent;
        is_moved.then(|| tree.clone())
    });
    moves.take(MAX_BLENDS).collect()
}

/// Divides blocks into whole units, as many as a variant or a time of the busiest link needs.
fn of_whole_units(network: &Network, mixture: &Mixture, variant: TreeVariant, time: f64) -> Forest {
    match variant {
        TreeVariant::AtMost(units) => Division::new(network, mixture, units).forest(),
        TreeVariant::Optimal | TreeVariant::Widened(_) => few_units(network, mixture, time),
    }
}

/// Numbers of units of a block up to this one are all tried.
const FEW_UNITS: u32 = 64;

/// Larger numbers of units, which few fabrics need: links of very unequal bandwidth.
const MANY_UNITS: [u32; 4] = [96, 128, 192, 256];

/// Share by which trees of whole units may exceed the time of the best mixture. The first number of units with which they
/// do not is used, because the number of messages grows with it.
const MAX_ROUNDING_LOSS: f64 = 0.01;

/// Relative difference up to which times are equal: the one up to which linear programs are solved.
const EQUAL_TIMES: f64 = 2e-5;

/// Divides blocks into as few units as a time of the busiest link nearly permits. Trees of common blocks are divided so
/// that they lose nothing, if few units suffice for it: the number of their messages grows less with the units.
fn few_units(network: &Network, mixture: &Mixture, time: f64) -> Forest {
    if network.blocks() == BlockKind::Common {
        let exact = (1..=FEW_UNITS).map(|units| Division::new(network, mixture, units));
        if let Some(exact) = exact.into_iter().find(|division| division.time() <= time * (1.0 + EQUAL_TIMES)) {
            return exact.forest();
        }
    }
    let mut best = Division::new(network, mixture, 1);
    for units in (2..=FEW_UNITS).chain(MANY_UNITS) {
        if best.time() <= time * (1.0 + MAX_ROUNDING_LOSS) {
            break;
        }
        let division = Division::new(network, mixture, units);
        if division.time() < best.time() {
            best = division;
        }
    }
    best.forest()
}
