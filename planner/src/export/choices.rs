//! What each size takes in a format: the pick, or else the best that the format can say; and what was dropped for it.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::{SavedPick, SavedPlan, SavedRow};
use crate::plan::Stretch;

/// The last size of a table: more than any call, and no number that a reader with signs stumbles over.
pub const LAST_BYTES: Bytes = Bytes(i64::MAX as u64);

/// Something that a format cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The collective.
    pub collective: Collective,
    /// The first and the last size.
    pub bytes: (Bytes, Bytes),
    /// What the plan picks: `one_shot symmetric × 8`.
    pub pick: String,
    /// What stands in its place; `None`: nothing does.
    pub instead: Option<String>,
    /// What the format cannot say.
    pub reason: String,
}

/// What a format says of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices<K> {
    /// By collective, then size; each collective's cover all sizes, but for what is [left out](Unsaid::LeftOut).
    pub stretches: Vec<Stretch<K>>,
    /// What was dropped.
    pub dropped: Vec<Dropped>,
}

/// What becomes of sizes that a format can say nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsaid {
    /// They take what their neighbours take: the library would do worse without a row than with that one.
    AsNeighbours,
    /// They are left to the library.
    LeftOut,
}

/// Chooses for every row of a plan what `say` has words for: the pick, the library's best, its default. Of a collective that the plan
/// has ranges of and no rows (our own table is such a plan), the ranges are taken as they stand.
pub fn choices<K: Clone + PartialEq>(
    plan: &SavedPlan,
    unsaid: Unsaid,
    mut say: impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
) -> Choices<K> {
    let mut taken: Vec<(Collective, Bytes, Option<K>)> = Vec::with_capacity(plan.rows.len());
    let mut dropped: Vec<Dropped> = Vec::new();
    for row in &plan.rows {
        let key = choose(row, row.bytes, &mut say, &mut dropped);
        if key.is_some() || unsaid == Unsaid::LeftOut {
            taken.push((row.collective, row.bytes, key));
        }
    }
    let mut stretches = Stretch::merge(taken);
    for at in 0..stretches.len() {
        let collective = |place: usize| stretches.get(place).map(|one| one.collective);
        let (first, last) =
            (at.checked_sub(1).and_then(collective) != collective(at), collective(at + 1) != collective(at));
        if let Some(stretch) = stretches.get_mut(at) {
            stretch.min_bytes = if first { Bytes(0) } else { stretch.min_bytes };
            stretch.max_bytes = if last { LAST_BYTES } else { stretch.max_bytes };
        }
    }
    let said = stretches.into_iter().filter_map(|Stretch { collective, min_bytes, max_bytes, key }| {
        key.map(|key| Stretch { collective, min_bytes, max_bytes, key })
    });
    let mut stretches: Vec<Stretch<K>> = said.collect();
    for range in plan.ranges_alone() {
        let (collective, min_bytes, max_bytes) = (range.collective, range.min_bytes, range.max_bytes);
        let Some(key) = choose(&SavedRow::of(range), max_bytes, &mut say, &mut dropped) else { continue };
        match stretches.last_mut() {
            Some(last) if last.collective == collective && last.key == key && follows(last.max_bytes, min_bytes) => {
                last.max_bytes = max_bytes;
            }
            _ => stretches.push(Stretch { collective, min_bytes, max_bytes, key }),
        }
    }
    // Stable: sizes stay in order.
    stretches.sort_by_key(|stretch| stretch.collective);
    Choices { stretches, dropped }
}

fn follows(last: Bytes, next: Bytes) -> bool {
    last.0.checked_add(1) == Some(next.0)
}

/// What is said of a row, whose sizes end with `last`; where it is not the pick, what was dropped is noted.
fn choose<K>(
    row: &SavedRow,
    last: Bytes,
    say: &mut impl FnMut(&SavedRow, &SavedPick) -> Result<K, String>,
    dropped: &mut Vec<Dropped>,
) -> Option<K> {
    let reason = match say(row, &row.pick) {
        Ok(key) => return Some(key),
        Err(reason) => reason,
    };
    let others = row.best_of_library.iter().chain(&row.library_default);
    let other = others.into_iter().find_map(|other| Some((other, say(row, other).ok()?)));
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
