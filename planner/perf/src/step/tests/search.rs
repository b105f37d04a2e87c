//! Comparison of the layout search with layouts that users would write.

use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::step;
use super::super::step_timing::is_schedulable;
use super::super::{Machine, best_step};
use super::{rails, read, steps, with_machine};
use crate::communication::SimulatedCosts;
use fabricast_workload::job::{Degrees, ExpertSharding, Layout, SequenceParallelism, Training, footprint};

/// Table `model` of a job: 24 layers and hidden size 2,048.
const SMALL: &str = "layers = 24, hidden = 2048, heads = 16, ffn = 8192, vocab = 50304, seq = 2048";
/// Table `model` of Llama 2 13B.
const LARGE: &str = "layers = 40, hidden = 5120, heads = 40, ffn = 13824, gated = true, vocab = 32000, seq = 4096";
/// Table `model` of Qwen3 30B-A3B.
const EXPERTS: &str = "layers = 48, hidden = 2048, heads = 32, kv_heads = 4, head_dim = 128, ffn = 768, gated = true, vocab = 151936, \
    seq = 4096, experts = 128, experts_per_token = 8";

/// Returns all combinations of one of the degrees and one of the values.
fn cartesian_product<T: Copy>(
    all: Vec<Degrees>,
    values: &[T],
    combine: impl Fn(Degrees, T) -> Degrees,
) -> Vec<Degrees> {
    all.into_iter()
        .flat_map(|degrees| values.iter().map(|&value| combine(degrees, value)).collect::<Vec<_>>())
        .collect()
}

/// Returns the layouts that users would write, among those that fit in memory.
fn grid(job: &Training, machine: &Machine<'_>) -> Vec<Layout> {
    let ranks = machine.ranks.len() as u32;
    let memory = machine.memory().unwrap_or(Bytes::MAX);
    let powers = [1, 2, 4, 8];
    let all = cartesian_product(vec![Degrees::default()], &powers, |degrees, tensor| Degrees { tensor, ..degrees });
    let all = cartesian_product(all, &powers, |degrees, pipeline| Degrees {
        pipeline,
        data: ranks / degrees.tensor / pipeline,
        ..degrees
    });
    let all = cartesian_product(all, &[1, 2, 5], |degrees, interleave| Degrees { interleave, ..degrees });
    let all = cartesian_product(
        all,
        &[SequenceParallelism::TensorSharded, SequenceParallelism::Undivided],
        |degrees, sequence| Degrees { sequence, ..degrees },
    );
    let all = cartesian_product(all, &[1, 2, 4, 8, 16, 32], |degrees, expert| Degrees { expert, ..degrees });
    let all = cartesian_product(all, &[ExpertSharding::Divided, ExpertSharding::Whole], |degrees, experts| Degrees {
        experts,
        ..degrees
    });
    let layouts = all.into_iter().filter_map(|degrees| Layout::new(job, ranks, degrees).ok());
    layouts.filter(|layout| is_schedulable(job, layout) && footprint(job, layout).excess(memory).is_none()).collect()
}

/// Returns the relative additional time of the layout that the search finds compared with the best of [`grid`]; `None`
/// if the job cannot be divided.
fn relative_excess(fabric: &Fabric, model: &str, lines: &str) -> Option<f64> {
    let job =
        read(&format!("name = \"j\"\nflash_attention = true\nparallel = \"auto\"\nmodel = {{ {model} }}\n{lines}\n"));
    with_machine(fabric, |machine| {
        let searched = best_step(&job, machine).ok()?.0;
        Layout::new(&job, machine.ranks.len() as u32, searched.layout.degrees).unwrap();
        let speeds = machine.training_rates(&job).unwrap();
        let simulated: &SimulatedCosts<'_> = machine.simulated;
        let costs = simulated.restricted_to(job.collectives);
        let predict = |layout: &Layout| step(&job, layout, &speeds, &machine.curve, &costs).unwrap();
        let best = grid(&job, machine).iter().map(predict).min_by_key(|step| step.time);
        let best = best.map_or((Picos(u64::MAX), String::new()), |step| (step.time, step.layout.degrees.to_string()));
        let excess = searched.time.0 as f64 / best.0.0 as f64 - 1.0;
        println!(
            "{excess:+.3} {} {} {} against {} {}",
            fabric.name(),
            lines.replace("\n", " "),
            searched.layout.degrees,
            best.1,
            best.0
        );
        Some(excess)
    })
}

/// The strategy that is fastest without overlap may slow overlapping kernels more. A job that allows any strategy is
/// nevertheless no slower than one limited to the library.
#[test]
fn allowing_more_strategies_is_never_slower() {
    let network = Some("rail,nic=200Gb/s".parse().unwrap());
    let fabric = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new("hgx-h200") }).unwrap();
    for zero in [0, 2] {
        let job = |collectives: &str| {
            format!(
                "name = \"j\"\nglobal_batch = 64\nflash_attention = true\nrecompute = \"full\"\nzero = {zero}\n\
                 parallel = {{ tp = 1 }}\nmodel = {{ {LARGE} }}\ncollectives = \"{collectives}\"\n"
            )
        };
        let [any, library] = ["any", "library"].map(|one| steps(&fabric, &[job(one)]).remove(0).time);
        assert!(any <= library, "{zero}: {any} {library}");
    }
}

/// The layout that the search finds is at most 1 % slower than the best hand-written layout, on several machines, for
/// models with and without experts, with replicated and sharded states.
#[test]
fn search_matches_hand_written_layouts() {
    let tapered = Some("fat_tree,nics_per_node=4,nic=200Gb/s,oversubscription=2".parse().unwrap());
    let fat = load(&FabricRequest { nodes: Some(4), network: tapered, ..FabricRequest::new("dgx-a100") }).unwrap();
    let (two_hosts, eight_hosts) = (rails(2), rails(8));
    let worst = [
        relative_excess(&two_hosts, SMALL, "global_batch = 64\nzero = 0"),
        relative_excess(&two_hosts, LARGE, "global_batch = 64\nzero = 3"),
        relative_excess(&eight_hosts, LARGE, "global_batch = 128\nzero = 1\nrecompute = \"full\""),
        relative_excess(&fat, LARGE, "global_batch = 64\nzero = 1"),
        relative_excess(&two_hosts, EXPERTS, "global_batch = 128\nzero = 1\nrecompute = \"full\""),
        relative_excess(&eight_hosts, EXPERTS, "global_batch = 512\nzero = 1\nrecompute = \"full\""),
        relative_excess(&fat, EXPERTS, "global_batch = 128\nzero = 1\nrecompute = \"full\""),
    ];
    assert!(worst.iter().all(|excess| excess.unwrap() <= 0.01), "{worst:?}");
}

/// The best layout of this job has more model chunks than its estimate suggests, and is not the best-estimated one.
#[test]
fn neighbouring_numbers_of_model_chunks_are_tried_for_every_simulated_layout() {
    let network = Some("rail,nic=200Gb/s".parse().unwrap());
    let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("hgx-h100") }).unwrap();
    let model = "layers = 20, hidden = 2048, heads = 16, vocab = 32000, seq = 2048";
    let lines = "global_batch = 8\nmicro_batch = 1\nzero = 0\nrecompute = \"none\"";
    assert!(relative_excess(&fabric, model, lines).unwrap() <= 0.01);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The search finds the best of the hand-written layouts for small models and batches, which leave few
    /// micro-batches for many GPUs. Interleaving and undivided sequences have the largest effect there.
    #[test]
    fn search_matches_hand_written_layouts_for_small_jobs(
        preset in select(vec!["hgx-h100", "dgx-a100", "hgx-h200"]),
        (nodes, nic) in (select(vec![1, 2, 4]), select(vec![100, 200, 400])),
        (layers, hidden) in (select(vec![16, 20, 24, 40, 48]), select(vec![1024, 2048, 4096, 5120])),
        (seq, batch, micro) in (select(vec![1024, 2048, 4096, 8192]), select(vec![4, 8, 16, 32]), 1..3),
        (zero, recompute) in (0..4, select(vec!["none", "full", "selective"])),
    ) {
        let network = (nodes > 1).then(|| format!("rail,nic={nic}Gb/s").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap();
        let heads = hidden / 128;
        let model = format!("layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = 32000, seq = {seq}");
        let lines = format!("global_batch = {batch}\nmicro_batch = {micro}\nzero = {zero}\nrecompute = \"{recompute}\"");
        // A batch smaller than a micro-batch has no layout.
        prop_assume!(batch >= micro);
        let excess = relative_excess(&fabric, &model, &lines);
        prop_assert!(excess.is_none_or(|excess| excess <= 0.01), "{excess:?}");
    }
}
