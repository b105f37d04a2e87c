//! Sets of ranks in the form `0-3,8` or `0-7:2`.

use std::str::FromStr;

use fabricast_workload::job::parse_ranges;

/// Distinct ranks, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSet {
    /// Rank numbers, in the order given.
    pub ranks: Vec<u32>,
    /// Text from the command line, as given.
    pub text: String,
}

impl RankSet {
    /// Creates the set of ranks 0 to `ranks` - 1.
    pub fn all(ranks: usize) -> Self {
        Self { ranks: (0..ranks as u32).collect(), text: format!("0-{}", ranks.saturating_sub(1)) }
    }
}

impl FromStr for RankSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranks = parse_ranges(text, "rank")?;
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("rank {} is in it twice", pair[0]));
        }
        Ok(Self { ranks, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(text: &str) -> Result<Vec<u32>, String> {
        text.parse::<RankSet>().map(|set| set.ranks)
    }

    #[test]
    fn ranges_and_steps() {
        assert_eq!(ranks("0-3,8"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(ranks("1-7:2"), Ok(vec![1, 3, 5, 7]));
        assert_eq!(ranks("5"), Ok(vec![5]));
    }

    #[test]
    fn invalid_rank_sets_are_rejected() {
        for (text, message) in [
            ("", "`` is not a rank"),
            ("0-x", "`0-x` is not a rank"),
            ("3-0", "`3-0` contains no rank"),
            ("0-7:0", "contains no rank"),
            ("0-3,2", "rank 2 is in it twice"),
            ("0-4294967295", "more than 1048576 ranks"),
        ] {
            assert!(ranks(text).unwrap_err().contains(message), "{text}: {:?}", ranks(text));
        }
    }
}
