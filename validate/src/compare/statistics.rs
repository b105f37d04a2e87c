//! Error statistics of compared rows.

/// Statistics of errors (predicted ÷ measured − 1).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of rows that the statistics cover.
    pub rows: usize,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// Median of the absolute errors.
    pub median: f64,
    /// 90th percentile of the absolute errors.
    pub p90: f64,
    /// Mean of the signed errors.
    pub bias: f64,
}

/// Coverage: the number of measured times inside the prediction interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of rows with a prediction interval.
    pub rows: usize,
    /// Number of rows whose measured time lies inside the prediction interval.
    pub inside: usize,
}

impl Coverage {
    /// Counts rows. `inside` has an element for each row: true if the measured time lies inside the prediction
    /// interval.
    pub fn count(inside: impl Iterator<Item = bool>) -> Self {
        inside.fold(Self::default(), |sum, is_inside| Self {
            rows: sum.rows + 1,
            inside: sum.inside + usize::from(is_inside),
        })
    }

    /// Fraction of rows inside the interval; 1 if there are no rows.
    #[must_use]
    pub fn share(self) -> f64 {
        if self.rows == 0 { 1.0 } else { self.inside as f64 / self.rows as f64 }
    }
}

impl Summary {
    /// Statistics of signed errors; zeros without errors.
    #[must_use]
    pub fn from_errors(errors: impl Iterator<Item = f64>) -> Self {
        let errors: Vec<f64> = errors.collect();
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        let count = errors.len();
        let share = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
        // The 90th percentile is the smallest value that at least 90 % of the absolute errors do not exceed.
        let p90 = sizes.get((count * 9).div_ceil(10).saturating_sub(1)).copied().unwrap_or_default();
        Self {
            rows: count,
            mean: share(sizes.iter().sum()),
            median: median(&sizes),
            p90,
            bias: share(errors.iter().sum()),
        }
    }
}

/// Median of sorted values: the mean of the middle two for an even number, 0 for none.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let value_at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { value_at(middle) } else { (value_at(middle.saturating_sub(1)) + value_at(middle)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        let summary = Summary::from_errors([0.1, -0.2, 0.3, -0.4].into_iter());
        assert_eq!((summary.rows, summary.p90), (4, 0.4));
        assert!((summary.mean - 0.25).abs() < 1e-12 && (summary.median - 0.25).abs() < 1e-12);
        assert!((summary.bias + 0.05).abs() < 1e-12);
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(
            (Summary::from_errors(ten.iter().copied()).p90, Summary::from_errors(ten.iter().copied()).median),
            (9.0, 5.5)
        );
        assert_eq!(Summary::from_errors(std::iter::empty()), Summary::default());
    }
}
