//! Groups of rows with the same configuration.

use std::sync::Arc;

use super::range::{self, SizeRange};
use super::statistics::Summary;
use super::{Advice, Cause, Compared, Explanation, RankedCause, Verdict};
use crate::measured::manifest::Measurement;

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
