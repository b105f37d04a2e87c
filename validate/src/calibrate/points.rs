//! Measured rows as a fit needs them: each with the schedule that was run, ready to be simulated with any profile.

use fabricast_planner::abilities::Abilities;
use fabricast_planner::algorithm::{Shape, generator};
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Generate, Protocol};
use fabricast_sim::{LaunchMode, Surroundings, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId, Picos};

use super::parameters::Parameter;
use crate::measured::manifest::Measurement;
use crate::strategy_of::{Strategies, call};

/// A measured row and what it takes to predict it.
pub(super) struct Point<'a> {
    /// The measurement, by number, and the row in it.
    pub of: (usize, usize),
    pub measured: Picos,
    pub collective: Collective,
    pub protocol: Protocol,
    pub ranks: u32,
    mode: LaunchMode,
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    generator: Box<dyn Generate + Send + Sync>,
}

/// The rows of measurements whose strategies are known; `routers` has one for each measurement.
pub(super) fn points<'a>(measurements: &'a [Measurement], routers: &'a [Router<'a>], base: &Profile) -> Vec<Point<'a>> {
    let mut points = Vec::new();
    for (number, (measurement, router)) in measurements.iter().zip(routers).enumerate() {
        let configuration = &measurement.configuration;
        let (fabric, placement) = (&*measurement.fabric, measurement.fabric.gpus());
        let abilities = Abilities::of(fabric, router, placement, configuration.gpus, configuration.in_network);
        let strategies = Strategies::new(measurement, router);
        for (place, row) in measurement.rows.iter().enumerate() {
            let Some(strategy) = strategies.of(row).filter(|_| row.measured() > Picos::ZERO) else { continue };
            let shape = Shape {
                grid: fabric.host_grid().to_vec(),
                ..strategy.shape(call(measurement, row), base, configuration.gpus, &abilities)
            };
            let Ok(generator) = generator(strategy.algorithm, &shape) else { continue };
            points.push(Point {
                of: (number, place),
                measured: row.measured(),
                collective: configuration.collective,
                protocol: strategy.protocol,
                ranks: placement.len() as u32,
                mode: LaunchMode {
                    launch: configuration.launch,
                    processes: configuration.processes,
                    gpus_per_host: configuration.gpus,
                },
                fabric,
                router,
                placement,
                generator,
            });
        }
    }
    points
}

impl Point<'_> {
    /// ln(predicted ÷ measured). A schedule that cannot run is as far off as can be told.
    pub fn residual(&self, profile: &Profile) -> f64 {
        let Self { fabric, router, placement, .. } = *self;
        let setting = Setting { fabric, router, placement, profile, delays: &[] };
        let run = simulate(&*self.generator, setting, self.mode, Surroundings::default(), Watch::default());
        let predicted = run.map_or(1, |timeline| timeline.time.0.max(1));
        (predicted as f64 / self.measured.0 as f64).ln()
    }

    /// Whether a parameter can change the prediction.
    pub fn feels(&self, parameter: Parameter) -> bool {
        match parameter {
            Parameter::Protocol(protocol, _) => protocol == self.protocol,
            Parameter::Launch(launch, processes, _) => (launch, processes) == self.launch(),
            Parameter::Nvlink | Parameter::Network => true,
        }
    }

    /// Launch mode and processes, as profiles number them.
    pub fn launch(&self) -> (usize, usize) {
        (self.mode.launch as usize, self.mode.processes as usize)
    }
}
