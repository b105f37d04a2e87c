//! Formatting of numbers for people: enough digits for decisions, and no scientific notation.

use fabricast_topologies::{Bytes, Picos};

/// Placeholder for a missing number.
pub const MISSING: &str = "–";

/// Character set of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Glyphs {
    /// Unicode: `µ`, `–`, block and line characters.
    #[default]
    Unicode,
    /// ASCII, which any terminal shows.
    Ascii,
}

impl Glyphs {
    /// Returns the symbol for microseconds.
    #[must_use]
    pub fn micros(self) -> &'static str {
        match self {
            Self::Unicode => "µs",
            Self::Ascii => "us",
        }
    }

    /// Returns the placeholder for a missing number.
    #[must_use]
    pub fn missing(self) -> &'static str {
        match self {
            Self::Unicode => MISSING,
            Self::Ascii => "-",
        }
    }
}

/// Formats a size in the largest binary unit that does not exceed the size: `512 B`, `1 KiB`, `1.43 MiB`.
#[must_use]
pub fn bytes(size: Bytes) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|&&(unit, _)| size.0 >= unit) {
        None => format!("{} B", size.0),
        Some(&(unit, name)) if size.0.is_multiple_of(unit) => {
            format!("{} {name}", grouped(size.0 / unit))
        }
        Some(&(unit, name)) => format!("{} {name}", significant(size.0 as f64 / unit as f64)),
    }
}

/// Formats a time in microseconds without the unit: `0.486`, `4.86`, `48.62`, `118.3`, `1,234`.
#[must_use]
pub fn micros(time: Picos) -> String {
    significant(time.us())
}

/// Formats a time in microseconds exactly to the picosecond, for programs: `4.86`, `1234.000001`, `12`.
#[must_use]
pub fn exact_micros(time: Picos) -> String {
    let (micros, rest) = (time.0 / 1_000_000, time.0 % 1_000_000);
    if rest == 0 {
        return micros.to_string();
    }
    format!("{micros}.{rest:06}").trim_end_matches('0').to_owned()
}

/// Formats a time with a suitable unit: `350 ns`, `4.86 µs`, `1.23 ms`, `2.5 s`.
#[must_use]
pub fn time(time: Picos) -> String {
    const UNITS: [(u64, &str); 4] = [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "µs"), (1_000, "ns")];
    match UNITS.iter().find(|&&(unit, _)| time.0 >= unit) {
        None => format!("{} ps", time.0),
        Some(&(unit, name)) if time.0.is_multiple_of(unit) => {
            format!("{} {name}", grouped(time.0 / unit))
        }
        Some(&(unit, name)) => format!("{} {name}", significant(time.0 as f64 / unit as f64)),
    }
}

/// Formats a rate in GB/s without the unit: `0.520`, `48.60`, `362.1`, `1,234`.
#[must_use]
pub fn gb_per_s(rate: f64) -> String {
    significant(rate)
}

/// Formats a fraction of one in percent without the percent sign: `40`, `4.2`, `0`, and `-3.1` for negative values.
#[must_use]
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    let tenths = (value * 10.0).round();
    if tenths == 0.0 {
        "0".to_owned()
    } else if tenths.abs() < 100.0 {
        format!("{:.1}", tenths / 10.0)
    } else {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(value.abs().round() as u64))
    }
}

/// Formats a whole number with thousands separators: `1,234,567`.
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with three to four significant digits: two decimals below 100, one below 1,000, none above, and
/// below 1 as many as three digits need.
#[must_use]
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    let size = value.abs();
    let sign = if value < 0.0 { "-" } else { "" };
    // The limits apply to the rounded number: 99.996 is shown as 100.0 instead of 100.00.
    if size >= 999.95 {
        return format!("{sign}{}", grouped(size.round() as u64));
    }
    if size >= 99.995 {
        return format!("{sign}{size:.1}");
    }
    if size >= 0.9995 {
        return format!("{sign}{size:.2}");
    }
    let mut decimals = 3;
    let mut limit = 0.099_95;
    while size < limit && decimals < 12 {
        decimals += 1;
        limit /= 10.0;
    }
    if size * 10_f64.powi(decimals) < 0.5 { "0".to_owned() } else { format!("{sign}{size:.*}", decimals as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_keep_whole_units() {
        let shown = [0, 512, 1 << 10, 1 << 16, 1_500_000, 1 << 30, 1000 << 40].map(|n| bytes(Bytes(n)));
        assert_eq!(shown, ["0 B", "512 B", "1 KiB", "64 KiB", "1.43 MiB", "1 GiB", "1,000 TiB"]);
    }

    #[test]
    fn times_have_three_or_four_digits() {
        let shown =
            [0, 486, 48_600, 486_000, 4_860_000, 48_620_000, 118_300_000, 999_940_000, 999_960_000, 1_234_000_000]
                .map(|ps| micros(Picos(ps)));
        let expected = ["0", "0.000486", "0.0486", "0.486", "4.86", "48.62", "118.3", "999.9", "1,000", "1,234"];
        assert_eq!(shown, expected);
        assert_eq!(micros(Picos(99_996_000)), "100.0");
        assert_eq!(micros(Picos(999_600)), "1.00");
        assert_eq!(time(Picos(350_000)), "350 ns");
        assert_eq!(time(Picos(1_234_000_000)), "1.23 ms");
    }

    #[test]
    fn exact_times_lose_nothing() {
        let shown = [0, 1, 4_860_000, 12_000_000, u64::MAX].map(|ps| exact_micros(Picos(ps)));
        assert_eq!(shown, ["0", "0.000001", "4.86", "12", "18446744073709.551615"]);
    }

    #[test]
    fn shares_are_short() {
        assert_eq!(
            [0.4, 0.042, 0.0996, 1.0, 0.0, -0.031, 12.34].map(percent),
            ["40", "4.2", "10", "100", "0", "-3.1", "1,234"]
        );
        assert_eq!(percent(f64::NAN), MISSING);
    }

    proptest! {
        #[test]
        fn figures_read_back_within_half_a_percent(ps in 1_u64..u64::MAX / 4) {
            let shown = micros(Picos(ps));
            prop_assert!(!shown.contains('e'), "{}", shown);
            let read: f64 = shown.replace(',', "").parse().unwrap();
            prop_assert!((read / Picos(ps).us() - 1.0).abs() <= 0.005_01, "{} for {} ps", shown, ps);
            let digits = shown.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
            prop_assert!(digits >= 3 || ps < 100, "{} for {} ps", shown, ps);
        }
    }
}
