//! Candidate strategies of a call, timed for one group alone.

use std::borrow::Cow;

use fabricast_sim::LaunchMode;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::call_times::SimulatedCosts;
use super::concurrent_calls::CallWithStrategy;
use super::large_group_candidates::{TimingMethod, large_group_restriction};
use super::rank_scaling::ScalingLaw;
use super::size_sampling::{PartKey, SizeSample};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::{BufferRegistration, Chooser, Conditions, LibraryCapabilities};
use fabricast_search::candidates::{Restriction, candidates};
use fabricast_search::plan::{
    Effort, Measurements, Plan, PlanError, PlanRequest, Row, TimedStrategy, Watcher, plan_with_bounds,
};
use fabricast_workload::job::CollectiveCandidates;

/// Scope in which the library's own choice is predicted; between hosts that is expensive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryChoiceScope {
    /// Only for groups inside an NVLink domain.
    Inside,
    /// For all groups.
    Everywhere,
}

/// Returns the candidate with the least expected time. `plan` picks the library default unless another is faster for
/// certain; a job uses the expected time.
pub fn fastest(row: &Row) -> TimedStrategy {
    row.runner_up.filter(|second| second.time < row.pick.time).unwrap_or(row.pick)
}

/// Returns all candidates simulated for a row.
pub(super) fn simulated_candidates(row: &Row) -> impl Iterator<Item = TimedStrategy> {
    let named = row.library_default.iter().map(|choice| choice.timed).chain(row.runner_up).chain([row.pick]);
    row.pairs.iter().copied().chain(named).chain(row.preference.rejected_fastest().copied())
}

/// Ranks and message size at which a kind of candidates is searched.
type SamplePoint<'a> = (Cow<'a, [NodeId]>, Bytes);

/// Ranks and message size of a call or of its sample.
#[derive(Clone, Copy)]
struct CallPoint<'a> {
    ranks: &'a [NodeId],
    bytes: Bytes,
}

impl SimulatedCosts<'_> {
    /// Candidates of some kinds simulated for a group, fastest first. In large groups, streaming calls are sampled, and
    /// rings, trees and PAT are extrapolated from fewer ranks.
    pub(super) fn candidates(
        &self,
        kinds: &[TimingMethod],
        group: &[NodeId],
        collective: Collective,
        bytes: Bytes,
        collectives: CollectiveCandidates,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        // Ranks and message size at which a kind is searched; `None`: those of the call itself.
        let sample_point = |kind: TimingMethod| {
            if !self.is_large_group(group) || !TimingMethod::has_candidates(collective, kind) {
                return None;
            }
            let streamed_bytes = || SizeSample::for_streaming_call(bytes).map(|sample| sample.largest());
            let scaled_point = |bytes, growth| {
                let scaled_down = self.scaled_down(group, bytes, growth)?;
                let [_, ranks] = scaled_down.sample_ranks();
                Some((Cow::from(scaled_down.select(group, ranks)?), scaled_down.scaled_bytes(ranks)))
            };
            match kind {
                TimingMethod::Streaming => Some((Cow::from(group), streamed_bytes()?)),
                TimingMethod::Ring => scaled_point(bytes, ScalingLaw::Rank),
                // (PAT is not available with several ranks on a host.)
                TimingMethod::Pat if self.router.fabric().max_devices_per_host(group) > 1 => None,
                TimingMethod::Pat => scaled_point(bytes, ScalingLaw::RankIfConfirmed),
                TimingMethod::Tree => match streamed_bytes() {
                    Some(last) => scaled_point(last, ScalingLaw::Doubling).or(Some((Cow::from(group), last))),
                    None => scaled_point(bytes, ScalingLaw::Doubling),
                },
                TimingMethod::Other => None,
            }
        };
        let parts: Vec<_> = kinds.iter().map(|&kind| (kind, sample_point(kind))).collect();
        let unsampled: Vec<TimingMethod> =
            parts.iter().filter(|(_, part)| part.is_none()).map(|(kind, _)| *kind).collect();
        let time_sampled = || -> Vec<_> {
            let time_part = |(kind, part): &(TimingMethod, Option<SamplePoint<'_>>)| {
                let (ranks, last) = part.as_ref()?;
                let (call, sample) = (CallPoint { ranks: group, bytes }, CallPoint { ranks, bytes: *last });
                Some(self.sampled_candidates(*kind, call, sample, collective, collectives))
            };
            parts.par_iter().with_max_len(1).filter_map(time_part).collect()
        };
        let time_unsampled = || {
            (!unsampled.is_empty()).then(|| self.simulate_candidates(&unsampled, group, bytes, collective, collectives))
        };
        let (unsampled, sampled) = rayon::join(time_unsampled, time_sampled);
        let mut timed = Vec::new();
        let mut no_candidates = None;
        for result in unsampled.into_iter().chain(sampled) {
            match result {
                Ok(candidates) => timed.extend(candidates),
                // A kind may have no candidates.
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

    /// Candidates of some kinds simulated at the given size, fastest first.
    fn simulate_candidates(
        &self,
        kinds: &[TimingMethod],
        group: &[NodeId],
        bytes: Bytes,
        collective: Collective,
        collectives: CollectiveCandidates,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let plan = self.plan_kinds(kinds, group, collective, &[bytes], collectives, LibraryChoiceScope::Inside)?;
        let times =
            plan.rows.iter().flat_map(simulated_candidates).map(|candidate| (candidate.time, candidate.strategy));
        let mut timed: Vec<(Picos, Strategy)> = times.collect();
        timed.sort_unstable();
        timed.dedup();
        Ok(timed)
    }

    /// Candidates of a kind, searched in a part of the call (fewer ranks or fewer bytes), with the extrapolated time of
    /// the whole call.
    fn sampled_candidates(
        &self,
        kind: TimingMethod,
        call: CallPoint<'_>,
        sample: CallPoint<'_>,
        collective: Collective,
        collectives: CollectiveCandidates,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let (groups, bytes) = ([call.ranks.to_vec()], call.bytes);
        let extrapolate = |(time, strategy)| {
            let part = PartKey {
                group: sample.ranks.to_vec(),
                groups: 1,
                call: CallWithStrategy { collective, bytes: sample.bytes, strategy },
            };
            self.parts.get_or_compute(part, || Ok::<_, PlanError>(Some(time)))?;
            Ok((self.call_time(&groups, &CallWithStrategy { collective, bytes, strategy })?, strategy))
        };
        let timed = self.simulate_candidates(&[kind], sample.ranks, sample.bytes, collective, collectives)?;
        // (The first error in candidate order is returned, whichever occurs first.)
        let timed: Vec<Result<_, PlanError>> = timed.into_par_iter().with_max_len(1).map(extrapolate).collect();
        timed.into_iter().collect()
    }

    /// Plans a call of one group.
    pub(crate) fn plan_row(
        &self,
        first: &[NodeId],
        collective: Collective,
        bytes: Bytes,
        collectives: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Result<Option<Row>, PlanError> {
        Ok(self.plan(first, collective, &[bytes], collectives, scope)?.rows.into_iter().next())
    }

    /// Variant of `plan_row` for several message sizes.
    pub fn plan(
        &self,
        first: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Result<Plan, PlanError> {
        self.plan_kinds(&TimingMethod::ALL, first, collective, sizes, collectives, scope)
    }

    /// Returns the only candidate of these kinds; `None` if there are several or none.
    pub(super) fn only_candidate(
        &self,
        kinds: &[TimingMethod],
        group: &[NodeId],
        collective: Collective,
        bytes: Bytes,
        collectives: CollectiveCandidates,
    ) -> Option<Strategy> {
        let (fabric, router) = (self.router.fabric(), self.router);
        let capabilities =
            FabricCapabilities::new(fabric, router, group, fabric.max_devices_per_host(group), InNetwork::Allowed);
        let restriction = self.restriction(kinds, group, collective, &[bytes], collectives);
        match *candidates(collective, &capabilities, &restriction, self.profile.software(), bytes) {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Candidate restriction for a group.
    fn restriction(
        &self,
        kinds: &[TimingMethod],
        group: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: CollectiveCandidates,
    ) -> Restriction {
        let (fabric, library) = (self.router.fabric(), self.library());
        let is_offered = collectives == CollectiveCandidates::Library && library.runs_on(fabric, group);
        Restriction {
            library: is_offered.then_some(LibraryCapabilities::new(library, BufferRegistration::Plain)),
            ..if self.is_large_group(group) {
                let largest = sizes.iter().max().map_or(0, |bytes| bytes.0.div_ceil(group.len() as u64));
                large_group_restriction(collective, fabric.max_devices_per_host(group), kinds, Bytes(largest))
            } else {
                Restriction::default()
            }
        }
    }

    /// Variant of [`Self::plan`] restricted to some kinds of candidates.
    fn plan_kinds(
        &self,
        kinds: &[TimingMethod],
        first: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: CollectiveCandidates,
        scope: LibraryChoiceScope,
    ) -> Result<Plan, PlanError> {
        let mode =
            LaunchMode { gpus_per_host: self.router.fabric().max_devices_per_host(first), ..LaunchMode::default() };
        let library = self.library();
        // Without a library that supports the GPUs, all strategies are allowed.
        let is_supported = library.runs_on(self.router.fabric(), first);
        let inside = !self.spans_domains(first);
        // Inside a domain the library's choice is a candidate with chunk sizes of its own, such as those of its NVLS
        // kernels.
        let chooser = (is_supported && (inside || scope == LibraryChoiceScope::Everywhere))
            .then(|| Chooser::new(library, self.router.fabric(), self.router, first, Conditions::default()));
        let restriction = self.restriction(kinds, first, collective, sizes, collectives);
        let request = PlanRequest {
            fabric: self.router.fabric(),
            router: self.router,
            placement: first,
            profile: self.profile,
            ranks_per_node: mode.gpus_per_host,
            mode,
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives: &[collective],
            sizes,
            restriction: &restriction,
            library: chooser.as_ref(),
            effort: Effort::Contenders,
        };
        plan_with_bounds(&request, &self.bounds(first), &Measurements::NONE, Watcher::default())
    }
}
