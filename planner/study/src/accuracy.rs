//! Accuracy of predictions against published figures, which every study reports by kind of job and GPU.
//!
//! The figures come from `planner/data` with the shipped efficiency curves; a test checks that they match
//! (`tests/accuracy.rs`).

use std::borrow::Borrow;
use std::ops::RangeInclusive;

use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};

use super::error_figures::{ErrorFigures, class_error};
use super::job_class::{JobClass, OtherProperty, Work};
use super::model_error::ModelError;
use super::statements::group_by_statement;
use super::{Candidate, EfficiencyOverrides, Study};
use fabricast_perf::step::{Efficiency, GemmEvidence};
use fabricast_workload::job::Job;
use fabricast_workload::trace::EventKind;

/// Accuracy of predictions for one kind of work on some GPUs.
#[derive(Clone, Debug)]
pub(super) struct Accuracy {
    pub work: Work,
    /// Compute capabilities of the GPUs, as major × 10 + minor.
    pub capability: RangeInclusive<u32>,
    /// Range of the number of GPUs in an NVLink domain.
    pub domain: RangeInclusive<u32>,
    /// GPU models of the published figures. Each is a word that the names of all variants of the model contain.
    pub models: &'static [&'static str],
    /// Names of the software of the published figures.
    pub software: &'static str,
    /// Number of published figures.
    pub count: u32,
    /// Absolute error of predicted times in percent: median and 90th percentile.
    pub error_percent: [f64; 2],
    /// Median of the signed error of predicted times, in percent. Negative if predicted times are too short.
    pub bias: f64,
}

const ANY: RangeInclusive<u32> = 0..=u32::MAX;

/// Known accuracies, by kind of work and GPU generation. Computed from the published figures in `planner/data`; a test
/// compares them.
pub(super) const ACCURACIES: [Accuracy; 9] = [
    Accuracy {
        work: Work::Training,
        capability: 80..=80,
        domain: ANY,
        models: &["A100"],
        software: "LLM Foundry, torchtitan and fms-fsdp",
        count: 69,
        error_percent: [3.3, 17.1],
        bias: 2.9,
    },
    Accuracy {
        work: Work::Training,
        capability: 90..=90,
        domain: ANY,
        models: &["H100"],
        software: "LLM Foundry, NeMo and Megatron Bridge",
        count: 109,
        error_percent: [4.4, 13.9],
        bias: -3.8,
    },
    Accuracy {
        work: Work::Training,
        capability: 100..=103,
        domain: ANY,
        models: &["B200", "GB200", "GB300"],
        software: BRIDGE,
        count: 41,
        error_percent: [3.8, 8.8],
        bias: 1.2,
    },
    Accuracy {
        work: Work::TrainingExperts,
        capability: 90..=90,
        domain: ANY,
        models: &["H100"],
        software: BRIDGE,
        count: 17,
        error_percent: [11.1, 33.8],
        bias: -11.1,
    },
    Accuracy {
        work: Work::TrainingExperts,
        capability: 100..=103,
        domain: 0..=8,
        models: &["B200", "B300"],
        software: BRIDGE,
        count: 38,
        error_percent: [13.6, 42.1],
        bias: -6.0,
    },
    Accuracy {
        work: Work::TrainingExperts,
        capability: 100..=103,
        domain: 9..=u32::MAX,
        models: &["GB200", "GB300"],
        software: BRIDGE,
        count: 63,
        error_percent: [14.3, 45.6],
        bias: 8.8,
    },
    Accuracy {
        work: Work::Serving,
        capability: 90..=90,
        domain: ANY,
        models: &["H100", "H200"],
        software: TENSORRT,
        count: 67,
        error_percent: [4.6, 12.1],
        bias: -3.1,
    },
    Accuracy {
        work: Work::Serving,
        capability: 100..=103,
        domain: ANY,
        models: &["B200", "GB200"],
        software: TENSORRT,
        count: 50,
        error_percent: [4.9, 15.8],
        bias: -3.4,
    },
    Accuracy {
        work: Work::ServingExperts,
        capability: 90..=103,
        domain: ANY,
        models: &["H100", "H200", "B200", "GB200"],
        software: TENSORRT,
        count: 65,
        error_percent: [13.5, 31.3],
        bias: -6.6,
    },
];

const BRIDGE: &str = "Megatron Bridge";
const TENSORRT: &str = "TensorRT-LLM";

impl Accuracy {
    /// Returns the accuracy for a kind of work on a fabric's GPUs; `None` if there are no published figures.
    fn new(work: Work, fabric: &Fabric) -> Option<&'static Self> {
        let first = *fabric.gpus().first()?;
        let Figures::Gpu(figures) = &fabric.node(first).figures else { return None };
        let capability = figures.compute_capability?;
        let entries = || ACCURACIES.iter().filter(|entry| entry.work == work && entry.capability.contains(&capability));
        if entries().count() < 2 {
            return entries().next();
        }
        let router = Router::new(fabric, RouteOptions::default());
        let island = router.island_of(first);
        let domain = fabric.gpus().iter().filter(|&&gpu| router.island_of(gpu) == island).count() as u32;
        entries().find(|entry| entry.domain.contains(&domain))
    }

    /// Returns the accuracy as a sentence about a GPU model, without the final period.
    fn statement(&self, model: &str) -> String {
        let Self { work, models, software, count, error_percent: [median, p90], bias, .. } = self;
        let tendency = match *bias {
            bias if bias < -5.0 => ", mostly predicted too fast",
            bias if bias > 5.0 => ", mostly predicted too slow",
            _ => "",
        };
        let figures = format!("published figures of {software} on {}", join_names(models));
        let errors = format!(
            "differ from measurement by {median:.0} % in the median and {p90:.0} % at the 90th percentile{tendency}"
        );
        let is_covered = model.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| models.contains(&word));
        let work = work.name();
        match is_covered {
            true => format!("{work} on {model}: predictions of {count} {figures} {errors}"),
            false => {
                format!(
                    "{work} on {model}: no published figure; in the same generation, predictions of {count} {figures} {errors}"
                )
            }
        }
    }
}

/// Returns the accuracy of predictions of jobs with a property, without the final period.
fn property_statement(class: JobClass, property: OtherProperty, model: &str) -> String {
    let (Some(name), Some(source), Some(ErrorFigures { count, error_percent: [median, _, p90] })) =
        (property.name(), property.source(), property.figures())
    else {
        return format!("{} on {model}: no published figure with these properties", class.work.name());
    };
    format!(
        "{name} on {model}: predictions of {count} {source} differ from measurement by {median:.0} % in the median and {p90:.0} % at the 90th percentile"
    )
}

/// Returns the error of the intervals and rankings of a class of jobs on a fabric's GPUs.
fn interval_statement(class: JobClass, fabric: &Fabric) -> String {
    let [low, high] = class_error(class, Efficiency::evidence(fabric)).measured_to_predicted();
    format!("80 % of measured times are expected at {low:.2} to {high:.2} of the predicted ones")
}

/// Returns the error of the score of a candidate. The errors of all its jobs are treated as one variable, weighted by the
/// jobs' weights. Recorded traces have no error.
pub(super) fn model_error(study: &Study, fabrics: &[Fabric], candidate: usize) -> ModelError {
    let evidence = fabrics.get(candidate).map_or(GemmEvidence::Assumed, Efficiency::evidence);
    let of_job = |job: &Job| JobClass::new(job).map_or(ModelError::default(), |class| class_error(class, evidence));
    ModelError::of_geometric_mean(study.jobs_on(candidate).map(|(_, job)| (of_job(job), job.weight())))
}

/// Joins names as `A, B and C`.
#[must_use]
pub fn join_names<S: Borrow<str>>(names: &[S]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {}", others.join(", "), last.borrow()),
        names => names.concat(),
    }
}

/// Returns the name of a fabric's GPU model, or its compute capability if the model is unknown.
fn gpu_model(fabric: &Fabric) -> String {
    let figures = fabric.gpus().first().map(|&gpu| &fabric.node(gpu).figures);
    match figures {
        Some(Figures::Gpu(figures)) => match (&figures.model, figures.compute_capability) {
            (Some(model), _) => model.clone(),
            (None, Some(capability)) => format!("GPUs of compute capability {}.{}", capability / 10, capability % 10),
            (None, None) => "GPUs of an unknown model".to_owned(),
        },
        _ => "devices other than GPUs".to_owned(),
    }
}

/// Returns the accuracy statements for a study's jobs on its candidates. Each is a sentence without the final period.
/// Candidates with their own efficiency parameters have none.
pub(super) fn accuracy_statements(study: &Study, fabrics: &[Fabric]) -> Vec<String> {
    let statement = |candidate: &Candidate, fabric: &Fabric, job: &Job| match JobClass::new(job) {
        Some(_) if candidate.efficiency != EfficiencyOverrides::default() => None,
        Some(class) => {
            let model = gpu_model(fabric);
            let known = match (class.property, Accuracy::new(class.work, fabric)) {
                (Some(property), _) => property_statement(class, property, &model),
                (None, Some(accuracy)) => accuracy.statement(&model),
                (None, None) => format!(
                    "{} on {model}: no published figure here (docs/accuracy.md, \"Jobs as others measured them\", has more)",
                    class.work.name()
                ),
            };
            Some(format!("{known}; {}", interval_statement(class, fabric)))
        }
        None => computes(job).then(|| "kernels of a trace keep their recorded times on every GPU".to_owned()),
    };
    let statements = study.candidates.iter().zip(fabrics).enumerate().flat_map(|(number, (candidate, fabric))| {
        let jobs = study.jobs_on(number).filter_map(move |(_, job)| statement(candidate, fabric, job));
        jobs.map(|sentence| (sentence, candidate.name.as_str()))
    });
    let append_names = |(sentence, mut names): (String, Vec<&str>)| {
        // A candidate with several jobs occurs more than once.
        names.dedup();
        format!("{sentence}: {}", names.join(", "))
    };
    group_by_statement(statements).into_iter().map(append_names).collect()
}

/// Returns true for a trace that contains computations.
fn computes(job: &Job) -> bool {
    match job {
        Job::Trace(job) => job.trace.events.iter().any(|event| matches!(event.kind, EventKind::Compute { .. })),
        Job::Training(_) | Job::Inference(_) => false,
    }
}
