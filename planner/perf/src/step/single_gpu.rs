//! Reference for the parallel efficiency: completion time of the batch on one GPU.

use fabricast_topologies::Picos;

use super::efficiency::Efficiency;
use super::kernel::PassKernels;
use super::kernels::{embedding, layers, logits};
use super::optimizer::optimizer;
use super::peak_rates::PeakRates;
use crate::time::scaled;
use fabricast_workload::job::{Degrees, Layout, Training};

/// Returns the compute time of the whole batch on one GPU with unlimited memory, in micro-batches of the same size.
pub(super) fn single_gpu_time(job: &Training, speeds: &PeakRates, curve: &Efficiency) -> Picos {
    let layout = Layout { degrees: Degrees::default() };
    // One GPU holds all experts, so its tokens are divided evenly among them.
    let total = |passes: &PassKernels| curve.total(&passes.forward, speeds) + curve.total(&passes.backward, speeds);
    let even = Training { skew: 1.0, ..job.clone() };
    let layers: Picos = layers(&even, &layout).iter().map(|(layer, n)| scaled(total(layer), *n)).sum();
    let micro_batch_time = layers + total(&embedding(&even, &layout)) + total(&logits(&even, &layout));
    let states = curve.total(&optimizer(job, job.trained_model_parameters()), speeds);
    scaled(micro_batch_time, job.global_batch / job.micro_batch) + states
}
