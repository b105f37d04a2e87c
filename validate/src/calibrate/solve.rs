//! Robust non-linear least squares: Levenberg–Marquardt with the weights of a soft loss, and what the data can tell.
//!
//! Residuals are logarithms of predicted ÷ measured. The loss of a residual r is 2s²(√(1 + (r/s)²) − 1): quadratic up to
//! about s, linear beyond, so that a stray measurement pulls no harder than one at s (Charbonnier and others, *Two
//! deterministic half-quadratic regularization algorithms for computed imaging*, ICIP 1994). Steps: Marquardt, *An
//! algorithm for least-squares estimation of nonlinear parameters*, SIAM J. Appl. Math. 1963, with Nielsen's damping.

use nalgebra::{DMatrix, DVector};

/// Beyond this a residual counts linearly: first far out, so that a bad start finds its way, then close.
const SOFT: [f64; 2] = [0.15, 0.03];
const MOST_STEPS: usize = 25;
/// Steps over which slopes are carried before they are worked out anew.
const MOST_CARRIED: usize = 3;
/// A step that gains less than this part of the loss is the last.
const LEAST_GAIN: f64 = 1e-3;

/// What is minimised.
pub(super) trait Problem: Sync {
    /// Residuals at a point.
    fn residuals(&self, at: &[f64]) -> Vec<f64>;
    /// Derivatives of the residuals by each coordinate, a column each.
    fn derivatives(&self, at: &[f64], residuals: &[f64]) -> Vec<Vec<f64>>;
    /// The nearest point that is allowed.
    fn clamp(&self, at: &mut [f64]);
    /// Where each coordinate stays if no residual feels it, and how far from there it costs a residual of one.
    fn expected(&self) -> Vec<(f64, f64)>;
}

/// A minimum.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    pub at: Vec<f64>,
    /// Residuals, weighted by the loss.
    pub weighted: Vec<f64>,
    /// Their derivatives.
    pub jacobian: DMatrix<f64>,
}

fn loss(residuals: &[f64], soft: f64) -> f64 {
    residuals.iter().map(|r| 2.0 * soft * soft * ((1.0 + (r / soft).powi(2)).sqrt() - 1.0)).sum()
}

/// What the distances from expected values cost.
fn held(at: &[f64], expected: &[(f64, f64)]) -> f64 {
    at.iter().zip(expected).map(|(x, (value, far))| ((x - value) / far).powi(2)).sum()
}

/// Square roots of the weights that make least squares of the loss.
fn weights(residuals: &[f64], soft: f64) -> Vec<f64> {
    residuals.iter().map(|r| (1.0 + (r / soft).powi(2)).powf(-0.25)).collect()
}

/// How far a start may be from the minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Anywhere.
    Far,
    /// The minimum of much the same problem: slopes hardly differ, so those of the start are carried to the end and never
    /// worked out anew.
    Near,
}

/// Goes down from `start` until steps gain nothing.
pub(super) fn minimise(problem: &impl Problem, start: &[f64], from: Start) -> Minimum {
    let [far, close] = SOFT;
    match from {
        Start::Far => descend(problem, &descend(problem, start, far, from).at, close, from),
        Start::Near => descend(problem, start, close, from),
    }
}

fn descend(problem: &impl Problem, start: &[f64], soft: f64, from: Start) -> Minimum {
    let mut at = start.to_vec();
    problem.clamp(&mut at);
    let expected = problem.expected();
    let mut residuals = problem.residuals(&at);
    let (mut damping, mut growth) = (1e-3, 2.0);
    let mut slopes = slopes_at(problem, &at, &residuals);
    // Steps that the slopes have been carried over.
    let mut carried = 0;
    for _ in 0..MOST_STEPS {
        let jacobian = weighted(&slopes, &residuals, soft);
        let mut gradient = jacobian.transpose() * DVector::from_vec(times_weights(&residuals, soft));
        let mut normal = jacobian.transpose() * &jacobian;
        for (i, (value, far)) in expected.iter().enumerate() {
            let weight = far.powi(-2);
            normal[(i, i)] += weight;
            gradient[i] += weight * (at[i] - value);
            normal[(i, i)] += damping * normal[(i, i)].max(1e-9);
        }
        let Some(decomposed) = normal.cholesky() else { break };
        let step = decomposed.solve(&gradient);
        let mut next: Vec<f64> = at.iter().zip(step.iter()).map(|(x, s)| x - s).collect();
        problem.clamp(&mut next);
        let found = problem.residuals(&next);
        let before = loss(&residuals, soft) + held(&at, &expected);
        let after = loss(&found, soft) + held(&next, &expected);
        if after < before {
            let gain = (before - after) / before;
            let is_fresh = carried == 0;
            if from == Start::Near || (gain > LEAST_GAIN && carried < MOST_CARRIED) {
                carry(&mut slopes, (&at, &next), (&residuals, &found));
                carried += 1;
            } else {
                slopes = slopes_at(problem, &next, &found);
                carried = 0;
            }
            (at, residuals, damping, growth) = (next, found, (damping / 3.0).max(1e-9), 2.0);
            if gain < LEAST_GAIN && (is_fresh || from == Start::Near) {
                break;
            }
        } else if carried > 0 && from == Start::Near {
            break;
        } else if carried > 0 {
            slopes = slopes_at(problem, &at, &residuals);
            carried = 0;
        } else {
            damping *= growth;
            growth *= 2.0;
            if damping > 1e8 {
                break;
            }
        }
    }
    if carried > 0 && from == Start::Far {
        slopes = slopes_at(problem, &at, &residuals);
    }
    Minimum { weighted: times_weights(&residuals, soft), jacobian: weighted(&slopes, &residuals, soft), at }
}

/// Carries slopes over a step by the least change that explains the residuals found (Broyden, *A class of methods for
/// solving nonlinear simultaneous equations*, Math. Comp. 1965).
fn carry(slopes: &mut DMatrix<f64>, (from, to): (&[f64], &[f64]), (before, after): (&[f64], &[f64])) {
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

fn slopes_at(problem: &impl Problem, at: &[f64], residuals: &[f64]) -> DMatrix<f64> {
    let columns = problem.derivatives(at, residuals);
    DMatrix::from_fn(residuals.len(), at.len(), |row, column| columns[column][row])
}

fn weighted(slopes: &DMatrix<f64>, residuals: &[f64], soft: f64) -> DMatrix<f64> {
    let weights = weights(residuals, soft);
    DMatrix::from_fn(slopes.nrows(), slopes.ncols(), |row, column| slopes[(row, column)] * weights[row])
}
