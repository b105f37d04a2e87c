//! What the neighbours of a row in size make of it: times of one sweep grow smoothly, so a row that does not go with its
//! neighbours says more of the moment than of the machine.

use fabricast_topologies::{Bytes, Picos};

/// What the rows before and after make of each row of a sweep, on a straight line through the logarithms of sizes and times.
/// The sweep is in the order of sizes; `None` for its ends, and where neighbours do not lie apart.
pub(crate) fn expected(sweep: &[(Bytes, Picos)]) -> Vec<Option<Picos>> {
    let inner = sweep.windows(3).map(|neighbours| match neighbours {
        [before, own, after] => between(*before, own.0, *after),
        _ => None,
    });
    let ends = sweep.len().min(2);
    let first = std::iter::repeat_n(None, ends.min(1));
    first.chain(inner).chain(std::iter::repeat_n(None, ends.saturating_sub(1))).collect()
}

/// Each row of a sweep with the least time that it or any larger row took. More bytes take no less time, and what disturbs a call only
/// makes it longer: a row above this says more of its moment than those that are not.
pub(crate) fn undisturbed(sweep: &[(Bytes, Picos)]) -> Vec<(Bytes, Picos)> {
    let mut least = Picos(u64::MAX);
    let mut found: Vec<_> = sweep.to_vec();
    for (_, time) in found.iter_mut().rev() {
        least = least.min(*time);
        *time = least;
    }
    found
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

    fn at(bytes: u64, time: u64) -> (Bytes, Picos) {
        (Bytes(bytes), Picos(time))
    }

    #[test]
    fn a_line_through_logarithms() {
        assert_eq!(between(at(1 << 10, 1_000), Bytes(1 << 12), at(1 << 14, 4_000)), Some(Picos(2_000)));
        assert_eq!(between(at(1 << 10, 500), Bytes(1 << 11), at(1 << 14, 4_000)), Some(Picos(841)));
        assert_eq!(between(at(1 << 10, 500), Bytes(1 << 10), at(1 << 10, 600)), None);
    }

    #[test]
    fn ends_have_one_neighbour_only() {
        let sweep = [at(1 << 10, 1_000), at(1 << 12, 5_000), at(1 << 14, 4_000), at(1 << 16, 4_000)];
        assert_eq!(expected(&sweep), [None, Some(Picos(2_000)), Some(Picos(4_472)), None]);
        for few in 0..3 {
            assert_eq!(expected(&sweep[..few]), vec![None; few]);
        }
    }
}
