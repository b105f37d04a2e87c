//! Simulated strategies of a search, and the pruning rules that follow from them.

use fabricast_topologies::Picos;

use super::Priced;
use crate::strategy::Strategy;

/// Relative speed-up that more channels must bring: each channel costs the application a thread block.
const CHANNELS_WORTH: f64 = 0.01;

/// Simulated strategies by algorithm and protocol.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pairs: Vec<Vec<Priced>>,
}

impl Kept {
    pub(super) fn keep(&mut self, priced: Priced) {
        match self.pairs.iter_mut().find(|pair| is_of(pair, priced.strategy)) {
            Some(pair) => pair.push(priced),
            None => self.pairs.push(vec![priced]),
        }
    }

    /// Returns the best strategy of each algorithm and protocol, fastest first: the one with the fewest channels within
    /// [`CHANNELS_WORTH`] of the fastest.
    pub(super) fn best(&self) -> Vec<Priced> {
        let mut pairs: Vec<Priced> = self.pairs.iter().filter_map(|pair| best(pair)).collect();
        pairs.sort_by_key(|p| (p.time, p.strategy));
        pairs
    }

    /// Returns the fastest strategy; of equals, the one with the fewest channels.
    pub(super) fn fastest(&self) -> Option<Priced> {
        let all = self.pairs.iter().flatten();
        all.min_by_key(|p| (p.time, p.strategy.channels, p.strategy)).copied()
    }

    /// Returns true if a strategy with lower bound `least` could be faster than all simulated ones.
    pub(super) fn may_lead(&self, least: Picos) -> bool {
        self.fastest().is_none_or(|fastest| least < fastest.time)
    }

    /// Returns true if a strategy with lower bound `least` could still be selected or become the runner-up.
    pub(super) fn can_matter(&self, least: Picos, strategy: Strategy) -> bool {
        self.latest(strategy).is_none_or(|latest| least <= latest)
    }

    /// Returns the latest end time at which a strategy can still be selected or become the runner-up, or be preferred
    /// to such a strategy of its own pair. The time of a pair's representative never exceeds `worth_of`, whatever else
    /// is simulated of the pair.
    pub(super) fn latest(&self, strategy: Strategy) -> Option<Picos> {
        let mut worths: Vec<Picos> = self.pairs.iter().filter_map(|pair| worth_of(pair)).collect();
        worths.sort_unstable();
        let own = self.of_pair(strategy).and_then(worth_of);
        own.into_iter().chain(worths.get(1).copied()).min()
    }

    /// Returns true if fewer channels of the same algorithm and protocol are known to be good enough: even if this
    /// strategy finished in `least`, they would be within [`CHANNELS_WORTH`] of it, and preferred.
    pub(super) fn is_settled(&self, least: Picos, strategy: Strategy) -> bool {
        let best = self.of_pair(strategy).and_then(best);
        best.is_some_and(|best| best.strategy.channels < strategy.channels && best.time <= worth_of_time(least))
    }

    /// Finds a pruned strategy that has fewer channels than the selected one or the runner-up, and may be within
    /// [`CHANNELS_WORTH`] of its pair's fastest. It would then represent the pair. Returns its index in `passed_over`
    /// and the time limit for its simulation.
    pub(super) fn preferable(&self, passed_over: &[(Picos, Strategy)]) -> Option<(usize, Picos)> {
        let mut pairs: Vec<(Priced, Picos)> =
            self.pairs.iter().filter_map(|pair| Some((best(pair)?, worth_of(pair)?))).collect();
        pairs.sort_by_key(|(best, _)| (best.time, best.strategy));
        pairs.into_iter().take(2).find_map(|(best, worth)| {
            let stands = |&(least, s): &(Picos, Strategy)| {
                same_pair(s, best.strategy) && s.channels < best.strategy.channels && least <= worth
            };
            Some((passed_over.iter().position(stands)?, worth))
        })
    }

    fn of_pair(&self, strategy: Strategy) -> Option<&[Priced]> {
        self.pairs.iter().find(|pair| is_of(pair, strategy)).map(Vec::as_slice)
    }
}

fn is_of(pair: &[Priced], strategy: Strategy) -> bool {
    pair.iter().any(|p| same_pair(p.strategy, strategy))
}

pub(crate) fn same_pair(a: Strategy, b: Strategy) -> bool {
    (a.algorithm, a.protocol) == (b.algorithm, b.protocol)
}

/// Longest time at which fewer channels are preferred.
fn worth_of(pair: &[Priced]) -> Option<Picos> {
    pair.iter().map(|p| p.time).min().map(worth_of_time)
}

pub(crate) fn worth_of_time(fastest: Picos) -> Picos {
    Picos((fastest.0 as f64 * (1.0 + CHANNELS_WORTH)) as u64)
}

fn best(pair: &[Priced]) -> Option<Priced> {
    let limit = worth_of(pair)?;
    pair.iter().filter(|p| p.time <= limit).min_by_key(|p| (p.strategy.channels, p.time, p.strategy)).copied()
}
