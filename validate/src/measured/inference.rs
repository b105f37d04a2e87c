//! Infers the collective and the number of ranks of a table from its columns.
//!
//! The ratio busbw ÷ algbw depends only on the collective and the number of ranks n: 2(n−1)/n for all_reduce, (n−1)/n
//! for collectives whose buffers hold one block per rank, 1 for the others (nccl-tests, doc/PERFORMANCE.md). Printed
//! figures are rounded, so only an interval of the ratio is known. Further evidence are the columns of reduction and
//! root, and the ratio of size to count.

use fabricast_sim::schedule::Collective;

use super::evidence::Factor;
use super::size_rule;
use super::table::{Counting, Row, Table};

/// Properties of a table that are known before the inference.
#[derive(Clone, Copy, Debug)]
struct KnownProperties {
    collective: Option<Collective>,
    ranks: Option<u32>,
    counting: Counting,
}

/// Collectives and numbers of ranks that are consistent with the columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Inference {
    /// All consistent collectives; empty if the columns identify none.
    collectives: Vec<Collective>,
    /// Number of ranks, if only one number is consistent.
    ranks: Option<u32>,
}

/// Collectives that nccl-tests measures.
const NCCL_TESTS_COLLECTIVES: [Collective; 9] = [
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

/// Upper limit of the search for the number of ranks, above any known log.
const MAX_RANKS: u32 = 1 << 17;

impl Table {
    /// Infers the collective and the number of ranks from the columns if the header does not state them and exactly one
    /// candidate is consistent. Values that the caller passes restrict the candidates.
    pub fn infer(&mut self, collective: Option<Collective>, ranks: Option<u32>) {
        let header = &self.header;
        // An nccl-tests program of an unsupported collective was measured, so nothing can be inferred.
        if header.program.is_some() && header.collective.is_none() || self.rows.is_empty() {
            return;
        }
        let known = KnownProperties {
            collective: header.collective.or(collective),
            ranks: header.ranks.or(ranks),
            counting: header.counting,
        };
        let inference = infer(&self.rows, known);
        let header = &mut self.header;
        if header.ranks.is_none() && ranks.is_none() {
            header.ranks = inference.ranks;
            header.inferred.ranks = inference.ranks.is_some();
        }
        if header.collective.is_none() && collective.is_none() {
            // With a single rank there is only a copy, so all candidates are equivalent.
            let single_rank = header.ranks == Some(1);
            match inference.collectives.as_slice() {
                [one] => header.collective = Some(*one),
                [first, ..] if single_rank => header.collective = Some(*first),
                _ => {}
            }
            header.inferred.collective = header.collective.is_some();
        }
        header.candidates = inference.collectives;
    }
}

/// Returns the collectives and the number of ranks that are consistent with the columns of all rows.
fn infer(rows: &[Row], known: KnownProperties) -> Inference {
    let factors = rows.iter().filter_map(|row| row.evidence.factor);
    let mut common: Option<Factor> = None;
    for factor in factors {
        common = match common {
            None => Some(factor),
            Some(before) => match before.intersection(factor) {
                Some(overlap) => Some(overlap),
                // The table contains several collectives, or its figures are computed in another way.
                None => return Inference::default(),
            },
        };
    }
    let Some(factor) = common else { return Inference::default() };
    let (mut collectives, mut ranks) = (Vec::new(), Vec::new());
    for collective in NCCL_TESTS_COLLECTIVES {
        if known.collective.is_some_and(|known| known != collective) || !rows.iter().all(|row| agrees(row, collective))
        {
            continue;
        }
        let fits = |&ranks: &u32| {
            factor.contains(bus_factor(collective, ranks))
                && rows.iter().all(|row| size_rule::violation(row, collective, ranks, known.counting).is_none())
        };
        let fitting: Vec<u32> = match known.ranks {
            Some(ranks) => Some(ranks).into_iter().filter(fits).collect(),
            None if depends_on_ranks(collective) => range(collective, factor).filter(fits).take(3).collect(),
            // The factor does not depend on the number of ranks.
            None => Vec::new(),
        };
        let of_any = known.ranks.is_none() && !depends_on_ranks(collective) && fits(&2);
        if !fitting.is_empty() || of_any {
            collectives.push(collective);
        }
        // Two different values indicate that the number of ranks is not determined.
        ranks.extend(if of_any { vec![0, 1] } else { fitting });
    }
    ranks.sort_unstable();
    ranks.dedup();
    let ranks = match ranks.as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    Inference { collectives, ranks }
}

/// Returns true if the row's reduction and root columns match the collective.
fn agrees(row: &Row, collective: Collective) -> bool {
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let rooted =
        matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter);
    row.evidence.reduces.is_none_or(|named| named == reduces) && row.evidence.rooted.is_none_or(|named| named == rooted)
}

/// busbw ÷ algbw as nccl-tests prints it. On one rank it is 0 for collectives whose factor depends on the number of
/// ranks.
fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    if ranks == 1 && depends_on_ranks(collective) { 0.0 } else { collective.busbw_factor(ranks) }
}

/// Returns true if the factor of a collective changes with the number of ranks.
fn depends_on_ranks(collective: Collective) -> bool {
    (collective.busbw_factor(2) - collective.busbw_factor(3)).abs() > f64::EPSILON
}

/// Range of numbers of ranks whose factor may be in an interval. The factor increases with the number of ranks.
fn range(collective: Collective, factor: Factor) -> std::ops::RangeInclusive<u32> {
    let repetitions = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
    // From whole · (n − 1)/n = f follows n = whole ÷ (whole − f).
    let ranks = |f: f64| {
        if f >= repetitions {
            f64::from(MAX_RANKS)
        } else {
            (repetitions / (repetitions - f)).min(f64::from(MAX_RANKS))
        }
    };
    (ranks(factor.low).floor() as u32).max(1)..=(ranks(factor.high).ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::evidence::{Evidence, PrintedFigure};
    use fabricast_sim::schedule::DataType;
    use fabricast_topologies::{Bytes, Picos};
    use proptest::prelude::*;

    /// Creates a row with bandwidths of two decimals, as nccl-tests prints them.
    fn row(collective: Collective, ranks: u32, algbw: f64) -> Row {
        let printed = |value: f64| PrintedFigure::read(&format!("{value:.2}"));
        let busbw = algbw * collective.busbw_factor(ranks);
        let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
        let rooted = [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];
        let evidence = Evidence {
            factor: printed(algbw).zip(printed(busbw)).and_then(|(alg, bus)| Factor::from_printed(alg, bus)),
            reduces: Some(reduces),
            rooted: Some(rooted.contains(&collective)),
        };
        let blocks =
            if depends_on_ranks(collective) && collective != Collective::AllReduce { u64::from(ranks) } else { 1 };
        let bytes = Bytes(4096 * u64::from(ranks));
        Row { count: Some(bytes.0 / 4 / blocks), dtype: Some(DataType::F32), evidence, ..Row::new(bytes, Picos(1), 1) }
    }

    const NOTHING: KnownProperties = KnownProperties { collective: None, ranks: None, counting: Counting::Blocks };

    proptest! {
        /// The measured collective is always among the candidates, and a reported number of ranks is the correct one.
        #[test]
        fn the_collective_that_ran_is_never_excluded(
            index in 0usize..9, ranks in 2u32..600, bandwidths in prop::collection::vec(0.0f64..500.0, 1..6)
        ) {
            let collective = NCCL_TESTS_COLLECTIVES[index];
            let rows: Vec<Row> = bandwidths.iter().map(|&algbw| row(collective, ranks, algbw)).collect();
            let inference = infer(&rows, NOTHING);
            prop_assert!(inference == Inference::default() || inference.collectives.contains(&collective), "{inference:?}");
            prop_assert!(inference.ranks.is_none_or(|inferred| inferred == ranks), "{inference:?} of {ranks}");
            let narrowed = infer(&rows, KnownProperties { ranks: Some(ranks), ..NOTHING });
            prop_assert!(narrowed == Inference::default() || narrowed.collectives.contains(&collective), "{narrowed:?}");
        }
    }

    #[test]
    fn a_unique_fit_identifies_collective_and_ranks() {
        let infer_row = |collective, ranks| infer(&[row(collective, ranks, 199.98)], NOTHING);
        assert_eq!(
            infer_row(Collective::AllReduce, 16),
            Inference { collectives: vec![Collective::AllReduce], ranks: Some(16) }
        );
        let blocks = vec![Collective::AllGather, Collective::AllToAll];
        assert_eq!(infer_row(Collective::AllGather, 16), Inference { collectives: blocks, ranks: Some(16) });
        assert_eq!(
            infer_row(Collective::SendRecv, 16),
            Inference { collectives: vec![Collective::SendRecv], ranks: None }
        );
        assert_eq!(infer_row(Collective::Scatter, 8).collectives, [Collective::Gather, Collective::Scatter]);
        // All_reduce and reduce have equal factors on 2 ranks, but only reduce has a root.
        assert_eq!(
            infer_row(Collective::AllReduce, 2),
            Inference { collectives: vec![Collective::AllReduce], ranks: Some(2) }
        );
        assert_eq!(infer(&[Row::new(Bytes(8), Picos(1), 1)], NOTHING), Inference::default());
        // Bandwidths that round to zero identify no collective.
        assert_eq!(infer(&[row(Collective::AllReduce, 8, 0.01)], NOTHING), Inference::default());
    }
}
