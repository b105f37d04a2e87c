//! Measured rows as a fit needs them: each with the schedule that was run, ready to be simulated with any profile.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Generate, Protocol};
use fabricast_topologies::Picos;

use super::parameters::Parameter;
use crate::rerun::Rerun;

/// A measured row and what it takes to predict it.
pub(super) struct Point<'a> {
    /// The measurement, by number, and the row in it.
    pub of: (usize, usize),
    pub measured: Picos,
    pub collective: Collective,
    pub protocol: Protocol,
    pub ranks: u32,
    rerun: &'a Rerun<'a>,
    schedule: Box<dyn Generate + Send + Sync>,
}

/// The rows of measurements whose strategies are known.
pub(super) fn points<'a>(reruns: &'a [Rerun<'a>], base: &Profile) -> Vec<Point<'a>> {
    let mut points = Vec::new();
    for (number, rerun) in reruns.iter().enumerate() {
        let strategies = rerun.strategies();
        for (place, row) in rerun.measurement.rows.iter().enumerate() {
            let Some(strategy) = strategies.of(row).filter(|_| row.measured() > Picos::ZERO) else { continue };
            let Some(schedule) = rerun.schedule(strategy, row, base) else { continue };
            points.push(Point {
                of: (number, place),
                measured: row.measured(),
                collective: rerun.measurement.configuration.collective,
                protocol: strategy.protocol,
                ranks: rerun.measurement.fabric.gpus().len() as u32,
                rerun,
                schedule,
            });
        }
    }
    points
}

impl Point<'_> {
    /// ln(predicted ÷ measured). A schedule that cannot run is as far off as can be told.
    pub fn residual(&self, profile: &Profile) -> f64 {
        let run = self.rerun.simulate(&*self.schedule, profile);
        let predicted = run.map_or(1, |timeline| timeline.time.0.max(1));
        (predicted as f64 / self.measured.0 as f64).ln()
    }

    /// Whether a parameter can change the prediction.
    pub fn feels(&self, parameter: Parameter) -> bool {
        match parameter {
            Parameter::Protocol(protocol, _) => protocol == self.protocol,
            Parameter::Launch(launch, processes, _) => (launch, processes) == self.launch(),
            Parameter::Nvlink => true,
            Parameter::Network => self.crosses(),
            Parameter::Message(cost) => self.crosses() && cost.is_of(self.protocol),
        }
    }

    /// Whether the measurement says which version of the library ran.
    pub fn library_is_named(&self) -> bool {
        self.rerun.measurement.configuration.library.is_some()
    }

    /// Hosts.
    pub fn nodes(&self) -> u32 {
        self.rerun.measurement.configuration.nodes
    }

    /// Whether messages go from host to host.
    pub fn crosses(&self) -> bool {
        self.nodes() > 1
    }

    /// Launch mode and processes, as profiles number them.
    pub fn launch(&self) -> (usize, usize) {
        let mode = self.rerun.mode();
        (mode.launch as usize, mode.processes as usize)
    }
}
