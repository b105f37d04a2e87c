//! Outliers of a measurement: rows that are inconsistent with their neighbours in size.
//!
//! A larger call needs no less time than a smaller one, and no more than in proportion to its bytes. The rows before
//! and after thus bound the time of a row, at any spacing of sizes; a row more than a quarter outside these bounds
//! was probably disturbed. There are two exceptions. If the prediction deviates from its neighbours in the same way,
//! the row is no outlier. Where the library changes its algorithm, times may step up or down; there, only a row
//! outside the bounds of both neighbours is an outlier.
//!
//! The first and the last row of a sweep have a single neighbour. They are only checked for monotonicity: a smaller
//! call must not take longer.

use std::collections::BTreeMap;

use fabricast_topologies::Picos;

use super::Compared;

/// Largest accepted deviation from the bounds set by the neighbours, relative to the bound.
const MOST: f64 = 0.25;

/// Sets the allowed time of rows that are outliers.
pub(super) fn mark(rows: &mut [Compared]) {
    let mut sweeps: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        sweeps.entry(row.measurement).or_default().push(number);
    }
    for mut sweep in sweeps.into_values() {
        sweep.sort_by_key(|&number| rows.get(number).map(|row| (row.bytes, row.line)));
        let points: Vec<Compared> = sweep.iter().filter_map(|&number| rows.get(number)).cloned().collect();
        // Disturbances prolong calls, so rows that are too slow are found first; rows that are too fast are judged by
        // the remaining ones.
        let slow: Vec<Option<Picos>> = neighbours(&points, &[])
            .iter()
            .zip(&points)
            .map(|(&near, row)| outlier(row, near, (Side::Slow, points.len())))
            .collect();
        let sound = neighbours(&points, &slow);
        for (place, &number) in sweep.iter().enumerate() {
            let (Some(&near), Some(row)) = (sound.get(place), rows.get_mut(number)) else { continue };
            let found = slow.get(place).copied().flatten();
            row.outlier = found.or_else(|| outlier(row, near, (Side::Fast, points.len())));
        }
    }
}

/// Direction in which a row deviates from its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Slow,
    Fast,
}

/// Nearest smaller and nearest larger row of a sweep.
type Near<'a> = [Option<&'a Compared>; 2];

/// Returns the neighbours of each row of a sweep that is sorted by size. Known outliers and rows of the same size are
/// no neighbours.
fn neighbours<'a>(sweep: &'a [Compared], known: &[Option<Picos>]) -> Vec<Near<'a>> {
    let mut found: Vec<Near<'a>> = Vec::with_capacity(sweep.len());
    let is_sound = |place: usize| known.get(place).copied().flatten().is_none();
    let mut before = None;
    for size in sweep.chunk_by(|a, b| a.bytes == b.bytes) {
        let first = found.len();
        found.extend(size.iter().map(|_| [before, None]));
        before = size.iter().enumerate().rfind(|(place, _)| is_sound(first + place)).map(|(_, row)| row).or(before);
    }
    let (mut after, mut end) = (None, sweep.len());
    for size in sweep.chunk_by(|a, b| a.bytes == b.bytes).rev() {
        let first = end - size.len();
        found.iter_mut().take(end).skip(first).for_each(|near| near[1] = after);
        after = size.iter().enumerate().find(|(place, _)| is_sound(first + place)).map(|(_, row)| row).or(after);
        end = first;
    }
    found
}

/// Returns the nearest time that a row's neighbours allow, if the row is an outlier in the given direction in a sweep
/// of `rows` rows.
fn outlier(row: &Compared, [before, after]: Near<'_>, (side, rows): (Side, usize)) -> Option<Picos> {
    let enough = rows >= LEAST_ROWS;
    let allowed = match (before, after, side) {
        (Some(before), Some(after), _) => between(before, row, after, side),
        (None, Some(after), Side::Slow) if enough => slower_than(row, after.measured),
        (Some(before), None, Side::Fast) if enough => faster_than(row, before.measured),
        _ => None,
    }?;
    let ratios = [before, after].into_iter().flatten().map(ratio);
    differs(ratio(row), ratios).then_some(allowed)
}

/// Minimum length of a sweep whose ends are judged.
const LEAST_ROWS: usize = 4;

/// Returns the nearest time that both neighbours of a row allow, if the row deviates from it.
fn between(before: &Compared, row: &Compared, after: &Compared, side: Side) -> Option<Picos> {
    let in_proportion = |other: &Compared| {
        let scale = row.bytes.0 as f64 / other.bytes.0.max(1) as f64;
        Picos((other.measured.0 as f64 * scale).round() as u64)
    };
    let is_step = [before, after].iter().any(|other| {
        let of = |row: &Compared| (row.strategy.algorithm, row.strategy.protocol);
        of(other) != of(row)
    });
    let (most, least) = ([in_proportion(before), after.measured], [before.measured, in_proportion(after)]);
    // At a change of algorithm: outside the bounds of both neighbours.
    let (most, least) = match is_step {
        true => (most.into_iter().max()?, least.into_iter().min()?),
        false => (most.into_iter().min()?, least.into_iter().max()?),
    };
    match side {
        Side::Slow => slower_than(row, most),
        Side::Fast => faster_than(row, least),
    }
}

/// Returns the upper bound of a row's time if the row exceeds it by more than a quarter.
fn slower_than(row: &Compared, most: Picos) -> Option<Picos> {
    (row.measured.0 as f64 > most.0 as f64 * (1.0 + MOST)).then_some(most)
}

/// Returns the lower bound of a row's time if the row is below it by more than a quarter.
fn faster_than(row: &Compared, least: Picos) -> Option<Picos> {
    ((row.measured.0 as f64) < least.0 as f64 * (1.0 - MOST)).then_some(least)
}

/// measured ÷ predicted.
fn ratio(row: &Compared) -> f64 {
    row.measured.0 as f64 / row.predicted.0.max(1) as f64
}

/// Returns true if a ratio is more than a quarter above or below all others.
fn differs(own: f64, others: impl Iterator<Item = f64>) -> bool {
    let (least, most) = others.fold((f64::INFINITY, 0.0f64), |(least, most), one| (least.min(one), most.max(one)));
    own > most * (1.0 + MOST) || own < least * (1.0 - MOST)
}

#[cfg(test)]
mod tests {
    use fabricast_planner::algorithm::Algorithm;
    use fabricast_planner::strategy::Strategy;
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::Bytes;

    use super::*;

    fn row(bytes: u64, measured: u64, predicted: u64, algorithm: Algorithm) -> Compared {
        Compared {
            measurement: 0,
            line: 1,
            bytes: Bytes(bytes),
            strategy: Strategy { algorithm, protocol: Protocol::Ll, channels: 1, threads: None, chunk: None },
            measured: Picos(measured),
            predicted: Picos(predicted),
            low: Picos(predicted),
            high: Picos(predicted),
            outlier: None,
            slow: None,
            busiest: None,
        }
    }

    /// Returns the outliers among times at sizes that grow by `factor`, with predictions by size.
    fn found_with(factor: u64, times: &[u64], predicted: impl Fn(u64) -> u64) -> Vec<bool> {
        let rows = (0u32..).zip(times).map(|(place, &time)| (8 * factor.pow(place), time));
        let mut rows: Vec<Compared> =
            rows.map(|(bytes, time)| row(bytes, time, predicted(bytes), Algorithm::Ring)).collect();
        mark(&mut rows);
        rows.iter().map(|row| row.outlier.is_some()).collect()
    }

    fn found(factor: u64, times: &[u64]) -> Vec<bool> {
        found_with(factor, times, |_| 1000)
    }

    #[test]
    fn ends_of_a_sweep_are_checked_for_monotonicity() {
        assert_eq!(found(2, &[83, 35, 35, 36]), [true, false, false, false]);
        assert_eq!(found(2, &[30, 60, 61, 40]), [false, false, false, true]);
        // Independent of how much faster a smaller call or slower a larger one is.
        assert_eq!(found(16, &[1, 60, 120, 900]), [false; 4]);
        assert_eq!(found(2, &[9, 1]), [false; 2]);
    }

    /// Checks the neighbours against their definition: the nearest non-outlier rows of other sizes.
    #[test]
    fn neighbours_are_the_nearest_sound_rows_of_other_sizes() {
        let sizes = [8u64, 8, 16, 32, 32, 32, 64, 64, 128];
        let sweep: Vec<Compared> =
            (0u64..).zip(sizes).map(|(place, bytes)| row(bytes, 1 + place, 1, Algorithm::Ring)).collect();
        for unsound in 0u32..1 << sizes.len() {
            let known: Vec<Option<Picos>> =
                (0..sizes.len()).map(|place| (unsound >> place & 1 == 1).then_some(Picos(1))).collect();
            let sound = || sweep.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(row, _)| row);
            for (own, near) in sweep.iter().zip(neighbours(&sweep, &known)) {
                let before = sound().rfind(|other| other.bytes < own.bytes);
                let after = sound().find(|other| other.bytes > own.bytes);
                let times = |rows: Near<'_>| rows.map(|row| row.map(|row| row.measured));
                assert_eq!(times(near), times([before, after]));
            }
        }
    }

    #[test]
    fn deviations_below_a_quarter_are_no_outliers() {
        assert_eq!(found(2, &[1000, 1250, 1000, 1000]), [false; 4]);
        assert_eq!(found(2, &[1000, 1251, 1000, 1000]), [false, true, false, false]);
        assert_eq!(found(2, &[1000, 1000, 750, 1000, 1000]), [false; 5]);
        assert_eq!(found(2, &[1000, 1000, 749, 1000, 1000]), [false, false, true, false, false]);
    }

    #[test]
    fn rows_far_above_their_neighbours_are_outliers_at_any_spacing() {
        for factor in [2, 4, 8] {
            let smooth: Vec<u64> = (0..8).map(|place| 1000 + 8 * u64::pow(factor, place)).collect();
            let mut disturbed = smooth.clone();
            disturbed[3] = 2 * smooth[4];
            // With predictions that ignore bytes and with ones that do not.
            let flat: fn(u64) -> u64 = |_| 1000;
            for predicted in [flat, |bytes| 1000 + bytes] {
                assert_eq!(found_with(factor, &smooth, predicted), [false; 8], "{factor}");
                let found = found_with(factor, &disturbed, predicted);
                let names: Vec<usize> = (0..8).filter(|&place| found[place]).collect();
                assert_eq!(names, [3], "{factor}");
            }
        }
    }

    #[test]
    fn steps_at_a_change_of_algorithm_are_no_outliers() {
        let judged = |times: [u64; 5], algorithms: [Algorithm; 5]| {
            let rows = (0u32..).zip(times).zip(algorithms);
            let mut rows: Vec<Compared> =
                rows.map(|((place, time), algorithm)| row(8 << place, time, 100, algorithm)).collect();
            mark(&mut rows);
            rows.iter().map(|row| row.outlier.is_some()).collect::<Vec<_>>()
        };
        let (ring, nvls) = (Algorithm::Ring, Algorithm::Nvls);
        assert_eq!(judged([10, 11, 40, 41, 42], [ring, ring, nvls, nvls, nvls]), [false; 5]);
        assert_eq!(judged([10, 16, 30, 12, 12], [ring, ring, ring, nvls, nvls]), [false; 5]);
        // A row outside the bounds of both sides is an outlier there as well.
        let spike = judged([10, 11, 90, 12, 13], [ring, ring, nvls, nvls, nvls]);
        assert_eq!(spike, [false, false, true, false, false]);
    }
}
