//! The library's default strategy, simulated like every other candidate.

use super::search::{Search, Watcher};
use super::{PlanError, Row, TimedStrategy};
use fabricast_collectives::strategy::{Strategy, check_combination};
use fabricast_libraries::Choice;

/// The library's default strategy with its simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct LibraryDefault {
    /// The choice in the library's terms, with the time that the library expects.
    pub choice: Choice,
    /// Simulated time and prediction interval of the choice.
    pub timed: TimedStrategy,
}

impl LibraryDefault {
    /// Slowdown of the library's default: its time divided by that of the selected strategy, minus one. Negative values
    /// are possible where fewer channels are preferred; they are then no larger than the value of the channels saved.
    #[must_use]
    pub fn default_slowdown(&self, pick: &TimedStrategy) -> f64 {
        self.timed.effective_time().time.0 as f64 / pick.effective_time().time.0.max(1) as f64 - 1.0
    }
}

/// Returns the library's default as a candidate if the restriction allows it, even if its channels or chunk are not in
/// the search space.
pub(super) fn candidate(search: &Search<'_>) -> Option<Strategy> {
    let choice = search.request.library?.choose(&search.call).ok()?;
    let strategy = normalize_chunk(search, choice.strategy);
    let restriction = search.request.restriction;
    let is_allowed = restriction.allows(&strategy, search.call.collective)
        && check_combination(strategy.algorithm, strategy.protocol, search.call.collective, &search.capabilities)
            .is_ok();
    is_allowed.then_some(strategy)
}

/// Adds the library's default to a row, or returns the reason why it is unknown.
pub(super) fn add(search: &Search<'_>, mut row: Row, watcher: Watcher<'_>) -> Result<(Row, Option<String>), PlanError> {
    let Some(chooser) = search.request.library else { return Ok((row, None)) };
    let choice = match chooser.choose(&search.call) {
        Ok(choice) => choice,
        Err(unknown) => return Ok((row, Some(unknown.to_string()))),
    };
    let strategy = normalize_chunk(search, choice.strategy);
    let known = row.pairs.iter().find(|timed| timed.strategy == strategy).copied();
    let timed = match known {
        Some(timed) => Ok(timed),
        None => search.simulate(strategy, watcher)?,
    };
    match timed {
        Ok(timed) => {
            row.library_default = Some(LibraryDefault { choice, timed });
            Ok((row, None))
        }
        Err(reason) => Ok((row, Some(format!("{} chooses {}: {reason}", chooser.library(), choice.name)))),
    }
}

/// Normalizes a strategy's chunk: removes it if the profile has no chunks, or if it equals the profile's default.
pub(super) fn normalize_chunk(search: &Search<'_>, strategy: Strategy) -> Strategy {
    let default = search.request.profile.protocol(strategy.protocol).chunk;
    let chunk = match (default, strategy.chunk) {
        (Some(default), Some(chosen)) if chosen != default => Some(chosen),
        _ => None,
    };
    Strategy { chunk, ..strategy }
}
