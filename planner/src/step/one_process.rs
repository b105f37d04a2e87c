//! One process for all GPUs of a host: PyTorch's `DataParallel`, which everybody is told to leave for a process each.
//!
//! In each step (`torch/nn/parallel/data_parallel.py` and `torch/csrc/cuda/comm.cpp`) the first GPU sends the others their part of
//! the inputs, then all weights, in buffers of 10 MiB; all compute forward; outputs come back to the first, which works out the
//! loss of all and sends their gradients out; all compute backward; then gradients are added up on the first, which alone steps
//! the optimizer. Nothing of it overlaps: weights come in one function before the passes, and gradients leave in its derivative, when
//! all of them are there.
//!
//! Forward passes are launched by a thread of Python for each GPU, and one of them runs at a time; backward passes by threads of
//! C++, which do not wait for each other. A launch takes such a thread [`LAUNCH`].

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::kernels::{Kernel, Passes, layer, logits, optimizer, words};
use super::{Efficiency, Exchange, Share, Speeds, Step, Tariff, alone, times};
use crate::job::{Dimension, Layout, Training, parameters};
use crate::plan::PlanError;

/// What launching a kernel takes of a host's thread: measured, NCCL's launches on eight H200 from one thread
/// (validate/data/h200-node: 7 µs for each GPU by stream). An operator of PyTorch called from Python takes no less.
const LAUNCH: Picos = Picos(7_000_000);

/// The size of a buffer of weights or gradients (`torch/nn/parallel/comm.py`: `buffer_size=10485760`).
const BUFFER: u64 = 10 << 20;

/// The time of a step.
///
/// # Errors
/// [`PlanError`]: a call without a price.
pub(super) fn step(
    job: &Training,
    layout: &Layout,
    speeds: &Speeds,
    curve: &Efficiency,
    tariff: &dyn Tariff,
) -> Result<Step, PlanError> {
    let gpus = u64::from(layout.degrees.data);
    let (layers, words, logits) = (layer(job, layout), words(job, layout), logits(job, layout));
    let (product, loss) = split(logits);
    let of = |passes: fn(&Passes) -> &[Kernel]| {
        let (device, launches) = [(&layers, job.model.layers), (&words, 1), (&product, 1)]
            .into_iter()
            .map(|(part, n)| (times(curve.total(passes(part), speeds), n), passes(part).len() as u64 * n))
            .fold((Picos::ZERO, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (device, times(LAUNCH, launches))
    };
    let (forward, launched) = of(|passes| &passes.forward);
    let (backward, launched_back) = of(|passes| &passes.backward);
    let waiting = (times(launched, gpus) - forward) + (launched_back - backward);
    // Of all sequences, on the first GPU.
    let for_all = |kernel: &Kernel| Kernel { bytes: Bytes(kernel.bytes.0 * gpus), ..*kernel };
    let loss: Vec<Kernel> = loss.iter().map(for_all).collect();

    let time = |collective, bytes| {
        tariff.time(layout, Exchange { dimension: Dimension::Data, collective, bytes: Bytes(bytes) })
    };
    let in_buffers = |collective, bytes: u64| {
        let count = bytes.div_ceil(BUFFER).max(1);
        Ok::<_, PlanError>(times(time(collective, bytes.div_ceil(count).next_multiple_of(16 * gpus))?, count))
    };
    let own = parameters(job, layout).0 + parameters(job, layout).1;
    let tokens = job.micro_batch * job.model.seq * gpus;
    let outputs = tokens * job.model.vocab * job.precision.bytes();
    // Words are numbers of eight bytes.
    let travelling = time(Collective::Scatter, 8 * tokens)?
        + in_buffers(Collective::Broadcast, own * job.precision.bytes())?
        + time(Collective::Gather, outputs)?
        + time(Collective::Scatter, outputs)?
        + in_buffers(Collective::Reduce, (own * u64::from(job.gradient_bits)).div_ceil(8))?;

    let micro = layout.micro_batches(job);
    let data = if gpus > 1 { times(travelling, micro) } else { Picos::ZERO };
    let shares = vec![
        (Share::Compute, times(forward + backward + curve.total(&loss, speeds), micro)),
        (Share::Launch, times(waiting, micro)),
        (Share::Optimizer, curve.total(&optimizer(job, own), speeds)),
        (Share::Data, data),
    ];
    let time = shares.iter().map(|share| share.1).sum();
    Ok(Step { layout: *layout, time, shares, communication: data, alone: alone(job, speeds, curve) })
}

/// The product with all words, which each GPU does, and the kernels of the loss, forward and backward, which the first does.
fn split(logits: Passes) -> (Passes, Vec<Kernel>) {
    let is_product = |kernel: &Kernel| kernel.flops.0 > 0;
    let (forward, mut loss): (Vec<_>, Vec<_>) = logits.forward.into_iter().partition(is_product);
    let (backward, more): (Vec<_>, Vec<_>) = logits.backward.into_iter().partition(is_product);
    loss.extend(more);
    (Passes { forward, backward }, loss)
}
