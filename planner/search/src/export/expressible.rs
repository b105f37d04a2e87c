//! Conversion of a plan to the entries of an export format. Each size gets the selected strategy, or the best strategy
//! that the format can express. Strategies that the format cannot express are listed.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::{SavedPick, SavedPlan, SavedRange, SavedRow};
pub use crate::plan::LAST_BYTES;
use crate::plan::SizeRange;

/// Strategy of a plan that a format cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedStrategy {
    /// Collective that the strategy was selected for.
    pub collective: Collective,
    /// First and last message size for which the strategy was selected, in bytes, both inclusive.
    pub bytes: (Bytes, Bytes),
    /// Selected strategy: `one_shot symmetric × 8`.
    pub pick: String,
    /// Strategy exported instead; `None` if there is none.
    pub substitute: Option<String>,
    /// Reason why the format cannot express the strategy.
    pub reason: String,
}

/// Table entries of a plan in an export format. `K` is the type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices<K> {
    /// Size ranges by collective, then size. The ranges of a collective cover all sizes except those [left
    /// out](MissingEntry::Omit).
    pub ranges: Vec<SizeRange<K>>,
    /// Strategies that the format cannot express.
    pub dropped: Vec<DroppedStrategy>,
}

/// Treatment of sizes for which the format can express no strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingEntry {
    /// Use the entry of the neighbouring sizes. Without an entry, the library would choose a slower strategy.
    UseNeighbour,
    /// Write no entry, so that the library chooses by itself at these sizes.
    Omit,
}

/// Strategy to export for a row if the format can express it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportedStrategy {
    /// The selected strategy, of any software.
    Selected,
    /// The best strategy that the plan's library runs, provided that it is predicted to beat the library's default;
    /// otherwise that default.
    BestOfLibrary,
}

/// Chooses an entry for every row of a plan. `translate` converts a strategy to an entry of the format or returns the
/// reason why the format cannot express it. The first strategy with an entry is used, in this order: the strategy
/// according to [`ExportedStrategy`], the selected strategy, the library's best strategy, the library's default.
///
/// Sizes outside the rows get the entry that `default_entry` returns for the library's default. If `default_entry`
/// returns `None` or the default is unknown, they get the nearest row's entry. For collectives with ranges but no rows
/// (fabricast's own tables), the ranges are used unchanged.
pub fn choose_entries<K: Clone + PartialEq>(
    plan: &SavedPlan,
    wanted: ExportedStrategy,
    missing: MissingEntry,
    mut translate: impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
    default_entry: impl Fn(&SavedRange) -> Option<K>,
) -> Choices<K> {
    let mut entries: Vec<SizeRange<Option<K>>> = Vec::with_capacity(plan.rows.len());
    let mut dropped: Vec<DroppedStrategy> = Vec::new();
    for row in plan.all_rows() {
        let key = choose(row, wanted, row.bytes, &mut translate, &mut dropped);
        if key.is_some() || missing == MissingEntry::Omit {
            entries.push(SizeRange::single(row.collective, row.bytes, key));
        }
    }
    let mut ranges = SizeRange::merge(entries);
    let extents = extents(plan);
    for_each_end(&mut ranges, |range, end| {
        let Some(extent) = extents.iter().find(|extent| extent.collective == range.collective) else { return };
        match end {
            End::First => range.min_bytes = extent.min_bytes,
            End::Last => range.max_bytes = extent.max_bytes,
        }
    });
    let outside = plan.outside_ranges.iter().filter_map(|range| {
        let (collective, min_bytes, max_bytes) = (range.collective, range.min_bytes, range.max_bytes);
        default_entry(range).map(|key| SizeRange { collective, min_bytes, max_bytes, key: Some(key) })
    });
    ranges.extend(outside);
    ranges.sort_by_key(|range| (range.collective, range.min_bytes));
    let mut ranges = merge_adjacent(ranges);
    for_each_end(&mut ranges, |range, end| match end {
        End::First => range.min_bytes = Bytes(0),
        End::Last => range.max_bytes = LAST_BYTES,
    });
    let with_entry = ranges.into_iter().filter_map(|SizeRange { collective, min_bytes, max_bytes, key }| {
        key.map(|key| SizeRange { collective, min_bytes, max_bytes, key })
    });
    let mut ranges: Vec<SizeRange<K>> = with_entry.collect();
    for range in plan.ranges_without_rows() {
        let (collective, min_bytes, max_bytes) = (range.collective, range.min_bytes, range.max_bytes);
        let Some(key) = choose(&SavedRow::from_range(range), wanted, max_bytes, &mut translate, &mut dropped) else {
            continue;
        };
        ranges.push(SizeRange { collective, min_bytes, max_bytes, key });
    }
    // The sort is stable: sizes stay in order.
    ranges.sort_by_key(|range| range.collective);
    Choices { ranges: merge_adjacent(ranges), dropped }
}

/// First and last row size of each collective.
fn extents(plan: &SavedPlan) -> Vec<SizeRange<()>> {
    let extent = |rows: &[SavedRow]| {
        let (first, last) = (rows.first()?, rows.last()?);
        Some(SizeRange { collective: first.collective, min_bytes: first.bytes, max_bytes: last.bytes, key: () })
    };
    plan.rows.chunk_by(|a, b| a.collective == b.collective).filter_map(extent).collect()
}

/// Merges adjacent ranges that have the same key.
fn merge_adjacent<K: PartialEq>(ranges: Vec<SizeRange<K>>) -> Vec<SizeRange<K>> {
    let mut joined: Vec<SizeRange<K>> = Vec::with_capacity(ranges.len());
    for next in ranges {
        match joined.last_mut() {
            Some(last)
                if last.collective == next.collective
                    && last.key == next.key
                    && last.max_bytes.0.checked_add(1) == Some(next.min_bytes.0) =>
            {
                last.max_bytes = next.max_bytes;
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// First or last size range of a collective.
enum End {
    First,
    Last,
}

/// Calls `apply` on the first and the last size range of each collective.
fn for_each_end<K>(ranges: &mut [SizeRange<K>], mut apply: impl FnMut(&mut SizeRange<K>, End)) {
    for collective_ranges in ranges.chunk_by_mut(|a, b| a.collective == b.collective) {
        if let Some(first) = collective_ranges.first_mut() {
            apply(first, End::First);
        }
        if let Some(last) = collective_ranges.last_mut() {
            apply(last, End::Last);
        }
    }
}

/// Returns the entry for a row; `last` is the largest size of the row's range. Records the row in `dropped` if the
/// entry is not that of the selected strategy.
fn choose<K>(
    row: &SavedRow,
    wanted: ExportedStrategy,
    last: Bytes,
    translate: &mut impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
    dropped: &mut Vec<DroppedStrategy>,
) -> Option<K> {
    let mut translate = |pick: &SavedPick| translate(row, &row.table_entry(pick));
    let best = row.best_of_library.as_ref().filter(|_| wanted == ExportedStrategy::BestOfLibrary);
    let reason = match translate(&row.pick) {
        Ok(key) => match best {
            // The row is not recorded as dropped: the format can express the selected strategy, whose entry equals that
            // of the library's default.
            Some(best) => return Some(translate(best).unwrap_or(key)),
            None => return Some(key),
        },
        Err(reason) => reason,
    };
    let alternatives = row.best_of_library.iter().chain(&row.library_default);
    let substitute = alternatives.into_iter().find_map(|substitute| Some((substitute, translate(substitute).ok()?)));
    let new = DroppedStrategy {
        collective: row.collective,
        bytes: (row.bytes, last),
        pick: row.pick.to_string(),
        substitute: substitute.as_ref().map(|(substitute, _)| substitute.to_string()),
        reason,
    };
    match dropped.last_mut() {
        Some(previous) if previous.can_merge(&new) => {
            previous.bytes.1 = last;
            if previous.pick != new.pick {
                previous.pick = "every pick".to_owned();
            }
        }
        _ => dropped.push(new),
    }
    substitute.map(|(_, key)| key)
}

impl DroppedStrategy {
    fn can_merge(&self, other: &Self) -> bool {
        let same =
            self.collective == other.collective && self.substitute == other.substitute && self.reason == other.reason;
        same && (self.pick == other.pick || self.substitute.is_none())
    }
}

impl std::fmt::Display for DroppedStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { collective, bytes: (first, last), pick, substitute, reason } = self;
        write!(f, "{collective} {first}")?;
        if last != first {
            write!(f, " to {last}")?;
        }
        write!(f, ": {pick}: {reason}; ")?;
        match substitute {
            Some(substitute) => write!(f, "{substitute} instead"),
            None => f.write_str("omitted"),
        }
    }
}
