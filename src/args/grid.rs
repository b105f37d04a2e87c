//! Rank grids in the form `4x2x1`.

use std::str::FromStr;

/// Side lengths of a grid with one to three dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid(pub Vec<u32>);

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides: Option<Vec<u32>> =
            text.split('x').map(|side| side.parse().ok().filter(|&side: &u32| side > 0)).collect();
        sides
            .filter(|sides| sides.len() <= 3)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a grid: expected one to three sides, as in 4x2x1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_whole_numbers_from_one() {
        assert_eq!("4x2x1".parse(), Ok(Grid(vec![4, 2, 1])));
        assert_eq!("8".parse(), Ok(Grid(vec![8])));
        for text in ["", "4x", "0x2", "4x2x1x1", "-1", "4*2"] {
            assert!(text.parse::<Grid>().is_err(), "{text}");
        }
    }
}
