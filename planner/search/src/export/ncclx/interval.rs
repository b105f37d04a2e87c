//! Intervals of whole numbers: `*`, `5`, `[1,2]`, `(1,)`, `[,4)`.

use std::fmt;

use fabricast_topologies::Bytes;

/// Interval of whole numbers, with both ends included. `None`: without an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Smallest number.
    pub low: Option<i64>,
    /// Largest number.
    pub high: Option<i64>,
}

impl Interval {
    /// Interval of one number.
    #[must_use]
    pub fn exactly(number: i64) -> Self {
        Self { low: Some(number), high: Some(number) }
    }

    /// Parses an interval. An empty text is `*`, as in NCCLX. The error is a text that states the fault and the valid
    /// forms.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const FORMS: &str = "expected *, a whole number, or an interval such as [0,1048576], (1,) or [,4)";
        let wrong = || format!("`{text}`: {FORMS}");
        let body = text.trim();
        let Some(opening) = body.chars().next().filter(|first| matches!(first, '(' | '[')) else {
            return match body {
                "" | "*" => Ok(Self::default()),
                number => number.parse().map(Self::exactly).map_err(|_| wrong()),
            };
        };
        let closing = body.chars().last().filter(|last| matches!(last, ')' | ']')).ok_or_else(wrong)?;
        let ends =
            body.get(1..body.len().saturating_sub(1)).and_then(|inner| inner.split_once(',')).ok_or_else(wrong)?;
        let end = |word: &str, excluded: i64| match word.trim() {
            "" => Ok(None),
            number => {
                let inside = number.parse::<i64>().ok().and_then(|number| number.checked_add(excluded));
                inside.map(Some).ok_or_else(wrong)
            }
        };
        let interval =
            Self { low: end(ends.0, i64::from(opening == '('))?, high: end(ends.1, -i64::from(closing == ')'))? };
        match (interval.low, interval.high) {
            (Some(low), Some(high)) if low > high => Err(format!("`{text}` contains no whole number")),
            _ => Ok(interval),
        }
    }

    /// Returns true if the number is in the interval.
    #[must_use]
    pub fn contains(self, number: i64) -> bool {
        self.low.is_none_or(|low| number >= low) && self.high.is_none_or(|high| number <= high)
    }

    /// Returns the smallest and the largest size whose quotient by `ranks`, rounded down, is in the interval; `None` if
    /// there is none.
    pub(super) fn multiple(self, ranks: u32) -> Option<(Bytes, Bytes)> {
        let ranks = u64::from(ranks);
        let low = self.low.unwrap_or(0).max(0).unsigned_abs().saturating_mul(ranks);
        let high = match self.high {
            None => u64::MAX,
            Some(high) => u64::try_from(high).ok()?.saturating_mul(ranks).saturating_add(ranks - 1),
        };
        Some((Bytes(low), Bytes(high)))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (None, None) => f.write_str("*"),
            (Some(low), Some(high)) if low == high => write!(f, "{low}"),
            (Some(low), Some(high)) => write!(f, "[{low},{high}]"),
            (Some(low), None) => write!(f, "[{low},)"),
            (None, Some(high)) => write!(f, "(,{high}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The forms and their meanings are those of the table in NCCLX's README.
    #[test]
    fn forms_of_the_readme_are_read() {
        let interval = |low, high| Ok(Interval { low, high });
        for (text, expected) in [
            ("*", interval(None, None)),
            ("", interval(None, None)),
            (" 5 ", interval(Some(5), Some(5))),
            ("[2,7]", interval(Some(2), Some(7))),
            ("(2,7)", interval(Some(3), Some(6))),
            ("(2,7]", interval(Some(3), Some(7))),
            ("[2,7)", interval(Some(2), Some(6))),
            ("(1,)", interval(Some(2), None)),
            ("[2,)", interval(Some(2), None)),
            ("(,4]", interval(None, Some(4))),
            ("( , 4 )", interval(None, Some(3))),
        ] {
            assert_eq!(Interval::parse(text), expected, "{text}");
        }
        for text in ["(2,1]", "[5", "[5]", "[a,2]", "[1,2,3]", "5x", "[", "[,]x", "(9223372036854775807,)", "(1,2)"] {
            assert!(Interval::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_intervals_read_back(low in proptest::option::of(-9i64..9), high in proptest::option::of(9i64..99)) {
            let interval = Interval { low, high };
            prop_assert_eq!(Interval::parse(&interval.to_string()), Ok(interval));
        }

        /// The definition of `bytesPerRank`: a call matches by the quotient of its size, rounded down.
        #[test]
        fn sizes_match_by_their_quotient(
            low in proptest::option::of(-5i64..9), length in proptest::option::of(0i64..9), ranks in 1u32..9, bytes in 0u64..200,
        ) {
            let interval = Interval { low, high: length.map(|length| low.unwrap_or(0) + length) };
            let matches = interval.multiple(ranks).is_some_and(|(min, max)| (min.0..=max.0).contains(&bytes));
            prop_assert_eq!(matches, interval.contains((bytes / u64::from(ranks)) as i64));
        }
    }
}
