//! Calibration: fits the parameters of a profile to measurements.
//!
//! Device costs (protocols, links) are fitted to the rows of the first manifest, with the launch costs of its modes.
//! Then the launch costs of further manifests' modes are fitted with fixed device costs, because the device side does
//! not depend on the launch mode. A row that deviates from its neighbours in size has less weight. Parameters that
//! the rows do not determine follow the prior that all waits of a protocol's passes are equal ([`Prior::Open`]). A
//! row is used if its strategy is known: forced, or predicted by the library's own selection rules. Rows with the
//! role `check` are never used.
//!
//! ```text
//! measurements ─► points (row + schedule) ─► fit ─► solve (robust least squares) ─► profile, estimates, residuals
//!                     └─ hold-out: the fit without some points, which are then predicted
//! ```

mod cases;
mod cross;
pub mod curve;
mod estimate;
mod fit;
mod hold_out;
mod network;
mod parameters;
pub mod physical;
mod points;
mod prior;
mod solve;
#[cfg(test)]
mod tests;

use fabricast_sim::profile::{Decides, Known, Launch, Profile};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::RouteOptions;

pub use estimate::Estimate;
pub use hold_out::{HoldOut, UnknownHoldOut};
pub use network::calibrate_network;
pub use parameters::{Cost, LaunchCost, MessageCost, Parameter, Unit};
pub use prior::{Prior, UnknownPrior};

use crate::compare::Coverage;
use crate::measured::manifest::{Measurement, Role};
use crate::rerun::Rerun;
use cases::{Cases, Device};
use cross::Rows;
use fit::Fit;
use points::{Point, points};
use solve::Start;

/// Reason that a profile cannot be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// No row can be used.
    #[error(
        "no row of the measurements can be fitted to: {without_strategy} rows leave open what ran, and {to_check} are for checking only"
    )]
    NothingToFit {
        /// Number of rows whose strategy is unknown.
        without_strategy: usize,
        /// Number of rows with the role `check`.
        to_check: usize,
    },
    /// Fewer rows than parameters.
    #[error("{rows} rows cannot tell {parameters} parameters")]
    TooFewRows {
        /// Number of usable rows.
        rows: usize,
        /// Number of parameters to be fitted.
        parameters: usize,
    },
}

/// A row and the error of its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Index of the measurement.
    pub measurement: usize,
    /// Index of the row in the measurement.
    pub row: usize,
    /// Predicted ÷ measured − 1.
    pub error: f64,
    /// Regime that determines the prediction.
    pub decides: Decides,
}

/// Errors of rows that were left out of a fit and predicted by it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// Selection of the rows left out.
    pub what: HoldOut,
    /// The rows left out.
    pub residuals: Vec<Residual>,
    /// Coverage of these rows by intervals widened as the other half of them needs.
    pub coverage: Coverage,
}

/// Result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The fitted profile.
    pub profile: Profile,
    /// Its parameters with intervals.
    pub estimates: Vec<Estimate>,
    /// Sets of parameters of which the data determine only combinations.
    pub entangled: Vec<Vec<Parameter>>,
    /// Errors of the rows fitted to, device costs first.
    pub fitted: Vec<Residual>,
    /// Errors of the rows that only launch costs were fitted to.
    pub launches: Vec<Residual>,
    /// Errors of all rows, each predicted by a fit without it.
    pub cross_validated: Vec<Residual>,
    /// Coverage of the cross-validated rows by intervals from the other folds.
    pub coverage: Coverage,
    /// Results of the hold-outs.
    pub held_out: Vec<HeldOut>,
    /// Number of rows that could not be used because their strategy is unknown.
    pub without_strategy: usize,
    /// Number of rows with the role `check`, which were not used.
    pub to_check: usize,
}

/// Input of a calibration.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Measurements for device costs and the launch costs of their modes.
    pub device: &'a [Measurement],
    /// Measurements for the launch costs of further modes.
    pub launches: &'a [Measurement],
    /// Profile where the fit starts; parameters that no row depends on keep its values.
    pub base: &'a Profile,
    /// Prior of the device costs around `base`.
    pub prior: Prior,
    /// Hold-outs to evaluate, one after the other.
    pub hold_out: &'a [HoldOut],
}

/// Fits a profile.
///
/// # Errors
/// [`CalibrateError`] if there are no or too few usable rows.
pub fn calibrate(task: Task<'_>) -> Result<Calibration, CalibrateError> {
    let base = &task.prior.start(task.base);
    let all = || task.device.iter().chain(task.launches);
    let rows = |role: Role| -> usize { all().filter(|one| one.role == role).map(|one| one.rows.len()).sum() };
    let to_check = rows(Role::Check);
    let reruns: Vec<Rerun<'_>> = all().map(|one| Rerun::new(one, RouteOptions::default())).collect();
    let (mut found, cases) = points(&reruns, base);
    if !task.prior.doubts_rows() {
        found.iter_mut().for_each(|point| point.trust = 1.0);
    }
    found.retain(|point| reruns.get(point.of.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit));
    let without_strategy = rows(Role::Fit) - found.len();
    let (device, further): (Vec<&Point>, Vec<&Point>) = found.iter().partition(|point| point.of.0 < task.device.len());
    if device.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, to_check });
    }
    let parameters = told_by(&device, base);
    if device.len() < parameters.len() {
        return Err(CalibrateError::TooFewRows { rows: device.len(), parameters: parameters.len() });
    }
    let fit = Fit { cases: &cases, points: device.clone(), base, parameters: &parameters, prior: task.prior };
    let (mut profile, minimum) = fit.run(Start::Far);
    let mut estimates = estimate::of(&parameters, &minimum, &profile);
    let entangled = estimate::entangled(&parameters, &minimum);
    // All rows determine the launch costs jointly.
    let everything: Vec<&Point> = device.iter().chain(&further).copied().collect();
    let modes = if further.is_empty() { Vec::new() } else { launch_parameters(&everything, base) };
    let mut fitted = errors(&cases, &device, &profile);
    if !modes.is_empty() {
        let start = profile.clone();
        let fit = Fit { cases: &cases, points: everything, base: &start, parameters: &modes, prior: Prior::Open };
        let (with_modes, minimum) = fit.run(Start::Far);
        estimates.retain(|known| !modes.contains(&known.parameter));
        estimates.extend(estimate::of(&modes, &minimum, &with_modes));
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
    let hold_out = |what| hold_out::predict(what, &fit);
    let held_out: Vec<_> = task.hold_out.iter().map(hold_out).collect();
    let (bands, coverage, held_out) = cross::judged(&left_out, held_out, known(&found), task.base.bands.beyond);
    profile.bands = bands;
    let cross_validated = left_out.iter().map(|row| row.residual).collect();
    Ok(Calibration {
        profile,
        estimates,
        entangled,
        fitted,
        launches,
        cross_validated,
        coverage,
        held_out,
        without_strategy,
        to_check,
    })
}

/// Traits that occur among the rows.
fn known(points: &[Point]) -> Known {
    fn values<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
        let all: std::collections::BTreeSet<T> = values.collect();
        all.into_iter().collect()
    }
    Known {
        collectives: values(points.iter().map(|point| point.collective)),
        gpus: values(points.iter().map(|point| point.mode.gpus_per_host)),
        nodes: values(points.iter().map(|point| point.nodes)),
    }
}

/// Parameters that the points determine.
fn told_by(points: &[&Point], base: &Profile) -> Vec<Parameter> {
    let links = [Parameter::Nvlink, Parameter::Pcie].into_iter();
    let mut parameters: Vec<Parameter> = links.filter(|&link| points.iter().any(|point| point.feels(link))).collect();
    if points.iter().any(|point| point.multicasts) {
        parameters.push(Parameter::Multicast);
    }
    for protocol in Protocol::ALL {
        let of_it = points.iter().filter(|point| point.protocol == protocol);
        // Per-peer costs can be separated only with several numbers of peers.
        let tells_peers = differ(of_it.clone().map(|point| point.peers_at_once).filter(|&peers| peers > 0));
        let is_told = |cost: &Cost| *cost != Cost::StartupPerPeer || tells_peers;
        if of_it.count() > 0 {
            let costs = Cost::all().into_iter().filter(is_told).map(|cost| Parameter::Protocol(protocol, cost));
            parameters.extend(costs.filter(|parameter| parameter.applies(base)));
        }
    }
    parameters.extend(network::told_by(points, base));
    parameters.extend(launch_parameters(points, base));
    parameters
}

/// Returns true if not all values are equal.
fn differ<T: PartialEq>(mut of: impl Iterator<Item = T>) -> bool {
    of.next().is_some_and(|first| of.any(|other| other != first))
}

/// Launch parameters of the points' modes. With one process per GPU, the cost added by a launch cannot be separated
/// from the cost of a call.
fn launch_parameters(points: &[&Point], base: &Profile) -> Vec<Parameter> {
    let mut modes: Vec<(usize, usize)> = points.iter().map(|point| point.launch()).collect();
    modes.sort_unstable();
    modes.dedup();
    let reference = modes.iter().copied().find(|&(_, processes)| processes == 0);
    let all = modes.into_iter().flat_map(move |(launch, processes)| {
        let single = processes == 1;
        // Per-GPU costs can be separated only with several numbers of GPUs.
        let of_it = points.iter().filter(|point| point.launch() == (launch, processes));
        let tells_gpus = differ(of_it.map(|point| point.mode.gpus_per_host));
        let is_reference = Some((launch, processes)) == reference;
        let told: &[LaunchCost] = match (single, is_reference, tells_gpus) {
            (false, true, false) => &[LaunchCost::Floor],
            // From a graph, processes start their parts of a call almost simultaneously.
            (false, true, true) if launch == Launch::Graph as usize => &[LaunchCost::Floor, LaunchCost::FloorPerGpu],
            (false, false, false) => &[LaunchCost::AddedPerGpu, LaunchCost::Floor],
            (false, _, true) => &[LaunchCost::AddedPerGpu, LaunchCost::Floor, LaunchCost::FloorPerGpu],
            (true, _, false) => &[LaunchCost::AddedPerGpu, LaunchCost::FloorPerGpu],
            (true, _, true) => {
                &[LaunchCost::Added, LaunchCost::AddedPerGpu, LaunchCost::Floor, LaunchCost::FloorPerGpu]
            }
        };
        let between_pairs =
            points.iter().any(|point| point.launch() == (launch, processes) && point.collective.is_between_pairs());
        let of_peers = between_pairs.then_some(LaunchCost::FloorPerPeer);
        let one_way = points.iter().any(|point| point.launch() == (launch, processes) && point.collective.is_one_way());
        let of_flow = one_way.then_some(LaunchCost::FloorOneWay);
        let costs = told.iter().copied().chain(of_peers).chain(of_flow).chain([LaunchCost::Jitter]);
        costs.map(move |cost| Parameter::Launch(launch, processes, cost)).collect::<Vec<_>>()
    });
    all.filter(|parameter| parameter.applies(base)).collect()
}

fn errors(cases: &Cases<'_>, points: &[&Point], profile: &Profile) -> Vec<Residual> {
    let wanted: Vec<usize> = points.iter().map(|point| point.case).collect();
    let error = |(point, device): (&&Point, Device)| Residual {
        measurement: point.of.0,
        row: point.of.1,
        error: point.residual(device, profile).exp() - 1.0,
        decides: point.decides(device, profile),
    };
    points.iter().zip(cases.run(&wanted, profile)).map(error).collect()
}
