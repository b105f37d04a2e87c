//! Values of cells, formatted short for people and exact for programs.

use fabricast_topologies::visible::visible;
use fabricast_topologies::{Bytes, Picos};

use crate::format::{self, Glyphs};

/// Unit of a column, which determines its alignment and the unit in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text, without a unit; left-aligned, may wrap.
    Text,
    /// Sizes in bytes, each shown with a unit, such as `64 KiB`.
    Bytes,
    /// Times in microseconds.
    Micros,
    /// Rates in GB/s (10⁹ bytes per second).
    GbPerS,
    /// Fractions of one, shown in percent.
    Percent,
    /// Whole numbers and numbers without a unit.
    Number,
}

impl Unit {
    /// Returns the unit that follows the title of a column.
    pub(crate) fn sign(self, glyphs: Glyphs) -> &'static str {
        match self {
            Self::Text | Self::Bytes | Self::Number => "",
            Self::Micros => glyphs.micros(),
            Self::GbPerS => "GB/s",
            Self::Percent => "%",
        }
    }
}

/// Typed value of a table cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text; control characters in it become visible escapes.
    Text(String),
    /// Size in bytes.
    Bytes(Bytes),
    /// Time; shown in microseconds.
    Time(Picos),
    /// Rate in GB/s (10⁹ bytes per second).
    Rate(f64),
    /// Fraction of one, shown in percent; in CSV written as a fraction.
    Share(f64),
    /// Signed difference as a fraction of one, shown in percent with its sign.
    Deviation(f64),
    /// Whole number.
    Count(u64),
    /// Number without a unit.
    Number(f64),
    /// Missing value, shown as a dash; empty in CSV.
    Missing,
}

impl Value {
    /// Creates a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the result of `make` for the value, or [`Value::Missing`] if there is no value.
    #[must_use]
    pub fn or_missing<T>(value: Option<T>, make: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Missing, make)
    }

    /// Formats the value for people. Control characters become visible escapes, because a malicious id could otherwise
    /// move the cursor.
    pub(crate) fn shown(&self, glyphs: Glyphs) -> String {
        match self {
            Self::Text(text) => visible(text).into_owned(),
            Self::Bytes(bytes) => format::bytes(*bytes),
            Self::Time(time) => format::micros(*time),
            Self::Rate(rate) => format::gb_per_s(*rate),
            Self::Share(share) => format::percent(*share),
            Self::Deviation(share) if *share > 0.0 && format::percent(*share) != "0" => {
                format!("+{}", format::percent(*share))
            }
            Self::Deviation(share) => format::percent(*share),
            Self::Count(count) => format::grouped(*count),
            Self::Number(number) => format::significant(*number),
            Self::Missing => glyphs.missing().to_owned(),
        }
    }

    /// Formats the value for programs: bytes as whole numbers, times in microseconds exactly to the picosecond, rates
    /// in GB/s.
    pub(crate) fn exact(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => bytes.0.to_string(),
            Self::Time(time) => format::exact_micros(*time),
            Self::Rate(number) | Self::Share(number) | Self::Deviation(number) | Self::Number(number) => {
                if number.is_finite() { number.to_string() } else { String::new() }
            }
            Self::Count(count) => count.to_string(),
            Self::Missing => String::new(),
        }
    }
}
