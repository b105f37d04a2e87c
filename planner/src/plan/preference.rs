//! Whether the pick is preferred to what the library does by itself: a step of its own, after the search.
//!
//! Predictions are off by as much as their intervals say. Where those of the pick and of the library's default overlap by
//! more than [`MOST_OVERLAP`] of the shorter one (in logarithms of times), it is not told which is the faster, and the
//! default stays: changing it costs work and may cost time. With independent normal errors an overlap of a half means that
//! the pick is the faster one with 82 % (80 % intervals of equal width w overlap by half where the times are w/2 apart,
//! 0.9 standard deviations of their difference).
//!
//! A plan for a library alone, which tells it to do otherwise than it would, departs only where the intervals are apart, or where
//! both were measured: such a plan is loaded and runs unseen, and a loss weighs more there than a gain.

use super::{LibraryDefault, Priced, Row};
use crate::strategy::Restriction;

/// The library's default stays where intervals overlap by more than this part of the shorter one; in plans for a library, where
/// they overlap at all.
pub const MOST_OVERLAP: f64 = 0.5;

/// The part of the shorter interval that may be shared where the library's default is given up.
pub(super) fn most_overlap(restriction: &Restriction) -> f64 {
    if restriction.library.is_some() { 0.0 } else { MOST_OVERLAP }
}

/// Why a row's pick is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Preference {
    /// It is the fastest by prediction.
    #[default]
    Fastest,
    /// It is the library's default, whose interval overlaps with that of the fastest.
    Default {
        /// The fastest by prediction.
        fastest: Priced,
        /// By which part of the shorter interval.
        overlap: f64,
    },
    /// It is that of neighbouring sizes, or the library's where a size alone is not worth departing from it.
    Neighbours {
        /// What would be taken for this size alone.
        fastest: Priced,
    },
}

impl Preference {
    /// The fastest by prediction, where it was passed over.
    #[must_use]
    pub fn passed_over(&self) -> Option<&Priced> {
        match self {
            Self::Fastest => None,
            Self::Default { fastest, .. } | Self::Neighbours { fastest } => Some(fastest),
        }
    }
}

/// Takes the library's default for the pick where their intervals do not tell them apart and the restriction allows it.
pub(super) fn settle(mut row: Row, restriction: &Restriction) -> Row {
    let Some(LibraryDefault { priced: default, .. }) = row.library_default else { return row };
    let fastest = row.pick;
    if default.strategy == fastest.strategy || !restriction.allows(&default.strategy, row.collective) {
        return row;
    }
    let overlap = overlap(&fastest, &default);
    if overlap > most_overlap(restriction) {
        if !fastest.is_pair_of(&default) {
            row.runner_up = Some(fastest);
        }
        row.pick = default;
        row.preference = Preference::Default { fastest, overlap };
    }
    row
}

/// The part of the shorter interval that the other covers, in logarithms; 0 to 1.
pub(super) fn overlap(a: &Priced, b: &Priced) -> f64 {
    let ends = |priced: &Priced| [priced.counted().low, priced.counted().high].map(|end| (end.0.max(1) as f64).ln());
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
    use crate::algorithm::Algorithm;
    use crate::strategy::Strategy;

    fn priced(low: u64, time: u64, high: u64) -> Priced {
        let strategy =
            Strategy { algorithm: Algorithm::Ring, protocol: Protocol::Ll, channels: 1, threads: None, chunk: None };
        Priced { strategy, time: Picos(time), low: Picos(low), high: Picos(high), busiest: None, measured: None }
    }

    #[test]
    fn overlaps_are_parts_of_the_shorter_interval() {
        let near = |a, b, expected: f64| {
            let (found, mirrored) = (overlap(&a, &b), overlap(&b, &a));
            assert!((found - expected).abs() < 1e-12 && found == mirrored, "{found} {mirrored} {expected}");
        };
        near(priced(100, 150, 200), priced(300, 350, 400), 0.0);
        near(priced(100, 200, 400), priced(200, 400, 800), 0.5);
        near(priced(100, 200, 800), priced(200, 250, 400), 1.0);
        // Without width: the same or not.
        near(priced(100, 100, 100), priced(100, 100, 100), 1.0);
        near(priced(100, 100, 100), priced(101, 101, 101), 0.0);
    }
}
