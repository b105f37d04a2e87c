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

mod activations;
mod cache;
mod checkpoint;
mod disaggregation;
mod dispatch;
mod error;
mod expert_traffic;
mod framework;
mod groups;
mod layer_matrices;
mod layout;
mod lora;
mod memory;
mod model;
mod open_loop;
mod placement;
mod read;
mod served_adapters;
mod serving;
mod sharding;
mod speculation;
mod temporary_memory;
mod tier;
mod trace;
mod traffic;
mod training;

pub use cache::{MemoryCheck, check_memory, serving_footprint};
pub use checkpoint::{CheckpointInterval, CheckpointWrite, Checkpointing, WriteSpeed};
pub use disaggregation::{Disaggregation, FirstToken, KvTransfer, PrefillPool, TransferUnit};
pub use dispatch::{Dispatch, DispatchPrecision, Dispatcher, DispatcherOrigin, ExpertOverlap, StepKind, TokenCopies};
pub use error::JobError;
pub use expert_traffic::{
    CollectiveTokens, ExpertCall, ExpertCollective, TokenExchange, dispatch_and_combine, expert_calls,
};
use framework::expected_version;
pub use framework::{Framework, FrameworkKind, find_framework, frameworks};
pub use groups::GroupShape;
pub use groups::{Dimension, Order};
pub use layer_matrices::{AttentionProjections, FeedForward, LayerMatrices, WeightMatrix, logits_matrix};
pub use layout::{Degrees, EndAccounting, ExpertSharding, Layout, SequenceParallelism};
pub use lora::{Adapter, AdapterTarget, BaseWeights, Lora};
pub use memory::{
    Footprint, MemoryLimits, ParameterCounts, footprint, parameters, rank_parameters, trained_parameters, weight_shard,
};
pub use model::{ExpertGroups, Flops, LatentAttention, Model, QueryKeyNorm};
pub use open_loop::{LengthDistribution, OpenLoop, RequestVariation};
pub use placement::{Placement, parse_ranges};
pub use read::{FileResolver, JobText, Texts, format_number, name_problem, nearest, toml_error};
pub use read::{NamedModel, configuration_notes, named_models, read_job};
pub use served_adapters::{AdapterLoading, HostAllocation, ServedAdapters};
pub use serving::{
    Arrivals, Batching, HostTimes, KvPrecision, LatencyStatistic, Lengths, Limits, LoadedServing, PiecewiseGraphs,
    Serving, StepScheduling, TensorAllReduce,
};
pub use sharding::{Accumulate, ReductionStreams, Reshard, StatePartition, WeightLifetime, Zero};
pub use speculation::{DraftMethod, Speculation};
pub use tier::Tier;
pub use trace::TraceJob;
pub use traffic::activation_bytes;
pub use traffic::{GroupCall, Phase, traffic};
pub use training::{
    AlgorithmConnection, Attention, Dropout, FlashKernel, GradientAddition, KernelFusion, LaunchMode, MasterWeights,
    OptimizerDevice, Overlap, Processes, Recompute, Training, UpdatedGradients,
};

use std::borrow::Cow;

use fabricast_topologies::{Fabric, NodeId, SourceLocation};
use serde::Deserialize;

/// Source locations of the parts of a job, for errors that are found after reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSpans {
    /// Location of the table `[[job]]`.
    pub job: SourceLocation,
    /// Location of the key `model`.
    pub model: SourceLocation,
    /// Location of the key `parallel`.
    pub parallel: SourceLocation,
    /// Location of the number of GPUs for prefill.
    pub prefill_gpus: SourceLocation,
    /// Location of the degrees of prefill, or of `parallel` if the job states none of its own.
    pub prefill_parallel: SourceLocation,
    /// Location of the batch size or load: `global_batch` of training, `concurrency` or `requests` of inference.
    pub batch: SourceLocation,
    /// Location of the key `precision`.
    pub precision: SourceLocation,
    /// Location of the key `shard`.
    pub shard: SourceLocation,
    /// Location of the memory tier: `optimizer_tier` of training, `kv_tier` of inference.
    pub tier: SourceLocation,
    /// Location of the key `weights_tier`.
    pub weights_tier: SourceLocation,
    /// Location of the key `dispatcher`.
    pub dispatcher: SourceLocation,
    /// Location of the key `placement`.
    pub placement: SourceLocation,
    /// Location of the GPU with the largest number in `placement`.
    pub largest_gpu: SourceLocation,
}

/// Job of a study: training, inference or replay of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Steps of training a model.
    Training(Training),
    /// Inference: requests that a model serves.
    Inference(Serving),
    /// Replay of a recorded trace.
    Trace(TraceJob),
}

impl Job {
    /// Returns the value of `kind` in the job file.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Training(_) => "training",
            Self::Inference(_) => "inference",
            Self::Trace(_) => "trace",
        }
    }

    /// Returns the name of the job.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Training(job) => &job.name,
            Self::Inference(job) => &job.name,
            Self::Trace(job) => &job.name,
        }
    }

    /// Returns the weight among several jobs, above 0.
    #[must_use]
    pub fn weight(&self) -> f64 {
        match self {
            Self::Training(job) => job.weight,
            Self::Inference(job) => job.weight,
            Self::Trace(job) => job.weight,
        }
    }

    /// Returns the placement of ranks on GPUs; the default for traces, which fix their own.
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

    /// Returns the candidates for the job's collectives.
    #[must_use]
    pub fn collectives(&self) -> CollectiveCandidates {
        match self {
            Self::Training(job) => job.collectives,
            Self::Inference(job) => job.collectives,
            Self::Trace(job) => job.collectives,
        }
    }

    /// Returns the precision of the job's GEMMs; `None` for traces.
    #[must_use]
    pub fn precision(&self) -> Option<Precision> {
        match self {
            Self::Training(job) => Some(job.precision),
            Self::Inference(job) => Some(job.precision),
            Self::Trace(_) => None,
        }
    }

    /// Returns the source locations of the job's parts.
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
    /// 32-bit weights and activations; GEMMs use TF32 or xf32 if the GPU supports it.
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
    /// Returns the bytes of an activation, and of a weight or gradient in training.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 | Self::Fp8 | Self::Nvfp4 => 2,
        }
    }

    /// Returns the bytes of a weight in inference, and of an element of a token sent to an expert. Not an integer for 4
    /// bits with scales.
    #[must_use]
    pub fn served_bytes(self) -> f64 {
        match self {
            // NVIDIA, cuDNN documentation, "Block Scaling": NVFP4.
            Self::Nvfp4 => (4.0 + 8.0 / 16.0) / 8.0,
            Self::Fp8 => 1.0,
            other => other.bytes() as f64,
        }
    }
}

/// Parallelization of a job: degrees that are fixed or to be searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Search for the fastest degrees that fit the memory.
    Auto,
    /// Degrees that the job specifies.
    Given {
        /// Specified degrees; the data-parallel one is in `data`.
        degrees: Degrees,
        /// Data-parallel degree; if absent, computed from the remaining ranks.
        data: Option<u32>,
    },
}

impl Parallel {
    /// Returns the degrees with a data-parallel degree that is computed from the number of ranks.
    #[must_use]
    pub fn with_open_data_degree(self) -> Self {
        match self {
            Self::Auto => Self::Auto,
            Self::Given { degrees, .. } => Self::Given { degrees, data: None },
        }
    }
}

/// Candidate strategies for a job's collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveCandidates {
    /// Strategies that NCCL can run on plain buffers.
    #[default]
    Library,
    /// The fastest of all strategies, including one-sided transfers between symmetric buffers.
    Any,
}
