//! Simulations of large groups that a free thread makes before their turn.
//!
//! A search simulates one strategy after the other, since each says of the next whether it is worth it. Of large groups, where that takes
//! seconds, what is likely to be next is simulated beside; in its turn it is judged as if it had been simulated then, so that what is
//! found does not depend on how many threads there are.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use super::PlanError;
use super::search::Outcome;
use crate::strategy::Strategy;

/// Ranks from which on a simulation takes long enough.
const LARGE: u32 = 1024;

/// A strategy, and the time until which it is simulated.
pub(super) type Limited = (Strategy, Option<Picos>);

/// What was simulated before its turn, and until when.
#[derive(Default)]
pub(super) struct Ahead(FxHashMap<Strategy, (Option<Picos>, Result<Outcome, PlanError>)>);

impl Ahead {
    /// What `run` says of a strategy of so many ranks: what it said before, or what it says now, with what `next` names beside where a
    /// thread is free for it.
    pub(super) fn or_run(
        &mut self,
        (strategy, until): Limited,
        ranks: u32,
        run: impl Fn(Limited) -> Result<Outcome, PlanError> + Sync,
        next: impl FnOnce() -> Option<Limited>,
    ) -> Result<Outcome, PlanError> {
        if let Some(known) = self.0.remove(&strategy).and_then(|made| judged(made, until)) {
            return known;
        }
        let has_time = ranks >= LARGE && rayon::current_num_threads() > 1;
        let Some((other, limit)) = has_time.then(next).flatten() else { return run((strategy, until)) };
        let (outcome, beside) = rayon::join(|| run((strategy, until)), || run((other, limit)));
        self.0.insert(other, (limit, beside));
        outcome
    }
}

/// What a simulation until `made` would have said until this time; `None` where it was given up too early to tell.
fn judged(
    (made, outcome): (Option<Picos>, Result<Outcome, PlanError>),
    until: Option<Picos>,
) -> Option<Result<Outcome, PlanError>> {
    match outcome {
        Ok(Outcome::Time(priced)) if until.is_some_and(|until| priced.time > until) => Some(Ok(Outcome::TooLate)),
        Ok(Outcome::TooLate) if made.is_some_and(|made| until.is_none_or(|until| made < until)) => None,
        outcome => Some(outcome),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fabricast_sim::schedule::Protocol;

    use super::super::Priced;
    use super::*;
    use crate::algorithm::Algorithm;

    fn ring(channels: u16) -> Strategy {
        Strategy { algorithm: Algorithm::Ring, protocol: Protocol::Simple, channels, threads: None, chunk: None }
    }

    /// As many picoseconds as it has channels; none on ten.
    fn simulated((strategy, until): Limited) -> Result<Outcome, PlanError> {
        let time = Picos(strategy.channels.into());
        if strategy.channels == 10 {
            let (possible, rejected) = (Vec::new(), Vec::new());
            let collective = fabricast_sim::schedule::Collective::Broadcast;
            return Err(PlanError::NothingToChoose { collective, rejected, possible });
        }
        if until.is_some_and(|until| time > until) {
            return Ok(Outcome::TooLate);
        }
        let (low, high) = (time, time);
        Ok(Outcome::Time(Priced { strategy, time, low, high, busiest: None, measured: None }))
    }

    fn told(outcome: &Result<Outcome, PlanError>) -> String {
        match outcome {
            Ok(Outcome::Time(priced)) => format!("{:?}", priced.time),
            Ok(Outcome::TooLate) => "too late".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Whatever is guessed to be next, and until when, each turn says what it says without guesses.
    #[test]
    fn what_was_simulated_before_its_turn_is_judged_in_it() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let limits = [None, Some(Picos(5)), Some(Picos(7)), Some(Picos(20))];
        for first in limits {
            for (channels, guessed, limit) in [5u16, 7, 8, 10]
                .into_iter()
                .flat_map(|channels| limits.map(|guessed| (channels, guessed)))
                .flat_map(|(channels, guessed)| limits.map(|limit| (channels, guessed, limit)))
            {
                let runs = AtomicUsize::new(0);
                let run = |limited: Limited| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    simulated(limited)
                };
                let (mut ahead, next) = (Ahead::default(), ring(channels));
                let own = pool.install(|| ahead.or_run((ring(6), first), LARGE, run, || Some((next, guessed))));
                assert_eq!(told(&own), told(&simulated((ring(6), first))));
                assert_eq!(runs.load(Ordering::Relaxed), 2);
                let other = pool.install(|| ahead.or_run((next, limit), LARGE, run, || None));
                assert_eq!(told(&other), told(&simulated((next, limit))), "{channels} {guessed:?} {limit:?}");
            }
        }
    }

    #[test]
    fn nothing_is_guessed_of_few_ranks() {
        let outcome = Ahead::default().or_run((ring(6), None), LARGE - 1, simulated, || panic!("asked for a guess"));
        assert_eq!(told(&outcome), told(&simulated((ring(6), None))));
    }
}
