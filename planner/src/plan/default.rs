//! What the library would have chosen by itself, priced by the same simulation as everything else.

use super::search::{Search, Watcher};
use super::{PlanError, Priced, Row};
use crate::library::Choice;
use crate::strategy::{Strategy, combination};

/// The library's own choice and what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct LibraryDefault {
    /// The library's own words for it, and what it expects itself.
    pub choice: Choice,
    /// The same strategy, simulated.
    pub priced: Priced,
}

impl LibraryDefault {
    /// Its time over the pick's, less one: what leaving the choice to the library costs. Where the pick was free to be
    /// the library's, it is below zero by no more than fewer channels are worth.
    #[must_use]
    pub fn regret(&self, pick: &Priced) -> f64 {
        self.priced.counted().time.0 as f64 / pick.counted().time.0.max(1) as f64 - 1.0
    }
}

/// The library's choice as a candidate: it competes wherever the restriction allows it, though its channels or chunk
/// be others than those that are tried anyway.
pub(super) fn candidate(search: &Search<'_>) -> Option<Strategy> {
    let choice = search.request.library?.choose(&search.call).ok()?;
    let strategy = as_simulated(search, choice.strategy);
    let restriction = search.request.restriction;
    let free = restriction.allows(&strategy, search.call.collective)
        && combination(strategy.algorithm, strategy.protocol, search.call.collective, &search.abilities).is_ok();
    free.then_some(strategy)
}

/// Adds the library's choice to a row, or says why it is not known.
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

/// A profile without chunks moves whole ones, whoever chose them; a chunk that is the profile's own needs no mention.
pub(super) fn as_simulated(search: &Search<'_>, strategy: Strategy) -> Strategy {
    let own = search.request.profile.protocol(strategy.protocol).chunk;
    let chunk = match (own, strategy.chunk) {
        (Some(own), Some(chosen)) if chosen != own => Some(chosen),
        _ => None,
    };
    Strategy { chunk, ..strategy }
}
