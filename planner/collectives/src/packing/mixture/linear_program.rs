//! Linear programs over mixtures of trees.
//!
//! The program in the prices of links has a constraint per tree: what a root pays is at most the price of the tree. Trees
//! are added as they are violated: for given prices, the tree of the cheapest paths of each root is the most violated one
//! (`cutting_planes`; column generation in the program of the rates). When no tree is violated, the rates follow from a
//! program over the trees that were found.
//!
//! Trees of several networks over the same links, such as those of both phases of an all_reduce, share the links.

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};

use super::arborescence::cheapest_arborescence;
use super::network::Network;
use super::shortest_trees::{Tree, shortest_tree};
use crate::cutting_planes::{Cut, LowestCuts, PriceProgram, Prices};
use crate::packing::forest::{BlockKind, PackedTree};

/// Objective of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Objective {
    /// The shortest time of the busiest link, and the fewest hops among mixtures of nearly this time.
    ShortestTime,
    /// The fewest hops of all blocks in a time of the busiest link.
    FewestHops {
        /// Time that the busiest link may need, in units of the time of the slowest link for a block.
        time: f64,
    },
}

/// Trees with the shares of their root's block.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mixture {
    pub trees: Vec<MixedTree>,
    /// Price of each link's time for a block.
    pub prices: Vec<f64>,
}

/// Tree of one unit in one of the networks of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NetworkTree {
    /// Number of the network.
    pub network: usize,
    pub tree: PackedTree,
}

/// Tree that carries a share of its root's blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MixedTree {
    pub tree: NetworkTree,
    /// Time of each link for whole blocks.
    pub times: Vec<f64>,
    /// Share of the blocks, 0 to 1.
    pub share: f64,
}

/// Tree that a program considers.
#[derive(Clone, Debug, PartialEq)]
struct Column {
    tree: NetworkTree,
    /// Time of each link.
    times: Vec<f64>,
    /// Hops of all blocks, as a share of those of the trees of the fewest hops. A block that all ranks receive has as many
    /// hops as a block for each.
    hops: f64,
    /// True if the hops count in the choice of the cheapest tree.
    counts_hops: bool,
}

/// Price of the shortest time that equal prices of links prove, relative to the hops of the trees of the fewest hops. A
/// mixture takes up to a ten-thousandth of that time longer for each such number of hops that it avoids, and the prices of
/// links prove as much less.
const TIME_PRICE: f64 = 1e4;

/// Share of a block below which a tree has none of it.
const SMALLEST_SHARE: f64 = 1e-7;

/// Finds a mixture of trees of networks over the same links; `None` if the solver finds no solution in floating point.
pub(super) fn solve(networks: &[Network], objective: Objective) -> Option<Mixture> {
    let program = Program::new(networks, objective);
    let columns: Vec<Column> = program
        .payers()
        .map(|(network, root)| program.column(network, shortest_tree(&networks[network], root, |_| 1u32)))
        .collect();
    let links = program.links();
    if columns.iter().all(|column| column.times.iter().all(|&time| time == 0.0)) {
        let trees = columns.into_iter().map(|column| column.mixed(1.0)).collect();
        return Some(Mixture { trees, prices: vec![0.0; links] });
    }
    let of_prices = PriceProgram { weights: vec![1.0; links], limit: program.price, cost: -objective.allowed_time() };
    let Prices { prices, cuts: columns } = of_prices.solve(columns, |prices| program.cheapest(prices))?;
    let shares = program.shares(&columns)?;
    let used = columns.into_iter().zip(shares).filter(|&(_, share)| share > SMALLEST_SHARE);
    Some(Mixture { trees: used.map(|(column, share)| column.mixed(share)).collect(), prices })
}

/// Finds the shares of some trees, among them one per network and root, that an objective prefers; `None` if the solver
/// finds no solution in floating point. Trees that are not used have a share of 0.
pub(super) fn mix(networks: &[Network], trees: Vec<NetworkTree>, objective: Objective) -> Option<Vec<MixedTree>> {
    let program = Program::new(networks, objective);
    let columns: Vec<Column> = trees.into_iter().map(|tree| program.packed_column(tree)).collect();
    let shares = program.shares(&columns)?;
    Some(columns.into_iter().zip(shares).map(|(column, share)| column.mixed(share)).collect())
}

impl Objective {
    /// Time of the busiest link that costs nothing.
    fn allowed_time(self) -> f64 {
        match self {
            Self::ShortestTime => 0.0,
            Self::FewestHops { time } => time,
        }
    }
}

impl Mixture {
    /// Time of the busiest link, in units of the time of the slowest link for a block.
    pub(super) fn time(&self) -> f64 {
        let mut times = vec![0.0; self.prices.len()];
        for mixed in &self.trees {
            for (sum, time) in times.iter_mut().zip(&mixed.times) {
                *sum += time * mixed.share;
            }
        }
        times.into_iter().fold(0.0, f64::max)
    }
}

impl Column {
    fn mixed(self, share: f64) -> MixedTree {
        MixedTree { tree: self.tree, times: self.times, share }
    }
}

impl Cut for Column {
    fn amounts(&self) -> &[f64] {
        &self.times
    }

    fn constant(&self) -> f64 {
        if self.counts_hops { self.hops } else { 0.0 }
    }
}

/// Constants of both programs: minimise the hops of all blocks, plus the price of the time above the allowed one.
struct Program<'a> {
    networks: &'a [Network],
    /// Cost of a hop of a block: that of all blocks over the trees of the fewest hops is 1.
    hop: f64,
    /// Price of a unit of time.
    price: f64,
    allowed: f64,
}

impl<'a> Program<'a> {
    fn new(networks: &'a [Network], objective: Objective) -> Self {
        let mut program = Self { networks, hop: 1.0, price: TIME_PRICE, allowed: objective.allowed_time() };
        let hops = |(network, root): (usize, u32)| f64::from(shortest_tree(&networks[network], root, |_| 1u32).total());
        program.hop = 1.0 / program.payers().map(hops).sum::<f64>().max(1.0);
        // No mixture is faster than what equal prices of all links prove.
        let links = program.links().max(1) as f64;
        let shortest = |(network, root): (usize, u32)| {
            let network = &networks[network];
            let time = |edge: usize| network.uses(edge).iter().map(|used| used.time / links).sum::<f64>();
            shortest_tree(network, root, time).total()
        };
        let shortest: f64 = program.payers().map(shortest).sum();
        if shortest > 0.0 {
            program.price = TIME_PRICE / shortest;
        }
        program
    }

    /// Number of links, which all networks have in common.
    fn links(&self) -> usize {
        self.networks.first().map_or(0, Network::links)
    }

    /// Returns the networks, by number, with each of their roots.
    fn payers(&self) -> impl Iterator<Item = (usize, u32)> + use<'a> {
        let networks = self.networks.iter().enumerate();
        networks.flat_map(|(number, network)| network.first_roots().iter().map(move |&root| (number, root)))
    }

    fn column<C>(&self, network: usize, tree: Tree<C>) -> Column {
        let tree = PackedTree { root: tree.root, units: 1, parents: tree.parents };
        self.packed_column(NetworkTree { network, tree })
    }

    fn packed_column(&self, tree: NetworkTree) -> Column {
        let network = &self.networks[tree.network];
        let below = tree.tree.ranks_below();
        let blocks: f64 = tree.tree.edges().map(|(_, child)| f64::from(below[child as usize])).sum();
        let counts_hops = network.blocks() == BlockKind::PerRank;
        Column { hops: blocks * self.hop, counts_hops, times: network.times(&tree.tree), tree }
    }

    /// Returns the cheapest tree of each network and root for prices of links, and the lower bound that they prove.
    fn cheapest(&self, prices: &[f64]) -> LowestCuts<Column> {
        let mut lower = -self.allowed * prices.iter().sum::<f64>();
        let columns = self.payers().map(|(number, root)| {
            let network = &self.networks[number];
            let price = |edge: usize| network.price(edge, prices);
            match network.blocks() {
                BlockKind::PerRank => {
                    let tree = shortest_tree(network, root, |edge| self.hop + price(edge));
                    lower += tree.total();
                    self.column(number, tree)
                }
                BlockKind::Common => {
                    let tree = cheapest_arborescence(network, root, price);
                    let column = self.packed_column(NetworkTree { network: number, tree });
                    lower += column.value(prices);
                    column
                }
            }
        });
        LowestCuts { cuts: columns.collect(), lower }
    }
}

impl Program<'_> {
    /// Shares of trees that minimise hops and time.
    fn shares(&self, columns: &[Column]) -> Option<Vec<f64>> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let excess = problem.add_var(self.price, (0.0, f64::INFINITY));
        let shares: Vec<Variable> =
            columns.iter().map(|column| problem.add_var(column.hops, (0.0, f64::INFINITY))).collect();
        for payer in self.payers() {
            let of_root =
                columns.iter().zip(&shares).filter(|(column, _)| (column.tree.network, column.tree.tree.root) == payer);
            let terms: Vec<(Variable, f64)> = of_root.map(|(_, &share)| (share, 1.0)).collect();
            problem.add_constraint(terms, ComparisonOp::Eq, 1.0);
        }
        for link in 0..self.links() {
            let used = columns.iter().zip(&shares).filter(|(column, _)| column.times[link] > 0.0);
            let mut terms: Vec<(Variable, f64)> = used.map(|(column, &share)| (share, column.times[link])).collect();
            if !terms.is_empty() {
                terms.push((excess, -1.0));
                problem.add_constraint(terms, ComparisonOp::Le, self.allowed);
            }
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(shares.iter().map(|&share| solution.var_value(share)).collect())
    }
}
