//! Maps a plan to the terms of an export format: per size the selected strategy, or else the best that the format can
//! express. Strategies that it cannot express are listed.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::{SavedPick, SavedPlan, SavedRange, SavedRow};
pub use crate::plan::LAST_BYTES;
use crate::plan::Stretch;

/// Strategy of a plan that a format cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The collective.
    pub collective: Collective,
    /// First and last message size.
    pub bytes: (Bytes, Bytes),
    /// Selected strategy: `one_shot symmetric × 8`.
    pub pick: String,
    /// Strategy exported instead; `None` if there is none.
    pub instead: Option<String>,
    /// Reason why the format cannot express the strategy.
    pub reason: String,
}

/// Contents of a plan in the terms of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices<K> {
    /// Size ranges by collective, then size. Those of a collective cover all sizes except the ones
    /// [left out](Unsaid::LeftOut).
    pub stretches: Vec<Stretch<K>>,
    /// Strategies that the format cannot express.
    pub dropped: Vec<Dropped>,
}

/// Treatment of sizes for which a format can express no strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsaid {
    /// Use the neighbouring sizes' entry. Without a row the library would do worse than with that one.
    AsNeighbours,
    /// Leave them to the library.
    LeftOut,
}

/// Strategy to export for a row if the format can express it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The selected strategy, whichever software runs it.
    Pick,
    /// The best strategy that the plan's library runs, provided that it is predicted to beat the library's default;
    /// otherwise that default.
    OfLibrary,
}

/// Chooses an entry for every row of a plan. `say` translates a strategy into the format's terms or fails with the
/// reason. It is tried on the wanted strategy, then on the selected one, the library's best and the library's default.
///
/// Sizes outside the rows get the entry that `own` returns for the library's default; if that is `None` or the default
/// is unknown, the nearest row's entry. For collectives with ranges but no rows (fabricast's own tables), the ranges
/// are used unchanged.
pub fn choices<K: Clone + PartialEq>(
    plan: &SavedPlan,
    (wanted, unsaid): (Wanted, Unsaid),
    mut say: impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
    own: impl Fn(&SavedRange) -> Option<K>,
) -> Choices<K> {
    let mut taken: Vec<(Collective, Bytes, Option<K>)> = Vec::with_capacity(plan.rows.len());
    let mut dropped: Vec<Dropped> = Vec::new();
    for row in plan.all_rows() {
        let key = choose(row, (wanted, row.bytes), &mut say, &mut dropped);
        if key.is_some() || unsaid == Unsaid::LeftOut {
            taken.push((row.collective, row.bytes, key));
        }
    }
    let mut stretches = Stretch::merge(taken);
    let extents = extents(plan);
    for_ends(&mut stretches, |stretch, end| {
        let Some(&(_, first, last)) = extents.iter().find(|extent| extent.0 == stretch.collective) else { return };
        match end {
            End::First => stretch.min_bytes = first,
            End::Last => stretch.max_bytes = last,
        }
    });
    let beyond = plan.beyond.iter().filter_map(|range| {
        let (collective, min_bytes, max_bytes) = (range.collective, range.min_bytes, range.max_bytes);
        own(range).map(|key| Stretch { collective, min_bytes, max_bytes, key: Some(key) })
    });
    stretches.extend(beyond);
    stretches.sort_by_key(|stretch| (stretch.collective, stretch.min_bytes));
    let mut stretches = joined(stretches);
    for_ends(&mut stretches, |stretch, end| match end {
        End::First => stretch.min_bytes = Bytes(0),
        End::Last => stretch.max_bytes = LAST_BYTES,
    });
    let said = stretches.into_iter().filter_map(|Stretch { collective, min_bytes, max_bytes, key }| {
        key.map(|key| Stretch { collective, min_bytes, max_bytes, key })
    });
    let mut stretches: Vec<Stretch<K>> = said.collect();
    for range in plan.ranges_alone() {
        let (collective, min_bytes, max_bytes) = (range.collective, range.min_bytes, range.max_bytes);
        let Some(key) = choose(&SavedRow::of(range), (wanted, max_bytes), &mut say, &mut dropped) else { continue };
        stretches.push(Stretch { collective, min_bytes, max_bytes, key });
    }
    // The sort is stable: sizes stay in order.
    stretches.sort_by_key(|stretch| stretch.collective);
    Choices { stretches: joined(stretches), dropped }
}

/// First and last row size of each collective.
fn extents(plan: &SavedPlan) -> Vec<(Collective, Bytes, Bytes)> {
    let rows = plan.rows.chunk_by(|a, b| a.collective == b.collective);
    rows.filter_map(|rows| Some((rows.first()?.collective, rows.first()?.bytes, rows.last()?.bytes))).collect()
}

/// Merges adjacent ranges that have the same key.
fn joined<K: PartialEq>(stretches: Vec<Stretch<K>>) -> Vec<Stretch<K>> {
    let mut joined: Vec<Stretch<K>> = Vec::with_capacity(stretches.len());
    for next in stretches {
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

/// Calls `with` on the first and the last size range of each collective.
fn for_ends<K>(stretches: &mut [Stretch<K>], mut with: impl FnMut(&mut Stretch<K>, End)) {
    for of_collective in stretches.chunk_by_mut(|a, b| a.collective == b.collective) {
        if let Some(first) = of_collective.first_mut() {
            with(first, End::First);
        }
        if let Some(last) = of_collective.last_mut() {
            with(last, End::Last);
        }
    }
}

/// Returns the entry for a row, whose sizes end at `last`. Records the row in `dropped` if the entry is not that of the
/// selected strategy.
fn choose<K>(
    row: &SavedRow,
    (wanted, last): (Wanted, Bytes),
    say: &mut impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
    dropped: &mut Vec<Dropped>,
) -> Option<K> {
    let mut say = |pick: &SavedPick| say(row, &row.told(pick));
    let best = row.best_of_library.as_ref().filter(|_| wanted == Wanted::OfLibrary);
    let reason = match say(&row.pick) {
        Ok(key) => match best {
            // The format can express the selected strategy, but it is not distinguishable from the library's default.
            Some(best) => return Some(say(best).unwrap_or(key)),
            None => return Some(key),
        },
        Err(reason) => reason,
    };
    let others = row.best_of_library.iter().chain(&row.library_default);
    let other = others.into_iter().find_map(|other| Some((other, say(other).ok()?)));
    let new = Dropped {
        collective: row.collective,
        bytes: (row.bytes, last),
        pick: row.pick.to_string(),
        instead: other.as_ref().map(|(other, _)| other.to_string()),
        reason,
    };
    match dropped.last_mut() {
        Some(before) if before.is_like(&new) => {
            before.bytes.1 = last;
            if before.pick != new.pick {
                before.pick = "every pick".to_owned();
            }
        }
        _ => dropped.push(new),
    }
    other.map(|(_, key)| key)
}

impl Dropped {
    fn is_like(&self, other: &Self) -> bool {
        let same = self.collective == other.collective && self.instead == other.instead && self.reason == other.reason;
        same && (self.pick == other.pick || self.instead.is_none())
    }
}

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { collective, bytes: (first, last), pick, instead, reason } = self;
        write!(f, "{collective} {first}")?;
        if last != first {
            write!(f, " to {last}")?;
        }
        write!(f, ": {pick}: {reason}; ")?;
        match instead {
            Some(other) => write!(f, "{other} instead"),
            None => f.write_str("left out"),
        }
    }
}
