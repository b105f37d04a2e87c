//! Measured times, which take precedence over predicted ones at the sizes at which a strategy was measured.

use std::collections::BTreeMap;

use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::incumbents::LibraryStrategies;
use super::row_search::Search;
use super::{PlanError, PlanRow, TimedStrategy};
use fabricast_collectives::strategy::Strategy;

/// Relative uncertainty of a time that was measured once. A tuned table that is slower than the default by at most this
/// fraction counts as equal.
pub const MEASURED_NOISE: f64 = 0.02;

/// Measured time with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredTime {
    /// Median time of the repetitions.
    pub time: Picos,
    /// Smallest time of the repetitions, reduced by [`MEASURED_NOISE`].
    pub low: Picos,
    /// Largest time of the repetitions, increased by [`MEASURED_NOISE`].
    pub high: Picos,
}

/// Measured times by collective, size and strategy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    cells: BTreeMap<(Collective, Bytes), BTreeMap<Strategy, Vec<Picos>>>,
}

impl Measurements {
    /// Empty set of measurements.
    pub const NONE: Self = Self { cells: BTreeMap::new() };

    /// Adds a measured time; several times of one strategy are repetitions. Threads and chunk are ignored, because the
    /// library sets them itself.
    pub fn add(&mut self, collective: Collective, bytes: Bytes, strategy: Strategy, time: Picos) {
        let strategy = strip_tuning(strategy);
        self.cells.entry((collective, bytes)).or_default().entry(strategy).or_default().push(time);
    }

    /// Number of pairs of collective and size with measured times.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns true if there are no measurements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn measured_strategies(&self, row: &PlanRow) -> impl Iterator<Item = (Strategy, MeasuredTime)> {
        let cells = self.cells.get(&(row.collective, row.bytes));
        cells.into_iter().flatten().filter_map(|(strategy, times)| Some((*strategy, summary(times)?)))
    }
}

fn strip_tuning(strategy: Strategy) -> Strategy {
    Strategy { threads: None, chunk: None, ..strategy }
}

fn summary(times: &[Picos]) -> Option<MeasuredTime> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let (min, max) = (times.first()?.0 as f64, times.last()?.0 as f64);
    let time = *times.get((times.len() - 1) / 2)?;
    let low = Picos((min * (1.0 - MEASURED_NOISE)) as u64);
    Some(MeasuredTime { time, low, high: Picos((max * (1.0 + MEASURED_NOISE)) as u64) })
}

/// Replaces the pairs that were measured, by the fastest measured strategy of each, and sorts all by time.
fn replace_measured(pairs: &mut Vec<TimedStrategy>, measured: &[TimedStrategy]) {
    pairs.retain(|pair| measured.iter().all(|known| !known.has_same_pair(pair)));
    for known in measured {
        if pairs.iter().all(|pair| !pair.has_same_pair(known)) {
            pairs.push(*known);
        }
    }
    pairs.sort_by_key(|pair| (pair.effective_time().time, pair.strategy));
}

/// Inserts the measured times of a row's size and sorts its algorithm-protocol pairs again. If a pair was measured, its
/// other channel counts are removed from the candidates, because their times are only predicted.
pub(super) fn apply_measurements(
    search: &Search<'_>,
    mut row: PlanRow,
    measurements: &Measurements,
    monitor: Monitor<'_>,
) -> Result<PlanRow, PlanError> {
    let mut measured: Vec<TimedStrategy> = Vec::new();
    for (strategy, time) in measurements.measured_strategies(&row) {
        if !search.request.restriction.allows(&strategy, row.collective) {
            continue;
        }
        let default = row.library_default.as_ref().map(|default| default.timed);
        let known = row.pairs.iter().copied().chain(default).find(|known| strip_tuning(known.strategy) == strategy);
        let timed = match known {
            Some(known) => known,
            None => match search.simulate(strategy, monitor)? {
                Ok(timed) => timed,
                Err(_) => continue,
            },
        };
        measured.push(TimedStrategy { measured: Some(time), ..timed });
    }
    if measured.is_empty() {
        return Ok(row);
    }
    if let Some(default) = &mut row.library_default {
        let measured_default =
            measured.iter().find(|known| strip_tuning(known.strategy) == strip_tuning(default.timed.strategy));
        default.timed.measured = measured_default.and_then(|known| known.measured);
    }
    measured.sort_by_key(|known| (known.effective_time().time, known.strategy));
    replace_measured(&mut row.pairs, &measured);
    if let Some(library) = LibraryStrategies::new(search.request, search.call) {
        measured.retain(|known| library.includes(&known.strategy));
        replace_measured(&mut row.library_pairs, &measured);
    }
    let is_measured = |candidate: &TimedStrategy| {
        row.pairs.iter().any(|pair| pair.measured.is_some() && pair.has_same_pair(candidate))
    };
    let predicted = Some(row.fastest).filter(|fastest| !is_measured(fastest));
    let fastest = row.pairs.iter().copied().chain(predicted).min_by_key(|candidate| candidate.effective_time().time);
    row.fastest = fastest.unwrap_or(row.fastest);
    if let [first, rest @ ..] = row.pairs.as_slice() {
        row.pick = *first;
        row.runner_up = rest.first().copied();
    }
    Ok(row)
}
