//! Refinement of a plan between the requested sizes: if the selected strategy changes from one size to the next, sizes
//! between them are planned until the sizes on both sides of a change are close to each other.
//!
//! The sizes at which the library's default changes are known to the byte and are planned first. Then two kinds of gaps
//! between neighbouring sizes are halved on a logarithmic scale. The first kind has ends that differ in algorithm or
//! protocol, or of which one uses the library's default and the other does not, or, in a library's table, that depart from
//! it with different numbers of channels. The second kind is wide and has two
//! ends that depart from the library's default, because the default may change inside the gap. If the middle size has a
//! third strategy, both halves are refined.
//!
//! The library adapts its channel count to the message size, but a table has one channel count for a range of sizes. If
//! this costs more than [`CHANNELS_LOSS`], rows are added at the sizes at which the library's channel count changes.
//!
//! Measured times exist at the measured sizes only. Between them, the strategy of the nearest measured size is used if
//! its predicted time is acceptable, and the library's default otherwise.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use fabricast_sim::schedule::Collective;
use fabricast_sim::schedule::format::CallSizes;
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::measured::MEASURED_NOISE;
use super::ranges::geometric_mean;
use super::row_planner::RowPlanner;
use super::{PlanError, PlanRow, Preference, outside, smoothing};
use fabricast_libraries::Library;
use fabricast_libraries::nccl::{Algo, AlgoProto, Function, Proto};

/// Largest ratio of neighbouring sizes with different strategies, in plans for a library's table.
const LIBRARY_GAP_RATIO: f64 = 1.1;

/// Largest ratio of neighbouring sizes with different strategies, in plans over all software. The ratio is larger than
/// [`LIBRARY_GAP_RATIO`], because no library reads such plans and their sizes take longer to plan.
const GAP_RATIO: f64 = 1.5;

/// Largest ratio of neighbouring sizes with different strategies, in plans for a library's table, if the time jumps
/// between them.
const JUMP_GAP_RATIO: f64 = 1.001;

/// Smallest ratio of the times per byte of two neighbouring sizes that counts as a jump. Between hosts, times jump where
/// messages pass the size from which they have a separate notification.
const JUMP: f64 = 1.1;

/// Largest ratio of neighbouring sizes at both of which the selected strategy differs from the library's default.
const DEPARTURE_GAP_RATIO: f64 = 2.0;

/// Largest ratio of neighbouring sizes between which a change of the channel count is not located more precisely.
const CHANNEL_GAP_RATIO: f64 = 1.02;

/// Largest accepted relative slowdown caused by a channel count other than the library's default.
const CHANNELS_LOSS: f64 = 0.005;

/// Plans the rows between the requested ones; returns them by collective and size.
pub(super) fn rows(planner: &RowPlanner<'_>, rows: &[PlanRow]) -> Result<Vec<PlanRow>, PlanError> {
    let request = planner.request();
    let mut pending: Vec<(Collective, Bytes)> = Vec::new();
    for rows in rows.chunk_by(|a, b| a.collective == b.collective) {
        if let ([first, .., last], true) = (rows, rows.first().is_some_and(|row| is_decided(planner, row.collective))) {
            let inside = outside::changes(request, first.collective, CallSizes { min: first.bytes, max: last.bytes });
            pending.extend(inside.into_iter().map(|bytes| (first.collective, bytes)));
        }
    }
    let mut examined: BTreeSet<(Collective, Bytes)> = rows.iter().map(row_key).collect();
    let mut added: Vec<PlanRow> = Vec::new();
    let mut checked: BTreeSet<(Collective, Bytes, Bytes)> = BTreeSet::new();
    loop {
        pending.retain(|&cell| examined.insert(cell));
        for row in planner.additional_rows(&pending)? {
            added.push(apply_nearest_measured(planner, rows, row)?);
        }
        added.sort_by_key(row_key);
        let smoothed = smooth_added_rows(planner, rows, &added);
        let all_rows = merge_rows(rows, &smoothed);
        pending = all_rows.windows(2).filter_map(|pair| middle(planner, pair)).collect();
        let mismatches = all_rows.windows(2).filter_map(|pair| ChannelMismatch::find(planner, pair));
        let mismatches: Vec<ChannelMismatch> = mismatches.filter(|mismatch| checked.insert(mismatch.ends())).collect();
        let new_rows = mismatches.par_iter().with_max_len(1).map(|mismatch| mismatch.rows(planner));
        let new_rows = new_rows.collect::<Result<Vec<Vec<PlanRow>>, PlanError>>()?.into_iter().flatten();
        let new_rows: Vec<PlanRow> = new_rows.filter(|row| examined.insert(row_key(row))).collect();
        let has_new_rows = !new_rows.is_empty();
        added.extend(new_rows);
        if !has_new_rows && pending.iter().all(|cell| examined.contains(cell)) {
            return Ok(smoothed);
        }
    }
}

/// Two neighbouring sizes at which the library's default has different channel counts.
struct ChannelMismatch {
    collective: Collective,
    sizes: CallSizes,
    algorithm_and_protocol: AlgoProto,
    channels: (u16, u16),
}

impl ChannelMismatch {
    fn find(planner: &RowPlanner<'_>, pair: &[PlanRow]) -> Option<Self> {
        let [a, b] = pair else { return None };
        let (first, second) = (a.table_entry(), b.table_entry());
        let use_default = [a, b].into_iter().all(|row| row.library_default.is_some() && !departs_from_default(row));
        let is_mismatch =
            a.collective == b.collective && a.pick.has_same_pair(&b.pick) && first.channels != second.channels;
        planner.request().restriction.library.filter(|_| use_default && is_mismatch)?;
        let algorithm_and_protocol =
            AlgoProto { algo: Algo::from_algorithm(first.algorithm)?, proto: Proto::from_protocol(first.protocol)? };
        let channels = (first.channels, second.channels);
        halfway(a, b, CHANNEL_GAP_RATIO).map(|_| Self {
            collective: a.collective,
            sizes: CallSizes { min: a.bytes, max: b.bytes },
            algorithm_and_protocol,
            channels,
        })
    }

    fn ends(&self) -> (Collective, Bytes, Bytes) {
        (self.collective, self.sizes.min, self.sizes.max)
    }

    /// Returns rows at and just before every size at which the library's channel count changes, if a table with the
    /// channel counts of the two ends would be too slow in between ([`CHANNELS_LOSS`]); otherwise none.
    fn rows(&self, planner: &RowPlanner<'_>) -> Result<Vec<PlanRow>, PlanError> {
        if !self.is_slow(planner)? {
            return Ok(Vec::new());
        }
        let changes = outside::channel_changes(planner.request(), self.collective, self.sizes);
        let rows = changes.into_iter().map(|bytes| planner.default_row(self.collective, bytes));
        Ok(rows.collect::<Result<Vec<Option<PlanRow>>, PlanError>>()?.into_iter().flatten().collect())
    }

    /// Returns true if the channel count of an end is slower than the library's default at a quarter or half of the
    /// distance to the other end, on a logarithmic scale.
    fn is_slow(&self, planner: &RowPlanner<'_>) -> Result<bool, PlanError> {
        let CallSizes { min, max } = self.sizes;
        let middle = geometric_mean(min, max);
        let (first_quarter, last_quarter) = (geometric_mean(min, middle), geometric_mean(middle, max));
        let (first, last) = self.channels;
        // Rounded sizes are probed as well: chunks divide evenly at them, so the library's default is fastest there,
        // and applications use them most.
        let probes = [(first_quarter, &[first][..]), (middle, &[first, last]), (last_quarter, &[last])];
        let probes = probes.into_iter().flat_map(|(bytes, channels)| [(bytes, channels), (round(bytes), channels)]);
        let request = planner.request();
        for (bytes, channels) in probes {
            let call = request.call(self.collective, bytes);
            let time = |channels: Option<NonZeroU16>| -> Result<Option<Picos>, PlanError> {
                let strategy = request
                    .library
                    .and_then(|chooser| chooser.predict_strategy(&call, self.algorithm_and_protocol, channels));
                let Some(strategy) = strategy else { return Ok(None) };
                Ok(planner.simulate(self.collective, bytes, strategy)?.map(|timed| timed.time))
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

/// Merges the requested and the added rows, by collective and size.
pub(super) fn merge_rows(rows: &[PlanRow], added: &[PlanRow]) -> Vec<PlanRow> {
    let mut merged: Vec<PlanRow> = rows.iter().chain(added).cloned().collect();
    // Collectives retain the order of the rows.
    let collectives: Vec<Collective> =
        rows.chunk_by(|a, b| a.collective == b.collective).filter_map(|rows| Some(rows.first()?.collective)).collect();
    let order = |row: &PlanRow| collectives.iter().position(|collective| *collective == row.collective);
    merged.sort_by_key(|row| (order(row), row.bytes));
    merged
}

fn row_key(row: &PlanRow) -> (Collective, Bytes) {
    (row.collective, row.bytes)
}

/// Returns true if a table can set the strategy of a collective. NCCL's tuners cannot set the strategy of collectives
/// that are composed of sends and receives.
fn is_decided(planner: &RowPlanner<'_>, collective: Collective) -> bool {
    match planner.request().restriction.library.map(|offer| offer.library) {
        Some(Library::Nccl(_)) => Function::from_collective(collective).is_some(),
        _ => collective.has_variable_size(),
    }
}

/// Returns the added rows after their strategies were smoothed over neighbouring sizes.
fn smooth_added_rows(planner: &RowPlanner<'_>, rows: &[PlanRow], added: &[PlanRow]) -> Vec<PlanRow> {
    let restriction = planner.request().restriction;
    if restriction.library.is_none() {
        return added.to_vec();
    }
    let mut all_rows = merge_rows(rows, added);
    let added_keys: BTreeSet<(Collective, Bytes)> = added.iter().map(row_key).collect();
    smoothing::smooth_where(&mut all_rows, restriction, |row| {
        added_keys.contains(&row_key(row)) && nearest(rows, row).is_none()
    });
    all_rows.retain(|row| added_keys.contains(&row_key(row)));
    all_rows
}

/// Returns the geometric mean of two neighbouring sizes if their ratio exceeds the limit for the strategies that they
/// use.
fn middle(planner: &RowPlanner<'_>, pair: &[PlanRow]) -> Option<(Collective, Bytes)> {
    let [a, b] = pair else { return None };
    if a.collective != b.collective || !is_decided(planner, a.collective) {
        return None;
    }
    let for_library = planner.request().restriction.library.is_some();
    // A table has one number of channels for a range of sizes, in which times may jump with that of one end.
    let other_channels = for_library && departs_from_default(a) && a.pick.strategy.channels != b.pick.strategy.channels;
    let differ = !a.pick.has_same_pair(&b.pick) || departs_from_default(a) != departs_from_default(b) || other_channels;
    let max_ratio = match (differ, departs_from_default(a)) {
        (true, _) if for_library => match jumps(a, b) {
            true => JUMP_GAP_RATIO,
            false => LIBRARY_GAP_RATIO,
        },
        (true, _) => GAP_RATIO,
        (false, true) => DEPARTURE_GAP_RATIO,
        (false, false) => return None,
    };
    Some((a.collective, halfway(a, b, max_ratio)?))
}

/// Returns true if the time per byte jumps between the sizes of two rows.
fn jumps(a: &PlanRow, b: &PlanRow) -> bool {
    let time_per_byte = |row: &PlanRow| row.pick.time.0 as f64 / row.bytes.0.max(1) as f64;
    time_per_byte(b) > time_per_byte(a) * JUMP
}

/// Rounds a size to five significant bits.
fn round(bytes: Bytes) -> Bytes {
    let unit = 1u64 << bytes.0.checked_ilog2().unwrap_or(0).saturating_sub(4);
    Bytes(bytes.0.saturating_add(unit / 2) / unit * unit)
}

/// Returns the geometric mean of two rows' sizes if their ratio exceeds `max_ratio`.
fn halfway(a: &PlanRow, b: &PlanRow, max_ratio: f64) -> Option<Bytes> {
    let middle = geometric_mean(a.bytes, b.bytes);
    let is_wide = b.bytes.0 as f64 > a.bytes.0 as f64 * max_ratio;
    (is_wide && a.bytes < middle && middle < b.bytes).then_some(middle)
}

/// Returns true if the row selects a strategy other than the library's default.
fn departs_from_default(row: &PlanRow) -> bool {
    row.library_default.as_ref().is_some_and(|default| default.timed.strategy != row.pick.strategy)
}

/// Returns the requested row nearest in size to an added row, if the requested row was measured and the added one was
/// not.
fn nearest<'a>(rows: &'a [PlanRow], row: &PlanRow) -> Option<&'a PlanRow> {
    let is_measured = |row: &PlanRow| {
        let default = row.library_default.as_ref().is_some_and(|default| default.timed.measured.is_some());
        default || row.pick.measured.is_some()
    };
    let distance = |candidate: &PlanRow| (candidate.bytes.0.max(1) as f64 / row.bytes.0.max(1) as f64).ln().abs();
    let same_collective = rows.iter().filter(|candidate| candidate.collective == row.collective);
    let nearest = same_collective.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    (is_measured(nearest) && !is_measured(row)).then_some(nearest)
}

/// Replaces the strategy of a row by that of the nearest measured size if its predicted time is acceptable, otherwise
/// by the library's default.
fn apply_nearest_measured(planner: &RowPlanner<'_>, rows: &[PlanRow], row: PlanRow) -> Result<PlanRow, PlanError> {
    let (Some(nearest), Some(default)) = (nearest(rows, &row), row.library_default.clone()) else { return Ok(row) };
    let timed = match departs_from_default(nearest) {
        false => None,
        true => planner.simulate(row.collective, row.bytes, nearest.pick.strategy)?,
    };
    let limit = default.timed.time.0 as f64 * (1.0 + MEASURED_NOISE);
    let pick = timed.filter(|timed| timed.time.0 as f64 <= limit).unwrap_or(default.timed);
    if pick.strategy == row.pick.strategy {
        return Ok(row);
    }
    let fastest = row.preference.rejected_fastest().copied().unwrap_or(row.pick);
    Ok(PlanRow { pick, runner_up: Some(fastest), preference: Preference::Neighbours { fastest }, ..row })
}
