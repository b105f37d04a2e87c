//! An inference job: requests that a model answers, as vLLM batches them.
//!
//! So many requests are always in flight: where one is answered, the next comes. Or as many as memory and limits leave. Or so many are there
//! at the start, and as many are in flight as the memory holds. Each brings its prompt, of which a part may be known already, and is
//! answered token by token. Replicas (the data-parallel ranks) have equal parts of the requests.

use std::ops::Deref;

use fabricast_topologies::Picos;
use serde::Deserialize;

use super::cache::fitting;
use super::{Collectives, Layout, Memories, Model, Parallel, Placement, Places, Precision, Tier};

/// A model that answers requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Its name.
    pub name: String,
    /// What answers; its `seq` is the longest that prompt and answer may be together.
    pub model: Model,
    /// What matrix products are computed in, and weights are kept in; activations are kept in 16 bits at least.
    pub precision: Precision,
    /// Tokens of a prompt.
    pub prompt_tokens: u64,
    /// Tokens of an answer, the first included.
    pub output_tokens: u64,
    /// How requests come.
    pub arrivals: Arrivals,
    /// Tokens of a step of a replica at most: vLLM's `max_num_batched_tokens`.
    pub max_batched_tokens: u64,
    /// The part of a prompt whose keys and values are there already, 0 to 1.
    pub prefix_hit: f64,
    /// What keys and values are kept in.
    pub kv_precision: KvPrecision,
    /// Where they are kept.
    pub kv_tier: Tier,
    /// Bytes of keys and values of a token in all layers, where they are compressed; then every tensor-parallel rank has
    /// all of them. Absent: those of the model's heads.
    pub kv_bytes_per_token: Option<u64>,
    /// Second copies of experts, so that all divide by the ranks that share them: vLLM's `num_redundant_experts`.
    pub redundant_experts: u64,
    /// The part of a GPU's memory that may be filled, over 0 to 1: vLLM's `gpu_memory_utilization`.
    pub memory_share: f64,
    /// How the work is divided.
    pub parallel: Parallel,
    /// Which GPU each rank has.
    pub placement: Placement,
    /// What calls may be done by.
    pub collectives: Collectives,
    /// The load of the rank with the fullest experts over the mean, 1 or more; [`Layout::fullest`] says how much of it there can be.
    pub skew: f64,
    /// What must be kept to.
    pub limits: Limits,
    /// What the job counts for among others, over 0.
    pub weight: f64,
    /// Where it stands.
    pub places: Places,
}

impl Serving {
    /// vLLM's `max_num_batched_tokens` of its server on GPUs of 70 GiB and more (`vllm/engine/arg_utils.py`).
    pub const MAX_BATCHED_TOKENS: u64 = 8192;
    /// vLLM's `gpu_memory_utilization` (`vllm/config/cache.py`).
    pub const MEMORY_SHARE: f64 = 0.9;
    /// vLLM's `max_num_seqs` on GPUs of 70 GiB and more, the A100 aside (`vllm/engine/arg_utils.py`).
    pub const MAX_NUM_SEQS: u64 = 1024;

    /// The job with the requests that are in flight on GPUs of so much memory, where it does not say how many: as many as that holds, at
    /// least one, whatever limits say.
    #[must_use]
    pub fn filled(&self, layout: &Layout, memories: Option<Memories>) -> Loaded<'_> {
        let filled = |most: u64, at_once: u64| {
            let fitting = memories.map_or(u64::MAX, |memories| fitting(self, layout, memories));
            most.min(at_once.saturating_mul(layout.degrees.data.into())).min(fitting).max(1)
        };
        let in_flight = match self.arrivals {
            Arrivals::OneByOne { concurrency } => concurrency,
            Arrivals::AsMany { at_once } => filled(u64::MAX, at_once),
            Arrivals::Together { requests, at_once } => filled(requests, at_once),
        };
        Loaded { job: self, in_flight }
    }

    /// Tokens of a prompt that must be computed: at least the last, whose answer is the first token (as vLLM does).
    #[must_use]
    pub fn new_tokens(&self) -> u64 {
        let known = (self.prompt_tokens as f64 * self.prefix_hit).floor() as u64;
        (self.prompt_tokens - known.min(self.prompt_tokens)).max(1)
    }

    /// Tokens of a request whose keys and values are kept when it ends.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.output_tokens
    }

    /// Experts of a layer and their second copies.
    #[must_use]
    pub fn expert_slots(&self) -> u64 {
        self.model.experts + self.redundant_experts
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The next where one is answered; their beginnings have spread over time.
    OneByOne {
        /// Those in flight, on all replicas together.
        concurrency: u64,
    },
    /// The same with as many in flight as the memory holds and the limits leave.
    AsMany {
        /// Those of a replica, at most: vLLM's `max_num_seqs`.
        at_once: u64,
    },
    /// All are there at the start, and equally long: those in flight begin together, and those that follow them do, too.
    Together {
        /// All of them.
        requests: u64,
        /// Those of a replica that are in flight, at most: vLLM's `max_num_seqs`.
        at_once: u64,
    },
}

/// A job and its requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Loaded<'a> {
    /// The job.
    pub job: &'a Serving,
    /// On all replicas together.
    pub in_flight: u64,
}

impl Deref for Loaded<'_> {
    type Target = Serving;

    fn deref(&self) -> &Serving {
        self.job
    }
}

/// What keys and values are kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPrecision {
    /// 32 bits.
    Fp32,
    /// 16 bits.
    #[default]
    Bf16,
    /// 16 bits, IEEE's.
    Fp16,
    /// 8 bits.
    Fp8,
}

impl KvPrecision {
    /// Bytes of a key's or value's element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp8 => 1,
        }
    }
}

/// What an answer may take at most; absent: anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// To its first token.
    pub ttft: Option<Picos>,
    /// For each token after it.
    pub tpot: Option<Picos>,
}
