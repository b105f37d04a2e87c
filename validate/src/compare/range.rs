//! Verdicts on ranges of sizes: as expected, slow or fast.
//!
//! Times of single rows scatter, and on a machine without faults a fifth of the rows lies outside 80 % intervals.
//! Neighbouring sizes of one machine therefore share a verdict. The division into ranges minimizes the number of sizes
//! with a different verdict than their range plus a penalty per boundary ([`BOUNDARY`]); it is found by dynamic
//! programming. A size far outside its interval counts twice, so that it is a range of its own at an end of the sweep, where no
//! larger or no smaller size contradicts it.

use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::statistics::median;
use super::{Compared, Verdict};

/// Finding on a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub enum RangeFinding {
    /// Times are inside their prediction intervals or near the prediction.
    Expected,
    /// Times are longer than predicted.
    Slow,
    /// Times are shorter than predicted.
    Fast,
}

impl RangeFinding {
    const ALL: [Self; Self::COUNT] = variants();

    /// Name of the finding: `expected`, `slow` or `fast`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Slow => "slow",
            Self::Fast => "fast",
        }
    }
}

/// Finding on neighbouring sizes of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeRange {
    /// Smallest size of the range.
    pub min: Bytes,
    /// Largest size of the range.
    pub max: Bytes,
    /// Number of distinct sizes.
    pub sizes: usize,
    /// Number of these sizes whose times alone would have another finding.
    pub exceptions: usize,
    /// Largest size with the finding of the range, to which the bandwidths below refer.
    pub representative: Bytes,
    /// Finding on the range.
    pub finding: RangeFinding,
    /// Median of measured ÷ predicted over the sizes.
    pub ratio: f64,
    /// Measured bus bandwidth at the representative size, in GB/s.
    pub measured: f64,
    /// Predicted bus bandwidth at the representative size, in GB/s.
    pub expected: f64,
    /// Bus bandwidth at the slow end of the prediction interval of the representative size, in GB/s.
    pub expected_low: f64,
    /// Bus bandwidth at the fast end of the prediction interval of the representative size, in GB/s.
    pub expected_high: f64,
}

/// Penalty of a boundary between ranges, in sizes with a different verdict. Because it exceeds 1, a single size near its
/// interval is not a separate range at either end; because twice the penalty exceeds 3, up to three between others are not.
const BOUNDARY: f64 = 1.6;
/// Distance from the prediction interval, as a fraction of its nearer end, from which on a size counts twice.
const FAR_OUTSIDE: f64 = 0.5;
/// Minimum deviation of a size that counts as slow or fast, as measured ÷ predicted. Repeated measurements of one
/// machine differ by up to 4 % (H200 node, two hosts), and deviations of less than a tenth have no practical
/// consequence.
const MIN_RATIO: f64 = 1.1;

/// Bus bandwidth of a call, in GB/s, from its size, its time, and the collective's ratio of bus to algorithm bandwidth.
pub(super) fn bus_bandwidth(bytes: Bytes, time: fabricast_topologies::Picos, factor: f64) -> f64 {
    bytes.0 as f64 * factor / time.0.max(1) as f64 * 1000.0
}

/// A size with the finding of its rows.
struct SizeFinding<'a> {
    bytes: Bytes,
    ratio: f64,
    finding: RangeFinding,
    /// Number of sizes as which it counts.
    weight: f64,
    /// The row with the median ratio of measured to predicted time.
    middle: &'a Compared,
}

/// Divides the rows of one configuration into ranges of sizes with a common finding. Outliers are ignored unless all
/// rows are outliers. `factor`: bus bandwidth ÷ algorithm bandwidth of the collective.
pub(super) fn ranges(rows: &[&Compared], factor: f64) -> Vec<SizeRange> {
    let mut usable: Vec<&Compared> = rows.iter().copied().filter(|row| row.outlier.is_none()).collect();
    if usable.is_empty() {
        usable = rows.to_vec();
    }
    usable.sort_by_key(|row| (row.bytes, row.measured));
    let sizes: Vec<SizeFinding<'_>> = usable.chunk_by(|a, b| a.bytes == b.bytes).filter_map(classify).collect();
    let findings = segment(&sizes);
    let labelled: Vec<(&SizeFinding<'_>, RangeFinding)> = sizes.iter().zip(findings).collect();
    labelled.chunk_by(|a, b| a.1 == b.1).filter_map(|part| range(part, factor)).collect()
}

/// Finding on the rows of one size, sorted by measured time.
fn classify<'a>(rows: &[&'a Compared]) -> Option<SizeFinding<'a>> {
    let middle = *rows.get((rows.len() - 1) / 2)?;
    let ratio = ratio(middle);
    let finding = match middle.verdict() {
        Verdict::Slower { .. } | Verdict::Slow { .. } if ratio >= MIN_RATIO => RangeFinding::Slow,
        Verdict::Faster { .. } if ratio <= 1.0 / MIN_RATIO => RangeFinding::Fast,
        _ => RangeFinding::Expected,
    };
    let outside = middle.verdict().outside();
    let is_far = outside >= FAR_OUTSIDE || outside <= 1.0 / (1.0 + FAR_OUTSIDE) - 1.0;
    let weight = if is_far { 2.0 } else { 1.0 };
    Some(SizeFinding { bytes: middle.bytes, ratio, finding, weight, middle })
}

fn ratio(row: &Compared) -> f64 {
    row.measured.0 as f64 / row.predicted.0.max(1) as f64
}

/// Findings of the sizes that minimize the number of sizes with a different finding plus the penalty of boundaries.
fn segment(sizes: &[SizeFinding<'_>]) -> Vec<RangeFinding> {
    let mut costs = [0.0; 3];
    let mut previous: Vec<[usize; 3]> = Vec::with_capacity(sizes.len());
    for (number, size) in sizes.iter().enumerate() {
        let mut next = [0.0; 3];
        let mut from = [0; 3];
        for (index, finding) in RangeFinding::ALL.into_iter().enumerate() {
            let step = |&before: &usize| {
                let boundary = if number > 0 && before != index { BOUNDARY } else { 0.0 };
                costs.get(before).copied().unwrap_or(f64::INFINITY) + boundary
            };
            let best = (0..3).min_by(|a, b| step(a).total_cmp(&step(b))).unwrap_or(index);
            let mismatch = if size.finding == finding { 0.0 } else { size.weight };
            next[index] = step(&best) + mismatch;
            from[index] = best;
        }
        costs = next;
        previous.push(from);
    }
    let mut last = (0..3).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
    let mut findings = Vec::with_capacity(sizes.len());
    for from in previous.iter().rev() {
        findings.push(RangeFinding::ALL[last]);
        last = from[last];
    }
    findings.reverse();
    findings
}

fn range(part: &[(&SizeFinding<'_>, RangeFinding)], factor: f64) -> Option<SizeRange> {
    let ((first, finding), (last, _)) = (part.first()?, part.last()?);
    let mut ratios: Vec<f64> = part.iter().map(|(size, _)| size.ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let has_finding = |size: &&SizeFinding<'_>| size.finding == *finding;
    let sizes = || part.iter().map(|(size, _)| *size);
    let representative = sizes().rfind(|size| has_finding(size)).unwrap_or(last);
    let bandwidth = |time| bus_bandwidth(representative.bytes, time, factor);
    let row = representative.middle;
    Some(SizeRange {
        min: first.bytes,
        max: last.bytes,
        sizes: part.len(),
        exceptions: sizes().filter(|size| !has_finding(size)).count(),
        representative: representative.bytes,
        finding: *finding,
        ratio: median(&ratios),
        measured: bandwidth(row.measured),
        expected: bandwidth(row.predicted),
        expected_low: bandwidth(row.high),
        expected_high: bandwidth(row.low),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::Picos;
    use proptest::prelude::*;

    /// Row of 2^`power` bytes with a predicted time of 100 µs and an interval from 90 to 110 µs.
    fn row(power: u32, measured: u64) -> Compared {
        let strategy = Strategy {
            algorithm: Algorithm::Ring,
            protocol: Protocol::Ll,
            channels: 1,
            threads: None,
            chunk: None,
            trees: None,
        };
        let us = |time: u64| Picos(time * 1_000_000);
        Compared {
            measurement: 0,
            line: power,
            bytes: Bytes(1 << power),
            strategy,
            measured: us(measured),
            predicted: us(100),
            low: us(90),
            high: us(110),
            outlier: None,
            slow: None,
            busiest: None,
        }
    }

    fn findings(times: &[u64]) -> Vec<(RangeFinding, usize)> {
        let rows: Vec<Compared> = (10..).zip(times).map(|(power, &time)| row(power, time)).collect();
        ranges(&rows.iter().collect::<Vec<_>>(), 1.0).iter().map(|range| (range.finding, range.sizes)).collect()
    }

    #[test]
    fn neighbouring_sizes_share_a_finding() {
        use RangeFinding::{Expected, Fast, Slow};
        assert_eq!(findings(&[100; 8]), [(Expected, 8)]);
        assert_eq!(findings(&[100, 100, 100, 100, 200, 200, 200]), [(Expected, 4), (Slow, 3)]);
        assert_eq!(findings(&[50, 50, 50, 100, 100, 100]), [(Fast, 3), (Expected, 3)]);
        // Up to three deviating sizes between others do not form a range, nor does one deviating size at an end.
        assert_eq!(findings(&[100, 100, 100, 150, 150, 150, 100, 100, 100]), [(Expected, 9)]);
        assert_eq!(findings(&[100, 100, 100, 100, 150]), [(Expected, 5)]);
        assert_eq!(findings(&[200]), [(Slow, 1)]);
        // One size far outside its interval forms a range at an end, and two between others.
        assert_eq!(findings(&[100, 100, 100, 100, 200]), [(Expected, 4), (Slow, 1)]);
        assert_eq!(findings(&[40, 100, 100, 100, 100]), [(Fast, 1), (Expected, 4)]);
        assert_eq!(findings(&[100, 100, 100, 200, 100, 100]), [(Expected, 6)]);
        assert_eq!(findings(&[100, 100, 100, 200, 200, 100, 100]), [(Expected, 3), (Slow, 2), (Expected, 2)]);
    }

    /// Bandwidths stated as expected are inside the prediction interval.
    #[test]
    fn bandwidths_are_those_of_the_largest_size_with_the_finding() {
        let rows = [row(20, 100), row(21, 100), row(22, 100), row(23, 150)];
        let found = ranges(&rows.iter().collect::<Vec<_>>(), 1.0);
        let [range] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (range.finding, range.representative, range.exceptions),
            (RangeFinding::Expected, Bytes(1 << 22), 1)
        );
        assert!((range.expected_low..range.expected_high).contains(&range.measured));
    }

    #[test]
    fn bandwidths_are_those_of_the_largest_size() {
        let rows = [row(20, 200), row(21, 200), row(22, 400)];
        let found = ranges(&rows.iter().collect::<Vec<_>>(), 1.75);
        let expected = (1u64 << 22) as f64 * 1.75 / 100e-6 / 1e9;
        assert_eq!(found.len(), 1);
        assert!(
            (found[0].expected / expected - 1.0).abs() < 1e-9 && (found[0].measured / expected - 0.25).abs() < 1e-9
        );
        assert!((found[0].ratio - 2.0).abs() < 1e-9);
        assert!(found[0].expected_low < found[0].expected && found[0].expected < found[0].expected_high);
    }

    proptest! {
        /// Ranges cover every size once, in order, and neighbouring ranges have different findings.
        #[test]
        fn ranges_partition_the_sizes(times in prop::collection::vec(40u64..300, 1..30)) {
            let rows: Vec<Compared> = (1..).zip(&times).map(|(power, &time)| row(power, time)).collect();
            let found = ranges(&rows.iter().collect::<Vec<_>>(), 1.0);
            prop_assert_eq!(found.iter().map(|range| range.sizes).sum::<usize>(), times.len());
            prop_assert!(found.windows(2).all(|pair| pair[0].max < pair[1].min && pair[0].finding != pair[1].finding));
        }
    }
}
