//! Uncertainty of fitted parameters: intervals, and combinations of parameters that the data cannot separate.

use fabricast_sim::profile::Profile;
use nalgebra::{DMatrix, SymmetricEigen};

use super::parameters::FitParameter;
use super::solve::Minimum;

/// Fitted value of a parameter with its 80 % interval, all in the parameter's unit ([`FitParameter::unit`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The fitted parameter.
    pub parameter: FitParameter,
    /// Fitted value.
    pub value: f64,
    /// Lower end of the 80 % interval.
    pub low: f64,
    /// Upper end of the 80 % interval.
    pub high: f64,
}

/// 90th percentile of the normal distribution: 80 % of values lie within ± this many standard deviations.
const EIGHTY_PERCENT: f64 = 1.281_551_6;
/// Directions of the scaled parameters with an eigenvalue below this fraction of the largest eigenvalue are not
/// determined by the data.
const MIN_EIGENVALUE_RATIO: f64 = 1e-4;
/// Minimum component of a parameter in an undetermined direction for the parameter to be named.
const MIN_COMPONENT: f64 = 0.3;

/// Half-width of the 80 % interval of each parameter, from the curvature at the minimum and the scatter of the
/// residuals. `None` if no row depends on the parameter, whose value is then unbounded.
pub(super) fn spreads(minimum: &Minimum) -> Vec<Option<f64>> {
    let jacobian = &minimum.jacobian;
    let (rows, coordinates) = jacobian.shape();
    let normal = jacobian.transpose() * jacobian;
    let spare = (rows as f64 - coordinates as f64).max(1.0);
    let variance = minimum.weighted.iter().map(|r| r * r).sum::<f64>() / spare;
    let inverse = normal.pseudo_inverse(1e-12).unwrap_or_else(|_| DMatrix::zeros(coordinates, coordinates));
    let spread = |number: usize| EIGHTY_PERCENT * (variance * inverse[(number, number)].max(0.0)).sqrt();
    (0..coordinates).map(|number| (jacobian.column(number).norm() > 0.0).then(|| spread(number))).collect()
}

/// Returns the fitted values with their 80 % intervals. If no row depends on a parameter, its interval is its allowed
/// range.
pub(super) fn estimate_parameters(parameters: &[FitParameter], minimum: &Minimum, profile: &Profile) -> Vec<Estimate> {
    let estimate = |(&parameter, spread): (&FitParameter, Option<f64>)| {
        let value = parameter.get(profile);
        let Some(spread) = spread else {
            return Estimate { parameter, value, low: parameter.lower_limit(), high: parameter.upper_limit() };
        };
        let low = (value - spread).max(parameter.lower_limit());
        Estimate { parameter, value, low, high: (value + spread).min(parameter.upper_limit()) }
    };
    parameters.iter().zip(spreads(minimum)).map(estimate).collect()
}

/// Sets of parameters whose values can change jointly without a change of the predictions. A parameter on which no row
/// depends is a separate set.
pub(super) fn inseparable_parameters(parameters: &[FitParameter], minimum: &Minimum) -> Vec<Vec<FitParameter>> {
    let jacobian = &minimum.jacobian;
    let lengths: Vec<f64> = jacobian.column_iter().map(|column| column.norm()).collect();
    let scaled = DMatrix::from_fn(jacobian.nrows(), jacobian.ncols(), |row, column| {
        if lengths[column] > 0.0 { jacobian[(row, column)] / lengths[column] } else { 0.0 }
    });
    let eigen = SymmetricEigen::new(scaled.transpose() * &scaled);
    let strongest = eigen.eigenvalues.iter().copied().fold(0.0, f64::max);
    // A parameter without influence is listed alone, because eigenvectors would mix it arbitrarily with others.
    let has_influence = |number: usize| lengths.get(number).is_some_and(|length| *length > 0.0);
    let without_influence = parameters.iter().enumerate().filter(|(number, _)| !has_influence(*number));
    let mut sets: Vec<Vec<FitParameter>> = without_influence.map(|(_, &parameter)| vec![parameter]).collect();
    for (value, vector) in eigen.eigenvalues.iter().zip(eigen.eigenvectors.column_iter()) {
        if *value < MIN_EIGENVALUE_RATIO * strongest {
            let members = parameters.iter().enumerate().zip(vector.iter());
            let members = members.filter(|((number, _), part)| part.abs() > MIN_COMPONENT && has_influence(*number));
            sets.push(members.map(|((_, &parameter), _)| parameter).collect());
        }
    }
    sets.retain(|set| !set.is_empty());
    sets.sort();
    sets.dedup();
    sets
}
