//! Kernels of the optimizer update, and the duration of the update.

use fabricast_topologies::{Bandwidth, Bytes, HostDrives, Picos};

use super::efficiency::Efficiency;
use super::kernel::Kernel;
use super::peak_rates::PeakRates;
use fabricast_workload::job::{Layout, MasterWeights, OptimizerDevice, Overlap, Tier, Training, weight_shard};

/// Number of bytes of a 32-bit number.
const FP32_BYTES: u64 = 4;

/// Returns the kernels of Adam over `parameters` parameters, which are the rank's own shard, as in PyTorch and
/// Megatron-LM. Gradients are read for their norm and, if narrower, converted to the 32 bits of the state. The update
/// reads gradients and state, and writes the state. Narrower weights are written from the state. Gradients are set to
/// zero.
#[must_use]
pub fn optimizer(job: &Training, parameters: u64) -> Vec<Kernel> {
    let (weight, gradient, state) = (job.precision.bytes(), job.gradient_bytes(), job.state_bytes());
    let stream = |bytes: u64| Kernel::stream(parameters * bytes);
    let normed = if gradient < FP32_BYTES { gradient + FP32_BYTES } else { gradient };
    // 32-bit weights are updated in place, in addition to the state. Narrower weights without a 32-bit copy are updated
    // in the same way.
    let (masters, narrowed) = match job.master_weights {
        MasterWeights::Kept if weight < FP32_BYTES => (0, FP32_BYTES + weight),
        MasterWeights::Kept | MasterWeights::Absent => (2 * weight, 0),
    };
    let kernels = [normed, FP32_BYTES + 2 * state + masters, narrowed, gradient];
    kernels.into_iter().filter(|&bytes| bytes > 0).map(stream).collect()
}

/// Memory bandwidth per rank assumed for a CPU that does not state it: two CPUs with eight channels of DDR4-3200 each,
/// shared by the ranks of eight GPUs, as on hosts of A100 (AMD EPYC 7003, data sheet).
const ASSUMED_CPU_BANDWIDTH: Bandwidth = Bandwidth(204_800_000_000 / 4);

/// Fraction of the host memory bandwidth that Adam reaches on a CPU: 10 billion parameters in 2.57 s on two Xeon 8168
/// with 256 GB/s (ZeRO-Offload, arXiv 2101.06840, table 4).
const CPU_ADAM_EFFICIENCY: f64 = 0.43;

/// Returns the duration of the optimizer update of a rank's own shard. Drives read and write while other parameters are
/// updated, if the job overlaps: the next group of parameters is read while one is updated and the last one is written
/// (DeepSpeed, deepspeed/runtime/swap_tensor/pipelined_optimizer_swapper.py).
pub(super) fn optimizer_time(job: &Training, parameters: u64, speeds: &PeakRates, curve: &Efficiency) -> Picos {
    let (transfers, update) = match job.optimizer_device {
        OptimizerDevice::Cpu => cpu_update(job, parameters, speeds, curve),
        OptimizerDevice::Gpu => (Picos::ZERO, gpu_update(job, parameters, speeds, curve)),
    };
    let drives = drive_time_of_update(job, parameters, speeds);
    transfers
        + match job.overlap {
            Overlap::On => update.max(drives),
            Overlap::Off => update + drives,
        }
}

/// Duration of an update on the GPU: that of its kernels, or of the transfer of an offloaded state if that is longer.
fn gpu_update(job: &Training, parameters: u64, speeds: &PeakRates, curve: &Efficiency) -> Picos {
    let kernels = curve.total(&optimizer(job, parameters), speeds);
    let state = Bytes(parameters * job.state_bytes());
    kernels.max(speeds.offload_bandwidth.map_or(Picos::ZERO, |rate| curve.transfer_time(state, rate)))
}

/// Durations of the transfers of an update on the CPU and of the update itself, which follow each other: gradients are
/// sent to the CPU, the update runs at the rank's share of the host memory bandwidth, and weights are sent back.
fn cpu_update(job: &Training, parameters: u64, speeds: &PeakRates, curve: &Efficiency) -> (Picos, Picos) {
    // Weights in the CPU's memory are not sent back.
    let returned = if job.weights_tier == Tier::Hbm { job.precision.bytes() } else { 0 };
    let sent = Bytes(parameters * (job.gradient_bytes() + returned));
    let transfers = speeds.offload_bandwidth.map_or(Picos::ZERO, |rate| curve.transfer_time(sent, rate));
    // The gradient is read, and the state is read and written (DeepSpeed, csrc/includes/cpu_adam.h).
    let moved = parameters * (job.gradient_bytes() + 2 * job.state_bytes());
    let share = speeds.host_memory_bandwidth.unwrap_or(ASSUMED_CPU_BANDWIDTH);
    let seconds = moved as f64 / (share.0.max(1) as f64 * CPU_ADAM_EFFICIENCY);
    (transfers, Picos((seconds * 1e12).round() as u64))
}

/// Returns the time of the drives in the update of `parameters` parameters: states and 32-bit gradients are read, states
/// and, if they are there as well, weights are written (DeepSpeed, deepspeed/runtime/swap_tensor/optimizer_utils.py).
/// Concurrent reads and writes share the bandwidth of a drive: a model of 48 billion parameters wrote 7.0 GB/s of
/// gradients alone, and read and wrote 6.3 GB/s in total during the update (`planner/data/jobs/nvme-zero3.toml`).
fn drive_time_of_update(job: &Training, parameters: u64, speeds: &PeakRates) -> Picos {
    let Some(HostDrives { read, write }) = speeds.drives else { return Picos::ZERO };
    let stored = |tier: Tier, bytes: u64| if tier == Tier::Nvme { bytes } else { 0 };
    let states = stored(job.optimizer_tier, job.state_bytes());
    let gradients = stored(job.optimizer_tier, FP32_BYTES);
    let weights = stored(job.weights_tier, job.precision.bytes());
    read.transfer_time(Bytes(parameters * (states + gradients)))
        + write.transfer_time(Bytes(parameters * (states + weights)))
}

/// Returns the shortest duration of all passes: the time to read offloaded weights for both passes of each micro-batch,
/// and to write the gradients of `parameters` parameters to drives once. Both overlap with the passes.
pub(super) fn offloaded_passes(
    job: &Training,
    layout: &Layout,
    parameters: u64,
    speeds: &PeakRates,
    curve: &Efficiency,
) -> Picos {
    let passes = 2 * layout.micro_batches(job);
    let weights = speeds.weights_bandwidth.map_or(Picos::ZERO, |rate| {
        let shard = Bytes(passes * weight_shard(job, layout).0);
        if job.weights_tier == Tier::Nvme { rate.transfer_time(shard) } else { curve.transfer_time(shard, rate) }
    });
    let gradients = match (job.optimizer_tier, speeds.drives) {
        (Tier::Nvme, Some(drives)) => drives.write.transfer_time(Bytes(parameters * FP32_BYTES)),
        _ => Picos::ZERO,
    };
    match job.weights_tier {
        Tier::Nvme => weights + gradients,
        Tier::Hbm | Tier::Peer | Tier::Host => weights.max(gradients),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::step;
    use super::super::tests::{FlatBandwidth, SPEEDS, read};
    use super::*;

    fn job(lines: &str) -> Training {
        read(&format!(
            "name = \"j\"\nprecision = \"bf16\"\nzero = 3\n{lines}parallel = {{ dp = 4 }}\n\
             model = {{ layers = 8, hidden = 1024, heads = 8, vocab = 1024, seq = 512 }}\n"
        ))
    }

    fn speeds(read: u64, write: u64) -> PeakRates {
        PeakRates {
            offload_bandwidth: Some(Bandwidth(25_000_000_000)),
            host_memory_bandwidth: Some(Bandwidth(100_000_000_000)),
            weights_bandwidth: Some(Bandwidth(read)),
            drives: Some(HostDrives { read: Bandwidth(read), write: Bandwidth(write) }),
            ..SPEEDS
        }
    }

    proptest! {
        /// A step takes at least the time of the bytes that are read from and written to drives, with and without
        /// overlap, and without overlap at least as long as with it.
        #[test]
        fn step_is_no_shorter_than_the_transfers_of_drives(
            read in 1u64..20, write in 1u64..20, batches in 1u64..4, weights: bool
        ) {
            let tier = if weights { "weights_tier = \"nvme\"\n" } else { "" };
            let [overlapped, sequential] = [true, false].map(|overlap| {
                let job = job(&format!(
                    "global_batch = {}\noverlap = {overlap}\noptimizer_tier = \"nvme\"\n{tier}", 4 * batches
                ));
                let layout = Layout::specified_by(&job, 4).unwrap().unwrap();
                let speeds = speeds(read * 100_000_000, write * 100_000_000);
                let time = step(&job, &layout, &speeds, &Efficiency::default(), &FlatBandwidth(100_000_000_000)).unwrap().time;
                let parameters = job.model.parameters() as f64 / 4.0;
                let stored = if weights { (2.0 * 2.0 * batches as f64, 2.0) } else { (0.0, 0.0) };
                let seconds = parameters * (16.0 + stored.0) / (read as f64 * 1e8)
                    + parameters * (4.0 + 12.0 + stored.1) / (write as f64 * 1e8);
                (time.0 as f64 / 1e12, seconds)
            });
            prop_assert!(overlapped.0 >= overlapped.1 * 0.999, "{overlapped:?}");
            prop_assert!(sequential.0 >= overlapped.0);
        }
    }

    /// Updated weights are written to drives by a GPU's update as well.
    #[test]
    fn updates_on_gpus_write_weights_to_drives() {
        let time = |write: u64, overlap: bool| {
            let job = job(&format!("global_batch = 4\noverlap = {overlap}\nweights_tier = \"nvme\"\n"));
            let speeds = PeakRates { offload_bandwidth: None, ..speeds(7_000_000_000, write) };
            optimizer_time(&job, 1_000_000_000, &speeds, &Efficiency::default())
        };
        let (fast, slow) = (time(u64::MAX, true), time(100_000_000, true));
        assert_eq!(slow, Picos(20 * 1_000_000_000_000));
        assert!(fast.0 > 0 && fast < Picos(1_000_000_000_000));
        let sequential = slow + time(u64::MAX, false);
        assert!((time(100_000_000, false).0).abs_diff(sequential.0) < 1000);
    }

    /// States on drives need only buffers in host memory, and none on the GPU.
    #[test]
    fn drives_use_no_memory() {
        let memory = |lines: &str| {
            let job = job(&format!("global_batch = 4\n{lines}"));
            fabricast_workload::job::footprint(&job, &Layout::specified_by(&job, 4).unwrap().unwrap())
        };
        let (hbm, nvme) = (memory(""), memory("optimizer_tier = \"nvme\"\n"));
        let parameters = hbm.optimizer.0 / 12;
        // Sharded gradients are sent to the CPU during the backward pass.
        assert_eq!((hbm.gradients, nvme.gradients), (Bytes(2 * parameters), Bytes(0)));
        assert_eq!((nvme.optimizer, nvme.host), (Bytes(0), Bytes(4 * 4 * parameters)));
        let both = memory("optimizer_tier = \"nvme\"\nweights_tier = \"nvme\"\n");
        // Gathered weights of two layers remain.
        assert_eq!(nvme.weights.0 - both.weights.0, 2 * parameters);
        assert_eq!(both.host.0 - nvme.host.0, 2 * parameters);
    }
}
