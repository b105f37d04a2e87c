//! Expected times of a row, from rows of neighbouring sizes. Times of one sweep increase smoothly, so a row that
//! deviates from its neighbours was probably disturbed.

use fabricast_topologies::{Bytes, Picos};

/// Returns the time of each row of a sweep interpolated from the rows before and after it, linearly in the logarithms
/// of size and time. The sweep must be sorted by size. `None` for the first and the last row, and if both neighbours
/// have the same size.
pub(crate) fn interpolate_neighbours(sweep: &[(Bytes, Picos)]) -> Vec<Option<Picos>> {
    let inner = sweep.windows(3).map(|neighbours| match neighbours {
        [before, current, after] => interpolate([*before, *after], current.0),
        _ => None,
    });
    let ends = sweep.len().min(2);
    let first = std::iter::repeat_n(None, ends.min(1));
    first.chain(inner).chain(std::iter::repeat_n(None, ends.saturating_sub(1))).collect()
}

/// Returns each row of a sweep with the shortest time of this row and all larger ones. A larger message never takes
/// less time without a disturbance, and disturbances only prolong a call, so a row above this value was disturbed.
pub(crate) fn monotone_lower_envelope(sweep: &[(Bytes, Picos)]) -> Vec<(Bytes, Picos)> {
    let mut min = Picos(u64::MAX);
    let mut envelope: Vec<_> = sweep.to_vec();
    for (_, time) in envelope.iter_mut().rev() {
        min = min.min(*time);
        *time = min;
    }
    envelope
}

/// Interpolates log(time) linearly in log(size) between two measured points; `None` unless `after` is larger than
/// `before`.
fn interpolate([before, after]: [(Bytes, Picos); 2], size: Bytes) -> Option<Picos> {
    let ln = |value: u64| (value.max(1) as f64).ln();
    let length = ln(after.0.0) - ln(before.0.0);
    if length <= 0.0 {
        return None;
    }
    let part = (ln(size.0) - ln(before.0.0)) / length;
    let time = ln(before.1.0) * (1.0 - part) + ln(after.1.0) * part;
    Some(Picos(time.exp().round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(bytes: u64, time: u64) -> (Bytes, Picos) {
        (Bytes(bytes), Picos(time))
    }

    #[test]
    fn interpolation_is_linear_in_logarithms() {
        assert_eq!(interpolate([point(1 << 10, 1_000), point(1 << 14, 4_000)], Bytes(1 << 12)), Some(Picos(2_000)));
        assert_eq!(interpolate([point(1 << 10, 500), point(1 << 14, 4_000)], Bytes(1 << 11)), Some(Picos(841)));
        assert_eq!(interpolate([point(1 << 10, 500), point(1 << 10, 600)], Bytes(1 << 10)), None);
    }

    #[test]
    fn ends_of_a_sweep_have_no_expected_time() {
        let sweep = [point(1 << 10, 1_000), point(1 << 12, 5_000), point(1 << 14, 4_000), point(1 << 16, 4_000)];
        assert_eq!(interpolate_neighbours(&sweep), [None, Some(Picos(2_000)), Some(Picos(4_472)), None]);
        for count in 0..3 {
            assert_eq!(interpolate_neighbours(&sweep[..count]), vec![None; count]);
        }
    }
}
