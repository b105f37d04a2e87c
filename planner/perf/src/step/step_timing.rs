//! Assembly of a step: passes, the pipeline schedule, gradient reduction and the optimizer.

use fabricast_topologies::Picos;

use super::call_costs::CallCosts;
use super::efficiency::Efficiency;
use super::gradients::{Buckets, PassWork};
use super::host_launch::host_time;
use super::interference::OverlappedCall;
use super::kernels::layer;
use super::optimizer::{offloaded_passes, optimizer_time};
use super::passes::{PassTime, SharingCalls, StagePasses};
use super::peak_rates::PeakRates;
use super::pipeline::{Pass, Pipeline, StageTime, TimedPass};
use super::single_gpu::single_gpu_time;
use super::step_result::{Share, Step, TimeError};
use super::timeline::{Activity, Interval, Timeline, TimelinePart, Track};
use crate::communication::CommunicationCostModel;
use crate::time::scaled;
use fabricast_workload::job::{
    Dimension, JobError, Layout, Overlap, ParameterCounts, Phase, StatePartition, Training, expert_calls, traffic,
    trained_parameters,
};

/// Largest number of forward passes in a pipeline schedule that is computed pass by pass.
const MAX_PASSES: u64 = 4_000_000;

/// Returns true if the number of passes (micro-batches times model chunks) is small enough for a pass-by-pass schedule.
pub(super) fn is_schedulable(job: &Training, layout: &Layout) -> bool {
    let model_chunks = u64::from(layout.degrees.pipeline) * u64::from(layout.degrees.interleave);
    layout.micro_batches(job).saturating_mul(model_chunks) <= MAX_PASSES
}

/// Times of a step's parts, from which the schedule is computed.
pub(super) struct StepTiming<'a> {
    job: &'a Training,
    layout: &'a Layout,
    speeds: &'a PeakRates,
    curve: &'a Efficiency,
    passes: StagePasses,
    pipeline: Pipeline,
    /// Gradient buckets, reduced during or after the passes.
    buckets: Buckets,
    /// Time of the optimizer update.
    optimizer_time: Picos,
    /// Shortest duration of all passes, for which offloaded data is read and written.
    offloaded_passes: Picos,
    /// Time of the gradient all-reduce of the embedding shared by the first and the last pipeline stage.
    embedding_gradients: Picos,
    /// Time to gather updated weights after the optimizer.
    weight_gather: Picos,
    /// Calls of passes that use the links of this gathering.
    weight_links: SharingCalls,
}

/// End of a step on the pipeline stage that ends last.
struct StepEnd {
    slowest: usize,
    /// Time at which the gradients of that stage are reduced.
    gradients_done: Picos,
    /// Time by which the host launches the step more slowly than the GPU executes it.
    launch: Picos,
    /// Exposed part of [`StepTiming::weight_gather`]; the rest overlaps with the first forward passes of the next step.
    updated_exposed: Picos,
    time: Picos,
}

impl<'a> StepTiming<'a> {
    pub(super) fn new(
        job: &'a Training,
        layout: &'a Layout,
        speeds: &'a PeakRates,
        curve: &'a Efficiency,
        collective_costs: &dyn CommunicationCostModel,
    ) -> Result<Self, TimeError> {
        let micro = layout.micro_batches(job);
        let degrees = layout.degrees;
        if !is_schedulable(job, layout) {
            let model_chunks = u64::from(degrees.pipeline) * u64::from(degrees.interleave);
            let message = format!("{micro} micro-batches through {model_chunks} model chunks are too many to simulate");
            return Err(JobError { location: job.spans.batch.clone(), message, help: None }.into());
        }
        let (calls, experts) = (traffic(job, layout), expert_calls(job, layout));
        let call_costs = CallCosts { calls: &calls, experts: &experts, layout, collective_costs };
        call_costs.fill_cache(job);
        let kernels = layer(job, layout);
        let slowest_curve = curve.for_slowest_gpu(layout.degrees.ranks());
        let passes = StagePasses::new(job, &kernels, speeds, &slowest_curve, &call_costs)?.with_launches(job, layout);
        let transfer = call_costs.phase_time(Phase::PipelineTransfer, None)?;
        // Transfers that do not overlap follow the pass.
        let passes = match (degrees.pipeline > 1, job.overlap) {
            (true, Overlap::On) => passes.with_transfers(transfer, &call_costs),
            _ => passes,
        };
        let sharing = |phase: Phase| SharingCalls::new(&call_costs, &call_costs.phase_dimensions(phase));
        let (gradient_links, weight_links) = (sharing(Phase::Gradients), sharing(Phase::UpdatedWeights));
        let pass_work = |pass: &PassTime| PassWork { time: pass.total(), links_busy: gradient_links.links_busy(pass) };
        let pass_works = |times: &[Vec<[PassTime; 2]>]| -> Vec<Vec<[PassWork; 2]>> {
            times.iter().map(|chunks| chunks.iter().map(|passes| passes.each_ref().map(pass_work)).collect()).collect()
        };
        let overlap_call =
            |time, sm_usage| OverlappedCall::new(time, sm_usage, &kernels.backward, &slowest_curve, speeds);
        let buckets = Buckets::new(job, &call_costs, overlap_call)?;
        let pipeline = Pipeline {
            passes: pass_works(&passes.times),
            micro: micro as usize,
            transfer,
            overlap: job.overlap,
            buckets: (job.overlap == Overlap::On).then_some(buckets),
        };
        let ParameterCounts { shared, experts } = trained_parameters(job, layout);
        let local_parameters = job.local_state_parameters(layout, Dimension::Data, shared)
            + job.local_state_parameters(layout, Dimension::ExpertData, experts);
        let update_time = optimizer_time(job, local_parameters, speeds, &slowest_curve);
        let offloaded_passes = offloaded_passes(job, layout, local_parameters, speeds, &slowest_curve);
        let weight_gather = call_costs.phase_time(Phase::UpdatedWeights, None)?;
        let embedding_gradients = call_costs.phase_time(Phase::EmbeddingGradients, None)?;
        let timing = Self {
            job,
            layout,
            speeds,
            curve,
            passes,
            pipeline,
            buckets,
            optimizer_time: update_time,
            offloaded_passes,
            embedding_gradients,
            weight_gather,
            weight_links,
        };
        timing.disable_overlap_if_faster()
    }

    /// Moves gradient reduction behind the last passes if that is faster: overlap that slows the last pass of a stage
    /// delays all stages before it. Frameworks have a switch for it (Megatron-LM's `--overlap-grad-reduce`).
    fn disable_overlap_if_faster(mut self) -> Result<Self, TimeError> {
        if self.pipeline.passes.len() < 2 || self.buckets.all.slowdown == Picos::ZERO || self.pipeline.buckets.is_none()
        {
            return Ok(self);
        }
        let overlapped_time = self.step_end(&self.pipeline.run())?.time;
        let buckets = self.pipeline.buckets.take();
        if self.step_end(&self.pipeline.run())?.time >= overlapped_time {
            self.pipeline.buckets = buckets;
        }
        Ok(self)
    }

    /// Intervals in which the gradients of a stage are reduced: one per bucket, or a single one if gradients are
    /// reduced after the passes.
    fn reduction_intervals(&self, time: &StageTime) -> Vec<(Picos, Picos)> {
        match self.pipeline.buckets {
            Some(_) => time.reduction.intervals.clone(),
            None => vec![(time.end, time.end + self.buckets.sequential_time())],
        }
    }

    /// Time at which the gradients of each stage are reduced; on the first and the last stage including the gradients
    /// of the shared embedding.
    fn gradient_completion_times(&self, stage_times: &[StageTime]) -> Vec<Picos> {
        let stage_finish = |time: &StageTime| {
            self.reduction_intervals(time).last().map_or(time.end, |interval| interval.1.max(time.end))
        };
        let mut finished: Vec<Picos> = stage_times.iter().map(stage_finish).collect();
        if self.embedding_gradients > Picos::ZERO
            && let [first, .., last] = finished.as_mut_slice()
        {
            let end = (*first).max(*last) + self.embedding_gradients;
            (*first, *last) = (end, end);
        }
        finished
    }

    fn stage_passes(&self, stage: usize) -> &[[PassTime; 2]] {
        self.passes.times.get(stage).map(Vec::as_slice).unwrap_or_default()
    }

    fn step_end(&self, stage_times: &[StageTime]) -> Result<StepEnd, TimeError> {
        let done = self.gradient_completion_times(stage_times).into_iter();
        let slowest = done.enumerate().max_by_key(|&(stage, done)| (done, std::cmp::Reverse(stage)));
        let Some((slowest, gradients_done)) = slowest else {
            let place = self.job.spans.parallel.clone();
            return Err(JobError { location: place, message: "no stage".to_owned(), help: None }.into());
        };
        // Weights for the next step arrive during its first forward pass, while its calls leave the links. Broadcast
        // tensors are awaited.
        let hiding = |[forward, _]: &[PassTime; 2]| forward.total() - self.weight_links.links_busy(forward);
        let first: Picos = self.stage_passes(slowest).iter().map(hiding).sum();
        let updated_exposed = match (self.job.overlap, self.job.state_partition) {
            (Overlap::On, StatePartition::Shards) => self.weight_gather - first,
            (Overlap::On, StatePartition::Tensors) | (Overlap::Off, _) => self.weight_gather,
        };
        let update = self.offload_wait(gradients_done) + self.optimizer_time;
        let device_time = gradients_done + update + updated_exposed;
        // (A negative difference of times is 0.)
        let launch = host_time(self.job, self.layout) - device_time;
        Ok(StepEnd { slowest, gradients_done, launch, updated_exposed, time: device_time + launch })
    }

    /// Wait for the offloaded data of the passes before the optimizer update, if the gradients are reduced at
    /// `gradients_done`. A negative wait is 0.
    fn offload_wait(&self, gradients_done: Picos) -> Picos {
        match self.job.overlap {
            Overlap::On => self.offloaded_passes - gradients_done,
            Overlap::Off => self.offloaded_passes,
        }
    }

    /// Completion time of the step.
    pub(super) fn time(&self) -> Result<Picos, TimeError> {
        Ok(self.step_end(&self.pipeline.run())?.time)
    }

    pub(super) fn step(&self) -> Result<Step, TimeError> {
        let stage_times = self.pipeline.run();
        let StepEnd { slowest, gradients_done, launch, updated_exposed, time: total } = self.step_end(&stage_times)?;
        let time = stage_times.get(slowest).cloned().unwrap_or_default();
        let (micro, degrees) = (self.layout.micro_batches(self.job), self.layout.degrees);
        let pass_time = self
            .stage_passes(slowest)
            .iter()
            .fold(PassTime::default(), |sum, [f, b]| sum.plus(*f).plus(*b))
            .times(micro);
        let offload = self.offload_wait(gradients_done);
        let shares = [
            (Share::Compute, pass_time.compute),
            (Share::Slowdown, pass_time.slowed + time.slowed),
            (Share::Optimizer, self.optimizer_time),
            (Share::Offload, offload),
            (Share::Tensor, pass_time.tensor),
            (Share::Context, pass_time.context),
            (Share::Expert, pass_time.expert),
            (Share::Data, pass_time.data + (gradients_done - time.end) + updated_exposed),
            (Share::PipelineTransfer, time.transfer + pass_time.transfer),
            (Share::Bubble, time.end - time.busy - time.transfer),
            (Share::Launch, pass_time.launch + launch),
        ];
        // Only jobs with offloaded data have this share.
        let shares = shares.into_iter().filter(|share| share.0 != Share::Offload || offload > Picos::ZERO).collect();
        let transfers = if degrees.pipeline > 1 {
            scaled(self.pipeline.transfer, 2 * micro * u64::from(degrees.interleave))
        } else {
            Picos::ZERO
        };
        Ok(Step {
            layout: *self.layout,
            time: total,
            shares,
            communication: pass_time.communication()
                + self.buckets.communication
                + self.embedding_gradients
                + self.weight_gather
                + transfers,
            single_gpu_time: single_gpu_time(self.job, self.speeds, self.curve),
            collectives: self.job.collectives,
        })
    }

    pub(super) fn timeline(&self) -> Result<Timeline, TimeError> {
        let mut timeline = Timeline::default();
        let stage_times = self.pipeline.run_with(|TimedPass { stage, pass, begin, end, free }| {
            let activity = match pass {
                Pass::Forward { .. } => Activity::Forward,
                Pass::Backward { .. } => Activity::Backward,
            };
            let (index, chunk) = (pass.micro() as u64, pass.chunk() as u64);
            let track = Track::Stage(stage as u64);
            timeline.add(track, Interval { activity, index, chunk, begin, end });
            timeline.add(track, Interval { activity: Activity::PipelineTransfer, index, chunk, begin: end, end: free });
        });
        let StepEnd { slowest, launch, updated_exposed, .. } = self.step_end(&stage_times)?;
        for ((stage, time), done) in (0..).zip(&stage_times).zip(self.gradient_completion_times(&stage_times)) {
            let (track, communication) = (Track::Stage(stage), Track::Communication(stage));
            let part = |activity: Activity, time: Picos| TimelinePart { activity, index: 0, time };
            // Rest of the weights that the previous step sent.
            let rest = part(Activity::Weights, self.weight_gather - updated_exposed);
            timeline.add_sequence(communication, Picos::ZERO, &[rest]);
            for (index, (begin, end)) in (0..).zip(self.reduction_intervals(time)) {
                timeline.add(communication, Interval { activity: Activity::Gradients, index, chunk: 0, begin, end });
            }
            if stage == 0 || stage + 1 == stage_times.len() as u64 {
                let gradients = part(Activity::Gradients, self.embedding_gradients);
                timeline.add_sequence(communication, done - self.embedding_gradients, &[gradients]);
            }
            let update =
                [part(Activity::Offload, self.offload_wait(done)), part(Activity::Optimizer, self.optimizer_time)];
            let end = timeline.add_sequence(track, done, &update);
            let end = timeline.add_sequence(communication, end, &[part(Activity::Weights, updated_exposed)]);
            if stage == slowest as u64 {
                timeline.add_sequence(track, end, &[part(Activity::Launch, launch)]);
            }
        }
        Ok(timeline)
    }
}
