//! Selection between the fastest strategy and the library's default, after the search.
//!
//! If the prediction intervals of the fastest strategy and of the library's default overlap by more than
//! [`MAX_OVERLAP`] of the shorter one (on a logarithmic time scale), it is not known which one is faster. The default
//! is then selected, because replacing it costs effort and may cost time. With independent normal errors, an overlap of
//! one half means that the fastest strategy is faster with 82 % probability (80 % intervals of equal width w overlap by
//! half if the times are w/2 apart, which is 0.9 standard deviations of their difference).
//!
//! A plan for a library alone departs from its defaults only if the intervals are disjoint, or if both strategies were
//! measured. Such a plan runs unattended once it is loaded, so avoiding a slowdown is more important than a possible
//! gain.

use super::{LibraryDefault, PlanRow, TimedStrategy};
use crate::candidates::Restriction;

/// Overlap, as a fraction of the shorter interval, above which the library's default is selected. In plans for a
/// library, any overlap is sufficient.
pub const MAX_OVERLAP: f64 = 0.5;

/// Largest overlap, as a fraction of the shorter interval, at which the library's default is replaced.
pub(super) fn max_overlap(restriction: &Restriction) -> f64 {
    if restriction.library.is_some() { 0.0 } else { MAX_OVERLAP }
}

/// Reason for a row's selected strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Preference {
    /// The selected strategy has the shortest predicted time.
    #[default]
    Fastest,
    /// The library's default was selected, because its interval overlaps with that of the fastest strategy.
    Default {
        /// Strategy with the shortest predicted time.
        fastest: TimedStrategy,
        /// Overlap of the two intervals, as a share of the shorter one.
        overlap: f64,
    },
    /// The strategy of neighbouring sizes was selected, or the library's default, because a change at this size alone
    /// is not justified.
    Neighbours {
        /// Strategy that would be selected for this size alone.
        fastest: TimedStrategy,
    },
}

impl Preference {
    /// Returns the fastest strategy to which another one was preferred; `None` if the fastest was selected.
    #[must_use]
    pub fn rejected_fastest(&self) -> Option<&TimedStrategy> {
        match self {
            Self::Fastest => None,
            Self::Default { fastest, .. } | Self::Neighbours { fastest } => Some(fastest),
        }
    }
}

/// Selects the library's default if the intervals overlap too much and the restriction allows it.
pub(super) fn select_default_if_unclear(mut row: PlanRow, restriction: &Restriction) -> PlanRow {
    let Some(LibraryDefault { timed: default, .. }) = row.library_default else { return row };
    let fastest = row.pick;
    if default.strategy == fastest.strategy || !restriction.allows(&default.strategy, row.collective) {
        return row;
    }
    let overlap = overlap(&fastest, &default);
    if overlap > max_overlap(restriction) {
        if !fastest.has_same_pair(&default) {
            row.runner_up = Some(fastest);
        }
        row.pick = default;
        row.preference = Preference::Default { fastest, overlap };
    }
    row
}

/// Overlap of two strategies' prediction intervals as a fraction of the shorter interval, on a logarithmic time scale;
/// 0 to 1.
pub(super) fn overlap(a: &TimedStrategy, b: &TimedStrategy) -> f64 {
    let ends = |timed: &TimedStrategy| {
        [timed.effective_time().low, timed.effective_time().high].map(|end| (end.0.max(1) as f64).ln())
    };
    let ([a_low, a_high], [b_low, b_high]) = (ends(a), ends(b));
    let shared = a_high.min(b_high) - a_low.max(b_low);
    let shorter = (a_high - a_low).min(b_high - b_low);
    match (shared >= 0.0, shorter > 0.0) {
        (false, _) => 0.0,
        (true, false) => 1.0,
        (true, true) => (shared / shorter).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::Picos;

    use super::*;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;

    fn timed(low: u64, time: u64, high: u64) -> TimedStrategy {
        let strategy = Strategy::new(Algorithm::Ring, Protocol::Ll, 1);
        TimedStrategy { strategy, time: Picos(time), low: Picos(low), high: Picos(high), busiest: None, measured: None }
    }

    #[test]
    fn overlap_is_a_share_of_the_shorter_interval() {
        let check = |a, b, expected: f64| {
            let (actual, mirrored) = (overlap(&a, &b), overlap(&b, &a));
            assert!((actual - expected).abs() < 1e-12 && actual == mirrored, "{actual} {mirrored} {expected}");
        };
        check(timed(100, 150, 200), timed(300, 350, 400), 0.0);
        check(timed(100, 200, 400), timed(200, 400, 800), 0.5);
        check(timed(100, 200, 800), timed(200, 250, 400), 1.0);
        // Intervals of zero width overlap completely if they are equal and not at all otherwise.
        check(timed(100, 100, 100), timed(100, 100, 100), 1.0);
        check(timed(100, 100, 100), timed(101, 101, 101), 0.0);
    }
}
