//! Data made by the model itself: what can be told comes back, noise widens intervals, what is for checking is left alone.

use std::path::PathBuf;
use std::sync::Arc;

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, Place};

use super::points::points;
use super::{CalibrateError, Calibration, HoldOut, Parameter, Task, calibrate};
use crate::measured::Row;
use crate::measured::manifest::{Configuration, Measurement, Notes, Registered, Role};
use crate::rerun::Rerun;

fn fabric(gpus: u32) -> (FabricRequest, Arc<Fabric>) {
    let request = FabricRequest { gpus: Some(gpus), ..FabricRequest::of("hgx-h200") };
    let fabric = Arc::new(fabricast_topologies::load(&request).unwrap());
    (request, fabric)
}

/// Sizes of a forced ring from a process for each GPU, times as yet unknown.
pub(super) fn measurement(collective: Collective, gpus: u32) -> Measurement {
    let (request, fabric) = fabric(gpus);
    let sizes = (10..=26).step_by(2).map(|power| Bytes(1 << power));
    Measurement {
        place: Place::default(),
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
            registered: Registered::Plain,
            launch: Launch::Graph,
            processes: Processes::PerGpu,
            dtype: DataType::F32,
            env: Vec::new(),
        },
        role: Role::Fit,
        notes: Notes::default(),
        rows: (1..).zip(sizes).map(|(line, bytes)| Row::of(bytes, Picos(1), line)).collect(),
        rejected: Vec::new(),
    }
}

/// All rows timed by a profile, each times what `noise` says of its number.
pub(super) fn timed(
    mut measurements: Vec<Measurement>,
    profile: &Profile,
    noise: impl Fn(usize) -> f64,
) -> Vec<Measurement> {
    let fabrics = measurements.clone();
    let reruns: Vec<Rerun<'_>> = fabrics.iter().map(|one| Rerun::new(one, RouteOptions::default())).collect();
    for (number, point) in points(&reruns, profile).iter().enumerate() {
        let time = Picos((point.residual(profile).exp() * noise(number)).round() as u64);
        let row = &mut measurements[point.of.0].rows[point.of.1];
        *row = Row::of(row.bytes, time, row.line);
    }
    measurements
}

fn world() -> Vec<Measurement> {
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    [8, 4, 2].into_iter().flat_map(|gpus| collectives.map(|collective| measurement(collective, gpus))).collect()
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

/// The shipped profile, some figures of its LL changed.
fn other() -> Profile {
    let mut profile = base();
    let costs = &mut profile.protocols[Protocol::Ll as usize];
    costs.startup += costs.startup;
    costs.step += Picos(300_000);
    costs.settle = Picos(500_000);
    profile
}

fn calibrated(device: &[Measurement], hold_out: &[HoldOut]) -> Calibration {
    calibrate(Task { device, launches: &[], base: &base(), hold_out }).unwrap()
}

#[test]
fn what_the_model_made_comes_back() {
    let truth = other();
    let found = calibrated(&timed(world(), &truth, |_| 1.0), &["gpus=4".parse().unwrap()]);
    let worst = found.fitted.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max);
    assert!(worst < 0.01, "{worst}");
    let held_out = found.held_out[0].residuals.iter().map(|residual| residual.error.abs()).fold(0.0, f64::max);
    assert!(held_out < 0.01, "{held_out}");
    assert!(!found.held_out[0].residuals.is_empty());
    let told = |name: &str| {
        let estimate = found.estimates.iter().find(|estimate| estimate.parameter.name() == name).unwrap();
        let truth = estimate.parameter.get(&truth);
        (estimate.value - truth).abs() / truth
    };
    // What no other parameter can stand for.
    assert!(told("protocol.ll.settle") < 0.05, "{}", told("protocol.ll.settle"));
}

#[test]
fn noise_widens_intervals() {
    let truth = other();
    // A pattern without trend: ± 3 %.
    let noise =
        |number: usize| 1.0 + 0.03 * f64::from((number as u32).wrapping_mul(2_654_435_761) % 2001) / 1000.0 - 0.03;
    let width = |found: &Calibration, name: &str| {
        let estimate = found.estimates.iter().find(|estimate| estimate.parameter.name() == name).unwrap();
        estimate.high - estimate.low
    };
    let (clean, noisy) =
        (calibrated(&timed(world(), &truth, |_| 1.0), &[]), calibrated(&timed(world(), &truth, noise), &[]));
    for name in ["links.nvlink", "protocol.ll.settle", "protocol.ll.pass.forward"] {
        assert!(width(&noisy, name) > width(&clean, name), "{name}");
    }
    let band = noisy.profile.band;
    assert!(band.low < 1.0 && band.high > 1.0 && band.high - band.low < 0.08, "{band:?}");
}

#[test]
fn what_is_for_checking_is_not_looked_at() {
    let truth = other();
    let mut measurements = timed(world(), &truth, |_| 1.0);
    let plain = calibrated(&measurements, &[]);
    let mut wrong = measurements[0].clone();
    wrong.role = Role::Check;
    for row in &mut wrong.rows {
        *row = Row::of(row.bytes, Picos(1_000_000_000), row.line);
    }
    measurements.push(wrong);
    let with = calibrated(&measurements, &[]);
    assert_eq!(plain.profile, with.profile);
    assert_eq!(with.to_check, 9);
}

#[test]
fn too_little_is_refused() {
    let mut one = measurement(Collective::AllReduce, 8);
    one.rows.truncate(3);
    let base = base();
    let task = |device| Task { device, launches: &[], base: &base, hold_out: &[] };
    let few = timed(vec![one.clone()], &base, |_| 1.0);
    let found = calibrate(task(&few)).map(|_| ()).unwrap_err();
    assert!(matches!(found, CalibrateError::TooFewRows { rows: 3, .. }), "{found:?}");
    one.role = Role::Check;
    let found = calibrate(task(&[one])).map(|_| ()).unwrap_err();
    assert_eq!(found, CalibrateError::NothingToFit { without_strategy: 0, to_check: 3 });
}

#[test]
fn parameters_are_set_as_they_are_read() {
    let mut profile = base();
    let all = Protocol::ALL.into_iter().flat_map(|p| super::Cost::all().map(|cost| Parameter::Protocol(p, cost)));
    for parameter in all.chain([Parameter::Nvlink, Parameter::Network]).filter(|parameter| parameter.applies(&base())) {
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
