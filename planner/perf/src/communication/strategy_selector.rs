//! Strategy selection: the fastest strategy with all groups concurrent, among the candidates that are fast for a single
//! group.

use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::calls::{CallRequest, CallWithStrategy, PlacedCall, SelectedStrategy};
use super::candidate_class::{CandidateClass, LARGE_GROUP_CHANNELS};
use super::candidate_search::{CandidateSearch, TimedCandidate};
use super::cost_cache::CallQuery;
use super::extrapolation::near_size::SizedTime;
use super::extrapolation::scaling_law::ScalingLaw;
use super::extrapolation::size_sampling::SEARCH_BYTES_PER_RANK;
use super::placement::RankCounts;
use super::timing_method::{CallTimer, KnownTime};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::{PlanError, preference_limit_for, same_pair};

/// Total message size in bytes above which the ranking of candidates does not change, except for near ties, for groups
/// of a few dozen ranks. With half of this size, the search would prune the channel counts that 800 Gb/s NICs need.
const SEARCH_BYTES_TOTAL: u64 = 512 << 20;

/// Largest message size at which candidates are searched for a group of `ranks` ranks.
fn search_bytes(ranks: usize) -> Bytes {
    Bytes((SEARCH_BYTES_PER_RANK * ranks as u64).max(SEARCH_BYTES_TOTAL))
}

/// Factor for calls larger than [`search_bytes`]: a candidate is compared further if its time at that size is at most
/// this multiple of the fastest candidate's.
const FAST_FACTOR: u64 = 2;

/// Maximum number of candidates that are compared further for calls larger than [`search_bytes`].
const MAX_FAST_CANDIDATES: usize = 6;

/// Number of candidates that are simulated in parallel in clusters so large that only some groups are simulated. It may
/// turn out afterwards that the first candidate prunes the second; since each takes seconds and there are few calls,
/// the parallel simulation is still faster.
const CONCURRENT_CANDIDATES: usize = 2;

/// Total number of ranks above which the load of the busiest link is computed before a candidate is simulated with all
/// groups.
const LINK_BOUND_RANKS: usize = 512;

/// Candidate strategy that has not been simulated with all groups. Ordered by lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Lower bound on the candidate's completion time with all groups concurrent.
    lower_bound: Picos,
    /// Completion time of the candidate with a single group.
    alone: Picos,
    strategy: Strategy,
}

/// Strategy with its completion time with all groups concurrent. Ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BestStrategy {
    time: Picos,
    strategy: Strategy,
}

impl From<Option<BestStrategy>> for SelectedStrategy {
    fn from(best: Option<BestStrategy>) -> Self {
        best.map_or_else(Self::default, |BestStrategy { time, strategy }| Self { time, strategy: Some(strategy) })
    }
}

/// Returns true if the groups have more than [`LINK_BOUND_RANKS`] ranks in total, so that simulating a candidate takes
/// longer than computing its link loads.
fn are_at_scale(groups: &[Vec<NodeId>]) -> bool {
    groups.len() > 1 && groups.iter().map(Vec::len).sum::<usize>() > LINK_BOUND_RANKS
}

/// Selects the strategies of calls, and times the calls with them.
#[derive(Clone, Copy)]
pub(super) struct StrategySelector<'a> {
    pub search: CandidateSearch<'a>,
    pub timer: CallTimer<'a>,
}

impl StrategySelector<'_> {
    /// Selects the strategy of a call of the groups of a dimension, and times the call. Large groups use one strategy
    /// per size class: the one selected at the next power of two.
    ///
    /// # Errors
    /// [`PlanError`]: there is no strategy for the call, or it cannot run.
    pub(super) fn select(&self, groups: &[Vec<u32>], query: CallQuery) -> Result<SelectedStrategy, PlanError> {
        let CallRequest { collective, bytes, .. } = query.request;
        let placement = self.timer.placement;
        let device_groups = placement.concurrent_groups(groups, collective);
        let Some(first) = device_groups.first() else { return Ok(SelectedStrategy::default()) };
        let sample = self.timer.size_sample(first, bytes);
        let at_sampled_size = query.with_bytes(sample.largest());
        if placement.is_large_group(first) && !placement.has_unequal_rank_counts(&device_groups) {
            let (selected_bytes, pick) = self.select_for_large_group(&device_groups, at_sampled_size)?;
            let known = KnownTime::AllGroups(SizedTime { bytes: selected_bytes, time: pick.time });
            let time = pick.strategy.map_or(Ok(Picos::ZERO), |strategy| {
                self.timer.whole_call_time(&device_groups, query.request.with_strategy(strategy), known)
            });
            return Ok(SelectedStrategy { time: time?, strategy: pick.strategy });
        }
        let pick_at = |bytes| {
            let query = query.with_bytes(bytes);
            self.timer.cache.picks.get_or_try(query, || self.select_at_size(&device_groups, query.request))
        };
        let time = sample.extrapolate(|bytes| pick_at(bytes).map(|pick| pick.time))?;
        let strategy = pick_at(sample.largest())?.strategy;
        Ok(SelectedStrategy { time, strategy })
    }

    /// Selects the strategy of a call at its own size, without sampling.
    pub(super) fn select_at_size(
        &self,
        groups: &[Vec<NodeId>],
        request: CallRequest,
    ) -> Result<SelectedStrategy, PlanError> {
        match self.timer.placement.has_unequal_rank_counts(groups) {
            true => self.select_by_rank_counts(groups, request),
            false => self.best(groups, request),
        }
    }

    /// Selects a strategy for each form of groups, if groups differ in their numbers of ranks per domain and host. The
    /// slowest group determines the time. In all other respects this is [`Self::select_at_size`].
    fn select_by_rank_counts(
        &self,
        groups: &[Vec<NodeId>],
        request: CallRequest,
    ) -> Result<SelectedStrategy, PlanError> {
        let placement = self.timer.placement;
        let mut picks: FxHashMap<RankCounts, Option<Strategy>> = FxHashMap::default();
        let mut calls = Vec::with_capacity(groups.len());
        for devices in groups {
            let counts = placement.rank_counts(devices);
            let strategy = match picks.get(&counts) {
                Some(known) => *known,
                None => {
                    let max_bytes =
                        if placement.is_large_group(devices) { search_bytes(devices.len()) } else { Bytes::MAX };
                    let request = request.with_bytes(request.bytes.min(max_bytes));
                    let candidates = self.search.candidates(&CandidateClass::ALL, devices, request)?;
                    *picks.entry(counts).or_insert(candidates.first().map(|fastest| fastest.strategy))
                }
            };
            calls.extend(strategy.map(|strategy| PlacedCall {
                call: request.with_strategy(strategy),
                devices,
                start: Picos::ZERO,
            }));
        }
        let times = self.timer.calls.end_times(&calls)?;
        let slowest = times.into_iter().zip(&calls).max_by_key(|&(time, _)| time);
        Ok(slowest.map_or_else(SelectedStrategy::default, |(time, placed)| SelectedStrategy {
            time,
            strategy: Some(placed.call.strategy),
        }))
    }

    /// Returns the best strategy for a large group, with the message size at which it was selected and its completion
    /// time there with all groups concurrent.
    fn select_for_large_group(
        &self,
        groups: &[Vec<NodeId>],
        query: CallQuery,
    ) -> Result<(Bytes, SelectedStrategy), PlanError> {
        let bytes = query.request.bytes;
        let Some(first) = groups.first() else { return Ok((bytes, SelectedStrategy::default())) };
        let search_size = search_bytes(first.len());
        let rounded =
            bytes.0.checked_next_power_of_two().map_or(search_size, |rounded| search_size.min(Bytes(rounded)));
        let picks = &self.timer.cache.large_group_picks;
        if bytes <= search_size {
            let query = query.with_bytes(rounded);
            return Ok((rounded, picks.get_or_try(query, || self.best(groups, query.request))?));
        }
        let select = || self.select_for_large_call(groups, query.request, search_size);
        Ok((bytes, picks.get_or_try(query, select)?))
    }

    /// Selects the strategy of a large group for a call larger than `search_size`, the size at which candidates are
    /// searched. Compares the candidates that are fast at that size. Rings are also compared with other channel counts,
    /// since the search prunes channel counts whose advantage is small at that size.
    fn select_for_large_call(
        &self,
        groups: &[Vec<NodeId>],
        request: CallRequest,
        search_size: Bytes,
    ) -> Result<SelectedStrategy, PlanError> {
        let Some(first) = groups.first() else { return Ok(SelectedStrategy::default()) };
        let channel_variants = |strategy: Strategy| {
            let is_ring = ScalingLaw::new(strategy.algorithm, request.collective) == Some(ScalingLaw::Rank);
            let others = LARGE_GROUP_CHANNELS
                .into_iter()
                .filter(move |_| is_ring && LARGE_GROUP_CHANNELS.contains(&strategy.channels));
            std::iter::once(strategy.channels).chain(others).map(move |channels| Strategy { channels, ..strategy })
        };
        let simulate = |groups: &[Vec<NodeId>], strategy| {
            self.timer.sample_time(groups, request.with_strategy(strategy), KnownTime::Unknown)
        };
        let time_alone = |&strategy: &Strategy| {
            Ok(TimedCandidate { time: simulate(std::slice::from_ref(first), strategy)?, strategy })
        };
        let mut examined: Vec<Strategy> = Vec::new();
        let best = self.best_over_classes(groups, request, |classes, best| {
            let candidates = self.search.candidates(classes, first, request.with_bytes(search_size))?;
            let fastest = candidates.first().map_or(Picos::ZERO, |candidate| candidate.time);
            let fast = candidates
                .into_iter()
                .take_while(|candidate| candidate.time.0 <= fastest.0.saturating_mul(FAST_FACTOR))
                .take(MAX_FAST_CANDIDATES);
            let mut fast: Vec<Strategy> = fast.flat_map(|candidate| channel_variants(candidate.strategy)).collect();
            fast.sort_unstable();
            fast.dedup();
            examined.extend(&fast);
            // The first error in the order of candidates is returned, independent of the order in which errors occur.
            let candidates: Vec<Result<_, PlanError>> = fast.par_iter().with_max_len(1).map(time_alone).collect();
            let candidates =
                self.sort_by_lower_bound(groups, candidates.into_iter().collect::<Result<_, _>>()?, request);
            self.best_candidate(best, &candidates, |candidate| simulate(groups, candidate.strategy))
        })?;
        // Of strategies with similar times, the one with fewer channels is selected, which leaves SMs to kernels. A
        // plan has the same preference.
        let Some(best) = best else { return Ok(SelectedStrategy::default()) };
        examined.retain(|&one| same_pair(one, best.strategy) && one.channels < best.strategy.channels);
        examined.sort_unstable_by_key(|one| (one.channels, *one));
        for one in examined {
            let time = simulate(groups, one)?;
            if time <= preference_limit_for(best.time) {
                return Ok(SelectedStrategy { time, strategy: Some(one) });
            }
        }
        Ok(Some(best).into())
    }

    /// Returns the best strategy with all groups concurrent, among the candidates simulated for the first group only.
    pub(super) fn best(&self, groups: &[Vec<NodeId>], request: CallRequest) -> Result<SelectedStrategy, PlanError> {
        let first = groups.first().map(Vec::as_slice).unwrap_or_default();
        let best = self.best_over_classes(groups, request, |classes, best| {
            // A single candidate needs no simulation of the first group only.
            if let (Some(known), Some(strategy)) = (best, self.search.only_candidate(classes, first, request)) {
                let time = self.timer.sample_time(groups, request.with_strategy(strategy), KnownTime::Unknown)?;
                return Ok(Some(known.min(BestStrategy { time, strategy })));
            }
            let candidates = self.search.candidates(classes, first, request)?;
            let candidates = self.sort_by_lower_bound(groups, candidates, request);
            self.best_candidate(best, &candidates, |candidate| {
                let call = request.with_strategy(candidate.strategy);
                self.timer.sample_time(groups, call, KnownTime::FirstGroupAlone(candidate.alone))
            })
        })?;
        Ok(best.into())
    }

    /// Returns the best candidate over all classes. `best_among` returns the best candidate of some classes, given the
    /// best so far. At scale, PAT is examined last, since it takes longest to simulate, and only if the lower bound
    /// from its busiest link is below the best time.
    fn best_over_classes(
        &self,
        groups: &[Vec<NodeId>],
        request: CallRequest,
        mut best_among: impl FnMut(&[CandidateClass], Option<BestStrategy>) -> Result<Option<BestStrategy>, PlanError>,
    ) -> Result<Option<BestStrategy>, PlanError> {
        if !are_at_scale(groups) || !CandidateClass::Pat.has_candidates(request.collective) {
            return best_among(&CandidateClass::ALL, None);
        }
        let others: Vec<CandidateClass> =
            CandidateClass::ALL.into_iter().filter(|&class| class != CandidateClass::Pat).collect();
        let best = best_among(&others, None)?;
        let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
        let pat = request.with_strategy(Strategy::new(algorithm, protocol, 1));
        if best.is_some_and(|best| best.time <= self.timer.link_bound(groups, pat)) {
            return Ok(best);
        }
        match best_among(&[CandidateClass::Pat], best) {
            // Some libraries do not have PAT, or exclude it if a host has several ranks of the group.
            Err(PlanError::NothingToChoose { .. }) => Ok(best),
            other => other,
        }
    }

    /// Sorts candidates by their lower bound with all groups concurrent: the time of a single group and, at scale, the
    /// transfer time of the busiest link.
    fn sort_by_lower_bound(
        &self,
        groups: &[Vec<NodeId>],
        candidates: Vec<TimedCandidate>,
        request: CallRequest,
    ) -> Vec<Candidate> {
        let at_scale = are_at_scale(groups);
        let link_bound = |call: CallWithStrategy| match at_scale {
            true => self.timer.link_bound(groups, call),
            false => Picos::ZERO,
        };
        let build_candidate = |TimedCandidate { time: alone, strategy }| {
            let lower_bound = link_bound(request.with_strategy(strategy)).max(alone);
            Candidate { lower_bound, alone, strategy }
        };
        let mut candidates: Vec<Candidate> = candidates.into_par_iter().with_max_len(1).map(build_candidate).collect();
        candidates.sort_unstable();
        candidates
    }

    /// Returns the fastest among the best so far (`known`) and the candidates, which are simulated in order of lower
    /// bound. Candidates whose lower bound is not below the best time are pruned. (Sampled or extrapolated times may be
    /// a percent below the bound, so near ties may be resolved in either direction.)
    fn best_candidate(
        &self,
        known: Option<BestStrategy>,
        candidates: &[Candidate],
        simulate: impl Fn(&Candidate) -> Result<Picos, PlanError> + Sync,
    ) -> Result<Option<BestStrategy>, PlanError> {
        let mut best = known;
        let is_pruned = |best: Option<BestStrategy>, candidate: &Candidate| {
            best.is_some_and(|best| best.time <= candidate.lower_bound)
        };
        let batch_size = if self.timer.placement.exceeds_concurrent_ranks() { CONCURRENT_CANDIDATES } else { 1 };
        for batch in candidates.chunks(batch_size) {
            if batch.first().is_some_and(|candidate| is_pruned(best, candidate)) {
                break;
            }
            let times = batch.par_iter().with_max_len(1).map(&simulate);
            for (candidate, time) in batch.iter().zip(times.collect::<Vec<Result<Picos, PlanError>>>()) {
                // The result is that of a sequential evaluation.
                if !is_pruned(best, candidate) {
                    best = best.into_iter().chain([BestStrategy { time: time?, strategy: candidate.strategy }]).min();
                }
            }
        }
        Ok(best)
    }
}
