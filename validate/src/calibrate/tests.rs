//! Calibration with data that the model predicts: parameters are recovered, noise widens intervals, and rows with the
//! role `check` are ignored.

use std::path::PathBuf;
use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, SourceLocation};

use super::fit::ProfileFit;
use super::points::{GpuCosts, points};
use super::solve::{Problem, StartDistance};
use super::{CalibrateError, Calibration, CalibrationRequest, Estimate, FitParameter, HoldOut, Prior, calibrate};
use crate::measured::manifest::{Configuration, Measurement, Notes, RegistrationKind, Role};
use crate::measured::{LogContext, Row};
use crate::measurement_simulation::MeasurementSimulation;

fn fabric(gpus: u32) -> (FabricRequest, Arc<Fabric>) {
    let request = FabricRequest { gpus: Some(gpus), ..FabricRequest::new("hgx-h200") };
    let fabric = Arc::new(fabricast_topologies::load(&request).unwrap());
    (request, fabric)
}

/// Measurement of a forced ring with LL and one process per GPU, at sizes from 1 KiB to 64 MiB; its times are
/// placeholders.
pub(super) fn measurement(collective: Collective, gpus: u32) -> Measurement {
    let (request, fabric) = fabric(gpus);
    let sizes = (10..=26).step_by(2).map(|power| Bytes(1 << power));
    Measurement {
        location: SourceLocation::default(),
        file: PathBuf::new(),
        name: String::new(),
        request,
        fabric,
        configuration: Configuration {
            nodes: 1,
            gpus,
            collective,
            algorithm: Some(Algorithm::Ring),
            protocol: Some(Protocol::Ll),
            channels: None,
            library: None,
            in_network: InNetwork::Off,
            registered: RegistrationKind::Plain,
            launch: Launch::Graph,
            processes: Processes::PerGpu,
            dtype: DataType::F32,
            env: Vec::new(),
        },
        role: Role::Fit,
        notes: Notes::default(),
        context: LogContext::default(),
        rows: (1..).zip(sizes).map(|(line, bytes)| Row::new(bytes, Picos(1), line)).collect(),
        rejected: Vec::new(),
    }
}

/// Sets the times of all rows to the predictions of a profile, each multiplied by `noise` of the row's index.
pub(super) fn timed(
    mut measurements: Vec<Measurement>,
    profile: &Profile,
    noise: impl Fn(usize) -> f64,
) -> Vec<Measurement> {
    let fabrics = measurements.clone();
    let reruns: Vec<MeasurementSimulation<'_>> =
        fabrics.iter().map(|one| MeasurementSimulation::new(one, RouteOptions::default())).collect();
    let (points, cases) = points(&reruns, profile, GpuCosts::Fitted, Monitor::default());
    let devices = cases.run(&points.iter().map(|point| point.case).collect::<Vec<_>>(), profile);
    for (number, (point, device)) in points.iter().zip(devices).enumerate() {
        let time = Picos((point.predicted(device, profile).0 as f64 * noise(number)).round() as u64);
        let row = &mut measurements[point.row_index.0].rows[point.row_index.1];
        *row = Row::new(row.bytes, time, row.line);
    }
    measurements
}

/// Measurements with three numbers of GPUs, in descending order.
fn measurements_by_gpu_count(gpus: [u32; 3]) -> Vec<Measurement> {
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    let [large, medium, small] = gpus;
    // With few channels the thread blocks are the bottleneck, otherwise the links.
    let configurations = [(large, None), (medium, None), (small, None), (large, Some(2))];
    let build = |(gpus, channels)| {
        collectives.map(|collective| {
            let mut one = measurement(collective, gpus);
            one.configuration.channels = channels;
            one
        })
    };
    configurations.into_iter().flat_map(build).collect()
}

fn base() -> Profile {
    let mut profile = Profile::named("nccl-2.28-h200").unwrap();
    for modes in &mut profile.launches {
        for costs in modes {
            *costs = fabricast_sim::profile::LaunchCosts::default();
        }
    }
    profile
}

/// The shipped profile with some LL costs changed.
fn changed_ll_profile() -> Profile {
    let mut profile = base();
    let costs = &mut profile.protocols[Protocol::Ll as usize];
    costs.startup += costs.startup;
    costs.step += Picos(300_000);
    costs.settle = Picos(500_000);
    profile
}

/// Pseudo-random factor of a row, from 0.97 to 1.03, without trend.
fn noise(number: usize) -> f64 {
    1.0 + 0.03 * f64::from((number as u32).wrapping_mul(2_654_435_761) % 2001) / 1000.0 - 0.03
}

fn calibrated(device: &[Measurement], hold_out: &[HoldOut]) -> Calibration {
    calibrate(CalibrationRequest {
        device,
        launches: &[],
        base: &base(),
        prior: Prior::Open,
        hold_out,
        monitor: Monitor::default(),
    })
    .unwrap()
}

#[test]
fn fit_recovers_the_profile_that_made_the_rows() {
    let truth = changed_ll_profile();
    let calibration =
        calibrated(&timed(measurements_by_gpu_count([8, 4, 2]), &truth, |_| 1.0), &["gpus=4".parse().unwrap()]);
    let worst = calibration.fitted.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max);
    assert!(worst < 0.01, "{worst}");
    let held_out = calibration.held_out[0].residuals.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max);
    assert!(held_out < 0.01, "{held_out}");
    assert!(!calibration.held_out[0].residuals.is_empty());
    let relative_error = |name: &str| {
        let estimate = calibration.estimates.iter().find(|estimate| estimate.parameter.name() == name).unwrap();
        let truth = estimate.parameter.get(&truth);
        (estimate.value - truth).abs() / truth
    };
    // No other parameter has the effect of this cost.
    assert!(relative_error("protocol.ll.settle") < 0.05, "{}", relative_error("protocol.ll.settle"));
}

/// Largest absolute error of the rows with two GPUs, predicted by a fit with a proportional prior to all other rows.
fn worst_on_two_gpus(device: &[Measurement]) -> f64 {
    let base = Prior::Proportional.start(&base());
    let reruns: Vec<MeasurementSimulation<'_>> =
        device.iter().map(|one| MeasurementSimulation::new(one, RouteOptions::default())).collect();
    let (points, cases) = points(&reruns, &base, GpuCosts::Fitted, Monitor::default());
    let all: Vec<_> = points.iter().collect();
    let parameters = super::determined_parameters(&all, &base);
    let fit =
        ProfileFit { cases: &cases, points: all, base: &base, parameters: &parameters, prior: Prior::Proportional };
    let (held_out, _) = super::hold_out::predict(&"gpus=2".parse().unwrap(), &fit);
    assert!(!held_out.residuals.is_empty());
    held_out.residuals.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max)
}

/// The device has 1.5 times the latency, 1.2 times the pass times and slower links than the starting profile. Rows of
/// eight GPUs are sufficient to predict two GPUs, although they do not determine all parameters.
#[test]
fn common_factors_carry_over_to_other_numbers_of_gpus() {
    let mut truth = base();
    for (factor, value) in
        [(FitParameter::LatencyFactor, 1.5), (FitParameter::PassTimeFactor, 1.2), (FitParameter::Nvlink, 0.6)]
    {
        factor.set(&mut truth, value);
    }
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::AllToAll];
    let world = [8, 2].into_iter().flat_map(|gpus| {
        collectives.map(|collective| {
            let mut one = measurement(collective, gpus);
            if collective == Collective::AllToAll {
                one.configuration.algorithm = Some(Algorithm::Direct);
            }
            one
        })
    });
    let device = timed(world.collect(), &truth, |_| 1.0);
    let worst = worst_on_two_gpus(&device);
    // The error of the starting profile is a third or more.
    assert!(worst < 0.05, "{worst}");
}

/// The device has twice the latency of LL and a nearly unchanged Simple protocol. Rows of eight GPUs separate the
/// factors of both protocols.
#[test]
fn protocols_of_another_device_have_factors_of_their_own() {
    let mut truth = base();
    for (protocol, value) in [(Protocol::Ll, 2.0), (Protocol::Simple, 1.1)] {
        FitParameter::ProtocolLatencyFactor(protocol).set(&mut truth, value);
    }
    let build = |(gpus, protocol)| {
        [Collective::AllReduce, Collective::AllGather].map(|collective| {
            let mut one = measurement(collective, gpus);
            one.configuration.protocol = Some(protocol);
            one
        })
    };
    let world = [(8, Protocol::Ll), (8, Protocol::Simple), (2, Protocol::Ll), (2, Protocol::Simple)];
    let device = timed(world.into_iter().flat_map(build).collect(), &truth, |_| 1.0);
    let worst = worst_on_two_gpus(&device);
    assert!(worst < 0.05, "{worst}");
}

/// All_reduce has as many reductions as copies, so its rows determine only the sum of both costs. A starting profile
/// with a reduction cost that is 1 µs too high does not bias the fit.
#[test]
fn starting_value_of_reduce_does_not_bias_the_fit() {
    let world = [None, Some(16), Some(8)].map(|channels| {
        let mut one = measurement(Collective::AllReduce, 8);
        one.configuration.channels = channels;
        one
    });
    let rows = timed(world.to_vec(), &base(), noise);
    let mut start = base();
    start.protocols[Protocol::Ll as usize].reduce += Picos(1_000_000);
    let task = CalibrationRequest {
        device: &rows,
        launches: &[],
        base: &start,
        prior: Prior::Open,
        hold_out: &[],
        monitor: Monitor::default(),
    };
    let calibration = calibrate(task).unwrap();
    let adding = FitParameter::Protocol(Protocol::Ll, super::Cost::ReduceOverCopy);
    assert!(adding.get(&start) > 0.9);
    assert!(adding.get(&calibration.profile).abs() < 0.3, "{}", adding.get(&calibration.profile));
}

/// Measurements of collectives launched on streams instead of as a graph.
fn stream_measurements<const N: usize>(collectives: [Collective; N], gpus: u32) -> [Measurement; N] {
    collectives.map(|collective| {
        let mut one = measurement(collective, gpus);
        one.configuration.launch = Launch::Stream;
        one
    })
}

/// The delay between process starts depends on the number of GPUs. Rows of four GPUs alone leave it unchanged; rows
/// with two numbers of GPUs determine it.
#[test]
fn launch_delay_per_gpu_needs_several_gpu_counts() {
    let by_streams =
        |gpus| stream_measurements([Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter], gpus);
    let delay_per_gpu = |calibration: &Calibration| {
        let named =
            |name: &str| calibration.estimates.iter().find(|one| one.parameter.name() == name).map(|one| one.value);
        named("launch.stream.per_gpu.added_per_gpu")
    };
    let mut truth = base();
    truth.launches[Launch::Stream as usize][Processes::PerGpu as usize].added_per_gpu = Picos(400_000);
    let both = timed([4, 2].into_iter().flat_map(by_streams).collect(), &truth, |_| 1.0);
    let delay = delay_per_gpu(&calibrated(&both, &[])).unwrap();
    assert!((delay - 0.4).abs() < 0.02, "{delay}");
    let four = timed(by_streams(4).to_vec(), &truth, |_| 1.0);
    assert_eq!(delay_per_gpu(&calibrated(&four, &[])), None);
}

/// The cost per peer needs several numbers of GPUs as well: all_to_all with three numbers determines it, with one
/// number leaves it unchanged.
#[test]
fn startup_per_peer_needs_several_peer_counts() {
    let exchange = |gpus| {
        let mut one = measurement(Collective::AllToAll, gpus);
        one.configuration.algorithm = Some(Algorithm::Direct);
        one.configuration.protocol = Some(Protocol::Simple);
        // One thread block per peer.
        one.configuration.channels = Some(8);
        one
    };
    let base = base();
    let mut truth = base.clone();
    truth.protocols[Protocol::Simple as usize].startup_per_peer = Picos(1_500_000);
    let startup_per_peer = |calibration: &Calibration| {
        let named = |one: &&Estimate| one.parameter.name() == "protocol.simple.startup_per_peer";
        calibration.estimates.iter().find(named).map(|one| one.value)
    };
    // Measurements are repeated so that there are more rows than parameters.
    let several = timed([8, 4, 2, 8, 4, 2].map(exchange).to_vec(), &truth, |_| 1.0);
    let task = |device| CalibrationRequest {
        device,
        launches: &[],
        base: &base,
        prior: Prior::Plain,
        hold_out: &[],
        monitor: Monitor::default(),
    };
    let startup = startup_per_peer(&calibrate(task(&several)).unwrap()).unwrap();
    assert!((startup - 1.5).abs() < 0.05, "{startup}");
    let one = timed(vec![exchange(4); 6], &truth, |_| 1.0);
    assert_eq!(startup_per_peer(&calibrate(task(&one)).unwrap()), None);
}

/// Predictions of left-out rows do not depend on their measured times. This includes launch costs that only these rows
/// determine.
#[test]
fn left_out_rows_do_not_affect_their_prediction() {
    let collectives = [Collective::AllReduce, Collective::AllGather];
    let rows: Vec<Measurement> = [8, 2].into_iter().flat_map(|gpus| stream_measurements(collectives, gpus)).collect();
    let rows_on_eight: usize = rows[..2].iter().map(|one| one.rows.len()).sum();
    let predicted = |times: f64| -> Vec<f64> {
        let measured = timed(rows.clone(), &base(), |number| if number < rows_on_eight { 1.0 } else { times });
        let calibration = calibrated(&measured, &["gpus=2".parse().unwrap()]);
        calibration.held_out[0].residuals.iter().map(|residual| (1.0 + residual.error) * times).collect()
    };
    let (unscaled, faster) = (predicted(1.0), predicted(0.6));
    assert_eq!(unscaled.len(), faster.len());
    for (one, other) in unscaled.iter().zip(&faster) {
        assert!((one - other).abs() < 1e-3, "{one} {other}");
    }
}

#[test]
fn priors_are_read_as_they_are_written() {
    for prior in [Prior::Open, Prior::Plain, Prior::Proportional] {
        assert_eq!(prior.to_string().parse(), Ok(prior));
    }
    assert_eq!("firm".parse::<Prior>().unwrap_err().to_string(), "`firm`: expected open, plain or proportional");
}

/// Every combination of parameters that the rows determine is recovered within 1 % of the size of its parts.
/// Combinations are the eigenvectors of the scaled Jacobian. A combination counts as determined if the rows weigh a
/// hundred times as much as the prior, whose weight is small.
#[test]
fn identifiable_combinations_come_back() {
    let truth = changed_ll_profile();
    let measurements = timed(measurements_by_gpu_count([4, 3, 2]), &truth, |_| 1.0);
    let reruns: Vec<MeasurementSimulation<'_>> =
        measurements.iter().map(|one| MeasurementSimulation::new(one, RouteOptions::default())).collect();
    let base = base();
    let (points, cases) = points(&reruns, &base, GpuCosts::Fitted, Monitor::default());
    let all: Vec<_> = points.iter().collect();
    let parameters = super::determined_parameters(&all, &base);
    let fit = ProfileFit { cases: &cases, points: all, base: &base, parameters: &parameters, prior: Prior::Open };
    let (fitted, minimum) = fit.run(StartDistance::Far);
    let expected = fit.expected();
    let lengths: Vec<f64> = minimum.jacobian.column_iter().map(|column| column.norm()).collect();
    let scaled = nalgebra::DMatrix::from_fn(minimum.jacobian.nrows(), lengths.len(), |row, column| {
        minimum.jacobian[(row, column)] / lengths[column].max(1e-12)
    });
    let eigen = nalgebra::SymmetricEigen::new(scaled.transpose() * &scaled);
    let strongest = eigen.eigenvalues.max();
    let mut determined = 0;
    for (value, vector) in eigen.eigenvalues.iter().zip(eigen.eigenvectors.column_iter()) {
        let prior_strength = vector.iter().zip(&lengths).zip(&expected);
        let prior_strength: f64 = prior_strength
            .map(|((part, length), (_, deviation))| (part / (length * deviation).max(1e-12)).powi(2))
            .sum();
        if *value < (1e-4 * strongest).max(100.0 * prior_strength) {
            continue;
        }
        determined += 1;
        let (mut error, mut size) = (0.0, 0.0);
        for ((parameter, part), length) in parameters.iter().zip(vector.iter()).zip(&lengths) {
            error += part * length * (parameter.get(&fitted) - parameter.get(&truth));
            size += (part * length * parameter.get(&truth)).powi(2);
        }
        assert!(error.abs() <= 0.01 * size.sqrt(), "{error} of {} in a direction of {value}", size.sqrt());
    }
    assert!(determined >= 5, "{determined} combinations are determined");
}

/// Predictions from cached cases equal complete simulations, because the start-up cost shifts the end of a run and
/// launch costs are added afterwards.
#[test]
fn cached_cases_equal_whole_simulations() {
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let measurements = measurements_by_gpu_count([8, 4, 2]);
    let reruns: Vec<MeasurementSimulation<'_>> =
        measurements.iter().map(|one| MeasurementSimulation::new(one, RouteOptions::default())).collect();
    let (points, cases) = points(&reruns, &profile, GpuCosts::Fitted, Monitor::default());
    for point in points.iter().step_by(7) {
        let device = cases.run(&[point.case], &profile)[0];
        let rerun = &reruns[point.row_index.0];
        let row = &rerun.measurement.rows[point.row_index.1];
        let schedule = rerun.schedule(rerun.strategies().strategy(row).unwrap(), row, &profile).unwrap();
        let simulation = rerun.simulate(&*schedule, &profile).unwrap();
        assert_eq!(point.predicted(device, &profile), simulation.time);
        assert_eq!(point.regime(device, &profile), simulation.decides);
    }
}

#[test]
fn noise_widens_intervals() {
    let truth = changed_ll_profile();
    let width = |calibration: &Calibration, name: &str| {
        let estimate = calibration.estimates.iter().find(|estimate| estimate.parameter.name() == name).unwrap();
        estimate.high - estimate.low
    };
    let world = measurements_by_gpu_count([4, 3, 2]);
    let (clean, noisy) =
        (calibrated(&timed(world.clone(), &truth, |_| 1.0), &[]), calibrated(&timed(world, &truth, noise), &[]));
    for name in ["links.nvlink", "protocol.ll.settle", "protocol.ll.startup"] {
        assert!(width(&noisy, name) > width(&clean, name), "{name}");
    }
    let band = noisy.profile.bands.default;
    let clean = clean.profile.bands.default;
    assert!(band.low < clean.low && band.high > clean.high, "{band:?} {clean:?}");
    let share = noisy.coverage.share();
    assert!((0.75..=0.85).contains(&share), "{share}");
    assert!(band.low < 1.0 && band.high > 1.0 && band.high - band.low < 0.08, "{band:?}");
}

#[test]
fn rows_for_checking_are_not_fitted_to() {
    let truth = changed_ll_profile();
    let two_gpus = measurements_by_gpu_count([4, 3, 2]).into_iter().filter(|one| one.configuration.gpus == 2);
    let mut measurements = timed(two_gpus.collect(), &truth, |_| 1.0);
    let plain = calibrated(&measurements, &[]);
    let mut wrong = measurements[0].clone();
    wrong.role = Role::Check;
    for row in &mut wrong.rows {
        *row = Row::new(row.bytes, Picos(1_000_000_000), row.line);
    }
    measurements.push(wrong);
    let with_check = calibrated(&measurements, &[]);
    assert_eq!(plain.profile, with_check.profile);
    assert_eq!(with_check.to_check, 9);
}

#[test]
fn too_few_rows_are_an_error() {
    let mut one = measurement(Collective::AllReduce, 8);
    one.rows.truncate(3);
    let base = base();
    let task = |device| CalibrationRequest {
        device,
        launches: &[],
        base: &base,
        prior: Prior::Open,
        hold_out: &[],
        monitor: Monitor::default(),
    };
    let measured = timed(vec![one.clone()], &base, |_| 1.0);
    let error = calibrate(task(&measured)).map(|_| ()).unwrap_err();
    assert!(matches!(error, CalibrateError::TooFewRows { rows: 3, .. }), "{error:?}");
    one.role = Role::Check;
    let error = calibrate(task(&[one])).map(|_| ()).unwrap_err();
    assert_eq!(error, CalibrateError::NothingToFit { without_strategy: 0, check_rows: 3 });
}

#[test]
fn parameters_read_back_as_they_were_set() {
    let mut profile = base();
    let all = Protocol::ALL.into_iter().flat_map(|p| super::Cost::all().map(|cost| FitParameter::Protocol(p, cost)));
    for parameter in
        all.chain([FitParameter::Nvlink, FitParameter::Network]).filter(|parameter| parameter.applies(&base()))
    {
        let value = (parameter.get(&profile) * 0.5).max(0.25);
        parameter.set(&mut profile, value);
        assert!((parameter.get(&profile) - value).abs() < 1e-3, "{}", parameter.name());
    }
    for (text, shown) in [
        ("gpus=2, 4", "gpus=2,4"),
        ("nodes=2", "nodes=2"),
        ("collective=allgather", "collective=all_gather"),
        ("protocol=ll", "protocol=ll"),
    ] {
        assert_eq!(text.parse::<HoldOut>().unwrap().to_string(), shown);
    }
    assert!("nodes".parse::<HoldOut>().is_err());
}
