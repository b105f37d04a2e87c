//! The collective and the ranks of a table, inferred from its columns.
//!
//! busbw ÷ algbw is a factor of the collective and the ranks n: 2(n−1)/n of all_reduce, (n−1)/n of the collectives of blocks,
//! 1 of the others (nccl-tests, doc/PERFORMANCE.md). What is printed is rounded, so it is an interval. With it go whether the
//! table names a reduction and a root, and how size and count hang together.

use fabricast_sim::schedule::Collective;

use super::size_rule;
use super::table::{Counting, Row};

/// Properties of a row that narrow down its collective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// busbw ÷ algbw.
    pub factor: Option<Factor>,
    /// A reduction is named; `None` where there is no such column.
    pub reduces: Option<bool>,
    /// A root is named; `None` where there is no such column.
    pub rooted: Option<bool>,
}

/// An interval that holds busbw ÷ algbw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// A figure as printed: it stands for all that rounds to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Printed {
    value: f64,
    half: f64,
}

impl Printed {
    /// A figure with the decimals that it has.
    pub fn read(text: &str) -> Option<Self> {
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len() as i32);
        let unit = 10f64.powi(power.parse::<i32>().ok()?.checked_sub(decimals)?);
        // A unit, not half of one: busbw is worked out from algbw before or after that is rounded.
        Some(Self { value, half: unit })
    }
}

impl Factor {
    /// Of two figures; `None` where they have too few digits.
    pub(super) fn of(algbw: Printed, busbw: Printed) -> Option<Self> {
        const LEAST_DIGITS: f64 = 10.0;
        if algbw.value < LEAST_DIGITS * algbw.half {
            return None;
        }
        let low = (busbw.value - busbw.half).max(0.0) / (algbw.value + algbw.half);
        Some(Self { low, high: (busbw.value + busbw.half) / (algbw.value - algbw.half) })
    }

    /// Returns true if a factor lies in the interval.
    fn holds(self, factor: f64) -> bool {
        factor >= self.low && factor <= self.high
    }

    /// Intersection of two intervals.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let both = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (both.low <= both.high).then_some(both)
    }
}

/// Known properties of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub collective: Option<Collective>,
    pub ranks: Option<u32>,
    pub counting: Counting,
}

/// Collectives and ranks that columns fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Every collective; none where the columns identify nothing.
    pub collectives: Vec<Collective>,
    /// The ranks, where all of them fit one number.
    pub ranks: Option<u32>,
}

/// Tests of nccl-tests whose columns are those of a collective.
const TESTED: [Collective; 9] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

/// More ranks than this no log was seen of.
const MOST_RANKS: u32 = 1 << 17;

/// Returns the collectives and ranks that the columns of rows fit.
pub(super) fn infer(rows: &[Row], known: Known) -> Found {
    let factors = rows.iter().filter_map(|row| row.evidence.factor);
    let mut all: Option<Factor> = None;
    for factor in factors {
        all = match all {
            None => Some(factor),
            Some(before) => match before.and(factor) {
                Some(both) => Some(both),
                // Rows of several collectives, or figures of another origin.
                None => return Found::default(),
            },
        };
    }
    let Some(factor) = all else { return Found::default() };
    let (mut collectives, mut ranks) = (Vec::new(), Vec::new());
    for collective in TESTED {
        if known.collective.is_some_and(|known| known != collective) || !rows.iter().all(|row| agrees(row, collective))
        {
            continue;
        }
        let fits = |&ranks: &u32| {
            factor.holds(bus_factor(collective, ranks))
                && rows.iter().all(|row| size_rule::fault(row, collective, ranks, known.counting).is_none())
        };
        let fitting: Vec<u32> = match known.ranks {
            Some(ranks) => Some(ranks).into_iter().filter(fits).collect(),
            None if depends_on_ranks(collective) => range(collective, factor).filter(fits).take(3).collect(),
            // Any number of ranks has this factor.
            None => Vec::new(),
        };
        let of_any = known.ranks.is_none() && !depends_on_ranks(collective) && fits(&2);
        if !fitting.is_empty() || of_any {
            collectives.push(collective);
        }
        // Two that stand for any number.
        ranks.extend(if of_any { vec![0, 1] } else { fitting });
    }
    ranks.sort_unstable();
    ranks.dedup();
    let ranks = match ranks.as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    Found { collectives, ranks }
}

/// Returns true if a row names a reduction and a root as rows of the collective do.
fn agrees(row: &Row, collective: Collective) -> bool {
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let rooted =
        matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter);
    row.evidence.reduces.is_none_or(|named| named == reduces) && row.evidence.rooted.is_none_or(|named| named == rooted)
}

/// busbw ÷ algbw as nccl-tests prints it; of one rank that is 0 where it depends on the ranks.
fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    if ranks == 1 && depends_on_ranks(collective) { 0.0 } else { collective.busbw_factor(ranks) }
}

/// Returns true if the factor of a collective changes with the ranks.
fn depends_on_ranks(collective: Collective) -> bool {
    (collective.busbw_factor(2) - collective.busbw_factor(3)).abs() > f64::EPSILON
}

/// The numbers of ranks whose factor may lie in an interval: it rises with them.
fn range(collective: Collective, factor: Factor) -> std::ops::RangeInclusive<u32> {
    let whole = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
    // whole · (n − 1)/n = f at n = whole ÷ (whole − f).
    let ranks =
        |f: f64| if f >= whole { f64::from(MOST_RANKS) } else { (whole / (whole - f)).min(f64::from(MOST_RANKS)) };
    (ranks(factor.low).floor() as u32).max(1)..=(ranks(factor.high).ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_sim::schedule::DataType;
    use fabricast_topologies::{Bytes, Picos};
    use proptest::prelude::*;

    /// A row as nccl-tests prints it, with two decimals.
    fn row(collective: Collective, ranks: u32, algbw: f64) -> Row {
        let printed = |value: f64| Printed::read(&format!("{value:.2}"));
        let busbw = algbw * collective.busbw_factor(ranks);
        let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
        let rooted = [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];
        let evidence = Evidence {
            factor: printed(algbw).zip(printed(busbw)).and_then(|(alg, bus)| Factor::of(alg, bus)),
            reduces: Some(reduces),
            rooted: Some(rooted.contains(&collective)),
        };
        let blocks =
            if depends_on_ranks(collective) && collective != Collective::AllReduce { u64::from(ranks) } else { 1 };
        let bytes = Bytes(4096 * u64::from(ranks));
        Row { count: Some(bytes.0 / 4 / blocks), dtype: Some(DataType::F32), evidence, ..Row::of(bytes, Picos(1), 1) }
    }

    const NOTHING: Known = Known { collective: None, ranks: None, counting: Counting::Blocks };

    proptest! {
        /// Whatever was run is among what its columns fit, and of what is named one is right.
        #[test]
        fn the_collective_that_ran_is_never_excluded(
            which in 0usize..9, ranks in 2u32..600, bandwidths in prop::collection::vec(0.0f64..500.0, 1..6)
        ) {
            let collective = TESTED[which];
            let rows: Vec<Row> = bandwidths.iter().map(|&algbw| row(collective, ranks, algbw)).collect();
            let found = infer(&rows, NOTHING);
            prop_assert!(found == Found::default() || found.collectives.contains(&collective), "{found:?}");
            prop_assert!(found.ranks.is_none_or(|found| found == ranks), "{found:?} of {ranks}");
            let narrowed = infer(&rows, Known { ranks: Some(ranks), ..NOTHING });
            prop_assert!(narrowed == Found::default() || narrowed.collectives.contains(&collective), "{narrowed:?}");
        }
    }

    #[test]
    fn what_fits_one_only_is_named() {
        let of = |collective, ranks| infer(&[row(collective, ranks, 199.98)], NOTHING);
        assert_eq!(of(Collective::AllReduce, 16), Found { collectives: vec![Collective::AllReduce], ranks: Some(16) });
        let blocks = vec![Collective::AllGather, Collective::AllToAll];
        assert_eq!(of(Collective::AllGather, 16), Found { collectives: blocks, ranks: Some(16) });
        assert_eq!(of(Collective::SendRecv, 16), Found { collectives: vec![Collective::SendRecv], ranks: None });
        assert_eq!(of(Collective::Scatter, 8).collectives, [Collective::Gather, Collective::Scatter]);
        // All_reduce of 2 ranks has the factor of reduce, which has a root.
        assert_eq!(of(Collective::AllReduce, 2), Found { collectives: vec![Collective::AllReduce], ranks: Some(2) });
        assert_eq!(infer(&[Row::of(Bytes(8), Picos(1), 1)], NOTHING), Found::default());
        // Figures that round to nothing identify nothing.
        assert_eq!(infer(&[row(Collective::AllReduce, 8, 0.01)], NOTHING), Found::default());
    }
}
