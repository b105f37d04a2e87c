//! A job on a candidate as `results.json` tells it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CallRow, CourseRow, JobKind, LoadRow, ParallelRow};

/// A job on a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// Name of the candidate.
    pub candidate: String,
    /// Name of the job.
    pub job: String,
    /// What kind of work it is.
    pub kind: JobKind,
    /// GPUs at work.
    pub ranks: u64,
    /// How they divide it; absent for traces.
    pub parallel: Option<ParallelRow>,
    /// Forward passes of a rank in a step.
    pub micro_batches: u64,
    /// Seconds of a step; of the mean one for inference, of all of a trace.
    pub step_time_s: f64,
    /// Tokens trained on, or put out, in a second, on all GPUs together; absent for traces.
    pub tokens_per_s: Option<f64>,
    /// Sequences, or requests, in a second; absent for traces.
    pub samples_per_s: Option<f64>,
    /// Seconds to a request's first token; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_s: Option<f64>,
    /// Seconds from one token of a request to the next; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_s: Option<f64>,
    /// Seconds of a step that carries prompts; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_step_s: Option<f64>,
    /// Seconds of one that carries none; absent where all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_step_s: Option<f64>,
    /// Limits of the job that it breaks: which, what was found, what was asked for; inference only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<String>,
    /// Requests in flight, on all replicas together; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Requests in flight that fit the memory, on all replicas together; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_that_fit: Option<u64>,
    /// Changes of the job any one of which makes it fit, where it does not; inference only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_fit: Vec<String>,
    /// Communication that GPUs wait for, as a part of the step.
    pub exposed_comm_share: f64,
    /// All communication over the step; over 1 where it overlaps with itself.
    pub total_comm_share: f64,
    /// Speed-up over one GPU with memory enough for the same steps, divided by the GPUs; absent for traces.
    pub efficiency: Option<f64>,
    /// Speed-up over one host, divided by the hosts; absent where the job cannot run on one host at all, and of inference: a host
    /// by itself would have fewer requests in flight, and how many is the job's to say, not ours.
    #[serde(default)]
    pub efficiency_node: Option<f64>,
    /// What the step's time goes to, seconds; they add up to it.
    pub step_s: BTreeMap<String, f64>,
    /// What the fullest GPU holds, GB (1e9 bytes); absent for traces.
    pub memory_gb: Option<f64>,
    /// What that consists of; absent for traces.
    pub memory: Option<MemoryRow>,
    /// Whether it fits the memory, as far as that is known, and keeps the limits of the job.
    pub fits: bool,
    /// By how much it does not, GB.
    pub memory_beyond_gb: Option<f64>,
    /// What a GPU keeps in the memory of the CPU next to it, GB; absent where it keeps nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_gb: Option<f64>,
    /// By how much that is more than its part of that memory, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_beyond_gb: Option<f64>,
    /// What an hour costs: the middle of the band, and its ends. Costs are absent without a price.
    pub cost_per_hour: Option<f64>,
    /// The least.
    pub cost_per_hour_low: Option<f64>,
    /// The most.
    pub cost_per_hour_high: Option<f64>,
    /// What a step costs.
    pub cost_per_step: Option<f64>,
    /// What a million tokens cost, those that `tokens_per_s` counts.
    pub cost_per_million_tokens: Option<f64>,
    /// The least.
    pub cost_per_million_tokens_low: Option<f64>,
    /// The most.
    pub cost_per_million_tokens_high: Option<f64>,
    /// kWh for a million tokens; absent without a power.
    pub kwh_per_million_tokens: Option<f64>,
    /// The least, where the power is a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kwh_per_million_tokens_low: Option<f64>,
    /// The most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kwh_per_million_tokens_high: Option<f64>,
    /// Hours to train all tokens, where the job says how many.
    pub time_to_train_h: Option<f64>,
    /// What that costs.
    pub cost_to_train: Option<f64>,
    /// The share of `step_s` that takes the most time.
    pub binds: String,
    /// What the figures take for granted on this machine, each a sentence without its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Steps in time: of inference one with prompts and one without, where there are such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<CourseRow>,
    /// The calls of a step, of inference of the mean one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallRow>,
    /// How busy such a step keeps links, the busiest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<LoadRow>,
}

impl ResultRow {
    /// Seconds that a million tokens take; of a trace, seconds that it takes itself.
    #[must_use]
    pub fn seconds_of_unit(&self) -> f64 {
        self.tokens_per_s.map_or(self.step_time_s, |tokens| 1e6 / tokens)
    }

    /// A row of which nothing is known.
    pub(in crate::study) fn nothing() -> Self {
        Self {
            candidate: String::new(),
            job: String::new(),
            kind: JobKind::Training,
            ranks: 0,
            parallel: None,
            micro_batches: 0,
            step_time_s: 0.0,
            tokens_per_s: None,
            samples_per_s: None,
            ttft_s: None,
            tpot_s: None,
            prompt_step_s: None,
            answer_step_s: None,
            late: Vec::new(),
            in_flight: None,
            requests_that_fit: None,
            would_fit: Vec::new(),
            exposed_comm_share: 0.0,
            total_comm_share: 0.0,
            efficiency: None,
            efficiency_node: None,
            courses: Vec::new(),
            calls: Vec::new(),
            load: Vec::new(),
            step_s: BTreeMap::new(),
            memory_gb: None,
            memory: None,
            fits: false,
            memory_beyond_gb: None,
            host_memory_gb: None,
            host_memory_beyond_gb: None,
            cost_per_hour: None,
            cost_per_hour_low: None,
            cost_per_hour_high: None,
            cost_per_step: None,
            cost_per_million_tokens: None,
            cost_per_million_tokens_low: None,
            cost_per_million_tokens_high: None,
            kwh_per_million_tokens: None,
            kwh_per_million_tokens_low: None,
            kwh_per_million_tokens_high: None,
            time_to_train_h: None,
            cost_to_train: None,
            binds: String::new(),
            notes: Vec::new(),
        }
    }
}

/// What fills a GPU's memory, GB (1e9 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    /// Weights.
    pub weights_gb: f64,
    /// Gradients.
    pub gradients_gb: f64,
    /// State of the optimizer.
    pub optimizer_gb: f64,
    /// Activations.
    pub activations_gb: f64,
    /// Keys and values of requests.
    #[serde(default)]
    pub kv_cache_gb: f64,
    /// What CUDA and the libraries have.
    #[serde(default)]
    pub runtime_gb: f64,
}
