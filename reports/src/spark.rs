//! Sparklines: values over time in a line of text.

use crate::format::Glyphs;

/// Characters of the levels above zero, lowest first.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LETTERS: [char; 4] = ['.', '-', '=', '#'];

/// Formats fractions of one as marks, `width` at most: if there are more values, each mark is the mean of neighbouring
/// ones. Zero is a blank, and any visible value has at least the lowest mark.
///
/// ```
/// use fabricast_reports::{format::Glyphs, spark};
/// assert_eq!(spark::line(&[0.0, 0.1, 0.5, 1.0], 4, Glyphs::Unicode), " ▁▄█");
/// assert_eq!(spark::line(&[0.0, 0.1, 0.5, 0.7], 2, Glyphs::Ascii), ".-");
/// ```
#[must_use]
pub fn line(values: &[f64], width: usize, glyphs: Glyphs) -> String {
    let levels: &[char] = match glyphs {
        Glyphs::Unicode => &BLOCKS,
        Glyphs::Ascii => &LETTERS,
    };
    let width = width.min(values.len());
    let bound = |mark: usize| mark * values.len() / width.max(1);
    let means = (0..width).map(|mark| {
        let part = values.get(bound(mark)..bound(mark + 1)).unwrap_or_default();
        part.iter().sum::<f64>() / part.len().max(1) as f64
    });
    means.map(|mean| mark(mean, levels)).collect()
}

fn mark(part: f64, levels: &[char]) -> char {
    // Less than a thousandth is not visible in other figures either.
    if part.is_nan() || part < 1e-3 {
        return ' ';
    }
    let level = (part * levels.len() as f64).round().max(1.0) as usize;
    levels.get(level - 1).or(levels.last()).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_fit_the_width_and_rise_with_their_values(values in prop::collection::vec(0.0..1.1_f64, 0..200), width in 0_usize..80) {
            for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
                let line = line(&values, width, glyphs);
                prop_assert_eq!(line.chars().count(), width.min(values.len()));
                let mut sorted = values.clone();
                sorted.sort_by(f64::total_cmp);
                let levels: &[char] = if glyphs == Glyphs::Unicode { &BLOCKS } else { &LETTERS };
                let level_of = |mark: char| levels.iter().position(|&level| level == mark).map_or(0, |level| level + 1);
                let rising: Vec<usize> = super::line(&sorted, width, glyphs).chars().map(level_of).collect();
                prop_assert!(rising.is_sorted(), "{:?}", rising);
            }
        }
    }

    #[test]
    fn zero_is_blank_and_one_is_full() {
        assert_eq!(line(&[0.0, 0.001, 1.0, 7.0, f64::NAN], 5, Glyphs::Unicode), " ▁██ ");
        assert_eq!(line(&[], 5, Glyphs::Unicode), "");
        assert_eq!(line(&[1.0], 0, Glyphs::Unicode), "");
    }
}
