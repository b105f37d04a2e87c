//! Studies whose steps others published, or that were measured and set nothing, against the curves that ship.

use fabricast_sim::profile::Profile;
use fabricast_topologies::load;
use fabricast_topologies::route::{RouteOptions, Router};

use super::super::read_study;
use crate::step::{Efficiency, Machine, Simulated};

/// Predicted over measured less 1, of each step, by the curve of its candidate's GPUs; and how far off the middle one is.
fn errors(text: &str) -> (Vec<f64>, f64) {
    let study = read_study(text, "s.toml").unwrap();
    let mut errors = Vec::new();
    for (number, candidate) in study.candidates.iter().enumerate() {
        let fabric = load(&candidate.fabric).unwrap();
        let (router, profile) = (Router::new(&fabric, RouteOptions::default()), Profile::for_fabric(&fabric).unwrap());
        for one in study.measured.iter().filter(|one| one.candidate == number) {
            let job = &study.jobs[one.job];
            let ranks = job.ranks_on(&fabric).unwrap();
            let simulated = Simulated::new(&router, &profile, &ranks);
            let curve = Efficiency::of(&fabric);
            let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve };
            let predicted = one.figure.of_job(job, &machine).unwrap().unwrap();
            errors.push(predicted.0 as f64 / one.time.0 as f64 - 1.0);
        }
    }
    let mut sorted: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted[sorted.len() / 2];
    (errors, middle)
}

/// The models that set the curve on two GPUs, on four.
#[test]
fn steps_on_four_gpus_are_predicted() {
    let (errors, middle) = errors(include_str!("../../../data/h200-steps/four.toml"));
    assert_eq!(errors.len(), 11);
    assert!(middle < 0.02 && errors.iter().all(|error| error.abs() < 0.04), "{errors:?}");
}

/// Thirteen by the curve that two H200 set: all too fast, and evenly so, since software of 2024 was slower between products.
#[test]
fn runs_of_nemo_are_ranked_as_they_were_measured() {
    let (errors, middle) = errors(include_str!("../../../data/nemo.toml"));
    assert_eq!(errors.len(), 13);
    assert!(middle < 0.14 && errors.iter().all(|error| (-0.19..-0.07).contains(error)), "{errors:?}");
}

#[test]
fn newer_runs_on_h100_are_met() {
    let (errors, middle) = errors(include_str!("../../../data/megatron-bridge/h100.toml"));
    assert_eq!(errors.len(), 8);
    assert!(middle < 0.13 && errors.iter().all(|error| error.abs() < 0.20), "{errors:?}");
}

/// Two figures of their curve were set by these runs; those of calls were not.
#[test]
fn runs_on_blackwell_are_met_with_one_curve() {
    for (text, steps, most) in [
        (include_str!("../../../data/megatron-bridge/blackwell.toml"), 33, 0.23),
        (include_str!("../../../data/megatron-bridge/gb300.toml"), 8, 0.08),
    ] {
        let (errors, middle) = errors(text);
        assert_eq!(errors.len(), steps);
        assert!(middle < 0.05 && errors.iter().all(|error| error.abs() < most), "{errors:?}");
    }
}
