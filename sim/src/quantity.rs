//! Integer units of the engine: rates and work, fine enough that every product of a rate and a duration is exact.
//!
//! A [`Rate`] counts thousandths of a byte per second and [`Work`] counts 10⁻¹⁵ bytes, so that work = rate ×
//! picoseconds without rounding. Rounding happens in two places only: a share of a capacity is rounded down to a whole
//! rate, and a finish time is rounded up to a whole picosecond. Both depend on values and never on the order of events,
//! so a folded run equals an unfolded one to the picosecond.

use fabricast_topologies::{Bandwidth, Picos};

use crate::schedule::ChunkSize;

/// Rate in thousandths of a byte per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// Amount of data in 10⁻¹⁵ bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work(pub u128);

/// Number of [`Work`] units in a byte.
pub const WORK_PER_BYTE: u128 = 1_000_000_000_000_000;

impl Rate {
    /// Rate of a route or capacity without a limit.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// Returns the rate in GB/s (10⁹ bytes per second).
    #[must_use]
    pub fn gb_per_s(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl From<Bandwidth> for Rate {
    fn from(bandwidth: Bandwidth) -> Self {
        Self(bandwidth.0.saturating_mul(1000))
    }
}

impl Work {
    /// Returns the work of `span` chunks of an exact size, rounded down to a unit.
    #[must_use]
    pub fn from_chunks(size: ChunkSize, span: u32) -> Self {
        let work = u128::from(size.numerator) * u128::from(span) * WORK_PER_BYTE;
        Self(if size.denominator <= 1 { work } else { work / u128::from(size.denominator) })
    }

    /// Returns the work of `bytes` whole bytes.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Self {
        Self(u128::from(bytes) * WORK_PER_BYTE)
    }

    /// Returns the work in bytes.
    #[must_use]
    pub fn bytes(self) -> f64 {
        self.0 as f64 / WORK_PER_BYTE as f64
    }

    /// Returns the duration of the work at a rate, rounded up to a picosecond; `None` if it is over 213 days or the
    /// rate is 0.
    #[must_use]
    pub fn duration(self, rate: Rate) -> Option<Picos> {
        if rate.0 == 0 {
            return (self.0 == 0).then_some(Picos::ZERO);
        }
        // A division of 64 bits needs a fraction of the time of one of 128 bits.
        match u64::try_from(self.0) {
            Ok(work) => Some(Picos(work.div_ceil(rate.0))),
            Err(_) => u64::try_from(self.0.div_ceil(u128::from(rate.0))).ok().map(Picos),
        }
    }

    /// Returns the work that passes at a rate within a time.
    #[must_use]
    pub fn passed(rate: Rate, time: Picos) -> Self {
        Self(u128::from(rate.0) * u128::from(time.0))
    }
}
