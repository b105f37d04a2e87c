//! Measured rows with their schedules, from which a time can be predicted with any profile.

use std::sync::Arc;

use fabricast_sim::LaunchMode;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Bottleneck, CallTraits, HostWork, LaunchCosts, Profile};
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Fabric, LinkKind, Picos};

use super::cases::{Cases, DeviceTime, MachineProfile};
use super::parameters::{FitParameter, LaunchCost};
use crate::measured::{Row, interpolation};
use crate::measurement_simulation::MeasurementSimulation;

/// A measured row with all inputs of its prediction.
pub(super) struct FitPoint {
    /// Index of the measurement and of the row in it.
    pub row_index: (usize, usize),
    pub measured: Picos,
    /// Factor of the residual in the fit, at most 1; smaller for rows that were probably disturbed.
    pub weight: f64,
    pub collective: Collective,
    pub protocol: Protocol,
    pub ranks: u32,
    pub nodes: u32,
    /// Name of the measured cluster, or description of its hardware; empty if the manifest has none.
    pub cluster: Arc<str>,
    /// Origin of the library version: named by the measurement or assumed.
    pub version: Version,
    pub mode: LaunchMode,
    pub nvlinks: Nvlinks,
    /// True if the schedule uses multicast or reduction in switches.
    pub multicasts: bool,
    /// Number of peers with which a rank concurrently exchanges its own data.
    pub concurrent_peers: u16,
    /// Index of the schedule in [`Cases`].
    pub case: usize,
    /// Launch costs of the machine; `None` to use those of the fitted profile.
    pub launch: Option<LaunchCosts>,
}

/// Source of the GPU and launch costs with which points are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GpuCosts {
    /// The fitted profile.
    Fitted,
    /// The shipped profile of each machine's GPUs. Used when a network is fitted to machines with different GPUs.
    OfMachines,
}

/// Origin of the library version of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Named,
    Assumed,
}

/// Presence of NVLinks in a fabric. If present, NVLinks carry the traffic instead of PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nvlinks {
    Some,
    None,
}

impl Nvlinks {
    fn in_fabric(fabric: &Fabric) -> Self {
        if fabric.links().any(|(_, link)| link.kind == LinkKind::Nvlink) { Self::Some } else { Self::None }
    }
}

/// Returns the rows whose strategies are known, with their schedules.
pub(super) fn points<'a>(
    reruns: &'a [MeasurementSimulation<'a>],
    base: &Profile,
    gpu_costs: GpuCosts,
    monitor: Monitor<'a>,
) -> (Vec<FitPoint>, Cases<'a>) {
    let (mut points, mut cases) = (Vec::new(), Cases::new(monitor));
    for (number, rerun) in reruns.iter().enumerate() {
        let machine = match gpu_costs {
            GpuCosts::Fitted => None,
            GpuCosts::OfMachines => MachineProfile::for_fabric(&rerun.measurement.fabric).ok().map(Arc::new),
        };
        let base = machine.as_ref().map_or(base, |machine| machine.profile());
        let mode = rerun.mode();
        let notes = &rerun.measurement.notes;
        let cluster: Arc<str> = notes.cluster.as_deref().or(notes.hardware.as_deref()).unwrap_or_default().into();
        let launch = machine.as_ref().map(|machine| machine.profile().launch(mode.launch, mode.processes));
        let strategies = rerun.strategies();
        let weights = row_weights(&rerun.measurement.rows);
        for ((row_number, row), weight) in rerun.measurement.rows.iter().enumerate().zip(weights) {
            let Some(strategy) = strategies.strategy(row).filter(|_| row.measured() > Picos::ZERO) else { continue };
            let Some(case) = cases.add(rerun, machine.as_ref(), strategy, row, base) else { continue };
            points.push(FitPoint {
                row_index: (number, row_number),
                measured: row.measured(),
                weight,
                collective: rerun.measurement.configuration.collective,
                protocol: strategy.protocol,
                ranks: rerun.measurement.fabric.gpus().len() as u32,
                nodes: rerun.measurement.configuration.nodes,
                cluster: Arc::clone(&cluster),
                version: match rerun.measurement.configuration.library {
                    Some(_) => Version::Named,
                    None => Version::Assumed,
                },
                mode,
                launch,
                nvlinks: Nvlinks::in_fabric(&rerun.measurement.fabric),
                multicasts: cases.multicasts(case),
                concurrent_peers: cases.concurrent_peers(case),
                case,
            });
        }
    }
    (points, cases)
}

/// Deviation from the times of neighbouring sizes, as a natural logarithm, at which a row has the weight 1/√2. A tenth
/// of the rows of validate/data/h200-node deviate more.
const USUAL_SCATTER: f64 = 0.1;

/// Weight of each row's residual. A row whose time deviates from those of the next smaller and larger sizes was
/// probably disturbed and has a lower weight. Rows are compared with undisturbed times: if a sweep alternates between
/// high and low times, the low ones keep their weight.
fn row_weights(rows: &[Row]) -> Vec<f64> {
    let is_timed = |&index: &usize| rows.get(index).is_some_and(|row| row.measured() > Picos::ZERO);
    let mut order: Vec<usize> = (0..rows.len()).filter(is_timed).collect();
    order.sort_by_key(|&index| rows.get(index).map(|row| row.bytes));
    let sweep: Vec<_> =
        order.iter().filter_map(|&index| rows.get(index)).map(|row| (row.bytes, row.measured())).collect();
    let mut weights = vec![1.0; rows.len()];
    let undisturbed = interpolation::monotone_lower_envelope(&sweep);
    let expected = interpolation::interpolate_neighbours(&undisturbed).into_iter().zip(&undisturbed);
    let expected = expected.map(|(interpolated, &(_, time))| interpolated.unwrap_or(time));
    for ((&index, &(_, measured)), expected) in order.iter().zip(&sweep).zip(expected) {
        if let Some(weight) = weights.get_mut(index) {
            let deviation = (measured.0.max(1) as f64 / expected.0.max(1) as f64).ln();
            *weight = (1.0 + (deviation / USUAL_SCATTER).powi(2)).powf(-0.5);
        }
    }
    weights
}

impl FitPoint {
    /// Natural logarithm of predicted ÷ measured time. A predicted time of zero counts as 1 ps.
    pub fn residual(&self, device: DeviceTime, profile: &Profile) -> f64 {
        (self.predicted(device, profile).0.max(1) as f64 / self.measured.0 as f64).ln()
    }

    /// Bottleneck of the predicted call: launch, latency or bandwidth.
    pub fn regime(&self, device: DeviceTime, profile: &Profile) -> Bottleneck {
        let added = self.launch_costs(profile).added(self.mode.gpus_per_host);
        Bottleneck::classify(self.predicted(device, profile), device.time + added, device.bytes)
    }

    /// Traits of the call that determine its prediction interval.
    pub fn traits(&self, decides: Bottleneck) -> CallTraits {
        let (nodes, gpus) = (self.nodes, self.mode.gpus_per_host);
        CallTraits { collective: self.collective, protocol: self.protocol, gpus, nodes, decides }
    }

    /// Predicted time of the call, given its device time.
    pub fn predicted(&self, device: DeviceTime, profile: &Profile) -> Picos {
        let work = HostWork::for_call(self.mode.gpus_per_host, self.collective, self.protocol, self.ranks);
        self.launch_costs(profile).call_time(device.time, work)
    }

    fn launch_costs(&self, profile: &Profile) -> LaunchCosts {
        self.launch.unwrap_or_else(|| profile.launch(self.mode.launch, self.mode.processes))
    }

    /// Returns true if a parameter can change the prediction.
    pub fn depends_on(&self, parameter: FitParameter) -> bool {
        match parameter {
            FitParameter::Protocol(protocol, _) | FitParameter::ProtocolLatencyFactor(protocol) => {
                protocol == self.protocol
            }
            FitParameter::Launch(launch, processes, LaunchCost::FloorPerPeer) => {
                (launch, processes) == self.launch() && self.collective.is_pairwise()
            }
            FitParameter::Launch(launch, processes, LaunchCost::FloorOneWay) => {
                (launch, processes) == self.launch() && self.collective.is_one_way()
            }
            FitParameter::Launch(launch, processes, _) => (launch, processes) == self.launch(),
            FitParameter::Network => self.spans_hosts(),
            FitParameter::Message(cost) => self.spans_hosts() && cost.applies_to(self.protocol),
            FitParameter::Multicast => self.multicasts,
            FitParameter::Nvlink => self.nvlinks == Nvlinks::Some,
            FitParameter::Pcie => self.nvlinks == Nvlinks::None,
            FitParameter::LatencyFactor | FitParameter::PassTimeFactor => true,
        }
    }

    /// Returns true if the call spans several hosts.
    pub fn spans_hosts(&self) -> bool {
        self.nodes > 1
    }

    /// Launch mode and process layout, by their indices in profiles.
    pub fn launch(&self) -> (usize, usize) {
        (self.mode.launch as usize, self.mode.processes as usize)
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bytes;

    use super::*;

    #[test]
    fn rows_that_deviate_from_their_neighbours_weigh_less() {
        let row = |(index, time): (u32, u64)| Row::new(Bytes(1 << (10 + index)), Picos(time), index);
        let rows: Vec<Row> = (0..).zip([1_000, 1_000, 2_000, 1_000, 1_000, 1_000]).map(row).collect();
        let smooth = row_weights(&rows);
        // The row deviates by ln 2 from its neighbours; the weight is computed with a usual scatter of 0.1.
        assert!((smooth[2] - (1.0 + (2f64.ln() / USUAL_SCATTER).powi(2)).powf(-0.5)).abs() < 1e-12, "{smooth:?}");
        assert_eq!((smooth[0], smooth[1], smooth[3], smooth[4], smooth[5]), (1.0, 1.0, 1.0, 1.0, 1.0));
        // Times alternate between high and low, beginning with a high one, as on a host that delays every other call.
        let alternating =
            row_weights(&(0..).zip([1_300, 1_000, 1_300, 1_000, 1_300, 1_000]).map(row).collect::<Vec<_>>());
        for (index, weight) in alternating.into_iter().enumerate() {
            let expected = if index % 2 == 0 { (1.0 + (1.3f64.ln() / USUAL_SCATTER).powi(2)).powf(-0.5) } else { 1.0 };
            assert!((weight - expected).abs() < 1e-12, "{index}: {weight}");
        }
        // A row without a time does not affect its neighbours' weights.
        let untimed: Vec<Row> = rows.iter().cloned().chain([Row::new(Bytes(3 << 10), Picos(0), 9)]).collect();
        assert_eq!(row_weights(&untimed)[..6], smooth);
        // The order of the rows does not affect the weights.
        let mut backwards = row_weights(&rows.into_iter().rev().collect::<Vec<_>>());
        backwards.reverse();
        assert_eq!(backwards, smooth);
    }
}
