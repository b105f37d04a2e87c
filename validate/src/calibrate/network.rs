//! Calibration of the network alone: costs of messages between hosts, with the GPU and launch costs of the shipped
//! profile of each machine.

use fabricast_topologies::Picos;
use fabricast_topologies::route::RouteOptions;

use std::collections::BTreeSet;

use super::cases::Cases;
use super::cross::{self, IntervalEvaluation};
use super::fit::{ProfileFit, residuals};
use super::parameters::{FitParameter, MessageCost};
use super::points::{FitPoint, GpuCosts, Version, points};
use super::prior::Prior;
use super::solve::{Minimum, StartDistance};
use super::{
    CalibrateError, Calibration, CalibrationRequest, Estimate, LeftOutUnit, errors, estimate, fitted_traits, hold_out,
};
use crate::measured::manifest::{Measurement, Role};
use crate::measurement_simulation::MeasurementSimulation;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Collective;

/// Fits the network costs to the rows of `task.device` that span several hosts; measurements of single hosts are
/// ignored.
///
/// # Errors
/// [`CalibrateError`]: no or too few usable rows, or an interruption.
pub fn calibrate_network(task: CalibrationRequest<'_>) -> Result<Calibration, CalibrateError> {
    let rows = |role: Role| -> usize {
        let spans_hosts = |measurement: &&Measurement| measurement.role == role && measurement.configuration.nodes > 1;
        task.device.iter().filter(spans_hosts).map(|measurement| measurement.rows.len()).sum()
    };
    let reruns: Vec<MeasurementSimulation<'_>> = task
        .device
        .iter()
        .map(|measurement| MeasurementSimulation::new(measurement, RouteOptions::default()))
        .collect();
    // A base other than the shipped profile of the first machine was selected for its GPU costs, so these are used.
    let shipped = task.device.first().and_then(|measurement| Profile::for_fabric(&measurement.fabric).ok());
    let gpu_costs = match shipped.is_some_and(|profile| profile.protocols == task.base.protocols) {
        true => GpuCosts::OfMachines,
        false => GpuCosts::Fitted,
    };
    let (mut selected, cases) = points(&reruns, task.base, gpu_costs, task.monitor);
    selected.retain(|point| {
        point.spans_hosts() && reruns.get(point.row_index.0).is_some_and(|rerun| rerun.measurement.role == Role::Fit)
    });
    let (without_strategy, to_check) = (rows(Role::Fit) - selected.len(), rows(Role::Check));
    if selected.is_empty() {
        return Err(CalibrateError::NothingToFit { without_strategy, check_rows: to_check });
    }
    let points: Vec<&FitPoint> = selected.iter().collect();
    let parameters = determined_message_costs(&points, task.base);
    if points.len() < parameters.len() + 1 {
        return Err(CalibrateError::TooFewRows { rows: points.len(), parameters: parameters.len() + 1 });
    }
    // Clusters on one network differ by more than the rows within a cluster, so intervals are derived from the rows of
    // clusters that were left out. With a single cluster, only the fitted rows are available.
    let clusters: BTreeSet<&str> = points.iter().map(|point| &*point.cluster).collect();
    let left_out_clusters = if clusters.len() > 1 { clusters.len() } else { 0 };
    task.monitor.add_total(1 + task.hold_out.len() + left_out_clusters);
    let NetworkFit { mut profile, minimum, rate } = fit_network(&cases, &points, &parameters, task.base);
    task.monitor.add_done(1);
    let residuals = errors(&cases, &points, &profile);
    // Returns the rows that are left out, with the profile fitted to the others.
    let without = |leaves_out: &dyn Fn(&FitPoint) -> bool| {
        let (left_out, remaining): (Vec<&FitPoint>, Vec<&FitPoint>) =
            points.iter().partition(|point| leaves_out(point));
        let refitted = (!remaining.is_empty()).then(|| {
            fit_network(&cases, &remaining, &determined_message_costs(&remaining, task.base), task.base).profile
        });
        task.monitor.add_done(1);
        (left_out, refitted.unwrap_or_else(|| task.base.clone()))
    };
    let held_out = task.hold_out.iter().map(|hold_out| {
        let (left_out, refitted) = without(&|point| hold_out.leaves_out(point));
        hold_out::predict_held_out(hold_out, &cases, &left_out, &refitted)
    });
    let held_out: Vec<_> = held_out.collect();
    let (rows, cross_validated) = if clusters.len() > 1 {
        let left_out = clusters.into_iter().flat_map(|cluster| {
            let (left_out, refitted) = without(&|point| *point.cluster == *cluster);
            cross::predict_rows(&cases, &left_out, &refitted)
        });
        let left_out: Vec<_> = left_out.collect();
        let residuals = left_out.iter().map(|row| row.residual).collect();
        (left_out, residuals)
    } else {
        (cross::predict_rows(&cases, &points, &profile), Vec::new())
    };
    let IntervalEvaluation { bands, coverage, held_out } =
        cross::evaluate_intervals(&rows, held_out, fitted_traits(&selected), task.base.bands.widening);
    if task.monitor.is_interrupted() {
        return Err(CalibrateError::Interrupted);
    }
    profile.bands = bands;
    Ok(Calibration {
        estimates: rate.into_iter().chain(estimate::estimate_parameters(&parameters, &minimum, &profile)).collect(),
        inseparable: estimate::inseparable_parameters(&parameters, &minimum),
        profile,
        fitted: residuals,
        launches: Vec::new(),
        cross_validated,
        left_out: LeftOutUnit::Cluster,
        coverage,
        held_out,
        without_strategy,
        to_check,
    })
}

/// Result of [`fit_network`].
struct NetworkFit {
    profile: Profile,
    /// Minimum of the message costs.
    minimum: Minimum,
    /// Estimate of the NIC efficiency; `None` if NICs limit too few points to fit it.
    rate: Option<Estimate>,
}

/// Fits the NIC efficiency and the message costs to points.
fn fit_network(cases: &Cases<'_>, points: &[&FitPoint], parameters: &[FitParameter], base: &Profile) -> NetworkFit {
    let (base, rate) = fit_nic_efficiency(cases, points, base);
    // The strategy is least certain for rows that name no library version, so these are not used if there are enough
    // others.
    let named = |point: &&FitPoint| point.version == Version::Named;
    let versioned: Vec<&FitPoint> = points.iter().copied().filter(named).collect();
    let selected = if versioned.len() > parameters.len() { versioned } else { points.to_vec() };
    let (profile, minimum) =
        ProfileFit { cases, points: selected, base: &base, parameters, prior: Prior::Open }.run(StartDistance::Far);
    NetworkFit { profile, minimum, rate }
}

/// Fits the NIC efficiency to the points whose bottleneck is the NICs. The efficiency is unchanged if there are too few
/// such points. A joint fit with the message costs would attribute other slowdowns to the NIC efficiency.
fn fit_nic_efficiency(cases: &Cases<'_>, points: &[&FitPoint], base: &Profile) -> (Profile, Option<Estimate>) {
    const SLOWER: f64 = 0.9;
    const FEWEST: usize = 3;
    let mut slower = base.clone();
    FitParameter::Network.set(&mut slower, FitParameter::Network.get(base) * SLOWER);
    let slowdown = -SLOWER.ln();
    let changes =
        residuals(cases, points, &slower).into_iter().zip(residuals(cases, points, base)).map(|(slow, now)| slow - now);
    let limited: Vec<&FitPoint> = points
        .iter()
        .zip(changes)
        .filter(|(_, change)| *change > LIMITED * slowdown)
        .map(|(point, _)| *point)
        .collect();
    if limited.len() < FEWEST {
        return (base.clone(), None);
    }
    let parameters = [FitParameter::Network];
    let (profile, minimum) = ProfileFit { cases, points: limited, base, parameters: &parameters, prior: Prior::Open }
        .run(StartDistance::Far);
    let estimate = estimate::estimate_parameters(&parameters, &minimum, &profile).into_iter().next();
    (profile, estimate)
}

/// Minimum effect of a NIC slowdown on a row, as a fraction of the slowdown, for the NICs to count as its bottleneck.
const LIMITED: f64 = 0.8;

/// Message costs that the profile has and the points determine. The proxy thread's time per message is a CPU cost that
/// affects only collectives whose proxies send many messages; without such points it is unchanged. The time of the
/// GPU's fence can be separated from the latency of a rendezvous only by exchanges between pairs, whose blocks wait for
/// the fence, and not at all from those of the other costs if messages of a connection have an interval: the fits of
/// 12 clusters leave it open between 1.7 and 3.9 µs, and sends, which did not set it, ask for less.
pub(super) fn determined_message_costs(points: &[&FitPoint], base: &Profile) -> Vec<FitParameter> {
    let sends_many = points.iter().any(|point| point.collective != Collective::AllReduce);
    let has_interval = base.network.interval > Picos::ZERO;
    let exchanges = points.iter().any(|point| point.collective.is_pairwise());
    let costs = MessageCost::FITTED.into_iter().filter(|cost| match cost {
        MessageCost::Message => sends_many,
        MessageCost::Fence => !has_interval && (exchanges || base.network.eager.is_none()),
        _ => true,
    });
    let parameters = costs.map(FitParameter::Message);
    parameters
        .filter(|&parameter| parameter.applies(base) && points.iter().any(|point| point.depends_on(parameter)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_sim::monitor::Monitor;
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::FabricRequest;

    use super::super::HoldOut;
    use super::super::tests::{measurement, timed};
    use super::*;

    /// Measurement of all_reduce over `nodes` hosts of two GPUs, with a forced algorithm and protocol.
    fn multi_host_measurement(nodes: u32, algorithm: Algorithm, protocol: Protocol) -> Measurement {
        let mut one = measurement(Collective::AllReduce, 2);
        one.request = FabricRequest { nodes: Some(nodes), ..one.request };
        one.fabric = Arc::new(fabricast_topologies::load(&one.request).unwrap());
        one.configuration.nodes = nodes;
        one.configuration.algorithm = Some(algorithm);
        one.configuration.protocol = Some(protocol);
        one
    }

    fn world() -> Vec<Measurement> {
        let build = |nodes| {
            let protocols = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];
            let combinations =
                [Algorithm::Ring, Algorithm::Tree].into_iter().flat_map(move |a| protocols.map(|p| (a, p)));
            combinations.map(move |(algorithm, protocol)| multi_host_measurement(nodes, algorithm, protocol))
        };
        [2, 4].into_iter().flat_map(build).collect()
    }

    #[test]
    fn network_fitted_on_two_hosts_predicts_four() {
        let mut base = Profile::named("nccl-2.28-h200").unwrap();
        // Starting values that differ from the shipped ones.
        base.network.post = Picos(1_000_000);
        base.network.arrive = Picos(4_000_000);
        let mut truth = base.clone();
        truth.links.network = 0.8;
        truth.network.post = Picos(4_000_000);
        truth.network.arrive = Picos(9_000_000);
        truth.network.interval = Picos(3_000_000);
        // Few rows separate the interval from the notification of large messages.
        assert_fit_predicts_more_hosts(&base, &truth, 0.02);
        // The fence is fitted if messages of a connection have no interval.
        for (profile, fence) in [(&mut base, Picos(7_000_000)), (&mut truth, Picos(2_000_000))] {
            profile.network.interval = Picos::ZERO;
            profile.network.fence = fence;
        }
        assert_fit_predicts_more_hosts(&base, &truth, 0.01);
    }

    /// Fits `base` to the times of `truth` on two hosts, and compares its predictions of four.
    fn assert_fit_predicts_more_hosts(base: &Profile, truth: &Profile, max_error: f64) {
        let rows = timed(world(), truth, |_| 1.0);
        let hold_out: [HoldOut; 1] = ["nodes=4".parse().unwrap()];
        let task = CalibrationRequest {
            device: &rows,
            launches: &[],
            base,
            prior: Prior::Open,
            hold_out: &hold_out,
            monitor: Monitor::default(),
        };
        let calibration = calibrate_network(task).unwrap();
        let worst = |residuals: &[super::super::Residual]| {
            residuals.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max)
        };
        assert!(worst(&calibration.fitted) < max_error, "{}", worst(&calibration.fitted));
        assert!(!calibration.held_out[0].residuals.is_empty());
        assert!(worst(&calibration.held_out[0].residuals) < max_error, "{}", worst(&calibration.held_out[0].residuals));
        // The fit recovers the network costs and leaves the other costs unchanged.
        assert!((calibration.profile.links.network - 0.8).abs() < 0.01, "{}", calibration.profile.links.network);
        assert_eq!(calibration.profile.protocols, base.protocols);
    }

    #[test]
    fn single_hosts_cannot_calibrate_a_network() {
        let base = Profile::named("nccl-2.28-h200").unwrap();
        let single_host = [measurement(Collective::AllReduce, 8)];
        let calibration = calibrate_network(CalibrationRequest {
            device: &single_host,
            launches: &[],
            base: &base,
            prior: Prior::Open,
            hold_out: &[],
            monitor: Monitor::default(),
        });
        let expected = CalibrateError::NothingToFit { without_strategy: 0, check_rows: 0 };
        assert_eq!(calibration.map(|_| ()).unwrap_err(), expected);
    }
}
