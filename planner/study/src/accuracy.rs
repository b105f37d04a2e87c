//! Accuracy of predictions against published figures, which every study reports by kind of job and GPU.
//!
//! The figures come from `planner/data` with the shipped efficiency curves; a test checks that they match
//! (`tests/accuracy.rs`).

use std::borrow::Borrow;
use std::ops::RangeInclusive;

use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};

use super::statements::group_by_statement;
use super::{Candidate, EfficiencyOverrides, Study};
use fabricast_workload::job::{Job, Serving, Tier, Training};
use fabricast_workload::trace::EventKind;

/// Kind of work, as distinguished by the published figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Training,
    TrainingExperts,
    Serving,
    ServingExperts,
}

impl Work {
    /// Returns the kind of work of a job; `None` for a trace, whose kernel times are recorded.
    fn new(job: &Job) -> Option<Self> {
        match job {
            Job::Training(job) => Some(Self::from_training(job)),
            Job::Inference(job) => Some(Self::from_serving(job)),
            Job::Trace(_) => None,
        }
    }

    /// Returns the kind of work of a training job.
    pub(super) fn from_training(job: &Training) -> Self {
        if job.model.experts > 0 { Self::TrainingExperts } else { Self::Training }
    }

    /// Returns the kind of work of an inference job.
    pub(super) fn from_serving(job: &Serving) -> Self {
        if job.model.experts > 0 { Self::ServingExperts } else { Self::Serving }
    }

    /// Returns the largest known error at the 90th percentile for this kind of work, as a fraction.
    pub(super) fn largest_error(self) -> f64 {
        let errors = ACCURACIES.iter().filter(|entry| entry.work == self).map(|entry| entry.error_percent[1]);
        errors.fold(0.0, f64::max) / 100.0
    }

    fn name(self) -> &'static str {
        match self {
            Self::Training => "training of models without experts",
            Self::TrainingExperts => "training of models with experts",
            Self::Serving => "inference of models without experts",
            Self::ServingExperts => "inference of models with experts",
        }
    }
}

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

/// Property of a job that the jobs of [`ACCURACIES`] lack, so that their errors do not apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherProperty {
    /// Training of low-rank adapters.
    TrainedAdapters,
    /// Inference with low-rank adapters.
    ServedAdapters,
    /// Training with optimizer states on drives.
    StatesOnDrives,
    /// Data in another memory tier, or several of these properties: no measured figure.
    Unmeasured,
}

impl OtherProperty {
    /// Returns the property of a job; `None` for jobs as those of [`ACCURACIES`].
    fn new(job: &Job) -> Option<Self> {
        match job {
            Job::Training(job) => {
                let tiers = (job.optimizer_tier, job.weights_tier);
                match (job.lora.is_some(), tiers) {
                    (false, (Tier::Hbm, Tier::Hbm)) => None,
                    _ if job.model.experts > 0 => Some(Self::Unmeasured),
                    (true, (Tier::Hbm, Tier::Hbm)) => Some(Self::TrainedAdapters),
                    (false, (Tier::Nvme, _)) => Some(Self::StatesOnDrives),
                    _ => Some(Self::Unmeasured),
                }
            }
            Job::Inference(job) => match (job.adapters.is_some(), job.kv_tier) {
                (false, Tier::Hbm) => None,
                (true, Tier::Hbm) if job.model.experts == 0 => Some(Self::ServedAdapters),
                _ => Some(Self::Unmeasured),
            },
            Job::Trace(_) => None,
        }
    }

    /// Returns the accuracy of predictions of such jobs on any GPU, as in docs/accuracy.md ("Jobs as others measured
    /// them"), without the final period.
    fn statement(self, work: Work, model: &str) -> String {
        let (name, figures, [median, p90]) = match self {
            Self::TrainedAdapters => {
                ("training of low-rank adapters", "46 figures on A100, H200 and RTX 4090", [12, 41])
            }
            Self::ServedAdapters => {
                ("inference with low-rank adapters", "6 published figures of 2023 on A100", [46, 58])
            }
            Self::StatesOnDrives => {
                ("training with optimizer states on drives", "4 published figures of DeepSpeed on H100", [7, 7])
            }
            Self::Unmeasured => {
                let name = work.name();
                return format!("{name} on {model}: no published figure with these adapters or memory tiers");
            }
        };
        format!(
            "{name} on {model}: predictions of {figures} differ from measurement by {median} % in the median and {p90} % at the 90th percentile"
        )
    }
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
        error_percent: [17.1, 42.3],
        bias: -16.8,
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

/// Standard deviation of ln(time) due to the model's error, for the jobs of a candidate. The errors of all its jobs are
/// treated as one variable, weighted by the jobs' weights. It is derived from the 90th percentile of the published
/// figures of the class; a class without figures has the largest known error of its kind of work. Recorded traces have
/// no such error.
pub(super) fn model_error(study: &Study, fabrics: &[Fabric], candidate: usize) -> f64 {
    let deviation = |accuracy: &Accuracy| {
        let [_, p90] = accuracy.error_percent;
        (1.0 + p90 / 100.0).ln() / NORMAL_P90
    };
    let of_job = |job: &Job| {
        let Some(work) = Work::new(job) else { return 0.0 };
        let known = fabrics.get(candidate).and_then(|fabric| Accuracy::new(work, fabric));
        let of_work = ACCURACIES.iter().filter(|entry| entry.work == work).map(deviation).fold(0.0, f64::max);
        known.map_or(of_work, deviation)
    };
    let (mut sum, mut weights) = (0.0, 0.0);
    for (_, job) in study.jobs_on(candidate) {
        (sum, weights) = (sum + job.weight() * of_job(job), weights + job.weight());
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// 90th percentile of the absolute value of a standard normal number.
const NORMAL_P90: f64 = 1.645;

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
    let statement = |candidate: &Candidate, fabric: &Fabric, job: &Job| match Work::new(job) {
        Some(_) if candidate.efficiency != EfficiencyOverrides::default() => None,
        Some(work) => {
            let model = gpu_model(fabric);
            Some(match (OtherProperty::new(job), Accuracy::new(work, fabric)) {
                (Some(property), _) => property.statement(work, &model),
                (None, Some(accuracy)) => accuracy.statement(&model),
                (None, None) => format!(
                    "{} on {model}: no published figure here (docs/accuracy.md, \"Jobs as others measured them\", has more)",
                    work.name()
                ),
            })
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
