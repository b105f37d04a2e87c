//! Evidence for a hypothesis: likelihood of the measured times under it.
//!
//! Under a hypothesis, ln(measured ÷ predicted) of each row is normally distributed. Its standard deviation σ is that
//! of the row's prediction interval. A fraction of the variance ([`COMMON_SHARE`]) is common to all rows of a machine
//! and represents the profile's error on this machine; the rest is independent for each row. The dependence of times on
//! message size, and sizes with narrow intervals, therefore weigh more than a factor that all sizes share. If a
//! hypothesis changes a time, σ is increased, because only a few severities of each fault are tried
//! ([`SEVERITY_SHARE`]).

/// Fraction of the variance that all rows of a machine have in common. The mean product of two rows' deviations,
/// divided by their mean square, is 0.42 for the 800 rows of 37 tables of `validate/data/clusters` and
/// `validate/data/public`.
const COMMON_SHARE: f64 = 0.4;
/// Standard deviation of ln(time) due to the unknown severity of a fault, as a fraction of the change of ln(time).
/// Tried severities differ by factors of 1.3 to 2, so the actual severity differs from the nearest one by about 15 % of
/// the change.
const SEVERITY_SHARE: f64 = 0.15;
/// Width of an 80 % interval of a normal distribution, in standard deviations.
const INTERVAL: f64 = 2.563;
/// Smallest standard deviation of ln(measured): measurements repeat within 4 % (H200 node, two hosts).
const MIN_DEVIATION: f64 = 0.02;

/// A row under a hypothesis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HypothesisResidual {
    /// ln(measured ÷ predicted) for the time predicted under the hypothesis.
    pub ratio: f64,
    /// ln(time predicted under the hypothesis ÷ time predicted without it).
    pub effect: f64,
    /// Standard deviation of ln(measured) without the hypothesis.
    pub deviation: f64,
}

/// Standard deviation of ln(measured) of a row, from the ends of its prediction interval.
pub(super) fn deviation(low: u64, high: u64) -> f64 {
    let width = (high.max(1) as f64 / low.max(1) as f64).ln();
    (width / INTERVAL).max(MIN_DEVIATION)
}

/// Twice the negative log-likelihood of the measured times, relative to that of an exact prediction without a
/// hypothesis. The value never decreases when rows are added.
pub(super) fn surprise(residuals: &[HypothesisResidual]) -> f64 {
    let widening =
        |residual: &HypothesisResidual| 1.0 + (SEVERITY_SHARE * residual.effect / residual.deviation).powi(2);
    let scaled: Vec<f64> =
        residuals.iter().map(|residual| residual.ratio / residual.deviation / widening(residual).sqrt()).collect();
    distance(&scaled) + residuals.iter().map(|residual| widening(residual).ln()).sum::<f64>()
}

/// Squared Mahalanobis distance of deviations in units of their standard deviations, for the covariance (1 − c)·I +
/// c·11ᵀ with c = [`COMMON_SHARE`]. The inverse follows from the Sherman–Morrison formula.
fn distance(deviations: &[f64]) -> f64 {
    let (count, sum) = (deviations.len() as f64, deviations.iter().sum::<f64>());
    let squares: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
    let common = COMMON_SHARE * sum * sum / (1.0 + (count - 1.0).max(0.0) * COMMON_SHARE);
    ((squares - common) / (1.0 - COMMON_SHARE)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn distance_of_one_row_is_its_square() {
        assert!((distance(&[3.0]) - 9.0).abs() < 1e-12);
        assert!(distance(&[]).abs() < 1e-12);
    }

    /// A deviation that all rows share has little weight for any number of rows; a deviation with alternating signs has
    /// full weight.
    #[test]
    fn shape_counts_more_than_a_common_factor() {
        assert!(distance(&[2.0; 12]) < 10.0);
        let shape: Vec<f64> = (0..12).map(|row| if row % 2 == 0 { 2.0 } else { -2.0 }).collect();
        assert!((distance(&shape) - 48.0 / (1.0 - COMMON_SHARE)).abs() < 1e-9);
    }

    #[test]
    fn deviation_is_that_of_the_interval() {
        assert!((deviation(100, 100) - MIN_DEVIATION).abs() < 1e-12);
        let wide = deviation(1_000_000, 12_974_000);
        assert!((wide - 1.0).abs() < 1e-3, "{wide}");
    }

    /// Of two hypotheses that fit equally well, the one with the smaller change of times is more likely.
    #[test]
    fn larger_effects_are_less_certain() {
        let rows = |effect| [HypothesisResidual { ratio: 0.0, effect, deviation: 0.1 }; 4];
        assert!(surprise(&rows(0.0)).abs() < 1e-12);
        assert!(surprise(&rows(0.5)) < surprise(&rows(1.5)));
    }

    proptest! {
        /// The closed form equals the solution of the covariance's linear system by Gaussian elimination.
        #[test]
        fn distance_is_the_quadratic_form_of_the_inverse(values in prop::collection::vec(-4.0f64..4.0, 1..8)) {
            let count = values.len();
            let mut rows: Vec<Vec<f64>> = (0..count)
                .map(|i| (0..count).map(|j| if i == j { 1.0 } else { COMMON_SHARE }).chain([values[i]]).collect())
                .collect();
            for pivot in 0..count {
                let head = rows[pivot].clone();
                for row in rows.iter_mut().skip(pivot + 1) {
                    let factor = row[pivot] / head[pivot];
                    row.iter_mut().zip(&head).for_each(|(cell, above)| *cell -= factor * above);
                }
            }
            let mut solution = vec![0.0; count];
            for i in (0..count).rev() {
                let known: f64 = (i + 1..count).map(|j| rows[i][j] * solution[j]).sum();
                solution[i] = (rows[i][count] - known) / rows[i][i];
            }
            let expected: f64 = values.iter().zip(&solution).map(|(a, b)| a * b).sum();
            prop_assert!((distance(&values) - expected).abs() < 1e-6 * expected.max(1.0));
        }

        #[test]
        fn surprise_grows_with_rows(values in prop::collection::vec((-1.0f64..1.0, 0.0f64..2.0, 0.02f64..0.5), 2..10)) {
            let rows: Vec<HypothesisResidual> =
                values.into_iter().map(|(ratio, effect, deviation)| HypothesisResidual { ratio, effect, deviation }).collect();
            prop_assert!(surprise(&rows[..rows.len() - 1]) <= surprise(&rows) + 1e-9);
        }
    }
}
