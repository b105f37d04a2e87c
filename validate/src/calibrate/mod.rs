//! Calibration: the figures of a profile, from measurements.
//!
//! Device costs (protocols, links) are fitted to the rows of the first manifest, with the launch costs of its modes;
//! then, with the device costs kept, the launch costs of the modes of further manifests to their rows: the device does
//! not care how it was launched. A row counts where it is known what ran: what was forced, and what the library chose
//! of the rest by its own rules. Rows with the role `check` are never looked at.
//!
//! ```text
//! measurements ─► points (row + schedule) ─► fit ─► solve (robust least squares) ─► profile, estimates, residuals
//!                     └─ hold-out: the same without some of them, predicted with what the others tell
//! ```

mod estimate;
mod fit;
mod hold_out;
mod parameters;
pub mod physical;
mod points;
mod solve;
#[cfg(test)]
mod tests;

use fabricast_sim::profile::{Band, Profile};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::RouteOptions;

pub use estimate::Estimate;
pub use hold_out::{HoldOut, UnknownHoldOut};
pub use parameters::{Cost, LaunchCost, Parameter, Unit};

use crate::measured::manifest::{Measurement, Role};
use crate::rerun::Rerun;
use fit::{Fit, residuals};
use points::{Point, points};

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
}

/// Errors of rows that were left out of a fit and predicted by it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// What was left out.
    pub what: HoldOut,
    /// The rows left out.
    pub residuals: Vec<Residual>,
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
    /// What to leave out and predict, one after the other.
    pub hold_out: &'a [HoldOut],
}

/// Fits a profile.
///
/// # Errors
/// [`CalibrateError`]: nothing to fit to, or too little.
pub fn calibrate(task: Task<'_>) -> Result<Calibration, CalibrateError> {
    let all = || task.device.iter().chain(task.launches);
    let rows = |role: Role| -> usize { all().filter(|one| one.role == role).map(|one| one.rows.len()).sum() };
    let to_check = rows(Role::Check);
    let reruns: Vec<Rerun<'_>> = all().map(|one| Rerun::new(one, RouteOptions::default())).collect();
    let mut found = points(&reruns, task.base);
    found.retain(|point| reruns.get(point.of.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit));
    let without_strategy = rows(Role::Fit) - found.len();
    let (device, further): (Vec<&Point<'_>>, Vec<&Point<'_>>) =
        found.iter().partition(|point| point.of.0 < task.device.len());
    if device.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, to_check });
    }
    let parameters = told_by(&device, task.base);
    if device.len() < parameters.len() {
        return Err(CalibrateError::TooFewRows { rows: device.len(), parameters: parameters.len() });
    }
    let fit = Fit { points: device.clone(), base: task.base, parameters: &parameters };
    let (mut profile, minimum) = fit.run();
    let mut estimates = estimate::of(&parameters, &minimum, &profile);
    let entangled = estimate::entangled(&parameters, &minimum);
    let fitted = errors(&device, &profile);

    let mut modes = launch_parameters(&further);
    modes.retain(|&mode| !device.iter().any(|point| point.feels(mode)));
    if !modes.is_empty() && further.len() >= modes.len() {
        let fit = Fit { points: further.clone(), base: &profile.clone(), parameters: &modes };
        let (with_modes, minimum) = fit.run();
        estimates.extend(estimate::of(&modes, &minimum, &with_modes));
        profile = with_modes;
    }
    let launches = errors(&further, &profile);
    let held_out = task.hold_out.iter().map(|what| hold_out::predict(what, &device, &profile, &parameters)).collect();
    profile.band = band(&fitted);
    Ok(Calibration { profile, estimates, entangled, fitted, launches, held_out, without_strategy, to_check })
}

/// The parameters that the points feel.
fn told_by(points: &[&Point<'_>], base: &Profile) -> Vec<Parameter> {
    let mut parameters = vec![Parameter::Nvlink];
    for protocol in Protocol::ALL {
        if points.iter().any(|point| point.protocol == protocol) {
            let costs = Cost::all().into_iter().map(|cost| Parameter::Protocol(protocol, cost));
            parameters.extend(costs.filter(|parameter| parameter.applies(base)));
        }
    }
    parameters.extend(launch_parameters(points));
    parameters
}

/// Those of the launch modes of points. Where calls are launched by a process for each GPU, what a launch adds cannot be
/// told from what a call costs.
fn launch_parameters(points: &[&Point<'_>]) -> Vec<Parameter> {
    let mut modes: Vec<(usize, usize)> = points.iter().map(|point| point.launch()).collect();
    modes.sort_unstable();
    modes.dedup();
    let reference = modes.iter().copied().find(|&(_, processes)| processes == 0);
    let all = modes.into_iter().flat_map(move |(launch, processes)| {
        let single = processes == 1;
        let added = (Some((launch, processes)) != reference).then_some(LaunchCost::Added);
        let floor = if single { LaunchCost::FloorPerGpu } else { LaunchCost::Floor };
        added.into_iter().chain([floor, LaunchCost::Jitter]).map(move |cost| Parameter::Launch(launch, processes, cost))
    });
    all.collect()
}

fn errors(points: &[&Point<'_>], profile: &Profile) -> Vec<Residual> {
    let found = residuals(points, profile);
    let error = |(point, residual): (&&Point<'_>, f64)| Residual {
        measurement: point.of.0,
        row: point.of.1,
        error: residual.exp() - 1.0,
    };
    points.iter().zip(found).map(error).collect()
}

/// Where four of five measurements lie around their prediction: the tenth and ninetieth percentiles of measured ÷
/// predicted.
fn band(fitted: &[Residual]) -> Band {
    let mut ratios: Vec<f64> = fitted.iter().map(|residual| 1.0 / (1.0 + residual.error)).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| ratios.get(((ratios.len() as f64 - 1.0) * part).round() as usize).copied().unwrap_or(1.0);
    Band { low: at(0.1).min(1.0), high: at(0.9).max(1.0) }
}
