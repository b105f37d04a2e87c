//! Simulation of a measurement: its fabric, routes and launch settings, reused to simulate its rows with any profile.

use std::sync::Arc;

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{Shape, timed};
use fabricast_planner::plan::Busiest;
use fabricast_planner::strategy::Strategy;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::{Band, Profile};
use fabricast_sim::schedule::Generate;
use fabricast_sim::{LaunchMode, Surroundings, simulate, time_in_a_row};
use fabricast_topologies::Picos;
use fabricast_topologies::route::{RouteOptions, Router};

use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::strategy_of::{Strategies, call};

/// The parts of a simulation that depend on neither the row nor the profile.
pub(crate) struct Rerun<'a> {
    pub measurement: &'a Measurement,
    pub router: Router<'a>,
    abilities: Abilities,
}

impl<'a> Rerun<'a> {
    pub fn new(measurement: &'a Measurement, routes: RouteOptions) -> Self {
        let (fabric, configuration) = (&measurement.fabric, &measurement.configuration);
        let router = Router::new(fabric, routes);
        let abilities = Abilities::of(fabric, &router, fabric.gpus(), configuration.gpus, configuration.in_network);
        Self { measurement, router, abilities }
    }

    /// Returns the lookup that identifies the strategies of this measurement's rows.
    pub fn strategies(&self) -> Strategies<'a> {
        Strategies::new(self.measurement, &self.router)
    }

    /// Returns true if both were measured on the same fabric, with the same GPUs and routes in use.
    pub fn is_on_the_fabric_of(&self, other: &Self) -> bool {
        let (a, b) = (self.measurement, other.measurement);
        let of = |one: &Measurement| (one.configuration.nodes, one.configuration.gpus, one.configuration.in_network);
        (Arc::ptr_eq(&a.fabric, &b.fabric) || a.request == b.request)
            && of(a) == of(b)
            && self.router.options() == other.router.options()
    }

    /// The launch mode of the measured calls.
    pub fn mode(&self) -> LaunchMode {
        let configuration = &self.measurement.configuration;
        LaunchMode {
            launch: configuration.launch,
            processes: configuration.processes,
            gpus_per_host: configuration.gpus,
        }
    }

    /// The schedule of a row. Chunk sizes come from the profile if the strategy sets none. `None` if the strategy has
    /// no schedule for this call.
    pub fn schedule(
        &self,
        strategy: Strategy,
        row: &Row,
        profile: &Profile,
    ) -> Option<Box<dyn Generate + Send + Sync>> {
        let ranks_per_node = self.measurement.configuration.gpus;
        let shape = Shape {
            grid: self.measurement.fabric.host_grid().to_vec(),
            ..strategy.shape(call(self.measurement, row), profile, ranks_per_node, &self.abilities)
        };
        timed(strategy.algorithm, &shape, self.router.options().buffers).ok()
    }

    /// Simulates a schedule in the way it was measured, with back-to-back calls. `None` if it cannot be simulated.
    pub fn simulate(&self, schedule: &dyn Generate, profile: &Profile) -> Option<Again> {
        let (fabric, placement) = (&*self.measurement.fabric, self.measurement.fabric.gpus());
        let setting = Setting { fabric, router: &self.router, placement, profile, delays: &[] };
        let alone = simulate(schedule, setting, self.mode(), Surroundings::default(), Watch::default()).ok()?;
        let time = match schedule.header().call.collective.is_one_way() {
            true => time_in_a_row(schedule, setting, self.mode()).ok()?.min(alone.time),
            false => alone.time,
        };
        let bytes = (alone.costs.bandwidth + alone.costs.waiting).min(time);
        Some(Again {
            time,
            bytes,
            band: alone.band,
            #[cfg(test)]
            decides: alone.decides,
            busiest: Busiest::of(&alone),
            events: alone.events,
        })
    }
}

/// Result of a simulation.
pub(crate) struct Again {
    /// Time per call.
    pub time: Picos,
    /// Part of the time due to bandwidth, including waiting for shared capacity.
    pub bytes: Picos,
    /// Prediction interval of the time.
    pub band: Band,
    /// The regime that determines the time.
    #[cfg(test)]
    pub decides: fabricast_sim::profile::Decides,
    /// Number of events processed.
    pub events: u64,
    pub busiest: Option<Busiest>,
}
