//! Parser of `[[measured]]` tables: figures measured for a job on a candidate of the study.

use serde::Deserialize;
use toml::Spanned;

use super::Reader;
use crate::measured::{Figure, MeasuredStep};
use crate::{Candidate, JobAssignment};
use fabricast_workload::job::{Job, JobError, Parallel};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct MeasuredText {
    candidate: Spanned<String>,
    job: Spanned<String>,
    step_s: Option<Spanned<f64>>,
    prompt_step_s: Option<Spanned<f64>>,
    answer_step_s: Option<Spanned<f64>>,
    ttft_s: Option<Spanned<f64>>,
    ttft_p50_s: Option<Spanned<f64>>,
    ttft_p99_s: Option<Spanned<f64>>,
    tpot_s: Option<Spanned<f64>>,
    tpot_p50_s: Option<Spanned<f64>>,
    tpot_p99_s: Option<Spanned<f64>>,
    latency_s: Option<Spanned<f64>>,
    kv_transfer_s: Option<Spanned<f64>>,
    adapter_swap_s: Option<Spanned<f64>>,
    tokens_per_s: Option<Spanned<f64>>,
    tokens_per_s_per_gpu: Option<Spanned<f64>>,
    samples_per_s: Option<Spanned<f64>>,
    tflops_per_gpu: Option<Spanned<f64>>,
    causal_tflops_per_gpu: Option<Spanned<f64>>,
}

impl MeasuredText {
    fn figure(&self, figure: Figure) -> Option<&Spanned<f64>> {
        match figure {
            Figure::Step => self.step_s.as_ref(),
            Figure::PrefillStep => self.prompt_step_s.as_ref(),
            Figure::DecodeStep => self.answer_step_s.as_ref(),
            Figure::Ttft => self.ttft_s.as_ref(),
            Figure::TtftP50 => self.ttft_p50_s.as_ref(),
            Figure::TtftP99 => self.ttft_p99_s.as_ref(),
            Figure::Tpot => self.tpot_s.as_ref(),
            Figure::TpotP50 => self.tpot_p50_s.as_ref(),
            Figure::TpotP99 => self.tpot_p99_s.as_ref(),
            Figure::Latency => self.latency_s.as_ref(),
            Figure::KvTransfer => self.kv_transfer_s.as_ref(),
            Figure::AdapterSwap => self.adapter_swap_s.as_ref(),
            Figure::Throughput => self.tokens_per_s.as_ref(),
            Figure::PerGpu => self.tokens_per_s_per_gpu.as_ref(),
            Figure::Samples => self.samples_per_s.as_ref(),
            Figure::Tflops => self.tflops_per_gpu.as_ref(),
            Figure::CausalTflops => self.causal_tflops_per_gpu.as_ref(),
        }
    }
}

impl Reader<'_> {
    /// Reads the figures of a `[[measured]]` table as one measured step each. `run`: index of the table.
    ///
    /// # Errors
    /// [`JobError`] at an invalid key or value.
    pub(super) fn measured(
        self,
        run: usize,
        entry: &Spanned<MeasuredText>,
        candidates: &[Candidate],
        jobs: &[Job],
        pairs: &JobAssignment,
    ) -> Result<Vec<MeasuredStep>, JobError> {
        let text = entry.get_ref();
        let candidate =
            self.find_name("candidate", &text.candidate, candidates.iter().map(|candidate| candidate.name.as_str()))?;
        let number = self.find_name("job", &text.job, jobs.iter().map(Job::name))?;
        let Some(job) = jobs.get(number) else { return Ok(Vec::new()) };
        if !pairs.is_assigned(candidate, number) {
            let message = format!("candidate: `{}` names others in its `candidates`", job.name());
            return Err(self.error_at(text.candidate.span(), message));
        }
        let parallel = match job {
            Job::Training(job) => &job.parallel,
            Job::Inference(job) => &job.parallel,
            Job::Trace(_) => {
                let message = "job: a trace records the times of its kernels, which are not predicted";
                return Err(self.error_at(text.job.span(), message));
            }
        };
        if *parallel == Parallel::Auto {
            let message = format!(
                "`{}` was measured, and its parallel degrees are not given: expected those that ran",
                job.name()
            );
            return Err(JobError::at(&job.spans().parallel, message));
        }
        let mut steps = Vec::new();
        for figure in Figure::ALL {
            let Some(value) = text.figure(figure) else { continue };
            if !figure.applies_to(job) {
                let message = format!("{}: a job of {} has none", figure.key(), job.kind());
                return Err(self.error_at(value.span(), message));
            }
            let Some(positive) = self.positive(figure.key(), Some(value), figure.max_value())? else { continue };
            let location = self.origin.locate(value.span());
            steps.push(MeasuredStep { candidate, job: number, run, figure, value: positive, location });
        }
        if steps.is_empty() {
            let keys: Vec<&str> =
                Figure::ALL.into_iter().filter(|figure| figure.applies_to(job)).map(Figure::key).collect();
            return Err(self.error_at(entry.span(), format!("nothing measured: expected {}", keys.join(", "))));
        }
        Ok(steps)
    }
}
