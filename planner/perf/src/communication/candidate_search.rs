//! Search over the candidate strategies of a call, each timed for a single group.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;

use fabricast_sim::LaunchMode;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::calls::CallRequest;
use super::candidate_class::{CandidateClass, large_group_restriction};
use super::extrapolation::scaling_law::ScalingLaw;
use super::extrapolation::size_sampling::SizeSample;
use super::timing_method::{CallTimer, KnownTime};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::{BufferRegistration, Chooser, Conditions, Library, LibraryCapabilities};
use fabricast_search::candidates::{Restriction, candidates};
use fabricast_search::plan::{
    Effort, Measurements, Plan, PlanError, PlanRequest, PlanRow, TimedStrategy, plan_single_calls, plan_with_bounds,
};
use fabricast_sim::monitor::Monitor;
use fabricast_workload::job::CollectiveCandidates;

/// Groups for which the library's own choice is predicted. The prediction is slow for groups that span NVLink domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryChoiceScope {
    /// The choice is predicted only for groups inside an NVLink domain.
    Inside,
    /// The choice is predicted for all groups.
    Everywhere,
}

/// Returns all candidates that were simulated for a row of a plan.
pub(super) fn simulated_candidates(row: &PlanRow) -> impl Iterator<Item = TimedStrategy> {
    let named = row.library_default.iter().map(|choice| choice.timed).chain(row.runner_up).chain([row.pick]);
    row.pairs.iter().copied().chain(named).chain(row.preference.rejected_fastest().copied())
}

/// Candidate strategy with its completion time for a single group. Ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimedCandidate {
    pub time: Picos,
    pub strategy: Strategy,
}

/// Ranks and message size at which a class of candidates is searched.
struct SamplePoint<'a> {
    ranks: Cow<'a, [NodeId]>,
    bytes: Bytes,
}

/// Message sizes at which a collective is planned.
#[derive(Clone, Copy)]
struct SizeList<'a> {
    collective: Collective,
    sizes: &'a [Bytes],
    allowed: CollectiveCandidates,
}

/// Search over the candidate strategies of one group.
#[derive(Clone, Copy)]
pub(super) struct CandidateSearch<'a> {
    pub timer: CallTimer<'a>,
    /// Flag that stops the search of single calls.
    pub interrupt: Option<&'a AtomicBool>,
}

impl CandidateSearch<'_> {
    /// Returns the candidates of some classes for a group with their simulated times, fastest first. In large groups,
    /// streaming calls are sampled, and rings, trees and PAT are extrapolated from scaled-down groups.
    pub(super) fn candidates(
        &self,
        classes: &[CandidateClass],
        group: &[NodeId],
        request: CallRequest,
    ) -> Result<Vec<TimedCandidate>, PlanError> {
        let points: Vec<_> = classes.iter().map(|&class| (class, self.sample_point(class, group, request))).collect();
        let unsampled: Vec<CandidateClass> =
            points.iter().filter(|(_, point)| point.is_none()).map(|(class, _)| *class).collect();
        let time_sampled = || -> Vec<_> {
            let time_point = |(class, point): &(CandidateClass, Option<SamplePoint<'_>>)| {
                Some(self.sampled_candidates(*class, group, request, point.as_ref()?))
            };
            points.par_iter().with_max_len(1).filter_map(time_point).collect()
        };
        let time_unsampled = || (!unsampled.is_empty()).then(|| self.simulate_candidates(&unsampled, group, request));
        let (unsampled, sampled) = rayon::join(time_unsampled, time_sampled);
        let mut timed = Vec::new();
        let mut no_candidates = None;
        for result in unsampled.into_iter().chain(sampled) {
            match result {
                Ok(candidates) => timed.extend(candidates),
                // A class may have no candidates.
                Err(error @ PlanError::NothingToChoose { .. }) => no_candidates = Some(error),
                Err(error) => return Err(error),
            }
        }
        timed.sort_unstable();
        match no_candidates {
            Some(error) if timed.is_empty() => Err(error),
            _ => Ok(timed),
        }
    }

    /// Returns the ranks and the message size at which a class of candidates is searched; `None` if they are those of
    /// the call itself.
    fn sample_point<'g>(
        &self,
        class: CandidateClass,
        group: &'g [NodeId],
        request: CallRequest,
    ) -> Option<SamplePoint<'g>> {
        let CallRequest { collective, bytes, .. } = request;
        if !self.timer.placement.is_large_group(group) || !class.has_candidates(collective) {
            return None;
        }
        let streamed_bytes = || SizeSample::for_streaming_call(bytes).map(|sample| sample.largest());
        let scaled_point = |bytes, law| {
            let scaled_down = self.timer.scaled_down(group, bytes, law)?;
            let [_, ranks] = scaled_down.sample_ranks();
            let bytes = scaled_down.scaled_bytes(ranks);
            Some(SamplePoint { ranks: Cow::from(scaled_down.select(group, ranks)?), bytes })
        };
        match class {
            CandidateClass::Streaming => Some(SamplePoint { ranks: Cow::from(group), bytes: streamed_bytes()? }),
            CandidateClass::Ring => scaled_point(bytes, ScalingLaw::Rank),
            // PAT is not available if a host has several ranks of the group.
            CandidateClass::Pat if self.timer.placement.fabric().max_devices_per_host(group) > 1 => None,
            CandidateClass::Pat => scaled_point(bytes, ScalingLaw::RankIfConfirmed),
            CandidateClass::Tree => match streamed_bytes() {
                Some(last) => scaled_point(last, ScalingLaw::Doubling)
                    .or(Some(SamplePoint { ranks: Cow::from(group), bytes: last })),
                None => scaled_point(bytes, ScalingLaw::Doubling),
            },
            CandidateClass::Other => None,
        }
    }

    /// Returns the candidates of some classes, simulated at the ranks and size of the request, fastest first.
    fn simulate_candidates(
        &self,
        classes: &[CandidateClass],
        group: &[NodeId],
        request: CallRequest,
    ) -> Result<Vec<TimedCandidate>, PlanError> {
        let CallRequest { collective, bytes, allowed } = request;
        let sizes = SizeList { collective, sizes: &[bytes], allowed };
        let plan = self.plan_classes(classes, group, sizes, LibraryChoiceScope::Inside)?;
        let times = plan.rows.iter().flat_map(simulated_candidates);
        let mut timed: Vec<TimedCandidate> =
            times.map(|candidate| TimedCandidate { time: candidate.time, strategy: candidate.strategy }).collect();
        timed.sort_unstable();
        timed.dedup();
        Ok(timed)
    }

    /// Returns the candidates of a class, searched at a sample of the call (fewer ranks or fewer bytes), with the
    /// extrapolated time of the whole call.
    fn sampled_candidates(
        &self,
        class: CandidateClass,
        group: &[NodeId],
        request: CallRequest,
        sample: &SamplePoint<'_>,
    ) -> Result<Vec<TimedCandidate>, PlanError> {
        let groups = [group.to_vec()];
        let sample_request = request.with_bytes(sample.bytes);
        let extrapolate = |TimedCandidate { time, strategy }| {
            self.timer.record_first(&sample.ranks, sample_request.with_strategy(strategy), time);
            let time = self.timer.sample_time(&groups, request.with_strategy(strategy), KnownTime::Unknown)?;
            Ok(TimedCandidate { time, strategy })
        };
        let timed = self.simulate_candidates(&[class], &sample.ranks, sample_request)?;
        // The first error in the order of candidates is returned, independent of the order in which errors occur.
        let timed: Vec<Result<_, PlanError>> = timed.into_par_iter().with_max_len(1).map(extrapolate).collect();
        timed.into_iter().collect()
    }

    /// Plans a call of one group at several message sizes.
    pub(super) fn plan(
        &self,
        group: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        allowed: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Result<Plan, PlanError> {
        self.plan_classes(&CandidateClass::ALL, group, SizeList { collective, sizes, allowed }, scope)
    }

    /// Plans a call of one group at several message sizes, each without regard to the others.
    pub(super) fn single_rows(
        &self,
        group: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        allowed: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Vec<Result<PlanRow, PlanError>> {
        let sizes = SizeList { collective, sizes, allowed };
        let bounds = self.timer.cache.bounds(self.timer.placement.router(), group);
        let monitor = Monitor { interrupt: self.interrupt, progress: None };
        let plan = |request: &PlanRequest<'_>| plan_single_calls(request, &bounds, monitor);
        self.with_request(&CandidateClass::ALL, group, sizes, scope, plan)
    }

    /// Returns the strategy of the only candidate of these classes; `None` if there are several or none.
    pub(super) fn only_candidate(
        &self,
        classes: &[CandidateClass],
        group: &[NodeId],
        request: CallRequest,
    ) -> Option<Strategy> {
        let CallRequest { collective, bytes, allowed } = request;
        let (fabric, router) = (self.timer.placement.fabric(), self.timer.placement.router());
        let capabilities =
            FabricCapabilities::new(fabric, router, group, fabric.max_devices_per_host(group), InNetwork::Allowed);
        let restriction = self.restriction(classes, group, SizeList { collective, sizes: &[bytes], allowed });
        let software = self.timer.calls.profile.software();
        match *candidates(collective, &capabilities, &restriction, software, bytes) {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the library that the cost profile names; the newest NCCL if it names no known library.
    pub(super) fn library(&self) -> Library {
        self.timer.calls.profile.library.parse().unwrap_or(Library::NEWEST_NCCL)
    }

    /// Returns the restriction of the candidates that a plan examines for a group at these sizes.
    fn restriction(&self, classes: &[CandidateClass], group: &[NodeId], sizes: SizeList<'_>) -> Restriction {
        let SizeList { collective, sizes, allowed } = sizes;
        let (fabric, library) = (self.timer.placement.fabric(), self.library());
        let is_offered = allowed == CollectiveCandidates::Library && library.runs_on(fabric, group);
        Restriction {
            library: is_offered.then_some(LibraryCapabilities::new(library, BufferRegistration::Plain)),
            ..if self.timer.placement.is_large_group(group) {
                let largest = sizes.iter().max().map_or(0, |bytes| bytes.0.div_ceil(group.len() as u64));
                large_group_restriction(collective, fabric.max_devices_per_host(group), classes, Bytes(largest))
            } else {
                Restriction::default()
            }
        }
    }

    /// Plans a call of one group at several message sizes, with some classes of candidates only.
    fn plan_classes(
        &self,
        classes: &[CandidateClass],
        group: &[NodeId],
        sizes: SizeList<'_>,
        scope: LibraryChoiceScope,
    ) -> Result<Plan, PlanError> {
        let bounds = self.timer.cache.bounds(self.timer.placement.router(), group);
        let plan =
            |request: &PlanRequest<'_>| plan_with_bounds(request, &bounds, &Measurements::NONE, Monitor::default());
        self.with_request(classes, group, sizes, scope, plan)
    }

    /// Calls `plan` with the request of a plan of one group, with some classes of candidates only.
    fn with_request<T>(
        &self,
        classes: &[CandidateClass],
        group: &[NodeId],
        sizes: SizeList<'_>,
        scope: LibraryChoiceScope,
        plan: impl FnOnce(&PlanRequest<'_>) -> T,
    ) -> T {
        let CallTimer { placement, calls, .. } = self.timer;
        let (fabric, router) = (placement.fabric(), placement.router());
        let mode = LaunchMode { gpus_per_host: fabric.max_devices_per_host(group), ..LaunchMode::default() };
        let library = self.library();
        // If the library does not support the GPUs, all strategies are allowed.
        let is_supported = library.runs_on(fabric, group);
        let inside = !placement.spans_domains(group);
        // Within a domain, the library's choice is a candidate with its own chunk sizes, such as those of NVLS kernels.
        let chooser = (is_supported && (inside || scope == LibraryChoiceScope::Everywhere))
            .then(|| Chooser::new(library, fabric, router, group, Conditions::default()));
        let restriction = self.restriction(classes, group, sizes);
        plan(&PlanRequest {
            fabric,
            router,
            placement: group,
            profile: calls.profile,
            ranks_per_node: mode.gpus_per_host,
            mode,
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives: &[sizes.collective],
            sizes: sizes.sizes,
            restriction: &restriction,
            library: chooser.as_ref(),
            effort: Effort::Contenders,
        })
    }
}
