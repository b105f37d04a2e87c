//! Accuracy of predictions against published figures, reported for each study by kind of job and GPU.
//!
//! The figures come from `planner/data` with the shipped efficiency curves; a test checks them
//! (`study/tests/trust.rs`).

use std::ops::RangeInclusive;

use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};

use super::answer::group_by_statement;
use super::{Candidate, EfficiencyOverrides, Study};
use fabricast_workload::job::Job;
use fabricast_workload::trace::EventKind;

/// Kind of work of published figures.
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
            Job::Training(job) if job.model.experts > 0 => Some(Self::TrainingExperts),
            Job::Training(_) => Some(Self::Training),
            Job::Inference(job) if job.model.experts > 0 => Some(Self::ServingExperts),
            Job::Inference(_) => Some(Self::Serving),
            Job::Trace(_) => None,
        }
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

/// Accuracy for one kind of work on some GPUs.
#[derive(Clone, Debug)]
pub(super) struct Accuracy {
    pub work: Work,
    /// Compute capabilities of the GPUs, as major × 10 + minor.
    pub capability: RangeInclusive<u32>,
    /// Number of GPUs in an NVLink domain.
    pub domain: RangeInclusive<u32>,
    /// GPU models, by the common word of their names.
    pub models: &'static [&'static str],
    /// Software of the published figures.
    pub software: &'static str,
    /// Number of figures.
    pub count: u32,
    /// Absolute error of predicted times in percent: median and 90th percentile.
    pub error_percent: [f64; 2],
    /// Signed median error in percent; negative: predictions are too fast.
    pub bias: f64,
}

const ANY: RangeInclusive<u32> = 0..=u32::MAX;

/// All known accuracies.
pub(super) const ACCURACIES: [Accuracy; 9] = [
    accuracy(
        Work::Training,
        (80..=80, ANY),
        (&["A100"], "LLM Foundry, torchtitan and fms-fsdp"),
        (69, [3.3, 17.1], 2.9),
    ),
    accuracy(
        Work::Training,
        (90..=90, ANY),
        (&["H100"], "LLM Foundry, NeMo and Megatron Bridge"),
        (109, [4.4, 13.9], -3.8),
    ),
    accuracy(Work::Training, (100..=103, ANY), (&["B200", "GB200", "GB300"], BRIDGE), (41, [3.8, 8.8], 1.2)),
    accuracy(Work::TrainingExperts, (90..=90, ANY), (&["H100"], BRIDGE), (7, [31.3, 61.1], -25.8)),
    accuracy(Work::TrainingExperts, (100..=103, 0..=8), (&["B200"], BRIDGE), (6, [32.3, 62.0], -32.3)),
    accuracy(Work::TrainingExperts, (100..=103, 9..=u32::MAX), (&["GB200", "GB300"], BRIDGE), (13, [8.8, 23.6], -2.4)),
    accuracy(Work::Serving, (90..=90, ANY), (&["H100", "H200"], TENSORRT), (67, [4.0, 10.4], -0.1)),
    accuracy(Work::Serving, (100..=103, ANY), (&["B200", "GB200"], TENSORRT), (50, [4.8, 13.6], -2.1)),
    accuracy(
        Work::ServingExperts,
        (90..=103, ANY),
        (&["H100", "H200", "B200", "GB200"], TENSORRT),
        (65, [16.4, 40.9], -14.0),
    ),
];

const BRIDGE: &str = "Megatron Bridge";
const TENSORRT: &str = "TensorRT-LLM";

const fn accuracy(
    work: Work,
    (capability, domain): (RangeInclusive<u32>, RangeInclusive<u32>),
    (models, software): (&'static [&'static str], &'static str),
    (count, error_percent, bias): (u32, [f64; 2], f64),
) -> Accuracy {
    Accuracy { work, capability, domain, models, software, count, error_percent, bias }
}

impl Accuracy {
    /// Returns the accuracy for a kind of work on a fabric's GPUs.
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

    /// Formats the accuracy for a GPU model.
    fn statement(&self, model: &str) -> String {
        let Self { work, models, software, count, error_percent: [median, p90], bias, .. } = self;
        let tendency = match *bias {
            bias if bias < -5.0 => ", most predictions too fast",
            bias if bias > 5.0 => ", most predictions too slow",
            _ => "",
        };
        let figures = format!("published figures of {software} on {}", join_names(models));
        let errors = format!(
            "differ from predictions by {median:.0} % in the median and {p90:.0} % at the 90th percentile{tendency}"
        );
        let is_covered = model.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| models.contains(&word));
        let work = work.name();
        match is_covered {
            true => format!("{work} on {model}: {count} {figures} {errors}"),
            false => {
                format!("{work} on {model}: no published figure; of the same generation {count} {figures} {errors}")
            }
        }
    }
}

/// Joins words as `A, B and C`.
fn join_names(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        names => names.concat(),
    }
}

/// Name of the GPU model of a fabric, or its compute capability.
fn gpu_model(fabric: &Fabric) -> String {
    let figures = fabric.gpus().first().map(|&gpu| &fabric.node(gpu).figures);
    match figures {
        Some(Figures::Gpu(figures)) => match (&figures.model, figures.compute_capability) {
            (Some(model), _) => model.clone(),
            (None, Some(capability)) => format!("GPUs of compute capability {}.{}", capability / 10, capability % 10),
            (None, None) => "GPUs of an unknown model".to_owned(),
        },
        _ => "devices that are no GPUs".to_owned(),
    }
}

/// Returns the accuracy statements for a study's jobs on its candidates, each a sentence without its period. Candidates
/// with their own efficiency parameters get none.
pub(super) fn accuracy_statements(study: &Study, fabrics: &[Fabric]) -> Vec<String> {
    let statement = |candidate: &Candidate, fabric: &Fabric, job: &Job| match Work::new(job) {
        Some(_) if candidate.efficiency != EfficiencyOverrides::default() => None,
        Some(work) => Some(Accuracy::new(work, fabric).map_or_else(
            || format!("{} on {}: no published figure, with any software", work.name(), gpu_model(fabric)),
            |accuracy| accuracy.statement(&gpu_model(fabric)),
        )),
        None => computes(job).then(|| "kernels of a trace take what was recorded, whatever the GPU".to_owned()),
    };
    let statements = study.candidates.iter().zip(fabrics).enumerate().flat_map(|(number, (candidate, fabric))| {
        let jobs = study.jobs_on(number).filter_map(move |(_, job)| statement(candidate, fabric, job));
        jobs.map(|sentence| (sentence, candidate.name.as_str()))
    });
    let append_names = |(sentence, mut names): (String, Vec<&str>)| {
        // (Several jobs of a candidate yield its name more than once.)
        names.dedup();
        format!("{sentence}: {}", names.join(", "))
    };
    group_by_statement(statements).into_iter().map(append_names).collect()
}

/// Returns true for a trace with kernel time.
fn computes(job: &Job) -> bool {
    match job {
        Job::Trace(job) => job.trace.events.iter().any(|event| matches!(event.kind, EventKind::Compute { .. })),
        Job::Training(_) | Job::Inference(_) => false,
    }
}
