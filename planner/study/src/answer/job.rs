//! Jobs in `results.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fabricast_workload::job::{Degrees, EndAccounting, ExpertSharding, Order, SequenceParallelism};

/// Kind of work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Training of a model, in steps.
    Training,
    /// Inference, in requests.
    Inference,
    /// Replay of a recorded trace.
    Trace,
}

impl JobKind {
    /// Returns the name of the kind, as in JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Inference => "inference",
            Self::Trace => "trace",
        }
    }
}

/// Job of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobRow {
    /// Name of the job.
    pub name: String,
    /// Kind of work of the job.
    pub kind: JobKind,
    /// Weight of the job in the score.
    pub weight: f64,
    /// Names of the candidates that the job runs on; empty if it runs on all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// Model of the job; absent for traces.
    pub model: Option<ModelRow>,
    /// Precision of GEMMs, such as `bf16`; absent for traces.
    pub precision: Option<String>,
    /// File of a trace, as named in the study; absent for other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Number of sequences per step; absent for inference.
    pub global_batch: Option<u64>,
    /// Number of sequences per forward pass of a rank; absent for inference.
    pub micro_batch: Option<u64>,
    /// Activation recomputation: `none`, `selective`, `full` or `early_stop`, with the number of layers if not all;
    /// absent for inference.
    pub recompute: Option<String>,
    /// Number of prompt tokens of a request; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Number of output tokens of a request; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Number of concurrent requests over all replicas; inference only, absent if a batch is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u64>,
    /// Number of requests of a batch, or of a benchmark at `request_rate`; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Mean number of requests that arrive per second; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_rate: Option<f64>,
    /// GPU of each rank: `cyclic`, or GPU ranges; absent if ranks follow the GPU numbering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// True if the degrees of parallelism were searched. The degrees are in each result.
    pub auto: bool,
    /// Keys and values of the job in the study, as TOML.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(alias = "asked")]
    pub keys: BTreeMap<String, String>,
    /// Number of tokens to train on, if the job states it.
    pub train_tokens: Option<u64>,
    /// Source location of the job: file name, line and column.
    #[serde(alias = "place")]
    pub location: String,
}

/// Model of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRow {
    /// Number of transformer layers.
    pub layers: u64,
    /// Hidden size: the width of the residual stream.
    pub hidden: u64,
    /// Number of attention heads.
    pub heads: u64,
    /// Number of key and value heads.
    pub kv_heads: u64,
    /// Number of cached elements per token and layer, for models with latent compression of keys and values (MLA).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<u64>,
    /// Width of the feed-forward layer, or of each expert.
    pub ffn: u64,
    /// Vocabulary size.
    pub vocab: u64,
    /// Number of tokens per sequence.
    pub seq: u64,
    /// Number of experts per layer; 0 for dense models.
    pub experts: u64,
    /// Number of experts that process each token.
    pub experts_per_token: u64,
    /// Number of parameters, including those of all experts.
    pub parameters: u64,
}

/// Parallel layout of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParallelRow {
    /// Number of tensor-parallel ranks.
    pub tp: u32,
    /// Number of pipeline stages.
    pub pp: u32,
    /// Number of data-parallel replicas.
    pub dp: u32,
    /// Number of expert-parallel ranks.
    pub ep: u32,
    /// Number of tensor-parallel ranks within an expert, if fewer than `tp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etp: Option<u32>,
    /// Number of context-parallel ranks.
    pub cp: u32,
    /// Number of model chunks per pipeline stage (virtual pipeline).
    pub interleave: u32,
    /// True if sequence parallelism is on.
    pub sequence: bool,
    /// True if the embedding and the logits count as one layer each in the division into pipeline stages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_as_layers: bool,
    /// ZeRO stage: nothing is sharded (0), or optimizer states (1), also gradients (2), also weights (3).
    pub zero: u8,
    /// Number of ranks of a sharding group; absent if it is all data-parallel ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

impl ParallelRow {
    /// Returns the degrees of the layout.
    #[must_use]
    pub fn degrees(&self) -> Degrees {
        Degrees {
            tensor: self.tp,
            pipeline: self.pp,
            data: self.dp,
            expert: self.ep,
            experts: if self.etp.is_some() { ExpertSharding::Whole } else { ExpertSharding::Divided },
            context: self.cp,
            interleave: self.interleave,
            sequence: if self.sequence { SequenceParallelism::TensorSharded } else { SequenceParallelism::Undivided },
            ends: if self.ends_as_layers { EndAccounting::AsLayers } else { EndAccounting::Extra },
            order: Order::default(),
            shard: self.shard,
        }
    }
}

impl std::fmt::Display for ParallelRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.degrees().fmt(f)
    }
}
