//! What a search knows of the strategies that it simulated, and what it need not look at any more.

use fabricast_topologies::Picos;

use super::Priced;
use crate::strategy::Strategy;

/// A channel is a thread block that the application does without: more of them must be faster by this part.
const CHANNELS_WORTH: f64 = 0.01;

/// What was simulated, by algorithm and protocol.
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

    /// The best of each algorithm and protocol, fastest first: the fewest channels that come within [`CHANNELS_WORTH`]
    /// of the fastest.
    pub(super) fn best(&self) -> Vec<Priced> {
        let mut pairs: Vec<Priced> = self.pairs.iter().filter_map(|pair| best(pair)).collect();
        pairs.sort_by_key(|p| (p.time, p.strategy));
        pairs
    }

    /// The fastest of all; of several the one of fewest channels.
    pub(super) fn fastest(&self) -> Option<Priced> {
        let all = self.pairs.iter().flatten();
        all.min_by_key(|p| (p.time, p.strategy.channels, p.strategy)).copied()
    }

    /// Whether a strategy with this lower bound could be faster than all that were simulated.
    pub(super) fn may_lead(&self, least: Picos) -> bool {
        self.fastest().is_none_or(|fastest| least < fastest.time)
    }

    /// Whether a strategy that takes at least `least` could still be the pick or the runner-up.
    pub(super) fn can_matter(&self, least: Picos, strategy: Strategy) -> bool {
        self.latest(strategy).is_none_or(|latest| least <= latest)
    }

    /// The latest that a strategy may end and still be the pick or the runner-up, or be preferred to those of its pair that
    /// are. Whatever else is simulated of a pair, what it is kept for takes no longer than `worth_of` says.
    pub(super) fn latest(&self, strategy: Strategy) -> Option<Picos> {
        let mut worths: Vec<Picos> = self.pairs.iter().filter_map(|pair| worth_of(pair)).collect();
        worths.sort_unstable();
        let own = self.of_pair(strategy).and_then(worth_of);
        own.into_iter().chain(worths.get(1).copied()).min()
    }

    /// Whether what is known of the same algorithm and protocol with fewer channels is good enough: even if this strategy
    /// were done in `least`, fewer channels would be within [`CHANNELS_WORTH`] of it, and preferred.
    pub(super) fn is_settled(&self, least: Picos, strategy: Strategy) -> bool {
        let best = self.of_pair(strategy).and_then(best);
        best.is_some_and(|best| best.strategy.channels < strategy.channels && best.time <= worth_of_time(least))
    }

    /// Of what was passed over, one that has fewer channels than the pick or the runner-up and may be within
    /// [`CHANNELS_WORTH`] of its pair's fastest: then it stands for the pair, which is second to others. With the time
    /// until which that is so.
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

/// The longest time for which fewer channels are preferred.
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
