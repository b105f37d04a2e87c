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

use fabricast_topologies::LinkId;

use super::error::PackingError;
use super::forest::{BlockKind, Forest, PackedTree};
use super::optimum::Ratio;
use super::variant::TreeVariant;
use arborescence::cheapest_arborescence;
use linear_program::{MixedTree, Mixture, NetworkTree, Objective, mix, solve};
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

/// Mixture of the shortest time, from which the trees of all variants follow.
#[derive(Clone, Debug)]
pub(super) struct FastestMixture {
    /// Networks over the same links, whose trees share them.
    networks: Vec<Network>,
    mixture: Mixture,
    /// Trees of cheap and short paths; none of blocks for each rank, whose program counts hops.
    shallow: Vec<NetworkTree>,
}

impl FastestMixture {
    /// Solves the program of networks over the same links.
    ///
    /// # Errors
    /// [`PackingError::Disconnected`] if a root cannot reach some rank, [`PackingError::NoMixture`] if the program has no
    /// solution in floating point.
    pub(super) fn new(networks: Vec<Network>) -> Result<Self, PackingError> {
        if let Some(rank) = networks.iter().find_map(Network::unreachable) {
            return Err(PackingError::Disconnected { rank });
        }
        let mixture = solve(&networks, Objective::ShortestTime).ok_or(PackingError::NoMixture)?;
        let of_network = |(number, network): (usize, &Network)| {
            let roots = match network.blocks() {
                BlockKind::Common => network.first_roots(),
                BlockKind::PerRank => &[],
            };
            let trees: Vec<PackedTree> =
                roots.iter().flat_map(|&root| shallow_trees(network, root, &mixture.prices)).collect();
            trees.into_iter().map(move |tree| NetworkTree { network: number, tree })
        };
        let shallow = networks.iter().enumerate().flat_map(of_network).collect();
        Ok(Self { networks, mixture, shallow })
    }

    /// Link that represents an orbit, by number of the orbit's price.
    pub(super) fn link(&self, number: usize) -> Option<LinkId> {
        self.networks.first()?.link(number)
    }

    /// Finds trees of a variant whose edges carry a block for each rank below them.
    ///
    /// # Errors
    /// [`PackingError::NoMixture`] if a program has no solution in floating point, [`PackingError::TooManyPaths`] if exact
    /// shares of paths exceed 128 bits.
    pub(super) fn personalised_trees(&self, variant: TreeVariant) -> Result<MixedForest, PackingError> {
        let Self { networks, mixture: fastest, .. } = self;
        let network = networks.first().ok_or(PackingError::NoMixture)?;
        let prices = network.integer_prices(&fastest.prices);
        let lower = network.proven_time(&prices).ok_or(PackingError::TooManyPaths)?;
        let time = lower.value() / network.block_time() * f64::from(variant.widening());
        let forests = match variant.widening() {
            1 => of_whole_units(networks, fastest, variant, time),
            _ => {
                let mixture = solve(networks, Objective::FewestHops { time }).ok_or(PackingError::NoMixture)?;
                of_whole_units(networks, &mixture, variant, time)
            }
        };
        let forest = forests.into_iter().next().ok_or(PackingError::NoMixture)?;
        Ok(MixedForest { forest, prices, lower })
    }

    /// Finds trees of a variant, for each network, whose edges carry the block of their root once: of the cheapest trees, and of trees of cheap
    /// and short paths, those of the fewest hops in the time of the variant.
    ///
    /// # Errors
    /// [`PackingError::NoMixture`] if a program has no solution in floating point.
    pub(super) fn common_trees(&self, variant: TreeVariant) -> Result<Vec<Forest>, PackingError> {
        let Self { networks, mixture: fastest, shallow } = self;
        let time = fastest.time() * f64::from(variant.widening());
        let objective = match variant.widening() {
            1 => Objective::ShortestTime,
            _ => Objective::FewestHops { time },
        };
        let trees = fastest.trees.iter().map(|mixed| &mixed.tree).chain(shallow).cloned().collect();
        let mut trees = mix(networks, trees, objective).ok_or(PackingError::NoMixture)?;
        let mut between = Vec::new();
        for (number, network) in networks.iter().enumerate() {
            let blends = network.first_roots().iter().flat_map(|&root| blends(&trees, number, root));
            between.extend(blends.map(|tree| MixedTree {
                times: network.times(&tree),
                tree: NetworkTree { network: number, tree },
                share: 0.0,
            }));
        }
        trees.extend(between);
        let mixture = Mixture { trees, prices: fastest.prices.clone() };
        Ok(of_whole_units(networks, &mixture, variant, time))
    }
}

/// Prices of a hop, relative to the mean price of an edge in the cheapest tree, of the trees of cheap and short paths.
const HOP_PRICES: [f64; 6] = [0.01, 0.1, 0.5, 1.0, 3.0, 100.0];

/// Trees of cheap and short paths from a root.
fn shallow_trees(network: &Network, root: u32, prices: &[f64]) -> Vec<PackedTree> {
    let price = |edge: usize| network.price(edge, prices);
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
fn blends(trees: &[MixedTree], network: usize, root: u32) -> Vec<PackedTree> {
    let is_of_root = |mixed: &&MixedTree| (mixed.tree.network, mixed.tree.tree.root) == (network, root);
    let mut of_root: Vec<&MixedTree> = trees.iter().filter(is_of_root).collect();
    of_root.sort_by(|a, b| b.share.total_cmp(&a.share));
    let [first, second, ..] = of_root.as_slice() else { return Vec::new() };
    let (first, second) = (&first.tree.tree, &second.tree.tree);
    let mut tree = first.clone();
    // In the order of the second tree, each new parent is already linked to the root by edges of that tree.
    let moves = second.order().into_iter().filter_map(|rank| {
        let parent = second.parents[rank as usize];
        let is_moved = std::mem::replace(&mut tree.parents[rank as usize], parent) != parent;
        is_moved.then(|| tree.clone())
    });
    moves.take(MAX_BLENDS).collect()
}

/// Divides blocks into whole units, as many as a variant or a time of the busiest link needs.
fn of_whole_units(networks: &[Network], mixture: &Mixture, variant: TreeVariant, time: f64) -> Vec<Forest> {
    match variant {
        TreeVariant::AtMost(units) => Division::new(networks, mixture, units).forests(),
        TreeVariant::Optimal | TreeVariant::Widened(_) => few_units(networks, mixture, time),
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
fn few_units(networks: &[Network], mixture: &Mixture, time: f64) -> Vec<Forest> {
    let wanted = match networks.first().map(Network::blocks) {
        Some(BlockKind::PerRank) => MAX_ROUNDING_LOSS,
        Some(BlockKind::Common) | None => EQUAL_TIMES,
    };
    let is_within = |division: &Division<'_>, loss: f64| division.time() <= time * (1.0 + loss);
    let mut best = Division::new(networks, mixture, 1);
    for units in (2..=FEW_UNITS).chain(MANY_UNITS) {
        let suffices = is_within(&best, MAX_ROUNDING_LOSS);
        if is_within(&best, wanted) || suffices && units > FEW_UNITS {
            break;
        }
        let division = Division::new(networks, mixture, units);
        if if suffices { is_within(&division, wanted) } else { division.time() < best.time() } {
            best = division;
        }
    }
    best.forests()
}
