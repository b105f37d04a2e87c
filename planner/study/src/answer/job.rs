//! Jobs in `results.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fabricast_workload::job::{Degrees, EndAccounting, ExpertSharding, Order, SequenceParallelism};

/// Kind of work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Training steps.
    Training,
    /// Inference requests.
    Inference,
    /// One replay of a recorded trace.
    Trace,
}

/// Job of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobRow {
    /// Name.
    pub name: String,
    /// Kind of work.
    pub kind: JobKind,
    /// Weight among the jobs.
    pub weight: f64,
    /// Names of the candidates that it runs on; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// Model; absent for traces.
    pub model: Option<ModelRow>,
    /// Precision of GEMMs: `bf16`, …; absent for traces.
    pub precision: Option<String>,
    /// File of a trace as named in the study; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Sequences per step; absent for inference.
    pub global_batch: Option<u64>,
    /// Sequences per forward pass of a rank; absent for inference.
    pub micro_batch: Option<u64>,
    /// Activation recomputation: `none`, `selective`, `full` or `early_stop`, with the number of layers if not all;
    /// absent for inference.
    pub recompute: Option<String>,
    /// Prompt tokens; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Output tokens; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Concurrent requests over all replicas; inference only, absent for batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u64>,
    /// Requests of a batch; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// GPU of each rank: `cyclic`, or GPU ranges; absent if ranks follow the GPU numbering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// True if the degrees were searched; each result has its own.
    pub auto: bool,
    /// Keys and values of the job as TOML.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(alias = "asked")]
    pub keys: BTreeMap<String, String>,
    /// Tokens to train on, if given.
    pub train_tokens: Option<u64>,
    /// Source location: file name, line and column.
    #[serde(alias = "place")]
    pub location: String,
}

/// Model of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRow {
    /// Transformer layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Cached elements per token and layer with latent compression of keys and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<u64>,
    /// Width of the feed-forward, or of each expert.
    pub ffn: u64,
    /// Vocabulary size.
    pub vocab: u64,
    /// Tokens per sequence.
    pub seq: u64,
    /// Experts per layer; 0 for dense models.
    pub experts: u64,
    /// Experts per token.
    pub experts_per_token: u64,
    /// Parameters, including all experts.
    pub parameters: u64,
}

/// Parallel layout of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParallelRow {
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data-parallel replicas.
    pub dp: u32,
    /// Expert-parallel ranks.
    pub ep: u32,
    /// Tensor-parallel ranks within an expert, if fewer than `tp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etp: Option<u32>,
    /// Context-parallel ranks.
    pub cp: u32,
    /// Model chunks per pipeline stage (virtual pipeline).
    pub interleave: u32,
    /// True if sequence parallelism is on.
    pub sequence: bool,
    /// True if the embedding and the logits count as a layer each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_as_layers: bool,
    /// ZeRO stage: 0 nothing, 1 optimizer, 2 gradients, 3 weights sharded.
    pub zero: u8,
    /// Ranks of a sharding group; absent: all data-parallel ranks.
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
