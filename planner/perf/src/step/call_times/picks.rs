//! Strategy selection: the fastest strategy with all groups concurrent, among candidates that are fast for one group
//! alone.

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::super::concurrent_calls::CallWithStrategy;
use super::super::large_group_candidates::{LARGE_GROUP_CHANNELS, TimingMethod};
use super::super::rank_scaling::ScalingLaw;
use super::{CallQuery, MAX_CONCURRENT_RANKS, SEARCH_BYTES_PER_RANK, SimulatedCosts, TimedStrategy};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::{PlanError, preference_limit_for, same_pair};
use fabricast_workload::job::CollectiveCandidates;

/// Total bytes above which the candidates of a group of a few dozen ranks keep their order, apart from near ties. Half
/// of it prunes the channel counts that 800 Gb/s NICs need.
const SEARCH_BYTES_TOTAL: u64 = 512 << 20;

/// Largest message size at which candidates are searched for a group of `ranks` ranks.
pub(super) fn search_bytes(ranks: usize) -> Bytes {
    Bytes((SEARCH_BYTES_PER_RANK * ranks as u64).max(SEARCH_BYTES_TOTAL))
}

/// Larger calls compare the candidates whose time at [`search_bytes`] is at most this multiple of the fastest,
const FAST_FACTOR: u64 = 2;

/// and at most this number of them.
const MAX_FAST_CANDIDATES: usize = 6;

/// Number of candidates simulated concurrently above [`MAX_CONCURRENT_RANKS`] ranks, before it is known if the first prunes
/// the second: each takes seconds, and there are few calls.
const CONCURRENT_CANDIDATES: usize = 2;

/// Total number of ranks above which the load of the busiest link is computed before a candidate is simulated with all
/// groups.
const LINK_BOUND_RANKS: usize = 512;

/// Candidate strategy before its simulation with all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Lower bound on its time with all groups concurrent.
    lower_bound: Picos,
    /// Its time with one group alone.
    alone: Picos,
    strategy: Strategy,
}

/// Completion time with all groups concurrent, and the strategy.
type BestStrategy = (Picos, Strategy);

/// Returns true if the groups have so many ranks in total that simulating a candidate costs more than computing its
/// link loads.
fn are_at_scale(groups: &[Vec<NodeId>]) -> bool {
    groups.len() > 1 && groups.iter().map(Vec::len).sum::<usize>() > LINK_BOUND_RANKS
}

impl SimulatedCosts<'_> {
    /// Best strategy for a large group: the message size it was selected at, and its completion time there with all
    /// groups concurrent.
    pub(super) fn select_strategy(
        &self,
        groups: &[Vec<NodeId>],
        query: CallQuery,
    ) -> Result<(Bytes, TimedStrategy), PlanError> {
        let CallQuery { collective, bytes, allowed, .. } = query;
        let Some(first) = groups.first() else { return Ok((bytes, TimedStrategy::default())) };
        let search_size = search_bytes(first.len());
        let rounded =
            bytes.0.checked_next_power_of_two().map_or(search_size, |rounded| search_size.min(Bytes(rounded)));
        if bytes <= search_size {
            let select = || self.best(groups, collective, rounded, allowed).map(Some);
            return Ok((rounded, self.picks.get_or_compute(query.with_bytes(rounded), select)?.unwrap_or_default()));
        }
        let select = || self.select_for_large_call(groups, collective, bytes, search_size, allowed).map(Some);
        Ok((bytes, self.picks.get_or_compute(query, select)?.unwrap_or_default()))
    }

    /// Variant of [`Self::select_strategy`] for calls larger than `search_size`, the size at which candidates are
    /// searched. Compares the candidates that are fast there, rings also with the other channel counts, since the
    /// search prunes channel counts with small gains at that size.
    fn select_for_large_call(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        search_size: Bytes,
        collectives: CollectiveCandidates,
    ) -> Result<TimedStrategy, PlanError> {
        let Some(first) = groups.first() else { return Ok(TimedStrategy::default()) };
        let channel_variants = |strategy: Strategy| {
            let is_ring = ScalingLaw::new(strategy.algorithm, collective) == Some(ScalingLaw::Rank);
            let others = LARGE_GROUP_CHANNELS
                .into_iter()
                .filter(move |_| is_ring && LARGE_GROUP_CHANNELS.contains(&strategy.channels));
            std::iter::once(strategy.channels).chain(others).map(move |channels| Strategy { channels, ..strategy })
        };
        let build_call = |strategy| CallWithStrategy { collective, bytes, strategy };
        let simulate = |groups: &[Vec<NodeId>], strategy| self.call_time(groups, &build_call(strategy));
        let time_alone = |&strategy: &Strategy| Ok((simulate(std::slice::from_ref(first), strategy)?, strategy));
        let mut examined: Vec<Strategy> = Vec::new();
        let best = self.best_over_kinds(groups, collective, bytes, |kinds, best| {
            let candidates = self.candidates(kinds, first, collective, search_size, collectives)?;
            let fastest = candidates.first().map_or(Picos::ZERO, |candidate| candidate.0);
            let fast = candidates
                .into_iter()
                .take_while(|candidate| candidate.0.0 <= fastest.0.saturating_mul(FAST_FACTOR))
                .take(MAX_FAST_CANDIDATES);
            let mut fast: Vec<Strategy> = fast.flat_map(|candidate| channel_variants(candidate.1)).collect();
            fast.sort_unstable();
            fast.dedup();
            examined.extend(&fast);
            // (The first error in candidate order is returned, whichever occurs first.)
            let candidates: Vec<Result<_, PlanError>> = fast.par_iter().with_max_len(1).map(time_alone).collect();
            let candidates =
                self.sort_by_lower_bound(groups, candidates.into_iter().collect::<Result<_, _>>()?, build_call);
            self.best_candidate(best, &candidates, |candidate| simulate(groups, candidate.strategy))
        })?;
        // Prefer fewer channels, which leave SMs to kernels, where more gain little; `plan` has the same preference.
        let Some((best, strategy)) = best else { return Ok(TimedStrategy::default()) };
        examined.retain(|&one| same_pair(one, strategy) && one.channels < strategy.channels);
        examined.sort_unstable_by_key(|one| (one.channels, *one));
        for one in examined {
            let time = simulate(groups, one)?;
            if time <= preference_limit_for(best) {
                return Ok(TimedStrategy { time, strategy: Some(one) });
            }
        }
        Ok(TimedStrategy { time: best, strategy: Some(strategy) })
    }

    /// Best strategy with all groups concurrent, among the candidates simulated for the first group alone.
    pub(super) fn best(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        collectives: CollectiveCandidates,
    ) -> Result<TimedStrategy, PlanError> {
        let first = groups.first().map(Vec::as_slice).unwrap_or_default();
        let best = self.best_over_kinds(groups, collective, bytes, |kinds, best| {
            // (A single candidate needs no time of one group alone.)
            if let (Some(known), Some(strategy)) =
                (best, self.only_candidate(kinds, first, collective, bytes, collectives))
            {
                let time = self.call_time(groups, &CallWithStrategy { collective, bytes, strategy })?;
                return Ok(Some(known.min((time, strategy))));
            }
            let candidates = self.candidates(kinds, first, collective, bytes, collectives)?;
            let candidates = self.sort_by_lower_bound(groups, candidates, |strategy| CallWithStrategy {
                collective,
                bytes,
                strategy,
            });
            self.best_candidate(best, &candidates, |candidate| {
                self.time_with_all_groups(groups, collective, bytes, candidate.alone, candidate.strategy)
            })
        })?;
        let (time, strategy) = best.unzip();
        Ok(TimedStrategy { time: time.unwrap_or_default(), strategy })
    }

    /// Best candidate over all kinds. `best_among` returns the best of some kinds, given the best so far. At scale PAT
    /// comes last, and only if its busiest link could beat the best: it is the most expensive to simulate.
    fn best_over_kinds(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        mut best_among: impl FnMut(&[TimingMethod], Option<BestStrategy>) -> Result<Option<BestStrategy>, PlanError>,
    ) -> Result<Option<BestStrategy>, PlanError> {
        if !are_at_scale(groups) || !TimingMethod::has_candidates(collective, TimingMethod::Pat) {
            return best_among(&TimingMethod::ALL, None);
        }
        let others: Vec<TimingMethod> =
            TimingMethod::ALL.into_iter().filter(|&kind| kind != TimingMethod::Pat).collect();
        let best = best_among(&others, None)?;
        let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
        let strategy = Strategy { algorithm, protocol, channels: 1, threads: None, chunk: None };
        let pat = CallWithStrategy { collective, bytes, strategy };
        if best.is_some_and(|(time, _)| time <= self.busiest_link_bound(groups, pat)) {
            return Ok(best);
        }
        match best_among(&[TimingMethod::Pat], best) {
            // (Libraries may lack PAT, or exclude it with several ranks on a host.)
            Err(PlanError::NothingToChoose { .. }) => Ok(best),
            other => other,
        }
    }

    /// Candidates sorted by lower bound with all groups concurrent: the time of one group alone and, at scale, the
    /// transfer time of the busiest link.
    fn sort_by_lower_bound(
        &self,
        groups: &[Vec<NodeId>],
        candidates: Vec<(Picos, Strategy)>,
        build_call: impl Fn(Strategy) -> CallWithStrategy + Sync,
    ) -> Vec<Candidate> {
        let at_scale = are_at_scale(groups);
        let build_candidate = |(alone, strategy)| {
            let link_bound = if at_scale { self.busiest_link_bound(groups, build_call(strategy)) } else { Picos::ZERO };
            Candidate { lower_bound: link_bound.max(alone), alone, strategy }
        };
        let mut candidates: Vec<Candidate> = candidates.into_par_iter().with_max_len(1).map(build_candidate).collect();
        candidates.sort_unstable();
        candidates
    }

    /// Best of the candidates, in order of lower bound, and of the best so far. Candidates whose lower bound exceeds
    /// the best time are pruned. (Sampled or extrapolated times may lie a percent below the bound; near ties are then
    /// resolved either way.)
    fn best_candidate(
        &self,
        known: Option<BestStrategy>,
        candidates: &[Candidate],
        simulate: impl Fn(&Candidate) -> Result<Picos, PlanError> + Sync,
    ) -> Result<Option<BestStrategy>, PlanError> {
        let mut best = known;
        let is_pruned = |best: Option<BestStrategy>, candidate: &Candidate| {
            best.is_some_and(|(time, _)| time <= candidate.lower_bound)
        };
        for batch in candidates.chunks(if self.ranks.len() > MAX_CONCURRENT_RANKS { CONCURRENT_CANDIDATES } else { 1 })
        {
            if batch.first().is_some_and(|candidate| is_pruned(best, candidate)) {
                break;
            }
            let times = batch.par_iter().with_max_len(1).map(&simulate);
            for (candidate, time) in batch.iter().zip(times.collect::<Vec<Result<Picos, PlanError>>>()) {
                // Same result as a sequential evaluation.
                if !is_pruned(best, candidate) {
                    best = best.into_iter().chain([(time?, candidate.strategy)]).min();
                }
            }
        }
        Ok(best)
    }

    /// Completion time with all groups concurrent, given the time of one group alone.
    pub(super) fn time_with_all_groups(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        alone: Picos,
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let sampled = self.sampled_or_extrapolated_time(groups, &CallWithStrategy { collective, bytes, strategy });
        sampled.unwrap_or_else(|| self.slowest_given_alone(groups, collective, bytes, alone, strategy))
    }
}
