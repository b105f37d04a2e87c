//! Verdicts on a size: whether NCCL followed the table, and whether it was slower with it.

use std::collections::BTreeSet;

use fabricast_planner::export::nccl_tuner::Answer;
use fabricast_validate::prove::logged::Ran;
use fabricast_validate::prove::rank_sum::chance_larger;
use serde::Serialize;

/// Slowdown that is tolerated, as a share.
pub(super) const TOLERANCE: f64 = 0.02;
/// Significance level: less probable differences are not noise.
pub(super) const UNLIKELY: f64 = 0.01;

/// Comparison of the times with and without the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Significantly slower, by more than the tolerance.
    Slower,
    /// Significantly faster, by more than the tolerance.
    Faster,
    /// Neither.
    Alike,
}

impl Verdict {
    /// Rank-sum test of the processes' times, with the times without the table scaled by the tolerance. Also returns
    /// the probabilities of slower and faster by chance.
    pub(super) fn of(default: &[f64], tuned: &[f64]) -> (Self, f64, f64) {
        let stretched = |by: f64| default.iter().map(|time| time * by).collect::<Vec<_>>();
        let slower = chance_larger(tuned, &stretched(1.0 + TOLERANCE));
        let faster = chance_larger(&stretched(1.0 - TOLERANCE), tuned);
        let verdict = match (slower < UNLIKELY, faster < UNLIKELY) {
            (true, _) => Self::Slower,
            (_, true) => Self::Faster,
            _ => Self::Alike,
        };
        (verdict, slower, faster)
    }
}

/// Comparison of NCCL's log with the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Obeyed {
    /// NCCL followed the table: its algorithm and protocol, with at most its channels. NCCL uses fewer channels for
    /// small messages.
    Table,
    /// The table has no row, and NCCL used its default choice.
    Default,
    /// NCCL ran something else; the text describes it.
    No(String),
}

impl Obeyed {
    pub(super) fn of(row: Option<&Answer>, default: &BTreeSet<Ran>, tuned: &BTreeSet<Ran>) -> Self {
        let all = |ran: &BTreeSet<Ran>| ran.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if tuned.is_empty() {
            return Self::No("NCCL logged no choice".to_owned());
        }
        let Some(row) = row else {
            return if tuned == default { Self::Default } else { Self::No(format!("{} by default", all(default))) };
        };
        let obeys = |ran: &Ran| {
            let most = row.channels.map_or(u32::MAX, |channels| channels.get().into());
            (ran.algorithm, ran.protocol) == (row.algo, row.proto) && ran.channels <= most
        };
        if tuned.iter().all(obeys) { Self::Table } else { Self::No(format!("NCCL ran {}", all(tuned))) }
    }

    pub(super) fn is_no(&self) -> bool {
        matches!(self, Self::No(_))
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Table => "yes".to_owned(),
            Self::Default => "no row".to_owned(),
            Self::No(why) => format!("NO: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_planner::library::nccl::{Algo, Proto};

    #[test]
    fn two_percent_are_tolerated_and_three_are_slower() {
        let times = |by: f64| (0..7).map(|i| by * (100.0 + 0.1 * f64::from(i))).collect::<Vec<_>>();
        assert_eq!(Verdict::of(&times(1.0), &times(1.0)).0, Verdict::Alike);
        assert_eq!(Verdict::of(&times(1.0), &times(1.015)).0, Verdict::Alike);
        assert_eq!(Verdict::of(&times(1.0), &times(1.03)).0, Verdict::Slower);
        assert_eq!(Verdict::of(&times(1.0), &times(0.97)).0, Verdict::Faster);
    }

    #[test]
    fn fewer_channels_than_the_table_follow_it_and_more_do_not() {
        let row = Answer { algo: Algo::Ring, proto: Proto::Ll, channels: std::num::NonZeroU16::new(4), row: 0 };
        let ran = |channels, protocol| BTreeSet::from([Ran { algorithm: Algo::Ring, protocol, channels }]);
        let default = ran(24, Proto::Simple);
        assert_eq!(Obeyed::of(Some(&row), &default, &ran(4, Proto::Ll)), Obeyed::Table);
        assert_eq!(Obeyed::of(Some(&row), &default, &ran(1, Proto::Ll)), Obeyed::Table);
        assert!(Obeyed::of(Some(&row), &default, &ran(5, Proto::Ll)).is_no());
        assert!(Obeyed::of(Some(&row), &default, &default).is_no());
        assert!(Obeyed::of(Some(&row), &default, &BTreeSet::new()).is_no());
        assert_eq!(Obeyed::of(None, &default, &default), Obeyed::Default);
        assert!(Obeyed::of(None, &default, &ran(1, Proto::Ll)).is_no());
    }
}
