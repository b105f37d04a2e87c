//! Completion time of a training step: kernel times from an efficiency curve, call times from the planner and the
//! simulator, a pipeline schedule, gradient reduction and the optimizer.
//!
//! ```text
//! Job × Layout ─► kernels ─► Efficiency ─┐
//!            └──► traffic ─► Tariff ─────┴─► passes of stages ─► Pipeline ─► gradients, optimizer ─► Step
//! ```
//!
//! Calls of tensor, expert and context groups lie on the critical path of the kernels that need them and are exposed.
//! Gradient reduction, weights gathered ahead of their layer, pipeline point-to-point transfers and the keys and values
//! of the next ring-attention round overlap with computation, unless the job turns overlap off. Kernels that overlap
//! with gradients, weights, keys or values are slowed by them (`interference`). Pipeline transfers, and weights that arrive
//! during the first forward pass, slow no kernel.

mod call_times;
mod candidates;
mod concurrent_calls;
mod data_parallel_single_process;
mod efficiency;
mod elementwise;
mod estimated;
mod gradients;
mod host_classes;
mod idle_gpus;
mod interference;
mod kernels;
mod large_group_candidates;
mod library_default;
mod link_load;
mod link_sharing;
mod offload;
mod passes;
mod peak_rates;
mod pipeline;
mod rank_scaling;
mod search;
mod size_sampling;
mod step_calls;
mod step_lower_bound;
mod step_timing;
mod stream_overlap;
mod tensor_overlap;
mod timeline;

pub use call_times::{CommunicationCostModel, Exchange, RestrictedCosts, SimulatedCosts};
pub use candidates::{LibraryChoiceScope, fastest};
pub use concurrent_calls::CallWithStrategy;
pub use efficiency::Efficiency;
pub use estimated::EstimatedCosts;
pub use idle_gpus::active_ranks;
pub use idle_gpus::divisible_batch;
pub use interference::{BlockScheduling, CallExtent, SmUsage};
use kernels::layers;
pub(crate) use kernels::padded_rows;
pub use kernels::{Kernel, KernelKind, PassKernels, embedding, layer, logits, optimizer};
pub use library_default::{ListedCall, ListedCosts};
pub use link_load::LinkLoad;
pub use offload::check_tier;
pub use peak_rates::PeakRates;
pub use search::{Machine, StepError, best_step, best_step_timeline, unbounded_step};
pub(crate) use search::{indivisible_error, shortlist};
pub(crate) use step_calls::exchange;
pub use step_calls::{CallCount, StepCall, TimedCall, step_calls};
pub use timeline::{Activity, Interval, Timeline, Track};

use fabricast_topologies::Picos;
use step_timing::StepTiming;

use fabricast_search::plan::PlanError;
use fabricast_workload::job::{CollectiveCandidates, JobError, Layout, Processes, Training};

/// Category that time of a step is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// Kernels of the passes, at their speed without concurrent calls.
    Compute,
    /// Slowdown of kernels by concurrent calls that occupy SMs and memory bandwidth.
    Slowdown,
    /// Optimizer update.
    Optimizer,
    /// Exposed tensor-parallel communication.
    Tensor,
    /// Exposed context-parallel communication (keys and values).
    Context,
    /// Exposed expert-parallel communication (token dispatch and combine).
    Expert,
    /// Exposed data-parallel communication (gradients and weights).
    Data,
    /// Pipeline point-to-point transfers during which the stage does nothing else.
    PipelineTransfer,
    /// Pipeline bubble: idle time while waiting for other stages.
    Bubble,
    /// Kernel launch time on the host where one process drives all GPUs.
    Launch,
}

impl Share {
    /// All shares, in display order.
    pub const ALL: [Self; 10] = [
        Self::Compute,
        Self::Slowdown,
        Self::Optimizer,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Data,
        Self::PipelineTransfer,
        Self::Bubble,
        Self::Launch,
    ];

    /// The name as serialized.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Slowdown => "slowed",
            Self::Optimizer => "optimizer",
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::PipelineTransfer => "hand_off",
            Self::Bubble => "bubble",
            Self::Launch => "launch",
        }
    }

    /// Returns true if the share is communication.
    #[must_use]
    pub fn is_communication(self) -> bool {
        matches!(self, Self::Tensor | Self::Context | Self::Expert | Self::Data | Self::PipelineTransfer)
    }
}

/// Predicted training step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Parallel layout of the ranks.
    pub layout: Layout,
    /// Completion time of the step.
    pub time: Picos,
    /// Time by share on the stage that ends last; the shares sum up to `time`.
    pub shares: Vec<(Share, Picos)>,
    /// Total communication time of that stage, hidden or exposed.
    pub communication: Picos,
    /// Compute time of the whole batch on one GPU with unlimited memory.
    pub single_gpu_time: Picos,
    /// Collectives that the calls use, out of those that the job allows.
    pub collectives: CollectiveCandidates,
}

impl Step {
    /// Returns the time of a share.
    #[must_use]
    pub fn share_time(&self, share: Share) -> Picos {
        self.shares.iter().filter(|one| one.0 == share).map(|one| one.1).sum()
    }

    /// Returns `time` as a fraction of the step, 0 to 1.
    #[must_use]
    pub fn fraction(&self, time: Picos) -> f64 {
        time.0 as f64 / self.time.0.max(1) as f64
    }

    /// Exposed communication as a fraction of the step.
    #[must_use]
    pub fn exposed_communication(&self) -> f64 {
        self.fraction(self.shares.iter().filter(|one| one.0.is_communication()).map(|one| one.1).sum())
    }

    /// All communication as a fraction of the step. Exceeds 1 where calls overlap with each other.
    #[must_use]
    pub fn total_communication(&self) -> f64 {
        self.fraction(self.communication)
    }

    /// Parallel efficiency: speed-up over one GPU divided by the number of ranks.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        self.fraction(self.single_gpu_time) / self.layout.degrees.ranks().max(1) as f64
    }

    /// Returns the largest share: the bottleneck.
    #[must_use]
    pub fn bottleneck(&self) -> Share {
        let largest = self.shares.iter().max_by_key(|one| (one.1, std::cmp::Reverse(one.0)));
        largest.map_or(Share::Compute, |one| one.0)
    }
}

pub(crate) fn scaled(time: Picos, n: u64) -> Picos {
    Picos(time.0.saturating_mul(n))
}

/// Reason why a step has no predicted time.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimeError {
    /// The job is invalid.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A call has no predicted time.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Predicts the completion time of a step.
///
/// # Errors
/// [`TimeError`]: too many micro-batches to schedule pass by pass, or a call without a predicted time.
pub fn step(
    job: &Training,
    layout: &Layout,
    speeds: &PeakRates,
    curve: &Efficiency,
    collective_costs: &dyn CommunicationCostModel,
) -> Result<Step, TimeError> {
    if job.processes == Processes::Single {
        return Ok(
            data_parallel_single_process::SequentialStep::new(job, layout, speeds, curve, collective_costs)?.step()
        );
    }
    StepTiming::new(job, layout, speeds, curve, collective_costs)?.step()
}

/// Returns the timeline of a step. Its last end is the time that [`step`] returns.
///
/// # Errors
/// See [`step`].
pub fn step_timeline(
    job: &Training,
    layout: &Layout,
    speeds: &PeakRates,
    curve: &Efficiency,
    collective_costs: &dyn CommunicationCostModel,
) -> Result<Timeline, TimeError> {
    if job.processes == Processes::Single {
        return Ok(
            data_parallel_single_process::SequentialStep::new(job, layout, speeds, curve, collective_costs)?.timeline()
        );
    }
    StepTiming::new(job, layout, speeds, curve, collective_costs)?.timeline()
}

/// Compute time of the whole batch on one GPU, in the same micro-batches.
fn single_gpu_time(job: &Training, speeds: &PeakRates, curve: &Efficiency) -> Picos {
    let layout = Layout { degrees: fabricast_workload::job::Degrees::default() };
    // One GPU holds all experts, so its tokens are spread over them evenly.
    let total = |passes: &PassKernels| curve.total(&passes.forward, speeds) + curve.total(&passes.backward, speeds);
    let even = Training { skew: 1.0, ..job.clone() };
    let layers: Picos = layers(&even, &layout).iter().map(|(layer, n)| scaled(total(layer), *n)).sum();
    let micro_batch_time = layers + total(&embedding(&even, &layout)) + total(&logits(&even, &layout));
    let states = curve.total(&optimizer(job, job.model.parameters()), speeds);
    scaled(micro_batch_time, job.global_batch / job.micro_batch) + states
}

#[cfg(test)]
pub(crate) mod tests;
