//! The calls of a step and what links carry of them, as `results.json` tells them.

use serde::{Deserialize, Serialize};

use crate::strategy::Strategy;

/// A call of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRow {
    /// When it is: `layer_forward`, `gradients`, ….
    pub phase: String,
    /// Among whom: `tensor`, `data`, ….
    pub among: String,
    /// What is called.
    pub collective: String,
    /// The size of one, as nccl-tests counts it; of gradients that of a bucket.
    pub bytes: u64,
    /// Ranks of a group.
    pub ranks: u64,
    /// Groups that call at once.
    pub groups: u64,
    /// How often a rank takes part in a step, in the mean over steps.
    pub times: f64,
    /// How it is done.
    pub pick: Strategy,
    /// What one takes, with all groups at once, µs.
    pub time_us: f64,
}

/// Links that are alike, and how busy a step keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadRow {
    /// What they are and what they join: `NVLink, GPU to NVSwitch`.
    pub links: String,
    /// How many there are.
    pub count: u64,
    /// The rate of each direction, GB/s; of unlike directions that of the first.
    pub gbps: f64,
    /// What they carry in a step over what they could carry in its time, both directions, in the mean.
    pub mean: f64,
    /// The same of the busiest direction.
    pub most: f64,
    /// Its name.
    pub busiest: String,
}
