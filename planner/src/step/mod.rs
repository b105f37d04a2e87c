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
//! with gradients, weights, keys or values are slowed by them (`slowing`). Pipeline transfers, and weights that arrive
//! during the first forward pass, slow no kernel.

mod between;
mod calls;
mod course;
mod efficiency;
mod estimated;
mod fewer;
mod forms;
mod gradients;
mod in_pieces;
mod kernels;
mod least;
mod load;
mod meeting;
mod of_many;
mod one_process;
mod own_choice;
mod passes;
mod pipeline;
mod price;
mod rows;
mod sample;
mod search;
mod slowing;
mod spares;
mod speeds;
mod tier;
mod timing;
mod together;
mod ways;

pub(crate) use calls::exchange;
pub use calls::{Often, PricedCall, StepCall, calls};
pub use course::{Course, Doing, Interval, Lane};
pub use efficiency::Efficiency;
pub use estimated::Estimated;
use kernels::layers;
pub(crate) use kernels::tiled;
pub use kernels::{Kernel, Kind, Passes, layer, logits, optimizer, words};
pub use load::Load;
pub(crate) use own_choice::{Listed, ListedCall};
pub use price::{Allowed, Exchange, Simulated, Tariff};
pub use search::{Machine, StepError, best_step, course_of_step, unbounded_step};
pub(crate) use search::{indivisible, shortlist};
pub use slowing::{Blocks, Claim, Reach};
pub(crate) use spares::batch_for;
pub use spares::ranks_at_work;
pub use speeds::Speeds;
pub use tier::check_tier;
pub(crate) use together::Planned;
pub(crate) use ways::{OwnChoice, fastest};

use fabricast_topologies::Picos;
use timing::Timing;

use crate::job::{Collectives, JobError, Layout, Processes, Training};
use crate::plan::PlanError;

/// Category that time of a step is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// Kernels of the passes, at their speed without concurrent calls.
    Compute,
    /// Slowdown of kernels by concurrent calls that occupy SMs and memory bandwidth.
    Slowed,
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
    HandOff,
    /// Pipeline bubble: idle time while waiting for other stages.
    Bubble,
    /// Kernel launch time on the host where one process drives all GPUs.
    Launch,
}

impl Share {
    /// All shares, in display order.
    pub const ALL: [Self; 10] = [
        Self::Compute,
        Self::Slowed,
        Self::Optimizer,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Data,
        Self::HandOff,
        Self::Bubble,
        Self::Launch,
    ];

    /// The name as serialized.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Slowed => "slowed",
            Self::Optimizer => "optimizer",
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::HandOff => "hand_off",
            Self::Bubble => "bubble",
            Self::Launch => "launch",
        }
    }

    /// Returns true if the share is communication.
    #[must_use]
    pub fn is_communication(self) -> bool {
        matches!(self, Self::Tensor | Self::Context | Self::Expert | Self::Data | Self::HandOff)
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
    pub alone: Picos,
    /// Collectives that the calls use, out of those that the job allows.
    pub collectives: Collectives,
}

impl Step {
    /// Returns the time of a share.
    #[must_use]
    pub fn of(&self, share: Share) -> Picos {
        self.shares.iter().filter(|one| one.0 == share).map(|one| one.1).sum()
    }

    /// Returns `time` as a fraction of the step, 0 to 1.
    #[must_use]
    pub fn part(&self, time: Picos) -> f64 {
        time.0 as f64 / self.time.0.max(1) as f64
    }

    /// Exposed communication as a fraction of the step.
    #[must_use]
    pub fn exposed(&self) -> f64 {
        self.part(self.shares.iter().filter(|one| one.0.is_communication()).map(|one| one.1).sum())
    }

    /// All communication as a fraction of the step. Exceeds 1 where calls overlap with each other.
    #[must_use]
    pub fn total_communication(&self) -> f64 {
        self.part(self.communication)
    }

    /// Parallel efficiency: speed-up over one GPU divided by the number of ranks.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        self.part(self.alone) / self.layout.degrees.ranks().max(1) as f64
    }

    /// Returns the largest share: the bottleneck.
    #[must_use]
    pub fn binds(&self) -> Share {
        let most = self.shares.iter().max_by_key(|one| (one.1, std::cmp::Reverse(one.0)));
        most.map_or(Share::Compute, |one| one.0)
    }
}

pub(crate) fn times(time: Picos, n: u64) -> Picos {
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
    speeds: &Speeds,
    curve: &Efficiency,
    tariff: &dyn Tariff,
) -> Result<Step, TimeError> {
    if job.processes == Processes::Single {
        return Ok(one_process::Parts::of(job, layout, speeds, curve, tariff)?.step());
    }
    Timing::of(job, layout, speeds, curve, tariff)?.step()
}

/// Returns the timeline of a step. Its last end is the time that [`step`] returns.
///
/// # Errors
/// See [`step`].
pub fn course(
    job: &Training,
    layout: &Layout,
    speeds: &Speeds,
    curve: &Efficiency,
    tariff: &dyn Tariff,
) -> Result<Course, TimeError> {
    if job.processes == Processes::Single {
        return Ok(one_process::Parts::of(job, layout, speeds, curve, tariff)?.course());
    }
    Timing::of(job, layout, speeds, curve, tariff)?.course()
}

/// Compute time of the whole batch on one GPU, in the same micro-batches.
fn alone(job: &Training, speeds: &Speeds, curve: &Efficiency) -> Picos {
    let layout = Layout { degrees: crate::job::Degrees::default() };
    // One GPU holds all experts, so its tokens are spread over them evenly.
    let total = |passes: &Passes| curve.total(&passes.forward, speeds) + curve.total(&passes.backward, speeds);
    let even = Training { skew: 1.0, ..job.clone() };
    let layers: Picos = layers(&even, &layout).iter().map(|(layer, n)| times(total(layer), *n)).sum();
    let each = layers + total(&words(&even, &layout)) + total(&logits(&even, &layout));
    let states = curve.total(&optimizer(job, job.model.parameters()), speeds);
    times(each, job.global_batch / job.micro_batch) + states
}

#[cfg(test)]
mod auto;
#[cfg(test)]
mod bandwidth;
#[cfg(test)]
mod experts;
#[cfg(test)]
mod llama3;
#[cfg(test)]
mod placed;
#[cfg(test)]
mod published;
#[cfg(test)]
mod recomputed;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod sharded;
#[cfg(test)]
pub(crate) mod tests;
