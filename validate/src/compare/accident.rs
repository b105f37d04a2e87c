//! Accidents of a measurement: rows that do not go with their neighbours in size.
//!
//! Times of one sweep grow smoothly. A row that is off by more than a quarter from what its two neighbours make of it, on a
//! straight line through their logarithms, says more of the moment than of the machine; the first and the last row of a
//! sweep have one neighbour only and are not judged.

use std::collections::BTreeMap;

use fabricast_topologies::{Bytes, Picos};

use super::Compared;

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
        for (number, neighbours) in sweep.iter().skip(1).zip(points.windows(3)) {
            if let (Some(row), [before, own, after]) = (rows.get_mut(*number), neighbours) {
                let between = between(*before, own.0, *after);
                row.accident = between.filter(|&between| is_off(own.1, between));
            }
        }
    }
}

fn is_off(measured: Picos, expected: Picos) -> bool {
    (measured.0 as f64 / expected.0.max(1) as f64 - 1.0).abs() > MOST
}

/// What lies between two points at a size; `None` where they do not lie apart.
fn between(before: (Bytes, Picos), at: Bytes, after: (Bytes, Picos)) -> Option<Picos> {
    let ln = |value: u64| (value.max(1) as f64).ln();
    let length = ln(after.0.0) - ln(before.0.0);
    if length <= 0.0 {
        return None;
    }
    let part = (ln(at.0) - ln(before.0.0)) / length;
    let time = ln(before.1.0) * (1.0 - part) + ln(after.1.0) * part;
    Some(Picos(time.exp().round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_logarithms() {
        let at = |bytes, time| (Bytes(bytes), Picos(time));
        assert_eq!(between(at(1 << 10, 1_000), Bytes(1 << 12), at(1 << 14, 4_000)), Some(Picos(2_000)));
        assert_eq!(between(at(1 << 10, 500), Bytes(1 << 11), at(1 << 14, 4_000)), Some(Picos(841)));
        assert_eq!(between(at(1 << 10, 500), Bytes(1 << 10), at(1 << 10, 600)), None);
    }

    #[test]
    fn a_quarter_is_not_too_far() {
        assert!(!is_off(Picos(1_250), Picos(1_000)) && is_off(Picos(1_251), Picos(1_000)));
        assert!(!is_off(Picos(750), Picos(1_000)) && is_off(Picos(749), Picos(1_000)));
    }
}
