//! Outliers of a measurement: rows that are inconsistent with rows of neighbouring sizes.
//!
//! A larger call takes at least as long as a smaller one, and at most as long as its number of bytes suggests in
//! proportion. The next smaller and larger rows therefore bound the time of a row, at any spacing of sizes. A row more
//! than a quarter outside these bounds was probably disturbed. There are two exceptions. If the prediction deviates
//! from its neighbours in the same way, the row is not an outlier. At a size where the library changes its algorithm,
//! times may have a discontinuity; only a row outside the bounds of both neighbours is then an outlier.
//!
//! The first and the last row of a sweep have a single neighbour. They are only checked for monotonicity: a smaller
//! call must not take longer.

use std::collections::BTreeMap;

use fabricast_topologies::Picos;

use super::Compared;

/// Largest accepted deviation from the bounds set by the neighbours, relative to the bound.
const MAX_DEVIATION: f64 = 0.25;

/// Sets [`Compared::outlier`] of the rows that are outliers of their measurement.
pub(super) fn mark(rows: &mut [Compared]) {
    let mut sweeps: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        sweeps.entry(row.measurement).or_default().push(number);
    }
    for mut sweep in sweeps.into_values() {
        sweep.sort_by_key(|&number| rows.get(number).map(|row| (row.bytes, row.line)));
        let points: Vec<Compared> = sweep.iter().filter_map(|&number| rows.get(number)).cloned().collect();
        // Disturbances prolong calls, so rows that are too slow are found first. Rows that are too fast are then found
        // by comparison with the remaining ones.
        let slow: Vec<Option<Picos>> = neighbours(&points, &[])
            .iter()
            .zip(&points)
            .map(|(&neighbours_of_row, row)| outlier(row, neighbours_of_row, Deviation::Slow, points.len()))
            .collect();
        let nearest_sound = neighbours(&points, &slow);
        for (index, &number) in sweep.iter().enumerate() {
            let (Some(&neighbours_of_row), Some(row)) = (nearest_sound.get(index), rows.get_mut(number)) else {
                continue;
            };
            let slow_limit = slow.get(index).copied().flatten();
            row.outlier = slow_limit.or_else(|| outlier(row, neighbours_of_row, Deviation::Fast, points.len()));
        }
    }
}

/// Direction in which a row deviates from its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deviation {
    Slow,
    Fast,
}

/// Nearest smaller and nearest larger row of a sweep.
type Neighbours<'a> = [Option<&'a Compared>; 2];

/// Returns the neighbours of each row of a sweep that is sorted by size. Rows that are known outliers or have the same
/// size are not neighbours.
fn neighbours<'a>(sweep: &'a [Compared], outliers: &[Option<Picos>]) -> Vec<Neighbours<'a>> {
    let mut nearest: Vec<Neighbours<'a>> = Vec::with_capacity(sweep.len());
    let is_sound = |index: usize| outliers.get(index).copied().flatten().is_none();
    let mut before = None;
    for size in sweep.chunk_by(|a, b| a.bytes == b.bytes) {
        let first = nearest.len();
        nearest.extend(size.iter().map(|_| [before, None]));
        before = size.iter().enumerate().rfind(|(index, _)| is_sound(first + index)).map(|(_, row)| row).or(before);
    }
    let (mut after, mut end) = (None, sweep.len());
    for size in sweep.chunk_by(|a, b| a.bytes == b.bytes).rev() {
        let first = end - size.len();
        nearest.iter_mut().take(end).skip(first).for_each(|pair| pair[1] = after);
        after = size.iter().enumerate().find(|(index, _)| is_sound(first + index)).map(|(_, row)| row).or(after);
        end = first;
    }
    nearest
}

/// Returns the nearest time that is consistent with a row's neighbours, if the row is an outlier in the given
/// direction; otherwise `None`. `rows` is the number of rows of the sweep.
fn outlier(row: &Compared, [before, after]: Neighbours<'_>, side: Deviation, rows: usize) -> Option<Picos> {
    let enough = rows >= MIN_ROWS;
    let allowed = match (before, after, side) {
        (Some(before), Some(after), _) => between(before, row, after, side),
        (None, Some(after), Deviation::Slow) if enough => slower_than(row, after.measured),
        (Some(before), None, Deviation::Fast) if enough => faster_than(row, before.measured),
        _ => None,
    }?;
    let ratios = [before, after].into_iter().flatten().map(ratio);
    differs(ratio(row), ratios).then_some(allowed)
}

/// Minimum number of rows of a sweep whose first and last rows are checked.
const MIN_ROWS: usize = 4;

/// Returns the nearest time that is consistent with both neighbours of a row, if the row deviates from it by more than
/// a quarter; otherwise `None`.
fn between(before: &Compared, row: &Compared, after: &Compared, side: Deviation) -> Option<Picos> {
    let scale_to_row = |neighbour: &Compared| {
        let scale = row.bytes.0 as f64 / neighbour.bytes.0.max(1) as f64;
        Picos((neighbour.measured.0 as f64 * scale).round() as u64)
    };
    let is_step = [before, after].iter().any(|neighbour| {
        let selection = |row: &Compared| (row.strategy.algorithm, row.strategy.protocol);
        selection(neighbour) != selection(row)
    });
    let (upper, lower) = ([scale_to_row(before), after.measured], [before.measured, scale_to_row(after)]);
    // At a change of algorithm, the row must be outside the bounds of both neighbours.
    let (upper, lower) = match is_step {
        true => (upper.into_iter().max()?, lower.into_iter().min()?),
        false => (upper.into_iter().min()?, lower.into_iter().max()?),
    };
    match side {
        Deviation::Slow => slower_than(row, upper),
        Deviation::Fast => faster_than(row, lower),
    }
}

/// Returns the upper bound of a row's time if the row exceeds it by more than a quarter.
fn slower_than(row: &Compared, upper: Picos) -> Option<Picos> {
    (row.measured.0 as f64 > upper.0 as f64 * (1.0 + MAX_DEVIATION)).then_some(upper)
}

/// Returns the lower bound of a row's time if the row is below it by more than a quarter.
fn faster_than(row: &Compared, lower: Picos) -> Option<Picos> {
    ((row.measured.0 as f64) < lower.0 as f64 * (1.0 - MAX_DEVIATION)).then_some(lower)
}

/// Ratio of the measured to the predicted time.
fn ratio(row: &Compared) -> f64 {
    row.measured.0 as f64 / row.predicted.0.max(1) as f64
}

/// Returns true if a ratio is more than a quarter above or below all other ratios.
fn differs(value: f64, others: impl Iterator<Item = f64>) -> bool {
    let (min, max) = others.fold((f64::INFINITY, 0.0f64), |(min, max), ratio| (min.min(ratio), max.max(ratio)));
    value > max * (1.0 + MAX_DEVIATION) || value < min * (1.0 - MAX_DEVIATION)
}

#[cfg(test)]
mod tests {
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::Bytes;

    use super::*;

    fn row(bytes: u64, measured: u64, predicted: u64, algorithm: Algorithm) -> Compared {
        Compared {
            measurement: 0,
            line: 1,
            bytes: Bytes(bytes),
            strategy: Strategy::new(algorithm, Protocol::Ll, 1),
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
    fn outliers_with(factor: u64, times: &[u64], predicted: impl Fn(u64) -> u64) -> Vec<bool> {
        let rows = (0u32..).zip(times).map(|(index, &time)| (8 * factor.pow(index), time));
        let mut rows: Vec<Compared> =
            rows.map(|(bytes, time)| row(bytes, time, predicted(bytes), Algorithm::Ring)).collect();
        mark(&mut rows);
        rows.iter().map(|row| row.outlier.is_some()).collect()
    }

    fn outliers(factor: u64, times: &[u64]) -> Vec<bool> {
        outliers_with(factor, times, |_| 1000)
    }

    #[test]
    fn ends_of_a_sweep_are_checked_for_monotonicity() {
        assert_eq!(outliers(2, &[83, 35, 35, 36]), [true, false, false, false]);
        assert_eq!(outliers(2, &[30, 60, 61, 40]), [false, false, false, true]);
        // The result does not depend on the amount by which a smaller call is faster or a larger call slower.
        assert_eq!(outliers(16, &[1, 60, 120, 900]), [false; 4]);
        assert_eq!(outliers(2, &[9, 1]), [false; 2]);
    }

    /// Compares the neighbours with their definition: the nearest rows of other sizes that are not outliers.
    #[test]
    fn neighbours_are_the_nearest_sound_rows_of_other_sizes() {
        let sizes = [8u64, 8, 16, 32, 32, 32, 64, 64, 128];
        let sweep: Vec<Compared> =
            (0u64..).zip(sizes).map(|(index, bytes)| row(bytes, 1 + index, 1, Algorithm::Ring)).collect();
        for unsound in 0u32..1 << sizes.len() {
            let outliers: Vec<Option<Picos>> =
                (0..sizes.len()).map(|index| (unsound >> index & 1 == 1).then_some(Picos(1))).collect();
            let sound = || sweep.iter().zip(&outliers).filter(|(_, outlier)| outlier.is_none()).map(|(row, _)| row);
            for (row_under_test, nearest) in sweep.iter().zip(neighbours(&sweep, &outliers)) {
                let before = sound().rfind(|candidate| candidate.bytes < row_under_test.bytes);
                let after = sound().find(|candidate| candidate.bytes > row_under_test.bytes);
                let times = |rows: Neighbours<'_>| rows.map(|row| row.map(|row| row.measured));
                assert_eq!(times(nearest), times([before, after]));
            }
        }
    }

    #[test]
    fn deviations_below_a_quarter_are_no_outliers() {
        assert_eq!(outliers(2, &[1000, 1250, 1000, 1000]), [false; 4]);
        assert_eq!(outliers(2, &[1000, 1251, 1000, 1000]), [false, true, false, false]);
        assert_eq!(outliers(2, &[1000, 1000, 750, 1000, 1000]), [false; 5]);
        assert_eq!(outliers(2, &[1000, 1000, 749, 1000, 1000]), [false, false, true, false, false]);
    }

    #[test]
    fn rows_far_above_their_neighbours_are_outliers_at_any_spacing() {
        for factor in [2, 4, 8] {
            let smooth: Vec<u64> = (0..8).map(|index| 1000 + 8 * u64::pow(factor, index)).collect();
            let mut disturbed = smooth.clone();
            disturbed[3] = 2 * smooth[4];
            // Tests predictions that depend on the number of bytes and predictions that do not.
            let flat: fn(u64) -> u64 = |_| 1000;
            for predicted in [flat, |bytes| 1000 + bytes] {
                assert_eq!(outliers_with(factor, &smooth, predicted), [false; 8], "{factor}");
                let outliers = outliers_with(factor, &disturbed, predicted);
                let names: Vec<usize> = (0..8).filter(|&index| outliers[index]).collect();
                assert_eq!(names, [3], "{factor}");
            }
        }
    }

    #[test]
    fn steps_at_a_change_of_algorithm_are_no_outliers() {
        let outliers = |times: [u64; 5], algorithms: [Algorithm; 5]| {
            let rows = (0u32..).zip(times).zip(algorithms);
            let mut rows: Vec<Compared> =
                rows.map(|((index, time), algorithm)| row(8 << index, time, 100, algorithm)).collect();
            mark(&mut rows);
            rows.iter().map(|row| row.outlier.is_some()).collect::<Vec<_>>()
        };
        let (ring, nvls) = (Algorithm::Ring, Algorithm::Nvls);
        assert_eq!(outliers([10, 11, 40, 41, 42], [ring, ring, nvls, nvls, nvls]), [false; 5]);
        assert_eq!(outliers([10, 16, 30, 12, 12], [ring, ring, ring, nvls, nvls]), [false; 5]);
        // At a change of algorithm, a row outside the bounds of both neighbours is an outlier as well.
        let spike = outliers([10, 11, 90, 12, 13], [ring, ring, nvls, nvls, nvls]);
        assert_eq!(spike, [false, false, true, false, false]);
    }
}
