//! Calibration: fits the parameters of a profile to measurements.
//!
//! Device costs (protocols, links) are fitted to the rows of the first manifest, with the launch costs of its modes.
//! Then the launch costs of further manifests' modes are fitted with fixed device costs, because the device side does
//! not depend on the launch mode. A row whose time is inconsistent with those of the next smaller and larger sizes has
//! less weight. For parameters that the rows do not determine, the prior is that all waits of a protocol's passes are
//! equal ([`Prior::Open`]). A row is used if its strategy is known: forced, or predicted by the library's own selection
//! rules. Rows with the role `check` are never used.
//!
//! ```text
//! measurements ─► points (row + schedule) ─► fit ─► solve (robust least squares) ─► profile, estimates, residuals
//!                     └─ hold-out: the fit without some points, which are then predicted
//! ```

pub mod benchmark;
mod cases;
mod cross;
pub mod curve;
mod estimate;
mod fit;
mod hold_out;
mod hold_out_selection;
mod network;
mod parameters;
mod points;
mod prior;
mod solve;
#[cfg(test)]
mod tests;

use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Bottleneck, FittedTraits, Launch, Profile};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::RouteOptions;

pub use estimate::Estimate;
pub use hold_out_selection::{HoldOut, UnknownHoldOut};
pub use network::calibrate_network;
pub use parameters::{Cost, FitParameter, LaunchCost, MessageCost, Unit};
pub use prior::{Prior, UnknownPrior};

use crate::compare::Coverage;
use crate::measured::manifest::{Measurement, Role};
use crate::measurement_simulation::MeasurementSimulation;
use cases::{Cases, DeviceTime};
use cross::{FOLDS, IntervalEvaluation, Rows};
use fit::ProfileFit;
use points::{FitPoint, GpuCosts, points};
use solve::StartDistance;

/// Reason that a profile cannot be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// No row is usable.
    #[error(
        "no measured row can be used for the fit: the strategy of {without_strategy} rows is unknown, and {check_rows} rows have the role check"
    )]
    NothingToFit {
        /// Number of rows whose strategy is unknown.
        without_strategy: usize,
        /// Number of rows with the role `check`.
        check_rows: usize,
    },
    /// There are fewer usable rows than parameters.
    #[error("{rows} rows cannot determine {parameters} parameters")]
    TooFewRows {
        /// Number of usable rows.
        rows: usize,
        /// Number of parameters to be fitted.
        parameters: usize,
    },
    /// The calibration was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// Error of the prediction of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Index of the measurement, counted over [`CalibrationRequest::device`] followed by
    /// [`CalibrationRequest::launches`].
    pub measurement: usize,
    /// Index of the row in the measurement.
    pub row: usize,
    /// Relative error: predicted ÷ measured − 1.
    pub error: f64,
    /// Bottleneck of the predicted call: launch, latency or bandwidth.
    pub decides: Bottleneck,
}

/// Errors of rows that were left out of a fit and predicted by it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutErrors {
    /// Selection of the rows left out.
    pub selection: HoldOut,
    /// Errors of the rows left out, predicted by the fit to the others.
    pub residuals: Vec<Residual>,
    /// Coverage of the left-out rows by prediction intervals. The widening for each half of these rows is derived from
    /// the other half.
    pub coverage: Coverage,
}

/// Rows that each fit of a cross-validation leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutUnit {
    /// A fifth of the rows.
    Fifth,
    /// All rows of a cluster.
    Cluster,
}

/// Result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Fitted profile, with its prediction intervals.
    pub profile: Profile,
    /// Fitted parameters with their 80 % intervals.
    pub estimates: Vec<Estimate>,
    /// Sets of parameters whose individual values the data do not determine, only combinations of them.
    pub inseparable: Vec<Vec<FitParameter>>,
    /// Errors of the rows from which device costs (or network costs) were fitted.
    pub fitted: Vec<Residual>,
    /// Errors of the rows from which only launch costs were fitted.
    pub launches: Vec<Residual>,
    /// Errors of all rows, each predicted by a fit without it; empty if the network alone is calibrated to one cluster.
    pub cross_validated: Vec<Residual>,
    /// Rows that each fit of the cross-validation leaves out.
    pub left_out: LeftOutUnit,
    /// Coverage of the cross-validated rows by intervals from the other folds.
    pub coverage: Coverage,
    /// Results of the requested hold-outs, in their order.
    pub held_out: Vec<HeldOutErrors>,
    /// Number of rows that could not be used because their strategy is unknown.
    pub without_strategy: usize,
    /// Number of rows with the role `check`, which were not used.
    pub to_check: usize,
}

/// Input of a calibration.
#[derive(Clone, Copy)]
pub struct CalibrationRequest<'a> {
    /// Measurements for device costs and the launch costs of their modes.
    pub device: &'a [Measurement],
    /// Measurements for the launch costs of further modes.
    pub launches: &'a [Measurement],
    /// Starting profile of the fit. Parameters on which no row depends keep its values.
    pub base: &'a Profile,
    /// Prior of the device costs around `base`.
    pub prior: Prior,
    /// Hold-outs to evaluate, each by a separate fit.
    pub hold_out: &'a [HoldOut],
    /// Monitor of the calibration, which counts fits.
    pub monitor: Monitor<'a>,
}

/// Fits the device and launch costs of a profile to measurements, and validates the fit by cross-validation and
/// hold-outs.
///
/// # Errors
/// [`CalibrateError`]: no or too few usable rows, or an interruption.
pub fn calibrate(task: CalibrationRequest<'_>) -> Result<Calibration, CalibrateError> {
    let base = &task.prior.start(task.base);
    let measurements = || task.device.iter().chain(task.launches);
    let rows = |role: Role| -> usize {
        measurements().filter(|measurement| measurement.role == role).map(|measurement| measurement.rows.len()).sum()
    };
    let to_check = rows(Role::Check);
    let reruns: Vec<MeasurementSimulation<'_>> =
        measurements().map(|measurement| MeasurementSimulation::new(measurement, RouteOptions::default())).collect();
    let (mut selected, cases) = points(&reruns, base, GpuCosts::Fitted, task.monitor);
    if !task.prior.weights_rows() {
        selected.iter_mut().for_each(|point| point.weight = 1.0);
    }
    selected.retain(|point| reruns.get(point.row_index.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit));
    let without_strategy = rows(Role::Fit) - selected.len();
    let (device, further): (Vec<&FitPoint>, Vec<&FitPoint>) =
        selected.iter().partition(|point| point.row_index.0 < task.device.len());
    if device.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, check_rows: to_check });
    }
    let parameters = determined_parameters(&device, base);
    if device.len() < parameters.len() {
        return Err(CalibrateError::TooFewRows { rows: device.len(), parameters: parameters.len() });
    }
    let fit = ProfileFit { cases: &cases, points: device.clone(), base, parameters: &parameters, prior: task.prior };
    task.monitor.add_total(1 + FOLDS + task.hold_out.len());
    let (mut profile, minimum) = fit.run(StartDistance::Far);
    task.monitor.add_done(1);
    let mut estimates = estimate::estimate_parameters(&parameters, &minimum, &profile);
    let entangled = estimate::inseparable_parameters(&parameters, &minimum);
    // Launch costs are fitted jointly to all rows.
    let all_points: Vec<&FitPoint> = device.iter().chain(&further).copied().collect();
    let modes = if further.is_empty() { Vec::new() } else { launch_parameters(&all_points, base) };
    let mut fitted = errors(&cases, &device, &profile);
    if !modes.is_empty() {
        let start = profile.clone();
        let fit =
            ProfileFit { cases: &cases, points: all_points, base: &start, parameters: &modes, prior: Prior::Open };
        let (with_modes, minimum) = fit.run(StartDistance::Far);
        estimates.retain(|estimate| !modes.contains(&estimate.parameter));
        estimates.extend(estimate::estimate_parameters(&modes, &minimum, &with_modes));
        profile = with_modes;
        fitted = errors(&cases, &device, &profile);
    }
    let launches = errors(&cases, &further, &profile);
    let rows = Rows {
        cases: &cases,
        device: &device,
        parameters: &parameters,
        further: &further,
        modes: &modes,
        prior: task.prior,
        base,
    };
    let left_out = rows.left_out(&profile);
    let hold_out = |selection| {
        let predicted = hold_out::predict(selection, &fit);
        task.monitor.add_done(1);
        predicted
    };
    let held_out: Vec<_> = task.hold_out.iter().map(hold_out).collect();
    let IntervalEvaluation { bands, coverage, held_out } =
        cross::evaluate_intervals(&left_out, held_out, fitted_traits(&selected), task.base.bands.widening);
    if task.monitor.is_interrupted() {
        return Err(CalibrateError::Interrupted);
    }
    profile.bands = bands;
    let cross_validated = left_out.iter().map(|row| row.residual).collect();
    Ok(Calibration {
        profile,
        estimates,
        inseparable: entangled,
        fitted,
        launches,
        cross_validated,
        left_out: LeftOutUnit::Fifth,
        coverage,
        held_out,
        without_strategy,
        to_check,
    })
}

/// Collectives, numbers of GPUs per host and numbers of hosts of the points. The prediction is known to be valid for
/// these.
fn fitted_traits(points: &[FitPoint]) -> FittedTraits {
    fn values<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
        let all: std::collections::BTreeSet<T> = values.collect();
        all.into_iter().collect()
    }
    FittedTraits {
        collectives: values(points.iter().map(|point| point.collective)),
        gpus: values(points.iter().map(|point| point.mode.gpus_per_host)),
        nodes: values(points.iter().map(|point| point.nodes)),
    }
}

/// Parameters that the points determine: link efficiencies, costs of the protocols in use, message costs and launch
/// costs.
fn determined_parameters(points: &[&FitPoint], base: &Profile) -> Vec<FitParameter> {
    let links = [FitParameter::Nvlink, FitParameter::Pcie].into_iter();
    let mut parameters: Vec<FitParameter> =
        links.filter(|&link| points.iter().any(|point| point.depends_on(link))).collect();
    if points.iter().any(|point| point.multicasts) {
        parameters.push(FitParameter::Multicast);
    }
    for protocol in Protocol::ALL {
        let protocol_points = points.iter().filter(|point| point.protocol == protocol);
        // Costs per peer can be separated from others only if points have several numbers of peers.
        let has_several_peer_counts =
            has_several_values(protocol_points.clone().map(|point| point.concurrent_peers).filter(|&peers| peers > 0));
        let is_determined = |cost: &Cost| *cost != Cost::StartupPerPeer || has_several_peer_counts;
        if protocol_points.count() > 0 {
            let costs =
                Cost::all().into_iter().filter(is_determined).map(|cost| FitParameter::Protocol(protocol, cost));
            parameters.extend(costs.filter(|parameter| parameter.applies(base)));
        }
    }
    parameters.extend(network::determined_message_costs(points, base));
    parameters.extend(launch_parameters(points, base));
    parameters
}

/// Returns true if the values are not all equal.
fn has_several_values<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    values.next().is_some_and(|first| values.any(|other| other != first))
}

/// Launch parameters of the points' launch modes. With one process per GPU, the cost that a launch adds cannot be
/// separated from the cost of a call.
fn launch_parameters(points: &[&FitPoint], base: &Profile) -> Vec<FitParameter> {
    let mut modes: Vec<(usize, usize)> = points.iter().map(|point| point.launch()).collect();
    modes.sort_unstable();
    modes.dedup();
    let reference = modes.iter().copied().find(|&(_, processes)| processes == 0);
    let parameters = modes.into_iter().flat_map(move |(launch, processes)| {
        let single = processes == 1;
        // Costs per GPU can be separated from others only if points have several numbers of GPUs.
        let mode_points = points.iter().filter(|point| point.launch() == (launch, processes));
        let has_several_gpu_counts = has_several_values(mode_points.map(|point| point.mode.gpus_per_host));
        let is_reference = Some((launch, processes)) == reference;
        let base_costs: &[LaunchCost] = match (single, is_reference, has_several_gpu_counts) {
            (false, true, false) => &[LaunchCost::Floor],
            // When launched from a graph, processes start their parts of a call almost simultaneously.
            (false, true, true) if launch == Launch::Graph as usize => &[LaunchCost::Floor, LaunchCost::FloorPerGpu],
            (false, false, false) => &[LaunchCost::AddedPerGpu, LaunchCost::Floor],
            (false, _, true) => &[LaunchCost::AddedPerGpu, LaunchCost::Floor, LaunchCost::FloorPerGpu],
            (true, _, false) => &[LaunchCost::AddedPerGpu, LaunchCost::FloorPerGpu],
            (true, _, true) => {
                &[LaunchCost::Added, LaunchCost::AddedPerGpu, LaunchCost::Floor, LaunchCost::FloorPerGpu]
            }
        };
        let between_pairs =
            points.iter().any(|point| point.launch() == (launch, processes) && point.collective.is_pairwise());
        let peer_cost = between_pairs.then_some(LaunchCost::FloorPerPeer);
        let is_one_way =
            points.iter().any(|point| point.launch() == (launch, processes) && point.collective.is_one_way());
        let one_way_cost = is_one_way.then_some(LaunchCost::FloorOneWay);
        let costs = base_costs.iter().copied().chain(peer_cost).chain(one_way_cost).chain([LaunchCost::Jitter]);
        costs.map(move |cost| FitParameter::Launch(launch, processes, cost)).collect::<Vec<_>>()
    });
    parameters.filter(|parameter| parameter.applies(base)).collect()
}

fn errors(cases: &Cases<'_>, points: &[&FitPoint], profile: &Profile) -> Vec<Residual> {
    let case_indices: Vec<usize> = points.iter().map(|point| point.case).collect();
    let error = |(point, device): (&&FitPoint, DeviceTime)| Residual {
        measurement: point.row_index.0,
        row: point.row_index.1,
        error: point.residual(device, profile).exp() - 1.0,
        decides: point.regime(device, profile),
    };
    points.iter().zip(cases.run(&case_indices, profile)).map(error).collect()
}
