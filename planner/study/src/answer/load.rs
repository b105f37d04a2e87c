//! Calls of a step and link loads in `results.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fabricast_collectives::strategy::Strategy;

/// Call of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallRow {
    /// Phase of the step: `layer_forward`, `gradients`, ….
    pub phase: String,
    /// Dimension of the group: `tensor`, `data`, ….
    #[serde(alias = "among")]
    pub dimension: String,
    /// The collective.
    pub collective: String,
    /// Message size of one call in bytes, by the convention of nccl-tests; for gradients that of a bucket.
    pub bytes: u64,
    /// Ranks per group.
    pub ranks: u64,
    /// Number of concurrent groups.
    pub groups: u64,
    /// Mean number of calls per rank and step.
    pub times: f64,
    /// The strategy.
    pub pick: Strategy,
    /// Completion time of one call with all groups concurrent, in µs.
    pub time_us: f64,
}

/// Exchange of experts' tokens by the kernel of a library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExchangeRow {
    /// Phase of the step: `layer_forward` or `layer_backward`.
    pub phase: String,
    /// `dispatch` or `combine`.
    pub operation: String,
    /// Kernel: `deepep`, `deepep-ll`, …; `all_to_all` where it does not run on the machine.
    pub kernel: String,
    /// Type in which tokens travel: `fp8`, `bf16`, ….
    pub token_type: String,
    /// Tokens of each rank.
    pub tokens: u64,
    /// Ranks per group.
    pub ranks: u64,
    /// Mean number of exchanges per rank and step.
    pub times: f64,
    /// Completion time of one exchange with all groups concurrent, in µs.
    pub time_us: f64,
}

/// Utilization of a class of links in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadRow {
    /// Kind of link and of its ends: `NVLink, GPU to NVSwitch`.
    pub links: String,
    /// Number of links.
    pub count: u64,
    /// Bandwidth per direction in GB/s; that of the first direction if they differ.
    #[serde(alias = "gbps")]
    pub gb_per_s: f64,
    /// Mean utilization over the step, both directions.
    pub mean: f64,
    /// Utilization of the busiest direction.
    #[serde(alias = "most")]
    pub max: f64,
    /// Name of the busiest direction.
    pub busiest: String,
}
