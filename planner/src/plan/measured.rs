//! Measured times, which take precedence over predicted ones at the sizes where a strategy was measured.

use std::collections::BTreeMap;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::search::{Search, Watcher};
use super::{PlanError, Priced, Row};
use crate::strategy::Strategy;

/// Relative uncertainty of a time that was measured once. A tuned table that is slower than the default by no more than
/// this counts as equal, too.
pub const MEASURED_NOISE: f64 = 0.02;

/// Measured time with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Median of the repetitions.
    pub time: Picos,
    /// Smallest time, minus [`MEASURED_NOISE`].
    pub low: Picos,
    /// Largest time, plus [`MEASURED_NOISE`].
    pub high: Picos,
}

/// Measured times by collective, size and strategy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    cells: BTreeMap<(Collective, Bytes), BTreeMap<Strategy, Vec<Picos>>>,
}

impl Measurements {
    /// No measurements.
    pub const NONE: Self = Self { cells: BTreeMap::new() };

    /// Adds a time; several times of one strategy are repetitions. Threads and chunk are left to the library and do not
    /// distinguish strategies.
    pub fn add(&mut self, collective: Collective, bytes: Bytes, strategy: Strategy, time: Picos) {
        let strategy = plain(strategy);
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

    fn of(&self, row: &Row) -> impl Iterator<Item = (Strategy, Measured)> {
        let cells = self.cells.get(&(row.collective, row.bytes));
        cells.into_iter().flatten().filter_map(|(strategy, times)| Some((*strategy, summary(times)?)))
    }
}

fn plain(strategy: Strategy) -> Strategy {
    Strategy { threads: None, chunk: None, ..strategy }
}

fn summary(times: &[Picos]) -> Option<Measured> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let (least, greatest) = (times.first()?.0 as f64, times.last()?.0 as f64);
    let time = *times.get((times.len() - 1) / 2)?;
    let low = Picos((least * (1.0 - MEASURED_NOISE)) as u64);
    Some(Measured { time, low, high: Picos((greatest * (1.0 + MEASURED_NOISE)) as u64) })
}

/// Inserts the measured times of a row's size and sorts its pairs again. If an algorithm and protocol was measured, its
/// other channel counts no longer compete, because their times are only predicted.
pub(super) fn stand_in(
    search: &Search<'_>,
    mut row: Row,
    measurements: &Measurements,
    watcher: Watcher<'_>,
) -> Result<Row, PlanError> {
    let mut measured: Vec<Priced> = Vec::new();
    for (strategy, time) in measurements.of(&row) {
        if !search.request.restriction.allows(&strategy, row.collective) {
            continue;
        }
        let default = row.library_default.as_ref().map(|default| default.priced);
        let known = row.pairs.iter().copied().chain(default).find(|known| plain(known.strategy) == strategy);
        let priced = match known {
            Some(known) => known,
            None => match search.price(strategy, watcher)? {
                Ok(priced) => priced,
                Err(_) => continue,
            },
        };
        measured.push(Priced { measured: Some(time), ..priced });
    }
    if measured.is_empty() {
        return Ok(row);
    }
    if let Some(default) = &mut row.library_default {
        let own = measured.iter().find(|known| plain(known.strategy) == plain(default.priced.strategy));
        default.priced.measured = own.and_then(|known| known.measured);
    }
    measured.sort_by_key(|known| (known.counted().time, known.strategy));
    row.pairs.retain(|pair| measured.iter().all(|known| !known.is_pair_of(pair)));
    for known in measured {
        if row.pairs.iter().all(|pair| !pair.is_pair_of(&known)) {
            row.pairs.push(known);
        }
    }
    row.pairs.sort_by_key(|pair| (pair.counted().time, pair.strategy));
    let is_measured = |one: &Priced| row.pairs.iter().any(|pair| pair.measured.is_some() && pair.is_pair_of(one));
    let predicted = Some(row.fastest).filter(|fastest| !is_measured(fastest));
    let fastest = row.pairs.iter().copied().chain(predicted).min_by_key(|one| one.counted().time);
    row.fastest = fastest.unwrap_or(row.fastest);
    if let [first, rest @ ..] = row.pairs.as_slice() {
        row.pick = *first;
        row.runner_up = rest.first().copied();
    }
    Ok(row)
}
