//! Robust non-linear least squares: Levenberg–Marquardt with the weights of a soft loss.
//!
//! Residuals are logarithms of predicted ÷ measured. The loss of a residual r is 2s²(√(1 + (r/s)²) − 1): quadratic up
//! to about s and linear beyond, so that an outlier has no more influence than a residual of s (Charbonnier and others,
//! *Two deterministic half-quadratic regularization algorithms for computed imaging*, ICIP 1994). The steps follow
//! Marquardt, *An algorithm for least-squares estimation of nonlinear parameters*, SIAM J. Appl. Math. 1963, with
//! Nielsen's damping.

use nalgebra::{DMatrix, DVector};

/// Scale s of the loss in two rounds: a large scale first, which converges from a distant start, then a small one.
const SOFT: [f64; 2] = [0.15, 0.03];
const MAX_STEPS: usize = 40;
/// Maximum number of consecutive steps with updated derivatives, before the derivatives are recomputed.
const MAX_BROYDEN_UPDATES: usize = 3;
/// Maximum number of descents. Before each, the weights of the priors are recomputed from the residuals of the last
/// one.
const MAX_DESCENTS: usize = 6;
/// Relative decrease of the loss below which a descent stops. With this value, the medians of hold-out errors from
/// different starting points differ by 0.3 percentage points.
const MIN_GAIN: f64 = 3e-4;

/// A non-linear least-squares problem with priors of its coordinates.
pub(super) trait Problem: Sync {
    /// Returns true if the minimisation must stop. Its result then has no meaning.
    fn is_interrupted(&self) -> bool {
        false
    }
    /// Residuals at a point.
    fn residuals(&self, coordinates: &[f64]) -> Vec<f64>;
    /// Derivatives of the residuals at a point, one column per coordinate. `residuals` are their values at the point.
    fn derivatives(&self, coordinates: &[f64], residuals: &[f64]) -> Vec<Vec<f64>>;
    /// Moves a point to the nearest allowed one.
    fn clamp(&self, coordinates: &mut [f64]);
    /// Prior of each coordinate: its expected value if no residual depends on it, and the deviation that is equivalent
    /// to a residual of 1.
    fn expected(&self) -> Vec<(f64, f64)>;
    /// Priors that two coordinates are equal after each is multiplied by a factor.
    fn equality_priors(&self) -> Vec<EqualityPrior> {
        Vec::new()
    }
    /// Priors that coordinates are zero. A prior applies only if residuals depend on the coordinate; otherwise the
    /// coordinate keeps its expected value.
    fn zero_priors(&self) -> Vec<ZeroPrior> {
        Vec::new()
    }
}

/// Prior that two coordinates are equal, each multiplied by a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EqualityPrior {
    /// Indices of the coordinates.
    pub coordinates: (usize, usize),
    /// Factors by which the coordinates are multiplied before the comparison.
    pub factors: (f64, f64),
    /// Difference that is equivalent to the median residual.
    pub far: f64,
}

impl EqualityPrior {
    fn difference(&self, coordinates: &[f64]) -> f64 {
        self.factors.0 * coordinates[self.coordinates.0] - self.factors.1 * coordinates[self.coordinates.1]
    }
}

/// Prior that a coordinate is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ZeroPrior {
    /// Index of the coordinate.
    pub coordinate: usize,
    /// Distance from zero with the weight of the median residual.
    pub far: f64,
}

/// All priors of the coordinates.
struct Priors {
    expected: Vec<(f64, f64)>,
    equality: Vec<EqualityPrior>,
    zero: Vec<ZeroPrior>,
}

/// Upper limit of the median residual in the scaling of priors, so that coordinates can leave a starting point with
/// large residuals.
const MAX_MEDIAN_RESIDUAL: f64 = 0.05;

impl Priors {
    /// Scales the priors by the median of `residuals`: the smaller the median, the lower the weight of a deviation from
    /// equality or zero. `slopes` are the derivatives of the residuals; priors of zero apply only to coordinates on
    /// which the residuals depend.
    fn new(problem: &impl Problem, residuals: &[f64], slopes: &DMatrix<f64>) -> Self {
        let usual = median_residual(residuals).clamp(f64::MIN_POSITIVE, MAX_MEDIAN_RESIDUAL);
        Self {
            expected: problem.expected(),
            equality: problem
                .equality_priors()
                .into_iter()
                .map(|tie| EqualityPrior { far: tie.far / usual, ..tie })
                .collect(),
            zero: problem
                .zero_priors()
                .into_iter()
                .filter(|prior| slopes.column(prior.coordinate).iter().any(|slope| *slope != 0.0))
                .map(|prior| ZeroPrior { far: prior.far / usual, ..prior })
                .collect(),
        }
    }

    /// Contribution of the priors to the loss at a point.
    fn loss(&self, coordinates: &[f64]) -> f64 {
        let expected_loss = |(x, (value, deviation)): (&f64, &(f64, f64))| ((x - value) / deviation).powi(2);
        let equality_loss = |tie: &EqualityPrior| (tie.difference(coordinates) / tie.far).powi(2);
        let zero_loss = |prior: &ZeroPrior| (coordinates[prior.coordinate] / prior.far).powi(2);
        coordinates.iter().zip(&self.expected).map(expected_loss).sum::<f64>()
            + self.equality.iter().map(equality_loss).sum::<f64>()
            + self.zero.iter().map(zero_loss).sum::<f64>()
    }

    /// Adds the contributions of the priors to the normal equations at a point.
    fn add(&self, coordinates: &[f64], normal: &mut DMatrix<f64>, gradient: &mut DVector<f64>) {
        for (i, (value, deviation)) in self.expected.iter().enumerate() {
            let weight = deviation.powi(-2);
            normal[(i, i)] += weight;
            gradient[i] += weight * (coordinates[i] - value);
        }
        for prior in &self.zero {
            let weight = prior.far.powi(-2);
            normal[(prior.coordinate, prior.coordinate)] += weight;
            gradient[prior.coordinate] += weight * coordinates[prior.coordinate];
        }
        for tie in &self.equality {
            let weight = tie.far.powi(-2);
            let slopes = [(tie.coordinates.0, tie.factors.0), (tie.coordinates.1, -tie.factors.1)];
            for (row, slope) in slopes {
                gradient[row] += weight * slope * tie.difference(coordinates);
                for (column, factor) in slopes {
                    normal[(row, column)] += weight * slope * factor;
                }
            }
        }
    }
}

/// Result of a minimisation.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    pub coordinates: Vec<f64>,
    /// Residuals, multiplied by the square roots of the loss weights.
    pub weighted: Vec<f64>,
    /// Derivatives of the weighted residuals.
    pub jacobian: DMatrix<f64>,
}

/// Median of the absolute residuals.
fn median_residual(residuals: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|residual| residual.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes.get(sizes.len() / 2).copied().unwrap_or_default()
}

fn loss(residuals: &[f64], soft: f64) -> f64 {
    residuals.iter().map(|r| 2.0 * soft * soft * ((1.0 + (r / soft).powi(2)).sqrt() - 1.0)).sum()
}

/// Square roots of the weights with which least squares has the gradient of the loss.
fn weights(residuals: &[f64], soft: f64) -> Vec<f64> {
    residuals.iter().map(|r| (1.0 + (r / soft).powi(2)).powf(-0.25)).collect()
}

/// Distance of the starting point from the minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartDistance {
    /// Unknown distance: derivatives are recomputed during the descent.
    Far,
    /// The start is the minimum of a similar problem. Derivatives change little, so they are updated and never
    /// recomputed.
    Near,
}

/// Minimises the loss of a problem, from `start` until a step decreases it by too little.
pub(super) fn minimise(problem: &impl Problem, start: &[f64], distance: StartDistance) -> Minimum {
    let [coarse, fine] = SOFT;
    match distance {
        StartDistance::Far => {
            let mut minimum = descend(problem, start, coarse, distance);
            let mut before = f64::INFINITY;
            for _ in 0..MAX_DESCENTS {
                let now = loss(&problem.residuals(&minimum.coordinates), fine);
                // Each descent scales the priors by the current residuals, so a better fit permits larger deviations.
                if now > before * 0.8 {
                    break;
                }
                before = now;
                minimum = descend(problem, &minimum.coordinates, fine, distance);
            }
            minimum
        }
        StartDistance::Near => descend(problem, start, fine, distance),
    }
}

fn descend(problem: &impl Problem, start: &[f64], soft: f64, distance: StartDistance) -> Minimum {
    let mut coordinates = start.to_vec();
    problem.clamp(&mut coordinates);
    let mut residuals = problem.residuals(&coordinates);
    let mut slopes = compute_derivatives(problem, &coordinates, &residuals);
    let priors = Priors::new(problem, &residuals, &slopes);
    let (mut damping, mut growth) = (1e-3, 2.0);
    // Number of steps since the derivatives were last computed.
    let mut updates = 0;
    for _ in 0..MAX_STEPS {
        if problem.is_interrupted() {
            break;
        }
        let jacobian = weighted(&slopes, &residuals, soft);
        let mut gradient = jacobian.transpose() * DVector::from_vec(times_weights(&residuals, soft));
        let mut normal = jacobian.transpose() * &jacobian;
        priors.add(&coordinates, &mut normal, &mut gradient);
        for i in 0..coordinates.len() {
            normal[(i, i)] += damping * normal[(i, i)].max(1e-9);
        }
        let Some(next) = step(problem, &coordinates, normal, gradient) else { break };
        let next_residuals = problem.residuals(&next);
        let before = loss(&residuals, soft) + priors.loss(&coordinates);
        let after = loss(&next_residuals, soft) + priors.loss(&next);
        if after < before {
            // The decrease is relative to the loss of the rows alone, because the loss of the priors does not vanish
            // with better fits.
            let gain = (before - after) / loss(&residuals, soft).max(f64::MIN_POSITIVE);
            let is_fresh = updates == 0;
            if distance == StartDistance::Near || (gain > MIN_GAIN && updates < MAX_BROYDEN_UPDATES) {
                let from = Iterate { coordinates: &coordinates, residuals: &residuals };
                carry(&mut slopes, from, Iterate { coordinates: &next, residuals: &next_residuals });
                updates += 1;
            } else {
                slopes = compute_derivatives(problem, &next, &next_residuals);
                updates = 0;
            }
            (coordinates, residuals, damping, growth) = (next, next_residuals, (damping / 3.0).max(1e-9), 2.0);
            if gain < MIN_GAIN && (is_fresh || distance == StartDistance::Near) {
                break;
            }
        } else if updates > 0 && distance == StartDistance::Near {
            break;
        } else if updates > 0 {
            slopes = compute_derivatives(problem, &coordinates, &residuals);
            updates = 0;
        } else {
            damping *= growth;
            growth *= 2.0;
            if damping > 1e8 {
                break;
            }
        }
    }
    if updates > 0 && distance == StartDistance::Far {
        slopes = compute_derivatives(problem, &coordinates, &residuals);
    }
    Minimum { weighted: times_weights(&residuals, soft), jacobian: weighted(&slopes, &residuals, soft), coordinates }
}

/// Solves the normal equations for the next point; `None` if they are singular. A coordinate that would leave its
/// bounds is fixed at the bound, and the equations are solved again for the others. Clipping the whole step at the
/// bound could stop without a decrease of the loss (Bertsekas, *Projected Newton methods for optimization problems with
/// simple constraints*, SIAM J. Control Optim. 1982).
fn step(
    problem: &impl Problem,
    coordinates: &[f64],
    mut normal: DMatrix<f64>,
    mut gradient: DVector<f64>,
) -> Option<Vec<f64>> {
    let mut stays = vec![false; coordinates.len()];
    loop {
        let moves = normal.clone().cholesky()?.solve(&gradient);
        let free: Vec<f64> = coordinates.iter().zip(moves.iter()).map(|(x, change)| x - change).collect();
        let mut next = free.clone();
        problem.clamp(&mut next);
        let leaves = |i: usize| !stays[i] && next[i] == coordinates[i] && free[i] != coordinates[i];
        let leaving: Vec<usize> = (0..coordinates.len()).filter(|&i| leaves(i)).collect();
        if leaving.is_empty() {
            return Some(next);
        }
        for i in leaving {
            stays[i] = true;
            normal.row_mut(i).fill(0.0);
            normal.column_mut(i).fill(0.0);
            normal[(i, i)] = 1.0;
            gradient[i] = 0.0;
        }
    }
}

/// A point with its residuals.
#[derive(Clone, Copy)]
struct Iterate<'a> {
    coordinates: &'a [f64],
    residuals: &'a [f64],
}

/// Updates derivatives after a step, by the smallest change that explains the new residuals (Broyden, *A class of
/// methods for solving nonlinear simultaneous equations*, Math. Comp. 1965).
fn carry(slopes: &mut DMatrix<f64>, from: Iterate<'_>, to: Iterate<'_>) {
    let (before, after) = (from.residuals, to.residuals);
    let (from, to) = (from.coordinates, to.coordinates);
    let step = DVector::from_iterator(from.len(), to.iter().zip(from).map(|(to, from)| to - from));
    let length = step.norm_squared();
    if length > 0.0 {
        let change =
            DVector::from_iterator(before.len(), after.iter().zip(before).map(|(after, before)| after - before));
        let unexplained = change - &*slopes * &step;
        *slopes += unexplained * step.transpose() / length;
    }
}

fn times_weights(residuals: &[f64], soft: f64) -> Vec<f64> {
    residuals.iter().zip(weights(residuals, soft)).map(|(residual, weight)| residual * weight).collect()
}

fn compute_derivatives(problem: &impl Problem, coordinates: &[f64], residuals: &[f64]) -> DMatrix<f64> {
    let columns = problem.derivatives(coordinates, residuals);
    DMatrix::from_fn(residuals.len(), coordinates.len(), |row, column| columns[column][row])
}

fn weighted(slopes: &DMatrix<f64>, residuals: &[f64], soft: f64) -> DMatrix<f64> {
    let weights = weights(residuals, soft);
    DMatrix::from_fn(slopes.nrows(), slopes.ncols(), |row, column| slopes[(row, column)] * weights[row])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test problem whose rows determine the sum of two coordinates and do not depend on a third.
    struct Sum {
        rows: usize,
        alike: Vec<EqualityPrior>,
        nothing: Vec<ZeroPrior>,
    }

    const SUM: f64 = 3.0;

    impl Problem for Sum {
        fn residuals(&self, coordinates: &[f64]) -> Vec<f64> {
            let error = ((coordinates[0] + coordinates[1]) / SUM).ln();
            (0..self.rows).map(|row| if row % 2 == 0 { error + SCATTER } else { error - SCATTER }).collect()
        }

        fn derivatives(&self, coordinates: &[f64], _: &[f64]) -> Vec<Vec<f64>> {
            let derivative = vec![1.0 / (coordinates[0] + coordinates[1]); self.rows];
            vec![derivative.clone(), derivative, vec![0.0; self.rows]]
        }

        fn clamp(&self, coordinates: &mut [f64]) {
            coordinates.iter_mut().for_each(|x| *x = x.max(0.001));
        }

        fn expected(&self) -> Vec<(f64, f64)> {
            vec![(2.0, 1e3), (0.1, 1e3), (7.0, 1e3)]
        }

        fn equality_priors(&self) -> Vec<EqualityPrior> {
            self.alike.clone()
        }

        fn zero_priors(&self) -> Vec<ZeroPrior> {
            self.nothing.clone()
        }
    }

    /// Relative scatter of the rows: ± 1 %.
    const SCATTER: f64 = 0.01;

    #[test]
    fn priors_decide_only_what_rows_leave_undetermined() {
        let solve = |equality, zero| {
            minimise(&Sum { rows: 40, alike: equality, nothing: zero }, &[2.0, 0.1, 7.0], StartDistance::Far)
                .coordinates
        };
        let tied = solve(vec![EqualityPrior { coordinates: (0, 1), factors: (0.5, 1.0), far: 0.05 }], Vec::new());
        assert!((tied[0] - 2.0).abs() < 0.02 && (tied[1] - 1.0).abs() < 0.02, "{tied:?}");
        let free = solve(Vec::new(), Vec::new());
        assert!((free[0] + free[1] - SUM).abs() < 0.01 && (free[1] - 1.0).abs() > 0.3, "{free:?}");
        let zero = [0, 2].map(|coordinate| ZeroPrior { coordinate, far: 0.05 });
        let plain = solve(Vec::new(), zero.to_vec());
        assert!(plain[0] < 0.05 && (plain[0] + plain[1] - SUM).abs() < 0.01, "{plain:?}");
        assert!((plain[2] - 7.0).abs() < 1e-6, "no row feels it, and it stays: {plain:?}");
    }
}
