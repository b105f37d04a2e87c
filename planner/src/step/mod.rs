//! The time of a training step: kernels by one curve, calls by plan and simulation, stages in time, gradients behind them.
//!
//! ```text
//! Job × Layout ─► kernels ─► Efficiency ─┐
//!            └──► traffic ─► Tariff ─────┴─► passes of stages ─► Pipeline ─► gradients, optimizer ─► Step
//! ```
//!
//! Calls of tensor, expert and context groups stand between kernels that need them, and are waited for. What nothing
//! waits for at once (gradients, weights ahead of their layer, hand-offs, keys and values of the next round) travels while
//! the GPU computes, unless the job says that it does not. Kernels beside gradients, weights,
//! keys and values are slowed by them (`slowing`); hand-offs, and weights that arrive beside the first pass, slow none.

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

/// What time of a step goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// Kernels of the passes, as they are with nothing beside them.
    Compute,
    /// What they take longer where calls beside them hold multiprocessors and read and write memory.
    Slowed,
    /// The optimizer's.
    Optimizer,
    /// Waiting for tensor-parallel calls.
    Tensor,
    /// Waiting for keys and values.
    Context,
    /// Waiting for tokens of experts.
    Expert,
    /// Waiting for gradients and weights of other copies.
    Data,
    /// Handing over to other stages, and nothing else.
    HandOff,
    /// Waiting for other stages.
    Bubble,
    /// Waiting for the host to launch kernels, where one process drives all GPUs.
    Launch,
}

impl Share {
    /// All of them, in the order in which they are shown.
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

    /// As it is written.
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

    /// Whether it is communication.
    #[must_use]
    pub fn is_communication(self) -> bool {
        matches!(self, Self::Tensor | Self::Context | Self::Expert | Self::Data | Self::HandOff)
    }
}

/// A step of training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How the ranks were divided.
    pub layout: Layout,
    /// How long it takes.
    pub time: Picos,
    /// What the time of the stage that ends last goes to; the shares add up to `time`.
    pub shares: Vec<(Share, Picos)>,
    /// Communication of that stage, hidden or not.
    pub communication: Picos,
    /// What one GPU would compute for the whole batch, were its memory large enough.
    pub alone: Picos,
    /// What its calls are done by, of what the job allows.
    pub collectives: Collectives,
}

impl Step {
    /// The time of a share.
    #[must_use]
    pub fn of(&self, share: Share) -> Picos {
        self.shares.iter().filter(|one| one.0 == share).map(|one| one.1).sum()
    }

    /// A part of the step, 0 to 1.
    #[must_use]
    pub fn part(&self, time: Picos) -> f64 {
        time.0 as f64 / self.time.0.max(1) as f64
    }

    /// Communication that the GPUs wait for, as a part of the step.
    #[must_use]
    pub fn exposed(&self) -> f64 {
        self.part(self.shares.iter().filter(|one| one.0.is_communication()).map(|one| one.1).sum())
    }

    /// All communication over the step; over 1 where it overlaps with itself.
    #[must_use]
    pub fn total_communication(&self) -> f64 {
        self.part(self.communication)
    }

    /// Speed-up over one GPU, divided by the ranks.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        self.part(self.alone) / self.layout.degrees.ranks().max(1) as f64
    }

    /// The share that takes the most time.
    #[must_use]
    pub fn binds(&self) -> Share {
        let most = self.shares.iter().max_by_key(|one| (one.1, std::cmp::Reverse(one.0)));
        most.map_or(Share::Compute, |one| one.0)
    }
}

pub(crate) fn times(time: Picos, n: u64) -> Picos {
    Picos(time.0.saturating_mul(n))
}

/// Why a step has no time.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimeError {
    /// The job cannot be.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A call cannot be priced.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The time of a step.
///
/// # Errors
/// [`TimeError`]: more micro-batches than can be followed, or a call without a price.
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

/// The course of a step in time, by which [`step`] has its time.
///
/// # Errors
/// As [`step`].
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

/// What one GPU computes for the whole batch, in the same micro-batches.
fn alone(job: &Training, speeds: &Speeds, curve: &Efficiency) -> Picos {
    let layout = Layout { degrees: crate::job::Degrees::default() };
    // All experts are its own, in one stretch of tokens each.
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
