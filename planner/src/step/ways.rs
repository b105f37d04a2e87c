//! What one group finds for a call, by itself.

use fabricast_sim::LaunchMode;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::of_many::{Ways, of_many};
use super::price::Simulated;
use super::sample::{Part, Sample};
use super::together::Planned;
use crate::job::Collectives;
use crate::library::{Chooser, Conditions, Offer, Registered};
use crate::plan::{Effort, Measurements, Plan, PlanError, PlanRequest, Priced, Row, Watcher, plan_within};
use crate::strategy::{Restriction, Strategy};

/// Where the library's own choice is worked out; between hosts that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnChoice {
    /// For groups inside of an NVLink domain.
    Inside,
    /// For all.
    Everywhere,
}

/// The library's choice is picked where nothing is faster for certain; a job is told what is likely.
pub(crate) fn fastest(row: &Row) -> Priced {
    row.runner_up.filter(|second| second.time < row.pick.time).unwrap_or(row.pick)
}

/// All that was simulated for a row.
pub(super) fn simulated(row: &Row) -> impl Iterator<Item = Priced> {
    let named = row.library_default.iter().map(|own| own.priced).chain(row.runner_up).chain([row.pick]);
    row.pairs.iter().copied().chain(named).chain(row.preference.passed_over().copied())
}

impl Simulated<'_> {
    /// All that was simulated for a group, the fastest first. Of what streams among many, parts of a large call are timed.
    pub(super) fn ways(
        &self,
        group: &[NodeId],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let found = |ways: Ways, bytes: Bytes| {
            let plan = self.plan_of(ways, group, (collective, &[bytes]), collectives, OwnChoice::Inside)?;
            let times = plan.rows.iter().flat_map(simulated).map(|way| (way.time, way.strategy));
            Ok(times.collect::<Vec<_>>())
        };
        let of_stream = if self.is_spread(group) { Sample::of_stream(bytes) } else { None };
        let mut ways = match of_stream {
            None => found(Ways::All, bytes)?,
            Some(sample) => {
                let streaming = || {
                    let in_part = found(Ways::Streaming, sample.last())?;
                    let whole = |(took, strategy)| {
                        self.stream_of_one(group, (took, sample.last()), &Planned { collective, bytes, strategy })
                    };
                    in_part.into_par_iter().with_max_len(1).map(whole).collect()
                };
                match rayon::join(|| found(Ways::InBlocks, bytes), streaming) {
                    // There may be none of either.
                    (Err(PlanError::NothingToChoose { .. }), some) | (some, Err(PlanError::NothingToChoose { .. })) => {
                        some?
                    }
                    (in_blocks, streaming) => [in_blocks?, streaming?].concat(),
                }
            }
        };
        ways.sort_unstable();
        ways.dedup();
        Ok(ways)
    }

    /// What one group takes for a large call that streams, of the last part of which it is known what that takes.
    fn stream_of_one(
        &self,
        group: &[NodeId],
        (took, last): (Picos, Bytes),
        call: &Planned,
    ) -> Result<(Picos, Strategy), PlanError> {
        let part = Part { group: group.to_vec(), groups: 1, call: Planned { bytes: last, ..*call } };
        self.parts.or_find(part, || Ok::<_, PlanError>(Some(took)))?;
        let time = self.streamed(&[group.to_vec()], call).unwrap_or(Ok(took))?;
        Ok((time, call.strategy))
    }

    /// What `plan` finds for a call of one group.
    pub(crate) fn row(
        &self,
        first: &[NodeId],
        collective: Collective,
        bytes: Bytes,
        collectives: Collectives,
        own: OwnChoice,
    ) -> Result<Option<Row>, PlanError> {
        Ok(self.plan(first, collective, &[bytes], collectives, own)?.rows.into_iter().next())
    }

    /// The same at several sizes.
    pub(crate) fn plan(
        &self,
        first: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: Collectives,
        own: OwnChoice,
    ) -> Result<Plan, PlanError> {
        self.plan_of(Ways::All, first, (collective, sizes), collectives, own)
    }

    /// The same among some of the ways that there are.
    fn plan_of(
        &self,
        ways: Ways,
        first: &[NodeId],
        (collective, sizes): (Collective, &[Bytes]),
        collectives: Collectives,
        own: OwnChoice,
    ) -> Result<Plan, PlanError> {
        let mode = LaunchMode { gpus_per_host: self.router.fabric().most_on_a_host(first), ..LaunchMode::default() };
        let library = self.library();
        // What no library is for may be done any way.
        let runs = library.runs_on(self.router.fabric(), first);
        let inside = !self.leaves_its_domain(first);
        // Inside of a domain what the library would choose competes with chunks of its own, as those of its switch kernels.
        let chooser = (runs && (inside || own == OwnChoice::Everywhere))
            .then(|| Chooser::new(library, self.router.fabric(), self.router, first, Conditions::default()));
        let restriction = Restriction {
            library: (runs && collectives == Collectives::Library).then_some(Offer::new(library, Registered::Plain)),
            ..if self.is_spread(first) { of_many(collective, mode.gpus_per_host, ways) } else { Restriction::default() }
        };
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
        plan_within(&request, &self.bounds(first), &Measurements::NONE, Watcher::default())
    }
}
