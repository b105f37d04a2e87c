//! Inference jobs: a model serves requests with vLLM's continuous batching.
//!
//! There are four kinds of load: a fixed concurrency, where each finished request is replaced; as many concurrent
//! requests as memory and limits allow; requests that arrive at a mean rate; or a batch of requests that are all present
//! at the start. As many run as the memory holds. Each request has a prompt, part of which may be in the prefix cache, and generates
//! its output token by token. Replicas (the data-parallel ranks) have equal shares of the requests.

use std::ops::Deref;

use fabricast_topologies::Picos;
use serde::Deserialize;

use super::cache::max_concurrent_requests;
use super::disaggregation::{Disaggregation, PrefillPool};
use super::open_loop::{OpenLoop, RequestVariation};
use super::served_adapters::ServedAdapters;
use super::speculation::Speculation;
use super::{
    CollectiveCandidates, Dispatch, JobSpans, Layout, MemoryLimits, Model, Parallel, Placement, Precision, Tier,
};

/// Inference job: a model, its load, and its serving configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Name of the job.
    pub name: String,
    /// Model; its `seq` is the largest sum of prompt and output tokens.
    pub model: Model,
    /// Precision of GEMMs and weights; activations have at least 16 bits.
    pub precision: Precision,
    /// Mean number of prompt tokens of a request.
    pub prompt_tokens: u64,
    /// Mean number of output tokens of a request, including the first.
    pub output_tokens: u64,
    /// Arrival pattern and number of requests.
    pub arrivals: Arrivals,
    /// Gaps and lengths of requests in an open loop.
    pub variation: RequestVariation,
    /// Lengths of requests under a fixed concurrency.
    pub lengths: Lengths,
    /// Tokens that steps with prefill process.
    pub batching: Batching,
    /// Time at which the host plans a step.
    pub scheduling: StepScheduling,
    /// Decode steps per decision of the scheduler in an open loop: requests start and end only between groups of so many
    /// steps (vLLM 0.5.4 to 0.8, `--num-scheduler-steps`).
    pub scheduler_steps: u64,
    /// Speculative decoding; `None` for one token per step.
    pub speculation: Option<Speculation>,
    /// Adapters that requests use; `None` if all use the weights of the model.
    pub adapters: Option<Box<ServedAdapters>>,
    /// Part of a request that the machine processes.
    pub disaggregation: Disaggregation,
    /// GPUs for prefill only; `None` if all GPUs process the same part of requests.
    pub prefill_pool: Option<PrefillPool>,
    /// Host time of the software.
    pub host: HostTimes,
    /// Additional time of a layer with quantized experts on AMD's GPUs. Its cause is not known.
    pub amd_expert_overhead: Picos,
    /// Kernels of all-reduces among tensor-parallel ranks.
    pub all_reduce: TensorAllReduce,
    /// Largest number of tokens in a step of a replica: vLLM's `max_num_batched_tokens`.
    pub max_batched_tokens: u64,
    /// Share of a prompt that is in the prefix cache, 0 to 1.
    pub prefix_hit: f64,
    /// Number of first requests of a benchmark whose prompts are in the prefix cache, since an earlier run with the same
    /// seed had them.
    pub cached_requests: u32,
    /// Precision of the keys and values in the KV cache.
    pub kv_precision: KvPrecision,
    /// Memory tier of the KV cache.
    pub kv_tier: Tier,
    /// KV-cache bytes of a token in all layers, for a compressed cache that every tensor-parallel rank has in full.
    /// `None` derives them from the model's heads.
    pub kv_bytes_per_token: Option<u64>,
    /// Number of redundant copies of experts, so that `ep` divides the total: vLLM's `num_redundant_experts`.
    pub redundant_experts: u64,
    /// Share of a GPU's memory that may be filled, above 0 up to 1: vLLM's `gpu_memory_utilization`.
    pub memory_share: f64,
    /// Parallel degrees, fixed or to be searched.
    pub parallel: Parallel,
    /// Placement of ranks on GPUs.
    pub placement: Placement,
    /// Candidate strategies for the job's collectives.
    pub collectives: CollectiveCandidates,
    /// Load of the rank with the most loaded experts, divided by the mean; at least 1. [`Layout::expert_imbalance`]
    /// limits it.
    pub skew: f64,
    /// Dispatch and combine of experts' tokens.
    pub dispatch: Dispatch,
    /// SLO limits on TTFT and TPOT.
    pub limits: Limits,
    /// Weight of the job among several jobs, above 0.
    pub weight: f64,
    /// Source locations of the job's parts.
    pub spans: JobSpans,
}

impl Serving {
    /// Default of `max_num_batched_tokens` in vLLM's server on GPUs with 70 GiB or more, in tokens
    /// (`vllm/engine/arg_utils.py`).
    pub const MAX_BATCHED_TOKENS: u64 = 8192;
    /// Default of vLLM's `gpu_memory_utilization` (`vllm/config/cache.py`).
    pub const MEMORY_SHARE: f64 = 0.9;
    /// Default of vLLM's `max_num_seqs` on GPUs with 70 GiB or more, except the A100 (`vllm/engine/arg_utils.py`).
    pub const MAX_NUM_SEQS: u64 = 1024;

    /// Returns the job with its number of concurrent requests, at least one: as many as memory, `max_num_seqs`
    /// and resident adapters permit. If the concurrency is fixed, the remaining requests wait ([`LoadedServing::waiting_requests`]).
    #[must_use]
    pub fn with_concurrency(&self, layout: &Layout, memories: Option<MemoryLimits>) -> LoadedServing<'_> {
        let limit_requests = |requests: u64, max_num_seqs: u64| {
            let fitting = memories.map_or(u64::MAX, |memories| max_concurrent_requests(self, layout, memories));
            // A step has room for the proposed tokens of the requests that decode.
            let in_step = (self.max_batched_tokens / (1 + self.draft_tokens())).max(1);
            let per_replica = if self.speculation.is_some() { max_num_seqs.min(in_step) } else { max_num_seqs };
            let replicas = u64::from(layout.degrees.data).max(1);
            let admitted = match (&self.adapters, requests) {
                (None, _) => u64::MAX,
                // As many clients as run, so that no further request waits for its adapter.
                (Some(served), u64::MAX) => served.max_resident_requests(),
                (Some(served), requests) => served.running_requests(requests.div_ceil(replicas)),
            };
            let per_replica = per_replica.min(admitted);
            requests.min(per_replica.saturating_mul(replicas)).min(fitting).max(1)
        };
        let concurrent_requests = match self.arrivals {
            Arrivals::FixedConcurrency { concurrency, max_num_seqs, .. } => {
                limit_requests(concurrency, max_num_seqs.unwrap_or(u64::MAX))
            }
            Arrivals::AutoConcurrency { max_num_seqs } => limit_requests(u64::MAX, max_num_seqs),
            Arrivals::Batch { requests, max_num_seqs } => limit_requests(requests, max_num_seqs),
            Arrivals::OpenLoop(OpenLoop { max_num_seqs, .. }) => limit_requests(u64::MAX, max_num_seqs),
        };
        LoadedServing { job: self, concurrent_requests }
    }

    /// Returns the job with clients that never stop sending requests, if it is a benchmark of a number of clients.
    #[must_use]
    pub fn without_end(&self) -> Self {
        let arrivals = match self.arrivals {
            Arrivals::FixedConcurrency { concurrency, max_num_seqs, .. } => {
                Arrivals::FixedConcurrency { concurrency, max_num_seqs, requests: None }
            }
            other => other,
        };
        Self { arrivals, ..self.clone() }
    }

    /// Number of prompt tokens to compute: at least the last, which yields the first output token (as in vLLM).
    #[must_use]
    pub fn new_tokens(&self) -> u64 {
        let cached = (self.prompt_tokens as f64 * self.prefix_hit).floor() as u64;
        (self.prompt_tokens - cached.min(self.prompt_tokens)).max(1)
    }

    /// Number of output tokens of a request that the machine computes.
    #[must_use]
    pub fn computed_output_tokens(&self) -> u64 {
        match self.disaggregation {
            Disaggregation::None | Disaggregation::Prefill => self.output_tokens,
            Disaggregation::Decode => self.output_tokens.saturating_sub(1),
        }
    }

    /// Mean number of tokens that a decode step yields for a request.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        self.speculation.map_or(1.0, |speculation| speculation.tokens_per_step)
    }

    /// Number of proposed tokens that a decode step verifies for a request.
    #[must_use]
    pub fn draft_tokens(&self) -> u64 {
        self.speculation.map_or(0, |speculation| speculation.draft_tokens)
    }

    /// Number of tokens of a request in the KV cache when the request ends.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.output_tokens
    }

    /// Number of experts of a layer, including redundant copies.
    #[must_use]
    pub fn expert_slots(&self) -> u64 {
        self.model.experts + self.redundant_experts
    }
}

/// Arrival pattern of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Fixed concurrency: each finished request is replaced.
    FixedConcurrency {
        /// Number of concurrent requests summed over all replicas.
        concurrency: u64,
        /// Largest number of running requests per replica, if the job or its software states it.
        max_num_seqs: Option<u64>,
        /// Number of requests of a benchmark, which starts with a request of each client on an idle machine and ends with
        /// the last request. `None`: the requests never end, and the machine is in steady state.
        requests: Option<u64>,
    },
    /// Variant of [`Self::FixedConcurrency`] with as many concurrent requests as memory and SLO limits allow.
    AutoConcurrency {
        /// Largest number of concurrent requests per replica: vLLM's `max_num_seqs`.
        max_num_seqs: u64,
    },
    /// Open loop: requests arrive at a mean rate. The number of concurrent requests is the largest that may run.
    OpenLoop(OpenLoop),
    /// Batch: all requests are present at the start and have equal length. Concurrent requests start together, and so
    /// do their successors.
    Batch {
        /// Number of requests of the batch.
        requests: u64,
        /// Largest number of concurrent requests per replica: vLLM's `max_num_seqs`.
        max_num_seqs: u64,
    },
}

impl Arrivals {
    /// Returns true for a benchmark of clients, which is simulated from its start to its end.
    #[must_use]
    pub fn is_benchmark(self) -> bool {
        matches!(self, Self::FixedConcurrency { requests: Some(_), .. })
    }
}

/// Tokens that steps with prefill process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// One token of each request that decodes, and chunks of prompts in the rest (vLLM from 0.8 on,
    /// `vllm/v1/core/sched/scheduler.py`; TensorRT-LLM's in-flight batching).
    #[default]
    Mixed,
    /// Prompts alone, which have precedence over decode: others wait for the end of the step (SGLang without
    /// `--enable-mixed-chunk`, `python/sglang/srt/managers/scheduler.py`, `get_next_batch_to_run`; vLLM before 0.8,
    /// `vllm/core/scheduler.py`, `_schedule_default`).
    PrefillFirst,
}

/// Time at which the host plans a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepScheduling {
    /// When the results of the step before are known.
    #[default]
    Sequential,
    /// While the step before runs, when the results of the one before that are known (SGLang from 0.4 on,
    /// `python/sglang/srt/managers/scheduler.py`, `event_loop_overlap`): a new request waits for one step more, and the
    /// launch of its prompt overlaps with that step.
    Overlapped,
    /// Variant of [`Self::Overlapped`] in which the launch of a step with prefill waits for the results of the step before,
    /// because its attention kernels are planned on the host with data from the GPU (FlashInfer, `flashinfer/prefill.py`,
    /// `plan`, the default of SGLang 0.4).
    OverlappedDecode,
}

impl StepScheduling {
    /// Returns true if a step is planned while the one before runs.
    #[must_use]
    pub fn is_overlapped(self) -> bool {
        self != Self::Sequential
    }
}

/// Lengths of the requests of a fixed concurrency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lengths {
    /// Prompts and outputs vary, so that requests start at different times.
    #[default]
    Varied,
    /// All are equal, as in benchmarks of fixed lengths: requests that start together end together.
    Equal,
}

/// Kernels of all-reduces among the tensor-parallel ranks of an NVLink domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorAllReduce {
    /// NCCL or RCCL.
    #[default]
    Library,
    /// Kernels of the serving software for small messages, on NVIDIA's GPUs.
    Custom,
}

/// CUDA graphs of the parts of a layer between its attention kernels, which small steps with prefill use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiecewiseGraphs {
    /// Largest number of tokens of a step for which there are graphs.
    pub max_tokens: u64,
    /// Time to launch a layer: a graph, and the kernels of attention.
    pub layer: Picos,
}

impl HostTimes {
    /// Returns the times on AMD's GPUs.
    #[must_use]
    pub fn on_amd(self) -> Self {
        let is_equal = self.amd_prefill_layer == Picos::ZERO;
        Self { prefill_layer: if is_equal { self.prefill_layer } else { self.amd_prefill_layer }, ..self }
    }

    /// Returns the time to launch a layer in a step with prefill that has so many tokens.
    #[must_use]
    pub fn prefill_layer(&self, tokens: f64) -> Picos {
        let graphs = self.piecewise_graphs.filter(|graphs| tokens <= graphs.max_tokens as f64);
        graphs.map_or(self.prefill_layer, |graphs| graphs.layer.min(self.prefill_layer))
    }
}

/// Host time of serving software that CUDA graphs and overlap do not hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// Time of a request outside of steps: reception, tokenization, scheduling, delivery of the first token.
    pub request: Picos,
    /// Time to launch the kernels of a layer in a step with prefill, which is not one CUDA graph.
    pub prefill_layer: Picos,
    /// Time to launch the kernels of such a layer on AMD's GPUs; 0 if it does not differ.
    pub amd_prefill_layer: Picos,
    /// Time to launch a layer in pieces, in small steps with prefill; `None` if the software has no such graphs.
    pub piecewise_graphs: Option<PiecewiseGraphs>,
    /// Time between steps in which the GPUs wait.
    pub step: Picos,
    /// Time for each request of a step: scheduling, inputs, results. It overlaps with the GPU's work on the previous step
    /// unless there are pipeline stages.
    pub step_request: Picos,
}

/// Inference job with its number of concurrent requests.
#[derive(Clone, Copy, Debug)]
pub struct LoadedServing<'a> {
    /// Job without its number of concurrent requests.
    pub job: &'a Serving,
    /// Number of concurrent requests summed over all replicas.
    pub concurrent_requests: u64,
}

impl LoadedServing<'_> {
    /// Number of requests of a fixed concurrency that wait because the memory does not hold their keys and values,
    /// or their adapters are not resident.
    #[must_use]
    pub fn waiting_requests(&self) -> u64 {
        match self.job.arrivals {
            Arrivals::FixedConcurrency { concurrency, .. } => concurrency.saturating_sub(self.concurrent_requests),
            Arrivals::AutoConcurrency { .. } | Arrivals::Batch { .. } | Arrivals::OpenLoop(_) => 0,
        }
    }
}

impl Deref for LoadedServing<'_> {
    type Target = Serving;

    fn deref(&self) -> &Serving {
        self.job
    }
}

/// Precision of the keys and values in the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPrecision {
    /// 32-bit floating point.
    Fp32,
    /// 16-bit floating point (bfloat16).
    #[default]
    Bf16,
    /// 16-bit floating point (IEEE half precision).
    Fp16,
    /// 8-bit floating point.
    Fp8,
}

impl KvPrecision {
    /// Returns the bytes of an element of a key or value.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// SLO limits of a request; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Largest time to first token.
    pub ttft: Option<Picos>,
    /// Largest time per output token after the first.
    pub tpot: Option<Picos>,
    /// Statistic over the requests that the limits apply to.
    pub statistic: LatencyStatistic,
}

/// Statistic of a latency over the requests of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyStatistic {
    /// Mean.
    #[default]
    Mean,
    /// Median.
    P50,
    /// 90th percentile.
    P90,
    /// 99th percentile.
    P99,
}
