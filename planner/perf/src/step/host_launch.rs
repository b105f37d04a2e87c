//! Time that the host needs to launch a step, which is a lower bound on the time of the step.
//!
//! ```text
//! rank      micro-batches × (layers × (layer + recomputation + tensor + gathers) + ends)
//!           + layers × reduction × reductions + tensors × per tensor + rest
//! ```
//!
//! Every rank has a process, which launches the layers of its stage:
//!
//! | part | time | |
//! |---|---|---|
//! | layer, eager, Llama-like | 1.92 ms | 349 operators in both passes at 5.5 µs |
//! | layer, eager, GPT-like | 1.13 ms | 205 operators |
//! | layer, compiled | 1.42 ms | guards and wrappers of the compiler; fused kernels launched from Python are taken to cost as much |
//! | layer with experts | [`expert_launch`] | and recomputation 0.53 of it |
//! | recomputation | as the layer; compiled 1.48 times | both passes once more: hooks run for each saved tensor |
//! | tensor parallelism | 0.157 ms a call | four calls a layer |
//! | gathers of FSDP | 0.95 ms | one a layer and micro-batch, two with resharding after the forward pass |
//! | reductions of FSDP | 1.74 ms | one a layer, for each micro-batch or once |
//! | embedding, last norm, loss | 0.74 ms | per micro-batch |
//! | optimizer | 0.011 ms a tensor; 0.034 ms with FSDP | |
//! | hooks of gradient buckets | 0.036 ms a tensor | per step |
//! | addition of gradients | 0.037 ms a tensor | for each micro-batch after the first, without FSDP |
//! | rest | 1 ms | per step |
//! | adapter, eager | 0.21 ms | one for each adapted linear layer, both passes ([`EAGER_ADAPTER`]) |
//! | adapter, compiled | 0.075 ms | |
//!
//! Fitted by least squares of logarithms to 44 steps of 24 layers on two H100 with PyTorch 2.11
//! (`planner/data/host-steps.csv`); 60 other steps differ by 11 % in the median, 23 % at the 80th percentile
//! ([`ERROR_PERCENT`]) and 30 % at the 90th. Equal machines differ by 30 %, and other CPUs by their time per operator. A step that is one CUDA graph needs
//! no time per layer.

use fabricast_topologies::Picos;

use super::expert_launch;
use crate::time::{micros, scaled};
use fabricast_workload::job::{
    Accumulate, Dimension, GradientAddition, KernelFusion, LaunchMode, Layout, Recompute, Training, WeightLifetime,
    Zero,
};

/// Launch time of a layer of a Llama-like model, both passes, one kernel per operator.
const EAGER_GATED: Picos = micros(1920);

/// Launch time of a layer of a GPT-like model, both passes, one kernel per operator.
const EAGER: Picos = micros(1130);

/// Launch time of a layer that is compiled or consists of fused kernels, both passes.
const FUSED: Picos = micros(1420);

/// Launch time of the recomputation of a layer that is compiled or consists of fused kernels.
const FUSED_RECOMPUTATION: Picos = micros(2100);

/// Launch time of an adapter, both passes, one kernel per operator: 0.11 of that of the layer without adapters, the
/// median of eight pairs of steps with and without adapters on one H200 with PyTorch 2.11, 0.07 to 0.16
/// (`planner/data/jobs/lora-h200.toml`). A count of about 30 operators at 5.5 µs gives 0.17 ms.
const EAGER_ADAPTER: Picos = micros(210);

/// Launch time of an adapter in a layer that is compiled or consists of fused kernels, both passes: 0.053 of that of the
/// layer in the same measurement.
const FUSED_ADAPTER: Picos = micros(75);

/// Host time of a call among tensor-parallel ranks.
const TENSOR_CALL: Picos = micros(157);

/// Number of calls among tensor-parallel ranks in both passes of a layer.
const TENSOR_CALLS: u64 = 4;

/// Host time of gathering a layer's weights with FSDP.
const GATHER: Picos = micros(950);

/// Host time of reducing a layer's gradients with FSDP.
const REDUCTION: Picos = micros(1740);

/// Host time of the embedding, last norm and loss of a micro-batch.
const ENDS: Picos = micros(740);

/// Host time of the optimizer update of a tensor.
const UPDATE: Picos = micros(11);

/// Host time of the optimizer update of a sharded tensor.
const SHARDED_UPDATE: Picos = micros(34);

/// Host time of the hook of a tensor's gradient, and of its copies into and out of a bucket.
const HOOK: Picos = micros(36);

/// Host time of the addition of a tensor's gradient.
const ADDITION: Picos = micros(37);

/// Number of kernels that add a tensor's gradient with conversions to 32 bits.
const COPIES: u64 = 3;

/// Part of the host time of a step that does not depend on the number of layers, tensors and micro-batches.
const REST: Picos = micros(1000);

/// 80th percentile of |predicted ÷ measured − 1| of the 60 steps that set nothing, in percent.
pub const ERROR_PERCENT: f64 = 23.4;

/// Host times of launching a layer.
#[derive(Clone, Copy)]
struct LayerTimes {
    /// Host time of both passes.
    passes: Picos,
    /// Host time of recomputing the layer in the backward pass.
    recomputation: Picos,
}

impl LayerTimes {
    const ZERO: Self = Self { passes: Picos::ZERO, recomputation: Picos::ZERO };

    /// Times of a layer whose experts are divided among `expert_degree` ranks.
    fn new(job: &Training, expert_degree: u32) -> Self {
        let of_kernels = |fusion: KernelFusion| Self::of_kernels(job, expert_degree, fusion);
        job.fusion.map_or_else(
            || {
                let [eager, fused] = [KernelFusion::Eager, KernelFusion::Fused].map(of_kernels);
                Self {
                    passes: Picos((eager.passes.0 + fused.passes.0) / 2),
                    recomputation: Picos((eager.recomputation.0 + fused.recomputation.0) / 2),
                }
            },
            of_kernels,
        )
    }

    fn of_kernels(job: &Training, expert_degree: u32, fusion: KernelFusion) -> Self {
        let adapters = job.lora.as_ref().map_or(0, |lora| lora.adapter.targets.len() as u64);
        let dense = match fusion {
            KernelFusion::Eager => {
                let layer = if job.model.ffn_matrices == 3 { EAGER_GATED } else { EAGER };
                let passes = layer + scaled(EAGER_ADAPTER, adapters);
                Self { passes, recomputation: passes }
            }
            KernelFusion::Compiled | KernelFusion::Fused => Self {
                passes: FUSED + scaled(FUSED_ADAPTER, adapters),
                recomputation: FUSED_RECOMPUTATION + scaled(FUSED_ADAPTER, adapters),
            },
        };
        let passes = match (job.launch, fusion) {
            (LaunchMode::Graph, _) => return Self::ZERO,
            (LaunchMode::Stream, _) if job.model.experts == 0 => return dense,
            (LaunchMode::GraphWithoutExperts, _) if job.model.experts == 0 => return Self::ZERO,
            (LaunchMode::Stream, KernelFusion::Fused) => expert_launch::layer_time(job, expert_degree),
            // Assumed: experts add as much to layers of other software.
            (LaunchMode::Stream, _) => dense.passes + expert_launch::expert_time(job, expert_degree),
            (LaunchMode::GraphWithoutExperts, _) => expert_launch::expert_time(job, expert_degree),
        };
        Self { passes, recomputation: expert_launch::forward_part(passes) }
    }
}

/// Host time of both passes of a layer: its kernels, tensor-parallel calls and gathers of weights.
fn layer_time(job: &Training, layout: &Layout, times: LayerTimes) -> Picos {
    let tensor = match job.launch {
        LaunchMode::Stream if layout.degrees.tensor > 1 => scaled(TENSOR_CALL, TENSOR_CALLS),
        _ => Picos::ZERO,
    };
    let gathers = match job.weight_lifetime(layout) {
        WeightLifetime::Pass if shards_weights(job, layout) => 2,
        WeightLifetime::MicroBatch if shards_weights(job, layout) => 1,
        _ => 0,
    };
    times.passes + tensor + scaled(GATHER, gathers)
}

/// Host time of recomputing `recomputed` of `layers` layers.
fn recomputation_time(job: &Training, times: LayerTimes, layers: u64, recomputed: u64) -> Picos {
    match job.recompute {
        Recompute::Full | Recompute::EarlyStop => scaled(times.recomputation, recomputed),
        // Assumed: half of a layer's kernels.
        Recompute::FeedForward => Picos(scaled(times.recomputation, layers).0 / 2),
        Recompute::None | Recompute::Selective => Picos::ZERO,
    }
}

/// Returns true if several ranks have copies of the weights.
fn has_replicas(layout: &Layout) -> bool {
    layout.size(Dimension::Data) > 1 || layout.size(Dimension::Replica) > 1
}

fn shards_weights(job: &Training, layout: &Layout) -> bool {
    has_replicas(layout) && job.zero == Zero::Weights
}

/// Returns the shortest durations of the forward and the backward pass through `layers` layers, `recomputed` of which
/// are recomputed; zero if the host can launch ahead of the GPU, which it cannot if layers have experts
/// ([`expert_launch`]).
pub(super) fn synchronized_passes(job: &Training, layout: &Layout, layers: u64, recomputed: u64) -> [Picos; 2] {
    if job.model.experts == 0 || job.launch == LaunchMode::Graph {
        return [Picos::ZERO; 2];
    }
    let times = LayerTimes::new(job, layout.degrees.expert);
    let both = layer_time(job, layout, times);
    let forward = expert_launch::forward_part(both);
    let recomputation = recomputation_time(job, times, layers, recomputed);
    [scaled(forward, layers), scaled(both - forward, layers) + recomputation]
}

/// Returns the host time of launching all layers of a replica, in the forward and in the backward pass.
pub(super) fn pass_times(job: &Training) -> [Picos; 2] {
    let both = scaled(LayerTimes::new(job, 1).passes, job.model.layers);
    [Picos(both.0 / 3), Picos(both.0 - both.0 / 3)]
}

/// Returns the time that the processes need to launch a step: that of the slowest stage.
#[must_use]
pub fn host_time(job: &Training, layout: &Layout) -> Picos {
    if job.launch == LaunchMode::Graph {
        return Picos::ZERO;
    }
    (0..layout.degrees.pipeline).map(|stage| stage_host_time(job, layout, stage)).max().unwrap_or_default()
}

fn stage_host_time(job: &Training, layout: &Layout, stage: u32) -> Picos {
    let layers = layout.stage_layers(&job.model, stage);
    let (micro_batches, tensors) = (layout.micro_batches(job).max(1), layers * job.trained_layer_tensors());
    let times = LayerTimes::new(job, layout.degrees.expert);
    let (replicas, is_sharded) = (has_replicas(layout), shards_weights(job, layout));
    let reductions = match job.gradient_accumulation(layout) {
        _ if !is_sharded => 0,
        Accumulate::Shards => micro_batches,
        Accumulate::Whole => 1,
    };
    let per_tensor = match is_sharded {
        true => SHARDED_UPDATE,
        false if replicas => UPDATE + HOOK,
        false => UPDATE,
    };
    let additions = match job.gradient_addition {
        _ if is_sharded => 0,
        GradientAddition::Gemm => 0,
        GradientAddition::Kernel => micro_batches - 1,
        GradientAddition::Copies => COPIES * micro_batches,
    };
    let recomputed = recomputation_time(job, times, layers, job.recomputed_stage_layers(layout, stage));
    let layer = layer_time(job, layout, times);
    scaled(scaled(layer, layers) + recomputed + ENDS, micro_batches)
        + scaled(REDUCTION, layers * reductions)
        + scaled(per_tensor, tensors)
        + scaled(ADDITION, tensors * additions)
        + REST
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_workload::job::{Job, read_job};

    fn milliseconds(lines: &str, ranks: u32) -> f64 {
        let text = format!("name = \"j\"\nprecision = \"bf16\"\nflash_attention = true\n{lines}");
        let Job::Training(job) = read_job(&text, "j").unwrap() else { panic!() };
        host_time(&job, &Layout::specified_by(&job, ranks).unwrap().unwrap()).us() / 1e3
    }

    /// Returns the job of a measured step, and its number of ranks.
    fn job(
        software: &str,
        model: &str,
        layers: u64,
        micro_batches: u64,
        recompute: &str,
        options: &str,
    ) -> (String, u32) {
        let gated = model != "gpt";
        let (ranks, parallel, zero) = match software {
            "plain" => (1, "dp = 1", 0),
            "tp" => (2, "tp = 2", 0),
            "ddp" => (2, "dp = 2", 0),
            _ => (2, "dp = 2", 3),
        };
        let replicas = if software == "tp" { 1 } else { ranks };
        let kernels = if options.contains("compiled") { "compiled" } else { "eager" };
        let mut text = format!(
            "global_batch = {}\nrecompute = \"{recompute}\"\nkernels = \"{kernels}\"\ngradient_addition = \"kernel\"\nzero = {zero}\nparallel = {{ {parallel} }}\n\
             model = {{ layers = {layers}, hidden = 128, heads = 2, gated = {gated}, biases = {}, vocab = 1024, seq = 64 }}\n",
            micro_batches * u64::from(replicas),
            !gated,
        );
        if options.contains("reshard=False") {
            text.push_str("reshard_after_forward = false\n");
        }
        if options.contains("late_sync") {
            text.push_str("accumulate = \"whole\"\n");
        }
        (text, ranks)
    }

    /// Held-out steps differ by 11 % in the median and 30 % at the 90th percentile; equal machines differ by 30 %.
    #[test]
    fn host_time_is_that_of_measured_small_steps() {
        let file = include_str!("../../../data/host-steps.csv");
        let mut errors: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for line in file.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let [software, model, layers, micro, recompute, options, _, step, _, _, _, set] =
                line.split(',').collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            let (text, ranks) =
                job(software, model, layers.parse().unwrap(), micro.parse().unwrap(), recompute, options);
            let (predicted, measured) = (milliseconds(&text, ranks), step.parse::<f64>().unwrap());
            errors[usize::from(set == "held_out")].push((predicted / measured - 1.0).abs());
        }
        let quantile = |errors: &mut Vec<f64>, share: f64| {
            errors.sort_by(f64::total_cmp);
            errors[(errors.len() as f64 * share) as usize]
        };
        assert_eq!(errors.each_ref().map(Vec::len), [44, 60]);
        let [fitted, held_out] = errors.each_mut().map(|errors| [0.5, 0.9, 0.8].map(|share| quantile(errors, share)));
        assert!(
            fitted[0] < 0.11 && fitted[1] < 0.24 && held_out[0] < 0.13 && held_out[1] < 0.32,
            "{fitted:?} {held_out:?}"
        );
        assert!((100.0 * held_out[2] - ERROR_PERCENT).abs() < 1.0, "{held_out:?}");
    }

    #[test]
    fn graphs_need_no_time_per_layer_and_unstated_software_is_between() {
        let model = "global_batch = 1\nmodel = { layers = 24, hidden = 1024, heads = 16, gated = true, vocab = 32000, seq = 1024 }\nparallel = { dp = 1 }\n";
        let time = |lines: &str| milliseconds(&format!("{model}{lines}"), 1);
        assert_eq!(time("launch = \"graph\"\n"), 0.0);
        let [eager, fused, unstated] = [time("kernels = \"eager\"\n"), time("kernels = \"fused\"\n"), time("")];
        assert!((unstated - (eager + fused) / 2.0).abs() < 1e-6);
        assert!(time("kernels = \"eager\"\nrecompute = \"full\"\n") > eager);
    }
}
