//! Error of predicted times.
//!
//! An error is predicted ÷ measured − 1. The error of a class of jobs is the 80th percentile `e` of its absolute value
//! over measured figures ([`error_figures`](super::error_figures)): four of five measurements are from predicted ÷ (1 + e) to
//! predicted ÷ (1 − e). Intervals of times and probabilities of rankings have the same distribution of measured ÷ predicted,
//! whose median is 1 and whose 10th and 90th percentiles are these two ends. On each side of the median its logarithm is
//! normally distributed (a split normal distribution).

/// Distribution of measured ÷ predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelError {
    /// Median ÷ 10th percentile, as a logarithm, at least 0.
    faster: f64,
    /// 90th percentile ÷ median, as a logarithm, at least 0.
    slower: f64,
}

/// Largest error of a distribution.
const MAX_ERROR: f64 = 0.9;

/// 90th percentile of the standard normal distribution.
const NORMAL_P90: f64 = 1.281_551_6;

impl ModelError {
    /// Error of figures whose |predicted ÷ measured − 1| has the 80th percentile `fraction`. Errors above 90 % count as 90 %.
    pub(super) fn from_fraction(fraction: f64) -> Self {
        let error = fraction.clamp(0.0, MAX_ERROR);
        Self { faster: error.ln_1p(), slower: -(-error).ln_1p() }
    }

    /// Error of figures whose 80th percentile is stated in percent.
    pub(super) fn from_percent(percent: f64) -> Self {
        Self::from_fraction(percent / 100.0)
    }

    /// Returns the 10th and the 90th percentile of measured ÷ predicted.
    pub(super) fn measured_to_predicted(self) -> [f64; 2] {
        [(-self.faster).exp(), self.slower.exp()]
    }

    /// Returns the logarithm of measured ÷ predicted at a deviate of the standard normal distribution.
    pub(super) fn log_ratio(self, deviate: f64) -> f64 {
        deviate / NORMAL_P90 * if deviate < 0.0 { self.faster } else { self.slower }
    }

    /// Returns the deviate of the standard normal distribution at a logarithm of measured ÷ predicted. Both widths must be
    /// above 0.
    pub(super) fn deviate(self, log_ratio: f64) -> f64 {
        NORMAL_P90 * log_ratio / if log_ratio < 0.0 { self.faster } else { self.slower }
    }

    /// Returns the wider of two distributions on each side.
    pub(super) fn larger(self, other: Self) -> Self {
        Self { faster: self.faster.max(other.faster), slower: self.slower.max(other.slower) }
    }

    /// Returns the error of a weighted geometric mean of times with these errors and weights, which are one variable: all
    /// times deviate equally far. No error without weights.
    pub(super) fn of_geometric_mean(errors: impl IntoIterator<Item = (Self, f64)>) -> Self {
        let (mut sum, mut weights) = (Self::default(), 0.0);
        for (error, weight) in errors {
            sum.faster += weight * error.faster;
            sum.slower += weight * error.slower;
            weights += weight;
        }
        if weights > 0.0 { Self { faster: sum.faster / weights, slower: sum.slower / weights } } else { sum }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ends_are_those_of_the_error() {
        let [low, high] = ModelError::from_percent(25.0).measured_to_predicted();
        assert!((low - 0.8).abs() < 1e-12 && (high - 4.0 / 3.0).abs() < 1e-12, "{low} {high}");
        assert_eq!(ModelError::from_percent(0.0), ModelError::default());
        assert_eq!(ModelError::from_percent(150.0), ModelError::from_fraction(MAX_ERROR));
        // The mean of an error and none is its square root.
        let mean = ModelError::of_geometric_mean([(ModelError::from_percent(25.0), 1.0), (ModelError::default(), 1.0)]);
        assert!((mean.measured_to_predicted()[1] - (4.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(ModelError::of_geometric_mean([]), ModelError::default());
    }

    proptest! {
        /// The distribution function is the inverse of the quantile function, and the ends are the 10th and 90th percentiles.
        #[test]
        fn deviates_invert_ratios(error in 0.001f64..0.9, deviate in -5.0f64..5.0) {
            let error = ModelError::from_fraction(error);
            prop_assert!((error.deviate(error.log_ratio(deviate)) - deviate).abs() < 1e-9);
            let [low, high] = error.measured_to_predicted();
            prop_assert!((error.log_ratio(-NORMAL_P90).exp() - low).abs() < 1e-9);
            prop_assert!((error.log_ratio(NORMAL_P90).exp() - high).abs() < 1e-9);
        }
    }
}
