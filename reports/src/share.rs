//! Shares of a total as bars of text: composition of a run's time.

use std::fmt::Write as _;

use fabricast_topologies::Picos;

use crate::format::{self, Glyphs};

/// Part of a total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimePart {
    /// Name of the part, such as `software`.
    pub name: String,
    /// Time of the part.
    pub time: Picos,
}

const SECOND: Picos = Picos(1_000_000_000_000);

/// Formats a line for each part: name, bar, percent, time. Percentages are whole and add up to 100; bars are to scale,
/// with `width` characters for the total. Parts keep their order. Times are in microseconds, or in seconds for totals
/// of a second or more.
///
/// ```text
/// software  ███████▏              30 %   3.60 µs
/// bandwidth ████████████████▊     70 %   8.40 µs
/// ```
#[must_use]
pub fn bars(parts: &[TimePart], width: u16, glyphs: Glyphs) -> String {
    let total: u128 = parts.iter().map(|part| u128::from(part.time.0)).sum();
    let names = parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
    let in_seconds = total >= u128::from(SECOND.0);
    let shown = |time: Picos| match in_seconds {
        true => format::significant(time.us() / SECOND.us()),
        false => format::micros(time),
    };
    let times: Vec<String> = parts.iter().map(|part| shown(part.time)).collect();
    let digits = times.iter().map(|time| time.chars().count()).max().unwrap_or(0);
    let unit = if in_seconds { "s" } else { glyphs.micros() };
    let mut text = String::new();
    for ((part, time), percent) in parts.iter().zip(&times).zip(percentages(parts)) {
        let bar = bar(part.time, total, width, glyphs);
        let bar_width = usize::from(width);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:names$} {bar:bar_width$} {percent:3} %  {time:>digits$} {unit}", part.name);
    }
    text
}

/// Returns whole percentages that add up to 100. The largest remainders are rounded up; among equal remainders, that of
/// the earlier part.
#[must_use]
pub fn percentages(parts: &[TimePart]) -> Vec<u32> {
    let total: u128 = parts.iter().map(|part| u128::from(part.time.0)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let hundredfold = |part: &TimePart| u128::from(part.time.0) * 100;
    let mut percent: Vec<u32> = parts.iter().map(|part| (hundredfold(part) / total) as u32).collect();
    let missing = 100 - percent.iter().sum::<u32>();
    let mut by_remainder: Vec<(usize, u128)> = parts.iter().map(|part| hundredfold(part) % total).enumerate().collect();
    by_remainder.sort_by_key(|&(number, remainder)| (std::cmp::Reverse(remainder), number));
    for &(number, _) in by_remainder.iter().take(missing as usize) {
        if let Some(percent) = percent.get_mut(number) {
            *percent += 1;
        }
    }
    percent
}

/// Returns a bar for the fraction `part / total` of `width` characters. A part that is not zero has at least the
/// smallest mark.
fn bar(part: Picos, total: u128, width: u16, glyphs: Glyphs) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if total == 0 || part == Picos::ZERO {
        return String::new();
    }
    let fraction = match glyphs {
        Glyphs::Unicode => 8,
        Glyphs::Ascii => 1,
    };
    let full = u128::from(width) * fraction;
    let marks = ((u128::from(part.0) * full * 2 + total) / (total * 2)).clamp(u128::from(width > 0), full);
    let (blocks, rest) = ((marks / fraction) as usize, (marks % fraction) as usize);
    match glyphs {
        Glyphs::Unicode => "█".repeat(blocks) + EIGHTHS.get(rest).copied().unwrap_or(""),
        Glyphs::Ascii => "#".repeat(blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(times: &[u64]) -> Vec<TimePart> {
        let names = ["software", "latency", "bandwidth", "waiting"];
        let part = |(&time, name): (&u64, &&str)| TimePart { name: (*name).to_owned(), time: Picos(time) };
        times.iter().zip(names.iter().cycle()).map(part).collect()
    }

    #[test]
    fn bars_are_to_scale() {
        let costs = parts(&[3_600_000, 50_000, 8_350_000, 0]);
        insta::assert_snapshot!(bars(&costs, 20, Glyphs::Unicode), @r"
        software  ██████                30 %    3.60 µs
        latency   ▏                      0 %  0.0500 µs
        bandwidth █████████████▉        70 %    8.35 µs
        waiting                          0 %       0 µs
        ");
        insta::assert_snapshot!(bars(&costs, 20, Glyphs::Ascii), @r"
        software  ######                30 %    3.60 us
        latency   #                      0 %  0.0500 us
        bandwidth ##############        70 %    8.35 us
        waiting                          0 %       0 us
        ");
    }

    #[test]
    fn totals_of_a_second_or_more_are_shown_in_seconds() {
        let costs = parts(&[7_500_000_000_000, 2_250_000_000_000, 250_000_000_000, 0]);
        insta::assert_snapshot!(bars(&costs, 20, Glyphs::Unicode), @r"
        software  ███████████████       75 %   7.50 s
        latency   ████▌                 23 %   2.25 s
        bandwidth ▌                      2 %  0.250 s
        waiting                          0 %      0 s
        ");
        assert!(bars(&parts(&[999_999_999_999]), 1, Glyphs::Ascii).ends_with(" us\n"));
        assert!(bars(&parts(&[1_000_000_000_000]), 1, Glyphs::Ascii).ends_with(" s\n"));
    }

    #[test]
    fn empty_totals_have_no_shares() {
        assert_eq!(bars(&[], 20, Glyphs::Unicode), "");
        assert_eq!(percentages(&parts(&[0, 0])), [0, 0]);
        assert!(!bars(&parts(&[0]), 20, Glyphs::Unicode).contains('█'));
    }

    proptest! {
        #[test]
        fn percentages_add_up_and_bars_fit(times in prop::collection::vec(any::<u64>(), 1..8), width in 0_u16..60) {
            let parts = parts(&times);
            let total: u128 = times.iter().map(|&time| u128::from(time)).sum();
            prop_assume!(total > 0);
            let percent = percentages(&parts);
            prop_assert_eq!(percent.iter().sum::<u32>(), 100);
            for (part, percent) in parts.iter().zip(percent) {
                let exact = part.time.0 as f64 / total as f64 * 100.0;
                prop_assert!((exact - f64::from(percent)).abs() < 1.0 + 1e-9);
                for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
                    let bar = bar(part.time, total, width, glyphs);
                    prop_assert!(bar.chars().count() <= usize::from(width));
                    prop_assert_eq!(bar.is_empty(), part.time == Picos::ZERO || width == 0);
                }
            }
        }
    }
}
