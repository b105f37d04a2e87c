//! Accidents of a measurement: rows that do not go with their neighbours in size.
//!
//! Times of one sweep grow smoothly. A row that is off by more than a quarter from what its two neighbours make of it, on a
//! straight line through their logarithms, says more of the moment than of the machine. The first and the last row of a sweep have
//! one neighbour only: of them that much is known that a smaller call does not take longer.

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
        for ((place, &number), expected) in sweep.iter().enumerate().zip(neighbours::expected(&points)) {
            let expected = expected.or_else(|| at_end(&points, place));
            if let Some(row) = rows.get_mut(number) {
                row.accident = expected.filter(|&expected| is_off(row.measured, expected));
            }
        }
    }
}

/// What its neighbour makes of the first or the last row of a sweep: the time of a larger call where the first takes longer, that of a
/// smaller one where the last is faster.
fn at_end(sweep: &[(Bytes, Picos)], place: usize) -> Option<Picos> {
    match sweep {
        [(_, first), (_, second), _, _, ..] if place == 0 => Some(*first.min(second)),
        [.., _, _, (_, before), (_, last)] if place + 1 == sweep.len() => Some(*last.max(before)),
        _ => None,
    }
}

fn is_off(measured: Picos, expected: Picos) -> bool {
    (measured.0 as f64 / expected.0.max(1) as f64 - 1.0).abs() > MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_judged_by_what_smaller_and_larger_calls_take() {
        let sweep = |times: [u64; 4]| {
            let points: Vec<_> = (0..).zip(times).map(|(place, time)| (Bytes(8 << place), Picos(time))).collect();
            let judged = |(place, point): (usize, &(Bytes, Picos))| {
                at_end(&points, place).is_some_and(|end| is_off(point.1, end))
            };
            points.iter().enumerate().map(judged).collect::<Vec<_>>()
        };
        assert_eq!(sweep([83, 35, 35, 36]), [true, false, false, false]);
        assert_eq!(sweep([30, 60, 120, 80]), [false, false, false, true]);
        // However much faster a smaller call is, or slower a larger one.
        assert_eq!(sweep([1, 60, 120, 900]), [false; 4]);
        let few = [(Bytes(8), Picos(9)), (Bytes(16), Picos(1))];
        assert_eq!([0, 1].map(|place| at_end(&few, place)), [None, None]);
    }

    #[test]
    fn a_quarter_is_not_too_far() {
        assert!(!is_off(Picos(1_250), Picos(1_000)) && is_off(Picos(1_251), Picos(1_000)));
        assert!(!is_off(Picos(750), Picos(1_000)) && is_off(Picos(749), Picos(1_000)));
    }
}
