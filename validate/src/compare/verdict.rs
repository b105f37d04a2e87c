//! Verdict on a measured time against its prediction interval.

use fabricast_topologies::Picos;

/// Position of a measured time relative to the prediction interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Inside the interval.
    Expected,
    /// Below the interval.
    Faster {
        /// Relative distance from the lower end of the interval: measured ÷ lower end − 1, negative.
        outside: f64,
    },
    /// Above the interval.
    Slower {
        /// Relative distance from the upper end of the interval: measured ÷ upper end − 1, positive.
        outside: f64,
    },
    /// Inside the interval, but all sizes of the group are slower by the same factor.
    Slow {
        /// Relative slowdown: measured ÷ predicted − 1, positive.
        slowdown: f64,
    },
}

impl Verdict {
    /// Classifies a measured time by the prediction interval from `low` to `high`, both inclusive.
    #[must_use]
    pub fn classify(measured: Picos, low: Picos, high: Picos) -> Self {
        let beyond = |end: Picos| measured.0 as f64 / end.0.max(1) as f64 - 1.0;
        if measured < low {
            Self::Faster { outside: beyond(low) }
        } else if measured > high {
            Self::Slower { outside: beyond(high) }
        } else {
            Self::Expected
        }
    }

    /// Name of the verdict: `expected`, `faster`, `slower` or `slow`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Faster { .. } => "faster",
            Self::Slower { .. } => "slower",
            Self::Slow { .. } => "slow",
        }
    }

    /// Distance of the measured time from the interval, as a fraction of the nearer end; negative below the interval, 0
    /// inside it.
    #[must_use]
    pub fn outside(self) -> f64 {
        match self {
            Self::Expected | Self::Slow { .. } => 0.0,
            Self::Faster { outside } | Self::Slower { outside } => outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_ends_are_inside() {
        let of = |measured| Verdict::classify(Picos(measured), Picos(80), Picos(125));
        assert_eq!((of(80), of(125)), (Verdict::Expected, Verdict::Expected));
        assert_eq!(of(40), Verdict::Faster { outside: -0.5 });
        assert_eq!(of(250), Verdict::Slower { outside: 1.0 });
    }
}
