//! Training, inference and trace jobs: the memory, compute and communication that a model needs on a cluster.
//!
//! ```text
//! TOML ─read─► Job::Training  ─layout::Layout─► groups of ranks ─traffic─► calls of each group
//!         ├──► Job::Inference    ├─ model: parameters, FLOPs
//!         │                      └─ memory, cache: bytes of a rank, and whether they fit
//!         └──► Job::Trace ─► recorded events (trace)
//! ```
//!
//! Each kind has its own data ([`Training`], [`Serving`], [`Traced`]), so that every field has a meaning. Common
//! properties have the same names.
//!
//! A job describes a computation; the number of GPUs belongs to the fabric, so one job can be evaluated on many. Some
//! errors are known only then (for example degrees whose product is not the number of ranks). They still name the
//! location in the job file, which the job stores in [`Places`].

mod cache;
mod error;
mod groups;
mod layout;
mod memory;
mod model;
mod placement;
mod read;
mod serving;
mod sharding;
mod tier;
mod traced;
mod traffic;
mod training;

pub use cache::{Room, room, serving_footprint};
pub use error::JobError;
pub(crate) use groups::GroupShape;
pub use groups::{Dimension, Order};
pub use layout::{Degrees, Ends, Experts, Layout, Sequence};
pub(crate) use memory::parameters;
pub use memory::{Footprint, Memories, footprint};
pub use model::{Flops, Latent, Model};
pub use placement::{Placement, numbers};
pub use read::read_job;
#[cfg(test)]
pub(crate) use read::serving_tests;
pub(crate) use read::{Beside, JobText, nearest, refused, unnamed, written};
pub use serving::{Arrivals, KvPrecision, Limits, Loaded, Serving};
pub use sharding::{Accumulate, Gathered, Reshard, Streams, Zero};
pub use tier::Tier;
pub use traced::Traced;
pub(crate) use traffic::activations;
pub use traffic::{GroupCall, Phase, traffic};
pub use training::{Attention, Dropout, FlashKernel, Fusion, Overlap, Processes, Recompute, Training};

use std::borrow::Cow;

use fabricast_topologies::{Fabric, NodeId, Place};
use serde::Deserialize;

/// Source locations of the parts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The `[[job]]`.
    pub job: Place,
    /// `model`.
    pub model: Place,
    /// `parallel`.
    pub parallel: Place,
    /// Batch size or load: `global_batch` of training, `concurrency` or `requests` of inference.
    pub batch: Place,
    /// `precision`.
    pub precision: Place,
    /// `shard`.
    pub shard: Place,
    /// Memory tier: `optimizer_tier` of training, `kv_tier` of inference.
    pub tier: Place,
    /// `placement`.
    pub placement: Place,
    /// GPU with the largest number in `placement`.
    pub farthest: Place,
}

/// Job of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Training of a model.
    Training(Training),
    /// Inference: a model serves requests.
    Inference(Serving),
    /// Replay of a trace.
    Trace(Traced),
}

impl Job {
    /// Value of `kind` in the job file.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Training(_) => "training",
            Self::Inference(_) => "inference",
            Self::Trace(_) => "trace",
        }
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Training(job) => &job.name,
            Self::Inference(job) => &job.name,
            Self::Trace(job) => &job.name,
        }
    }

    /// Weight among several jobs, above 0.
    #[must_use]
    pub fn weight(&self) -> f64 {
        match self {
            Self::Training(job) => job.weight,
            Self::Inference(job) => job.weight,
            Self::Trace(job) => job.weight,
        }
    }

    /// Placement of ranks on GPUs.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        match self {
            Self::Training(job) => &job.placement,
            Self::Inference(job) => &job.placement,
            // The trace already fixes the placement.
            Self::Trace(_) => &Placement::Block,
        }
    }

    /// Returns the device of each rank on a fabric whose GPUs the job uses.
    ///
    /// # Errors
    /// [`JobError`] at `placement` if it names GPUs that the fabric lacks.
    pub fn ranks_on<'f>(&self, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
        self.placement().on(fabric, self.places())
    }

    /// Candidates for its collectives.
    #[must_use]
    pub fn collectives(&self) -> Collectives {
        match self {
            Self::Training(job) => job.collectives,
            Self::Inference(job) => job.collectives,
            Self::Trace(job) => job.collectives,
        }
    }

    /// Precision of its GEMMs; `None` for traces.
    #[must_use]
    pub fn precision(&self) -> Option<Precision> {
        match self {
            Self::Training(job) => Some(job.precision),
            Self::Inference(job) => Some(job.precision),
            Self::Trace(_) => None,
        }
    }

    /// Source locations.
    #[must_use]
    pub fn places(&self) -> &Places {
        match self {
            Self::Training(job) => &job.places,
            Self::Inference(job) => &job.places,
            Self::Trace(job) => &job.places,
        }
    }
}

/// Precision of matrix multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits everywhere.
    Fp32,
    /// 16-bit GEMMs (bfloat16), 32-bit master weights in the optimizer.
    Bf16,
    /// 16-bit GEMMs (IEEE half precision), 32-bit master weights in the optimizer.
    Fp16,
    /// 8-bit GEMMs. Training stores weights and activations in 16 bits; inference stores weights in 8.
    Fp8,
    /// 4-bit GEMMs for inference: 4-bit weights with an 8-bit scale per sixteen of them.
    Nvfp4,
}

impl Precision {
    /// Bytes of an activation, and of a weight or gradient in training.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 | Self::Fp8 | Self::Nvfp4 => 2,
        }
    }

    /// Bytes of a weight in inference, and of an element of a token sent to an expert.
    #[must_use]
    pub fn served_bytes(self) -> f64 {
        match self {
            // NVIDIA, cuDNN documentation, "Block Scaling": NVFP4.
            Self::Nvfp4 => (4.0 + 8.0 / 16.0) / 8.0,
            Self::Fp8 => 1.0,
            other => other.bytes() as f64,
        }
    }

    /// Bytes of optimizer states per parameter: Adam's two moments, and a 32-bit master weight if weights have lower
    /// precision (Rajbhandari et al., ZeRO, section 3.1: K = 12).
    #[must_use]
    pub fn state_bytes(self) -> u64 {
        match self {
            Self::Fp32 => 8,
            Self::Bf16 | Self::Fp16 | Self::Fp8 | Self::Nvfp4 => 12,
        }
    }
}

/// Parallelization of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Search for the fastest degrees that fit the memory.
    Auto,
    /// Fixed degrees.
    Given {
        /// Degrees, except the data-parallel one.
        degrees: Degrees,
        /// Data-parallel degree; if absent, computed from the remaining ranks.
        data: Option<u32>,
    },
}

/// Candidates for a job's collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collectives {
    /// Strategies that NCCL can run on plain buffers.
    #[default]
    Library,
    /// The fastest of all strategies, including one-sided transfers between symmetric buffers.
    Any,
}
