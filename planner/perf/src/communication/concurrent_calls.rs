//! Simulation of concurrent calls of several groups on one fabric.

use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Rank, Schedule, ScheduleGenerator};
use fabricast_sim::{Folding, LaunchMode, ScheduleInstance, SimulationOptions, simulate_concurrent};
use fabricast_topologies::route::{BufferLocation, Router};
use fabricast_topologies::{NodeId, Picos};

use super::calls::{CallWithStrategy, PlacedCall};
use super::link_sharing::Representatives;
use fabricast_collectives::algorithm::{self, Algorithm, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::PlanError;

/// Builds and simulates the schedules of concurrent calls of several groups.
#[derive(Clone, Copy)]
pub(super) struct ConcurrentCalls<'a> {
    pub router: &'a Router<'a>,
    pub profile: &'a Profile,
    /// Cache of the groups that represent all groups of a call.
    pub representatives: &'a Representatives,
}

impl ConcurrentCalls<'_> {
    /// Builds the schedules of a call of several groups. Only the groups that represent all groups are retained.
    pub(super) fn representative_calls<'g>(
        &self,
        groups: &'g [Vec<NodeId>],
        call: CallWithStrategy,
    ) -> GeneratedCalls<'g> {
        let mut calls = self.generate_each(groups, call);
        calls.retain_representatives(self.router, self.representatives);
        calls
    }

    /// Returns the completion time of the slowest group of `calls`, all of which make the same call.
    ///
    /// # Errors
    /// [`PlanError`]: the call cannot run.
    pub(super) fn slowest(&self, calls: &GeneratedCalls<'_>, call: CallWithStrategy) -> Result<Picos, PlanError> {
        Ok(self.run(calls, call)?.into_iter().max().unwrap_or_default())
    }

    /// Returns the end times of several concurrent calls, in the order of `calls`.
    ///
    /// # Errors
    /// [`PlanError`]: a call has no schedule or cannot run.
    pub(super) fn end_times(&self, calls: &[PlacedCall<'_>]) -> Result<Vec<Picos>, PlanError> {
        let Some(PlacedCall { call: first, .. }) = calls.first() else { return Ok(Vec::new()) };
        let generated = self.generate(calls);
        // Times are matched to calls by index.
        if generated.groups.len() != calls.len() {
            let collective = first.collective;
            let (rejected, named, possible) = (Vec::new(), Vec::new(), Vec::new());
            return Err(PlanError::NothingToChoose { collective, rejected, named, possible });
        }
        self.run(&generated, *first)
    }

    /// Builds the schedule generators of one call for several groups.
    pub(super) fn generate_each<'g>(&self, groups: &'g [Vec<NodeId>], call: CallWithStrategy) -> GeneratedCalls<'g> {
        let calls: Vec<PlacedCall<'g>> =
            groups.iter().map(|devices| PlacedCall { call, devices, start: Picos::ZERO }).collect();
        self.generate(&calls)
    }

    /// Builds the schedule generators of several calls. Calls that cannot be generated are omitted.
    fn generate<'g>(&self, calls: &[PlacedCall<'g>]) -> GeneratedCalls<'g> {
        let mut generated = GeneratedCalls::default();
        for &PlacedCall { call, devices, start } in calls {
            let per_node = self.router.fabric().max_devices_per_host(devices);
            generated.mode.gpus_per_host = generated.mode.gpus_per_host.max(per_node);
            let shape = self.shape_builder(devices, per_node);
            let delays = if start == Picos::ZERO { Vec::new() } else { vec![start; devices.len()] };
            let buffers = self.router.options().buffers;
            // A group with another placement may not support the strategy selected for the first group. It then uses a
            // ring, or direct sends.
            [call.strategy.algorithm, Algorithm::Ring, Algorithm::Direct].into_iter().any(|algorithm| {
                let call = CallWithStrategy { strategy: Strategy { algorithm, ..call.strategy }, ..call };
                let group = GeneratedGroup { generator: 0, devices, delays: delays.clone() };
                generated.add(algorithm, shape(call), buffers, group)
            });
        }
        generated
    }

    /// Builds the full schedule of one call; `None` if it cannot be generated.
    pub(super) fn schedule(&self, call: CallWithStrategy, devices: &[NodeId]) -> Option<Schedule> {
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

    /// Simulates the calls and returns their end times, in the order of the groups. `first`: one of the calls, for
    /// error messages.
    fn run(&self, calls: &GeneratedCalls<'_>, first: CallWithStrategy) -> Result<Vec<Picos>, PlanError> {
        let Self { router, profile, .. } = *self;
        let instances = calls.groups.iter().filter_map(|GeneratedGroup { generator, devices, delays }| {
            let setting = Environment { fabric: router.fabric(), router, placement: devices, profile, delays };
            let (.., generator) = calls.generators.get(*generator)?;
            Some(ScheduleInstance::new(generator.as_ref(), setting))
        });
        let instances: Vec<ScheduleInstance<'_>> = instances.collect();
        let options = SimulationOptions { folding: Folding::GroupsFirst, ..SimulationOptions::default() };
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

/// Group whose call has a schedule generator.
#[derive(Clone)]
struct GeneratedGroup<'g> {
    /// Index of the group's generator in [`GeneratedCalls`].
    generator: usize,
    devices: &'g [NodeId],
    /// Start delay of each rank of the group, in rank order.
    delays: Vec<Picos>,
}

/// Schedule generators of the calls of several groups. Groups with calls of the same shape share one generator.
#[derive(Default)]
pub(super) struct GeneratedCalls<'g> {
    generators: Vec<(Algorithm, Shape, Box<dyn ScheduleGenerator + Send + Sync>)>,
    groups: Vec<GeneratedGroup<'g>>,
    mode: LaunchMode,
}

impl<'g> GeneratedCalls<'g> {
    /// Returns the number of groups with generated calls.
    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Returns each schedule generator with the devices of the groups that use it.
    pub(super) fn by_generator(&self) -> impl Iterator<Item = (&dyn ScheduleGenerator, Vec<&'g [NodeId]>)> {
        self.generators.iter().enumerate().map(|(index, (.., generator))| {
            let groups = self.groups.iter().filter(|entry| entry.generator == index).map(|entry| entry.devices);
            (generator.as_ref() as &dyn ScheduleGenerator, groups.collect())
        })
    }

    /// Adds the call of a group. Returns false if the algorithm cannot generate it.
    fn add(&mut self, algorithm: Algorithm, shape: Shape, buffers: BufferLocation, group: GeneratedGroup<'g>) -> bool {
        let known = self.generators.iter().position(|one| (one.0, &one.1) == (algorithm, &shape));
        let index = known.unwrap_or(self.generators.len());
        if known.is_none() {
            match algorithm::timing_generator(algorithm, &shape, buffers) {
                Ok(generator) => self.generators.push((algorithm, shape, generator)),
                Err(_) => return false,
            }
        }
        self.groups.push(GeneratedGroup { generator: index, ..group });
        true
    }

    /// Removes the groups that are represented by others. Has no effect if the groups have different generators.
    fn retain_representatives(&mut self, router: &Router<'_>, representatives: &Representatives) {
        if let [(.., generator)] = self.generators.as_slice() {
            let groups: Vec<&[NodeId]> = self.groups.iter().map(|one| one.devices).collect();
            let representatives = representatives.select(router, generator.as_ref(), &groups);
            self.groups = representatives.iter().filter_map(|&group| self.groups.get(group).cloned()).collect();
        }
    }
}
