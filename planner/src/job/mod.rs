//! Training jobs: what a model asks of a cluster, in memory, work and bytes between GPUs.
//!
//! ```text
//! TOML ─read─► Job ─layout::Layout─► groups of ranks ─traffic─► calls of each group
//!               ├─ model: parameters, FLOPs
//!               └─ memory: bytes of a rank, and whether they fit
//! ```
//!
//! A job says what is trained; how many GPUs there are is the fabric's business, so the same job can be held against
//! many. What is only known then (whether the degrees multiply to the ranks, say) is still told with the place in the
//! file, which the job keeps in [`Places`].

mod error;
mod layout;
mod memory;
mod model;
mod read;
mod traffic;

pub use error::JobError;
pub use layout::{Degrees, Dimension, Layout, Order, Sequence};
pub(crate) use memory::parameters;
pub use memory::{Footprint, footprint};
pub use model::{Flops, Model};
pub use read::read_job;
pub(crate) use read::{JobText, Origin};
pub use traffic::{GroupCall, Phase, traffic};

use fabricast_topologies::Place;
use serde::Deserialize;

/// Where the parts of a job stand in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The `[[job]]`.
    pub job: Place,
    /// `model`.
    pub model: Place,
    /// `parallel`.
    pub parallel: Place,
    /// `global_batch`.
    pub global_batch: Place,
    /// `precision`.
    pub precision: Place,
}

/// A training job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// What is trained.
    pub model: Model,
    /// What matrix products are computed in.
    pub precision: Precision,
    /// Sequences of a step, on all ranks together.
    pub global_batch: u64,
    /// Sequences of a forward pass of one rank.
    pub micro_batch: u64,
    /// How the work is divided.
    pub parallel: Parallel,
    /// What data-parallel ranks share of the optimizer's state.
    pub zero: Zero,
    /// The size of a bucket of gradients, in units of 2²⁰ bytes as PyTorch's `bucket_cap_mb` counts.
    pub bucket_mb: u32,
    /// Bits of a gradient on its way between ranks; what is below the precision's own is compression.
    pub gradient_bits: u32,
    /// What the backward pass computes anew.
    pub recompute: Recompute,
    /// Whether attention is one kernel that never writes its scores to memory.
    pub attention: Attention,
    /// Whether gradients, gathered weights and hand-offs travel while ranks compute.
    pub overlap: Overlap,
    /// What calls may be done by.
    pub collectives: Collectives,
    /// Who drives the GPUs of a host.
    pub processes: Processes,
    /// The load of the busiest expert over the mean, 1 or more.
    pub skew: f64,
    /// What the job counts for among others, over 0.
    pub weight: f64,
    /// Tokens to train on, for the time and cost to train; unknown where absent.
    pub train_tokens: Option<u64>,
    /// Where it stands.
    pub places: Places,
}

/// What matrix products are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits everywhere.
    Fp32,
    /// 16-bit products, 32-bit copies of the weights in the optimizer.
    Bf16,
    /// The same with IEEE's 16 bits.
    Fp16,
    /// 8-bit products, weights and activations kept in 16 bits.
    Fp8,
}

impl Precision {
    /// Bytes of a stored weight, activation or gradient.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 | Self::Fp8 => 2,
        }
    }

    /// Bytes of the optimizer's state for a parameter: Adam's two moments, and a 32-bit copy of weights that are kept in
    /// fewer (Rajbhandari et al., ZeRO, section 3.1: K = 12).
    #[must_use]
    pub fn state_bytes(self) -> u64 {
        match self {
            Self::Fp32 => 8,
            Self::Bf16 | Self::Fp16 | Self::Fp8 => 12,
        }
    }
}

/// How a job's work is divided among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// The fastest division that fits the memory is looked for.
    Auto,
    /// As given; no data-parallel degree means whatever is left of the ranks.
    Given {
        /// The degrees; that of data is `data`'s business.
        degrees: Degrees,
        /// The data-parallel degree, where it is given.
        data: Option<u32>,
    },
}

/// What data-parallel ranks divide among them instead of each keeping a copy (Rajbhandari et al., ZeRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// Nothing: plain data parallelism.
    #[default]
    None,
    /// The optimizer's state.
    Optimizer,
    /// Gradients too.
    Gradients,
    /// Weights too: ZeRO-3, or FSDP with full sharding.
    Weights,
}

/// What the backward pass computes anew instead of keeping (Korthikanti et al., arXiv 2205.05198).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// The scores and what follows from them up to their product with the values.
    Selective,
    /// Each layer from its input.
    Full,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Scores are written to memory, masked, normalised, dropped out and read again.
    #[default]
    Unfused,
    /// One kernel, of the lower triangle only.
    Flash,
}

/// Whether communication that nothing waits for runs beside computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// It does.
    #[default]
    On,
    /// Each call is waited for.
    Off,
}

/// Who drives the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// A process each: PyTorch's DistributedDataParallel, and all that divides models.
    #[default]
    PerGpu,
    /// One for all, which copies the model to the others anew in each step: PyTorch's DataParallel.
    Single,
}

/// What calls may be done by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collectives {
    /// What NCCL can run on plain buffers.
    #[default]
    Library,
    /// Whatever is fastest, one-sided transfers between symmetric buffers included.
    Any,
}
