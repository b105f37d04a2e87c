//! Time that the host needs to launch a layer with experts as Megatron Core and Transformer Engine launch it.
//!
//! Each local expert has its own GEMMs, and in 8 bits its own scales and conversions, which the host launches one by one
//! (Transformer Engine, `transformer_engine/pytorch/module/grouped_linear.py`): 8 kernels an expert and layer in 16 bits,
//! 8 to 24 in 8 bits, by the kind of scaling, as the profiler counted.
//!
//! | part of both passes | 16 bits | 8 bits |
//! |---|---|---|
//! | layer with experts: attention, router, permutations | 9.19 ms | 12.60 ms |
//! | each expert of the rank | 0.257 ms | 0.519 ms |
//! | dispatch and combine between ranks | 4.07 ms | 4.07 ms |
//! | layer with a dense feed-forward part, for comparison | 4.25 ms | 7.17 ms |
//!
//! Least squares of logarithms to 76 steps of four layers (hidden size 1,024) with 0 to 32 experts a rank on one and two
//! H200, Megatron Core 0.16.1, Transformer Engine 2.11, PyTorch 2.11 (`planner/data/expert-layers.csv`, 2026-11-28). They differ
//! by 7 % in the median and 18 % at the 90th percentile. On another such machine 52 steps take 0.76 of the predicted time
//! in the median, 0.56 (two ranks, scales by block) to 1.08 (one rank, scales by tensor). Servers take half of the time
//! ([`SERVER_SHARE`]).
//!
//! The host reads from the GPU how many tokens each expert receives, in the forward pass of every layer (Megatron-LM,
//! `megatron/core/transformer/moe/token_dispatcher.py`, `_maybe_dtoh_and_synchronize`; DeepEP's normal kernels wait
//! for the number of received tokens). Therefore it cannot launch ahead of the GPU, and each pass takes at least its own
//! host time, where passes of dense layers share that of a whole step.

use fabricast_topologies::Picos;

use crate::time::{micros, scaled, share};
use fabricast_workload::job::{Precision, Training};

/// Host times of both passes of a layer.
struct LaunchTimes {
    /// Layer with a dense feed-forward part.
    dense: Picos,
    /// Layer with experts, without the experts.
    layer: Picos,
    /// Each expert of the rank.
    expert: Picos,
}

const IN_16_BITS: LaunchTimes = LaunchTimes { dense: micros(4250), layer: micros(9190), expert: micros(257) };

const IN_8_BITS: LaunchTimes = LaunchTimes { dense: micros(7170), layer: micros(12_600), expert: micros(519) };

/// Host time of dispatch and combine between ranks in both passes.
const EXCHANGE: Picos = micros(4070);

/// Share of the forward pass in the host time of both passes, the median of the measured steps.
const FORWARD_SHARE: f64 = 0.53;

/// Host time on servers as a share of that on the measured virtual machine, of 0.3, 0.4 to 0.8 the one with the least sum
/// of errors of 118 published steps on H100 to GB300 (`planner/data/megatron-bridge/experts.toml`). Each GPU left out
/// gives the same, and so does each model, but for Qwen3 30B: 0.6.
const SERVER_SHARE: f64 = 0.5;

/// Host time of both passes of a layer with experts divided among `expert_degree` ranks, with a kernel at a time.
pub(super) fn layer_time(job: &Training, expert_degree: u32) -> Picos {
    on_servers(measured_time(job, expert_degree))
}

/// Part of [`layer_time`] that a layer with experts takes more than a dense one.
pub(super) fn expert_time(job: &Training, expert_degree: u32) -> Picos {
    on_servers(measured_time(job, expert_degree) - launch_times(job).dense)
}

/// Returns the forward pass's part of the host time of both passes.
pub(super) fn forward_part(both: Picos) -> Picos {
    share(both, FORWARD_SHARE)
}

fn launch_times(job: &Training) -> LaunchTimes {
    match job.precision {
        Precision::Fp8 | Precision::Nvfp4 => IN_8_BITS,
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => IN_16_BITS,
    }
}

/// Host time of both passes of a layer with experts on the measured machine.
fn measured_time(job: &Training, expert_degree: u32) -> Picos {
    let times = launch_times(job);
    let experts = job.model.experts.div_ceil(u64::from(expert_degree.max(1)));
    let exchange = if expert_degree > 1 { EXCHANGE } else { Picos::ZERO };
    times.layer + scaled(times.expert, experts) + exchange
}

fn on_servers(measured: Picos) -> Picos {
    share(measured, SERVER_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_workload::job::{Job, read_job};

    fn job(lines: &str, experts: u64) -> Training {
        let text = format!(
            "name = \"j\"\nglobal_batch = 64\nflash_attention = true\nkernels = \"fused\"\nparallel = {{ dp = 1 }}\n{lines}\nmodel = {{ layers = 4, hidden = 1024, \
             heads = 8, ffn = 512, gated = true, vocab = 1024, seq = 256, experts = {experts}, experts_per_token = 2 }}\n"
        );
        let Job::Training(job) = read_job(&text, "j").unwrap() else { panic!() };
        job
    }

    /// Layers that set the host times differ by 7 % in the median and 18 % at the 90th percentile, those of another
    /// machine by 32 % in the median and 81 % at the 90th percentile.
    #[test]
    fn host_times_are_those_of_measured_layers() {
        let file = include_str!("../../../data/expert-layers.csv");
        let mut errors = [Vec::new(), Vec::new()];
        for line in file.lines().filter(|line| line.starts_with("small")) {
            let [_, ranks, precision, experts, _, layer, ..] = line.split(',').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let number = |text: &str| text.parse::<f64>().unwrap();
            let (ranks, experts) = (number(ranks) as u32, number(experts) as u64);
            let precision = if precision == "bf16" { "bf16" } else { "fp8" };
            let measured = number(layer);
            let job = job(&format!("precision = \"{precision}\""), experts.max(2) * u64::from(ranks));
            let predicted = if experts == 0 { launch_times(&job).dense } else { measured_time(&job, ranks) };
            errors[usize::from(line.ends_with("held_out"))].push((predicted.us() / 1e3 / measured - 1.0).abs());
        }
        for errors in &mut errors {
            errors.sort_by(f64::total_cmp);
        }
        let [fitted, held_out] = errors;
        assert_eq!((fitted.len(), held_out.len()), (76, 52));
        assert!(
            fitted[38] < 0.08 && fitted[68] < 0.19 && held_out[26] < 0.33 && held_out[46] < 0.82,
            "{fitted:?} {held_out:?}"
        );
    }
}
