//! Refinement of a plan between the requested sizes: where the selected strategy changes from one size to the next,
//! sizes in between are planned as well, until differing neighbours are close to each other.
//!
//! The sizes at which the library's default changes are known to the byte and are planned first. Then two kinds of gaps
//! between neighbours are halved on a logarithmic scale: gaps whose ends differ in algorithm or protocol, or of which
//! only one departs from the library's default; and wide gaps between departures, because the library's default changes
//! inside them. If the middle size has a third strategy, both halves are refined.
//!
//! The library uses as many channels as the message size justifies, but a table has one number for a range of sizes. If
//! a neighbour's number costs [`CHANNELS_LOSS`], the sizes at which the library's number changes get rows too.
//!
//! Measurements exist at their own sizes only. Between them, the strategy of the nearest measured size is used as long
//! as the prediction does not contradict it; otherwise the library's default.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::measured::MEASURED_NOISE;
use super::ranges::geometric_mean;
use super::search::RowPlanner;
use super::{PlanError, Preference, Row, beyond, steady};
use crate::library::Library;
use crate::library::nccl::{Algo, Function, Proto};

/// Largest ratio of neighbouring sizes with different strategies, in plans for a library's table.
const NEAR: f64 = 1.1;

/// Variant of [`NEAR`] for plans over all software, which no library follows to the byte and whose sizes are slower to
/// plan.
const NEAR_OF_ANY: f64 = 1.5;

/// Largest ratio of neighbouring sizes that both depart from the library's default.
const FAR: f64 = 2.0;

/// Neighbours with different channel counts are not refined below this ratio.
const NEAREST: f64 = 1.02;

/// Share of the time that a channel count other than the library's default may cost.
const CHANNELS_LOSS: f64 = 0.005;

/// Plans the rows between the requested ones; returns them by collective and size.
pub(super) fn rows(planner: &RowPlanner<'_>, rows: &[Row]) -> Result<Vec<Row>, PlanError> {
    let request = planner.request();
    let mut wanted: Vec<(Collective, Bytes)> = Vec::new();
    for rows in rows.chunk_by(|a, b| a.collective == b.collective) {
        if let ([first, .., last], true) = (rows, rows.first().is_some_and(|row| is_decided(planner, row.collective))) {
            let inside = beyond::changes(request, first.collective, (first.bytes, last.bytes));
            wanted.extend(inside.into_iter().map(|bytes| (first.collective, bytes)));
        }
    }
    let mut tried: BTreeSet<(Collective, Bytes)> = rows.iter().map(place).collect();
    let mut found: Vec<Row> = Vec::new();
    let mut doubted: BTreeSet<(Collective, Bytes, Bytes)> = BTreeSet::new();
    loop {
        wanted.retain(|&cell| tried.insert(cell));
        for row in planner.further(&wanted)? {
            found.push(by_measured(planner, rows, row)?);
        }
        found.sort_by_key(place);
        let settled = settled(planner, rows, &found);
        let known = all(rows, &settled);
        wanted = known.windows(2).filter_map(|pair| middle(planner, pair)).collect();
        let doubtful = known.windows(2).filter_map(|pair| Doubt::of(planner, pair));
        let doubtful: Vec<Doubt> = doubtful.filter(|doubt| doubted.insert(doubt.ends())).collect();
        let kept = doubtful.par_iter().with_max_len(1).map(|doubt| doubt.rows(planner));
        let kept = kept.collect::<Result<Vec<Vec<Row>>, PlanError>>()?.into_iter().flatten();
        let kept: Vec<Row> = kept.filter(|row| tried.insert(place(row))).collect();
        let is_parted = !kept.is_empty();
        found.extend(kept);
        if !is_parted && wanted.iter().all(|cell| tried.contains(cell)) {
            return Ok(settled);
        }
    }
}

/// Two neighbouring sizes that use the library's default on different numbers of channels.
struct Doubt {
    collective: Collective,
    sizes: (Bytes, Bytes),
    way: (Algo, Proto),
    channels: (u16, u16),
}

impl Doubt {
    fn of(planner: &RowPlanner<'_>, pair: &[Row]) -> Option<Self> {
        let [a, b] = pair else { return None };
        let (one, other) = (a.told(), b.told());
        let both_kept = [a, b].into_iter().all(|row| row.library_default.is_some() && !departs(row));
        let alike = a.collective == b.collective && a.pick.is_pair_of(&b.pick) && one.channels != other.channels;
        planner.request().restriction.library.filter(|_| both_kept && alike)?;
        let way = (Algo::of(one.algorithm)?, Proto::of(one.protocol)?);
        let channels = (one.channels, other.channels);
        halfway(a, b, NEAREST).map(|_| Self { collective: a.collective, sizes: (a.bytes, b.bytes), way, channels })
    }

    fn ends(&self) -> (Collective, Bytes, Bytes) {
        (self.collective, self.sizes.0, self.sizes.1)
    }

    /// Returns rows at and just before every size at which the library's channel count changes, if one of the counts is
    /// too slow in its half; otherwise none.
    fn rows(&self, planner: &RowPlanner<'_>) -> Result<Vec<Row>, PlanError> {
        if !self.costs(planner)? {
            return Ok(Vec::new());
        }
        let changes = beyond::channel_changes(planner.request(), self.collective, self.sizes);
        let rows = changes.into_iter().map(|bytes| planner.kept(self.collective, bytes));
        Ok(rows.collect::<Result<Vec<Option<Row>>, PlanError>>()?.into_iter().flatten().collect())
    }

    /// Returns true if the channel count of an end is slower than the library's default at a quarter or half of the way
    /// to the other end.
    fn costs(&self, planner: &RowPlanner<'_>) -> Result<bool, PlanError> {
        let middle = geometric_mean(self.sizes.0, self.sizes.1);
        let (near, far) = (geometric_mean(self.sizes.0, middle), geometric_mean(middle, self.sizes.1));
        let (first, last) = self.channels;
        // The library's default is fastest where chunks divide evenly, at round sizes, which are also what applications use.
        let probes = [(near, &[first][..]), (middle, &[first, last]), (far, &[last])];
        let probes = probes.into_iter().flat_map(|(bytes, channels)| [(bytes, channels), (round(bytes), channels)]);
        let request = planner.request();
        for (bytes, channels) in probes {
            let call = request.call(self.collective, bytes);
            let time = |channels: Option<NonZeroU16>| -> Result<Option<Picos>, PlanError> {
                let strategy = request.library.and_then(|chooser| chooser.forced(&call, self.way, channels));
                let Some(strategy) = strategy else { return Ok(None) };
                Ok(planner.price(self.collective, bytes, strategy)?.map(|priced| priced.time))
            };
            let Some(default) = time(None)? else { continue };
            for &channels in channels {
                let forced = time(NonZeroU16::new(channels))?;
                if forced.is_some_and(|forced| forced.0 as f64 > default.0 as f64 * (1.0 + CHANNELS_LOSS)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Merges both kinds of rows, by collective and size.
pub(super) fn all(rows: &[Row], between: &[Row]) -> Vec<Row> {
    let mut all: Vec<Row> = rows.iter().chain(between).cloned().collect();
    // Collectives retain the order of the rows.
    let collectives: Vec<Collective> =
        rows.chunk_by(|a, b| a.collective == b.collective).filter_map(|rows| Some(rows.first()?.collective)).collect();
    let order = |row: &Row| collectives.iter().position(|known| *known == row.collective);
    all.sort_by_key(|row| (order(row), row.bytes));
    all
}

fn place(row: &Row) -> (Collective, Bytes) {
    (row.collective, row.bytes)
}

/// Returns true if tables decide the strategy of a collective. NCCL's tuners do not decide collectives made of sends
/// and receives.
fn is_decided(planner: &RowPlanner<'_>, collective: Collective) -> bool {
    match planner.request().restriction.library.map(|offer| offer.library) {
        Some(Library::Nccl(_)) => Function::of(collective).is_some(),
        _ => collective.has_sizes(),
    }
}

/// Returns the added rows with strategies made consistent with their neighbours'.
fn settled(planner: &RowPlanner<'_>, rows: &[Row], between: &[Row]) -> Vec<Row> {
    let restriction = planner.request().restriction;
    if restriction.library.is_none() {
        return between.to_vec();
    }
    let mut known = all(rows, between);
    let is_between: BTreeSet<(Collective, Bytes)> = between.iter().map(place).collect();
    steady::settle_some(&mut known, restriction, |row| {
        is_between.contains(&place(row)) && nearest(rows, row).is_none()
    });
    known.retain(|row| is_between.contains(&place(row)));
    known
}

/// Returns the middle of two neighbouring sizes that are too far apart for the strategies that they use.
fn middle(planner: &RowPlanner<'_>, pair: &[Row]) -> Option<(Collective, Bytes)> {
    let [a, b] = pair else { return None };
    if a.collective != b.collective || !is_decided(planner, a.collective) {
        return None;
    }
    let differ = !a.pick.is_pair_of(&b.pick) || departs(a) != departs(b);
    let most = match (differ, departs(a)) {
        (true, _) if planner.request().restriction.library.is_some() => NEAR,
        (true, _) => NEAR_OF_ANY,
        (false, true) => FAR,
        (false, false) => return None,
    };
    Some((a.collective, halfway(a, b, most)?))
}

/// Returns the nearest size with five significant bits.
fn round(bytes: Bytes) -> Bytes {
    let unit = 1u64 << bytes.0.checked_ilog2().unwrap_or(0).saturating_sub(4);
    Bytes(bytes.0.saturating_add(unit / 2) / unit * unit)
}

/// Returns the geometric mean of two rows' sizes if their ratio exceeds `most`.
fn halfway(a: &Row, b: &Row, most: f64) -> Option<Bytes> {
    let middle = geometric_mean(a.bytes, b.bytes);
    let apart = b.bytes.0 as f64 > a.bytes.0 as f64 * most;
    (apart && a.bytes < middle && middle < b.bytes).then_some(middle)
}

/// Returns true if the row selects a strategy other than the library's default.
fn departs(row: &Row) -> bool {
    row.library_default.as_ref().is_some_and(|default| default.priced.strategy != row.pick.strategy)
}

/// Returns the requested row nearest to an added one, if it was measured and the added one was not.
fn nearest<'a>(rows: &'a [Row], row: &Row) -> Option<&'a Row> {
    let is_measured = |row: &Row| {
        let default = row.library_default.as_ref().is_some_and(|default| default.priced.measured.is_some());
        default || row.pick.measured.is_some()
    };
    let distance = |other: &Row| (other.bytes.0.max(1) as f64 / row.bytes.0.max(1) as f64).ln().abs();
    let of_collective = rows.iter().filter(|other| other.collective == row.collective);
    let nearest = of_collective.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    (is_measured(nearest) && !is_measured(row)).then_some(nearest)
}

/// Applies the strategy of the nearest measured size to a row: the same strategy if its predicted time is acceptable,
/// otherwise the library's default.
fn by_measured(planner: &RowPlanner<'_>, rows: &[Row], row: Row) -> Result<Row, PlanError> {
    let (Some(nearest), Some(default)) = (nearest(rows, &row), row.library_default.clone()) else { return Ok(row) };
    let taken = match departs(nearest) {
        false => None,
        true => planner.price(row.collective, row.bytes, nearest.pick.strategy)?,
    };
    let most = default.priced.time.0 as f64 * (1.0 + MEASURED_NOISE);
    let pick = taken.filter(|taken| taken.time.0 as f64 <= most).unwrap_or(default.priced);
    if pick.strategy == row.pick.strategy {
        return Ok(row);
    }
    let fastest = row.preference.passed_over().copied().unwrap_or(row.pick);
    Ok(Row { pick, runner_up: Some(fastest), preference: Preference::Neighbours { fastest }, ..row })
}
