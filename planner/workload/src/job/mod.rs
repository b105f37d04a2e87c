//! Training, inference and trace jobs: the memory, compute and communication that a model needs on a cluster.
//!
//! ```text
//! TOML ─read─► Job::Training  ─layout::Layout─► groups of ranks ─traffic─► calls of each group
//!         ├──► Job::Inference    ├─ model: parameters, FLOPs
//!         │                      └─ memory, cache: bytes of a rank, and whether they fit
//!         └──► Job::Trace ─► recorded events (trace)
//! ```
//!
//! Each kind has its own data ([`Training`], [`Serving`], [`TraceJob`]), so that every field has a meaning. Common
//! properties have the same names.
//!
//! A job describes a computation; the number of GPUs belongs to the fabric, so one job can be evaluated on many. Some
//! errors are known only then (for example degrees whose product is not the number of ranks). They still name the
//! location in the job file, which the job stores in [`JobSpans`].

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
mod trace;
mod traffic;
mod training;

pub use cache::{MemoryCheck, check_memory, serving_footprint};
pub use error::JobError;
pub use groups::GroupShape;
pub use groups::{Dimension, Order};
pub use layout::{Degrees, EndAccounting, ExpertSharding, Layout, SequenceParallelism};
pub use memory::parameters;
pub use memory::{Footprint, MemoryLimits, footprint};
pub use model::{Flops, Latent, Model};
pub use placement::{Placement, parse_ranges};
pub use read::read_job;
pub use read::{FileResolver, JobText, format_number, name_problem, nearest, toml_error};
pub use serving::{Arrivals, KvPrecision, Limits, LoadedServing, Serving};
pub use sharding::{Accumulate, ReductionStreams, Reshard, WeightLifetime, Zero};
pub use tier::Tier;
pub use trace::TraceJob;
pub use traffic::activation_bytes;
pub use traffic::{GroupCall, Phase, traffic};
pub use training::{Attention, Dropout, FlashKernel, KernelFusion, Overlap, Processes, Recompute, Training};

use std::borrow::Cow;

use fabricast_topologies::{Fabric, NodeId, SourceLocation};
use serde::Deserialize;

/// Source locations of the parts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSpans {
    /// The `[[job]]`.
    pub job: SourceLocation,
    /// `model`.
    pub model: SourceLocation,
    /// `parallel`.
    pub parallel: SourceLocation,
    /// Batch size or load: `global_batch` of training, `concurrency` or `requests` of inference.
    pub batch: SourceLocation,
    /// `precision`.
    pub precision: SourceLocation,
    /// `shard`.
    pub shard: SourceLocation,
    /// Memory tier: `optimizer_tier` of training, `kv_tier` of inference.
    pub tier: SourceLocation,
    /// `placement`.
    pub placement: SourceLocation,
    /// GPU with the largest number in `placement`.
    pub largest_gpu: SourceLocation,
}

/// Job of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Training of a model.
    Training(Training),
    /// Inference: a model serves requests.
    Inference(Serving),
    /// Replay of a trace.
    Trace(TraceJob),
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
    pub fn rank_devices<'f>(&self, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
        self.placement().devices(fabric, self.spans())
    }

    /// Candidates for its collectives.
    #[must_use]
    pub fn collectives(&self) -> CollectiveCandidates {
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
    pub fn spans(&self) -> &JobSpans {
        match self {
            Self::Training(job) => &job.spans,
            Self::Inference(job) => &job.spans,
            Self::Trace(job) => &job.spans,
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
pub enum CollectiveCandidates {
    /// Strategies that NCCL can run on plain buffers.
    #[default]
    Library,
    /// The fastest of all strategies, including one-sided transfers between symmetric buffers.
    Any,
}
