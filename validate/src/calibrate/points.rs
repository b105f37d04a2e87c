//! Measured rows as a fit needs them: each with the schedule that was run, ready to be predicted with any profile.

use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Circumstances, Decides, HostWork, Profile};
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Fabric, LinkKind, Picos};

use super::cases::{Cases, Device};
use super::parameters::{LaunchCost, Parameter};
use crate::measured::{Row, neighbours};
use crate::rerun::Rerun;

/// A measured row and what it takes to predict it.
pub(super) struct Point {
    /// The measurement, by number, and the row in it.
    pub of: (usize, usize),
    pub measured: Picos,
    /// How much its residual counts.
    pub trust: f64,
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
    /// Peers that a rank exchanges data of its own with at once.
    pub peers_at_once: u16,
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
        let trusts = trusts(&rerun.measurement.rows);
        for ((place, row), trust) in rerun.measurement.rows.iter().enumerate().zip(trusts) {
            let Some(strategy) = strategies.of(row).filter(|_| row.measured() > Picos::ZERO) else { continue };
            let Some(case) = cases.add(rerun, strategy, row, base) else { continue };
            points.push(Point {
                of: (number, place),
                measured: row.measured(),
                trust,
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
                peers_at_once: cases.peers_at_once(case),
                case,
            });
        }
    }
    (points, cases)
}

/// How far off from its neighbours in size a row is that counts by 1/√2, as a logarithm: what a tenth of the rows of
/// validate/data/h200-node is.
const USUAL_SCATTER: f64 = 0.1;

/// How much the residual of each row counts: less where it does not go with its neighbours in size, since its moment had a
/// part in it. What goes with them is judged by undisturbed times: where the times of a sweep are high and low by turns, those that are low
/// are believed.
fn trusts(rows: &[Row]) -> Vec<f64> {
    let is_timed = |&place: &usize| rows.get(place).is_some_and(|row| row.measured() > Picos::ZERO);
    let mut order: Vec<usize> = (0..rows.len()).filter(is_timed).collect();
    order.sort_by_key(|&place| rows.get(place).map(|row| row.bytes));
    let sweep: Vec<_> =
        order.iter().filter_map(|&place| rows.get(place)).map(|row| (row.bytes, row.measured())).collect();
    let mut trusts = vec![1.0; rows.len()];
    let undisturbed = neighbours::undisturbed(&sweep);
    let expected = neighbours::expected(&undisturbed).into_iter().zip(&undisturbed);
    let expected = expected.map(|(between, &(_, least))| between.unwrap_or(least));
    for ((&place, &(_, measured)), expected) in order.iter().zip(&sweep).zip(expected) {
        if let Some(trust) = trusts.get_mut(place) {
            let off = (measured.0.max(1) as f64 / expected.0.max(1) as f64).ln();
            *trust = (1.0 + (off / USUAL_SCATTER).powi(2)).powf(-0.5);
        }
    }
    trusts
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
            Parameter::Launch(launch, processes, LaunchCost::FloorOneWay) => {
                (launch, processes) == self.launch() && self.collective.is_one_way()
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

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bytes;

    use super::*;

    #[test]
    fn a_row_that_does_not_go_with_its_neighbours_counts_less() {
        let row = |(place, time): (u32, u64)| Row::of(Bytes(1 << (10 + place)), Picos(time), place);
        let rows: Vec<Row> = (0..).zip([1_000, 1_000, 2_000, 1_000, 1_000, 1_000]).map(row).collect();
        let smooth = trusts(&rows);
        // Off by ln 2 of 0.1.
        assert!((smooth[2] - (1.0 + (2f64.ln() / USUAL_SCATTER).powi(2)).powf(-0.5)).abs() < 1e-12, "{smooth:?}");
        assert_eq!((smooth[0], smooth[1], smooth[3], smooth[4], smooth[5]), (1.0, 1.0, 1.0, 1.0, 1.0));
        // High and low by turns, the first one high: a host that is late for every other call.
        let by_turns = trusts(&(0..).zip([1_300, 1_000, 1_300, 1_000, 1_300, 1_000]).map(row).collect::<Vec<_>>());
        for (place, trust) in by_turns.into_iter().enumerate() {
            let expected = if place % 2 == 0 { (1.0 + (1.3f64.ln() / USUAL_SCATTER).powi(2)).powf(-0.5) } else { 1.0 };
            assert!((trust - expected).abs() < 1e-12, "{place}: {trust}");
        }
        // A row without a time says nothing of its neighbours.
        let untimed: Vec<Row> = rows.iter().cloned().chain([Row::of(Bytes(3 << 10), Picos(0), 9)]).collect();
        assert_eq!(trusts(&untimed)[..6], smooth);
        // In whatever order the rows stand.
        let mut backwards = trusts(&rows.into_iter().rev().collect::<Vec<_>>());
        backwards.reverse();
        assert_eq!(backwards, smooth);
    }
}
