//! Device times of measured calls; each distinct run is simulated once.
//!
//! A fit needs the same runs repeatedly: rows of different launch modes ran the same schedule, changing the costs of
//! one protocol leaves the rows of the others unchanged, and cross-validation fits start at the end of the full fit.
//! The end of a run depends on its protocol's costs and on the links. Start-up shifts the whole run, and launch costs
//! are added afterwards. Runs are therefore cached by protocol costs without start-up, links and network.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::profile::{
    LaunchCosts, LinkEfficiency, MeasuredNetwork, NetworkCosts, Profile, ProfileError, ProtocolCosts,
};
use fabricast_sim::schedule::{Call, Protocol, ScheduleGenerator};
use fabricast_topologies::{Fabric, Picos};
use rayon::prelude::*;

use crate::measured::Row;
use crate::measured_strategy::call;
use crate::measurement_simulation::MeasurementSimulation;

/// Device time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// Time from the start of the call to the end of its last operation.
    pub time: Picos,
    /// Part of the time that is bound by bandwidth.
    pub bytes: Picos,
}

/// Profile of a machine's GPUs, for a fit of the network alone.
#[derive(Clone, Debug)]
pub(super) struct MachineProfile {
    profile: Profile,
    /// NIC efficiency with this machine's packets ÷ that with InfiniBand's.
    packets: f64,
}

impl MachineProfile {
    /// Returns the shipped profile of a fabric's GPUs.
    ///
    /// # Errors
    /// Only for an invalid shipped file.
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

    /// Returns the machine's profile with the network of `fitted`.
    fn with_network_of(&self, fitted: &Profile) -> Profile {
        let mut profile = Profile { network: fitted.network, ..self.profile.clone() };
        profile.links.network = (fitted.links.network * self.packets).min(1.0);
        profile
    }
}

/// A schedule that measured rows ran, on the fabric of its measurement.
struct Case<'a> {
    rerun: &'a MeasurementSimulation<'a>,
    /// Costs of the GPUs; `None` for those of the fitted profile.
    machine: Option<Arc<MachineProfile>>,
    strategy: Strategy,
    call: Call,
    schedule: Box<dyn ScheduleGenerator + Send + Sync>,
}

/// All distinct schedules that measured rows ran, with a cache of their simulated runs.
pub(super) struct Cases<'a> {
    cases: Vec<Case<'a>>,
    cache: Mutex<RunCache>,
}

#[derive(Default)]
struct RunCache {
    /// Distinct costs that runs depend on, in the order of first use.
    costs: Vec<(ProtocolCosts, LinkEfficiency, NetworkCosts)>,
    /// Cached runs by case and index into `costs`.
    runs: HashMap<(usize, usize), Device>,
}

impl<'a> Cases<'a> {
    pub fn new() -> Self {
        Self { cases: Vec::new(), cache: Mutex::default() }
    }

    /// Adds the schedule that a row ran and returns its index; a schedule added before keeps its index. Chunk sizes
    /// that the strategy leaves open come from `profile`. `None` if the strategy has no schedule for the call.
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
        self.cases.push(Case { rerun, machine: machine.cloned(), strategy, call, schedule });
        Some(self.cases.len() - 1)
    }

    /// Returns true if switches multicast or reduce in the schedule of a case.
    pub fn multicasts(&self, case: usize) -> bool {
        self.cases.get(case).is_some_and(|case| !case.schedule.header().teams.is_empty())
    }

    /// Number of peers with which a rank concurrently exchanges its own data in the schedule of a case.
    pub fn concurrent_peers(&self, case: usize) -> u16 {
        self.cases.get(case).map_or(0, |case| case.schedule.header().concurrent_peers())
    }

    /// Device times of cases under a profile, in the order of `case_indices`; zero for cases that cannot run.
    pub fn run(&self, case_indices: &[usize], profile: &Profile) -> Vec<Device> {
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
            Some(Device { time: run.time + startup, ..run })
        };
        case_indices.iter().map(|case| device(case).unwrap_or_default()).collect()
    }

    /// Index into [`RunCache::costs`] of each protocol's costs, in the order of [`Protocol::ALL`]. Costs that are not
    /// yet listed are added.
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

impl Case<'_> {
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

    /// Simulates the run without start-up and launch costs; zero if the schedule cannot run.
    fn simulate(&self, profile: &Profile) -> Device {
        let mut bare = self.profile(profile).into_owned();
        bare.launches = [[LaunchCosts::default(); 2]; 2];
        if let Some(costs) = bare.protocols.get_mut(self.protocol() as usize) {
            *costs = without_startup(costs);
        }
        let run = self.rerun.simulate(&*self.schedule, &bare);
        run.map_or(Device::default(), |run| Device { time: run.time, bytes: run.bytes })
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
