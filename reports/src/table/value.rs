//! What cells hold: short for people, exact for programs.

use fabricast_topologies::visible::visible;
use fabricast_topologies::{Bytes, Picos};

use crate::format::{self, Glyphs};

/// What a column holds; decides its alignment and the unit in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Words, to the left; may be wrapped.
    Text,
    /// Sizes with their own units: `64 KiB`.
    Bytes,
    /// Microseconds.
    Micros,
    /// 10⁹ bytes per second.
    Gbps,
    /// Shares in percent.
    Percent,
    /// Whole numbers and numbers without a unit.
    Number,
}

impl Unit {
    /// What stands behind the title of a column.
    pub(crate) fn sign(self, glyphs: Glyphs) -> &'static str {
        match self {
            Self::Text | Self::Bytes | Self::Number => "",
            Self::Micros => glyphs.micros(),
            Self::Gbps => "GB/s",
            Self::Percent => "%",
        }
    }
}

/// A value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Words.
    Text(String),
    /// A size.
    Bytes(Bytes),
    /// A time; shown in microseconds.
    Time(Picos),
    /// A rate in GB/s.
    Rate(f64),
    /// A share of one; shown in percent, in CSV as it is.
    Share(f64),
    /// A share of one that is a difference; shown in percent with its sign.
    Deviation(f64),
    /// A whole number.
    Count(u64),
    /// A number.
    Number(f64),
    /// Nothing is known; a dash, and nothing in CSV.
    Missing,
}

impl Value {
    /// Words.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The value, or [`Value::Missing`].
    #[must_use]
    pub fn or_missing<T>(value: Option<T>, make: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Missing, make)
    }

    /// For people. Control characters (an id of a hostile file could move the cursor) become visible escapes.
    pub(crate) fn shown(&self, glyphs: Glyphs) -> String {
        match self {
            Self::Text(text) => visible(text).into_owned(),
            Self::Bytes(bytes) => format::bytes(*bytes),
            Self::Time(time) => format::micros(*time),
            Self::Rate(rate) => format::gbps(*rate),
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

    /// For programs: bytes as they are, times in microseconds to the picosecond, rates in GB/s.
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
