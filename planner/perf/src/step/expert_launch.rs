//! Time that the host needs to launch a layer with experts as Megatron Core and Transformer Engine launch it.
//!
//! Each local expert has its own GEMMs, and in 8 bits its own scales and conversions, which the host launches one by one
//! (Transformer Engine, `transformer_engine/pytorch/module/grouped_linear.py`): 8 kernels an expert and layer in 16 bits,
//! 12 to 24 in 8 bits, as the profiler counted.
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
//! by 7 % in the median and 18 % at the 90th percentile; 52 steps on another such machine take 0.77 of the predicted
//! time in the median. The machines are virtual, and a launch takes 7 µs there; servers take half of the time
//! ([`SERVER_SHARE`]).
//!
//! The host reads from the GPU how many tokens each expert receives, in the forward pass of every layer (Megatron-LM,
//! `megatron/core/transformer/moe/token_dispatcher.py`, `_maybe_dtoh_and_synchronize`; DeepEP's normal kernels wait
//! for the number of received tokens). Therefore it cannot launch ahead of the GPU, and each pass takes at least its own
//! host time, where passes of dense layers share that of a whole step.

use fabricast_topologies::Picos;

use crate::time::scaled;
use fabricast_workload::job::{KernelFusion, LaunchMode, Layout, Precision, Recompute, Training};

/// Host times of both passes of a layer.
struct LaunchTimes {
    /// Layer with a dense feed-forward part.
    dense: Picos,
    /// Layer with experts, without the experts.
    layer: Picos,
    /// Each expert of the rank.
    expert: Picos,
}

const fn micros(count: u64) -> Picos {
    Picos(count * 1_000_000)
}

const IN_16_BITS: LaunchTimes = LaunchTimes { dense: micros(4250), layer: micros(9190), expert: micros(257) };

const IN_8_BITS: LaunchTimes = LaunchTimes { dense: micros(7170), layer: micros(12_600), expert: micros(519) };

/// Host time of dispatch and combine between ranks in both passes.
const EXCHANGE: Picos = micros(4070);

/// Share of the forward pass in the host time of both passes, the median of the measured steps.
const FORWARD_SHARE: f64 = 0.53;

/// Host time on servers as a share of that on the measured virtual machine, from 118 published steps on H100 to GB300
/// (`planner/data/megatron-bridge/experts.toml`). Four of five models, and each of five GPUs, left out give the same
/// share, Qwen3 30B 0.6.
const SERVER_SHARE: f64 = 0.5;

/// Host time of both passes of a layer with experts divided among `expert_degree` ranks.
pub(super) fn layer_time(job: &Training, expert_degree: u32) -> Picos {
    let times = match job.precision {
        Precision::Fp8 | Precision::Nvfp4 => IN_8_BITS,
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => IN_16_BITS,
    };
    let experts = job.model.experts.div_ceil(u64::from(expert_degree.max(1)));
    let exchange = if expert_degree > 1 { EXCHANGE } else { Picos::ZERO };
    let all = times.layer + scaled(times.expert, experts) + exchange;
    let launched = match job.launch {
        LaunchMode::Stream => all,
        LaunchMode::GraphWithoutExperts => all - times.dense,
        LaunchMode::Graph => Picos::ZERO,
    };
    Picos((launched.0 as f64 * SERVER_SHARE) as u64)
}

/// Returns the least durations of the forward and the backward pass through `layers` layers, zero if the host can launch
/// ahead of the GPU.
pub(super) fn synchronized_passes(job: &Training, layout: &Layout, layers: u64) -> [Picos; 2] {
    if job.model.experts == 0 || job.fusion != Some(KernelFusion::Fused) {
        return [Picos::ZERO; 2];
    }
    let both = layer_time(job, layout.degrees.expert);
    let forward = Picos((both.0 as f64 * FORWARD_SHARE) as u64);
    let recomputed = match job.recompute {
        Recompute::Full | Recompute::EarlyStop => forward,
        // Assumed: half of a layer's kernels.
        Recompute::FeedForward => Picos(forward.0 / 2),
        Recompute::None | Recompute::Selective => Picos::ZERO,
    };
    [forward, both - forward + recomputed].map(|time| scaled(time, layers))
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
    /// machine by 32 % in the median.
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
            let times = if precision == "bf16" { IN_16_BITS } else { IN_8_BITS };
            let predicted = match experts {
                0 => times.dense,
                _ => layer_time(&job(&format!("precision = \"{precision}\""), experts * u64::from(ranks)), ranks),
            };
            let share = if experts == 0 { 1.0 } else { SERVER_SHARE };
            errors[usize::from(line.ends_with("held_out"))].push((predicted.us() / 1e3 / share / measured - 1.0).abs());
        }
        for errors in &mut errors {
            errors.sort_by(f64::total_cmp);
        }
        let [fitted, held_out] = errors;
        assert_eq!((fitted.len(), held_out.len()), (76, 52));
        assert!(fitted[38] < 0.08 && fitted[68] < 0.19 && held_out[26] < 0.33, "{fitted:?} {held_out:?}");
    }

    #[test]
    fn graphs_without_experts_save_what_dense_layers_take() {
        let time = |launch: &str| layer_time(&job(&format!("precision = \"bf16\"\nlaunch = \"{launch}\""), 16), 1);
        let dense = Picos((IN_16_BITS.dense.0 as f64 * SERVER_SHARE) as u64);
        assert_eq!(time("stream"), time("graph_without_experts") + dense);
        assert_eq!(time("graph"), Picos::ZERO);
    }
}
