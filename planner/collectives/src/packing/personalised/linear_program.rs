//! Linear programs over mixtures of trees.
//!
//! The program in the prices of links has a constraint per tree: what a root pays is at most the price of the tree. Trees
//! are added as they are violated: for given prices, the tree of the cheapest paths of each root is the most violated one
//! (the cutting planes of Kelley, J. SIAM 1960; column generation in the program of the rates). When no tree is violated, the
//! rates follow from a program over the trees that were found.

use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, Variable};

use super::network::Network;
use super::shortest_trees::{Tree, shortest_tree};
use crate::packing::forest::PackedTree;

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

/// Tree that carries a share of its root's blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MixedTree {
    /// Tree of one unit.
    pub tree: PackedTree,
    /// Time of each link for whole blocks.
    pub times: Vec<f64>,
    /// Share of the blocks, 0 to 1.
    pub share: f64,
}

/// Tree that a program considers.
#[derive(Clone, Debug, PartialEq)]
struct Column {
    tree: PackedTree,
    /// Time of each link.
    times: Vec<f64>,
    /// Hops of all blocks, as a share of those of the trees of the fewest hops.
    hops: f64,
}

/// Price of the shortest time that equal prices of links prove, relative to the hops of the trees of the fewest hops. A
/// mixture takes up to a ten-thousandth of that time longer for each such number of hops that it avoids, and the prices of
/// links prove as much less.
const TIME_PRICE: f64 = 1e4;

/// Relative difference up to which prices are equal.
const TOLERANCE: f64 = 1e-7;

/// Relative difference between the bounds of a program at which it is solved.
const GAP: f64 = 1e-5;

/// Weight of the prices with the highest lower bound in those for which trees are sought (Wentges, *Weighted
/// Dantzig-Wolfe decomposition*, 1997): fewer rounds than with the prices of the program alone, which jump.
const CENTRE_WEIGHT: f64 = 0.7;

/// Largest number of rounds in which trees are added.
const MAX_ROUNDS: usize = 400;

/// Finds a mixture of trees; `None` if the solver finds no solution in floating point.
pub(super) fn solve(network: &Network, objective: Objective) -> Option<Mixture> {
    let program = Program::new(network, objective);
    let mut columns: Vec<Column> =
        program.roots.iter().map(|&root| program.column(root, shortest_tree(network, root, |_| 1u32))).collect();
    if network.links() == 0 || columns.iter().all(|column| column.times.iter().all(|&time| time == 0.0)) {
        let trees = columns.into_iter().map(|column| column.mixed(1.0)).collect();
        return Some(Mixture { trees, prices: vec![0.0; network.links()] });
    }
    let mut master = Master::new(&program, &columns)?;
    // Prices with the highest lower bound so far; at first, the time of every link costs the same.
    let mut centre = vec![program.price / network.links() as f64; network.links()];
    let mut highest = f64::NEG_INFINITY;
    for _ in 0..MAX_ROUNDS {
        let prices = master.prices();
        let between =
            centre.iter().zip(&prices).map(|(centre, price)| CENTRE_WEIGHT * centre + (1.0 - CENTRE_WEIGHT) * price);
        let mut violated: Vec<(usize, Column)> = Vec::new();
        for point in [between.collect(), prices.clone()] {
            let (cheapest, lower) = program.cheapest(&point);
            if lower > highest {
                (highest, centre) = (lower, point);
            }
            let payments = cheapest.into_iter().enumerate();
            violated.extend(payments.filter(|(root, column)| column.is_violated(master.payment(*root), &prices)));
            if !violated.is_empty() {
                break;
            }
        }
        if violated.is_empty() || master.value() - highest <= GAP * master.value() {
            break;
        }
        for (root, column) in violated {
            master = master.with(root, &column)?;
            columns.push(column);
        }
    }
    let shares = program.shares(&columns)?;
    let used = columns.into_iter().zip(shares).filter(|&(_, share)| share > TOLERANCE);
    Some(Mixture { trees: used.map(|(column, share)| column.mixed(share)).collect(), prices: centre })
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

impl Column {
    /// Returns true if its root pays more than the price of the tree.
    fn is_violated(&self, payment: f64, prices: &[f64]) -> bool {
        let price = self.hops + self.times.iter().zip(prices).map(|(time, price)| time * price).sum::<f64>();
        payment > price + TOLERANCE * payment.abs().max(1.0)
    }

    fn mixed(self, share: f64) -> MixedTree {
        MixedTree { tree: self.tree, times: self.times, share }
    }
}

/// Constants of both programs: minimise the hops of all blocks, plus the price of the time above the allowed one.
struct Program<'a> {
    network: &'a Network,
    roots: Vec<u32>,
    /// Cost of a hop of a block: that of all blocks over the trees of the fewest hops is 1.
    hop: f64,
    /// Price of a unit of time.
    price: f64,
    allowed: f64,
}

impl<'a> Program<'a> {
    fn new(network: &'a Network, objective: Objective) -> Self {
        let roots: Vec<u32> = network.roots().ranks(network.ranks()).collect();
        let hops = |&root: &u32| f64::from(shortest_tree(network, root, |_| 1u32).total());
        let hop = 1.0 / roots.iter().map(hops).sum::<f64>().max(1.0);
        // No mixture is faster than what equal prices of all links prove.
        let links = network.links().max(1) as f64;
        let time = |edge: usize| network.edge(edge).uses.iter().map(|used| used.time / links).sum::<f64>();
        let shortest: f64 = roots.iter().map(|&root| shortest_tree(network, root, time).total()).sum();
        let price = if shortest > 0.0 { TIME_PRICE / shortest } else { TIME_PRICE };
        Self { network, roots, hop, price, allowed: objective.allowed_time() }
    }

    fn column<C>(&self, root: u32, tree: Tree<C>) -> Column {
        let tree = PackedTree { root, units: 1, parents: tree.parents };
        let below = tree.ranks_below();
        let blocks: f64 = tree.edges().map(|(_, child)| f64::from(below[child as usize])).sum();
        Column { hops: blocks * self.hop, times: self.network.times(&tree), tree }
    }

    /// Returns the cheapest tree of each root for prices of links, and the lower bound that they prove.
    fn cheapest(&self, prices: &[f64]) -> (Vec<Column>, f64) {
        let price =
            |edge: usize| self.network.edge(edge).uses.iter().map(|used| used.time * prices[used.link]).sum::<f64>();
        let mut lower = -self.allowed * prices.iter().sum::<f64>();
        let mut columns = Vec::with_capacity(self.roots.len());
        for &root in &self.roots {
            let tree = shortest_tree(self.network, root, |edge| self.hop + price(edge));
            lower += tree.total();
            columns.push(self.column(root, tree));
        }
        (columns, lower)
    }
}

/// Program in the prices of links: maximise what all roots pay, less the price of the allowed time. The prices of all
/// links sum up to at most that of the time.
struct Master {
    solution: Solution,
    prices: Vec<Variable>,
    payments: Vec<Variable>,
}

impl Master {
    /// `columns`: one tree of each root, which bound what it pays.
    fn new(program: &Program<'_>, columns: &[Column]) -> Option<Self> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let prices: Vec<Variable> =
            (0..program.network.links()).map(|_| problem.add_var(-program.allowed, (0.0, program.price))).collect();
        let payments: Vec<Variable> =
            program.roots.iter().map(|_| problem.add_var(1.0, (0.0, f64::INFINITY))).collect();
        problem.add_constraint(
            prices.iter().map(|&price| (price, 1.0)).collect::<Vec<_>>(),
            ComparisonOp::Le,
            program.price,
        );
        for (column, &payment) in columns.iter().zip(&payments) {
            problem.add_constraint(constraint(column, payment, &prices), ComparisonOp::Le, column.hops);
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(Self { solution, prices, payments })
    }

    /// Adds the constraint of a tree.
    fn with(self, root: usize, column: &Column) -> Option<Self> {
        let Self { solution, prices, payments } = self;
        let terms = constraint(column, payments[root], &prices);
        let solution = solution.add_constraint(terms, ComparisonOp::Le, column.hops).ok()?.into_solution().ok()?;
        Some(Self { solution, prices, payments })
    }

    /// Price of each link.
    fn prices(&self) -> Vec<f64> {
        self.prices.iter().map(|&price| self.solution.var_value(price).max(0.0)).collect()
    }

    /// Payment of a root.
    fn payment(&self, root: usize) -> f64 {
        self.solution.var_value(self.payments[root])
    }

    /// Upper bound on the value of the program.
    fn value(&self) -> f64 {
        self.solution.objective()
    }
}

/// Left side of the constraint of a tree: a payment, less the prices of its links.
fn constraint(column: &Column, payment: Variable, prices: &[Variable]) -> Vec<(Variable, f64)> {
    let used = column.times.iter().zip(prices).filter(|&(&time, _)| time > 0.0).map(|(&time, &price)| (price, -time));
    used.chain([(payment, 1.0)]).collect()
}

impl Program<'_> {
    /// Shares of trees that minimise hops and time.
    fn shares(&self, columns: &[Column]) -> Option<Vec<f64>> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let excess = problem.add_var(self.price, (0.0, f64::INFINITY));
        let shares: Vec<Variable> =
            columns.iter().map(|column| problem.add_var(column.hops, (0.0, f64::INFINITY))).collect();
        for &root in &self.roots {
            let of_root = columns.iter().zip(&shares).filter(|(column, _)| column.tree.root == root);
            let terms: Vec<(Variable, f64)> = of_root.map(|(_, &share)| (share, 1.0)).collect();
            problem.add_constraint(terms, ComparisonOp::Eq, 1.0);
        }
        for link in 0..self.network.links() {
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
