//! The library's default strategy, simulated like every other candidate.

use super::incumbents::Incumbents;
use super::row_search::Search;
use super::{PlanError, PlanRow, TimedStrategy};

use fabricast_libraries::Choice;
use fabricast_sim::monitor::Monitor;

/// The library's default strategy with its simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct LibraryDefault {
    /// The choice with the library's name for it, and the time that the library's cost model expects.
    pub choice: Choice,
    /// Simulated time and prediction interval of the choice.
    pub timed: TimedStrategy,
}

impl LibraryDefault {
    /// Slowdown of the library's default: its time divided by the time of the selected strategy, minus one. The value
    /// is negative if the selected strategy is slower because it saves channels; the difference is then at most the
    /// slowdown accepted for saving channels.
    #[must_use]
    pub fn default_slowdown(&self, pick: &TimedStrategy) -> f64 {
        self.timed.effective_time().time.0 as f64 / pick.effective_time().time.0.max(1) as f64 - 1.0
    }
}

/// Adds the library's default to a row, or returns the reason why it is unknown. `simulated`: strategies of the search
/// for the row.
pub(super) fn add(
    search: &Search<'_>,
    mut row: PlanRow,
    simulated: &Incumbents<'_>,
    monitor: Monitor<'_>,
) -> Result<(PlanRow, Option<String>), PlanError> {
    let Some(chooser) = search.request.library else { return Ok((row, None)) };
    let choice = match chooser.choose(&search.call) {
        Ok(choice) => choice,
        Err(unknown) => return Ok((row, Some(unknown.to_string()))),
    };
    let strategy = search.normalize_chunk(choice.strategy);
    let timed = match simulated.all.get(strategy) {
        Some(timed) => Ok(timed),
        None => search.simulate(strategy, monitor)?,
    };
    match timed {
        Ok(timed) => {
            row.library_default = Some(LibraryDefault { choice, timed });
            Ok((row, None))
        }
        Err(reason) => Ok((row, Some(format!("{} chooses {}: {reason}", chooser.library(), choice.name)))),
    }
}
