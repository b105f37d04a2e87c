//! Evidence of a row about its collective: the ratio of its bandwidths, and its columns of reduction and root.

/// Properties of a row that narrow down its collective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Interval that contains busbw ÷ algbw; `None` if the row has no bandwidths, or too few digits of them.
    pub factor: Option<Factor>,
    /// True if the row names a reduction; `None` if the table has no such column.
    pub reduces: Option<bool>,
    /// True if the row names a root; `None` if the table has no such column.
    pub rooted: Option<bool>,
}

/// Interval that contains busbw ÷ algbw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// Lower end of the interval, inclusive.
    pub low: f64,
    /// Upper end of the interval, inclusive.
    pub high: f64,
}

/// A printed figure, which represents all values that round to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PrintedFigure {
    value: f64,
    rounding: f64,
}

impl PrintedFigure {
    /// Parses a figure. The number of its decimals determines the rounding error.
    pub fn read(text: &str) -> Option<Self> {
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len() as i32);
        let unit = 10f64.powi(power.parse::<i32>().ok()?.checked_sub(decimals)?);
        // The rounding error is a whole unit and not half of one, because nccl-tests computes busbw from algbw before
        // or after rounding, depending on the version.
        Some(Self { value, rounding: unit })
    }
}

impl Factor {
    /// Interval of busbw ÷ algbw from two printed figures; `None` if algbw has too few significant digits.
    pub(super) fn from_printed(algbw: PrintedFigure, busbw: PrintedFigure) -> Option<Self> {
        const MIN_SIGNIFICANCE: f64 = 10.0;
        if algbw.value < MIN_SIGNIFICANCE * algbw.rounding {
            return None;
        }
        let low = (busbw.value - busbw.rounding).max(0.0) / (algbw.value + algbw.rounding);
        Some(Self { low, high: (busbw.value + busbw.rounding) / (algbw.value - algbw.rounding) })
    }

    /// Returns true if a factor lies in the interval.
    pub(super) fn contains(self, factor: f64) -> bool {
        factor >= self.low && factor <= self.high
    }

    /// Intersection of two intervals; `None` if they are disjoint.
    pub(super) fn intersection(self, other: Self) -> Option<Self> {
        let overlap = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (overlap.low <= overlap.high).then_some(overlap)
    }
}
