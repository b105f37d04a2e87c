//! Merges neighbouring sizes with the same pick.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::Row;
use crate::strategy::Strategy;

/// Consecutive planned sizes with one strategy. Between two planned sizes the boundary lies at their geometric mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The collective.
    pub collective: Collective,
    /// First byte size, inclusive.
    pub min_bytes: Bytes,
    /// Last byte size, inclusive.
    pub max_bytes: Bytes,
    /// The pick.
    pub strategy: Strategy,
}

/// The ranges of rows that are ordered by collective and size.
pub(super) fn merge(rows: &[Row]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for row in rows {
        let next = Range {
            collective: row.collective,
            min_bytes: row.bytes,
            max_bytes: row.bytes,
            strategy: row.pick.strategy,
        };
        match ranges.last_mut() {
            Some(last) if last.collective == next.collective && last.strategy == next.strategy => {
                last.max_bytes = next.max_bytes;
            }
            Some(last) if last.collective == next.collective => {
                let middle = geometric_mean(last.max_bytes, next.min_bytes);
                last.max_bytes = Bytes(middle.0.saturating_sub(1).max(last.max_bytes.0));
                ranges.push(Range { min_bytes: Bytes(last_end(&ranges) + 1), ..next });
            }
            _ => ranges.push(next),
        }
    }
    ranges
}

fn last_end(ranges: &[Range]) -> u64 {
    ranges.last().map_or(0, |range| range.max_bytes.0)
}

fn geometric_mean(a: Bytes, b: Bytes) -> Bytes {
    Bytes((u128::from(a.0) * u128::from(b.0)).isqrt() as u64)
}
