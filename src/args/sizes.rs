//! Sizes of `--sizes A..B[:factor][,C…]`: ranges, both ends included, and single sizes.

use std::str::FromStr;

use fabricast_topologies::Bytes;

/// Sizes in bytes, ascending and each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<Bytes>);

/// Maximum number of sizes in a range.
const MAX_SIZES: usize = 10_000;

impl Default for Sizes {
    /// 1 KiB to 1 GiB by factors of 2.
    fn default() -> Self {
        Self((10..=30).map(|k| Bytes(1 << k)).collect())
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            sizes.extend(range(part.trim())?);
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self(sizes))
    }
}

/// Parses a size, or a geometric series from one size to another.
fn range(text: &str) -> Result<Vec<Bytes>, String> {
    let Some((first, rest)) = text.split_once("..") else {
        return size(text).map(|size| vec![size]);
    };
    let (last, factor) = match rest.split_once(':') {
        Some((last, factor)) => (last, parse_factor(factor)?),
        None => (rest, 2.0),
    };
    let (first, last) = (size(first)?, size(last)?);
    if first.0 == 0 || first > last {
        return Err(format!(
            "`{text}` is not a range of sizes: expected FROM..TO with 1 ≤ FROM ≤ TO, as in 1KiB..1GiB"
        ));
    }
    let mut sizes = vec![first];
    while let Some(&current) = sizes.last() {
        let next = Bytes(((current.0 as f64 * factor).round() as u64).max(current.0 + 1));
        if next > last {
            break;
        }
        if sizes.len() >= MAX_SIZES {
            return Err(format!("`{text}` has over {MAX_SIZES} sizes: expected a larger factor"));
        }
        sizes.push(next);
    }
    if sizes.last() != Some(&last) {
        sizes.push(last);
    }
    Ok(sizes)
}

fn size(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: fabricast_topologies::UnitError| error.to_string())
}

fn parse_factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 1.0 && factor.is_finite() => Ok(factor),
        _ => Err(format!("`{text}` is not a factor: expected a number over 1, as in 1KiB..1GiB:4")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_included() {
        let sizes: Sizes = "1KiB..6KiB".parse().unwrap();
        assert_eq!(sizes.0, [1024, 2048, 4096, 6144].map(Bytes));
        let single: Sizes = "4M".parse().unwrap();
        assert_eq!(single.0, [Bytes(4 << 20)]);
        assert_eq!("1K..1G:1024".parse::<Sizes>().unwrap().0.len(), 3);
    }

    #[test]
    fn lists_are_sorted_and_have_each_size_once() {
        let sizes: Sizes = "1MiB, 64KiB,1KiB..4KiB,2K,1GiB".parse().unwrap();
        assert_eq!(sizes.0, [1 << 10, 2 << 10, 4 << 10, 64 << 10, 1 << 20, 1 << 30].map(Bytes));
        for text in ["", "1K,", ",1K", "1K,,2K", "1K,4K..2K"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in ["4K..1K", "0..4", "1..2:1", "1..2:x", "..", "1..", "1..1GiB:1.0000001"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
