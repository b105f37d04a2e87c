//! Training with one process for all GPUs of a host: PyTorch's `DataParallel`, whose documentation recommends one
//! process per GPU instead.
//!
//! In each step (`torch/nn/parallel/data_parallel.py` and `torch/csrc/cuda/comm.cpp`) the first GPU scatters the inputs
//! and broadcasts all weights, in buffers of 10 MiB. All GPUs compute forward. The first GPU gathers the outputs,
//! computes the loss of all and scatters their gradients. All GPUs compute backward. Gradients are then reduced to the
//! first GPU, which alone runs the optimizer. Nothing overlaps: one function broadcasts all weights before the passes,
//! and its derivative reduces the gradients when all of them are complete.
//!
//! Forward passes are launched by one Python thread per GPU, serialized by the interpreter lock; backward passes by C++
//! threads in parallel. A launch occupies its thread for [`LAUNCH`].

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::kernels::{Kernel, Passes, layers, logits, update, words};
use super::{Course, Doing, Efficiency, Exchange, Lane, Share, Speeds, Step, Tariff, alone, times};
use crate::job::{Collectives, Dimension, Layout, Training, parameters};
use crate::plan::PlanError;

/// Host time per kernel launch, measured for NCCL's launches on eight H200 from one thread (validate/data/h200-node: 7
/// µs per GPU by stream). A PyTorch operator called from Python takes at least as long.
const LAUNCH: Picos = Picos(7_000_000);

/// Buffer size for weights and gradients (`torch/nn/parallel/comm.py`: `buffer_size=10485760`).
const BUFFER: u64 = 10 << 20;

/// Parts of a step, all sequential.
pub(super) struct Parts<'a> {
    layout: &'a Layout,
    /// Parts of each micro-batch.
    each: Vec<(Doing, Share, Picos)>,
    micro: u64,
    optimizer: Picos,
    alone: Picos,
    collectives: Collectives,
}

impl<'a> Parts<'a> {
    /// Computes the parts for a job.
    ///
    /// # Errors
    /// [`PlanError`]: a call without a predicted time.
    pub(super) fn of(
        job: &Training,
        layout: &'a Layout,
        speeds: &Speeds,
        curve: &Efficiency,
        tariff: &dyn Tariff,
    ) -> Result<Self, PlanError> {
        let gpus = u64::from(layout.degrees.data);
        let (words, logits) = (words(job, layout), logits(job, layout));
        let (product, loss) = split(logits);
        let parts: Vec<(Passes, u64)> = layers(job, layout).into_iter().chain([(words, 1), (product, 1)]).collect();
        let of = |passes: fn(&Passes) -> &[Kernel]| {
            let (device, launches) = parts
                .iter()
                .map(|(part, n)| (times(curve.total(passes(part), speeds), *n), passes(part).len() as u64 * n))
                .fold((Picos::ZERO, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (device, times(LAUNCH, launches))
        };
        let (forward, launched) = of(|passes| &passes.forward);
        let (backward, launched_back) = of(|passes| &passes.backward);
        // The first GPU computes the loss of all sequences.
        let for_all = |kernel: &Kernel| Kernel { bytes: Bytes(kernel.bytes.0 * gpus), ..*kernel };
        let loss: Vec<Kernel> = loss.iter().map(for_all).collect();

        let time = |collective, bytes| {
            if gpus == 1 {
                return Ok(Picos::ZERO);
            }
            tariff.time(layout, Exchange { dimension: Dimension::Data, collective, bytes: Bytes(bytes) })
        };
        let in_buffers = |collective, bytes: u64| {
            let count = bytes.div_ceil(BUFFER).max(1);
            Ok::<_, PlanError>(times(time(collective, bytes.div_ceil(count).next_multiple_of(16 * gpus))?, count))
        };
        let own = parameters(job, layout).0 + parameters(job, layout).1;
        let tokens = job.micro_batch * job.model.seq * gpus;
        let outputs = tokens * job.model.vocab * job.precision.bytes();
        let gradients = (own * u64::from(job.gradient_bits)).div_ceil(8);
        let each = vec![
            // Token ids have eight bytes.
            (Doing::Outputs, Share::Data, time(Collective::Scatter, 8 * tokens)?),
            (Doing::Weights, Share::Data, in_buffers(Collective::Broadcast, own * job.precision.bytes())?),
            (Doing::Launch, Share::Launch, times(launched, gpus) - forward),
            (Doing::Forward, Share::Compute, forward),
            (Doing::Outputs, Share::Data, time(Collective::Gather, outputs)?),
            (Doing::Logits, Share::Compute, curve.total(&loss, speeds)),
            (Doing::Outputs, Share::Data, time(Collective::Scatter, outputs)?),
            (Doing::Launch, Share::Launch, launched_back - backward),
            (Doing::Backward, Share::Compute, backward),
            (Doing::Gradients, Share::Data, in_buffers(Collective::Reduce, gradients)?),
        ];
        Ok(Self {
            layout,
            each,
            micro: layout.micro_batches(job),
            optimizer: update(job, own, speeds, curve),
            alone: alone(job, speeds, curve),
            collectives: job.collectives,
        })
    }

    /// Sums the parts up to a step.
    pub(super) fn step(&self) -> Step {
        let of = |wanted: Share| -> Picos {
            times(self.each.iter().filter(|part| part.1 == wanted).map(|part| part.2).sum(), self.micro)
        };
        let shares = vec![
            (Share::Compute, of(Share::Compute)),
            (Share::Launch, of(Share::Launch)),
            (Share::Optimizer, self.optimizer),
            (Share::Data, of(Share::Data)),
        ];
        let time = shares.iter().map(|share| share.1).sum();
        let (communication, collectives) = (of(Share::Data), self.collectives);
        Step { layout: *self.layout, time, shares, communication, alone: self.alone, collectives }
    }

    /// Timeline of the parts in sequence.
    pub(super) fn course(&self) -> Course {
        let mut course = Course::default();
        let mut begin = Picos::ZERO;
        for micro in 0..self.micro {
            let parts: Vec<_> = self.each.iter().map(|&(doing, _, time)| (doing, micro, time)).collect();
            begin = course.in_a_row(Lane::Stage(0), begin, &parts);
        }
        course.in_a_row(Lane::Stage(0), begin, &[(Doing::Optimizer, 0, self.optimizer)]);
        course
    }
}

/// Splits the output layer into the GEMM, which each GPU computes, and the kernels of the loss in both passes, which
/// the first GPU computes.
fn split(logits: Passes) -> (Passes, Vec<Kernel>) {
    let is_product = |kernel: &Kernel| kernel.flops.0 > 0;
    let (forward, mut loss): (Vec<_>, Vec<_>) = logits.forward.into_iter().partition(is_product);
    let (backward, more): (Vec<_>, Vec<_>) = logits.backward.into_iter().partition(is_product);
    loss.extend(more);
    (Passes { forward, backward }, loss)
}
