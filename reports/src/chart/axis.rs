//! Axes of charts: range, grid and labels.

use fabricast_topologies::{Bytes, Picos};

use crate::format;

/// Maximum value on any axis: about a petabyte, or about forty years in microseconds.
const MAX_VALUE: f64 = 1.2e15;

/// Part of a linear axis at its lower end in which values look equal: 15 of 300 pixels.
const HIDDEN: f64 = 0.05;

/// Quantity on an axis, which determines the format of its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes, with labels such as `64 KiB`.
    Bytes,
    /// Microseconds, with labels such as `10 µs` or `1 ms`.
    Time,
    /// Rates in GB/s, with plain numbers as labels.
    Rate,
    /// Counts, with plain numbers as labels.
    Count,
    /// Fractions of one, with percentages as labels.
    Share,
}

/// Mapping of values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear; the axis begins at zero if no value is negative.
    Linear,
    /// Logarithmic, with labels at powers of two.
    Log2,
    /// Logarithmic, with labels at powers of ten.
    Log10,
}

/// Choice of the scale of an axis of rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateScale {
    /// Logarithmic if a linear axis would hide a quarter of the sizes or more in its lowest twentieth, where their
    /// differences are not visible.
    #[default]
    Automatic,
    /// Linear, which shows differences between high rates.
    Linear,
    /// Logarithmic, which shows differences between low rates.
    Logarithmic,
}

/// Axis of a chart panel: the quantity of its values, and the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Quantity of the values.
    pub quantity: Quantity,
    /// Mapping of values to positions.
    pub scale: Scale,
}

impl Axis {
    /// Creates an axis with a linear scale.
    #[must_use]
    pub fn linear(quantity: Quantity) -> Self {
        Self { quantity, scale: Scale::Linear }
    }

    /// Creates a logarithmic axis with labels at powers of ten.
    #[must_use]
    pub fn logarithmic(quantity: Quantity) -> Self {
        Self { quantity, scale: Scale::Log10 }
    }

    /// Creates a logarithmic axis with labels at powers of two.
    #[must_use]
    pub fn binary(quantity: Quantity) -> Self {
        Self { quantity, scale: Scale::Log2 }
    }

    /// Creates an axis for rates. `values`: rates of the most important line; `highest`: the largest rate of all lines.
    pub(crate) fn rate(scale: RateScale, values: impl Iterator<Item = f64>, highest: f64) -> Self {
        let is_logarithmic = match scale {
            RateScale::Linear => false,
            RateScale::Logarithmic => true,
            RateScale::Automatic => {
                let (mut count, mut hidden) = (0_usize, 0_usize);
                for value in values.filter(|&value| value > 0.0 && value.is_finite()) {
                    count += 1;
                    hidden += usize::from(value < highest * HIDDEN);
                }
                4 * hidden >= count.max(1)
            }
        };
        if is_logarithmic { Self::logarithmic(Quantity::Rate) } else { Self::linear(Quantity::Rate) }
    }

    /// Returns true if the axis can show a value: at most [`MAX_VALUE`], and positive on a logarithmic axis.
    pub(crate) fn shows(self, value: f64) -> bool {
        value.abs() <= MAX_VALUE && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Transforms a value to the measure in which the axis is linear: the value itself on a linear axis, otherwise its
    /// logarithm.
    fn to_linear(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
        }
    }

    /// Returns the tick label of a value.
    pub(crate) fn label(self, value: f64) -> String {
        match self.quantity {
            Quantity::Bytes => format::bytes(Bytes(value.round() as u64)),
            Quantity::Time if value == 0.0 => "0".to_owned(),
            Quantity::Time => format::time(Picos::from_us(value)),
            Quantity::Rate | Quantity::Count => plain(value),
            Quantity::Share => format!("{} %", plain(value * 100.0)),
        }
    }

    /// Formats a value with significant digits and unit, for tooltips.
    pub(crate) fn tooltip_value(self, value: f64) -> String {
        match self.quantity {
            Quantity::Bytes | Quantity::Time => self.label(value),
            Quantity::Rate => format!("{} GB/s", format::gb_per_s(value)),
            Quantity::Count => format::significant(value),
            Quantity::Share => format!("{} %", format::percent(value)),
        }
    }

    /// Returns the range of an axis that shows all these values; `None` if none of them can be shown.
    pub(crate) fn span(self, values: impl Iterator<Item = f64>) -> Option<AxisRange> {
        let mut range: Option<(f64, f64)> = None;
        for value in values.filter(|&value| self.shows(value)) {
            let at = self.to_linear(value);
            range = Some(range.map_or((at, at), |(low, high)| (low.min(at), high.max(at))));
        }
        let (low, high) = range?;
        let (low, high) = match self.scale {
            Scale::Linear => {
                let low = low.min(0.0);
                let room = (high - low) * 0.05;
                // The axis line is at zero, so values below zero need padding like those above.
                (if low < 0.0 { low - room } else { low }, if high > low { high + room } else { low + 1.0 })
            }
            Scale::Log2 => (low - 0.35, high + 0.35),
            Scale::Log10 => (low - 0.1, high + 0.1),
        };
        Some(AxisRange { axis: self, low, high })
    }
}

/// Range of values that an axis covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AxisRange {
    axis: Axis,
    /// Lower end in the measure of [`Axis::to_linear`]; `high` is the upper end.
    low: f64,
    high: f64,
}

/// Grid line across an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// Position, from 0 (low end) to 1.
    pub position: f64,
    /// Label; `None` for a fine line between labels.
    pub label: Option<String>,
}

impl AxisRange {
    pub(crate) fn axis(&self) -> Axis {
        self.axis
    }

    /// Returns the position of a value on the axis, which is from 0 to 1 inside the span.
    pub(crate) fn position(&self, value: f64) -> f64 {
        (self.axis.to_linear(value) - self.low) / (self.high - self.low)
    }

    /// Returns the grid lines of a vertical axis. Labels of a logarithmic axis are closer to each other than those of a
    /// linear one, because they get a label at 2 and 5 only if all of them have space.
    pub(crate) fn vertical_ticks(&self) -> Vec<Tick> {
        self.ticks(if self.axis.scale == Scale::Log10 { 11 } else { 7 })
    }

    /// Returns the grid lines in ascending order, with approximately `count` labels at most.
    pub(crate) fn ticks(&self, count: usize) -> Vec<Tick> {
        let count = count.max(2) as f64;
        match self.axis.scale {
            Scale::Linear => self.linear_ticks(count),
            Scale::Log2 => self.power_ticks(2.0, count, &[]),
            // If the axis has few decades, there is space for labels at 2 and 5 as well.
            Scale::Log10 if (self.high - self.low) * 3.0 <= count => self.power_ticks(10.0, count, &[2.0, 5.0]),
            Scale::Log10 => self.power_ticks(10.0, count, &[]),
        }
    }

    fn linear_ticks(&self, count: f64) -> Vec<Tick> {
        let rough = (self.high - self.low) / count;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|k| k * power).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(power * 10.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last)
            .map(|k| {
                let value = k as f64 * step;
                Tick { position: self.position(value), label: Some(self.axis.label(value)) }
            })
            .collect()
    }

    /// Returns lines with labels at every nth power (and at its multiples by `between`), and fine lines at the other
    /// powers.
    fn power_ticks(&self, base: f64, count: f64, between: &[f64]) -> Vec<Tick> {
        let first = self.low.floor() as i32;
        let last = self.high.ceil() as i32;
        let every = ((self.high - self.low) / count).ceil().max(1.0) as i32;
        let mut ticks = Vec::new();
        for power in first..=last {
            for &factor in [1.0].iter().chain(between) {
                let value = base.powi(power) * factor;
                let position = self.position(value);
                if (0.0..=1.0).contains(&position) {
                    let labelled = power.rem_euclid(every) == 0;
                    ticks.push(Tick { position, label: labelled.then(|| self.axis.label(value)) });
                }
            }
        }
        ticks
    }
}

/// Formats the number of a tick without redundant digits; a million and more are written with a unit prefix.
fn plain(value: f64) -> String {
    const LETTERS: [(f64, &str); 3] = [(1e12, " T"), (1e9, " G"), (1e6, " M")];
    let sign = if value < 0.0 { "−" } else { "" };
    let size = value.abs();
    let (unit, letter) = LETTERS.into_iter().find(|&(unit, _)| size >= unit).unwrap_or((1.0, ""));
    let size = size / unit;
    let rounded = size.round();
    let digits = if (size - rounded).abs() < 1e-9 * size.max(1.0) {
        format::grouped(rounded as u64)
    } else {
        format!("{size:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    format!("{sign}{digits}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: Axis, low: f64, high: f64, count: usize) -> Vec<String> {
        let span = axis.span([low, high].into_iter()).unwrap();
        span.ticks(count).into_iter().filter_map(|tick| tick.label).collect()
    }

    #[test]
    fn sizes_are_labelled_in_binary_units() {
        let shown = labels(Axis::binary(Quantity::Bytes), 1024.0, 2_f64.powi(30), 11);
        assert_eq!(
            shown,
            ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB"]
        );
    }

    #[test]
    fn times_are_labelled_by_decade_or_finer() {
        let axis = Axis::logarithmic(Quantity::Time);
        assert_eq!(labels(axis, 4.0, 6000.0, 7), ["10 µs", "100 µs", "1 ms"]);
        assert_eq!(labels(axis, 4.0, 60.0, 7), ["5 µs", "10 µs", "20 µs", "50 µs"]);
    }

    #[test]
    fn rates_begin_at_zero() {
        assert_eq!(labels(Axis::linear(Quantity::Rate), 3.0, 480.0, 6), ["0", "100", "200", "300", "400", "500"]);
        assert_eq!(labels(Axis::linear(Quantity::Rate), 0.0, 0.0, 4).len(), 5);
    }

    #[test]
    fn rate_axes_are_logarithmic_if_a_linear_one_hides_values() {
        let rates = |values: &[f64]| Axis::rate(RateScale::Automatic, values.iter().copied(), 800.0).scale;
        assert_eq!(rates(&[0.1, 3.0, 30.0, 300.0, 400.0]), Scale::Log10);
        assert_eq!(rates(&[39.0, 100.0, 300.0, 400.0, 410.0]), Scale::Linear);
        assert_eq!(rates(&[f64::NAN, 0.0]), Scale::Linear);
        assert_eq!(rates(&[]), Scale::Linear);
    }

    #[test]
    fn axes_without_drawable_values_have_no_span() {
        let axis = Axis::logarithmic(Quantity::Time);
        assert!(axis.span([0.0, -1.0, f64::NAN, f64::INFINITY].into_iter()).is_none());
        assert!(axis.span(std::iter::empty()).is_none());
    }

    proptest! {
        #[test]
        fn values_and_ticks_lie_inside(low in 1e-3..1e6_f64, factor in 1.0..1e9_f64, count in 2_usize..15) {
            for axis in [
                Axis::linear(Quantity::Rate), Axis::logarithmic(Quantity::Time), Axis::binary(Quantity::Bytes)
            ] {
                let high = low * factor;
                let span = axis.span([low, high].into_iter()).unwrap();
                for value in [low, high] {
                    prop_assert!((0.0..=1.0).contains(&span.position(value)));
                }
                let ticks = span.ticks(count);
                prop_assert!(ticks.len() < 200);
                prop_assert!(ticks.iter().filter(|tick| tick.label.is_some()).count() <= 2 * count + 2);
                prop_assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&tick.position)));
                prop_assert!(ticks.is_sorted_by(|a, b| a.position < b.position));
            }
        }
    }
}
