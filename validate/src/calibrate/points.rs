//! Measured rows as a fit needs them: each with the schedule that was run, ready to be predicted with any profile.

use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Circumstances, Decides, HostWork, Profile};
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Fabric, LinkKind, Picos};

use super::cases::{Cases, Device};
use super::parameters::{LaunchCost, Parameter};
use crate::rerun::Rerun;

/// A measured row and what it takes to predict it.
pub(super) struct Point {
    /// The measurement, by number, and the row in it.
    pub of: (usize, usize),
    pub measured: Picos,
    pub collective: Collective,
    pub protocol: Protocol,
    pub ranks: u32,
    pub nodes: u32,
    /// Whether the measurement says which version of the library ran.
    pub version: Version,
    pub mode: LaunchMode,
    pub nvlinks: Nvlinks,
    /// Whether switches copy or combine.
    pub multicasts: bool,
    /// The schedule, by number.
    pub case: usize,
}

/// Whether a measurement says which version of the library ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Named,
    Assumed,
}

/// Whether a fabric has NVLinks: where it has, they bear what PCIe would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nvlinks {
    Some,
    None,
}

impl Nvlinks {
    fn of(fabric: &Fabric) -> Self {
        if fabric.links().any(|(_, link)| link.kind == LinkKind::Nvlink) { Self::Some } else { Self::None }
    }
}

/// The rows of measurements whose strategies are known.
pub(super) fn points<'a>(reruns: &'a [Rerun<'a>], base: &Profile) -> (Vec<Point>, Cases<'a>) {
    let (mut points, mut cases) = (Vec::new(), Cases::new());
    for (number, rerun) in reruns.iter().enumerate() {
        let strategies = rerun.strategies();
        for (place, row) in rerun.measurement.rows.iter().enumerate() {
            let Some(strategy) = strategies.of(row).filter(|_| row.measured() > Picos::ZERO) else { continue };
            let Some(case) = cases.add(rerun, strategy, row, base) else { continue };
            points.push(Point {
                of: (number, place),
                measured: row.measured(),
                collective: rerun.measurement.configuration.collective,
                protocol: strategy.protocol,
                ranks: rerun.measurement.fabric.gpus().len() as u32,
                nodes: rerun.measurement.configuration.nodes,
                version: match rerun.measurement.configuration.library {
                    Some(_) => Version::Named,
                    None => Version::Assumed,
                },
                mode: rerun.mode(),
                nvlinks: Nvlinks::of(&rerun.measurement.fabric),
                multicasts: cases.multicasts(case),
                case,
            });
        }
    }
    (points, cases)
}

impl Point {
    /// ln(predicted ÷ measured). A schedule that cannot run is as far off as can be told.
    pub fn residual(&self, device: Device, profile: &Profile) -> f64 {
        (self.predicted(device, profile).0.max(1) as f64 / self.measured.0 as f64).ln()
    }

    /// What decides the call's time.
    pub fn decides(&self, device: Device, profile: &Profile) -> Decides {
        let added = profile.launch(self.mode.launch, self.mode.processes).added(self.mode.gpus_per_host);
        Decides::of(self.predicted(device, profile), device.time + added, device.bytes)
    }

    /// What the interval of the prediction depends on.
    pub fn circumstances(&self, decides: Decides) -> Circumstances {
        let (nodes, gpus) = (self.nodes, self.mode.gpus_per_host);
        Circumstances { collective: self.collective, protocol: self.protocol, gpus, nodes, decides }
    }

    /// What the call takes whose device side is known.
    pub fn predicted(&self, device: Device, profile: &Profile) -> Picos {
        let work = HostWork::of(self.mode.gpus_per_host, self.collective, self.protocol, self.ranks);
        profile.launch(self.mode.launch, self.mode.processes).apply(device.time, work)
    }

    /// Whether a parameter can change the prediction.
    pub fn feels(&self, parameter: Parameter) -> bool {
        match parameter {
            Parameter::Protocol(protocol, _) | Parameter::PaceOf(protocol) => protocol == self.protocol,
            Parameter::Launch(launch, processes, LaunchCost::FloorPerPeer) => {
                (launch, processes) == self.launch() && self.collective.is_between_pairs()
            }
            Parameter::Launch(launch, processes, _) => (launch, processes) == self.launch(),
            Parameter::Network => self.crosses(),
            Parameter::Message(cost) => self.crosses() && cost.is_of(self.protocol),
            Parameter::Multicast => self.multicasts,
            Parameter::Nvlink => self.nvlinks == Nvlinks::Some,
            Parameter::Pcie => self.nvlinks == Nvlinks::None,
            Parameter::Pace | Parameter::PassPace => true,
        }
    }

    /// Whether messages go from host to host.
    pub fn crosses(&self) -> bool {
        self.nodes > 1
    }

    /// Launch mode and processes, as profiles number them.
    pub fn launch(&self) -> (usize, usize) {
        (self.mode.launch as usize, self.mode.processes as usize)
    }
}
