//! Selection of the method that times a call with a given strategy and all its groups concurrent, and the timing
//! itself.
//!
//! ```text
//! call of any size ─► fewer bytes (size_sampling) ─► fewer ranks (rank_scaling) ─► nearby size (near_size)
//!                                                                            └──► first group alone, or all groups
//! ```
//!
//! The first method that applies is used. Calls with many bytes or many ranks are extrapolated, because the simulation
//! of the whole call would take seconds. Module `extrapolation` contains the arithmetic and states its accuracy.

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::call_traffic::busiest_link_bound;
use super::calls::CallWithStrategy;
use super::concurrent_calls::{ConcurrentCalls, GeneratedCalls};
use super::cost_cache::{CostCache, PartKey, PatternKey};
use super::extrapolation::busiest_link::{Pattern, busiest_link_time};
use super::extrapolation::near_size::SizedTime;
use super::extrapolation::rank_scaling::{FIRST_RANKS, FIRST_RANKS_OF_SEVERAL, ScaledDownCall, ScaledGroup};
use super::extrapolation::scaling_law::ScalingLaw;
use super::extrapolation::size_sampling::{SampledGroup, SizeSample};
use super::placement::Placement;
use super::sm_usage::CallExtent;
use fabricast_search::plan::PlanError;

/// Relation of the call to be timed to the original call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPart {
    /// The original call, of any message size.
    Whole,
    /// Call with the message size of a sample, or with the size at which strategies are compared.
    SizeSample,
    /// Scaled-down call of fewer ranks.
    RankSample,
}

/// Time that is already known for a call with the same strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownTime {
    /// The time of such a call is unknown.
    Unknown,
    /// Time of the first group without concurrent groups, at the same message size.
    FirstGroupAlone(Picos),
    /// Time of all groups concurrent, possibly at another message size.
    AllGroups(SizedTime),
}

/// Call to be timed, with its relation to the original call and the time that is already known.
#[derive(Clone, Copy, Debug)]
struct TimingRequest {
    call: CallWithStrategy,
    part: CallPart,
    known: KnownTime,
}

/// Method by which a call is timed.
enum TimingMethod<'g> {
    /// The time is already known, so nothing is simulated.
    Known(Picos),
    /// Extrapolation from smaller messages, for streams of equal chunks in large groups.
    StreamSampling(SizeSample),
    /// Extrapolation from smaller messages.
    SizeSampling(SizeSample),
    /// Extrapolation from scaled-down groups: all groups, or only the first if it represents all.
    RankScaling(ScaledDownCall, &'g [Vec<NodeId>]),
    /// Derivation from the time of all groups at a slightly larger message size.
    NearKnownSize(SizedTime),
    /// Simulation of only the first group, which represents all groups.
    FirstGroup,
    /// Simulation of the groups that represent all.
    Simulation(GeneratedCalls<'g>),
}

/// Times calls with a given strategy.
#[derive(Clone, Copy)]
pub(super) struct CallTimer<'a> {
    pub placement: &'a Placement<'a>,
    pub calls: ConcurrentCalls<'a>,
    pub cache: &'a CostCache,
}

impl CallTimer<'_> {
    /// Returns the completion time of a call of any size with all groups concurrent.
    ///
    /// # Errors
    /// [`PlanError`]: the call cannot run.
    pub(super) fn whole_call_time(
        &self,
        groups: &[Vec<NodeId>],
        call: CallWithStrategy,
        known: KnownTime,
    ) -> Result<Picos, PlanError> {
        self.time(groups, TimingRequest { call, part: CallPart::Whole, known })
    }

    /// Returns the completion time of a call with all groups concurrent, at a sampled size or at the size at which
    /// strategies are compared.
    ///
    /// # Errors
    /// [`PlanError`]: the call cannot run.
    pub(super) fn sample_time(
        &self,
        groups: &[Vec<NodeId>],
        call: CallWithStrategy,
        known: KnownTime,
    ) -> Result<Picos, PlanError> {
        self.time(groups, TimingRequest { call, part: CallPart::SizeSample, known })
    }

    /// Returns the completion time of a call with all groups concurrent, without extrapolation.
    pub(super) fn simulated_time(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Result<Picos, PlanError> {
        self.time(groups, TimingRequest { call, part: CallPart::RankSample, known: KnownTime::Unknown })
    }

    fn time(&self, groups: &[Vec<NodeId>], request: TimingRequest) -> Result<Picos, PlanError> {
        self.apply(self.method(groups, request), groups, request)
    }

    /// Selects the method by which a call is timed.
    fn method<'g>(&self, groups: &'g [Vec<NodeId>], request: TimingRequest) -> TimingMethod<'g> {
        let TimingRequest { call, part, known } = request;
        let Some(first) = groups.first() else { return TimingMethod::Known(Picos::ZERO) };
        if let (CallPart::SizeSample, KnownTime::AllGroups(known)) = (part, known)
            && known.bytes == call.bytes
        {
            return TimingMethod::Known(known.time);
        }
        if part != CallPart::RankSample
            && let Some(sample) = self.streaming_sample(first, call)
        {
            return TimingMethod::StreamSampling(sample);
        }
        match part {
            CallPart::Whole => return TimingMethod::SizeSampling(self.size_sample(first, call.bytes)),
            CallPart::SizeSample => {
                if let Some((scaled_down, sampled)) = self.rank_scaling(groups, call) {
                    return TimingMethod::RankScaling(scaled_down, sampled);
                }
            }
            CallPart::RankSample => {}
        }
        self.method_without_sampling(groups, request)
    }

    /// Selects the method for calls that cannot be represented by smaller messages or fewer ranks.
    fn method_without_sampling<'g>(&self, groups: &'g [Vec<NodeId>], request: TimingRequest) -> TimingMethod<'g> {
        let TimingRequest { call, known, .. } = request;
        if let KnownTime::AllGroups(known) = known
            && groups.len() > 1
            && self.placement.exceeds_concurrent_ranks()
            && known.is_near(call.bytes)
        {
            return TimingMethod::NearKnownSize(known);
        }
        self.simulation_method(groups, call, known)
    }

    /// Selects a method other than extrapolation.
    fn simulation_method<'g>(
        &self,
        groups: &'g [Vec<NodeId>],
        call: CallWithStrategy,
        known: KnownTime,
    ) -> TimingMethod<'g> {
        let time_of_first = match known {
            KnownTime::FirstGroupAlone(alone) => Some(alone),
            KnownTime::Unknown | KnownTime::AllGroups(_) => {
                if let Some(time) = part_key(groups, call).and_then(|key| self.cache.parts.get(&key)) {
                    return TimingMethod::Known(time);
                }
                None
            }
        };
        let is_single = groups.len() == 1;
        if let (Some(alone), true) = (time_of_first, is_single) {
            return TimingMethod::Known(alone);
        }
        let calls = self.calls.representative_calls(groups, call);
        match (calls.group_count() == 1, time_of_first) {
            (true, Some(alone)) => TimingMethod::Known(alone),
            (true, None) if !is_single => TimingMethod::FirstGroup,
            _ => TimingMethod::Simulation(calls),
        }
    }

    /// Times a call with the selected method.
    fn apply(
        &self,
        method: TimingMethod<'_>,
        groups: &[Vec<NodeId>],
        request: TimingRequest,
    ) -> Result<Picos, PlanError> {
        let TimingRequest { call, known, .. } = request;
        let sample_time = |known| move |bytes| self.sample_time(groups, call.with_bytes(bytes), known);
        match method {
            TimingMethod::Known(time) => Ok(time),
            TimingMethod::StreamSampling(sample) => sample.extrapolate(sample_time(KnownTime::Unknown)),
            TimingMethod::SizeSampling(sample) => sample.extrapolate(sample_time(known)),
            TimingMethod::RankScaling(scaled_down, sampled) => {
                match self.extrapolate_from_fewer_ranks(scaled_down, sampled, call)? {
                    Some(time) => Ok(time),
                    None => self.apply(self.method_without_sampling(groups, request), groups, request),
                }
            }
            TimingMethod::NearKnownSize(near) => self.time_from_nearby_size(groups, call, near),
            TimingMethod::FirstGroup => {
                let time = self.simulated_time(groups.get(..1).unwrap_or_default(), call)?;
                self.record(groups, call, time);
                Ok(time)
            }
            TimingMethod::Simulation(calls) => {
                let time = self.calls.slowest(&calls, call)?;
                // Times of candidates with all groups are not needed again, so they are not stored.
                if !matches!(known, KnownTime::FirstGroupAlone(_)) {
                    self.record(groups, call, time);
                }
                Ok(time)
            }
        }
    }

    /// Returns the completion time of a call extrapolated from simulations of scaled-down groups; `None` if the
    /// simulated times show that extrapolation does not apply.
    pub(super) fn extrapolate_from_fewer_ranks(
        &self,
        scaled_down: ScaledDownCall,
        groups: &[Vec<NodeId>],
        call: CallWithStrategy,
    ) -> Result<Option<Picos>, PlanError> {
        let simulate = |ranks: usize| {
            self.simulated_time(&scaled_down.select_each(groups, ranks), scaled_down.scaled_call(&call, ranks))
        };
        scaled_down.simulate_and_extrapolate(simulate, || self.link_bound(groups, call))
    }

    /// Derives the completion time of a call from the known time of a slightly larger one. Simulates the call if that
    /// is too uncertain.
    fn time_from_nearby_size(
        &self,
        groups: &[Vec<NodeId>],
        call: CallWithStrategy,
        near: SizedTime,
    ) -> Result<Picos, PlanError> {
        let link_time = || self.link_bound(groups, call.with_bytes(near.bytes));
        if let Some(time) = near.less_link_time(call.bytes, link_time) {
            return Ok(time);
        }
        let first = groups.get(..1).unwrap_or_default();
        let alone = self.sample_time(first, call, KnownTime::Unknown)?;
        match near.midpoint(alone.max(self.link_bound(groups, call))) {
            Some(time) => Ok(time),
            None => self.simulated_time(groups, call),
        }
    }

    /// Stores the time of a call of several groups, as if it had been simulated.
    pub(super) fn record(&self, groups: &[Vec<NodeId>], call: CallWithStrategy, time: Picos) {
        if let Some(key) = part_key(groups, call) {
            self.cache.parts.insert(key, time);
        }
    }

    /// Stores the time of a call of one group, unless a time is already stored.
    pub(super) fn record_first(&self, group: &[NodeId], call: CallWithStrategy, time: Picos) {
        let key = PartKey { first_group: group.to_vec(), groups: 1, call };
        self.cache.parts.get_or_compute(key, || time);
    }

    /// Returns the message sizes at which a call is sampled, which do not depend on its strategy.
    pub(super) fn size_sample(&self, group: &[NodeId], bytes: Bytes) -> SizeSample {
        let extent = if self.placement.spans_domains(group) { CallExtent::Beyond } else { CallExtent::Inside };
        SizeSample::new(SampledGroup { ranks: group.len() as u64, extent }, bytes)
    }

    /// Returns the message sizes at which a large streaming call in a large group is sampled; `None` for other calls.
    fn streaming_sample(&self, group: &[NodeId], call: CallWithStrategy) -> Option<SizeSample> {
        let streams = call.strategy.algorithm.is_pipelined(call.collective) && self.placement.is_large_group(group);
        streams.then(|| SizeSample::for_streaming_call(call.bytes)).flatten()
    }

    /// Returns the scaled-down simulations for a call of a single group; `None` if the call cannot be scaled down.
    pub(super) fn scaled_down(&self, group: &[NodeId], bytes: Bytes, law: ScalingLaw) -> Option<ScaledDownCall> {
        self.scaled_down_from(FIRST_RANKS, group, bytes, law)
    }

    fn scaled_down_from(
        &self,
        min_ranks: usize,
        group: &[NodeId],
        bytes: Bytes,
        law: ScalingLaw,
    ) -> Option<ScaledDownCall> {
        let scaled = ScaledGroup { ranks: group.len(), bytes, law };
        ScaledDownCall::new(min_ranks, scaled, || self.placement.ranks_by_domain(group))
    }

    /// Returns the scaled-down simulations for a call of several groups, and the groups to simulate; `None` if the call
    /// cannot be scaled down.
    pub(super) fn rank_scaling<'g>(
        &self,
        groups: &'g [Vec<NodeId>],
        call: CallWithStrategy,
    ) -> Option<(ScaledDownCall, &'g [Vec<NodeId>])> {
        let law = ScalingLaw::new(call.strategy.algorithm, call.collective)?;
        let first = groups.first()?;
        let alone = || self.scaled_down(first, call.bytes, law);
        if groups.len() == 1 {
            // A longer ring or tree puts no additional load on any link; distant partners of PAT may.
            let is_equal = |scaled_down: &ScaledDownCall| {
                law != ScalingLaw::RankIfConfirmed || self.loads_links_equally(*scaled_down, groups)
            };
            return alone().filter(is_equal).map(|scaled_down| (scaled_down, groups));
        }
        // PAT among 2,048 ranks differs from simulation by 2 % if extrapolated from 64 and 128 ranks, and by less than
        // 1 % from 128 and 256.
        let first_ranks: &[usize] = match law {
            ScalingLaw::RankIfConfirmed => &[FIRST_RANKS],
            ScalingLaw::Rank | ScalingLaw::Doubling => &[FIRST_RANKS_OF_SEVERAL, FIRST_RANKS],
        };
        let samples = first_ranks.iter().map(|&min_ranks| self.scaled_down_from(min_ranks, first, call.bytes, law));
        let scaled_down = samples.flatten().find(|scaled_down| self.loads_links_equally(*scaled_down, groups))?;
        let [_, second_ranks] = scaled_down.sample_ranks();
        let (second_groups, second_call) =
            (scaled_down.select_each(groups, second_ranks), scaled_down.scaled_call(&call, second_ranks));
        Some(match self.first_represents_all(&second_groups, second_call) {
            true => (alone().unwrap_or(scaled_down), std::slice::from_ref(first)),
            false => (scaled_down, groups),
        })
    }

    /// Returns true if the call of the first group takes the same time with and without the other groups.
    fn first_represents_all(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> bool {
        groups.len() == 1 || self.calls.representative_calls(groups, call).group_count() == 1
    }

    /// Returns true if the scaled-down groups put the same load on their busiest link as the full groups, in both
    /// simulations.
    fn loads_links_equally(&self, scaled_down: ScaledDownCall, groups: &[Vec<NodeId>]) -> bool {
        let pattern = Pattern::new(scaled_down.law());
        let full_time = self.busiest_link_time(groups, pattern);
        scaled_down.sample_ranks().iter().all(|&ranks| {
            let sample_time = self.busiest_link_time(&scaled_down.select_each(groups, ranks), pattern);
            pattern.is_within_tolerance(sample_time, full_time)
        })
    }

    /// Returns the transfer time of the busiest link between NVLink domains under a communication pattern, in seconds
    /// per byte that each rank sends.
    fn busiest_link_time(&self, groups: &[Vec<NodeId>], pattern: Pattern) -> f64 {
        let Some(first) = groups.first() else { return 0.0 };
        let key = PatternKey { first_group: first.clone(), groups: groups.len(), pattern };
        let compute = || busiest_link_time(self.placement.router(), groups, pattern);
        self.cache.busiest_links.get_or_compute(key, compute)
    }

    /// Returns a lower bound on the time of a call with all groups concurrent: the transfer time of the busiest link.
    pub(super) fn link_bound(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Picos {
        busiest_link_bound(&self.calls, groups, call)
    }
}

/// Returns the cache key of a call of these groups; `None` if there are no groups.
fn part_key(groups: &[Vec<NodeId>], call: CallWithStrategy) -> Option<PartKey> {
    let first = groups.first()?;
    Some(PartKey { first_group: first.clone(), groups: groups.len(), call })
}
