//! Calls of a step and link loads in `results.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fabricast_collectives::strategy::Strategy;

/// Call of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallRow {
    /// Phase of the step, such as `layer_forward` or `gradients`.
    pub phase: String,
    /// Dimension of the group, such as `tensor` or `data`.
    #[serde(alias = "among")]
    pub dimension: String,
    /// Collective that the group calls.
    pub collective: String,
    /// Message size of one call in bytes, by the convention of nccl-tests. For gradients, the size of a bucket.
    pub bytes: u64,
    /// Number of ranks per group.
    pub ranks: u64,
    /// Number of concurrent groups.
    pub groups: u64,
    /// Mean number of calls per rank and step.
    pub times: f64,
    /// Strategy of the call.
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
    /// Kernel: `deepep`, `deepep-ll`, …; `all_to_all` if the kernel does not run on the machine.
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
    /// Kind of link and of the devices at its ends, such as `NVLink, GPU to NVSwitch`.
    pub links: String,
    /// Number of links of the class.
    pub count: u64,
    /// Bandwidth per direction in GB/s. If the directions differ, that of the first.
    #[serde(alias = "gbps")]
    pub gb_per_s: f64,
    /// Mean utilization over the step and both directions, 0 to 1.
    pub mean: f64,
    /// Utilization of the busiest direction, 0 to 1.
    #[serde(alias = "most")]
    pub max: f64,
    /// Name of the busiest direction of a link.
    pub busiest: String,
}
