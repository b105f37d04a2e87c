//! Kernels of the optimizer update, and its duration.

use fabricast_topologies::{Bytes, Picos};

use super::efficiency::Efficiency;
use super::kernel::Kernel;
use super::peak_rates::PeakRates;
use fabricast_workload::job::Training;

/// Bytes of a 32-bit number.
const FP32_BYTES: u64 = 4;

/// Kernels of Adam over `parameters` parameters, a rank's own shard, as in PyTorch and Megatron-LM. Gradients are read
/// for their norm and, if narrower, converted to the 32 bits of the state. The update reads gradients and state and
/// writes the state. Narrower weights are written from the state. Gradients are set to zero.
#[must_use]
pub fn optimizer(job: &Training, parameters: u64) -> Vec<Kernel> {
    let (weight, gradient, state) = (job.precision.bytes(), job.gradient_bytes(), job.precision.state_bytes());
    let stream = |bytes: u64| Kernel::stream(parameters * bytes);
    let normed = if gradient < FP32_BYTES { gradient + FP32_BYTES } else { gradient };
    // 32-bit weights are updated in place, in addition to the state.
    let (masters, narrowed) = if weight < FP32_BYTES { (0, FP32_BYTES + weight) } else { (2 * weight, 0) };
    let kernels = [normed, FP32_BYTES + 2 * state + masters, narrowed, gradient];
    kernels.into_iter().filter(|&bytes| bytes > 0).map(stream).collect()
}

/// Duration of the optimizer update of a rank's own shard: its kernels, or the transfer of an offloaded state if that
/// is longer.
pub(super) fn optimizer_time(job: &Training, parameters: u64, speeds: &PeakRates, curve: &Efficiency) -> Picos {
    let kernels = curve.total(&optimizer(job, parameters), speeds);
    let state = Bytes(parameters * job.precision.state_bytes());
    kernels.max(speeds.offload_bandwidth.map_or(Picos::ZERO, |rate| curve.transfer_time(state, rate)))
}
