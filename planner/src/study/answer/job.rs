//! Jobs as `results.json` tells them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::{Degrees, Ends, Experts, Order, Sequence};

/// What kind of work a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Steps of training.
    Training,
    /// Requests that are answered.
    Inference,
    /// What was written down, once.
    Trace,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its name.
    pub name: String,
    /// What kind of work it is.
    pub kind: JobKind,
    /// What it counts for among the others.
    pub weight: f64,
    /// Names of the candidates that it runs on; none: on all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// What is computed; absent for traces.
    pub model: Option<ModelRow>,
    /// What matrix products are computed in: `bf16`, …; absent for traces.
    pub precision: Option<String>,
    /// The file of a trace as the study names it; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Sequences of a step; absent for inference.
    pub global_batch: Option<u64>,
    /// Sequences of a forward pass of one rank; absent for inference.
    pub micro_batch: Option<u64>,
    /// What the backward pass computes anew: `none`, `selective`, `full`, `early_stop`, and of how many layers where
    /// not of all; absent for inference.
    pub recompute: Option<String>,
    /// Tokens of a prompt; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of an answer; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Requests in flight, on all replicas together; inference only, and absent for batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u64>,
    /// Requests of a batch; inference only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Which GPU each rank has: `cyclic`, or the GPUs as ranges; absent where ranks are as GPUs are numbered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Whether degrees were looked for; they stand with each result.
    pub auto: bool,
    /// What the job says of its work, by key, as TOML.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, String>,
    /// Tokens to train on, where the job says.
    pub train_tokens: Option<u64>,
    /// Where it stands: file without its folder, line, column.
    pub place: String,
}

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRow {
    /// Transformer layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Numbers that are kept of a token in a layer where keys and values are compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<u64>,
    /// Width of the feed-forward, of each expert where there are several.
    pub ffn: u64,
    /// Words of the vocabulary.
    pub vocab: u64,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Experts of a layer; 0: none.
    pub experts: u64,
    /// Experts that a token goes to.
    pub experts_per_token: u64,
    /// Parameters, all experts among them.
    pub parameters: u64,
}

/// How a job was divided among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParallelRow {
    /// Ranks that share each matrix.
    pub tp: u32,
    /// Stages of layers.
    pub pp: u32,
    /// Copies of the model.
    pub dp: u32,
    /// Ranks that divide a layer's experts.
    pub ep: u32,
    /// Ranks that share the matrices of an expert, where these are fewer than share others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etp: Option<u32>,
    /// Ranks that share each sequence.
    pub cp: u32,
    /// Stretches of layers on each stage.
    pub interleave: u32,
    /// Whether tensor-parallel ranks divide the sequence between matrices.
    pub sequence: bool,
    /// Whether words and logits take a layer's place each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_as_layers: bool,
    /// What data-parallel ranks divide: 0 nothing, 1 optimizer, 2 gradients, 3 weights.
    pub zero: u8,
    /// Ranks that a copy of that is spread over; absent: all data-parallel ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

impl ParallelRow {
    /// The degrees.
    #[must_use]
    pub fn degrees(&self) -> Degrees {
        Degrees {
            tensor: self.tp,
            pipeline: self.pp,
            data: self.dp,
            expert: self.ep,
            experts: if self.etp.is_some() { Experts::Whole } else { Experts::Divided },
            context: self.cp,
            interleave: self.interleave,
            sequence: if self.sequence { Sequence::Divided } else { Sequence::Whole },
            ends: if self.ends_as_layers { Ends::AsLayers } else { Ends::Beside },
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
