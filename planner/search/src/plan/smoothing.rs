//! Smoothing of the selected strategies over neighbouring sizes. Among strategies with overlapping prediction
//! intervals, it selects the sequence with the lowest total cost of slowdowns and changes.
//!
//! The sequence is found by dynamic programming over the sizes of a collective. The options of a size are its selected
//! strategy, the strategies whose intervals overlap with that of the selected one ([`super::MAX_OVERLAP`]), and the
//! library's default. An option costs the logarithm of its slowdown against the selected strategy. A change of
//! algorithm or protocol, or between the library's default and another strategy, costs the average half-width of the
//! two intervals (half of ln(high/low)). A single size therefore departs from its neighbours only if the gain exceeds
//! two such half-widths, and a run of sizes only if its total gain does. Measured times have narrow intervals, so
//! strategies selected by measurement remain selected.
//!
//! A departure from the library's default must be justified by the interval at its own size, not by those of its
//! neighbours.

use super::preference::{MAX_OVERLAP, Preference, max_overlap, overlap};
use super::{PlanRow, TimedStrategy};
use crate::candidates::Restriction;

/// Smooths the rows of a plan, in order of collective and size.
pub(super) fn smooth(rows: &mut [PlanRow], restriction: &Restriction) {
    smooth_where(rows, restriction, |_| true);
}

/// Variant of [`smooth`] that may change only the rows for which `is_free` returns true.
pub(super) fn smooth_where(rows: &mut [PlanRow], restriction: &Restriction, is_free: impl Fn(&PlanRow) -> bool) {
    for rows in rows.chunk_by_mut(|a, b| a.collective == b.collective) {
        let options_by_size = rows.iter().map(|row| {
            let mut row_options = options(row, restriction);
            if !is_free(row) {
                row_options.truncate(1);
            }
            row_options
        });
        let options_by_size: Vec<Vec<SizeOption>> = options_by_size.collect();
        for (row, selected) in rows.iter_mut().zip(smoothest_sequence(&options_by_size)) {
            if selected.strategy != row.pick.strategy {
                let fastest = row.pick;
                *row = PlanRow {
                    pick: selected,
                    runner_up: Some(fastest),
                    preference: Preference::Neighbours { fastest },
                    ..row.clone()
                };
            }
        }
    }
}

/// Candidate strategy at one message size, and its origin: the library's default or the search.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SizeOption {
    timed: TimedStrategy,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Library,
    Search,
}

/// Returns the options of a size; its selected strategy comes first.
fn options(row: &PlanRow, restriction: &Restriction) -> Vec<SizeOption> {
    let default_strategy = row.library_default.as_ref().map(|default| default.timed.strategy);
    let make_option = |timed: TimedStrategy| SizeOption {
        timed,
        source: if default_strategy == Some(timed.strategy) { Source::Library } else { Source::Search },
    };
    let mut options = vec![make_option(row.pick)];
    if let Preference::Default { .. } = row.preference {
        return options;
    }
    let default = row.library_default.as_ref().map(|default| default.timed);
    let default = default.filter(|default| restriction.allows(&default.strategy, row.collective));
    let similar = row.pairs.iter().filter(|pair| {
        overlap(pair, &row.pick) > MAX_OVERLAP
            && default.is_none_or(|default| {
                default.strategy == pair.strategy || overlap(pair, &default) <= max_overlap(restriction)
            })
    });
    for candidate in default.iter().chain(similar) {
        if options.iter().all(|known| known.timed.strategy != candidate.strategy) {
            options.push(make_option(*candidate));
        }
    }
    options
}

/// Returns the strategy chosen at each size in the sequence of lowest total cost.
fn smoothest_sequence(options_by_size: &[Vec<SizeOption>]) -> Vec<TimedStrategy> {
    // Minimum total cost up to each option of each size, and the preceding option. The earlier of two options with
    // equal cost is used, so the selected strategy takes precedence.
    let mut costs: Vec<Vec<(f64, usize)>> = Vec::with_capacity(options_by_size.len());
    for (index, options) in options_by_size.iter().enumerate() {
        let previous = index.checked_sub(1).and_then(|index| Some((options_by_size.get(index)?, costs.get(index)?)));
        let min_log = options.first().map_or(0.0, |option| logarithm(&option.timed));
        let cost = options.iter().map(|option| {
            let paths = previous.into_iter().flat_map(|(earlier, costs)| earlier.iter().zip(costs)).enumerate();
            let paths = paths.map(|(predecessor, (earlier, known))| (known.0 + change(earlier, option), predecessor));
            let (path_cost, predecessor) = paths.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
            (path_cost + logarithm(&option.timed) - min_log, predecessor)
        });
        let cost = cost.collect();
        costs.push(cost);
    }
    let last = costs.last().into_iter().flatten().enumerate();
    let mut index = last.min_by(|a, b| a.1.0.total_cmp(&b.1.0)).map_or(0, |(index, _)| index);
    let mut selected = Vec::with_capacity(options_by_size.len());
    for (options, costs) in options_by_size.iter().zip(&costs).rev() {
        selected.extend(options.get(index).map(|option| option.timed));
        index = costs.get(index).map_or(0, |known| known.1);
    }
    selected.reverse();
    selected
}

fn logarithm(timed: &TimedStrategy) -> f64 {
    (timed.effective_time().time.0.max(1) as f64).ln()
}

/// Half of the prediction interval's width on a logarithmic scale (natural logarithm).
fn width(timed: &TimedStrategy) -> f64 {
    let effective = timed.effective_time();
    (effective.high.0.max(1) as f64 / effective.low.0.max(1) as f64).ln() / 2.0
}

/// Cost of a change between two options: a change of algorithm or protocol, or between the library's default and
/// another strategy.
fn change(a: &SizeOption, b: &SizeOption) -> f64 {
    let same = a.timed.has_same_pair(&b.timed) && a.source == b.source;
    if same { 0.0 } else { f64::midpoint(width(&a.timed), width(&b.timed)) }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::{Bytes, Picos};

    use super::*;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::bound::{Bound, BoundSource};
    use fabricast_collectives::strategy::Strategy;

    fn timed(protocol: Protocol, time: u64, width: u64) -> TimedStrategy {
        let strategy = Strategy::new(Algorithm::Ring, protocol, 1);
        let (low, high) = (Picos(time * (100 - width) / 100), Picos(time * (100 + width) / 100));
        TimedStrategy { strategy, time: Picos(time), low, high, busiest: None, measured: None }
    }

    fn row(bytes: u64, pairs: Vec<TimedStrategy>) -> PlanRow {
        PlanRow {
            collective: Collective::AllReduce,
            bytes: Bytes(bytes),
            size: Bytes(bytes),
            pick: pairs[0],
            preference: Preference::Fastest,
            fastest: pairs[0],
            runner_up: pairs.get(1).copied(),
            bound: Bound { time: Picos(1), transfer: Picos(1), limited_by: BoundSource::Latency },
            pairs,
            library_pairs: Vec::new(),
            library_default: None,
            omitted: Vec::new(),
        }
    }

    fn picks(mut rows: Vec<PlanRow>) -> Vec<Protocol> {
        smooth(&mut rows, &Restriction::default());
        rows.iter().map(|row| row.pick.strategy.protocol).collect()
    }

    use Protocol::{Ll, Simple};

    fn alternating(gain: u64, width: u64) -> Vec<PlanRow> {
        let make_row =
            |bytes, first, second| row(bytes, vec![timed(first, 10_000, width), timed(second, 10_000 + gain, width)]);
        vec![
            make_row(1, Ll, Simple),
            make_row(2, Simple, Ll),
            make_row(3, Ll, Simple),
            make_row(4, Simple, Ll),
            make_row(5, Simple, Ll),
            make_row(6, Simple, Ll),
        ]
    }

    #[test]
    fn overlapping_intervals_do_not_alternate() {
        let selected = picks(alternating(100, 10));
        assert_eq!(selected.windows(2).filter(|pair| pair[0] != pair[1]).count(), 0, "{selected:?}");
    }

    #[test]
    fn disjoint_intervals_keep_the_fastest() {
        assert_eq!(picks(alternating(1_000, 1)), [Ll, Simple, Ll, Simple, Simple, Simple]);
    }

    #[test]
    fn run_of_sizes_changes_once() {
        let make_row = |bytes, first, second| row(bytes, vec![timed(first, 10_000, 10), timed(second, 10_900, 10)]);
        let rows = (0..4)
            .map(|bytes| make_row(bytes, Ll, Simple))
            .chain((4..9).map(|bytes| make_row(bytes, Simple, Ll)))
            .collect();
        assert_eq!(picks(rows), [Ll, Ll, Ll, Ll, Simple, Simple, Simple, Simple, Simple]);
    }
}
