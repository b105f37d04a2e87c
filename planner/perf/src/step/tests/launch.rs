//! Steps whose passes wait for the host.

use super::super::expert_launch::layer_time;
use super::super::host_launch::synchronized_passes;
use super::super::{Share, Step};
use super::{rails, read, timed};
use fabricast_topologies::Picos;
use fabricast_workload::job::{KernelFusion, Layout, Training};

/// Job with 64 experts on eight GPUs, two layers and 32 sequences.
fn job(parallel: &str, lines: &str) -> String {
    format!(
        "name = \"j\"\nprecision = \"bf16\"\nglobal_batch = 32\nflash_attention = true\nkernels = \"fused\"\n{lines}\nparallel = {{ {parallel} }}\n\
         model = {{ layers = 2, hidden = 1024, heads = 8, ffn = 512, gated = true, vocab = 1024, seq = 256, experts = 64, experts_per_token = 2 }}\n"
    )
}

/// Host time of both passes through a stage.
fn host_passes(training: &Training, layers: u64) -> Picos {
    let layout = Layout::specified_by(training, 8).unwrap().unwrap();
    synchronized_passes(training, &layout, layers, 0).into_iter().sum()
}

/// If the host takes longer than the GPU for every pass, a step takes its time for all passes, and graphs shorten it.
#[test]
fn passes_with_experts_take_at_least_their_host_time() {
    let fabric = rails(1);
    let step = |lines: &str| -> Step { timed(&fabric, &job("dp = 8, ep = 8", lines)) };
    let launched = step("");
    let training = read(&job("dp = 8, ep = 8", ""));
    let passes = host_passes(&training, 2);
    assert_eq!(passes, Picos(2 * layer_time(&training, 8).0));
    assert!(launched.time >= Picos(4 * passes.0), "{:?} and {passes:?}", launched.time);
    let without_experts = step("launch = \"graph_without_experts\"");
    let graph = step("launch = \"graph\"");
    assert!(graph.time < without_experts.time && without_experts.time < launched.time);
    assert_eq!(graph.share_time(Share::Launch), Picos::ZERO);
    assert_eq!(graph.share_time(Share::Compute), launched.share_time(Share::Compute));
    // Recomputation launches the forward passes of the recomputed layers once more.
    let recomputed = |lines: &str| step(&format!("recompute = \"full\"\n{lines}")).time - launched.time;
    assert!(recomputed("") > Picos(launched.time.0 * 4 / 10));
    let one = recomputed("recompute_layers = 1");
    assert!(one > Picos(recomputed("").0 * 4 / 10) && one < Picos(recomputed("").0 * 6 / 10), "{one:?}");
    // Unstated kernels are between fused and eager ones.
    let with_kernels = |fusion: Option<KernelFusion>| host_passes(&Training { fusion, ..training.clone() }, 2).0;
    let [fused, eager] = [KernelFusion::Fused, KernelFusion::Eager].map(|fusion| with_kernels(Some(fusion)));
    assert!(with_kernels(None).abs_diff((fused + eager) / 2) < 10);
}

/// Stages of a pipeline wait for the passes of each other, and so for the host of each other: eight micro-batches and one
/// stage more, where the host times of a stage alone are those of eight.
#[test]
fn stages_wait_for_the_host_of_each_other() {
    let parallel = "dp = 4, pp = 2, ep = 4";
    let stage = host_passes(&read(&job(parallel, "")), 1);
    assert!(timed(&rails(1), &job(parallel, "")).time >= Picos(9 * stage.0));
}
