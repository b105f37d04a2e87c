//! Neighbouring sizes do not flip back and forth: among what predictions do not tell apart, the sequence of picks with the
//! least time and the fewest changes.
//!
//! A dynamic programme over the sizes of a collective. A size offers its pick, what its interval does not tell from the pick
//! ([`super::MOST_OVERLAP`]), and the library's own choice; time lost against the pick counts as its logarithm, a change of
//! algorithm or protocol, or from the library's choice to another, as much as the intervals on its two sides are wide on average (half of low to high, in
//! logarithms). So a single size departs from its neighbours only where it gains more than two such widths, and a run of sizes
//! where all of them gain as much together. Measured times have narrow intervals, and keep what was measured.
//!
//! What departs from the library's choice is told from it by its own interval at each size: a neighbour is no reason.

use super::preference::{MOST_OVERLAP, Preference, most_overlap, overlap};
use super::{Priced, Row};
use crate::strategy::Restriction;

/// Settles the rows of a plan, ordered by collective and size.
pub(super) fn settle(rows: &mut [Row], restriction: &Restriction) {
    settle_some(rows, restriction, |_| true);
}

/// The same where only some rows are free to take something else than their pick.
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

/// What may be taken, and whether that is the library's own choice.
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

/// What a size offers: its pick first.
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

/// The offer to take of each size.
fn steadiest(offers: &[Vec<Offer>]) -> Vec<Priced> {
    // Of each size and offer: the least cost until there, and the offer taken before. Ties go to the earlier offer: the pick
    // before the others.
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

/// Half of the interval's width, in logarithms.
fn width(priced: &Priced) -> f64 {
    let counted = priced.counted();
    (counted.high.0.max(1) as f64 / counted.low.0.max(1) as f64).ln() / 2.0
}

/// What changing from one to the other counts: another algorithm or protocol, or from the library's own choice to another.
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
    fn what_is_not_told_apart_does_not_flip() {
        let found = picks(alternating(100, 10));
        assert_eq!(found.windows(2).filter(|pair| pair[0] != pair[1]).count(), 0, "{found:?}");
    }

    #[test]
    fn what_is_told_apart_stays() {
        assert_eq!(picks(alternating(1_000, 1)), [Ll, Simple, Ll, Simple, Simple, Simple]);
    }

    #[test]
    fn a_run_of_sizes_changes_once() {
        let of = |bytes, first, second| row(bytes, vec![priced(first, 10_000, 10), priced(second, 10_900, 10)]);
        let rows = (0..4).map(|at| of(at, Ll, Simple)).chain((4..9).map(|at| of(at, Simple, Ll))).collect();
        assert_eq!(picks(rows), [Ll, Ll, Ll, Ll, Simple, Simple, Simple, Simple, Simple]);
    }
}
