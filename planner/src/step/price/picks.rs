//! Strategy selection: the fastest strategy with all groups concurrent, among candidates that are fast for one group
//! alone.

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

/// Total bytes above which the candidates of a group of a few dozen ranks keep their order, apart from near ties. Half
/// of it prunes the channel counts that 800 Gb/s NICs need.
const LOOKED_AT_IN_ALL: u64 = 512 << 20;

/// Largest message size at which candidates are searched for a group of `ranks` ranks.
pub(super) fn looked_at(ranks: usize) -> Bytes {
    Bytes((LOOKED_AT * ranks as u64).max(LOOKED_AT_IN_ALL))
}

/// Larger calls compare the candidates whose time at [`looked_at`] is at most this multiple of the fastest,
const AS_FAST: u64 = 2;

/// and at most this number of them.
const FEW: usize = 6;

/// Number of candidates simulated concurrently above [`MOST_TOGETHER`] ranks, before it is known if the first prunes
/// the second: each takes seconds, and there are few calls.
const AT_ONCE: usize = 2;

/// Total number of ranks above which the load of the busiest link is computed before a candidate is simulated with all
/// groups.
const MANY_TOGETHER: usize = 512;

/// Candidate strategy before its simulation with all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    /// Lower bound on its time with all groups concurrent.
    least: Picos,
    /// Its time with one group alone.
    alone: Picos,
    strategy: Strategy,
}

/// Completion time with all groups concurrent, and the strategy.
type Best = (Picos, Strategy);

/// Returns true if the groups have so many ranks in total that simulating a candidate costs more than computing its
/// link loads.
fn are_many(parties: &[Vec<NodeId>]) -> bool {
    parties.len() > 1 && parties.iter().map(Vec::len).sum::<usize>() > MANY_TOGETHER
}

impl Simulated<'_> {
    /// Best strategy for a large group: the message size it was selected at, and its completion time there with all
    /// groups concurrent.
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

    /// Variant of [`Self::pick`] for calls larger than `most`, the size at which candidates are searched. Compares the
    /// candidates that are fast there, rings also with the other channel counts, since the search prunes channel counts
    /// with small gains at that size.
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
            // (The first error in candidate order is returned, whichever occurs first.)
            let ways: Vec<Result<_, PlanError>> = fast.par_iter().with_max_len(1).map(alone).collect();
            let ways = self.least_first(parties, ways.into_iter().collect::<Result<_, _>>()?, by);
            self.best_of(best, &ways, |way| among(parties, way.strategy))
        })?;
        // Prefer fewer channels, which leave SMs to kernels, where more gain little; `plan` has the same preference.
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

    /// Best strategy with all groups concurrent, among the candidates simulated for the first group alone.
    pub(super) fn best(
        &self,
        parties: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Timed, PlanError> {
        let first = parties.first().map(Vec::as_slice).unwrap_or_default();
        let best = self.in_turn(parties, (collective, bytes), |kinds, best| {
            // (A single candidate needs no time of one group alone.)
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

    /// Best candidate over all kinds. `of_kinds` returns the best of some kinds, given the best so far. At scale PAT
    /// comes last, and only if its busiest link could beat the best: it is the most expensive to simulate.
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
            // (Libraries may lack PAT, or exclude it with several ranks on a host.)
            Err(PlanError::NothingToChoose { .. }) => Ok(best),
            other => other,
        }
    }

    /// Candidates sorted by lower bound with all groups concurrent: the time of one group alone and, at scale, the
    /// transfer time of the busiest link.
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

    /// Best of the candidates, in order of lower bound, and of the best so far. Candidates whose lower bound exceeds
    /// the best time are pruned. (Sampled or extrapolated times may lie a percent below the bound; near ties are then
    /// resolved either way.)
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
                // Same result as a sequential evaluation.
                if !is_beaten(best, way) {
                    best = best.into_iter().chain([(time?, way.strategy)]).min();
                }
            }
        }
        Ok(best)
    }

    /// Completion time with all groups concurrent, given the time of one group alone.
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
