//! Groups that are slower than predicted by the same factor at all sizes.
//!
//! A prediction interval covers the scatter of single measurements on many machines. If all sizes of one machine are
//! slower by the same factor, the cause is not scatter: the machine or its settings differ, even if each row lies
//! within its interval. The rows of one strategy are examined jointly. They count as slow if they are more than a
//! quarter above the prediction ([`MIN_SLOWDOWN`]) and differ from each other by at most a tenth
//! ([`MAX_RATIO_DEVIATION`]).

use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;

use super::diagnosis::Cause;
use super::statistics::median;
use super::{Compared, Group};
use crate::measured::LibraryName;
use crate::measured::manifest::Measurement;

/// Minimum median of measured ÷ predicted time for rows to count as slow.
const MIN_SLOWDOWN: f64 = 1.25;
/// Maximum relative deviation of a row from the median ratio for the row to be equally slow.
const MAX_RATIO_DEVIATION: f64 = 0.1;
/// Minimum fraction of rows that are equally slow.
const MIN_SHARE: f64 = 2.0 / 3.0;
/// Minimum number of equally slow rows.
const MIN_ROWS: usize = 3;

/// Sets [`Compared::slow`] of the rows in groups that are slow at all sizes.
pub(super) fn mark(groups: &[Group], rows: &mut [Compared]) {
    for group in groups {
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for &number in &group.rows {
            let Some(row) = rows.get(number).filter(|row| row.outlier.is_none()) else { continue };
            let selection = |row: &Compared| (row.strategy.algorithm, row.strategy.protocol);
            let same_selection = |set: &&mut Vec<usize>| {
                set.first().and_then(|&first| rows.get(first)).map(selection) == Some(selection(row))
            };
            match sets.iter_mut().find(same_selection) {
                Some(set) => set.push(number),
                None => sets.push(vec![number]),
            }
        }
        for set in sets {
            let ratio = |&number: &usize| {
                let row = rows.get(number)?;
                Some((number, row.measured.0 as f64 / row.predicted.0.max(1) as f64))
            };
            let ratios: Vec<(usize, f64)> = set.iter().filter_map(ratio).collect();
            let mut sorted: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            let middle = median(&sorted);
            let is_similar = |ratio: f64| (ratio / middle - 1.0).abs() <= MAX_RATIO_DEVIATION;
            let similar: Vec<(usize, f64)> = ratios.iter().copied().filter(|&(_, ratio)| is_similar(ratio)).collect();
            let enough = similar.len() >= MIN_ROWS && similar.len() as f64 >= MIN_SHARE * ratios.len() as f64;
            if middle < MIN_SLOWDOWN || !enough {
                continue;
            }
            for (number, ratio) in similar {
                if let Some(row) = rows.get_mut(number) {
                    row.slow = Some(ratio - 1.0);
                }
            }
        }
    }
}

/// Returns a setting in the log that may have slowed down a group, if most of the group's rows are slower than
/// predicted.
pub(super) fn setting(measurement: &Measurement, group: &Group) -> Option<Cause> {
    let configuration = &measurement.configuration;
    let is_nccl = configuration.library.as_ref().is_none_or(|library| library.name == LibraryName::Nccl);
    let is_pairwise = configuration.collective.is_pairwise();
    let mostly = 2 * group.slower > group.rows.len();
    if !(is_nccl && is_pairwise && mostly && configuration.nodes > 1) {
        return None;
    }
    Some(Cause::ChannelsPerPeer {
        logged: measurement.context.p2p_channels,
        required: channels_for_nic(&measurement.fabric)?,
    })
}

/// Number of channels that saturate the fastest NIC of a fabric, as a power of two; `None` if no NIC has a known speed.
/// NCCL 2.30.7 assumes 14 GB/s per channel (`NCCL_P2P_PER_CHANNEL_NET_BW` in src/graph/paths.cc).
fn channels_for_nic(fabric: &Fabric) -> Option<u16> {
    const CHANNEL: f64 = 14e9;
    let speeds = fabric.nodes().filter_map(|(_, node)| match &node.figures {
        Figures::Nic(figures) => figures.speed,
        _ => None,
    });
    let needed = (speeds.max()?.0 as f64 / CHANNEL).ceil().clamp(1.0, 64.0) as u16;
    Some(needed.next_power_of_two())
}
