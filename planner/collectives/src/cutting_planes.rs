//! Linear programs in prices with cutting planes.
//!
//! ```text
//! maximise  Σ payments + cost × Σ prices   subject to   Σ weight × price ≤ limit,
//!           payment of each payer ≤ Σ amount × price + constant, for all cuts of the payer
//! ```
//!
//! There are far too many cuts to list: a choice of paths each. For given prices, the cheapest paths are the cut that a
//! payment exceeds most, and are added (Kelley, *The cutting-plane method*, J. SIAM 1960).

use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, Variable};

/// Relative difference between the bounds of a program at which it is solved.
const GAP: f64 = 1e-5;

/// Relative difference up to which a payment equals a cut.
const TOLERANCE: f64 = 1e-7;

/// Weight of the prices with the highest lower bound in those for which cuts are sought (Wentges, *Weighted
/// Dantzig-Wolfe decomposition*, 1997): fewer rounds than with the prices of the program alone, which jump.
const CENTRE_WEIGHT: f64 = 0.7;

/// Largest number of rounds in which cuts are added.
const MAX_ROUNDS: usize = 400;

/// Upper bound on a payment, as a function of prices.
pub(crate) trait Cut {
    /// Amount that each price is multiplied by.
    fn amounts(&self) -> &[f64];

    /// Part that does not depend on prices.
    fn constant(&self) -> f64;

    /// Value for some prices.
    fn value(&self, prices: &[f64]) -> f64 {
        self.constant() + self.amounts().iter().zip(prices).map(|(amount, price)| amount * price).sum::<f64>()
    }
}

/// Constants of a program.
#[derive(Clone, Debug)]
pub(crate) struct PriceProgram {
    /// Weight of each price in the sum that is limited, above 0.
    pub weights: Vec<f64>,
    pub limit: f64,
    /// Part of the objective per unit of each price, at most 0.
    pub cost: f64,
}

/// Lowest cut of each payer for some prices.
pub(crate) struct LowestCuts<C> {
    /// One cut per payer.
    pub cuts: Vec<C>,
    /// Value of the program's objective with payments equal to the cuts: a lower bound on its maximum.
    pub lower: f64,
}

/// Solution of a program, up to a relative difference of a hundred-thousandth.
pub(crate) struct Prices<C> {
    /// Prices with the highest lower bound.
    pub prices: Vec<f64>,
    /// All cuts that were found, the first ones of all payers first.
    pub cuts: Vec<C>,
}

impl PriceProgram {
    /// Solves the program; `None` if the solver finds no solution in floating point. `first`: one cut per payer. `lowest`:
    /// function that returns the lowest cuts for some prices.
    pub(crate) fn solve<C: Cut>(
        &self,
        first: Vec<C>,
        mut lowest: impl FnMut(&[f64]) -> LowestCuts<C>,
    ) -> Option<Prices<C>> {
        let mut master = Master::new(self, &first)?;
        let mut cuts = first;
        // At first, all prices are equal.
        let mut centre = vec![self.limit / self.weights.iter().sum::<f64>(); self.weights.len()];
        let mut highest = f64::NEG_INFINITY;
        for _ in 0..MAX_ROUNDS {
            let prices = master.prices();
            let between = centre
                .iter()
                .zip(&prices)
                .map(|(centre, price)| CENTRE_WEIGHT * centre + (1.0 - CENTRE_WEIGHT) * price);
            let mut violated: Vec<(usize, C)> = Vec::new();
            for point in [between.collect(), prices.clone()] {
                let LowestCuts { cuts, lower } = lowest(&point);
                if lower > highest {
                    (highest, centre) = (lower, point);
                }
                let cuts = cuts.into_iter().enumerate();
                violated.extend(cuts.filter(|(payer, cut)| {
                    let payment = master.payment(*payer);
                    payment > cut.value(&prices) + TOLERANCE * payment.abs().max(1.0)
                }));
                if !violated.is_empty() {
                    break;
                }
            }
            if violated.is_empty() || master.value() - highest <= GAP * master.value() {
                break;
            }
            for (payer, cut) in violated {
                master = master.with(payer, &cut)?;
                cuts.push(cut);
            }
        }
        Some(Prices { prices: centre, cuts })
    }
}

/// Program with the cuts found so far.
struct Master {
    solution: Solution,
    prices: Vec<Variable>,
    payments: Vec<Variable>,
}

impl Master {
    /// `cuts`: one cut of each payer, which bounds its payment.
    fn new<C: Cut>(program: &PriceProgram, cuts: &[C]) -> Option<Self> {
        let PriceProgram { weights, limit, cost } = program;
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let prices: Vec<Variable> =
            weights.iter().map(|weight| problem.add_var(*cost, (0.0, limit / weight))).collect();
        let payments: Vec<Variable> = cuts.iter().map(|_| problem.add_var(1.0, (0.0, f64::INFINITY))).collect();
        let weighted: Vec<(Variable, f64)> = prices.iter().copied().zip(weights.iter().copied()).collect();
        problem.add_constraint(weighted, ComparisonOp::Le, *limit);
        for (cut, &payment) in cuts.iter().zip(&payments) {
            problem.add_constraint(constraint(cut, payment, &prices), ComparisonOp::Le, cut.constant());
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(Self { solution, prices, payments })
    }

    /// Adds a cut of a payer.
    fn with<C: Cut>(self, payer: usize, cut: &C) -> Option<Self> {
        let Self { solution, prices, payments } = self;
        let terms = constraint(cut, payments[payer], &prices);
        let solution = solution.add_constraint(terms, ComparisonOp::Le, cut.constant()).ok()?.into_solution().ok()?;
        Some(Self { solution, prices, payments })
    }

    fn prices(&self) -> Vec<f64> {
        self.prices.iter().map(|&price| self.solution.var_value(price).max(0.0)).collect()
    }

    fn payment(&self, payer: usize) -> f64 {
        self.solution.var_value(self.payments[payer])
    }

    /// Upper bound on the value of the program with all cuts.
    fn value(&self) -> f64 {
        self.solution.objective()
    }
}

/// Left side of the constraint of a cut: a payment, less the amounts of the prices.
fn constraint<C: Cut>(cut: &C, payment: Variable, prices: &[Variable]) -> Vec<(Variable, f64)> {
    let used = cut.amounts().iter().zip(prices).filter(|&(&amount, _)| amount > 0.0);
    used.map(|(&amount, &price)| (price, -amount)).chain([(payment, 1.0)]).collect()
}
