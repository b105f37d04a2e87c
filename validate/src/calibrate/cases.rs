//! Device times of measured calls; each distinct run is simulated once.
//!
//! A fit needs the same runs repeatedly: rows of different launch modes ran the same schedule, changing the costs of
//! one protocol leaves the rows of the others unchanged, and cross-validation fits start at the end of the full fit.
//! The end of a run depends on its protocol's costs and on the links. Start-up shifts the whole run, and launch costs
//! are added afterwards. Runs are therefore cached by protocol costs without start-up, links and network.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabricast_planner::strategy::Strategy;
use fabricast_sim::profile::{LaunchCosts, LinkEfficiency, NetworkCosts, Profile, ProtocolCosts};
use fabricast_sim::schedule::{Call, Generate, Protocol};
use fabricast_topologies::Picos;
use rayon::prelude::*;

use crate::measured::Row;
use crate::rerun::Rerun;
use crate::strategy_of::call;

/// Device time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// Time from the start to the end of the last operation.
    pub time: Picos,
    /// Part of the time that is bound by bandwidth.
    pub bytes: Picos,
}

/// A schedule on a fabric.
struct Case<'a> {
    rerun: &'a Rerun<'a>,
    strategy: Strategy,
    call: Call,
    schedule: Box<dyn Generate + Send + Sync>,
}

/// All distinct schedules that measured rows ran.
pub(super) struct Cases<'a> {
    cases: Vec<Case<'a>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Distinct costs that runs depend on, in the order of first use.
    costs: Vec<(ProtocolCosts, LinkEfficiency, NetworkCosts)>,
    /// Cached runs by case and index into `costs`.
    runs: HashMap<(usize, usize), Device>,
}

impl<'a> Cases<'a> {
    pub fn new() -> Self {
        Self { cases: Vec::new(), known: Mutex::default() }
    }

    /// Adds the schedule that a row ran and returns its index, with the profile's chunks if the strategy names none;
    /// `None` if there is no such schedule.
    pub fn add(&mut self, rerun: &'a Rerun<'a>, strategy: Strategy, row: &Row, profile: &Profile) -> Option<usize> {
        let call = call(rerun.measurement, row);
        let known = self
            .cases
            .iter()
            .position(|case| (case.strategy, case.call) == (strategy, call) && case.rerun.is_on_the_fabric_of(rerun));
        if known.is_some() {
            return known;
        }
        let schedule = rerun.schedule(strategy, row, profile)?;
        self.cases.push(Case { rerun, strategy, call, schedule });
        Some(self.cases.len() - 1)
    }

    /// Returns true if switches multicast or reduce in a case.
    pub fn multicasts(&self, case: usize) -> bool {
        self.cases.get(case).is_some_and(|case| !case.schedule.header().teams.is_empty())
    }

    /// Number of peers with which a rank concurrently exchanges its own data in a case.
    pub fn peers_at_once(&self, case: usize) -> u16 {
        self.cases.get(case).map_or(0, |case| case.schedule.header().peers_at_once())
    }

    /// Device times of cases; zero for cases that cannot run.
    pub fn run(&self, wanted: &[usize], profile: &Profile) -> Vec<Device> {
        let places = self.places(profile);
        let place_of =
            |case: usize| self.cases.get(case).and_then(|case| places.get(case.protocol() as usize)).copied();
        let mut missing: Vec<(usize, usize)> = {
            let known = self.known();
            let keys = wanted.iter().filter_map(|&case| Some((case, place_of(case)?)));
            keys.filter(|key| !known.runs.contains_key(key)).collect()
        };
        missing.sort_unstable();
        missing.dedup();
        let found: Vec<_> =
            missing.par_iter().map(|&key| Some((key, self.cases.get(key.0)?.simulate(profile)))).collect();
        let mut known = self.known();
        known.runs.extend(found.into_iter().flatten());
        let device = |&case: &usize| {
            let run = known.runs.get(&(case, place_of(case)?)).copied()?;
            let startup = self.cases.get(case)?.startup(profile);
            Some(Device { time: run.time + startup, ..run })
        };
        wanted.iter().map(|case| device(case).unwrap_or_default()).collect()
    }

    /// Index of each protocol's costs among the known ones.
    fn places(&self, profile: &Profile) -> Vec<usize> {
        let mut known = self.known();
        let place = |protocol| {
            let key = (without_startup(profile.protocol(protocol)), profile.links, profile.network);
            known.costs.iter().position(|other| *other == key).unwrap_or_else(|| {
                known.costs.push(key);
                known.costs.len() - 1
            })
        };
        Protocol::ALL.into_iter().map(place).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Case<'_> {
    fn protocol(&self) -> Protocol {
        self.schedule.header().protocol
    }

    fn startup(&self, profile: &Profile) -> Picos {
        let costs = profile.protocol(self.protocol());
        let header = self.schedule.header();
        costs.startup(header.call.collective, header.blocks.threads.unwrap_or(costs.threads), header.peers_at_once())
    }

    /// Simulates the run without start-up and launch costs.
    fn simulate(&self, profile: &Profile) -> Device {
        let mut bare = profile.clone();
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
