//! Result of a job on a candidate in `results.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CallRow, DisaggregationRow, ExchangeRow, GoodputRow, JobKind, LatenciesRow, LoadRow, ParallelRow, TimelineRow,
};
use crate::quantities::seconds_per_unit;

/// Result of a job on a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResultRow {
    /// Name of the candidate.
    pub candidate: String,
    /// Name of the job.
    pub job: String,
    /// Kind of work.
    pub kind: JobKind,
    /// Number of ranks, which is the number of GPUs in use.
    pub ranks: u64,
    /// Parallel layout of the job; absent for traces.
    pub parallel: Option<ParallelRow>,
    /// Number of forward passes per rank and step.
    pub micro_batches: u64,
    /// Step time in seconds. For inference the mean over steps, for a trace its completion time.
    pub step_time_s: f64,
    /// Lower end of the step time's interval in seconds, with the fastest software if the job does not state its
    /// software; absent for traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_low_s: Option<f64>,
    /// Upper end of the step time's interval in seconds; absent for traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_high_s: Option<f64>,
    /// Number of training or output tokens per second over all GPUs; absent for traces.
    pub tokens_per_s: Option<f64>,
    /// Number of sequences or requests per second; absent for traces.
    pub samples_per_s: Option<f64>,
    /// Time to first token in seconds; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_s: Option<f64>,
    /// Time per output token in seconds; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_s: Option<f64>,
    /// Distributions of latencies over the requests; only if they arrive at a rate that the machine serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<LatenciesRow>,
    /// GPUs for prefill and for decode; only for jobs that separate them. `parallel` has the degrees of decode then, and
    /// step times are those of decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disaggregation: Option<DisaggregationRow>,
    /// Time of a step with prefill in seconds; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "prompt_step_s")]
    pub prefill_step_s: Option<f64>,
    /// Time of a decode-only step in seconds; absent if all steps carry prefill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "answer_step_s")]
    pub decode_step_s: Option<f64>,
    /// Time to copy an adapter from host memory to the GPUs of a replica in seconds; absent without adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_swap_s: Option<f64>,
    /// SLO violations, each with the limit, the predicted value and the requested value; inference only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "late")]
    pub slo_violations: Vec<String>,
    /// Number of concurrent requests over all replicas; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "in_flight")]
    pub concurrent_requests: Option<u64>,
    /// Number of concurrent requests that fit in memory, over all replicas; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_that_fit: Option<u64>,
    /// Changes of the job that make it fit in memory, each sufficient by itself; inference only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_fit: Vec<String>,
    /// Exposed communication as a fraction of the step.
    pub exposed_comm_share: f64,
    /// Sum of the times of all calls ÷ time of the step. Concurrent calls count separately, so that the ratio can exceed 1.
    pub total_comm_share: f64,
    /// Part of the calls' time that is hidden behind computation and behind other calls, as a fraction; absent without
    /// calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_comm_share: Option<f64>,
    /// Speed-up over one GPU with unlimited memory, divided by the number of GPUs; absent for traces.
    pub efficiency: Option<f64>,
    /// Speed-up over one host, divided by the number of hosts; absent if the job cannot run on one host.
    #[serde(default)]
    pub efficiency_node: Option<f64>,
    /// Parts of the step time in seconds, by activity. They add up to the step time.
    pub step_s: BTreeMap<String, f64>,
    /// Memory of the most loaded GPU in GB (1e9 bytes); absent for traces.
    pub memory_gb: Option<f64>,
    /// Memory of the most loaded GPU by use; absent for traces.
    pub memory: Option<MemoryRow>,
    /// True if the job fits in memory, as far as the memory is known, and meets its limits.
    pub fits: bool,
    /// Memory needed in excess of the GPU's memory, in GB; absent if the job fits.
    #[serde(alias = "memory_beyond_gb")]
    pub memory_excess_gb: Option<f64>,
    /// Memory used on the attached CPU per GPU, in GB; absent if no data is offloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_gb: Option<f64>,
    /// Memory needed in excess of the GPU's share of the CPU memory, in GB; absent if it fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "host_memory_beyond_gb")]
    pub host_memory_excess_gb: Option<f64>,
    /// Cost per hour, with the price in the middle of its band. All costs are absent if the candidate has no price.
    pub cost_per_hour: Option<f64>,
    /// Lower end of the cost per hour.
    pub cost_per_hour_low: Option<f64>,
    /// Upper end of the cost per hour.
    pub cost_per_hour_high: Option<f64>,
    /// Cost per step, with the price in the middle of its band.
    pub cost_per_step: Option<f64>,
    /// Cost per million of the tokens that `tokens_per_s` counts.
    pub cost_per_million_tokens: Option<f64>,
    /// Lower end of the cost per million tokens.
    pub cost_per_million_tokens_low: Option<f64>,
    /// Upper end of the cost per million tokens.
    pub cost_per_million_tokens_high: Option<f64>,
    /// Energy in kWh per million tokens; absent if the candidate does not state its power.
    pub kwh_per_million_tokens: Option<f64>,
    /// Lower end of the energy in kWh per million tokens, if the power is a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kwh_per_million_tokens_low: Option<f64>,
    /// Upper end of the energy in kWh per million tokens, if the power is a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kwh_per_million_tokens_high: Option<f64>,
    /// Time to train all tokens in hours, if the job states their number.
    pub time_to_train_h: Option<f64>,
    /// Cost to train all tokens, if the job states their number.
    pub cost_to_train: Option<f64>,
    /// Share of the time that checkpoints and failures leave; only for training jobs of studies that state either. Costs,
    /// energy and time of tokens include the lost time; step times and tokens per second do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<GoodputRow>,
    /// Bottleneck of the step: the name of the largest part in `step_s`.
    #[serde(alias = "binds")]
    pub bottleneck: String,
    /// Assumptions behind the figures on this machine. Each is a sentence without the final period.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Timelines of steps. For inference, one of a step with prefill and one of a step without, if such steps exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "courses")]
    pub timelines: Vec<TimelineRow>,
    /// Calls of a step; for inference, of the mean step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallRow>,
    /// Exchanges of tokens with experts by kernels of dispatch libraries; for inference, of the mean step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<ExchangeRow>,
    /// Link utilization in the step, busiest class first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<LoadRow>,
}

impl ResultRow {
    /// Returns the number of seconds per million tokens, with the time of checkpoints and failures if the study states
    /// them; for a trace, its completion time in seconds.
    #[must_use]
    pub fn seconds_per_unit(&self) -> f64 {
        seconds_per_unit(self.tokens_per_s, self.step_time_s) / self.goodput.map_or(1.0, |goodput| goodput.share)
    }
}

/// Memory of a GPU by use, in GB (1e9 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// Memory of weights, in GB.
    pub weights_gb: f64,
    /// Memory of gradients, in GB.
    pub gradients_gb: f64,
    /// Memory of optimizer states, in GB.
    pub optimizer_gb: f64,
    /// Memory of activations, in GB.
    pub activations_gb: f64,
    /// Memory of the KV cache, in GB.
    #[serde(default)]
    pub kv_cache_gb: f64,
    /// Memory of the CUDA context and of libraries, in GB.
    #[serde(default)]
    pub runtime_gb: f64,
}
