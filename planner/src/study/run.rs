//! Every candidate runs every job.

use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_sim::profile::{Profile, ProfileError};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric};
use rayon::prelude::*;

use super::{Band, Candidate, Study};
use crate::job::{Footprint, Job, JobError};
use crate::plan::PlanError;
use crate::serve::{Service, best_service};
use crate::step::{Machine, Simulated, Step, TimeError, best_step};

/// A job on a candidate.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// Number of the candidate in the study.
    pub candidate: usize,
    /// Number of the job.
    pub job: usize,
    /// GPUs.
    pub ranks: usize,
    /// What a step takes.
    pub step: Step,
    /// What the fullest GPU holds.
    pub footprint: Footprint,
    /// What a GPU's memory lacks for it; `None` where it fits or the memory is not known.
    pub beyond: Option<Bytes>,
    /// What requests see of it, of an inference job.
    pub service: Option<Service>,
    /// Tokens in a second: those trained on, or those of answers.
    pub tokens_per_s: f64,
    /// What an hour costs; `None` without a price.
    pub cost_per_hour: Option<Band>,
    /// What a million tokens cost.
    pub cost_per_million_tokens: Option<Band>,
    /// kWh for a million tokens; `None` without a power.
    pub kwh_per_million_tokens: Option<f64>,
    /// Hours to train all tokens, where the job says how many.
    pub train_hours: Option<f64>,
}

/// Why there are no results.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StudyError {
    /// A job that cannot be on a candidate.
    #[error("{error} (candidate `{candidate}`)")]
    Job {
        /// The candidate.
        candidate: String,
        /// Why.
        error: Box<JobError>,
    },
    /// A call without a price.
    #[error("{job} on {candidate}: {error}")]
    Plan {
        /// The candidate.
        candidate: String,
        /// The job.
        job: String,
        /// Why.
        error: Box<PlanError>,
    },
    /// No profile for a candidate.
    #[error("{candidate}: {error}")]
    Profile {
        /// The candidate.
        candidate: String,
        /// Why.
        error: Box<ProfileError>,
    },
}

/// Runs all jobs on the fabrics of all candidates, which stand in the same order, on all threads of the current pool.
/// `done` counts.
///
/// # Errors
/// [`StudyError`]: the first in the order of the study.
pub fn run(study: &Study, fabrics: &[Fabric], done: Option<&AtomicUsize>) -> Result<Vec<JobResult>, StudyError> {
    let of_candidate = |(number, (candidate, fabric)): (usize, (&Candidate, &Fabric))| {
        let router = Router::new(fabric, RouteOptions::default());
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve: study.efficiency };
        let results: Vec<Result<JobResult, StudyError>> = study
            .jobs
            .par_iter()
            .enumerate()
            .with_max_len(1)
            .map(|(job_number, job)| {
                let found = found(job, &machine).map_err(|error| failed(candidate, job, error));
                if let Some(done) = done {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(result(study, (number, candidate), job_number, fabric.gpus().len(), found?))
            })
            .collect();
        results.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let all: Vec<Result<Vec<JobResult>, StudyError>> =
        study.candidates.par_iter().zip(fabrics).enumerate().with_max_len(1).map(of_candidate).collect();
    Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn failed(candidate: &Candidate, job: &Job, error: TimeError) -> StudyError {
    let (candidate, job) = (candidate.name.clone(), job.name().to_owned());
    match error {
        TimeError::Job(error) => StudyError::Job { candidate, error: error.into() },
        TimeError::Plan(error) => StudyError::Plan { candidate, job, error: error.into() },
    }
}

/// A run, before costs.
struct Found {
    step: Step,
    footprint: Footprint,
    beyond: Option<Bytes>,
    service: Option<Service>,
    tokens_per_s: f64,
    train_tokens: Option<u64>,
}

fn found(job: &Job, machine: &Machine<'_>) -> Result<Found, TimeError> {
    match job {
        Job::Training(job) => {
            let (step, footprint) = best_step(job, machine)?;
            let tokens = (job.global_batch * job.model.seq) as f64;
            Ok(Found {
                tokens_per_s: tokens / (step.time.0.max(1) as f64 / 1e12),
                beyond: machine.memory().and_then(|memory| footprint.beyond(memory)),
                train_tokens: job.train_tokens,
                service: None,
                step,
                footprint,
            })
        }
        Job::Inference(job) => {
            let (step, footprint, service) = best_service(job, machine)?;
            Ok(Found {
                tokens_per_s: service.tokens_per_s,
                beyond: service.room.as_ref().and_then(|room| room.beyond),
                train_tokens: None,
                service: Some(service),
                step,
                footprint,
            })
        }
    }
}

fn result(
    study: &Study,
    (candidate_number, candidate): (usize, &Candidate),
    job_number: usize,
    ranks: usize,
    found: Found,
) -> JobResult {
    let tokens_per_s = found.tokens_per_s;
    let hours_per_million = 1e6 / tokens_per_s / 3600.0;
    let cost_per_hour = candidate.hourly(ranks, &study.assumptions);
    JobResult {
        candidate: candidate_number,
        job: job_number,
        ranks,
        step: found.step,
        footprint: found.footprint,
        beyond: found.beyond,
        service: found.service,
        tokens_per_s,
        cost_per_hour,
        cost_per_million_tokens: cost_per_hour.map(|hour| hour.times(hours_per_million)),
        kwh_per_million_tokens: candidate.power_kw.map(|power| power * hours_per_million),
        train_hours: found.train_tokens.map(|all| all as f64 / tokens_per_s / 3600.0),
    }
}
