//! Tests of steps with activation recomputation in some of the layers.

use proptest::prelude::*;

use super::super::*;
use super::{flat, read};
use crate::communication::StepCall;
use fabricast_workload::job::{Layout, Training, footprint};

fn job(lines: &str, parallel: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = 16\nparallel = {{ {parallel} }}\n{lines}\n\
         model = {{ layers = 24, hidden = 1024, heads = 8, vocab = 512, seq = 512 }}\n"
    )
}

/// With recomputation in n of 24 layers and without overlap, time and number of calls interpolate linearly between none
/// and all. The memory is between these two.
#[test]
fn partial_recomputation_interpolates_linearly() {
    for (parallel, ranks) in [("tp = 1", 1), ("tp = 4", 4), ("tp = 2, pp = 3", 6), ("pp = 2, interleave = 3", 2)] {
        for kind in ["full", "early_stop"] {
            let evaluate = |lines: &str| {
                let text = job(lines, &format!("{parallel}, dp = 1"));
                let step = flat(&text, ranks, 200_000_000_000);
                let job = read(&text);
                let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
                let backward = |one: &StepCall| one.phase == fabricast_workload::job::Phase::LayerBackward;
                let calls: f64 =
                    step_calls(&job, &layout).iter().filter(|one| backward(one)).map(StepCall::calls_per_rank).sum();
                let activations = footprint(&job, &layout).activations.0 as f64;
                ([Share::Compute, Share::Tensor].map(|share| step.share_time(share).0 as f64), calls, activations)
            };
            let (none, all) = (evaluate(""), evaluate(&format!("recompute = \"{kind}\"")));
            assert_eq!(evaluate(&format!("recompute = \"{kind}\"\nrecompute_layers = 24")), all);
            for layers in [6, 12, 18] {
                let result = evaluate(&format!("recompute = \"{kind}\"\nrecompute_layers = {layers}"));
                let fraction = f64::from(layers) / 24.0;
                let interpolate = |none: f64, all: f64| none + fraction * (all - none);
                for (share, result) in result.0.into_iter().enumerate() {
                    let expected = interpolate(none.0[share], all.0[share]);
                    assert!((result - expected).abs() <= 1e-6 * expected, "{parallel} {layers}: {result} {expected}");
                }
                assert_eq!(result.1, interpolate(none.1, all.1), "{parallel} {layers}");
                assert!(
                    result.2 < none.2 + 0.05 * none.2 && result.2 > all.2,
                    "{parallel} {layers}: {result:?} {none:?} {all:?}"
                );
            }
        }
    }
}

/// Each additional recomputed layer lengthens the step and reduces the memory, on any stage and model chunk.
#[test]
fn recomputing_more_layers_takes_time_and_saves_memory() {
    for (parallel, ranks) in [("pp = 4", 4), ("pp = 4, interleave = 2", 4), ("pp = 2, interleave = 4, tp = 2", 4)] {
        let evaluate = |layers: u64| {
            let lines = format!("recompute = \"full\"\nrecompute_layers = {layers}");
            let text = job(&lines, &format!("{parallel}, dp = 1"));
            let job = read(&text);
            let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
            (flat(&text, ranks, 200_000_000_000).time, footprint(&job, &layout).activations)
        };
        for layers in 1..24 {
            let ((time, memory), (more_time, less_memory)) = (evaluate(layers), evaluate(layers + 1));
            assert!(
                time <= more_time && less_memory <= memory,
                "{parallel}, {layers}: {time} {more_time} {memory} {less_memory}"
            );
        }
    }
}

#[test]
fn recompute_layers_is_validated() {
    for (lines, expected) in [
        ("recompute_layers = 3", "no layer is recomputed in full"),
        ("recompute_layers = 3\nrecompute = \"selective\"", "no layer is recomputed in full"),
        ("recompute_layers = 0\nrecompute = \"full\"", "0 is not from 1 to the model's 24 layers"),
        ("recompute_layers = 25\nrecompute = \"full\"", "25 is not from 1 to the model's 24 layers"),
    ] {
        let error = fabricast_workload::job::read_job(&job(lines, "tp = 1"), "job").unwrap_err().to_string();
        assert!(error.starts_with("job:4:20: recompute_layers: ") && error.contains(expected), "{error}");
    }
}

proptest! {
    /// Stages and model chunks contain each layer once, and each recomputed layer once.
    #[test]
    fn model_chunks_cover_all_layers(
        stages in 1u32..6,
        chunks in 1u32..5,
        each in 3u64..6,
        part in 0.0..1.0f64,
        as_layers in any::<bool>(),
    ) {
        let interleave = if stages == 1 { 1 } else { chunks };
        let layers = u64::from(stages * interleave) * each - if as_layers { 2 } else { 0 };
        let recompute_layers = ((layers as f64 * part) as u64).max(1);
        let job = read(&format!(
            "name = \"j\"\nglobal_batch = {0}\nrecompute = \"full\"\nrecompute_layers = {recompute_layers}\n\
             parallel = {{ pp = {stages}, interleave = {interleave}, dp = 1, ends_as_layers = {as_layers} }}\n\
             model = {{ layers = {layers}, hidden = 64, heads = 2, vocab = 64, seq = 16 }}\n",
            stages * 2
        ));
        let layout = Layout::specified_by(&job, stages).unwrap().unwrap();
        let positions = || (0..stages).flat_map(|stage| (0..interleave).map(move |chunk| (stage, chunk)));
        let mut all: Vec<_> = positions().map(|(stage, chunk)| layout.chunk_range(&job.model, stage, chunk)).collect();
        let recomputed: Vec<u64> =
            positions().map(|(stage, chunk)| job.recomputed_chunk_layers(&layout, stage, chunk)).collect();
        prop_assert_eq!(recomputed.iter().sum::<u64>(), recompute_layers);
        prop_assert!(recomputed.iter().zip(&all).all(|(recomputed, layers)| *recomputed <= layers.end - layers.start));
        // Recomputed layers are distributed evenly, and one more never reduces the number in a model chunk.
        let max_recomputed = recomputed.iter().max().unwrap();
        let is_spread = |recomputed: u64, layers: u64| recomputed + 1 >= *max_recomputed || recomputed == layers;
        prop_assert!(recomputed.iter().zip(&all).all(|(recomputed, layers)| is_spread(*recomputed, layers.end - layers.start)));
        let next = Some(recompute_layers + 1).filter(|next| *next <= layers);
        let one_more = Training { recompute_layers: next, ..job.clone() };
        let is_no_fewer = |stage, chunk, recomputed: u64| one_more.recomputed_chunk_layers(&layout, stage, chunk) >= recomputed;
        prop_assert!(positions().zip(&recomputed).all(|((stage, chunk), recomputed)| is_no_fewer(stage, chunk, *recomputed)));
        all.sort_by_key(|layers| layers.start);
        let ends = all.iter().scan(0, |at, layers| Some((std::mem::replace(at, layers.end), layers.start)));
        prop_assert!(ends.clone().all(|(end, start)| end == start));
        prop_assert_eq!(all.last().unwrap().end, layers);
    }
}

/// Recomputed feed-forwards repeat the exchanges of experts and the calls around the feed-forward, not those around
/// attention; their computation is that of a full recomputation without attention and norms. Memory lies between none
/// and full recomputation.
#[test]
fn recomputed_feed_forwards_repeat_their_calls() {
    use fabricast_workload::job::{Dimension, Phase};

    let evaluate = |recompute: &str| {
        let text =
            job(&format!("zero = 1\nrecompute = \"{recompute}\""), "tp = 2, dp = 4, ep = 8, etp = 1, sequence = true")
                .replace("seq = 512", "seq = 512, experts = 16, experts_per_token = 2, shared_experts = 1");
        let step = flat(&text, 8, 200_000_000_000);
        let job = read(&text);
        let layout = Layout::specified_by(&job, 8).unwrap().unwrap();
        let count = |dimension: Dimension| -> f64 {
            let calls = step_calls(&job, &layout);
            let calls =
                calls.iter().filter(|one| one.phase == Phase::LayerBackward && one.exchange.dimension == dimension);
            calls.map(StepCall::calls_per_rank).sum()
        };
        let activations = footprint(&job, &layout).activations.0;
        (count(Dimension::Expert), count(Dimension::Tensor), step.share_time(Share::Compute).0, activations)
    };
    let [none, feed_forward, full] = ["none", "feed_forward", "full"].map(evaluate);
    assert_eq!((feed_forward.0, full.0), (2.0 * none.0, 2.0 * none.0));
    // A gather and a reduction around each of attention and shared experts.
    assert_eq!((feed_forward.1, full.1), (1.5 * none.1, 2.0 * none.1));
    assert!(none.2 < feed_forward.2 && feed_forward.2 < full.2, "{none:?} {feed_forward:?} {full:?}");
    assert!(none.3 > feed_forward.3 && feed_forward.3 > full.3, "{none:?} {feed_forward:?} {full:?}");
}
