//! Measured steps on candidates of a study. They are compared with predictions, and `calibrate` fits the efficiency
//! curve to them.

use fabricast_topologies::variants::variants;
use fabricast_topologies::{Picos, SourceLocation};
use strum::{EnumCount, VariantArray};

use super::prediction::Prediction;
use super::quantities::seconds;
use fabricast_perf::serve::{RequestLatencies, best_service};
use fabricast_perf::step::{Machine, TimeError, best_step};
use fabricast_workload::job::{Arrivals, Job, Training};

/// Quantity that was measured for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumCount, VariantArray)]
pub enum Figure {
    /// Time of a training step.
    Step,
    /// Time of an inference step with prefill.
    PrefillStep,
    /// Time of a decode-only inference step.
    DecodeStep,
    /// Time to first token (TTFT) of a request.
    Ttft,
    /// Median of the time to first token over the requests of an open loop.
    TtftP50,
    /// 99th percentile of the time to first token.
    TtftP99,
    /// Time per output token (TPOT) of a request.
    Tpot,
    /// Median of the time per output token over the requests of an open loop.
    TpotP50,
    /// 99th percentile of the time per output token.
    TpotP99,
    /// Mean time to the last token over the requests of an open loop.
    Latency,
    /// Time of the transfer of a prompt's keys and values from prefill to decode, alone.
    KvTransfer,
    /// Time to copy an adapter from host memory to the GPUs of a replica.
    AdapterSwap,
    /// Training or output tokens per second over all GPUs.
    Throughput,
    /// Training or output tokens per second per GPU.
    PerGpu,
    /// Training sequences or finished requests per second over all GPUs.
    Samples,
    /// Model Tflop/s per GPU, from [`Model::step_flops`](fabricast_workload::job::Model::step_flops), which counts full
    /// attention scores and no recomputation (Megatron-LM; PaLM's MFU times the peak, arXiv 2204.02311, appendix B).
    Tflops,
    /// Model Tflop/s per GPU with the causal half of the attention scores, from
    /// [`Model::causal_step_flops`](fabricast_workload::job::Model::causal_step_flops).
    CausalTflops,
}

impl Figure {
    /// All figures, in the order of the keys of `[[measured]]`.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the key of the figure in `[[measured]]`, with its unit.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Step => "step_s",
            Self::PrefillStep => "prompt_step_s",
            Self::DecodeStep => "answer_step_s",
            Self::Ttft => "ttft_s",
            Self::TtftP50 => "ttft_p50_s",
            Self::TtftP99 => "ttft_p99_s",
            Self::Tpot => "tpot_s",
            Self::TpotP50 => "tpot_p50_s",
            Self::TpotP99 => "tpot_p99_s",
            Self::Latency => "latency_s",
            Self::KvTransfer => "kv_transfer_s",
            Self::AdapterSwap => "adapter_swap_s",
            Self::Throughput => "tokens_per_s",
            Self::PerGpu => "tokens_per_s_per_gpu",
            Self::Samples => "samples_per_s",
            Self::Tflops => "tflops_per_gpu",
            Self::CausalTflops => "causal_tflops_per_gpu",
        }
    }

    /// Returns the figure with this key; `None` if there is none.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.key() == key)
    }

    /// Returns true if a larger value of the figure means a shorter time.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Throughput | Self::PerGpu | Self::Samples | Self::Tflops | Self::CausalTflops)
    }

    /// Returns the largest valid value: one day in seconds for times, 1e9 per second for rates.
    pub(super) fn max_value(self) -> f64 {
        if self.is_rate() { 1e9 } else { 86_400.0 }
    }

    /// Returns the time that corresponds to a value of the figure; for a rate, the time per unit of work.
    #[must_use]
    pub fn time(self, value: f64) -> Picos {
        let seconds = if self.is_rate() { 1.0 / value } else { value };
        Picos((seconds * 1e12).round() as u64)
    }

    /// Returns true if two figures of a job measure the same time. This holds for all figures of a training step, and
    /// for all rates of inference.
    #[must_use]
    pub fn measures_same_as(self, other: Self, job: &Job) -> bool {
        self == other || matches!(job, Job::Training(_)) || (self.is_rate() && other.is_rate())
    }

    /// Returns true if the figure exists for jobs of this kind.
    #[must_use]
    pub fn applies_to(self, job: &Job) -> bool {
        match job {
            Job::Training(_) => self == Self::Step || self.is_rate(),
            Job::Inference(job) => match self {
                Self::Step | Self::Tflops | Self::CausalTflops => false,
                Self::KvTransfer => job.prefill_pool.is_some(),
                Self::AdapterSwap => job.adapters.is_some(),
                Self::Ttft => matches!(job.arrivals, Arrivals::FixedConcurrency { .. } | Arrivals::OpenLoop(_)),
                Self::TtftP50 | Self::TtftP99 | Self::TpotP50 | Self::TpotP99 | Self::Latency => {
                    job.arrivals.is_benchmark() || matches!(job.arrivals, Arrivals::OpenLoop(_))
                }
                _ => true,
            },
            // A trace contains the times of its kernels, so there is nothing to compare.
            Job::Trace(_) => false,
        }
    }

    /// Returns the figure of a job's prediction; `None` if the prediction does not have it, such as decode-only steps if all
    /// steps carry prefill.
    #[must_use]
    pub fn predicted(self, job: &Job, prediction: &Prediction) -> Option<f64> {
        let ranks = prediction.ranks.max(1) as f64;
        let service = prediction.service();
        match self {
            Self::Step => Some(seconds(prediction.step.time)),
            Self::PrefillStep => service?.prefill_step.map(seconds),
            Self::DecodeStep => service?.decode_step.map(seconds),
            Self::Ttft => service?.ttft.map(seconds),
            Self::Tpot => service?.tpot.map(seconds),
            Self::TtftP50 | Self::TtftP99 | Self::TpotP50 | Self::TpotP99 | Self::Latency => {
                self.statistic(service?.latencies.as_deref()).map(seconds)
            }
            Self::KvTransfer => service?.disaggregation.as_deref().map(|pools| seconds(pools.transfer.time)),
            Self::AdapterSwap => service?.adapter_swap.map(seconds),
            Self::Throughput => prediction.tokens_per_s,
            Self::PerGpu => Some(prediction.tokens_per_s? / ranks),
            Self::Samples => prediction.samples_per_s,
            Self::Tflops | Self::CausalTflops => {
                let Job::Training(job) = job else { return None };
                Some(self.operations(job)? / 1e12 / seconds(prediction.step.time) / ranks)
            }
        }
    }

    /// Predicts the figure of a job on a machine, as a time that is comparable with [`Self::time`]; `None` as in
    /// [`Self::predicted`].
    ///
    /// # Errors
    /// [`TimeError`]: a job that does not fit these ranks, or a call without a predicted time.
    pub fn predict(self, job: &Job, machine: &Machine<'_>) -> Result<Option<Picos>, TimeError> {
        let ranks = machine.ranks.len().max(1) as f64;
        let service = match job {
            Job::Training(job) => {
                let time = best_step(job, machine)?.0.time;
                let seconds = time.0.max(1) as f64 / 1e12;
                let rate = |amount: f64| Some(self.time(amount / seconds));
                let tokens = (job.global_batch * job.model.seq) as f64;
                return Ok(match self {
                    Self::Step => Some(time),
                    Self::Throughput => rate(tokens),
                    Self::PerGpu => rate(tokens / ranks),
                    Self::Samples => rate(job.global_batch as f64),
                    Self::Tflops | Self::CausalTflops => {
                        self.operations(job).and_then(|operations| rate(operations / 1e12 / ranks))
                    }
                    Self::PrefillStep
                    | Self::DecodeStep
                    | Self::Ttft
                    | Self::TtftP50
                    | Self::TtftP99
                    | Self::Tpot
                    | Self::TpotP50
                    | Self::TpotP99
                    | Self::Latency
                    | Self::KvTransfer
                    | Self::AdapterSwap => None,
                });
            }
            Job::Inference(job) => (best_service(job, machine)?.service, job.output_tokens),
            Job::Trace(_) => return Ok(None),
        };
        let (service, output_tokens) = service;
        Ok(match self {
            Self::Step | Self::Tflops | Self::CausalTflops => None,
            Self::PrefillStep => Some(service.with_prefill),
            Self::DecodeStep => service.without_prefill,
            Self::Ttft => service.ttft,
            Self::Tpot => service.tpot,
            Self::TtftP50 | Self::TtftP99 | Self::TpotP50 | Self::TpotP99 | Self::Latency => {
                self.statistic(service.latencies.as_ref())
            }
            Self::KvTransfer => service.disaggregation.map(|pools| pools.transfer.time),
            Self::AdapterSwap => service.adapter_swap,
            Self::Throughput => Some(self.time(service.tokens_per_s)),
            Self::PerGpu => Some(self.time(service.tokens_per_s / ranks)),
            Self::Samples => Some(self.time(service.tokens_per_s / output_tokens.max(1) as f64)),
        })
    }

    /// Returns the statistic of latencies that the figure is; `None` for other figures.
    fn statistic(self, latencies: Option<&RequestLatencies>) -> Option<Picos> {
        let RequestLatencies { ttft, tpot, latency } = latencies?;
        match self {
            Self::TtftP50 => ttft.map(|summary| summary.p50),
            Self::TtftP99 => ttft.map(|summary| summary.p99),
            Self::TpotP50 => tpot.map(|summary| summary.p50),
            Self::TpotP99 => tpot.map(|summary| summary.p99),
            Self::Latency => Some(latency.mean),
            _ => None,
        }
    }

    /// Returns the number of model operations of a step that the figure counts; `None` for figures other than Tflop/s.
    fn operations(self, job: &Training) -> Option<f64> {
        match self {
            Self::Tflops => Some(job.model.step_flops(job.global_batch).0 as f64),
            Self::CausalTflops => Some(job.model.causal_step_flops(job.global_batch).0 as f64),
            _ => None,
        }
    }
}

/// Measured figure of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStep {
    /// Index of the candidate in the study.
    pub candidate: usize,
    /// Index of the job in the study.
    pub job: usize,
    /// Index of the `[[measured]]` table, which describes one run and may have several figures.
    pub run: usize,
    /// Figure that was measured.
    pub figure: Figure,
    /// Measured value in the unit of the figure's key.
    pub value: f64,
    /// Source location of the value.
    pub location: SourceLocation,
}

impl MeasuredStep {
    /// Returns the time that the value represents.
    #[must_use]
    pub fn time(&self) -> Picos {
        self.figure.time(self.value)
    }
}
