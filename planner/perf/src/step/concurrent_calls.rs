//! Simulation of concurrent calls of several groups on one fabric.

use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank, Schedule, ScheduleGenerator};
use fabricast_sim::{Folding, LaunchMode, ScheduleInstance, SimulationOptions, simulate_concurrent};
use fabricast_topologies::route::{BufferLocation, Router};
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::call_times::SimulatedCosts;
use super::link_sharing::Representatives;
use fabricast_collectives::algorithm::{self, Algorithm, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::PlanError;

/// Call with its strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallWithStrategy {
    /// The collective.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// The strategy.
    pub strategy: Strategy,
}

impl SimulatedCosts<'_> {
    /// Completion time of the slowest of several groups that make the same call concurrently.
    pub(super) fn slowest(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let call = CallWithStrategy { collective, bytes, strategy };
        self.slowest_call(&self.representative_calls(groups, call), call)
    }

    /// Variant of [`Self::slowest`] given the time of the first group alone, which is returned if the first group
    /// represents all.
    pub(super) fn slowest_given_alone(
        &self,
        groups: &[Vec<NodeId>],
        collective: Collective,
        bytes: Bytes,
        alone: Picos,
        strategy: Strategy,
    ) -> Result<Picos, PlanError> {
        let call = CallWithStrategy { collective, bytes, strategy };
        let calls = if groups.len() > 1 { self.representative_calls(groups, call) } else { return Ok(alone) };
        if calls.groups.len() == 1 { Ok(alone) } else { self.slowest_call(&calls, call) }
    }

    /// Returns true if the first of several groups that make the same call takes as long as it takes alone.
    pub(super) fn first_represents_all(&self, groups: &[Vec<NodeId>], call: CallWithStrategy) -> bool {
        groups.len() == 1 || self.representative_calls(groups, call).groups.len() == 1
    }

    /// Returns the calls of the representative groups.
    fn representative_calls<'c>(&self, groups: &'c [Vec<NodeId>], call: CallWithStrategy) -> GeneratedCalls<'c> {
        let all_calls: Vec<(CallWithStrategy, &[NodeId], Picos)> =
            groups.iter().map(|devices| (call, devices.as_slice(), Picos::ZERO)).collect();
        let mut calls = self.generate_calls(&all_calls);
        calls.retain_representatives(self.router, &self.representatives);
        calls
    }

    fn slowest_call(&self, calls: &GeneratedCalls<'_>, call: CallWithStrategy) -> Result<Picos, PlanError> {
        Ok(self.run(calls, call)?.into_iter().max().unwrap_or_default())
    }

    /// End times of several concurrent calls with the given start times.
    pub(crate) fn concurrent_end_times(
        &self,
        calls: &[(CallWithStrategy, &[NodeId], Picos)],
    ) -> Result<Vec<Picos>, PlanError> {
        let Some(&(first, ..)) = calls.first() else { return Ok(Vec::new()) };
        let generated = self.generate_calls(calls);
        // (Times are matched to calls by index.)
        if generated.groups.len() != calls.len() {
            let collective = first.collective;
            return Err(PlanError::NothingToChoose { collective, rejected: Vec::new(), possible: Vec::new() });
        }
        self.run(&generated, first)
    }

    /// Builds the generators of several calls.
    pub(super) fn generate_calls<'c>(&self, calls: &[(CallWithStrategy, &'c [NodeId], Picos)]) -> GeneratedCalls<'c> {
        let mut generated = GeneratedCalls::default();
        for &(call, devices, begin) in calls {
            let per_node = self.router.fabric().max_devices_per_host(devices);
            generated.mode.gpus_per_host = generated.mode.gpus_per_host.max(per_node);
            let shape = self.shape_builder(devices, per_node);
            let delays = if begin == Picos::ZERO { Vec::new() } else { vec![begin; devices.len()] };
            let buffers = self.router.options().buffers;
            // A group with another placement may not support the strategy picked for the first: it falls back to a ring
            // or to direct sends.
            [call.strategy.algorithm, Algorithm::Ring, Algorithm::Direct].into_iter().any(|algorithm| {
                let call = CallWithStrategy { strategy: Strategy { algorithm, ..call.strategy }, ..call };
                generated.add(algorithm, shape(call), buffers, devices, delays.clone())
            });
        }
        generated
    }

    /// Builds the full schedule of one call; `None` if it cannot be generated.
    pub fn schedule(&self, call: CallWithStrategy, devices: &[NodeId]) -> Option<Schedule> {
        let shape = self.shape_builder(devices, self.router.fabric().max_devices_per_host(devices))(call);
        let generator = algorithm::generator(call.strategy.algorithm, &shape).ok()?;
        Schedule::build(generator.as_ref()).ok()
    }

    /// Returns a function that computes the generator input of a call for a group with `per_node` ranks per host.
    fn shape_builder(&self, devices: &[NodeId], per_node: u32) -> impl Fn(CallWithStrategy) -> Shape {
        let (fabric, ranks) = (self.router.fabric(), devices.len() as u32);
        let capabilities = FabricCapabilities::new(fabric, self.router, devices, per_node, InNetwork::Allowed);
        move |CallWithStrategy { collective, bytes, strategy }| {
            let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shape = strategy.shape(call, self.profile, per_node, &capabilities);
            Shape { grid: fabric.host_grid().to_vec(), ..shape }
        }
    }

    /// Simulates the calls and returns their end times. `first` is one of them, for error messages.
    fn run(&self, calls: &GeneratedCalls<'_>, first: CallWithStrategy) -> Result<Vec<Picos>, PlanError> {
        let Self { router, profile, .. } = *self;
        let instances = calls.groups.iter().filter_map(|(index, placement, delays)| {
            let setting = Environment { fabric: router.fabric(), router, placement, profile, delays };
            let (.., generator) = calls.generators.get(*index)?;
            Some(ScheduleInstance { generator: generator.as_ref(), setting })
        });
        let instances: Vec<ScheduleInstance<'_>> = instances.collect();
        let options = SimulationOptions { folding: Folding::BlocksFirst, ..SimulationOptions::default() };
        simulate_concurrent(&instances, calls.mode, options, Watch::default())
            .map(|timeline| timeline.instance_times)
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
pub(super) struct GeneratedCalls<'c> {
    generators: Vec<(Algorithm, Shape, Box<dyn ScheduleGenerator + Send + Sync>)>,
    /// Per group: index of its generator, its devices, and the start delay of each rank.
    groups: Vec<(usize, &'c [NodeId], Vec<Picos>)>,
    mode: LaunchMode,
}

impl<'c> GeneratedCalls<'c> {
    /// Returns each generator with the groups that run it.
    pub(super) fn by_generator(&self) -> impl Iterator<Item = (&dyn ScheduleGenerator, Vec<&'c [NodeId]>)> {
        self.generators.iter().enumerate().map(|(index, (.., generator))| {
            let groups = self.groups.iter().filter(|entry| entry.0 == index).map(|entry| entry.1);
            (generator.as_ref() as &dyn ScheduleGenerator, groups.collect())
        })
    }

    /// Adds a call. Returns false if the algorithm cannot generate it.
    fn add(
        &mut self,
        algorithm: Algorithm,
        shape: Shape,
        buffers: BufferLocation,
        devices: &'c [NodeId],
        delays: Vec<Picos>,
    ) -> bool {
        let known = self.generators.iter().position(|one| (one.0, &one.1) == (algorithm, &shape));
        let index = known.unwrap_or(self.generators.len());
        if known.is_none() {
            match algorithm::timing_generator(algorithm, &shape, buffers) {
                Ok(generator) => self.generators.push((algorithm, shape, generator)),
                Err(_) => return false,
            }
        }
        self.groups.push((index, devices, delays));
        true
    }

    /// Removes the groups that others represent.
    fn retain_representatives(&mut self, router: &Router<'_>, representatives: &Representatives) {
        if let [(.., generator)] = self.generators.as_slice() {
            let groups: Vec<&[NodeId]> = self.groups.iter().map(|one| one.1).collect();
            let representatives = representatives.select(router, generator.as_ref(), &groups);
            self.groups = representatives.iter().filter_map(|&group| self.groups.get(group).cloned()).collect();
        }
    }
}
