//! Smooths the selected strategies over neighbouring sizes: among strategies that the predictions cannot separate,
//! finds the sequence with the least time and the fewest changes.
//!
//! A dynamic programme over the sizes of a collective. The options of a size are its selected strategy, the strategies
//! that its interval does not separate from it ([`super::MOST_OVERLAP`]), and the library's default. Time lost against
//! the selected strategy costs its logarithm. A change of algorithm or protocol, or between the library's default and
//! another strategy, costs the average half-width of the two intervals (half of ln(high/low)). So a single size departs
//! from its neighbours only if it gains more than two such widths, and a run of sizes only if their total gain is that
//! large. Measured times have narrow intervals and therefore remain selected.
//!
//! A departure from the library's default must be justified by the interval at its own size; neighbours do not justify
//! it.

use super::preference::{MOST_OVERLAP, Preference, most_overlap, overlap};
use super::{Priced, Row};
use crate::strategy::Restriction;

/// Smooths the rows of a plan, in order of collective and size.
pub(super) fn settle(rows: &mut [Row], restriction: &Restriction) {
    settle_some(rows, restriction, |_| true);
}

/// Variant of [`settle`] that may change only the rows for which `is_free` returns true.
pub(super) fn settle_some(rows: &mut [Row], restriction: &Restriction, is_free: impl Fn(&Row) -> bool) {
    for rows in rows.chunk_by_mut(|a, b| a.collective == b.collective) {
        let offers = rows.iter().map(|row| {
            let mut offered = offered(row, restriction);
            if !is_free(row) {
                offered.truncate(1);
            }
            offered
        });
        let offers: Vec<Vec<Offer>> = offers.collect();
        for (row, taken) in rows.iter_mut().zip(steadiest(&offers)) {
            if taken.strategy != row.pick.strategy {
                let fastest = row.pick;
                *row = Row {
                    pick: taken,
                    runner_up: Some(fastest),
                    preference: Preference::Neighbours { fastest },
                    ..row.clone()
                };
            }
        }
    }
}

/// Option of a size, and whether it is the library's default.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offer {
    priced: Priced,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Library,
    Us,
}

/// Returns the options of a size; its selected strategy comes first.
fn offered(row: &Row, restriction: &Restriction) -> Vec<Offer> {
    let own = row.library_default.as_ref().map(|default| default.priced.strategy);
    let offer = |priced: Priced| Offer { priced, by: if own == Some(priced.strategy) { By::Library } else { By::Us } };
    let mut offered = vec![offer(row.pick)];
    if let Preference::Default { .. } = row.preference {
        return offered;
    }
    let default = row.library_default.as_ref().map(|default| default.priced);
    let default = default.filter(|default| restriction.allows(&default.strategy, row.collective));
    let alike = row.pairs.iter().filter(|pair| {
        overlap(pair, &row.pick) > MOST_OVERLAP
            && default.is_none_or(|default| {
                default.strategy == pair.strategy || overlap(pair, &default) <= most_overlap(restriction)
            })
    });
    for one in default.iter().chain(alike) {
        if offered.iter().all(|known| known.priced.strategy != one.strategy) {
            offered.push(offer(*one));
        }
    }
    offered
}

/// Returns the option chosen at each size.
fn steadiest(offers: &[Vec<Offer>]) -> Vec<Priced> {
    // By size and option: the minimum cost up to there, and the preceding option. Ties go to the earlier option, so the
    // selected strategy comes before the others.
    let mut costs: Vec<Vec<(f64, usize)>> = Vec::with_capacity(offers.len());
    for (place, here) in offers.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|place| Some((offers.get(place)?, costs.get(place)?)));
        let best = here.first().map_or(0.0, |offer| logarithm(&offer.priced));
        let cost = here.iter().map(|offer| {
            let ways = before.into_iter().flat_map(|(earlier, costs)| earlier.iter().zip(costs)).enumerate();
            let ways = ways.map(|(from, (earlier, known))| (known.0 + change(earlier, offer), from));
            let (reached, from) = ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
            (reached + logarithm(&offer.priced) - best, from)
        });
        let cost = cost.collect();
        costs.push(cost);
    }
    let last = costs.last().into_iter().flatten().enumerate();
    let mut at = last.min_by(|a, b| a.1.0.total_cmp(&b.1.0)).map_or(0, |(at, _)| at);
    let mut taken = Vec::with_capacity(offers.len());
    for (offers, costs) in offers.iter().zip(&costs).rev() {
        taken.extend(offers.get(at).map(|offer| offer.priced));
        at = costs.get(at).map_or(0, |known| known.1);
    }
    taken.reverse();
    taken
}

fn logarithm(priced: &Priced) -> f64 {
    (priced.counted().time.0.max(1) as f64).ln()
}

/// Half of the interval's width on a logarithmic scale.
fn width(priced: &Priced) -> f64 {
    let counted = priced.counted();
    (counted.high.0.max(1) as f64 / counted.low.0.max(1) as f64).ln() / 2.0
}

/// Cost of a change between two options: of algorithm or protocol, or between the library's default and another
/// strategy.
fn change(a: &Offer, b: &Offer) -> f64 {
    let same = a.priced.is_pair_of(&b.priced) && a.by == b.by;
    if same { 0.0 } else { f64::midpoint(width(&a.priced), width(&b.priced)) }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::{Bytes, Picos};

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::bound::{Bound, BoundSource};
    use crate::strategy::Strategy;

    fn priced(protocol: Protocol, time: u64, width: u64) -> Priced {
        let strategy = Strategy { algorithm: Algorithm::Ring, protocol, channels: 1, threads: None, chunk: None };
        let (low, high) = (Picos(time * (100 - width) / 100), Picos(time * (100 + width) / 100));
        Priced { strategy, time: Picos(time), low, high, busiest: None, measured: None }
    }

    fn row(bytes: u64, pairs: Vec<Priced>) -> Row {
        Row {
            collective: Collective::AllReduce,
            bytes: Bytes(bytes),
            size: Bytes(bytes),
            pick: pairs[0],
            preference: Preference::Fastest,
            fastest: pairs[0],
            runner_up: pairs.get(1).copied(),
            bound: Bound { time: Picos(1), transfer: Picos(1), set_by: BoundSource::Latency },
            pairs,
            library_default: None,
            left_out: Vec::new(),
        }
    }

    fn picks(mut rows: Vec<Row>) -> Vec<Protocol> {
        settle(&mut rows, &Restriction::default());
        rows.iter().map(|row| row.pick.strategy.protocol).collect()
    }

    use Protocol::{Ll, Simple};

    fn alternating(gain: u64, width: u64) -> Vec<Row> {
        let of =
            |bytes, first, second| row(bytes, vec![priced(first, 10_000, width), priced(second, 10_000 + gain, width)]);
        vec![
            of(1, Ll, Simple),
            of(2, Simple, Ll),
            of(3, Ll, Simple),
            of(4, Simple, Ll),
            of(5, Simple, Ll),
            of(6, Simple, Ll),
        ]
    }

    #[test]
    fn overlapping_intervals_do_not_alternate() {
        let found = picks(alternating(100, 10));
        assert_eq!(found.windows(2).filter(|pair| pair[0] != pair[1]).count(), 0, "{found:?}");
    }

    #[test]
    fn disjoint_intervals_keep_the_fastest() {
        assert_eq!(picks(alternating(1_000, 1)), [Ll, Simple, Ll, Simple, Simple, Simple]);
    }

    #[test]
    fn run_of_sizes_changes_once() {
        let of = |bytes, first, second| row(bytes, vec![priced(first, 10_000, 10), priced(second, 10_900, 10)]);
        let rows = (0..4).map(|at| of(at, Ll, Simple)).chain((4..9).map(|at| of(at, Simple, Ll))).collect();
        assert_eq!(picks(rows), [Ll, Ll, Ll, Ll, Simple, Simple, Simple, Simple, Simple]);
    }
}
