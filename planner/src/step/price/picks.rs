//! What calls are done with: the fastest with all groups at once, of what one group by itself finds fast.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::super::fewer::Growth;
use super::super::of_many::CHANNELS_OF_MANY;
use super::super::together::Planned;
use super::{Asked, LOOKED_AT, MOST_TOGETHER, Simulated, Timed};
use crate::job::Collectives;
use crate::plan::{PlanError, same_pair, worth_of_time};
use crate::strategy::Strategy;

/// Bytes in all from which on the ways of groups of some dozen ranks keep their order but for what is near: with half of it the channels
/// that 800 Gb/s want are passed over.
const LOOKED_AT_IN_ALL: u64 = 512 << 20;

/// The most bytes at which ways are looked for among so many ranks.
pub(super) fn looked_at(ranks: usize) -> Bytes {
    Bytes((LOOKED_AT * ranks as u64).max(LOOKED_AT_IN_ALL))
}

/// Of larger calls those ways are compared that take at most so many times as long as the fastest when [`looked_at`],
const AS_FAST: u64 = 2;

/// and no more than so many.
const FEW: usize = 6;

/// Ways that are simulated at once beyond [`MOST_TOGETHER`] ranks, before it is known whether the first leaves anything to the second: each takes seconds, and few
/// calls are asked about.
const AT_ONCE: usize = 2;

impl Simulated<'_> {
    /// What groups of many do a call with.
    pub(super) fn pick(&self, parties: &[Vec<NodeId>], asked: Asked) -> Result<Option<Strategy>, PlanError> {
        let Asked { collective, bytes, allowed, .. } = asked;
        let Some(first) = parties.first() else { return Ok(None) };
        let most = looked_at(first.len());
        let near = bytes.0.checked_next_power_of_two().map_or(most, |near| most.min(Bytes(near)));
        if bytes <= most {
            let find = || Ok(self.best(parties, (collective, near), allowed)?.strategy);
            return self.picked.or_find(asked.of(near), find);
        }
        self.picked.or_find(asked, || self.pick_of_large(parties, (collective, bytes), (most, allowed)))
    }

    /// The same of a call that is larger than `most`, at which ways are looked for: by those that are fast there, rings of these
    /// on as many channels as are tried, since a search leaves out what is little faster there.
    fn pick_of_large(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        (most, collectives): (Bytes, Collectives),
    ) -> Result<Option<Strategy>, PlanError> {
        let Some(first) = parties.first() else { return Ok(None) };
        let ways = self.ways(first, (collective, most), collectives)?;
        let fastest = ways.first().map_or(Picos::ZERO, |way| way.0);
        let fast = ways.into_iter().take_while(|way| way.0.0 <= fastest.0.saturating_mul(AS_FAST)).take(FEW);
        let on_others = |strategy: Strategy| {
            let is_ring = Growth::of(strategy.algorithm, collective) == Some(Growth::ByRank);
            let others =
                CHANNELS_OF_MANY.into_iter().filter(move |_| is_ring && CHANNELS_OF_MANY.contains(&strategy.channels));
            std::iter::once(strategy.channels).chain(others).map(move |channels| Strategy { channels, ..strategy })
        };
        let mut fast: Vec<Strategy> = fast.flat_map(|way| on_others(way.1)).collect();
        fast.sort_unstable();
        fast.dedup();
        let among = |parties: &[Vec<NodeId>], strategy| self.taken(parties, &Planned { collective, bytes, strategy });
        let alone = |&strategy: &Strategy| Ok((among(std::slice::from_ref(first), strategy)?, strategy));
        // (The first that goes wrong is told, whichever comes first.)
        let ways: Vec<Result<_, PlanError>> = fast.par_iter().with_max_len(1).map(alone).collect();
        let mut ways = ways.into_iter().collect::<Result<Vec<_>, _>>()?;
        ways.sort_unstable();
        let best = self.best_of(&ways, |&(_, strategy)| among(parties, strategy))?;
        // Fewer channels, which leave SMs to others, where more are worth little; as `plan` prefers them.
        let Some(strategy) = best.strategy else { return Ok(None) };
        let mut fewer: Vec<Strategy> = ways.iter().map(|way| way.1).collect();
        fewer.retain(|&one| same_pair(one, strategy) && one.channels < strategy.channels);
        fewer.sort_unstable_by_key(|one| (one.channels, *one));
        for one in fewer {
            if among(parties, one)? <= worth_of_time(best.time) {
                return Ok(Some(one));
            }
        }
        Ok(Some(strategy))
    }

    /// What is best with all groups at once, of what was simulated for the first alone.
    pub(super) fn best(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Timed, PlanError> {
        let first = parties.first().map(Vec::as_slice).unwrap_or_default();
        let ways = self.ways(first, (collective, bytes), collectives)?;
        self.best_of(&ways, |&way| self.with_all(parties, (collective, bytes), way))
    }

    /// The same of ways, the fastest alone first. Alone nothing takes longer than with others, so what takes longer alone than the best
    /// takes with all of them is not looked at.
    fn best_of(
        &self,
        ways: &[(Picos, Strategy)],
        with_all: impl Fn(&(Picos, Strategy)) -> Result<Picos, PlanError> + Sync,
    ) -> Result<Timed, PlanError> {
        let mut best: Option<(Picos, Strategy)> = None;
        let is_beaten = |best: Option<(Picos, Strategy)>, alone| best.is_some_and(|(time, _)| time <= alone);
        for some in ways.chunks(if self.ranks.len() > MOST_TOGETHER { AT_ONCE } else { 1 }) {
            if some.first().is_some_and(|&(alone, _)| is_beaten(best, alone)) {
                break;
            }
            let times = some.par_iter().with_max_len(1).map(&with_all);
            for (&(alone, strategy), time) in some.iter().zip(times.collect::<Vec<Result<Picos, PlanError>>>()) {
                // As if each had waited for those before it.
                if !is_beaten(best, alone) {
                    best = best.into_iter().chain([(time?, strategy)]).min();
                }
            }
        }
        let (time, strategy) = best.unzip();
        Ok(Timed { time: time.unwrap_or_default(), strategy })
    }

    /// What all groups at once take, done as one of them was.
    pub(super) fn with_all(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        (alone, strategy): (Picos, Strategy),
    ) -> Result<Picos, PlanError> {
        let in_part = self.told_in_part(parties, &Planned { collective, bytes, strategy });
        in_part.unwrap_or_else(|| self.slowest_knowing(parties, (collective, bytes), (alone, strategy)))
    }
}
