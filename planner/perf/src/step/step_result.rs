//! Predicted training step, whose time is divided into shares.

use fabricast_topologies::Picos;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use fabricast_search::plan::PlanError;
use fabricast_workload::job::{CollectiveCandidates, JobError, Layout};

/// Category to which a part of a step's time is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Share {
    /// Kernels of the passes, at their speed without concurrent calls.
    Compute,
    /// Slowdown of kernels by concurrent calls that occupy SMs and memory bandwidth.
    Slowdown,
    /// Optimizer update of the parameters.
    Optimizer,
    /// Wait for offloaded weights and gradients of the passes.
    Offload,
    /// Exposed tensor-parallel communication.
    Tensor,
    /// Exposed context-parallel communication (keys and values).
    Context,
    /// Exposed expert-parallel communication (token dispatch and combine).
    Expert,
    /// Exposed data-parallel communication (gradients and weights).
    Data,
    /// Pipeline point-to-point transfers during which the stage is idle.
    PipelineTransfer,
    /// Pipeline bubble: idle time while waiting for other stages.
    Bubble,
    /// Kernel launch time on the host that the GPU waits for.
    Launch,
}

impl Share {
    /// All categories, in display order.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the name of the share in JSON and CSV output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Slowdown => "slowed",
            Self::Optimizer => "optimizer",
            Self::Offload => "offload",
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::PipelineTransfer => "hand_off",
            Self::Bubble => "bubble",
            Self::Launch => "launch",
        }
    }

    /// Returns true if the share is exposed communication.
    #[must_use]
    pub fn is_communication(self) -> bool {
        matches!(self, Self::Tensor | Self::Context | Self::Expert | Self::Data | Self::PipelineTransfer)
    }
}

/// Predicted training step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Parallel layout with which the step was predicted.
    pub layout: Layout,
    /// Completion time of the step.
    pub time: Picos,
    /// Time of each share on the stage that ends last. The shares add up to `time`.
    pub shares: Vec<(Share, Picos)>,
    /// Total communication time of that stage, hidden or exposed.
    pub communication: Picos,
    /// Compute time of the whole batch on one GPU with unlimited memory.
    pub single_gpu_time: Picos,
    /// Collectives that the calls use, out of those that the job allows.
    pub collectives: CollectiveCandidates,
}

impl Step {
    /// Returns the time of a share; 0 if the step has none.
    #[must_use]
    pub fn share_time(&self, share: Share) -> Picos {
        self.shares.iter().filter(|one| one.0 == share).map(|one| one.1).sum()
    }

    /// Returns `time` divided by the completion time of the step.
    #[must_use]
    pub fn fraction(&self, time: Picos) -> f64 {
        time.0 as f64 / self.time.0.max(1) as f64
    }

    /// Returns the exposed communication as a fraction of the step, 0 to 1.
    #[must_use]
    pub fn exposed_communication(&self) -> f64 {
        self.fraction(self.shares.iter().filter(|one| one.0.is_communication()).map(|one| one.1).sum())
    }

    /// Returns the sum of the times of all calls, hidden or exposed, divided by the time of the step. Concurrent calls
    /// count separately, so that the ratio can exceed 1.
    #[must_use]
    pub fn total_communication(&self) -> f64 {
        self.fraction(self.communication)
    }

    /// Returns the parallel efficiency: speed-up over one GPU divided by the number of ranks.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        self.fraction(self.single_gpu_time) / self.layout.degrees.ranks().max(1) as f64
    }

    /// Returns the share with the longest time: the bottleneck of the step.
    #[must_use]
    pub fn bottleneck(&self) -> Share {
        let largest = self.shares.iter().max_by_key(|one| (one.1, std::cmp::Reverse(one.0)));
        largest.map_or(Share::Compute, |one| one.0)
    }
}

/// Reason why a step has no predicted time.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimeError {
    /// The job is invalid, or cannot be divided among these ranks.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A call has no strategy or cannot be simulated.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
