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
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Picos};

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
        let current = profile.network.queue_pairs;
        let variable = |name: &str| self.measurement.variable(name);
        let splitting = if self.splits_messages_by_default() { Splitting::AllPairs } else { Splitting::OnePair };
        let queue_pairs = stated_queue_pairs(variable, splitting, current);
        if queue_pairs == current {
            return Cow::Borrowed(profile);
        }
        let mut profile = profile.clone();
        profile.network.queue_pairs = queue_pairs;
        Cow::Owned(profile)
    }

    /// Returns true for versions of NCCL that split messages among queue pairs by default (2.18 and 2.19;
    /// src/transport/net_ib.cc, NCCL_IB_SPLIT_DATA_ON_QPS).
    fn splits_messages_by_default(&self) -> bool {
        let library = self.measurement.configuration.library.as_ref();
        let minor = library.and_then(|library| library.version.split('.').nth(1)?.parse::<u32>().ok());
        minor.is_some_and(|minor| minor < 20)
    }

    /// Simulates a schedule as it was measured. Back-to-back calls from or to a root, or around a ring, overlap, which
    /// shortens their time. `None` if the schedule cannot be simulated.
    pub fn simulate(&self, schedule: &dyn ScheduleGenerator, profile: &Profile) -> Option<SimulatedRow> {
        let (fabric, placement) = (&*self.measurement.fabric, self.measurement.fabric.gpus());
        let profile = &self.with_queue_pairs(profile);
        let setting = Environment { fabric, router: &self.router, placement, profile, delays: &[] };
        let simulated =
            simulate(schedule, setting, self.mode(), SimulationOptions::default(), Watch::default()).ok()?;
        let time = match schedule.header().call.collective.overlaps_next_call() {
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

/// Queue pairs on which NCCL sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Splitting {
    /// One; messages alternate among the queue pairs of the connection.
    OnePair,
    /// All; each carries a part of the message.
    AllPairs,
}

/// Returns the queue pairs that variables of the environment select. `splitting` is the default of the version.
fn stated_queue_pairs<'v>(
    variable: impl Fn(&str) -> Option<&'v str>,
    splitting: Splitting,
    current: QueuePairs,
) -> QueuePairs {
    let number = |name: &str| variable(name)?.parse::<i64>().ok();
    let routing = match number("NCCL_IB_ADAPTIVE_ROUTING") {
        None | Some(-2) => current.routing,
        Some(0) => PacketRouting::Static,
        Some(_) => PacketRouting::Adaptive,
    };
    // −2 is the default, as above; any other negative number is less than all sizes (NCCL 2.30.7
    // src/transport/net_ib/init.cc).
    let largest_ordered = match number("NCCL_IB_AR_THRESHOLD") {
        None | Some(-2) => current.largest_ordered,
        Some(bytes) => Bytes(u64::try_from(bytes).unwrap_or(0)),
    };
    // A message that is split is sent on all queue pairs. Until NCCL 2.19 all messages were.
    let is_split = number("NCCL_IB_SPLIT_DATA_ON_QPS").map_or(splitting == Splitting::AllPairs, |on| on != 0);
    let stated = number("NCCL_IB_QPS_PER_CONNECTION").and_then(|count| u32::try_from(count).ok());
    let count = if is_split { 1 } else { stated.unwrap_or(current.count) };
    QueuePairs { count, routing, largest_ordered, ..current }
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

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bandwidth;

    use super::*;

    #[test]
    fn variables_select_queue_pairs() {
        let current = QueuePairs { count: 2, line_rate: Some(Bandwidth(50_000_000_000)), ..QueuePairs::ONE };
        let with_splitting = |settings: &[(&'static str, &'static str)], splitting| {
            let settings = settings.to_vec();
            let variable = move |name: &str| settings.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
            stated_queue_pairs(variable, splitting, current)
        };
        let stated = |name, value| with_splitting(&[(name, value)], Splitting::OnePair);
        assert_eq!(with_splitting(&[], Splitting::OnePair), current);
        let (routing, threshold) = ("NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_AR_THRESHOLD");
        assert_eq!(stated(routing, "0"), QueuePairs { routing: PacketRouting::Static, ..current });
        assert_eq!(stated(routing, "1"), current);
        let sizes = ["65536", "0", "-1", "-2", "large"].map(|size| stated(threshold, size).largest_ordered.0);
        assert_eq!(sizes, [65536, 0, 0, 8192, 8192]);
        let (count, split) = (("NCCL_IB_QPS_PER_CONNECTION", "4"), "NCCL_IB_SPLIT_DATA_ON_QPS");
        let counts = [
            (vec![count], Splitting::OnePair),
            (vec![count], Splitting::AllPairs),
            (vec![count, (split, "0")], Splitting::AllPairs),
            (vec![count, (split, "1")], Splitting::OnePair),
            (vec![], Splitting::AllPairs),
        ];
        assert_eq!(counts.map(|(settings, splitting)| with_splitting(&settings, splitting).count), [4, 1, 4, 1, 1]);
    }
}
