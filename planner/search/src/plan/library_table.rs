//! Derivation of a library's table from a plan over all software. An entry is the best strategy that the library can
//! run if its prediction interval is below that of the library's default (as in a plan for the library alone), and
//! otherwise the default.

use super::{PlanRequest, PlanRow, Preference, TimedStrategy, preference, smoothing};
use crate::candidates::Restriction;
use fabricast_libraries::LibraryCapabilities;

/// Returns the table entry for each row, in order of collective and size; `None` if no simulated strategy belongs to
/// the library.
#[must_use]
pub fn library_table(
    request: &PlanRequest<'_>,
    capabilities: LibraryCapabilities,
    rows: &[PlanRow],
) -> Vec<Option<TimedStrategy>> {
    let restriction = Restriction { library: Some(capabilities), ..request.restriction.clone() };
    let library_row = |row: &PlanRow| -> Option<PlanRow> {
        let is_allowed = |timed: &TimedStrategy| restriction.allows(&timed.strategy, row.collective);
        let default = row.library_default.as_ref().map(|default| default.timed).filter(is_allowed);
        let mut pairs = row.library_pairs.clone();
        if let Some(default) = default.filter(|default| pairs.iter().all(|pair| pair.strategy != default.strategy)) {
            pairs.push(default);
        }
        pairs.sort_by_key(|pair| (pair.effective_time().time, pair.strategy));
        let pick = *pairs.first()?;
        let row = PlanRow { pick, pairs, preference: Preference::Fastest, ..row.clone() };
        Some(preference::select_default_if_unclear(row, &restriction))
    };
    let library_rows: Vec<Option<PlanRow>> = rows.iter().map(library_row).collect();
    let mut present: Vec<PlanRow> = library_rows.iter().flatten().cloned().collect();
    smoothing::smooth(&mut present, &restriction);
    let mut smoothed = present.into_iter();
    library_rows.into_iter().map(|row| row.and_then(|_| smoothed.next()).map(|row| row.pick)).collect()
}
