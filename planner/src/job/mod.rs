//! Jobs: what a model asks of a cluster, in memory, work and bytes between GPUs, while it is trained or while it answers.
//!
//! ```text
//! TOML ─read─► Job::Training  ─layout::Layout─► groups of ranks ─traffic─► calls of each group
//!         ├──► Job::Inference    ├─ model: parameters, FLOPs
//!         │                      └─ memory, cache: bytes of a rank, and whether they fit
//!         └──► Job::Trace ─► what was written down (trace)
//! ```
//!
//! Kinds have their own data ([`Training`], [`Serving`], [`Traced`]), so that no field of one means nothing in another; what
//! several have, they have by the same names.
//!
//! A job says what is computed; how many GPUs there are is the fabric's business, so the same job can be held against
//! many. What is only known then (whether the degrees multiply to the ranks, say) is still told with the place in the
//! file, which the job keeps in [`Places`].

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

/// Where the parts of a job stand in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The `[[job]]`.
    pub job: Place,
    /// `model`.
    pub model: Place,
    /// `parallel`.
    pub parallel: Place,
    /// What says how much there is at once: `global_batch` of training, `concurrency` or `requests` of inference.
    pub batch: Place,
    /// `precision`.
    pub precision: Place,
    /// `shard`.
    pub shard: Place,
    /// What says where something is kept: `optimizer_tier` of training, `kv_tier` of inference.
    pub tier: Place,
    /// `placement`.
    pub placement: Place,
    /// The GPU of `placement` with the largest number.
    pub farthest: Place,
}

/// What is computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// A model is trained.
    Training(Training),
    /// A model answers requests.
    Inference(Serving),
    /// What a trace says, again.
    Trace(Traced),
}

impl Job {
    /// As `kind` is written.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Training(_) => "training",
            Self::Inference(_) => "inference",
            Self::Trace(_) => "trace",
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Training(job) => &job.name,
            Self::Inference(job) => &job.name,
            Self::Trace(job) => &job.name,
        }
    }

    /// What it counts for among others, over 0.
    #[must_use]
    pub fn weight(&self) -> f64 {
        match self {
            Self::Training(job) => job.weight,
            Self::Inference(job) => job.weight,
            Self::Trace(job) => job.weight,
        }
    }

    /// Which GPU each of its ranks has.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        match self {
            Self::Training(job) => &job.placement,
            Self::Inference(job) => &job.placement,
            // Who wrote it down knew where its ranks were.
            Self::Trace(_) => &Placement::Block,
        }
    }

    /// The device of each of its ranks on a fabric, all of whose GPUs it is on.
    ///
    /// # Errors
    /// [`JobError`] at `placement`, where that is of other GPUs.
    pub fn ranks_on<'f>(&self, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
        self.placement().on(fabric, self.places())
    }

    /// What its calls may be done by.
    #[must_use]
    pub fn collectives(&self) -> Collectives {
        match self {
            Self::Training(job) => job.collectives,
            Self::Inference(job) => job.collectives,
            Self::Trace(job) => job.collectives,
        }
    }

    /// Of its products; `None` where it has none.
    #[must_use]
    pub fn precision(&self) -> Option<Precision> {
        match self {
            Self::Training(job) => Some(job.precision),
            Self::Inference(job) => Some(job.precision),
            Self::Trace(_) => None,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn places(&self) -> &Places {
        match self {
            Self::Training(job) => &job.places,
            Self::Inference(job) => &job.places,
            Self::Trace(job) => &job.places,
        }
    }
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
    /// 8-bit products. Training keeps weights and activations in 16 bits, inference weights in 8.
    Fp8,
    /// 4-bit products of answers: weights in 4 bits, and for sixteen of them a factor of 8.
    Nvfp4,
}

impl Precision {
    /// Bytes of an activation, and of a weight or gradient that is trained.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 | Self::Fp8 | Self::Nvfp4 => 2,
        }
    }

    /// Bytes of a weight that is only read, while a model answers, and of a token's element on its way to an expert.
    #[must_use]
    pub fn served_bytes(self) -> f64 {
        match self {
            // (NVIDIA, cuDNN documentation, "Block Scaling": NVFP4.)
            Self::Nvfp4 => (4.0 + 8.0 / 16.0) / 8.0,
            Self::Fp8 => 1.0,
            other => other.bytes() as f64,
        }
    }

    /// Bytes of the optimizer's state for a parameter: Adam's two moments, and a 32-bit copy of weights that are kept in
    /// fewer (Rajbhandari et al., ZeRO, section 3.1: K = 12).
    #[must_use]
    pub fn state_bytes(self) -> u64 {
        match self {
            Self::Fp32 => 8,
            Self::Bf16 | Self::Fp16 | Self::Fp8 | Self::Nvfp4 => 12,
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
