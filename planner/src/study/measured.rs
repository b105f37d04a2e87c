//! Steps that were measured on a candidate of a study, and what is predicted of them: how far the curve of kernels is to be
//! trusted, and what `calibrate` fits it to.

use fabricast_topologies::{Picos, Place};

use super::answer::ResultRow;
use crate::job::{Arrivals, Job, Training};
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
    /// Those over the GPUs.
    PerGpu,
    /// Sequences trained on, or requests answered, in a second, on all GPUs together.
    Samples,
    /// Operations of the model in a second over the GPUs, 1e12: those of [`Model::step_flops`](crate::job::Model::step_flops), which
    /// counts scores whole and nothing twice that is computed twice (Megatron-LM's; PaLM's MFU, arXiv 2204.02311, appendix B, times the
    /// peak).
    Tflops,
    /// Those with half of the scores, as [`Model::causal_step_flops`](crate::job::Model::causal_step_flops) counts them.
    CausalTflops,
}

impl Figure {
    /// All, as a study's keys are told.
    pub const ALL: [Self; 10] = [
        Self::Step,
        Self::PromptStep,
        Self::AnswerStep,
        Self::FirstToken,
        Self::PerToken,
        Self::Throughput,
        Self::PerGpu,
        Self::Samples,
        Self::Tflops,
        Self::CausalTflops,
    ];

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
            Self::PerGpu => "tokens_per_s_per_gpu",
            Self::Samples => "samples_per_s",
            Self::Tflops => "tflops_per_gpu",
            Self::CausalTflops => "causal_tflops_per_gpu",
        }
    }

    /// That of a key.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.key() == key)
    }

    /// Whether more of it is less time.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Throughput | Self::PerGpu | Self::Samples | Self::Tflops | Self::CausalTflops)
    }

    /// The greatest value that is read: a day, or one each nanosecond.
    pub(super) fn most(self) -> f64 {
        if self.is_rate() { 1e9 } else { 86_400.0 }
    }

    /// The time that a value as it is written stands for: of a rate, from one to the next.
    #[must_use]
    pub fn time(self, value: f64) -> Picos {
        let seconds = if self.is_rate() { 1.0 / value } else { value };
        Picos((seconds * 1e12).round() as u64)
    }

    /// Whether two tell the same time of a job of this kind: all of a step of training, and all rates of answers.
    #[must_use]
    pub fn tells_what(self, other: Self, job: &Job) -> bool {
        self == other || matches!(job, Job::Training(_)) || (self.is_rate() && other.is_rate())
    }

    /// Whether jobs of this kind have it.
    #[must_use]
    pub fn is_of(self, job: &Job) -> bool {
        match job {
            Job::Training(_) => self == Self::Step || self.is_rate(),
            Job::Inference(job) => match self {
                Self::Step | Self::Tflops | Self::CausalTflops => false,
                Self::FirstToken => matches!(job.arrivals, Arrivals::OneByOne { .. }),
                _ => true,
            },
            // A trace says itself what its kernels took.
            Job::Trace(_) => false,
        }
    }

    /// That of a job's run, as it is written; `None` where it has none such (a step without prompts, where all carry some).
    #[must_use]
    pub fn of_row(self, job: &Job, row: &ResultRow) -> Option<f64> {
        match self {
            Self::Step => Some(row.step_time_s),
            Self::PromptStep => row.prompt_step_s,
            Self::AnswerStep => row.answer_step_s,
            Self::FirstToken => row.ttft_s,
            Self::PerToken => row.tpot_s,
            Self::Throughput => row.tokens_per_s,
            Self::PerGpu => Some(row.tokens_per_s? / row.ranks.max(1) as f64),
            Self::Samples => row.samples_per_s,
            Self::Tflops | Self::CausalTflops => {
                let Job::Training(job) = job else { return None };
                Some(self.operations(job)? / 1e12 / row.step_time_s / row.ranks.max(1) as f64)
            }
        }
    }

    /// That of a job on a machine, whose degrees it names; `None` as in [`Self::of_row`].
    ///
    /// # Errors
    /// [`TimeError`]: a job that cannot be on these ranks, or a call without a price.
    pub fn of_job(self, job: &Job, machine: &Machine<'_>) -> Result<Option<Picos>, TimeError> {
        let ranks = machine.ranks.len().max(1) as f64;
        let service = match job {
            Job::Training(job) => {
                let time = best_step(job, machine)?.0.time;
                let seconds = time.0.max(1) as f64 / 1e12;
                let each_second = |what: f64| Some(self.time(what / seconds));
                let tokens = (job.global_batch * job.model.seq) as f64;
                return Ok(match self {
                    Self::Step => Some(time),
                    Self::Throughput => each_second(tokens),
                    Self::PerGpu => each_second(tokens / ranks),
                    Self::Samples => each_second(job.global_batch as f64),
                    Self::Tflops | Self::CausalTflops => {
                        self.operations(job).and_then(|all| each_second(all / 1e12 / ranks))
                    }
                    Self::PromptStep | Self::AnswerStep | Self::FirstToken | Self::PerToken => None,
                });
            }
            Job::Inference(job) => (best_service(job, machine)?.2, job.output_tokens),
            Job::Trace(_) => return Ok(None),
        };
        let (service, output_tokens) = service;
        Ok(match self {
            Self::Step | Self::Tflops | Self::CausalTflops => None,
            Self::PromptStep => Some(service.with_prompts),
            Self::AnswerStep => service.without,
            Self::FirstToken => service.ttft,
            Self::PerToken => service.tpot,
            Self::Throughput => Some(self.time(service.tokens_per_s)),
            Self::PerGpu => Some(self.time(service.tokens_per_s / ranks)),
            Self::Samples => Some(self.time(service.tokens_per_s / output_tokens.max(1) as f64)),
        })
    }

    /// Operations of a step that it counts.
    fn operations(self, job: &Training) -> Option<f64> {
        match self {
            Self::Tflops => Some(job.model.step_flops(job.global_batch).0 as f64),
            Self::CausalTflops => Some(job.model.causal_step_flops(job.global_batch).0 as f64),
            _ => None,
        }
    }
}

/// A measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStep {
    /// The candidate that it ran on, by its place in the study.
    pub candidate: usize,
    /// The job, by its place.
    pub job: usize,
    /// The `[[measured]]` that it is of, by its place: one run, which may be told in several units.
    pub run: usize,
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
