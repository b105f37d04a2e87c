//! The library's default strategy, simulated like every other candidate.

use super::search::{Search, Watcher};
use super::{PlanError, Priced, Row};
use crate::library::Choice;
use crate::strategy::{Strategy, combination};

/// The library's default strategy with its simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct LibraryDefault {
    /// The choice in the library's terms, with the time that the library expects.
    pub choice: Choice,
    /// Simulated time and prediction interval of the choice.
    pub priced: Priced,
}

impl LibraryDefault {
    /// Slowdown of the library's default: its time divided by that of the selected strategy, minus one. Negative values
    /// are possible where fewer channels are preferred; they are then no larger than the value of the channels saved.
    #[must_use]
    pub fn regret(&self, pick: &Priced) -> f64 {
        self.priced.counted().time.0 as f64 / pick.counted().time.0.max(1) as f64 - 1.0
    }
}

/// Returns the library's default as a candidate if the restriction allows it, even if its channels or chunk are not in
/// the search space.
pub(super) fn candidate(search: &Search<'_>) -> Option<Strategy> {
    let choice = search.request.library?.choose(&search.call).ok()?;
    let strategy = as_simulated(search, choice.strategy);
    let restriction = search.request.restriction;
    let free = restriction.allows(&strategy, search.call.collective)
        && combination(strategy.algorithm, strategy.protocol, search.call.collective, &search.abilities).is_ok();
    free.then_some(strategy)
}

/// Adds the library's default to a row, or returns the reason why it is unknown.
pub(super) fn add(search: &Search<'_>, mut row: Row, watcher: Watcher<'_>) -> Result<(Row, Option<String>), PlanError> {
    let Some(chooser) = search.request.library else { return Ok((row, None)) };
    let choice = match chooser.choose(&search.call) {
        Ok(choice) => choice,
        Err(unknown) => return Ok((row, Some(unknown.to_string()))),
    };
    let strategy = as_simulated(search, choice.strategy);
    let known = row.pairs.iter().find(|priced| priced.strategy == strategy).copied();
    let priced = match known {
        Some(priced) => Ok(priced),
        None => search.price(strategy, watcher)?,
    };
    match priced {
        Ok(priced) => {
            row.library_default = Some(LibraryDefault { choice, priced });
            Ok((row, None))
        }
        Err(why) => Ok((row, Some(format!("{} takes {}: {why}", chooser.library(), choice.name)))),
    }
}

/// Normalizes a strategy's chunk: removes it if the profile has no chunks, or if it equals the profile's default.
pub(super) fn as_simulated(search: &Search<'_>, strategy: Strategy) -> Strategy {
    let own = search.request.profile.protocol(strategy.protocol).chunk;
    let chunk = match (own, strategy.chunk) {
        (Some(own), Some(chosen)) if chosen != own => Some(chosen),
        _ => None,
    };
    Strategy { chunk, ..strategy }
}
