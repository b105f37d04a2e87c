//! Steps that were measured on a candidate of a study, and what is predicted of them: how far the curve of kernels is to be
//! trusted, and what `calibrate` fits it to.

use fabricast_topologies::{Picos, Place};

use super::answer::ResultRow;
use crate::job::{Arrivals, Job};
use crate::serve::best_service;
use crate::step::{Machine, TimeError, best_step};

/// What was measured of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    /// A step of training.
    Step,
    /// A step of inference that carries prompts.
    PromptStep,
    /// A step of inference that carries none.
    AnswerStep,
    /// From a request to its first token.
    FirstToken,
    /// From one token of a request to the next.
    PerToken,
    /// Tokens in a second, on all GPUs together: trained on, or of answers.
    Throughput,
}

impl Figure {
    /// All, as a study's keys are told.
    pub const ALL: [Self; 6] =
        [Self::Step, Self::PromptStep, Self::AnswerStep, Self::FirstToken, Self::PerToken, Self::Throughput];

    /// As it is written, with its unit.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Step => "step_s",
            Self::PromptStep => "prompt_step_s",
            Self::AnswerStep => "answer_step_s",
            Self::FirstToken => "ttft_s",
            Self::PerToken => "tpot_s",
            Self::Throughput => "tokens_per_s",
        }
    }

    /// The greatest value that is read: a day, or a token each nanosecond.
    pub(super) fn most(self) -> f64 {
        match self {
            Self::Throughput => 1e9,
            _ => 86_400.0,
        }
    }

    /// The time that a value as it is written stands for: of tokens a second, from one to the next.
    #[must_use]
    pub fn time(self, value: f64) -> Picos {
        let seconds = if self == Self::Throughput { 1.0 / value } else { value };
        Picos((seconds * 1e12).round() as u64)
    }

    /// Whether jobs of this kind have it.
    #[must_use]
    pub fn is_of(self, job: &Job) -> bool {
        match job {
            Job::Training(_) => matches!(self, Self::Step | Self::Throughput),
            Job::Inference(job) => match self {
                Self::Step => false,
                Self::FirstToken => matches!(job.arrivals, Arrivals::OneByOne { .. }),
                _ => true,
            },
            // A trace says itself what its kernels took.
            Job::Trace(_) => false,
        }
    }

    /// That of a run, as it is written; `None` where the job has none such (a step without prompts, where all carry some).
    #[must_use]
    pub fn of_row(self, row: &ResultRow) -> Option<f64> {
        match self {
            Self::Step => Some(row.step_time_s),
            Self::PromptStep => row.prompt_step_s,
            Self::AnswerStep => row.answer_step_s,
            Self::FirstToken => row.ttft_s,
            Self::PerToken => row.tpot_s,
            Self::Throughput => row.tokens_per_s,
        }
    }

    /// That of a job on a machine, whose degrees it names; `None` as in [`Self::of_row`].
    ///
    /// # Errors
    /// [`TimeError`]: a job that cannot be on these ranks, or a call without a price.
    pub fn of_job(self, job: &Job, machine: &Machine<'_>) -> Result<Option<Picos>, TimeError> {
        let service = match job {
            Job::Training(job) => {
                let time = best_step(job, machine)?.0.time;
                return Ok(match self {
                    Self::Step => Some(time),
                    Self::Throughput => {
                        let tokens = (job.global_batch * job.model.seq) as f64;
                        Some(self.time(tokens / (time.0.max(1) as f64 / 1e12)))
                    }
                    _ => None,
                });
            }
            Job::Inference(job) => best_service(job, machine)?.2,
            Job::Trace(_) => return Ok(None),
        };
        Ok(match self {
            Self::Step => None,
            Self::PromptStep => Some(service.with_prompts),
            Self::AnswerStep => service.without,
            Self::FirstToken => service.ttft,
            Self::PerToken => service.tpot,
            Self::Throughput => Some(self.time(service.tokens_per_s)),
        })
    }
}

/// A measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStep {
    /// The candidate that it ran on, by its place in the study.
    pub candidate: usize,
    /// The job, by its place.
    pub job: usize,
    /// What was measured of it.
    pub figure: Figure,
    /// Its value as it is written.
    pub value: f64,
    /// Where it stands.
    pub place: Place,
}

impl MeasuredStep {
    /// The time that its value stands for.
    #[must_use]
    pub fn time(&self) -> Picos {
        self.figure.time(self.value)
    }
}
