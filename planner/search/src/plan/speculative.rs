//! Speculative simulation of candidates of large groups on an idle thread.
//!
//! A search simulates one strategy after another, because each result determines whether the next simulation is needed.
//! A simulation of a large group takes seconds, so the likely next candidate is simulated concurrently. Its result is
//! used only when the search reaches that candidate, so the outcome does not depend on the number of threads.

use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

use super::{PlanError, TimedStrategy};
use fabricast_collectives::strategy::Strategy;

/// Minimum number of ranks for speculation; simulations of smaller groups take too little time.
const LARGE: u32 = 1024;

/// Outcome of the simulation of a strategy.
pub(super) enum Outcome {
    Time(TimedStrategy),
    /// The strategy's time exceeds the time limit.
    TimeLimitExceeded,
}

/// Strategy to simulate, and the limit on its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrategyRun {
    pub(super) strategy: Strategy,
    /// Simulated time at which the simulation is aborted; `None` for no limit.
    pub(super) time_limit: Option<Picos>,
}

/// Result of a speculative simulation.
struct SpeculativeResult {
    /// Simulated time at which the simulation was to be aborted; `None` for no limit.
    time_limit: Option<Picos>,
    outcome: Result<Outcome, PlanError>,
}

/// Results of speculative simulations.
#[derive(Default)]
pub(super) struct SpeculativeRuns(FxHashMap<Strategy, SpeculativeResult>);

impl SpeculativeRuns {
    /// Returns the outcome of a strategy of `ranks` ranks: the speculative outcome if there is one, otherwise the
    /// outcome of `run`. During `run`, the strategy returned by `next` is simulated concurrently if the group is large
    /// and there are several threads.
    pub(super) fn take_or_run(
        &mut self,
        current: StrategyRun,
        ranks: u32,
        run: impl Fn(StrategyRun) -> Result<Outcome, PlanError> + Sync,
        next: impl FnOnce() -> Option<StrategyRun>,
    ) -> Result<Outcome, PlanError> {
        if let Some(outcome) =
            self.0.remove(&current.strategy).and_then(|result| outcome_within(result, current.time_limit))
        {
            return outcome;
        }
        let runs_ahead = ranks >= LARGE && rayon::current_num_threads() > 1;
        let Some(next) = runs_ahead.then(next).flatten() else { return run(current) };
        let (outcome, speculative) = rayon::join(|| run(current), || run(next));
        self.0.insert(next.strategy, SpeculativeResult { time_limit: next.time_limit, outcome: speculative });
        outcome
    }
}

/// Returns the outcome that a simulation with limit `time_limit` would have had, given a speculative result; `None` if
/// that simulation was aborted too early to decide.
fn outcome_within(result: SpeculativeResult, time_limit: Option<Picos>) -> Option<Result<Outcome, PlanError>> {
    let SpeculativeResult { time_limit: simulated_limit, outcome } = result;
    match outcome {
        Ok(Outcome::Time(timed)) if time_limit.is_some_and(|time_limit| timed.time > time_limit) => {
            Some(Ok(Outcome::TimeLimitExceeded))
        }
        Ok(Outcome::TimeLimitExceeded)
            if simulated_limit
                .is_some_and(|simulated_limit| time_limit.is_none_or(|time_limit| simulated_limit < time_limit)) =>
        {
            None
        }
        outcome => Some(outcome),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fabricast_sim::schedule::Protocol;

    use super::super::TimedStrategy;
    use super::*;
    use fabricast_collectives::algorithm::Algorithm;

    fn ring(channels: u16) -> Strategy {
        Strategy::new(Algorithm::Ring, Protocol::Simple, channels)
    }

    fn limit_run(strategy: Strategy, time_limit: Option<Picos>) -> StrategyRun {
        StrategyRun { strategy, time_limit }
    }

    /// Simulated time: one picosecond per channel; an error for ten channels.
    fn simulated(StrategyRun { strategy, time_limit }: StrategyRun) -> Result<Outcome, PlanError> {
        let time = Picos(strategy.channels.into());
        if strategy.channels == 10 {
            let collective = fabricast_sim::schedule::Collective::Broadcast;
            let (rejected, named, possible) = (Vec::new(), Vec::new(), Vec::new());
            return Err(PlanError::NothingToChoose { collective, rejected, named, possible });
        }
        if time_limit.is_some_and(|time_limit| time > time_limit) {
            return Ok(Outcome::TimeLimitExceeded);
        }
        let (low, high) = (time, time);
        Ok(Outcome::Time(TimedStrategy { strategy, time, low, high, busiest: None, measured: None }))
    }

    fn describe(outcome: &Result<Outcome, PlanError>) -> String {
        match outcome {
            Ok(Outcome::Time(timed)) => format!("{:?}", timed.time),
            Ok(Outcome::TimeLimitExceeded) => "too late".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Each strategy has the same outcome with and without speculation, for any strategies and limits that are
    /// simulated speculatively.
    #[test]
    fn speculative_outcomes_equal_outcomes_in_turn() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let limits = [None, Some(Picos(5)), Some(Picos(7)), Some(Picos(20))];
        for first in limits {
            for (channels, guessed, limit) in [5u16, 7, 8, 10]
                .into_iter()
                .flat_map(|channels| limits.map(|guessed| (channels, guessed)))
                .flat_map(|(channels, guessed)| limits.map(|limit| (channels, guessed, limit)))
            {
                let runs = AtomicUsize::new(0);
                let run = |limited: StrategyRun| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    simulated(limited)
                };
                let (mut speculative, next) = (SpeculativeRuns::default(), ring(channels));
                let first_outcome = pool.install(|| {
                    speculative.take_or_run(limit_run(ring(6), first), LARGE, run, || Some(limit_run(next, guessed)))
                });
                assert_eq!(describe(&first_outcome), describe(&simulated(limit_run(ring(6), first))));
                assert_eq!(runs.load(Ordering::Relaxed), 2);
                let next_outcome =
                    pool.install(|| speculative.take_or_run(limit_run(next, limit), LARGE, run, || None));
                assert_eq!(
                    describe(&next_outcome),
                    describe(&simulated(limit_run(next, limit))),
                    "{channels} {guessed:?} {limit:?}"
                );
            }
        }
    }

    #[test]
    fn small_groups_are_not_simulated_ahead() {
        let outcome = SpeculativeRuns::default()
            .take_or_run(limit_run(ring(6), None), LARGE - 1, simulated, || panic!("asked for a guess"));
        assert_eq!(describe(&outcome), describe(&simulated(limit_run(ring(6), None))));
    }
}
