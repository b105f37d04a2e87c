//! Simulated strategies of a search, and the pruning rules that follow from them.

use fabricast_topologies::Picos;

use super::TimedStrategy;
use fabricast_collectives::strategy::Strategy;

/// Relative speed-up required to prefer a strategy with more channels. Each channel occupies a thread block that the
/// application cannot use.
const MIN_CHANNEL_SPEEDUP: f64 = 0.01;

/// Simulated strategies by algorithm and protocol.
#[derive(Debug, Default)]
pub(super) struct SimulatedCandidates {
    pairs: Vec<Vec<TimedStrategy>>,
}

impl SimulatedCandidates {
    pub(super) fn insert(&mut self, timed: TimedStrategy) {
        match self.pairs.iter_mut().find(|pair| contains_pair(pair, timed.strategy)) {
            Some(pair) => pair.push(timed),
            None => self.pairs.push(vec![timed]),
        }
    }

    /// Returns the time of a strategy that was simulated.
    pub(super) fn get(&self, strategy: Strategy) -> Option<TimedStrategy> {
        self.find(|simulated| simulated == strategy)
    }

    /// Returns a simulated strategy that satisfies a condition.
    pub(super) fn find(&self, is_wanted: impl Fn(Strategy) -> bool) -> Option<TimedStrategy> {
        self.pairs.iter().flatten().find(|timed| is_wanted(timed.strategy)).copied()
    }

    /// Returns the best strategy of each algorithm and protocol, fastest first: the one with the fewest channels within
    /// [`MIN_CHANNEL_SPEEDUP`] of the fastest.
    pub(super) fn best_per_pair(&self) -> Vec<TimedStrategy> {
        let mut pairs: Vec<TimedStrategy> = self.pairs.iter().filter_map(|pair| best(pair)).collect();
        pairs.sort_by_key(|p| (p.time, p.strategy));
        pairs
    }

    /// Returns the fastest strategy; of equally fast ones, the one with the fewest channels.
    pub(super) fn fastest(&self) -> Option<TimedStrategy> {
        let all = self.pairs.iter().flatten();
        all.min_by_key(|p| (p.time, p.strategy.channels, p.strategy)).copied()
    }

    /// Returns true if a strategy with this lower bound could be faster than all simulated ones.
    pub(super) fn may_be_fastest(&self, lower_bound: Picos) -> bool {
        self.fastest().is_none_or(|fastest| lower_bound < fastest.time)
    }

    /// Returns the longest time with which a strategy can still be selected, become the runner-up, or be preferred to
    /// one of these with the same algorithm and protocol. The time of a pair's preferred strategy never exceeds
    /// `preference_limit` for any other simulated strategies of the pair.
    pub(super) fn time_limit(&self, strategy: Strategy) -> Option<Picos> {
        let mut limits: Vec<Picos> = self.pairs.iter().filter_map(|pair| preference_limit(pair)).collect();
        limits.sort_unstable();
        let pair_limit = self.pair(strategy).and_then(preference_limit);
        pair_limit.into_iter().chain(limits.get(1).copied()).min()
    }

    /// Longest time with which any strategy can be preferred to all simulated ones.
    pub(super) fn best_time_limit(&self) -> Option<Picos> {
        self.fastest().map(|fastest| preference_limit_for(fastest.time))
    }

    /// Returns true if the simulated strategies limit the time of every other one: two pairs of algorithm and protocol have
    /// been simulated.
    pub(super) fn has_time_limit(&self) -> bool {
        self.pairs.len() > 1
    }

    /// Returns true if a simulated strategy with fewer channels and the same algorithm and protocol is preferred in any
    /// case: even if this strategy finished at its lower bound, the other one would be within [`MIN_CHANNEL_SPEEDUP`]
    /// of it.
    pub(super) fn is_dominated_by_fewer_channels(&self, lower_bound: Picos, strategy: Strategy) -> bool {
        let best = self.pair(strategy).and_then(best);
        best.is_some_and(|best| {
            best.strategy.channels < strategy.channels && best.time <= preference_limit_for(lower_bound)
        })
    }

    /// Finds a wanted pruned strategy with the algorithm and protocol of one of the `first` best pairs but fewer channels,
    /// whose lower bound is within [`MIN_CHANNEL_SPEEDUP`] of the fastest with that algorithm and protocol. Returns its
    /// index in `pruned` and the time limit of its simulation.
    pub(super) fn find_preferable_pruned(
        &self,
        pruned: &[(Picos, Strategy)],
        first: usize,
        is_wanted: impl Fn(&Strategy) -> bool,
    ) -> Option<(usize, Picos)> {
        let mut pairs: Vec<(TimedStrategy, Picos)> =
            self.pairs.iter().filter_map(|pair| Some((best(pair)?, preference_limit(pair)?))).collect();
        pairs.sort_by_key(|(best, _)| (best.time, best.strategy));
        pairs.into_iter().take(first).find_map(|(best, limit)| {
            let may_represent = |&(lower_bound, s): &(Picos, Strategy)| {
                same_pair(s, best.strategy)
                    && s.channels < best.strategy.channels
                    && lower_bound <= limit
                    && is_wanted(&s)
            };
            Some((pruned.iter().position(may_represent)?, limit))
        })
    }

    fn pair(&self, strategy: Strategy) -> Option<&[TimedStrategy]> {
        self.pairs.iter().find(|pair| contains_pair(pair, strategy)).map(Vec::as_slice)
    }
}

fn contains_pair(pair: &[TimedStrategy], strategy: Strategy) -> bool {
    pair.iter().any(|p| same_pair(p.strategy, strategy))
}

/// Returns true if two strategies have the same algorithm and protocol.
#[must_use]
pub fn same_pair(a: Strategy, b: Strategy) -> bool {
    (a.algorithm, a.protocol) == (b.algorithm, b.protocol)
}

/// Longest time at which a strategy with fewer channels is preferred to the fastest one with the same algorithm and
/// protocol.
fn preference_limit(pair: &[TimedStrategy]) -> Option<Picos> {
    pair.iter().map(|p| p.time).min().map(preference_limit_for)
}

/// Longest time at which a strategy with fewer channels is preferred to one that finishes at `fastest`: 1 % more.
#[must_use]
pub fn preference_limit_for(fastest: Picos) -> Picos {
    Picos((fastest.0 as f64 * (1.0 + MIN_CHANNEL_SPEEDUP)) as u64)
}

fn best(pair: &[TimedStrategy]) -> Option<TimedStrategy> {
    let limit = preference_limit(pair)?;
    pair.iter().filter(|p| p.time <= limit).min_by_key(|p| (p.strategy.channels, p.time, p.strategy)).copied()
}
