//! Calibration: the figures of a profile, from measurements.
//!
//! Device costs (protocols, links) are fitted to the rows of the first manifest, with the launch costs of its modes;
//! then, with the device costs kept, the launch costs of the modes of further manifests to their rows: the device does
//! not care how it was launched. A row that does not go with its neighbours in size counts less; what rows leave open is settled by
//! thinking all waits of a protocol's passes alike ([`Prior::Open`]). A row counts where it is known what ran: what was forced, and what the library chose
//! of the rest by its own rules. Rows with the role `check` are never looked at.
//!
//! ```text
//! measurements ─► points (row + schedule) ─► fit ─► solve (robust least squares) ─► profile, estimates, residuals
//!                     └─ hold-out: the same without some of them, predicted with what the others tell
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

/// Why a profile cannot be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// No row can be used.
    #[error(
        "no row of the measurements can be fitted to: {without_strategy} rows leave open what ran, and {to_check} are for checking only"
    )]
    NothingToFit {
        /// Rows whose strategy is not known.
        without_strategy: usize,
        /// Rows with the role `check`.
        to_check: usize,
    },
    /// Fewer rows than parameters.
    #[error("{rows} rows cannot tell {parameters} parameters")]
    TooFewRows {
        /// Rows that can be used.
        rows: usize,
        /// Parameters that they have to tell.
        parameters: usize,
    },
}

/// A row and how far off its prediction is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The measurement, by number.
    pub measurement: usize,
    /// The row in it.
    pub row: usize,
    /// Predicted ÷ measured − 1.
    pub error: f64,
    /// What decides the prediction.
    pub decides: Decides,
}

/// Errors of rows that were left out of a fit and predicted by it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// What was left out.
    pub what: HoldOut,
    /// The rows left out.
    pub residuals: Vec<Residual>,
    /// How many of them lie inside intervals widened by what the other half of them needs.
    pub coverage: Coverage,
}

/// What measurements tell.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile fitted.
    pub profile: Profile,
    /// Its parameters.
    pub estimates: Vec<Estimate>,
    /// Sets of parameters of which the data tell combinations only.
    pub entangled: Vec<Vec<Parameter>>,
    /// Errors of the rows fitted to, device costs first.
    pub fitted: Vec<Residual>,
    /// Errors of the rows that only launch costs were fitted to.
    pub launches: Vec<Residual>,
    /// Errors of all rows, each predicted by a fit without it.
    pub cross_validated: Vec<Residual>,
    /// How many of these lie inside the intervals that the others give.
    pub coverage: Coverage,
    /// What was left out and predicted.
    pub held_out: Vec<HeldOut>,
    /// Rows that could not be used because it is not known what ran.
    pub without_strategy: usize,
    /// Rows that were not looked at because they are for checking.
    pub to_check: usize,
}

/// What to fit to.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Device costs, and launch costs of the modes in it.
    pub device: &'a [Measurement],
    /// Launch costs of modes that are not in the first.
    pub launches: &'a [Measurement],
    /// Where to begin: every figure that no row tells stays.
    pub base: &'a Profile,
    /// How firmly device costs stay at its figures.
    pub prior: Prior,
    /// What to leave out and predict, one after the other.
    pub hold_out: &'a [HoldOut],
}

/// Fits a profile.
///
/// # Errors
/// [`CalibrateError`]: nothing to fit to, or too little.
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
    // What launching costs all rows tell together.
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

/// What rows have in common.
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

/// The parameters that the points feel.
fn told_by(points: &[&Point], base: &Profile) -> Vec<Parameter> {
    let links = [Parameter::Nvlink, Parameter::Pcie].into_iter();
    let mut parameters: Vec<Parameter> = links.filter(|&link| points.iter().any(|point| point.feels(link))).collect();
    if points.iter().any(|point| point.multicasts) {
        parameters.push(Parameter::Multicast);
    }
    for protocol in Protocol::ALL {
        let of_it = points.iter().filter(|point| point.protocol == protocol);
        // What is of each peer only several numbers of them tell apart from the rest.
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

/// Whether not all are the same.
fn differ<T: PartialEq>(mut of: impl Iterator<Item = T>) -> bool {
    of.next().is_some_and(|first| of.any(|other| other != first))
}

/// Those of the launch modes of points. Where calls are launched by a process for each GPU, what a launch adds cannot be
/// told from what a call costs.
fn launch_parameters(points: &[&Point], base: &Profile) -> Vec<Parameter> {
    let mut modes: Vec<(usize, usize)> = points.iter().map(|point| point.launch()).collect();
    modes.sort_unstable();
    modes.dedup();
    let reference = modes.iter().copied().find(|&(_, processes)| processes == 0);
    let all = modes.into_iter().flat_map(move |(launch, processes)| {
        let single = processes == 1;
        // What is of each GPU only several numbers of them tell apart from the rest.
        let of_it = points.iter().filter(|point| point.launch() == (launch, processes));
        let tells_gpus = differ(of_it.map(|point| point.mode.gpus_per_host));
        let is_reference = Some((launch, processes)) == reference;
        let told: &[LaunchCost] = match (single, is_reference, tells_gpus) {
            (false, true, false) => &[LaunchCost::Floor],
            // From a graph, processes start their parts of a call with hardly any time between them.
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
