//! Training with one process for all GPUs of a host: PyTorch's `DataParallel`, whose documentation recommends one
//! process per GPU instead.
//!
//! In each step (`torch/nn/parallel/data_parallel.py` and `torch/csrc/cuda/comm.cpp`) the first GPU scatters the inputs
//! and broadcasts all weights, in buffers of 10 MiB. All GPUs compute forward. The first GPU gathers the outputs,
//! computes the loss for all of them and scatters the gradients of the outputs. All GPUs compute backward. Gradients
//! are then reduced to the first GPU, which alone runs the optimizer. Communication does not overlap with computation:
//! one function broadcasts all weights before the passes, and its derivative reduces the gradients when all of them are
//! complete.
//!
//! Forward passes are launched by one Python thread per GPU, serialized by the interpreter lock; backward passes by C++
//! threads in parallel. A launch occupies its thread for [`LAUNCH_TIME`], and passes take at least the host time of a
//! process that drives one GPU ([`pass_times`]).

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::efficiency::Efficiency;
use super::host_launch::pass_times;
use super::kernel::{Kernel, PassKernels};
use super::kernels::{embedding, layers, logits};
use super::optimizer::optimizer_time;
use super::peak_rates::PeakRates;
use super::single_gpu::single_gpu_time;
use super::step_result::{Share, Step};
use super::timeline::{Activity, Timeline, TimelinePart, Track};
use crate::communication::{CommunicationCostModel, Exchange};
use crate::time::scaled;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{CollectiveCandidates, Dimension, Layout, Training, parameters, trained_parameters};

/// Host time of a kernel launch, measured for NCCL's launches on eight H200 from one thread (validate/data/h200-node: 7
/// µs per GPU on a stream). A PyTorch operator that is called from Python takes at least as long.
const LAUNCH_TIME: Picos = Picos(7_000_000);

/// Buffer size for weights and gradients (`torch/nn/parallel/comm.py`: `buffer_size=10485760`).
const BUFFER_BYTES: u64 = 10 << 20;

/// Times of the parts of a step, which run in sequence.
pub(super) struct SequentialStep<'a> {
    layout: &'a Layout,
    /// Parts of each micro-batch in order, with activity, share and time.
    each: Vec<(Activity, Share, Picos)>,
    micro: u64,
    optimizer: Picos,
    alone: Picos,
    collectives: CollectiveCandidates,
}

impl<'a> SequentialStep<'a> {
    /// Computes the times of the parts of a job's step.
    ///
    /// # Errors
    /// [`PlanError`]: a call without a predicted time.
    pub(super) fn new(
        job: &Training,
        layout: &'a Layout,
        speeds: &PeakRates,
        curve: &Efficiency,
        collective_costs: &dyn CommunicationCostModel,
    ) -> Result<Self, PlanError> {
        let gpus = u64::from(layout.degrees.data);
        let (embedding_kernels, logits) = (embedding(job, layout), logits(job, layout));
        let (gemms, loss) = split_logits(logits);
        let parts: Vec<(PassKernels, u64)> =
            layers(job, layout).into_iter().chain([(embedding_kernels, 1), (gemms, 1)]).collect();
        let sum_passes = |passes: fn(&PassKernels) -> &[Kernel]| {
            let (device, launches) = parts
                .iter()
                .map(|(part, n)| (scaled(curve.total(passes(part), speeds), *n), passes(part).len() as u64 * n))
                .fold((Picos::ZERO, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (device, scaled(LAUNCH_TIME, launches))
        };
        let (forward, forward_launch) = sum_passes(|passes| &passes.forward);
        let (backward, backward_launch) = sum_passes(|passes| &passes.backward);
        // A pass takes at least the host time of a process that drives one GPU.
        let [forward_host, backward_host] = pass_times(job);
        let (forward_launch, backward_launch) = (forward_launch.max(forward_host), backward_launch.max(backward_host));
        // The first GPU computes the loss of all sequences.
        let scale_to_all = |kernel: &Kernel| Kernel { bytes: Bytes(kernel.bytes.0 * gpus), ..*kernel };
        let loss: Vec<Kernel> = loss.iter().map(scale_to_all).collect();

        let time = |collective, bytes| {
            if gpus == 1 {
                return Ok(Picos::ZERO);
            }
            collective_costs.time(layout, Exchange { dimension: Dimension::Data, collective, bytes: Bytes(bytes) })
        };
        let buffered_time = |collective, bytes: u64| {
            let count = bytes.div_ceil(BUFFER_BYTES).max(1);
            Ok::<_, PlanError>(scaled(time(collective, bytes.div_ceil(count).next_multiple_of(16 * gpus))?, count))
        };
        let parameter_count = parameters(job, layout).total();
        let tokens = job.micro_batch * job.model.seq * gpus;
        let outputs = tokens * job.model.vocab * job.precision.bytes();
        let trained_count = trained_parameters(job, layout).total();
        let gradients = (trained_count * u64::from(job.gradient_bits)).div_ceil(8);
        let each = vec![
            // Token ids have eight bytes.
            (Activity::Outputs, Share::Data, time(Collective::Scatter, 8 * tokens)?),
            (
                Activity::Weights,
                Share::Data,
                buffered_time(Collective::Broadcast, parameter_count * job.precision.bytes())?,
            ),
            (Activity::Launch, Share::Launch, scaled(forward_launch, gpus) - forward),
            (Activity::Forward, Share::Compute, forward),
            (Activity::Outputs, Share::Data, time(Collective::Gather, outputs)?),
            (Activity::Logits, Share::Compute, curve.total(&loss, speeds)),
            (Activity::Outputs, Share::Data, time(Collective::Scatter, outputs)?),
            (Activity::Launch, Share::Launch, backward_launch - backward),
            (Activity::Backward, Share::Compute, backward),
            (Activity::Gradients, Share::Data, buffered_time(Collective::Reduce, gradients)?),
        ];
        Ok(Self {
            layout,
            each,
            micro: layout.micro_batches(job),
            optimizer: optimizer_time(job, trained_count, speeds, curve),
            alone: single_gpu_time(job, speeds, curve),
            collectives: job.collectives,
        })
    }

    /// Returns the step, which consists of all micro-batches and the optimizer update.
    pub(super) fn step(&self) -> Step {
        let share_time = |share: Share| -> Picos {
            scaled(self.each.iter().filter(|part| part.1 == share).map(|part| part.2).sum(), self.micro)
        };
        let shares = vec![
            (Share::Compute, share_time(Share::Compute)),
            (Share::Launch, share_time(Share::Launch)),
            (Share::Optimizer, self.optimizer),
            (Share::Data, share_time(Share::Data)),
        ];
        let time = shares.iter().map(|share| share.1).sum();
        let (communication, collectives) = (share_time(Share::Data), self.collectives);
        Step { layout: *self.layout, time, shares, communication, single_gpu_time: self.alone, collectives }
    }

    /// Returns the timeline of the step: all parts in sequence.
    pub(super) fn timeline(&self) -> Timeline {
        let mut timeline = Timeline::default();
        let mut begin = Picos::ZERO;
        for index in 0..self.micro {
            let part_of = |&(activity, _, time): &(Activity, Share, Picos)| TimelinePart { activity, index, time };
            let parts: Vec<TimelinePart> = self.each.iter().map(part_of).collect();
            begin = timeline.add_sequence(Track::Stage(0), begin, &parts);
        }
        let optimizer = TimelinePart { activity: Activity::Optimizer, index: 0, time: self.optimizer };
        timeline.add_sequence(Track::Stage(0), begin, &[optimizer]);
        timeline
    }
}

/// Splits the output layer into its GEMM, which each GPU computes, and the kernels of the loss in both passes, which
/// only the first GPU executes.
fn split_logits(logits: PassKernels) -> (PassKernels, Vec<Kernel>) {
    let is_gemm = |kernel: &Kernel| kernel.flops.0 > 0;
    let (forward, mut loss): (Vec<_>, Vec<_>) = logits.forward.into_iter().partition(is_gemm);
    let (backward, backward_loss): (Vec<_>, Vec<_>) = logits.backward.into_iter().partition(is_gemm);
    loss.extend(backward_loss);
    (PassKernels { forward, backward }, loss)
}
