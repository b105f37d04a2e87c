//! What calls are done with: the fastest with all groups at once, of what one group by itself finds fast.

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::super::fewer::Growth;
use super::super::of_many::{CHANNELS_OF_MANY, Kind};
use super::super::together::Planned;
use super::{Asked, LOOKED_AT, MOST_TOGETHER, Simulated, Timed};
use crate::algorithm::Algorithm;
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

/// From so many ranks on it is looked at what ways need of the busiest link, before they are simulated with all groups.
const MANY_TOGETHER: usize = 512;

/// A way and what is known of it before it is simulated with all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    /// What it takes at least with all groups.
    least: Picos,
    /// What it takes alone.
    alone: Picos,
    strategy: Strategy,
}

/// What a call takes with all groups, and how.
type Best = (Picos, Strategy);

/// Whether groups are of so many ranks together that simulating ways takes longer than looking at what they need of links.
fn are_many(parties: &[Vec<NodeId>]) -> bool {
    parties.len() > 1 && parties.iter().map(Vec::len).sum::<usize>() > MANY_TOGETHER
}

impl Simulated<'_> {
    /// What groups of many do a call with, and at what size it was found: what it takes there with all of them.
    pub(super) fn pick(&self, parties: &[Vec<NodeId>], asked: Asked) -> Result<(Bytes, Timed), PlanError> {
        let Asked { collective, bytes, allowed, .. } = asked;
        let Some(first) = parties.first() else { return Ok((bytes, Timed::default())) };
        let most = looked_at(first.len());
        let near = bytes.0.checked_next_power_of_two().map_or(most, |near| most.min(Bytes(near)));
        if bytes <= most {
            let find = || self.best(parties, (collective, near), allowed).map(Some);
            return Ok((near, self.picked.or_find(asked.of(near), find)?.unwrap_or_default()));
        }
        let find = || self.pick_of_large(parties, (collective, bytes), (most, allowed)).map(Some);
        Ok((bytes, self.picked.or_find(asked, find)?.unwrap_or_default()))
    }

    /// The same of a call that is larger than `most`, at which ways are looked for: by those that are fast there, rings of these
    /// on as many channels as are tried, since a search leaves out what is little faster there.
    fn pick_of_large(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        (most, collectives): (Bytes, Collectives),
    ) -> Result<Timed, PlanError> {
        let Some(first) = parties.first() else { return Ok(Timed::default()) };
        let on_others = |strategy: Strategy| {
            let is_ring = Growth::of(strategy.algorithm, collective) == Some(Growth::ByRank);
            let others =
                CHANNELS_OF_MANY.into_iter().filter(move |_| is_ring && CHANNELS_OF_MANY.contains(&strategy.channels));
            std::iter::once(strategy.channels).chain(others).map(move |channels| Strategy { channels, ..strategy })
        };
        let by = |strategy| Planned { collective, bytes, strategy };
        let among = |parties: &[Vec<NodeId>], strategy| self.taken(parties, &by(strategy));
        let alone = |&strategy: &Strategy| Ok((among(std::slice::from_ref(first), strategy)?, strategy));
        let mut looked_at: Vec<Strategy> = Vec::new();
        let best = self.in_turn(parties, (collective, bytes), |kinds, best| {
            let ways = self.ways(kinds, first, (collective, most), collectives)?;
            let fastest = ways.first().map_or(Picos::ZERO, |way| way.0);
            let fast = ways.into_iter().take_while(|way| way.0.0 <= fastest.0.saturating_mul(AS_FAST)).take(FEW);
            let mut fast: Vec<Strategy> = fast.flat_map(|way| on_others(way.1)).collect();
            fast.sort_unstable();
            fast.dedup();
            looked_at.extend(&fast);
            // (The first that goes wrong is told, whichever comes first.)
            let ways: Vec<Result<_, PlanError>> = fast.par_iter().with_max_len(1).map(alone).collect();
            let ways = self.least_first(parties, ways.into_iter().collect::<Result<_, _>>()?, by);
            self.best_of(best, &ways, |way| among(parties, way.strategy))
        })?;
        // Fewer channels, which leave SMs to others, where more are worth little; as `plan` prefers them.
        let Some((best, strategy)) = best else { return Ok(Timed::default()) };
        looked_at.retain(|&one| same_pair(one, strategy) && one.channels < strategy.channels);
        looked_at.sort_unstable_by_key(|one| (one.channels, *one));
        for one in looked_at {
            let time = among(parties, one)?;
            if time <= worth_of_time(best) {
                return Ok(Timed { time, strategy: Some(one) });
            }
        }
        Ok(Timed { time: best, strategy: Some(strategy) })
    }

    /// What is best with all groups at once, of what was simulated for the first alone.
    pub(super) fn best(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Timed, PlanError> {
        let first = parties.first().map(Vec::as_slice).unwrap_or_default();
        let best = self.in_turn(parties, (collective, bytes), |kinds, best| {
            // (Where there is nothing to choose, nobody need know what it takes alone.)
            if let (Some(known), Some(strategy)) = (best, self.only_way(kinds, first, (collective, bytes), collectives))
            {
                let time = self.taken(parties, &Planned { collective, bytes, strategy })?;
                return Ok(Some(known.min((time, strategy))));
            }
            let ways = self.ways(kinds, first, (collective, bytes), collectives)?;
            let ways = self.least_first(parties, ways, |strategy| Planned { collective, bytes, strategy });
            self.best_of(best, &ways, |way| self.with_all(parties, (collective, bytes), (way.alone, way.strategy)))
        })?;
        let (time, strategy) = best.unzip();
        Ok(Timed { time: time.unwrap_or_default(), strategy })
    }

    /// The best of all kinds of ways, of which `of_kinds` tells the best of some where the best before them is known. Of very many ranks
    /// PAT comes last, and only where its busiest link leaves it a chance: no other way takes as long to simulate.
    fn in_turn(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        mut of_kinds: impl FnMut(&[Kind], Option<Best>) -> Result<Option<Best>, PlanError>,
    ) -> Result<Option<Best>, PlanError> {
        if !are_many(parties) || !Kind::is_of(collective, Kind::Pat) {
            return of_kinds(&Kind::ALL, None);
        }
        let others: Vec<Kind> = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Pat).collect();
        let best = of_kinds(&others, None)?;
        let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
        let strategy = Strategy { algorithm, protocol, channels: 1, threads: None, chunk: None };
        let pat = Planned { collective, bytes, strategy };
        if best.is_some_and(|(time, _)| time <= self.least_of_links(parties, pat)) {
            return Ok(best);
        }
        match of_kinds(&[Kind::Pat], best) {
            // (Not every library has it, nor where several ranks are on a host.)
            Err(PlanError::NothingToChoose { .. }) => Ok(best),
            other => other,
        }
    }

    /// What ways take at least with all groups at once, the shortest first: what they take alone, and, where there are very many, what the
    /// busiest link needs.
    fn least_first(
        &self,
        parties: &[Vec<NodeId>],
        ways: Vec<(Picos, Strategy)>,
        by: impl Fn(Strategy) -> Planned + Sync,
    ) -> Vec<Way> {
        let are_many = are_many(parties);
        let least = |(alone, strategy)| {
            let of_links = if are_many { self.least_of_links(parties, by(strategy)) } else { Picos::ZERO };
            Way { least: of_links.max(alone), alone, strategy }
        };
        let mut ways: Vec<Way> = ways.into_par_iter().with_max_len(1).map(least).collect();
        ways.sort_unstable();
        ways
    }

    /// The best of ways, those that may take the least first, and of what is known. What takes longer at least than the best takes is not
    /// looked at. (Times that are told by parts or fewer ranks may lie a percent under it: of ways that near each other either is picked.)
    fn best_of(
        &self,
        known: Option<Best>,
        ways: &[Way],
        with_all: impl Fn(&Way) -> Result<Picos, PlanError> + Sync,
    ) -> Result<Option<Best>, PlanError> {
        let mut best = known;
        let is_beaten = |best: Option<Best>, way: &Way| best.is_some_and(|(time, _)| time <= way.least);
        for some in ways.chunks(if self.ranks.len() > MOST_TOGETHER { AT_ONCE } else { 1 }) {
            if some.first().is_some_and(|way| is_beaten(best, way)) {
                break;
            }
            let times = some.par_iter().with_max_len(1).map(&with_all);
            for (way, time) in some.iter().zip(times.collect::<Vec<Result<Picos, PlanError>>>()) {
                // As if each had waited for those before it.
                if !is_beaten(best, way) {
                    best = best.into_iter().chain([(time?, way.strategy)]).min();
                }
            }
        }
        Ok(best)
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
