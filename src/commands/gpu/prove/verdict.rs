//! Verdicts on a size: compliance of NCCL with the table, and comparison of its times.

use std::collections::BTreeSet;

use fabricast_search::export::nccl_tuner::TableEntry;
use fabricast_validate::ab_test::logged::LoggedStrategy;
use fabricast_validate::ab_test::rank_sum::one_sided_p_value;
use schemars::JsonSchema;
use serde::Serialize;

/// Slowdown that is tolerated, as a fraction of the default's time: 2 %.
pub(super) const TOLERANCE: f64 = 0.02;
/// Significance level: a time difference with a p-value above it is attributed to noise.
pub(super) const SIGNIFICANCE: f64 = 0.01;

/// Comparison of the times with the table and without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Slower with the table by more than the tolerance, significantly.
    Slower,
    /// Faster with the table by more than the tolerance, significantly.
    Faster,
    /// Neither slower nor faster.
    Equal,
}

/// Result of a rank-sum test.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankSumTest {
    pub(super) verdict: Verdict,
    /// Probability that a slowdown beyond the tolerance of at least this size occurs by chance (p-value).
    pub(super) chance_slower: f64,
    /// Probability that a speed-up beyond the tolerance of at least this size occurs by chance (p-value).
    pub(super) chance_faster: f64,
}

impl Verdict {
    /// Compares the processes' times with the table (`tuned`) and without it (`default`) by one-sided rank-sum tests.
    /// The verdict is "slower" or "faster" only if the difference exceeds the tolerance: `default` is multiplied by 1
    /// plus or minus the tolerance before the test.
    pub(super) fn from_times(default: &[f64], tuned: &[f64]) -> RankSumTest {
        let scaled = |factor: f64| default.iter().map(|time| time * factor).collect::<Vec<_>>();
        let slower = one_sided_p_value(tuned, &scaled(1.0 + TOLERANCE));
        let faster = one_sided_p_value(&scaled(1.0 - TOLERANCE), tuned);
        let verdict = match (slower < SIGNIFICANCE, faster < SIGNIFICANCE) {
            (true, _) => Self::Slower,
            (_, true) => Self::Faster,
            _ => Self::Equal,
        };
        RankSumTest { verdict, chance_slower: slower, chance_faster: faster }
    }
}

/// Comparison of NCCL's log with the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TableCompliance {
    /// NCCL followed the table: it ran the algorithm and protocol of the table, with at most as many channels. NCCL
    /// reduces the channels of small messages.
    Table,
    /// The table has no row, and NCCL used its default choice.
    Default,
    /// NCCL ran another strategy, which the text describes.
    No(String),
}

impl TableCompliance {
    pub(super) fn new(
        row: Option<&TableEntry>,
        default: &BTreeSet<LoggedStrategy>,
        tuned: &BTreeSet<LoggedStrategy>,
    ) -> Self {
        let list = |strategies: &BTreeSet<LoggedStrategy>| {
            strategies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        if tuned.is_empty() {
            return Self::No("NCCL logged no choice".to_owned());
        }
        let Some(row) = row else {
            return if tuned == default { Self::Default } else { Self::No(format!("{} by default", list(default))) };
        };
        let obeys = |strategy: &LoggedStrategy| {
            let max_channels = row.channels.map_or(u32::MAX, |channels| channels.get().into());
            (strategy.algorithm, strategy.protocol) == (row.algo, row.proto) && strategy.channels <= max_channels
        };
        if tuned.iter().all(obeys) { Self::Table } else { Self::No(format!("NCCL ran {}", list(tuned))) }
    }

    pub(super) fn is_no(&self) -> bool {
        matches!(self, Self::No(_))
    }

    pub(super) fn description(&self) -> String {
        match self {
            Self::Table => "yes".to_owned(),
            Self::Default => "no row".to_owned(),
            Self::No(reason) => format!("NO: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_libraries::nccl::{Algo, Proto};

    #[test]
    fn two_percent_are_tolerated_and_three_are_slower() {
        let times = |factor: f64| (0..7).map(|i| factor * (100.0 + 0.1 * f64::from(i))).collect::<Vec<_>>();
        assert_eq!(Verdict::from_times(&times(1.0), &times(1.0)).verdict, Verdict::Equal);
        assert_eq!(Verdict::from_times(&times(1.0), &times(1.015)).verdict, Verdict::Equal);
        assert_eq!(Verdict::from_times(&times(1.0), &times(1.03)).verdict, Verdict::Slower);
        assert_eq!(Verdict::from_times(&times(1.0), &times(0.97)).verdict, Verdict::Faster);
    }

    #[test]
    fn fewer_channels_than_the_table_follow_it_and_more_do_not() {
        let row = TableEntry { algo: Algo::Ring, proto: Proto::Ll, channels: std::num::NonZeroU16::new(4), row: 0 };
        let strategies =
            |channels, protocol| BTreeSet::from([LoggedStrategy { algorithm: Algo::Ring, protocol, channels }]);
        let default = strategies(24, Proto::Simple);
        assert_eq!(TableCompliance::new(Some(&row), &default, &strategies(4, Proto::Ll)), TableCompliance::Table);
        assert_eq!(TableCompliance::new(Some(&row), &default, &strategies(1, Proto::Ll)), TableCompliance::Table);
        assert!(TableCompliance::new(Some(&row), &default, &strategies(5, Proto::Ll)).is_no());
        assert!(TableCompliance::new(Some(&row), &default, &default).is_no());
        assert!(TableCompliance::new(Some(&row), &default, &BTreeSet::new()).is_no());
        assert_eq!(TableCompliance::new(None, &default, &default), TableCompliance::Default);
        assert!(TableCompliance::new(None, &default, &strategies(1, Proto::Ll)).is_no());
    }
}
