//! The time of a training step: kernels by one curve, calls by plan and simulation, stages in time, gradients behind them.
//!
//! ```text
//! Job × Layout ─► kernels ─► Efficiency ─┐
//!            └──► traffic ─► Tariff ─────┴─► passes of stages ─► Pipeline ─► gradients, optimizer ─► Step
//! ```
//!
//! Calls of tensor, expert and context groups stand between kernels that need them, and are waited for. What nothing
//! waits for at once (gradients, weights ahead of their layer, hand-offs, keys and values of the next round) travels while
//! the GPU computes, unless the job says that it does not. Kernels that run beside communication are not slowed by it.

mod calls;
mod course;
mod efficiency;
mod estimated;
mod gradients;
mod kernels;
mod least;
mod load;
mod meeting;
mod one_process;
mod own_choice;
mod pipeline;
mod price;
mod search;
mod together;

pub(crate) use calls::exchange;
pub use calls::{Often, PricedCall, StepCall, calls};
pub use course::{Course, Doing, Interval, Lane};
pub use efficiency::{Efficiency, Speeds};
pub use estimated::Estimated;
pub use kernels::{Kernel, Passes, layer, logits, optimizer, words};
pub use load::Load;
pub(crate) use own_choice::Listed;
pub use price::{Allowed, Exchange, Simulated, Tariff};
pub(crate) use price::{OwnChoice, fastest};
pub use search::{Machine, StepError, best_step, course_of_step, unbounded_step};
pub(crate) use search::{indivisible, shortlist};
pub(crate) use together::Planned;

use fabricast_topologies::{Bytes, Picos};
use pipeline::{Pass, Passed, Pipeline, StageTime};
use rayon::prelude::*;

use crate::job::{
    Dimension, GroupCall, JobError, Layout, Overlap, Phase, Processes, Training, Zero, parameters, traffic,
};
use crate::plan::PlanError;

/// What time of a step goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// Kernels of the passes.
    Compute,
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
    pub const ALL: [Self; 9] = [
        Self::Compute,
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

/// What a pass of a stretch of layers takes.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    compute: Picos,
    tensor: Picos,
    expert: Picos,
    /// Exposed, of both.
    context: Picos,
    data: Picos,
    /// Hidden or not.
    context_all: Picos,
    data_all: Picos,
}

impl Spent {
    fn waited(&self) -> Picos {
        self.compute + self.tensor + self.expert + self.context + self.data
    }

    fn communication(&self) -> Picos {
        self.tensor + self.expert + self.context_all + self.data_all
    }

    fn plus(self, other: Self) -> Self {
        Self {
            compute: self.compute + other.compute,
            tensor: self.tensor + other.tensor,
            expert: self.expert + other.expert,
            context: self.context + other.context,
            data: self.data + other.data,
            context_all: self.context_all + other.context_all,
            data_all: self.data_all + other.data_all,
        }
    }

    fn times(self, n: u64) -> Self {
        let of = |time: Picos| times(time, n);
        Self {
            compute: of(self.compute),
            tensor: of(self.tensor),
            expert: of(self.expert),
            context: of(self.context),
            data: of(self.data),
            context_all: of(self.context_all),
            data_all: of(self.data_all),
        }
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

/// The most passes that are followed one by one.
const MOST_PASSES: u64 = 4_000_000;

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

/// What a step is made of, before it runs.
struct Timing<'a> {
    job: &'a Training,
    layout: &'a Layout,
    speeds: &'a Speeds,
    curve: &'a Efficiency,
    passes: StagePasses,
    pipeline: Pipeline,
    reduction: Reduction,
    /// Of the optimizer.
    updating: Picos,
    /// Weights that travel after it.
    updated: Picos,
}

/// How a step ends, on the stage that ends last.
struct Ending {
    slowest: usize,
    /// When its gradients have arrived.
    gradients_done: Picos,
    /// The part of [`Timing::updated`] that is waited for: the rest arrives while the next step's first forward passes run.
    updated_exposed: Picos,
    time: Picos,
}

impl<'a> Timing<'a> {
    fn of(
        job: &'a Training,
        layout: &'a Layout,
        speeds: &'a Speeds,
        curve: &'a Efficiency,
        tariff: &dyn Tariff,
    ) -> Result<Self, TimeError> {
        let micro = layout.micro_batches(job);
        let degrees = layout.degrees;
        let (stages, chunks) = (u64::from(degrees.pipeline), u64::from(degrees.interleave));
        if micro.saturating_mul(stages * chunks) > MOST_PASSES {
            let message =
                format!("{micro} micro-batches through {} stretches of layers are too many to follow", stages * chunks);
            return Err(JobError { place: job.places.batch.clone(), message, help: None }.into());
        }
        let calls = traffic(job, layout);
        let prices = Prices { calls: &calls, layout, tariff };
        prices.look_up(job);
        let passes = StagePasses::new(job, layout, speeds, curve, &prices)?;
        let hand_off = prices.of(Phase::HandOff, None)?;
        let pairs = |spent: &[Vec<[Spent; 2]>]| -> Vec<Vec<(Picos, Picos)>> {
            spent.iter().map(|of| of.iter().map(|[f, b]| (f.waited(), b.waited())).collect()).collect()
        };
        let pipeline = Pipeline { passes: pairs(&passes.spent), micro: micro as usize, hand_off, overlap: job.overlap };
        let reduction = Reduction::new(job, &prices)?;
        let shard =
            |parameters: u64, copies: u64| parameters.div_ceil(if job.zero == Zero::None { 1 } else { copies.max(1) });
        let (shared, experts) = parameters(job, layout);
        let own = shard(shared, u64::from(layout.size(Dimension::Data)))
            + shard(experts, u64::from(layout.size(Dimension::ExpertData)));
        let updating = curve.total(&optimizer(job, own), speeds);
        let updated = prices.of(Phase::Updated, None)?;
        Ok(Self { job, layout, speeds, curve, passes, pipeline, reduction, updating, updated })
    }

    /// When a stage is through with its gradients; `tell` is told of each bucket.
    fn finished(&self, time: &StageTime, mut tell: impl FnMut(Picos, Picos)) -> Picos {
        match self.job.overlap {
            Overlap::On => self.reduction.arrived(&time.last, tell).max(time.end),
            Overlap::Off => {
                let end = time.end + self.reduction.total();
                tell(time.end, end);
                end
            }
        }
    }

    fn of_stage(&self, stage: usize) -> &[[Spent; 2]] {
        self.passes.spent.get(stage).map(Vec::as_slice).unwrap_or_default()
    }

    fn ending(&self, stage_times: &[StageTime]) -> Result<Ending, TimeError> {
        let done = stage_times.iter().map(|time| self.finished(time, |_, _| ()));
        let slowest = done.enumerate().max_by_key(|&(stage, done)| (done, std::cmp::Reverse(stage)));
        let Some((slowest, gradients_done)) = slowest else {
            let place = self.job.places.parallel.clone();
            return Err(JobError { place, message: "no stage".to_owned(), help: None }.into());
        };
        // Weights of the next step arrive while its first forward pass runs.
        let first: Picos = self.of_stage(slowest).iter().map(|[forward, _]| forward.waited()).sum();
        let updated_exposed = if self.job.overlap == Overlap::On { self.updated - first } else { self.updated };
        Ok(Ending { slowest, gradients_done, updated_exposed, time: gradients_done + self.updating + updated_exposed })
    }

    fn step(&self) -> Result<Step, TimeError> {
        let stage_times = self.pipeline.run();
        let Ending { slowest, gradients_done, updated_exposed, time: total } = self.ending(&stage_times)?;
        let time = stage_times.get(slowest).cloned().unwrap_or_default();
        let (micro, degrees) = (self.layout.micro_batches(self.job), self.layout.degrees);
        let whole =
            self.of_stage(slowest).iter().fold(Spent::default(), |sum, [f, b]| sum.plus(*f).plus(*b)).times(micro);
        let shares = vec![
            (Share::Compute, whole.compute),
            (Share::Optimizer, self.updating),
            (Share::Tensor, whole.tensor),
            (Share::Context, whole.context),
            (Share::Expert, whole.expert),
            (Share::Data, whole.data + (gradients_done - time.end) + updated_exposed),
            (Share::HandOff, time.handing),
            (Share::Bubble, time.end - time.busy - time.handing),
        ];
        let hand_offs = if degrees.pipeline > 1 {
            times(self.pipeline.hand_off, 2 * micro * u64::from(degrees.interleave))
        } else {
            Picos::ZERO
        };
        Ok(Step {
            layout: *self.layout,
            time: total,
            shares,
            communication: whole.communication() + self.reduction.total() + self.updated + hand_offs,
            alone: alone(self.job, self.speeds, self.curve),
        })
    }

    fn course(&self) -> Result<Course, TimeError> {
        let mut course = Course::default();
        let stage_times = self.pipeline.run_telling(|Passed { stage, pass, begin, end, free }| {
            let doing = match pass {
                Pass::Forward { .. } => Doing::Forward,
                Pass::Backward { .. } => Doing::Backward,
            };
            let (number, chunk) = (pass.micro() as u64, pass.chunk() as u64);
            let lane = Lane::Stage(stage as u64);
            course.add(lane, Interval { doing, number, chunk, begin, end });
            course.add(lane, Interval { doing: Doing::HandOff, number, chunk, begin: end, end: free });
        });
        let Ending { updated_exposed, .. } = self.ending(&stage_times)?;
        for (stage, time) in (0..).zip(&stage_times) {
            let (lane, beside) = (Lane::Stage(stage), Lane::Beside(stage));
            // The rest of the weights that the step before sent.
            course.in_a_row(beside, Picos::ZERO, &[(Doing::Weights, 0, self.updated - updated_exposed)]);
            let mut number = 0;
            let done = self.finished(time, |begin, end| {
                course.add(beside, Interval { doing: Doing::Gradients, number, chunk: 0, begin, end });
                number += 1;
            });
            let end = course.in_a_row(lane, done, &[(Doing::Optimizer, 0, self.updating)]);
            course.in_a_row(beside, end, &[(Doing::Weights, 0, updated_exposed)]);
        }
        Ok(course)
    }
}

/// What one GPU computes for the whole batch, in the same micro-batches.
fn alone(job: &Training, speeds: &Speeds, curve: &Efficiency) -> Picos {
    let layout = Layout { degrees: crate::job::Degrees::default() };
    // All experts are its own, in one stretch of tokens each.
    let total = |passes: &Passes| curve.total(&passes.forward, speeds) + curve.total(&passes.backward, speeds);
    let even = Training { skew: 1.0, ..job.clone() };
    let layers = times(total(&layer(&even, &layout)), job.model.layers);
    let each = layers + total(&words(&even, &layout)) + total(&logits(&even, &layout));
    let states = curve.total(&optimizer(job, job.model.parameters()), speeds);
    times(each, job.global_batch / job.micro_batch) + states
}

/// Calls with their prices.
struct Prices<'a> {
    calls: &'a [GroupCall],
    layout: &'a Layout,
    tariff: &'a dyn Tariff,
}

impl Prices<'_> {
    /// What the calls of a phase take, one after the other; of a dimension, or of all.
    fn of(&self, phase: Phase, dimension: Option<Dimension>) -> Result<Picos, PlanError> {
        let mut sum = Picos::ZERO;
        for call in self.calls {
            if call.phase == phase && dimension.is_none_or(|wanted| wanted == call.dimension) {
                sum += times(self.time(call, call.bytes)?, call.count);
            }
        }
        Ok(sum)
    }

    /// Works out all prices on all threads, for tariffs that keep them. What goes wrong is told where it is asked for.
    fn look_up(&self, job: &Training) {
        // Two threads would work out the same beside each other: both passes call alike.
        let mut asked: Vec<Exchange> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let bytes = if call.phase == Phase::Gradients { buckets(job, self.layout, call).1 } else { call.bytes };
            let exchange = exchange(call, bytes);
            if !asked.contains(&exchange) {
                asked.push(exchange);
            }
        }
        asked.par_iter().with_max_len(1).for_each(|&exchange| drop(self.tariff.time(self.layout, exchange)));
    }

    fn time(&self, call: &GroupCall, bytes: Bytes) -> Result<Picos, PlanError> {
        let exchange = Exchange { dimension: call.dimension, collective: call.collective, bytes };
        self.tariff.time(self.layout, exchange)
    }
}

/// Number and size of the buckets of gradients of a call: equal ones, so that one price does for all; a multiple of
/// what sixteen bytes of each rank take.
fn buckets(job: &Training, layout: &Layout, call: &GroupCall) -> (u64, Bytes) {
    let bucket = u64::from(job.bucket_mb) << 20;
    // A bucket holds gradients before they are compressed.
    let bucket = (bucket * u64::from(job.gradient_bits) / (8 * job.gradient_bytes())).max(1);
    let count = call.bytes.0.div_ceil(bucket).max(1);
    let ranks = u64::from(layout.size(call.dimension)).max(1);
    (count, Bytes(call.bytes.0.div_ceil(count).next_multiple_of(16 * ranks)))
}

/// Passes by stage, then by stretch: forward and backward.
struct StagePasses {
    spent: Vec<Vec<[Spent; 2]>>,
}

impl StagePasses {
    fn new(
        job: &Training,
        layout: &Layout,
        speeds: &Speeds,
        curve: &Efficiency,
        prices: &Prices<'_>,
    ) -> Result<Self, PlanError> {
        let (stages, chunks) = (layout.degrees.pipeline, layout.degrees.interleave);
        let kernels = layer(job, layout);
        let of = |kernels: &[Kernel]| curve.total(kernels, speeds);
        let mut each = [Spent::default(); 2];
        for (spent, (phase, kernels)) in
            each.iter_mut().zip([(Phase::LayerForward, &kernels.forward), (Phase::LayerBackward, &kernels.backward)])
        {
            spent.compute = of(kernels);
            spent.tensor = prices.of(phase, Some(Dimension::Tensor))?;
            spent.expert = prices.of(phase, Some(Dimension::Expert))?;
            spent.context_all = prices.of(phase, Some(Dimension::Context))?;
            // Keys and values of the next round come while this one is computed.
            spent.context = match job.overlap {
                Overlap::On => spent.context_all - spent.compute,
                Overlap::Off => spent.context_all,
            };
            let beside: &[Phase] = match phase {
                Phase::LayerBackward => &[Phase::WeightsBackward, Phase::LayerGradients],
                _ => &[Phase::WeightsForward],
            };
            for &travels in beside {
                spent.data_all += prices.of(travels, None)?;
            }
        }
        let of_layers = |layers: u64| {
            each.map(|spent| {
                let mut stretch = spent.times(layers);
                let work = stretch.waited();
                stretch.data = match job.overlap {
                    // All but those of one layer hide.
                    Overlap::On => (stretch.data_all - work + spent.data_all).min(stretch.data_all),
                    Overlap::Off => stretch.data_all,
                };
                stretch
            })
        };
        let of_stage = |stage: u32| -> Vec<[Spent; 2]> {
            (0..chunks).map(|stretch| of_layers(layout.stretch_layers(&job.model, stage, stretch))).collect()
        };
        let mut spent: Vec<Vec<[Spent; 2]>> = (0..stages).map(of_stage).collect();
        let ends = |passes: &Passes, phase| -> Result<[Spent; 2], PlanError> {
            let tensor = prices.of(phase, None)?;
            let waits = |wanted| if phase == wanted { tensor } else { Picos::ZERO };
            let forward = Spent { compute: of(&passes.forward), tensor: waits(Phase::Words), ..Spent::default() };
            Ok([forward, Spent { compute: of(&passes.backward), tensor: waits(Phase::Logits), ..Spent::default() }])
        };
        let add = |to: Option<&mut [Spent; 2]>, more: [Spent; 2]| {
            if let Some([forward, backward]) = to {
                *forward = forward.plus(more[0]);
                *backward = backward.plus(more[1]);
            }
        };
        add(spent.first_mut().and_then(|stage| stage.first_mut()), ends(&words(job, layout), Phase::Words)?);
        add(spent.last_mut().and_then(|stage| stage.last_mut()), ends(&logits(job, layout), Phase::Logits)?);
        Ok(Self { spent })
    }
}

/// Gradients once a step, in buckets: number and time of those of each call.
struct Reduction {
    buckets: Vec<(u64, Picos)>,
}

impl Reduction {
    fn new(job: &Training, prices: &Prices<'_>) -> Result<Self, PlanError> {
        let mut buckets = Vec::new();
        for call in prices.calls.iter().filter(|call| call.phase == Phase::Gradients) {
            let (count, each) = self::buckets(job, prices.layout, call);
            buckets.push((count, prices.time(call, each)?));
        }
        Ok(Self { buckets })
    }

    fn total(&self) -> Picos {
        self.buckets.iter().map(|&(count, time)| times(time, count)).sum()
    }

    /// When all have arrived, telling each bucket. Different calls take turns: each waits for the others' share.
    fn arrived(&self, ready: &[(Picos, Picos)], tell: impl FnMut(Picos, Picos)) -> Picos {
        let Some(&(most, _)) = self.buckets.iter().max_by_key(|bucket| bucket.0) else { return Picos::ZERO };
        gradients::arrived(ready, most, Picos(self.total().0.div_ceil(most.max(1))), tell)
    }
}

#[cfg(test)]
mod llama3;
#[cfg(test)]
mod placed;
#[cfg(test)]
mod published;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
