//! Simulation of concurrent calls of several groups on one fabric.

use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Generate, Rank, Schedule};
use fabricast_sim::{Folding, LaunchMode, Party, Surroundings, simulate_together};
use fabricast_topologies::route::{BufferPlace, Router};
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::meeting::Standing;
use super::price::Simulated;
use crate::abilities::Abilities;
use crate::algorithm::{self, Algorithm, Shape};
use crate::bound::InNetwork;
use crate::plan::PlanError;
use crate::strategy::Strategy;

/// Call with its strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Planned {
    pub collective: Collective,
    pub bytes: Bytes,
    pub strategy: Strategy,
}

impl Simulated<'_> {
    /// Completion time of the slowest of several groups that make the same call concurrently.
    pub(super) fn slowest(
        &self,
        groups: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let call = Planned { collective, bytes, strategy };
        self.slowest_of(&self.that_stand(groups, call), call)
    }

    /// Variant of [`Self::slowest`] given the time of the first group alone, which is returned if the first group
    /// represents all.
    pub(super) fn slowest_knowing(
        &self,
        groups: &[Vec<NodeId>],
        (collective, bytes): (Collective, Bytes),
        (alone, strategy): (Picos, Strategy),
    ) -> Result<Picos, PlanError> {
        let call = Planned { collective, bytes, strategy };
        let calls = if groups.len() > 1 { self.that_stand(groups, call) } else { return Ok(alone) };
        if calls.parties.len() == 1 { Ok(alone) } else { self.slowest_of(&calls, call) }
    }

    /// Returns true if the first of several groups that make the same call takes as long as it takes alone.
    pub(super) fn first_stands_for_all(&self, groups: &[Vec<NodeId>], call: Planned) -> bool {
        groups.len() == 1 || self.that_stand(groups, call).parties.len() == 1
    }

    /// Returns the calls of the representative groups.
    fn that_stand<'c>(&self, groups: &'c [Vec<NodeId>], call: Planned) -> Calls<'c> {
        let at_once: Vec<(Planned, &[NodeId], Picos)> =
            groups.iter().map(|devices| (call, devices.as_slice(), Picos::ZERO)).collect();
        let mut calls = self.written(&at_once);
        calls.only_what_stands_for_all(self.router, &self.standing);
        calls
    }

    fn slowest_of(&self, calls: &Calls<'_>, call: Planned) -> Result<Picos, PlanError> {
        Ok(self.run(calls, call)?.into_iter().max().unwrap_or_default())
    }

    /// End times of several concurrent calls with the given start times.
    pub(crate) fn together_at(&self, calls: &[(Planned, &[NodeId], Picos)]) -> Result<Vec<Picos>, PlanError> {
        let Some(&(first, ..)) = calls.first() else { return Ok(Vec::new()) };
        let written = self.written(calls);
        // (Times are matched to calls by index.)
        if written.parties.len() != calls.len() {
            let collective = first.collective;
            return Err(PlanError::NothingToChoose { collective, rejected: Vec::new(), possible: Vec::new() });
        }
        self.run(&written, first)
    }

    /// Builds the generators of several calls.
    pub(super) fn written<'c>(&self, calls: &[(Planned, &'c [NodeId], Picos)]) -> Calls<'c> {
        let mut written = Calls::default();
        for &(planned, devices, begin) in calls {
            let per_node = self.router.fabric().most_on_a_host(devices);
            written.mode.gpus_per_host = written.mode.gpus_per_host.max(per_node);
            let shape = self.shaper(devices, per_node);
            let delays = if begin == Picos::ZERO { Vec::new() } else { vec![begin; devices.len()] };
            let place = self.router.options().buffers;
            // A group with another placement may not support the strategy picked for the first: it falls back to a ring
            // or to direct sends.
            [planned.strategy.algorithm, Algorithm::Ring, Algorithm::Direct].into_iter().any(|algorithm| {
                let planned = Planned { strategy: Strategy { algorithm, ..planned.strategy }, ..planned };
                written.add((algorithm, shape(planned)), place, devices, delays.clone())
            });
        }
        written
    }

    /// Builds the full schedule of one call; `None` if it cannot be generated.
    pub(crate) fn schedule(&self, planned: Planned, devices: &[NodeId]) -> Option<Schedule> {
        let shape = self.shaper(devices, self.router.fabric().most_on_a_host(devices))(planned);
        let generator = algorithm::generator(planned.strategy.algorithm, &shape).ok()?;
        Schedule::build(generator.as_ref()).ok()
    }

    /// Returns a function that computes the generator input of a call for a group with `per_node` ranks per host.
    fn shaper(&self, devices: &[NodeId], per_node: u32) -> impl Fn(Planned) -> Shape {
        let (fabric, ranks) = (self.router.fabric(), devices.len() as u32);
        let abilities = Abilities::of(fabric, self.router, devices, per_node, InNetwork::Allowed);
        move |Planned { collective, bytes, strategy }| {
            let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shape = strategy.shape(call, self.profile, per_node, &abilities);
            Shape { grid: fabric.host_grid().to_vec(), ..shape }
        }
    }

    /// Simulates the calls and returns their end times. `first` is one of them, for error messages.
    fn run(&self, calls: &Calls<'_>, first: Planned) -> Result<Vec<Picos>, PlanError> {
        let Self { router, profile, .. } = *self;
        let parties = calls.parties.iter().filter_map(|(number, placement, delays)| {
            let setting = Setting { fabric: router.fabric(), router, placement, profile, delays };
            let (.., generator) = calls.generators.get(*number)?;
            Some(Party { generator: generator.as_ref(), setting })
        });
        let parties: Vec<Party<'_>> = parties.collect();
        let surroundings = Surroundings { folding: Folding::BlocksFirst, ..Surroundings::default() };
        simulate_together(&parties, calls.mode, surroundings, Watch::default())
            .map(|timeline| timeline.party_times)
            .map_err(|source| PlanError::Simulation {
                strategy: first.strategy,
                collective: first.collective,
                bytes: first.bytes,
                source: source.into(),
            })
    }
}

/// Calls of several groups. Groups of the same shape share one generator.
#[derive(Default)]
pub(super) struct Calls<'c> {
    generators: Vec<(Algorithm, Shape, Box<dyn Generate + Send + Sync>)>,
    /// Per group: index of its generator, its devices, and the start delay of each rank.
    parties: Vec<(usize, &'c [NodeId], Vec<Picos>)>,
    mode: LaunchMode,
}

impl<'c> Calls<'c> {
    /// Returns each generator with the groups that run it.
    pub(super) fn by_generator(&self) -> impl Iterator<Item = (&dyn Generate, Vec<&'c [NodeId]>)> {
        self.generators.iter().enumerate().map(|(number, (.., generator))| {
            let groups = self.parties.iter().filter(|party| party.0 == number).map(|party| party.1);
            (generator.as_ref() as &dyn Generate, groups.collect())
        })
    }

    /// Adds a call. Returns false if the algorithm cannot generate it.
    fn add(
        &mut self,
        (algorithm, shape): (Algorithm, Shape),
        place: BufferPlace,
        devices: &'c [NodeId],
        delays: Vec<Picos>,
    ) -> bool {
        let known = self.generators.iter().position(|one| (one.0, &one.1) == (algorithm, &shape));
        let number = known.unwrap_or(self.generators.len());
        if known.is_none() {
            match algorithm::timed(algorithm, &shape, place) {
                Ok(generator) => self.generators.push((algorithm, shape, generator)),
                Err(_) => return false,
            }
        }
        self.parties.push((number, devices, delays));
        true
    }

    /// Removes the groups that others represent.
    fn only_what_stands_for_all(&mut self, router: &Router<'_>, standing: &Standing) {
        if let [(.., generator)] = self.generators.as_slice() {
            let groups: Vec<&[NodeId]> = self.parties.iter().map(|one| one.1).collect();
            let standing = standing.of(router, generator.as_ref(), &groups);
            self.parties = standing.iter().filter_map(|&group| self.parties.get(group).cloned()).collect();
        }
    }
}
