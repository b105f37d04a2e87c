//! Device times of measured calls. Each distinct simulation runs once.
//!
//! A fit needs equal simulations repeatedly: rows of different launch modes have the same schedule, a change of one
//! protocol's costs does not affect rows with other protocols, and the fits of a cross-validation start at the result
//! of the full fit. The end time of a simulation depends on the costs of its protocol and on the links. The start-up
//! cost shifts the whole run, and launch costs are added afterwards. Simulations are therefore cached by protocol costs
//! without start-up, link efficiencies and network costs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{
    LaunchCosts, LinkEfficiency, MeasuredNetwork, NetworkCosts, Profile, ProfileError, ProtocolCosts,
};
use fabricast_sim::schedule::{Call, Collective, Protocol, ScheduleGenerator};
use fabricast_topologies::{Fabric, Picos};
use rayon::prelude::*;

use crate::measured::Row;
use crate::measured_strategy::call;
use crate::measurement_simulation::MeasurementSimulation;

/// Device time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceTime {
    /// Time from the start of the call to the end of its last operation.
    pub time: Picos,
    /// Part of the time during which bandwidth is the bottleneck.
    pub bytes: Picos,
}

/// Shipped profile of a machine's GPUs, used if only the network is fitted.
#[derive(Clone, Debug)]
pub(super) struct MachineProfile {
    profile: Profile,
    /// Ratio of the NIC efficiency with this machine's packet format to the NIC efficiency with InfiniBand packets.
    packets: f64,
}

impl MachineProfile {
    /// Returns the shipped profile for a fabric's GPUs.
    ///
    /// # Errors
    /// [`ProfileError`] if no shipped profile can be read for the fabric.
    pub(super) fn for_fabric(fabric: &Fabric) -> Result<Self, ProfileError> {
        let profile = Profile::for_fabric(fabric)?;
        let network = MeasuredNetwork::for_machine(fabric)?;
        let packets = network.map_or(1.0, |network| profile.links.network / network.efficiency);
        Ok(Self { profile, packets })
    }

    /// Returns the machine's profile.
    pub(super) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the machine's profile with the network costs of `fitted`.
    fn with_network_of(&self, fitted: &Profile) -> Profile {
        let network = NetworkCosts { queue_pairs: self.profile.network.queue_pairs, ..fitted.network };
        let mut profile = Profile { network, ..self.profile.clone() };
        profile.links.network = (fitted.links.network * self.packets).min(1.0);
        profile
    }
}

/// A schedule of measured rows, on the fabric of its measurement.
struct ScheduleCase<'a> {
    rerun: &'a MeasurementSimulation<'a>,
    /// Profile of the machine's GPUs; `None` to use the fitted profile.
    machine: Option<Arc<MachineProfile>>,
    strategy: Strategy,
    call: Call,
    schedule: Box<dyn ScheduleGenerator + Send + Sync>,
}

/// All distinct schedules of measured rows, with a cache of their simulations.
pub(super) struct Cases<'a> {
    cases: Vec<ScheduleCase<'a>>,
    cache: Mutex<RunCache>,
    monitor: Monitor<'a>,
}

#[derive(Default)]
struct RunCache {
    /// Distinct costs for which simulations are cached, in the order of first use.
    costs: Vec<(ProtocolCosts, LinkEfficiency, NetworkCosts)>,
    /// Cached results by index of the case and index into `costs`.
    runs: HashMap<(usize, usize), DeviceTime>,
}

impl<'a> Cases<'a> {
    pub fn new(monitor: Monitor<'a>) -> Self {
        Self { cases: Vec::new(), cache: Mutex::default(), monitor }
    }

    /// Monitor of the fits to these cases.
    pub fn monitor(&self) -> Monitor<'a> {
        self.monitor
    }

    /// Adds the schedule of a row and returns its index; equal schedules share an index. The chunk size comes from
    /// `profile` if the strategy does not state it. `None` if the strategy has no schedule for the call.
    pub fn add(
        &mut self,
        rerun: &'a MeasurementSimulation<'a>,
        machine: Option<&Arc<MachineProfile>>,
        strategy: Strategy,
        row: &Row,
        profile: &Profile,
    ) -> Option<usize> {
        let call = call(rerun.measurement, row);
        let existing = self
            .cases
            .iter()
            .position(|case| (case.strategy, case.call) == (strategy, call) && case.rerun.has_same_fabric(rerun));
        if existing.is_some() {
            return existing;
        }
        let schedule = rerun.schedule(strategy, row, profile)?;
        self.cases.push(ScheduleCase { rerun, machine: machine.cloned(), strategy, call, schedule });
        Some(self.cases.len() - 1)
    }

    /// Returns true if the schedule of a case uses multicast or reduction in switches.
    pub fn multicasts(&self, case: usize) -> bool {
        self.cases.get(case).is_some_and(|case| !case.schedule.header().teams.is_empty())
    }

    /// Number of peers with which a rank concurrently exchanges its own data, in the schedule of a case.
    pub fn concurrent_peers(&self, case: usize) -> u16 {
        self.cases.get(case).map_or(0, |case| case.schedule.header().concurrent_peers())
    }

    /// Device times of cases under a profile, in the order of `case_indices`; zero for cases that cannot run.
    pub fn run(&self, case_indices: &[usize], profile: &Profile) -> Vec<DeviceTime> {
        let cost_indices = self.cost_indices(profile);
        let cost_index =
            |case: usize| self.cases.get(case).and_then(|case| cost_indices.get(case.protocol() as usize)).copied();
        let mut missing: Vec<(usize, usize)> = {
            let cache = self.lock_cache();
            let keys = case_indices.iter().filter_map(|&case| Some((case, cost_index(case)?)));
            keys.filter(|key| !cache.runs.contains_key(key)).collect()
        };
        missing.sort_unstable();
        missing.dedup();
        let runs: Vec<_> =
            missing.par_iter().map(|&key| Some((key, self.cases.get(key.0)?.simulate(profile)))).collect();
        let mut cache = self.lock_cache();
        cache.runs.extend(runs.into_iter().flatten());
        let device = |&case: &usize| {
            let run = cache.runs.get(&(case, cost_index(case)?)).copied()?;
            let startup = self.cases.get(case)?.startup(profile);
            Some(DeviceTime { time: run.time + startup, ..run })
        };
        case_indices.iter().map(|case| device(case).unwrap_or_default()).collect()
    }

    /// Index into [`RunCache::costs`] of each protocol's costs, in the order of [`Protocol::ALL`]. Costs that the list
    /// does not contain are added.
    fn cost_indices(&self, profile: &Profile) -> Vec<usize> {
        let mut cache = self.lock_cache();
        let find_index = |protocol| {
            let key = (without_startup(profile.protocol(protocol)), profile.links, profile.network);
            cache.costs.iter().position(|other| *other == key).unwrap_or_else(|| {
                cache.costs.push(key);
                cache.costs.len() - 1
            })
        };
        Protocol::ALL.into_iter().map(find_index).collect()
    }

    fn lock_cache(&self) -> MutexGuard<'_, RunCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScheduleCase<'_> {
    fn protocol(&self) -> Protocol {
        self.schedule.header().protocol
    }

    /// Returns the fitted profile, or the machine's own with the network of the fitted profile.
    fn profile<'p>(&self, fitted: &'p Profile) -> Cow<'p, Profile> {
        let own = self.machine.as_ref().map(|machine| machine.with_network_of(fitted));
        own.map_or(Cow::Borrowed(fitted), Cow::Owned)
    }

    fn startup(&self, profile: &Profile) -> Picos {
        let profile = self.machine.as_ref().map_or(profile, |machine| machine.profile());
        let costs = profile.protocol(self.protocol());
        let header = self.schedule.header();
        costs.startup(header.call.collective, header.blocks.threads.unwrap_or(costs.threads), header.concurrent_peers())
    }

    /// Simulates the schedule without start-up and launch costs; the result is zero if the schedule cannot run.
    fn simulate(&self, profile: &Profile) -> DeviceTime {
        let mut bare = self.profile(profile).into_owned();
        bare.launches = [[LaunchCosts::default(); 2]; 2];
        // Sends of successive calls overlap with the start of kernels, so they are simulated with the start-up of the
        // machine's profile, which is not fitted.
        let startup = match self.machine.is_some() && self.call.collective == Collective::SendRecv {
            true => self.startup(profile),
            false => Picos::ZERO,
        };
        if startup == Picos::ZERO
            && let Some(costs) = bare.protocols.get_mut(self.protocol() as usize)
        {
            *costs = without_startup(costs);
        }
        let run = self.rerun.simulate(&*self.schedule, &bare);
        run.map_or(DeviceTime::default(), |run| DeviceTime {
            time: Picos(run.time.0.saturating_sub(startup.0)),
            bytes: run.bytes,
        })
    }
}

fn without_startup(costs: &ProtocolCosts) -> ProtocolCosts {
    ProtocolCosts {
        startup: Picos::ZERO,
        startup_p2p: None,
        startup_per_warp: Picos::ZERO,
        startup_per_peer: Picos::ZERO,
        ..*costs
    }
}
