//! Calibration of the network alone: costs of messages between hosts, with fixed GPU and launch costs.

use fabricast_topologies::route::RouteOptions;

use super::cases::Cases;
use super::cross;
use super::fit::{Fit, residuals};
use super::parameters::{MessageCost, Parameter};
use super::points::{Point, Version, points};
use super::prior::Prior;
use super::solve::{Minimum, Start};
use super::{CalibrateError, Calibration, Estimate, HoldOut, Task, errors, estimate, hold_out, known};
use crate::measured::manifest::{Measurement, Role};
use crate::rerun::Rerun;
use fabricast_sim::profile::Profile;

/// Fits the network costs to the rows of `task.device` that span several hosts; measurements of single hosts are
/// ignored.
///
/// # Errors
/// [`CalibrateError`] if there are no or too few usable rows.
pub fn calibrate_network(task: Task<'_>) -> Result<Calibration, CalibrateError> {
    let rows = |role: Role| -> usize {
        let several = |one: &&Measurement| one.role == role && one.configuration.nodes > 1;
        task.device.iter().filter(several).map(|one| one.rows.len()).sum()
    };
    let reruns: Vec<Rerun<'_>> = task.device.iter().map(|one| Rerun::new(one, RouteOptions::default())).collect();
    let (mut found, cases) = points(&reruns, task.base);
    found.retain(|point| {
        point.crosses() && reruns.get(point.of.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit)
    });
    let (without_strategy, to_check) = (rows(Role::Fit) - found.len(), rows(Role::Check));
    if found.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, to_check });
    }
    let points: Vec<&Point> = found.iter().collect();
    let parameters = told_by(&points, task.base);
    if points.len() < parameters.len() + 1 {
        return Err(CalibrateError::TooFewRows { rows: points.len(), parameters: parameters.len() + 1 });
    }
    let (mut profile, minimum, rate) = fitted(&cases, &points, &parameters, task.base);
    let residuals = errors(&cases, &points, &profile);
    let without = |what: &HoldOut| {
        let (out, kept): (Vec<&Point>, Vec<&Point>) = points.iter().partition(|point| what.leaves_out(point));
        let told = (!kept.is_empty()).then(|| fitted(&cases, &kept, &told_by(&kept, task.base), task.base).0);
        hold_out::predicted(what, &cases, &out, told.as_ref().unwrap_or(task.base))
    };
    let held_out: Vec<_> = task.hold_out.iter().map(without).collect();
    // Intervals are derived from the rows that were fitted to: there are too few to leave some out.
    let rows = cross::of(&cases, &points, &profile);
    let (bands, coverage, held_out) = cross::judged(&rows, held_out, known(&found), task.base.bands.beyond);
    profile.bands = bands;
    Ok(Calibration {
        estimates: rate.into_iter().chain(estimate::of(&parameters, &minimum, &profile)).collect(),
        entangled: estimate::entangled(&parameters, &minimum),
        profile,
        fitted: residuals,
        launches: Vec::new(),
        cross_validated: Vec::new(),
        coverage,
        held_out,
        without_strategy,
        to_check,
    })
}

/// Returns the profile fitted to points, the minimum of the message costs, and the estimate of the NIC efficiency.
fn fitted(
    cases: &Cases<'_>,
    points: &[&Point],
    parameters: &[Parameter],
    base: &Profile,
) -> (Profile, Minimum, Option<Estimate>) {
    let (base, rate) = rate(cases, points, base);
    // The strategy is least certain for rows without a library version.
    let named = |point: &&Point| point.version == Version::Named;
    let known: Vec<&Point> = points.iter().copied().filter(named).collect();
    let told = if known.len() > parameters.len() { known } else { points.to_vec() };
    let (profile, minimum) = Fit { cases, points: told, base: &base, parameters, prior: Prior::Open }.run(Start::Far);
    (profile, minimum, rate)
}

/// Fits the NIC efficiency to the points that the NICs limit; unchanged if there are too few. Fitted jointly with the
/// message costs, it would absorb other slowdowns of points that the NICs do not limit.
fn rate(cases: &Cases<'_>, points: &[&Point], base: &Profile) -> (Profile, Option<Estimate>) {
    const SLOWER: f64 = 0.9;
    const FEWEST: usize = 3;
    let mut slower = base.clone();
    Parameter::Network.set(&mut slower, Parameter::Network.get(base) * SLOWER);
    let most = -SLOWER.ln();
    let changes =
        residuals(cases, points, &slower).into_iter().zip(residuals(cases, points, base)).map(|(slow, now)| slow - now);
    let limited: Vec<&Point> =
        points.iter().zip(changes).filter(|(_, change)| *change > LIMITED * most).map(|(point, _)| *point).collect();
    if limited.len() < FEWEST {
        return (base.clone(), None);
    }
    let parameters = [Parameter::Network];
    let (profile, minimum) =
        Fit { cases, points: limited, base, parameters: &parameters, prior: Prior::Open }.run(Start::Far);
    let estimate = estimate::of(&parameters, &minimum, &profile).into_iter().next();
    (profile, estimate)
}

/// Fraction of a NIC slowdown that a row must show to count as limited by the NICs.
const LIMITED: f64 = 0.8;

/// Message costs that points depend on.
pub(super) fn told_by(points: &[&Point], base: &Profile) -> Vec<Parameter> {
    let costs = MessageCost::TOLD.map(Parameter::Message).into_iter();
    costs.filter(|&parameter| parameter.applies(base) && points.iter().any(|point| point.feels(parameter))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fabricast_planner::algorithm::Algorithm;
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::{FabricRequest, Picos};

    use super::super::tests::{measurement, timed};
    use super::*;

    /// all_reduce by rings and trees over hosts of two GPUs.
    fn several(nodes: u32, algorithm: Algorithm, protocol: Protocol) -> Measurement {
        let mut one = measurement(Collective::AllReduce, 2);
        one.request = FabricRequest { nodes: Some(nodes), ..one.request };
        one.fabric = Arc::new(fabricast_topologies::load(&one.request).unwrap());
        one.configuration.nodes = nodes;
        one.configuration.algorithm = Some(algorithm);
        one.configuration.protocol = Some(protocol);
        one
    }

    fn world() -> Vec<Measurement> {
        let of = |nodes| {
            let protocols = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];
            let all = [Algorithm::Ring, Algorithm::Tree].into_iter().flat_map(move |a| protocols.map(|p| (a, p)));
            all.map(move |(algorithm, protocol)| several(nodes, algorithm, protocol))
        };
        [2, 4].into_iter().flat_map(of).collect()
    }

    #[test]
    fn network_fitted_on_two_hosts_predicts_four() {
        let mut base = Profile::named("nccl-2.28-h200").unwrap();
        // Starting values unlike the shipped ones.
        base.network.post = Picos(1_000_000);
        base.network.fence = Picos(7_000_000);
        base.network.arrive = Picos(4_000_000);
        let base = base;
        let mut truth = base.clone();
        truth.links.network = 0.8;
        truth.network.post = Picos(4_000_000);
        truth.network.fence = Picos(2_000_000);
        truth.network.arrive = Picos(9_000_000);
        let rows = timed(world(), &truth, |_| 1.0);
        let hold_out: [HoldOut; 1] = ["nodes=4".parse().unwrap()];
        let task = Task { device: &rows, launches: &[], base: &base, prior: Prior::Open, hold_out: &hold_out };
        let found = calibrate_network(task).unwrap();
        let worst = |residuals: &[super::super::Residual]| {
            residuals.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max)
        };
        assert!(worst(&found.fitted) < 0.01, "{}", worst(&found.fitted));
        assert!(!found.held_out[0].residuals.is_empty());
        assert!(worst(&found.held_out[0].residuals) < 0.01, "{}", worst(&found.held_out[0].residuals));
        // The network costs are recovered, and the other costs are unchanged.
        assert!((found.profile.links.network - 0.8).abs() < 0.01, "{}", found.profile.links.network);
        assert_eq!(found.profile.protocols, base.protocols);
    }

    #[test]
    fn single_hosts_cannot_calibrate_a_network() {
        let base = Profile::named("nccl-2.28-h200").unwrap();
        let one = [measurement(Collective::AllReduce, 8)];
        let found =
            calibrate_network(Task { device: &one, launches: &[], base: &base, prior: Prior::Open, hold_out: &[] });
        let nothing = CalibrateError::NothingToFit { without_strategy: 0, to_check: 0 };
        assert_eq!(found.map(|_| ()).unwrap_err(), nothing);
    }
}
