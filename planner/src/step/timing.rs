//! Assembly of a step: passes, the pipeline schedule, gradient reduction and the optimizer.

use fabricast_topologies::Picos;

use super::gradients::Buckets;
use super::kernels::{layer, update};
use super::passes::{Prices, Spent, StagePasses};
use super::pipeline::{Pass, Passed, Pipeline, StageTime};
use super::slowing::Beside;
use super::{Course, Doing, Efficiency, Interval, Lane, Share, Speeds, Step, Tariff, TimeError, alone, times};
use crate::job::{Dimension, JobError, Layout, Overlap, Phase, Training, Zero, parameters, traffic};

/// Largest number of passes in a pipeline schedule that is computed pass by pass.
const MOST_PASSES: u64 = 4_000_000;

/// Returns true if the number of passes (micro-batches times model chunks) is small enough for a pass-by-pass schedule.
pub(super) fn can_be_followed(job: &Training, layout: &Layout) -> bool {
    let stretches = u64::from(layout.degrees.pipeline) * u64::from(layout.degrees.interleave);
    layout.micro_batches(job).saturating_mul(stretches) <= MOST_PASSES
}

/// Components of a step before the schedule runs.
pub(super) struct Timing<'a> {
    job: &'a Training,
    layout: &'a Layout,
    speeds: &'a Speeds,
    curve: &'a Efficiency,
    passes: StagePasses,
    pipeline: Pipeline,
    /// Gradient buckets, reduced during or after the passes.
    buckets: Buckets,
    /// Time of the optimizer.
    updating: Picos,
    /// Gradient all-reduce of the embedding shared by the first and the last pipeline stage.
    words: Picos,
    /// Gathering of updated weights after the optimizer.
    updated: Picos,
}

/// End of a step, on the stage that ends last.
struct Ending {
    slowest: usize,
    /// Time at which its gradients are reduced.
    gradients_done: Picos,
    /// Exposed part of [`Timing::updated`]; the rest overlaps with the first forward passes of the next step.
    updated_exposed: Picos,
    time: Picos,
}

impl<'a> Timing<'a> {
    pub(super) fn of(
        job: &'a Training,
        layout: &'a Layout,
        speeds: &'a Speeds,
        curve: &'a Efficiency,
        tariff: &dyn Tariff,
    ) -> Result<Self, TimeError> {
        let micro = layout.micro_batches(job);
        let degrees = layout.degrees;
        if !can_be_followed(job, layout) {
            let stretches = u64::from(degrees.pipeline) * u64::from(degrees.interleave);
            let message =
                format!("{micro} micro-batches through {stretches} stretches of layers are too many to follow");
            return Err(JobError { place: job.places.batch.clone(), message, help: None }.into());
        }
        let calls = traffic(job, layout);
        let prices = Prices { calls: &calls, layout, tariff };
        prices.look_up(job);
        let kernels = layer(job, layout);
        let slowest = curve.of_slowest(layout.degrees.ranks());
        let passes = StagePasses::new(job, &kernels, speeds, &slowest, &prices)?;
        let hand_off = prices.of(Phase::HandOff, None)?;
        let pairs = |spent: &[Vec<[Spent; 2]>]| -> Vec<Vec<(Picos, Picos)>> {
            spent.iter().map(|of| of.iter().map(|[f, b]| (f.waited(), b.waited())).collect()).collect()
        };
        let lose = |time, claim| Beside::of(time, claim, &kernels.backward, &slowest, speeds);
        let buckets = Buckets::new(job, &prices, lose)?;
        let pipeline = Pipeline {
            passes: pairs(&passes.spent),
            micro: micro as usize,
            hand_off,
            overlap: job.overlap,
            buckets: (job.overlap == Overlap::On).then_some(buckets),
        };
        let shard =
            |parameters: u64, copies: u64| parameters.div_ceil(if job.zero == Zero::None { 1 } else { copies.max(1) });
        let (shared, experts) = parameters(job, layout);
        let own = shard(shared, u64::from(layout.size(Dimension::Data)))
            + shard(experts, u64::from(layout.size(Dimension::ExpertData)));
        let updating = update(job, own, speeds, &slowest);
        let updated = prices.of(Phase::Updated, None)?;
        let words = prices.of(Phase::WordGradients, None)?;
        let beside = Self { job, layout, speeds, curve, passes, pipeline, buckets, updating, words, updated };
        beside.or_after()
    }

    /// Moves gradient reduction behind the last passes if that is faster: overlap that slows the last pass of a stage
    /// delays all stages before it. Frameworks have a switch for it (Megatron-LM's `--overlap-grad-reduce`).
    fn or_after(mut self) -> Result<Self, TimeError> {
        if self.pipeline.passes.len() < 2 || self.buckets.all.lost == Picos::ZERO || self.pipeline.buckets.is_none() {
            return Ok(self);
        }
        let beside = self.ending(&self.pipeline.run())?.time;
        let buckets = self.pipeline.buckets.take();
        if self.ending(&self.pipeline.run())?.time >= beside {
            self.pipeline.buckets = buckets;
        }
        Ok(self)
    }

    /// Intervals in which the gradients of a stage are reduced; a single one without overlap.
    fn sent(&self, time: &StageTime) -> Vec<(Picos, Picos)> {
        match self.pipeline.buckets {
            Some(_) => time.underway.told.clone(),
            None => vec![(time.end, time.end + self.buckets.in_a_row())],
        }
    }

    /// Time at which each stage has its gradients, on the first and the last stage including those of the shared
    /// embedding.
    fn finished(&self, stage_times: &[StageTime]) -> Vec<Picos> {
        let of = |time: &StageTime| self.sent(time).last().map_or(time.end, |sent| sent.1.max(time.end));
        let mut finished: Vec<Picos> = stage_times.iter().map(of).collect();
        if self.words > Picos::ZERO
            && let [first, .., last] = finished.as_mut_slice()
        {
            let both = (*first).max(*last) + self.words;
            (*first, *last) = (both, both);
        }
        finished
    }

    fn of_stage(&self, stage: usize) -> &[[Spent; 2]] {
        self.passes.spent.get(stage).map(Vec::as_slice).unwrap_or_default()
    }

    fn ending(&self, stage_times: &[StageTime]) -> Result<Ending, TimeError> {
        let done = self.finished(stage_times).into_iter();
        let slowest = done.enumerate().max_by_key(|&(stage, done)| (done, std::cmp::Reverse(stage)));
        let Some((slowest, gradients_done)) = slowest else {
            let place = self.job.places.parallel.clone();
            return Err(JobError { place, message: "no stage".to_owned(), help: None }.into());
        };
        // Weights for the next step arrive during its first forward pass.
        let first: Picos = self.of_stage(slowest).iter().map(|[forward, _]| forward.waited()).sum();
        let updated_exposed = if self.job.overlap == Overlap::On { self.updated - first } else { self.updated };
        Ok(Ending { slowest, gradients_done, updated_exposed, time: gradients_done + self.updating + updated_exposed })
    }

    pub(super) fn step(&self) -> Result<Step, TimeError> {
        let stage_times = self.pipeline.run();
        let Ending { slowest, gradients_done, updated_exposed, time: total } = self.ending(&stage_times)?;
        let time = stage_times.get(slowest).cloned().unwrap_or_default();
        let (micro, degrees) = (self.layout.micro_batches(self.job), self.layout.degrees);
        let whole =
            self.of_stage(slowest).iter().fold(Spent::default(), |sum, [f, b]| sum.plus(*f).plus(*b)).times(micro);
        let shares = vec![
            (Share::Compute, whole.compute),
            (Share::Slowed, whole.slowed + time.slowed),
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
            communication: whole.communication() + self.buckets.communication + self.words + self.updated + hand_offs,
            alone: alone(self.job, self.speeds, self.curve),
            collectives: self.job.collectives,
        })
    }

    pub(super) fn course(&self) -> Result<Course, TimeError> {
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
        for ((stage, time), done) in (0..).zip(&stage_times).zip(self.finished(&stage_times)) {
            let (lane, beside) = (Lane::Stage(stage), Lane::Beside(stage));
            // Rest of the weights that the previous step sent.
            course.in_a_row(beside, Picos::ZERO, &[(Doing::Weights, 0, self.updated - updated_exposed)]);
            for (number, (begin, end)) in (0..).zip(self.sent(time)) {
                course.add(beside, Interval { doing: Doing::Gradients, number, chunk: 0, begin, end });
            }
            if stage == 0 || stage + 1 == stage_times.len() as u64 {
                course.in_a_row(beside, done - self.words, &[(Doing::Gradients, 0, self.words)]);
            }
            let end = course.in_a_row(lane, done, &[(Doing::Optimizer, 0, self.updating)]);
            course.in_a_row(beside, end, &[(Doing::Weights, 0, updated_exposed)]);
        }
        Ok(course)
    }
}
