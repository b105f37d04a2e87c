//! Simulation of a measurement: its fabric, routes and launch settings, with which its rows are simulated for any
//! profile.

use std::borrow::Cow;
use std::sync::Arc;

use fabricast_collectives::algorithm::{Shape, timing_generator};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::Busiest;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::{PacketRouting, PredictionInterval, Profile, QueuePairs};
use fabricast_sim::schedule::ScheduleGenerator;
use fabricast_sim::{LaunchMode, SimulationOptions, back_to_back_time, simulate};
use fabricast_topologies::Picos;
use fabricast_topologies::route::{RouteOptions, Router};

use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::measured_strategy::{Strategies, call};

/// Simulation environment of a measurement (router and fabric capabilities), shared by all of its rows and all
/// profiles.
pub(crate) struct MeasurementSimulation<'a> {
    pub measurement: &'a Measurement,
    pub router: Router<'a>,
    abilities: FabricCapabilities,
}

impl<'a> MeasurementSimulation<'a> {
    pub fn new(measurement: &'a Measurement, routes: RouteOptions) -> Self {
        let (fabric, configuration) = (&measurement.fabric, &measurement.configuration);
        let router = Router::new(fabric, routes);
        let abilities =
            FabricCapabilities::new(fabric, &router, fabric.gpus(), configuration.gpus, configuration.in_network);
        Self { measurement, router, abilities }
    }

    /// Returns the look-up of the strategies of this measurement's rows.
    pub fn strategies(&self) -> Strategies<'a> {
        Strategies::new(self.measurement, &self.router)
    }

    /// Returns true if both measurements are of the same fabric, with the same GPUs and routes in use.
    pub fn has_same_fabric(&self, other: &Self) -> bool {
        let (a, b) = (self.measurement, other.measurement);
        let layout = |measurement: &Measurement| {
            (measurement.configuration.nodes, measurement.configuration.gpus, measurement.configuration.in_network)
        };
        (Arc::ptr_eq(&a.fabric, &b.fabric) || a.request == b.request)
            && layout(a) == layout(b)
            && a.configuration.env == b.configuration.env
            && a.context.report.variables == b.context.report.variables
            && self.router.options() == other.router.options()
    }

    /// Launch mode, process layout and GPUs per host of the measured calls.
    pub fn mode(&self) -> LaunchMode {
        let configuration = &self.measurement.configuration;
        LaunchMode {
            launch: configuration.launch,
            processes: configuration.processes,
            gpus_per_host: configuration.gpus,
        }
    }

    /// Returns the schedule of a row. Chunk sizes come from the profile if the strategy sets none. `None` if the
    /// strategy has no schedule for this call.
    pub fn schedule(
        &self,
        strategy: Strategy,
        row: &Row,
        profile: &Profile,
    ) -> Option<Box<dyn ScheduleGenerator + Send + Sync>> {
        let ranks_per_node = self.measurement.configuration.gpus;
        let shape = Shape {
            grid: self.measurement.fabric.host_grid().to_vec(),
            ..strategy.shape(call(self.measurement, row), profile, ranks_per_node, &self.abilities)
        };
        timing_generator(strategy.algorithm, &shape, self.router.options().buffers).ok()
    }

    /// Returns a profile with the queue pairs that the settings of the measurement select.
    fn with_queue_pairs<'p>(&self, profile: &'p Profile) -> Cow<'p, Profile> {
        let setting = |name: &str| self.measurement.variable(name)?.parse::<u32>().ok();
        let routing = setting("NCCL_IB_ADAPTIVE_ROUTING").map(|on| match on {
            0 => PacketRouting::Static,
            _ => PacketRouting::Adaptive,
        });
        // A message that is split is sent on all queue pairs. Until NCCL 2.19 all messages were.
        let splits = setting("NCCL_IB_SPLIT_DATA_ON_QPS").map_or(self.splits_messages_by_default(), |on| on != 0);
        let count = if splits { Some(1) } else { setting("NCCL_IB_QPS_PER_CONNECTION") };
        if routing.is_none() && count.is_none() {
            return Cow::Borrowed(profile);
        }
        let mut profile = profile.clone();
        let pairs = &mut profile.network.queue_pairs;
        *pairs =
            QueuePairs { count: count.unwrap_or(pairs.count), routing: routing.unwrap_or(pairs.routing), ..*pairs };
        Cow::Owned(profile)
    }

    /// Returns true for versions of NCCL that split messages among queue pairs by default (2.18 and 2.19;
    /// src/transport/net_ib.cc, NCCL_IB_SPLIT_DATA_ON_QPS).
    fn splits_messages_by_default(&self) -> bool {
        let library = self.measurement.configuration.library.as_ref();
        let minor = library.and_then(|library| library.version.split('.').nth(1)?.parse::<u32>().ok());
        minor.is_some_and(|minor| minor < 20)
    }

    /// Simulates a schedule as it was measured. Back-to-back calls from or to a root overlap, which shortens their
    /// time. `None` if the schedule cannot be simulated.
    pub fn simulate(&self, schedule: &dyn ScheduleGenerator, profile: &Profile) -> Option<SimulatedRow> {
        let (fabric, placement) = (&*self.measurement.fabric, self.measurement.fabric.gpus());
        let profile = &self.with_queue_pairs(profile);
        let setting = Environment { fabric, router: &self.router, placement, profile, delays: &[] };
        let simulated =
            simulate(schedule, setting, self.mode(), SimulationOptions::default(), Watch::default()).ok()?;
        let time = match schedule.header().call.collective.is_one_way() {
            true => back_to_back_time(schedule, setting, self.mode()).ok()?.min(simulated.time),
            false => simulated.time,
        };
        let bytes = (simulated.costs.bandwidth + simulated.costs.waiting).min(time);
        Some(SimulatedRow {
            time,
            bytes,
            band: simulated.band,
            #[cfg(test)]
            decides: simulated.bottleneck,
            busiest: Busiest::from_timeline(&simulated),
            events: simulated.events,
        })
    }
}

/// Result of the simulation of a row.
pub(crate) struct SimulatedRow {
    /// Predicted time per call.
    pub time: Picos,
    /// Part of the time that is due to bandwidth, including waiting for shared capacity.
    pub bytes: Picos,
    /// Prediction interval of the time per call.
    pub band: PredictionInterval,
    /// Bottleneck of the call, which selects the prediction interval.
    #[cfg(test)]
    pub decides: fabricast_sim::profile::Bottleneck,
    /// Number of events that the simulation processed.
    pub events: u64,
    pub busiest: Option<Busiest>,
}
