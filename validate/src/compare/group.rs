//! Groups of rows with the same configuration, and error statistics.

use std::sync::Arc;

use super::range::{self, SizeRange};
use super::{Advice, Cause, Compared, Explanation, RankedCause, Verdict};
use crate::measured::manifest::Measurement;

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

/// Rows with the same fabric and configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Indices of the group's measurements in the request of the comparison.
    pub measurements: Vec<usize>,
    /// Indices of the group's rows in [`Comparison::rows`](super::Comparison::rows).
    pub rows: Vec<usize>,
    /// Error statistics of the group's rows.
    pub summary: Summary,
    /// Number of rows above their prediction interval, or slower than predicted by the same factor at all sizes.
    pub slower: usize,
    /// Number of rows below their prediction interval.
    pub faster: usize,
    /// Parameter change that would explain the error of the group as a whole.
    pub explanation: Option<Explanation>,
    /// Findings on ranges of sizes, from small to large.
    pub ranges: Vec<SizeRange>,
    /// Simulated hypotheses that explain slow sizes, in order of decreasing likelihood.
    pub causes: Vec<RankedCause>,
    /// Setting in the log that may have slowed down the group.
    pub setting: Option<Cause>,
    /// Settings with which the library is predicted to be faster, including calls whose times are as expected.
    pub advice: Vec<Advice>,
}

impl Group {
    /// The group's rows that are not outliers, by size.
    pub(super) fn usable_rows<'a>(&self, rows: &'a [Compared]) -> Vec<&'a Compared> {
        let own = self.rows.iter().filter_map(|&row| rows.get(row));
        let mut usable: Vec<&Compared> = own.filter(|row| row.outlier.is_none()).collect();
        usable.sort_by_key(|row| (row.bytes, row.line));
        usable
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

/// Groups rows by fabric and configuration.
pub(super) fn groups(measurements: &[Measurement], rows: &[Compared]) -> Vec<Group> {
    let mut groups: Vec<(usize, Group)> = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let same_group =
            |&(first, _): &(usize, Group)| match (measurements.get(first), measurements.get(row.measurement)) {
                (Some(a), Some(b)) => {
                    let same_fabric = Arc::ptr_eq(&a.fabric, &b.fabric) || a.request == b.request;
                    same_fabric && a.configuration == b.configuration
                }
                _ => false,
            };
        let group = match groups.iter().position(same_group) {
            Some(existing) => existing,
            None => {
                let group = Group {
                    measurements: Vec::new(),
                    rows: Vec::new(),
                    summary: Summary::default(),
                    slower: 0,
                    faster: 0,
                    explanation: None,
                    ranges: Vec::new(),
                    causes: Vec::new(),
                    setting: None,
                    advice: Vec::new(),
                };
                groups.push((row.measurement, group));
                groups.len() - 1
            }
        };
        if let Some((_, group)) = groups.get_mut(group) {
            if group.measurements.last() != Some(&row.measurement) {
                group.measurements.push(row.measurement);
            }
            group.rows.push(number);
            match row.verdict() {
                Verdict::Expected => {}
                Verdict::Faster { .. } => group.faster += 1,
                Verdict::Slower { .. } | Verdict::Slow { .. } => group.slower += 1,
            }
        }
    }
    groups
        .into_iter()
        .map(|(_, group)| {
            let selected: Vec<&Compared> = group.rows.iter().filter_map(|&row| rows.get(row)).collect();
            let first = group.measurements.first().and_then(|&first| measurements.get(first));
            let factor = first.map_or(1.0, Measurement::bus_factor);
            Group {
                summary: Summary::from_errors(selected.iter().map(|row| row.error())),
                ranges: range::ranges(&selected, factor),
                ..group
            }
        })
        .collect()
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
