//! Ranges of message sizes with one strategy, merged from neighbouring sizes.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::PlanRow;
use fabricast_collectives::strategy::Strategy;

/// Upper limit of the last range of a table, in bytes: larger than any call, and representable as a signed 64-bit
/// integer.
pub const LAST_BYTES: Bytes = Bytes(i64::MAX as u64);

/// Consecutive planned sizes with one strategy. The boundary between two planned sizes is at their geometric mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Collective to which the range applies.
    pub collective: Collective,
    /// Smallest message size, in bytes, inclusive.
    pub min_bytes: Bytes,
    /// Largest message size, in bytes, inclusive.
    pub max_bytes: Bytes,
    /// Selected strategy.
    pub strategy: Strategy,
}

/// Consecutive sizes of a collective with an equal key. The boundary between two sizes with different keys is at their
/// geometric mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeRange<K> {
    /// Collective to which the range applies.
    pub collective: Collective,
    /// Smallest message size, in bytes, inclusive.
    pub min_bytes: Bytes,
    /// Largest message size, in bytes, inclusive.
    pub max_bytes: Bytes,
    /// Property that all sizes of the range share, such as the strategy.
    pub key: K,
}

impl<K: PartialEq> SizeRange<K> {
    /// Creates the range of a single size.
    pub fn single(collective: Collective, bytes: Bytes, key: K) -> Self {
        Self { collective, min_bytes: bytes, max_bytes: bytes, key }
    }

    /// Merges ranges with equal keys. `ranges` are in order of collective, then size.
    pub fn merge(ranges: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for mut next in ranges {
            match merged.last_mut() {
                Some(last) if last.collective == next.collective && last.key == next.key => {
                    last.max_bytes = next.max_bytes;
                }
                Some(last) if last.collective == next.collective => {
                    let middle = geometric_mean(last.max_bytes, next.min_bytes);
                    last.max_bytes = Bytes(middle.0.saturating_sub(1).max(last.max_bytes.0));
                    next.min_bytes = Bytes(last.max_bytes.0 + 1);
                    merged.push(next);
                }
                _ => merged.push(next),
            }
        }
        merged
    }
}

/// Returns the ranges of rows in order of collective and size.
pub(super) fn merge(rows: &[PlanRow]) -> Vec<Range> {
    let merged =
        SizeRange::merge(rows.iter().map(|row| SizeRange::single(row.collective, row.bytes, row.table_entry())));
    merged.into_iter().map(Range::from).collect()
}

impl From<SizeRange<Strategy>> for Range {
    fn from(SizeRange { collective, min_bytes, max_bytes, key: strategy }: SizeRange<Strategy>) -> Self {
        Self { collective, min_bytes, max_bytes, strategy }
    }
}

/// Geometric mean of two sizes, rounded down.
pub(super) fn geometric_mean(a: Bytes, b: Bytes) -> Bytes {
    Bytes((u128::from(a.0) * u128::from(b.0)).isqrt() as u64)
}
