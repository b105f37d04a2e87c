//! Units of the public interfaces: bytes, bandwidth and time. All are integers, so that sums do not depend on the order
//! of their terms.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A data rate in whole bytes per second (`450 GB/s` is 450 × 10⁹; `400 Gb/s` is 50 × 10⁹).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bandwidth(pub u64);

/// A point in time or a duration in integer picoseconds; 2⁶⁴ ps are 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Picos(pub u64);

/// Error of a quantity that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    /// The text that cannot be parsed, as given.
    pub text: String,
    /// Description of the expected syntax, with an example.
    pub expected: &'static str,
}

impl Bytes {
    /// Largest buffer size that any input may state: 1 PiB, above the memory of any machine.
    pub const MAX: Self = Self(1 << 50);
}

impl Bandwidth {
    /// Largest bandwidth that any input may state: 10¹⁵ B/s (1,000 TB/s).
    pub const MAX: Self = Self(1_000_000_000_000_000);

    /// Converts from GB/s (10⁹ bytes per second), rounded to whole bytes per second.
    #[must_use]
    pub fn from_gb_per_s(gb_per_s: f64) -> Self {
        Self((gb_per_s * 1e9).round() as u64)
    }

    /// The bandwidth in GB/s (10⁹ bytes per second).
    #[must_use]
    pub fn gb_per_s(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time of `bytes` at this bandwidth, rounded down to a picosecond; at most the largest time.
    #[must_use]
    pub fn transfer_time(self, bytes: Bytes) -> Picos {
        let picos = u128::from(bytes.0) * 1_000_000_000_000 / u128::from(self.0.max(1));
        Picos(u64::try_from(picos).unwrap_or(u64::MAX))
    }
}

impl Picos {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);

    /// Converts from microseconds, rounded to whole picoseconds; negative values and NaN give zero.
    #[must_use]
    pub fn from_us(us: f64) -> Self {
        Self((us * 1e6).round() as u64)
    }

    /// Converts from nanoseconds, rounded to whole picoseconds; negative values and NaN give zero.
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self((ns * 1e3).round() as u64)
    }

    /// The time in microseconds.
    #[must_use]
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The time in nanoseconds.
    #[must_use]
    pub fn ns(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

impl std::ops::Add for Picos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Picos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::Sub for Picos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Picos {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |a, b| a + b)
    }
}

/// Splits `12.5 GB/s` into its number and its unit; the number must be finite and not negative.
fn number_and_unit<'a>(text: &'a str, expected: &'static str) -> Result<(f64, &'a str), UnitError> {
    let error = || UnitError { text: text.to_owned(), expected };
    let trimmed = text.trim();
    let split = trimmed
        .char_indices()
        .find(|&(i, c)| {
            let exponent = matches!(c, 'e' | 'E')
                && trimmed[i + 1..].starts_with(|d: char| d.is_ascii_digit() || d == '-' || d == '+');
            !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | '_') || exponent)
        })
        .map_or(trimmed.len(), |(i, _)| i);
    let digits: String = trimmed[..split].chars().filter(|&c| c != '_').collect();
    let value: f64 = digits.parse().map_err(|_| error())?;
    if value.is_finite() && value >= 0.0 { Ok((value, trimmed[split..].trim())) } else { Err(error()) }
}

const BYTES_EXPECTED: &str = "a size: a whole number of bytes up to 1 PiB, with K, M, G, KiB, MiB, GiB (1024-based) or KB, MB, GB (1000-based), as in `64 KiB`";
const BANDWIDTH_EXPECTED: &str = "a bandwidth: a number over 0, up to 1000 TB/s, with `GB/s`, `MB/s`, `TB/s` (bytes) or `Gb/s`, `Mb/s`, `Tb/s` (bits), as in `450 GB/s`";
const TIME_EXPECTED: &str = "a time: a number from 0 to 1000 s with `ps`, `ns`, `us`, `ms` or `s`, as in `350 ns`";

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (value, unit) = number_and_unit(text, BYTES_EXPECTED)?;
        let factor = match unit {
            "" | "B" => 1.0,
            "K" | "k" | "KiB" => 1024.0,
            "M" | "m" | "MiB" => 1024.0 * 1024.0,
            "G" | "g" | "GiB" => 1024.0 * 1024.0 * 1024.0,
            "T" | "t" | "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "P" | "PiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            _ => return Err(UnitError { text: text.to_owned(), expected: BYTES_EXPECTED }),
        };
        let bytes = value * factor;
        if bytes.fract() == 0.0 && bytes <= Self::MAX.0 as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(UnitError { text: text.to_owned(), expected: BYTES_EXPECTED })
        }
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (value, unit) = number_and_unit(text, BANDWIDTH_EXPECTED)?;
        let factor = match unit {
            "TB/s" => 1e12,
            "GB/s" => 1e9,
            "MB/s" => 1e6,
            "KB/s" | "kB/s" => 1e3,
            "B/s" => 1.0,
            "Tb/s" | "Tbps" | "Tbit/s" => 1e12 / 8.0,
            "Gb/s" | "Gbps" | "Gbit/s" => 1e9 / 8.0,
            "Mb/s" | "Mbps" | "Mbit/s" => 1e6 / 8.0,
            _ => return Err(UnitError { text: text.to_owned(), expected: BANDWIDTH_EXPECTED }),
        };
        let rate = (value * factor).round();
        if rate >= 1.0 && rate <= Self::MAX.0 as f64 {
            Ok(Self(rate as u64))
        } else {
            Err(UnitError { text: text.to_owned(), expected: BANDWIDTH_EXPECTED })
        }
    }
}

impl FromStr for Picos {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (value, unit) = number_and_unit(text, TIME_EXPECTED)?;
        let factor = match unit {
            "ps" => 1.0,
            "ns" => 1e3,
            "us" | "µs" | "μs" => 1e6,
            "ms" => 1e9,
            "s" => 1e12,
            "" if value == 0.0 => 1.0,
            _ => return Err(UnitError { text: text.to_owned(), expected: TIME_EXPECTED }),
        };
        let picos = (value * factor).round();
        // Latencies are limited to 1000 s, so that the sum of the latencies of a path cannot overflow.
        if picos <= 1e15 {
            Ok(Self(picos as u64))
        } else {
            Err(UnitError { text: text.to_owned(), expected: TIME_EXPECTED })
        }
    }
}

/// Writes `value` with at most three decimals and no trailing zeros.
fn format_rounded(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for Bytes {
    /// Formats with the largest binary unit that divides the value (`4 KiB`), otherwise in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let unit = UNITS.iter().find(|&&(size, _)| self.0 >= size && self.0.is_multiple_of(size));
        match unit {
            Some(&(size, name)) => f.pad(&format!("{} {name}", self.0 / size)),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl fmt::Display for Bandwidth {
    /// Formats in GB/s.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} GB/s", format_rounded(self.gb_per_s())))
    }
}

impl fmt::Display for Picos {
    /// Formats in nanoseconds below 1 µs, in microseconds from there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000_000 {
            f.pad(&format!("{} ns", format_rounded(self.ns())))
        } else {
            f.pad(&format!("{} us", format_rounded(self.us())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times at slow rates above the range are limited to it.
    #[test]
    fn transfer_times_saturate() {
        assert_eq!(Bandwidth(1).transfer_time(Bytes(1 << 50)), Picos(u64::MAX));
        assert_eq!(Bandwidth(7_000_000_000).transfer_time(Bytes(7_000_000_000)), Picos(1_000_000_000_000));
    }

    #[test]
    fn sizes_parse_with_binary_and_decimal_units() {
        assert_eq!("4K".parse(), Ok(Bytes(4096)));
        assert_eq!("4KiB".parse(), Ok(Bytes(4096)));
        assert_eq!("4 KB".parse(), Ok(Bytes(4000)));
        assert_eq!("1.5G".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("17".parse(), Ok(Bytes(17)));
        assert_eq!("1PiB".parse(), Ok(Bytes::MAX));
        for wrong in ["", "-1", "1.5", "4Q", "1e18", "NaN", "inf", "0x10"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bandwidths_parse_in_bits_and_bytes() {
        assert_eq!("400 Gb/s".parse(), Ok(Bandwidth(50_000_000_000)));
        assert_eq!("50GB/s".parse(), Ok(Bandwidth(50_000_000_000)));
        for wrong in ["0 GB/s", "-3 GB/s", "450", "450 GiB/s", "2e9 GB/s"] {
            assert!(wrong.parse::<Bandwidth>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!("350 ns".parse(), Ok(Picos(350_000)));
        assert_eq!("1.3us".parse(), Ok(Picos(1_300_000)));
        assert_eq!("0".parse(), Ok(Picos(0)));
        assert!("5".parse::<Picos>().is_err());
        assert!("1e9 s".parse::<Picos>().is_err());
    }

    #[test]
    fn displayed_values_parse_back() {
        for text in ["450 GB/s", "0.125 GB/s"] {
            let rate: Bandwidth = text.parse().unwrap();
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!(Bytes(1 << 20).to_string(), "1 MiB");
        assert_eq!(Bytes(1000).to_string(), "1000 B");
        assert_eq!(Picos(1_300_000).to_string(), "1.3 us");
    }
}
