//! Candidate strategies of a call, timed for one group alone.

use std::borrow::Cow;

use fabricast_sim::LaunchMode;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::{Bytes, NodeId, Picos};
use rayon::prelude::*;

use super::fewer::Growth;
use super::of_many::{Kind, of_many};
use super::price::Simulated;
use super::sample::{Part, Sample};
use super::together::Planned;
use crate::abilities::Abilities;
use crate::bound::InNetwork;
use crate::job::Collectives;
use crate::library::{Chooser, Conditions, Offer, Registered};
use crate::plan::{Effort, Measurements, Plan, PlanError, PlanRequest, Priced, Row, Watcher, plan_within};
use crate::strategy::{Restriction, Strategy, candidates};

/// Scope in which the library's own choice is predicted; between hosts that is expensive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnChoice {
    /// Only for groups inside an NVLink domain.
    Inside,
    /// For all groups.
    Everywhere,
}

/// Returns the candidate with the least expected time. `plan` picks the library default unless another is faster for
/// certain; a job uses the expected time.
pub(crate) fn fastest(row: &Row) -> Priced {
    row.runner_up.filter(|second| second.time < row.pick.time).unwrap_or(row.pick)
}

/// Returns all candidates simulated for a row.
pub(super) fn simulated(row: &Row) -> impl Iterator<Item = Priced> {
    let named = row.library_default.iter().map(|own| own.priced).chain(row.runner_up).chain([row.pick]);
    row.pairs.iter().copied().chain(named).chain(row.preference.passed_over().copied())
}

/// Ranks and message size at which a kind of candidates is searched.
type Sampled<'a> = (Cow<'a, [NodeId]>, Bytes);

impl Simulated<'_> {
    /// Candidates of some kinds simulated for a group, fastest first. In large groups, streaming calls are sampled, and
    /// rings, trees and PAT are extrapolated from fewer ranks.
    pub(super) fn ways(
        &self,
        kinds: &[Kind],
        group: &[NodeId],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let asked = (collective, collectives);
        // Ranks and message size at which a kind is searched; `None`: those of the call itself.
        let part_of = |kind: Kind| {
            if !self.is_spread(group) || !Kind::is_of(collective, kind) {
                return None;
            }
            let streamed = || Sample::of_stream(bytes).map(|sample| sample.last());
            let fewer = |bytes, growth| {
                let fewer = self.fewer(group, bytes, growth)?;
                let [_, ranks] = fewer.timed();
                Some((Cow::from(fewer.of(group, ranks)?), fewer.bytes(ranks)))
            };
            match kind {
                Kind::Streaming => Some((Cow::from(group), streamed()?)),
                Kind::Ring => fewer(bytes, Growth::ByRank),
                // (PAT is not available with several ranks on a host.)
                Kind::Pat if self.router.fabric().most_on_a_host(group) > 1 => None,
                Kind::Pat => fewer(bytes, Growth::WithParts),
                Kind::Tree => match streamed() {
                    Some(last) => fewer(last, Growth::ByDoubling).or(Some((Cow::from(group), last))),
                    None => fewer(bytes, Growth::ByDoubling),
                },
                Kind::Other => None,
            }
        };
        let parts: Vec<_> = kinds.iter().map(|&kind| (kind, part_of(kind))).collect();
        let whole: Vec<Kind> = parts.iter().filter(|(_, part)| part.is_none()).map(|(kind, _)| *kind).collect();
        let in_part = || -> Vec<_> {
            let of = |(kind, part): &(Kind, Option<Sampled<'_>>)| {
                let (ranks, last) = part.as_ref()?;
                Some(self.ways_in_part(*kind, (group, bytes), (ranks, *last), asked))
            };
            parts.par_iter().with_max_len(1).filter_map(of).collect()
        };
        let as_it_is = || (!whole.is_empty()).then(|| self.ways_of(&whole, group, bytes, asked));
        let (whole, in_part) = rayon::join(as_it_is, in_part);
        let mut ways = Vec::new();
        let mut nothing = None;
        for some in whole.into_iter().chain(in_part) {
            match some {
                Ok(some) => ways.extend(some),
                // A kind may have no candidates.
                Err(error @ PlanError::NothingToChoose { .. }) => nothing = Some(error),
                Err(error) => return Err(error),
            }
        }
        ways.sort_unstable();
        match nothing {
            Some(error) if ways.is_empty() => Err(error),
            _ => Ok(ways),
        }
    }

    /// Candidates of some kinds simulated at the given size, fastest first.
    fn ways_of(
        &self,
        kinds: &[Kind],
        group: &[NodeId],
        bytes: Bytes,
        (collective, collectives): (Collective, Collectives),
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let plan = self.plan_of(kinds, group, (collective, &[bytes]), collectives, OwnChoice::Inside)?;
        let times = plan.rows.iter().flat_map(simulated).map(|way| (way.time, way.strategy));
        let mut ways: Vec<(Picos, Strategy)> = times.collect();
        ways.sort_unstable();
        ways.dedup();
        Ok(ways)
    }

    /// Candidates of a kind, searched in a part of the call (fewer ranks or fewer bytes), with the extrapolated time of
    /// the whole call.
    fn ways_in_part(
        &self,
        kind: Kind,
        (group, bytes): (&[NodeId], Bytes),
        (ranks, last): (&[NodeId], Bytes),
        asked: (Collective, Collectives),
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let (groups, collective) = ([group.to_vec()], asked.0);
        let whole = |(took, strategy)| {
            let part = Part { group: ranks.to_vec(), groups: 1, call: Planned { collective, bytes: last, strategy } };
            self.parts.or_find(part, || Ok::<_, PlanError>(Some(took)))?;
            Ok((self.taken(&groups, &Planned { collective, bytes, strategy })?, strategy))
        };
        let ways = self.ways_of(&[kind], ranks, last, asked)?;
        // (The first error in candidate order is returned, whichever occurs first.)
        let ways: Vec<Result<_, PlanError>> = ways.into_par_iter().with_max_len(1).map(whole).collect();
        ways.into_iter().collect()
    }

    /// Plans a call of one group.
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

    /// Variant of [`Self::row`] for several message sizes.
    pub(crate) fn plan(
        &self,
        first: &[NodeId],
        collective: Collective,
        sizes: &[Bytes],
        collectives: Collectives,
        own: OwnChoice,
    ) -> Result<Plan, PlanError> {
        self.plan_of(&Kind::ALL, first, (collective, sizes), collectives, own)
    }

    /// Returns the only candidate of these kinds; `None` if there are several or none.
    pub(super) fn only_way(
        &self,
        kinds: &[Kind],
        group: &[NodeId],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Option<Strategy> {
        let (fabric, router) = (self.router.fabric(), self.router);
        let abilities = Abilities::of(fabric, router, group, fabric.most_on_a_host(group), InNetwork::Allowed);
        let restriction = self.restriction(kinds, group, (collective, &[bytes]), collectives);
        match *candidates(collective, &abilities, &restriction, (self.profile.software(), bytes)) {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Candidate restriction for a group.
    fn restriction(
        &self,
        kinds: &[Kind],
        group: &[NodeId],
        (collective, sizes): (Collective, &[Bytes]),
        collectives: Collectives,
    ) -> Restriction {
        let (fabric, library) = (self.router.fabric(), self.library());
        let is_offered = collectives == Collectives::Library && library.runs_on(fabric, group);
        Restriction {
            library: is_offered.then_some(Offer::new(library, Registered::Plain)),
            ..if self.is_spread(group) {
                let largest = sizes.iter().max().map_or(0, |bytes| bytes.0.div_ceil(group.len() as u64));
                of_many(collective, fabric.most_on_a_host(group), (kinds, Bytes(largest)))
            } else {
                Restriction::default()
            }
        }
    }

    /// Variant of [`Self::plan`] restricted to some kinds of candidates.
    fn plan_of(
        &self,
        kinds: &[Kind],
        first: &[NodeId],
        (collective, sizes): (Collective, &[Bytes]),
        collectives: Collectives,
        own: OwnChoice,
    ) -> Result<Plan, PlanError> {
        let mode = LaunchMode { gpus_per_host: self.router.fabric().most_on_a_host(first), ..LaunchMode::default() };
        let library = self.library();
        // Without a library that supports the GPUs, all strategies are allowed.
        let runs = library.runs_on(self.router.fabric(), first);
        let inside = !self.leaves_its_domain(first);
        // Inside a domain the library's choice is a candidate with chunk sizes of its own, such as those of its NVLS
        // kernels.
        let chooser = (runs && (inside || own == OwnChoice::Everywhere))
            .then(|| Chooser::new(library, self.router.fabric(), self.router, first, Conditions::default()));
        let restriction = self.restriction(kinds, first, (collective, sizes), collectives);
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
