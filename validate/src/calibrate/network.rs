//! Calibration of a network alone: what messages between hosts cost, with the costs of the GPUs and of launching kept.

use fabricast_topologies::route::RouteOptions;

use super::fit::{Fit, residuals};
use super::parameters::{MessageCost, Parameter};
use super::points::{Point, points};
use super::{CalibrateError, Calibration, Estimate, Task, band, errors, estimate, hold_out};
use crate::measured::manifest::{Measurement, Role};
use crate::rerun::Rerun;
use fabricast_sim::profile::Profile;

/// Fits what `task.device` tells of the network between its hosts; measurements of single hosts are not looked at.
///
/// # Errors
/// [`CalibrateError`]: nothing to fit to, or too little.
pub fn calibrate_network(task: Task<'_>) -> Result<Calibration, CalibrateError> {
    let rows = |role: Role| -> usize {
        let several = |one: &&Measurement| one.role == role && one.configuration.nodes > 1;
        task.device.iter().filter(several).map(|one| one.rows.len()).sum()
    };
    let reruns: Vec<Rerun<'_>> = task.device.iter().map(|one| Rerun::new(one, RouteOptions::default())).collect();
    let mut found = points(&reruns, task.base);
    found.retain(|point| {
        point.crosses() && reruns.get(point.of.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit)
    });
    let (without_strategy, to_check) = (rows(Role::Fit) - found.len(), rows(Role::Check));
    if found.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, to_check });
    }
    let points: Vec<&Point<'_>> = found.iter().collect();
    let parameters = told_by(&points, task.base);
    if points.len() < parameters.len() + 1 {
        return Err(CalibrateError::TooFewRows { rows: points.len(), parameters: parameters.len() + 1 });
    }
    let (base, rate) = rate(&points, task.base);
    // Of rows without a library's version it is least known what ran.
    let named = |point: &&Point<'_>| point.library_is_named();
    let known: Vec<&Point<'_>> = points.iter().copied().filter(named).collect();
    let told = if known.len() > parameters.len() { known } else { points.clone() };
    let (mut profile, minimum) = Fit { points: told, base: &base, parameters: &parameters }.run();
    let fitted = errors(&points, &profile);
    let held_out = task.hold_out.iter().map(|what| hold_out::predict(what, &points, &profile, &parameters)).collect();
    profile.band = band(&fitted);
    Ok(Calibration {
        estimates: rate.into_iter().chain(estimate::of(&parameters, &minimum, &profile)).collect(),
        entangled: estimate::entangled(&parameters, &minimum),
        profile,
        fitted,
        launches: Vec::new(),
        held_out,
        without_strategy,
        to_check,
    })
}

/// The profile with what NICs reach, as told by the points that they limit; as it was where there are few. Fitted with the
/// rest, it would stand for whatever else slows points down that the NICs do not limit.
fn rate(points: &[&Point<'_>], base: &Profile) -> (Profile, Option<Estimate>) {
    const SLOWER: f64 = 0.9;
    const FEWEST: usize = 3;
    let mut slower = base.clone();
    Parameter::Network.set(&mut slower, Parameter::Network.get(base) * SLOWER);
    let most = -SLOWER.ln();
    let changes = residuals(points, &slower).into_iter().zip(residuals(points, base)).map(|(slow, now)| slow - now);
    let limited: Vec<&Point<'_>> =
        points.iter().zip(changes).filter(|(_, change)| *change > LIMITED * most).map(|(point, _)| *point).collect();
    if limited.len() < FEWEST {
        return (base.clone(), None);
    }
    let parameters = [Parameter::Network];
    let (profile, minimum) = Fit { points: limited, base, parameters: &parameters }.run();
    let estimate = estimate::of(&parameters, &minimum, &profile).into_iter().next();
    (profile, estimate)
}

/// The part of a slower NIC that a row which it limits shows.
const LIMITED: f64 = 0.8;

/// The costs of messages that points feel.
pub(super) fn told_by(points: &[&Point<'_>], base: &Profile) -> Vec<Parameter> {
    let costs = MessageCost::TOLD.map(Parameter::Message).into_iter();
    costs.filter(|&parameter| parameter.applies(base) && points.iter().any(|point| point.feels(parameter))).collect()
}
