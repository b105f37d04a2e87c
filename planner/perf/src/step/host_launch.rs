//! Time that the host needs to launch a step: a step is not shorter, however fast its kernels are.
//!
//! ```text
//! rank   micro-batches × layers × (layer × passes + gathers) + layers × reductions + rest
//! ```
//!
//! Every rank has a process, which launches the layers of its stage. The times per layer are those of the software:
//!
//! | part | time | measured |
//! |---|---|---|
//! | layer, eager, Llama-like | 1.6 ms | 24 layers in 42.9 ms |
//! | layer, eager, GPT-like | 0.9 ms | 0.55 of it, by the number of operators (`elementwise`) |
//! | layer, compiled or fused | 1.0 ms | 24 layers in 29.4 ms; fused kernels launched from Python are taken to cost as much |
//! | gathers and reductions of FSDP | 3.0 ms a layer and micro-batch | 119 and 115 ms with FSDP2, 24 layers |
//! | hooks of gradient buckets | 0.54 ms a layer and step | 55.9 ms with DDP |
//! | rest: optimizer, embedding, loss | 5 ms a step | |
//!
//! All were measured on two H100 with PyTorch 2.11 (`planner/data/host-launch.toml`), with one sequence of 1,024 tokens.
//! They differ by 30 % between equal machines ([`SPREAD`]) and depend on the CPU. A step that is one CUDA graph needs no
//! time per layer.

use fabricast_topologies::Picos;

use crate::time::scaled;
use fabricast_workload::job::{
    Dimension, KernelFusion, LaunchMode, Layout, Overlap, Recompute, Training, WeightLifetime,
};

/// Layer of a Llama-like model, both passes, operator by operator.
const EAGER_GATED: Picos = Picos(1_600_000_000);

/// Layer of a GPT-like model, both passes, operator by operator.
const EAGER: Picos = Picos(900_000_000);

/// Layer that is compiled or consists of fused kernels.
const FUSED: Picos = Picos(1_000_000_000);

/// Gathers and reductions of a layer by FSDP.
const SHARDED: Picos = Picos(3_000_000_000);

/// Hooks of a layer's gradients.
const HOOKS: Picos = Picos(540_000_000);

/// Optimizer, embedding and loss.
const REST: Picos = Picos(5_000_000_000);

/// Spread of host times between equal machines, as a fraction.
pub const SPREAD: f64 = 0.3;

/// Host time of a layer's launches in both passes, without recomputation.
fn layer_time(job: &Training) -> Picos {
    if job.launch == LaunchMode::Graph {
        return Picos::ZERO;
    }
    let eager = if job.model.ffn_matrices == 3 { EAGER_GATED } else { EAGER };
    match job.fusion {
        KernelFusion::Eager => eager,
        KernelFusion::Compiled | KernelFusion::Fused => FUSED,
        KernelFusion::Unspecified => Picos((eager.0 + FUSED.0) / 2),
    }
}

/// Host time of the launches of all layers of a replica, in the forward and in the backward pass.
pub(super) fn pass_times(job: &Training) -> [Picos; 2] {
    let both = scaled(layer_time(job), job.model.layers);
    [Picos(both.0 / 3), Picos(both.0 - both.0 / 3)]
}

/// Returns the time that the process of a rank needs to launch a step.
pub(super) fn host_time(job: &Training, layout: &Layout) -> Picos {
    if job.launch == LaunchMode::Graph {
        return Picos::ZERO;
    }
    let both_passes = layer_time(job);
    // A third of the kernels are those of the forward pass, which recomputation repeats.
    let passes = match job.recompute {
        Recompute::Full | Recompute::EarlyStop => both_passes + Picos(both_passes.0 / 3),
        Recompute::None | Recompute::Selective => both_passes,
    };
    let replicas = layout.size(Dimension::Data) > 1;
    let gathers = match job.weight_lifetime(layout) {
        WeightLifetime::Pass | WeightLifetime::MicroBatch if replicas => SHARDED,
        _ => Picos::ZERO,
    };
    let hooks = if replicas && job.overlap == Overlap::On { HOOKS } else { Picos::ZERO };
    let layers = (0..layout.degrees.pipeline).map(|stage| layout.stage_layers(&job.model, stage)).max().unwrap_or(0);
    scaled(passes + gathers, layers * layout.micro_batches(job)) + scaled(hooks, layers) + REST
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_workload::job::{Job, read_job};

    fn milliseconds(lines: &str, ranks: u32) -> f64 {
        let text = format!(
            "name = \"j\"\nglobal_batch = {ranks}\nprecision = \"bf16\"\nflash_attention = true\n\
             model = {{ layers = 24, hidden = 1024, heads = 16, ffn = 2816, gated = true, vocab = 32000, seq = 1024 }}\n{lines}"
        );
        let Job::Training(job) = read_job(&text, "j").unwrap() else { panic!() };
        host_time(&job, &Layout::specified_by(&job, ranks).unwrap().unwrap()).us() / 1e3
    }

    /// Measured steps that the host limits, with the spread between equal machines.
    #[test]
    fn host_time_is_that_of_measured_small_steps() {
        for (lines, ranks, measured) in [
            ("kernels = \"eager\"\nparallel = { dp = 1 }", 1, 42.9),
            ("kernels = \"compiled\"\nparallel = { dp = 1 }", 1, 29.4),
            ("kernels = \"eager\"\nparallel = { dp = 2 }", 2, 55.9),
            ("kernels = \"eager\"\nzero = 3\nparallel = { dp = 2 }", 2, 119.5),
            ("kernels = \"compiled\"\nzero = 3\nparallel = { dp = 2 }", 2, 115.2),
        ] {
            let predicted = milliseconds(lines, ranks);
            assert!((predicted / measured - 1.0).abs() < SPREAD, "{lines}: {predicted} and {measured}");
        }
    }

    #[test]
    fn graphs_need_no_time_per_layer_and_unstated_software_is_between() {
        let time = |lines: &str| milliseconds(&format!("{lines}parallel = {{ dp = 1 }}"), 1);
        assert_eq!(time("launch = \"graph\"\n"), 0.0);
        let [eager, fused, unstated] = [time("kernels = \"eager\"\n"), time("kernels = \"fused\"\n"), time("")];
        assert!((unstated - (eager + fused) / 2.0).abs() < 1e-6);
        assert!(time("kernels = \"eager\"\nrecompute = \"full\"\n") > eager);
    }
}
