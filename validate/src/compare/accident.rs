//! Accidents of a measurement: rows that do not go with their neighbours in size.
//!
//! Times of one sweep grow smoothly. A row that is off by more than a quarter from what its two neighbours make of it, on a
//! straight line through their logarithms, says more of the moment than of the machine; the first and the last row of a
//! sweep have one neighbour only and are not judged.

use std::collections::BTreeMap;

use fabricast_topologies::{Bytes, Picos};

use super::Compared;
use crate::measured::neighbours;

/// How far a row may be off.
const MOST: f64 = 0.25;

/// Sets what rows' neighbours make of them where the rows are off from it.
pub(super) fn mark(rows: &mut [Compared]) {
    let mut sweeps: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        sweeps.entry(row.measurement).or_default().push(number);
    }
    for mut sweep in sweeps.into_values() {
        sweep.sort_by_key(|&number| rows.get(number).map(|row| (row.bytes, row.line)));
        let points: Vec<(Bytes, Picos)> =
            sweep.iter().filter_map(|&number| rows.get(number)).map(|row| (row.bytes, row.measured)).collect();
        for (&number, expected) in sweep.iter().zip(neighbours::expected(&points)) {
            if let Some(row) = rows.get_mut(number) {
                row.accident = expected.filter(|&expected| is_off(row.measured, expected));
            }
        }
    }
}

fn is_off(measured: Picos, expected: Picos) -> bool {
    (measured.0 as f64 / expected.0.max(1) as f64 - 1.0).abs() > MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_not_too_far() {
        assert!(!is_off(Picos(1_250), Picos(1_000)) && is_off(Picos(1_251), Picos(1_000)));
        assert!(!is_off(Picos(750), Picos(1_000)) && is_off(Picos(749), Picos(1_000)));
    }
}
