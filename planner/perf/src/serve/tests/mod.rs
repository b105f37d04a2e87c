//! Inference against closed forms, against the forward pass of training, and against known properties of serving.

mod adapters;
mod batches;
mod concurrency;
mod degrees;
mod drawn;
mod experts;
mod kernels_of_software;
mod latency;
mod speculation;

use fabricast_topologies::{Bandwidth, Bytes, Picos};
use proptest::prelude::*;

use super::closed_loop::ClosedLoop;
use super::request_round::steady_batch;
use super::*;
use crate::communication::{CommunicationCostModel, Exchange};
use crate::step::{Activity, BlockScheduling, Efficiency, Interval, Kernel, KernelKind, PeakRates, Step, Timeline};
use concurrency::assert_latency_throughput_tradeoff;
use drawn::{Drawn, drawn};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Degrees, Dimension, HostTimes, Job, Layout, LoadedServing, Phase, Serving, read_job};

/// Job file of a 70B model with defaults for the keys that `lines` lack.
fn job_text(lines: &str) -> String {
    let mut text = format!("kind = \"inference\"\n{lines}");
    for (key, line) in [
        ("name", "name = \"llama\""),
        (
            "model",
            "model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000 }",
        ),
        ("prompt_tokens", "prompt_tokens = 2000"),
        ("output_tokens", "output_tokens = 500"),
        ("concurrency", "concurrency = 32"),
        ("parallel", "parallel = { tp = 8 }"),
    ] {
        let is_batch = key == "concurrency" && lines.lines().any(|line| line.starts_with("request"));
        if !is_batch && !lines.lines().any(|line| line.starts_with(key)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Inference job with these keys, without host times: these tests are about GPUs.
pub(crate) fn served(lines: &str) -> Serving {
    match read_job(&job_text(lines), "job.toml").unwrap() {
        Job::Inference(job) => Serving { host: HostTimes::default(), ..job },
        other => panic!("{other:?}"),
    }
}

/// Kernels of a layer in a step of requests of equal length, whose prompts are divided into `chunks`.
pub(super) fn layer_in_chunks(job: &LoadedServing<'_>, layout: &Layout, mix: &StepTokens, chunks: f64) -> Work {
    layer(job, layout, mix, &AttentionContext::in_steady_state(job, chunks))
}

/// Cost model with a fixed bandwidth in bytes per second.
struct FlatCosts(f64);

impl CommunicationCostModel for FlatCosts {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let factor = exchange.collective.busbw_factor(layout.size(exchange.dimension));
        Ok(Picos((exchange.bytes.0 as f64 * factor / self.0 * 1e12).round() as u64 + 5_000_000))
    }
}

pub(crate) const H100: PeakRates = PeakRates {
    flops_per_s: 989e12,
    wide_flops_per_s: 989e12,
    exact_flops_per_s: 989e12,
    flash_attention_2: 1.0,
    memory: Bandwidth(3_350_000_000_000),
    sms: Some(132),
    block_scheduling: BlockScheduling::Persistent,
    offload_bandwidth: None,
    host_memory_bandwidth: None,
    weights_bandwidth: None,
    adapter_bandwidth: None,
    drives: None,
};

fn specified_layout(job: &Serving) -> Layout {
    let fabricast_workload::job::Parallel::Given { degrees, data } = job.parallel else { panic!() };
    let degrees = Degrees { data: data.unwrap_or(1), ..degrees };
    Layout::serving(job, degrees.ranks() as u32, degrees).unwrap()
}

fn loaded(job: &Serving) -> LoadedServing<'_> {
    job.with_concurrency(&specified_layout(job), None)
}

fn simulate_flat(job: &Serving, speeds: PeakRates, bandwidth: f64) -> (Step, Service) {
    let flat_costs = FlatCosts(bandwidth);
    let costs = StepCosts { speeds: &speeds, curve: &Efficiency::default(), collective_costs: &flat_costs };
    simulate_service(&loaded(job), &specified_layout(job), &costs).unwrap()
}

/// Total time of operations of the given kinds in a timeline.
fn total_time(timeline: &Timeline, activities: &[Activity]) -> Picos {
    let intervals = timeline.tracks.iter().flat_map(|track| &track.1);
    intervals.filter(|interval| activities.contains(&interval.activity)).map(Interval::time).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Timelines of both kinds of steps end with their step, are contiguous across stages, and have the same time per
    /// share as the step.
    #[test]
    fn timelines_match_the_steps(drawn in drawn(), bandwidth in 1.0..400.0f64) {
        let job = drawn.job();
        let flat_costs = FlatCosts(bandwidth * 1e9);
        let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat_costs };
        let layout = specified_layout(&job);
        let (_, service) = simulate_service(&loaded(&job), &layout, &costs).unwrap();
        let (streams, ClosedLoop { batch, .. }) = steady_batch(&loaded(&job), &layout);
        let steps = costs.simulate_steps(&loaded(&job), &layout, &batch, streams.per_replica).unwrap();
        let timelines_by_kind = timelines(&loaded(&job), &layout, &costs).unwrap();
        prop_assert_eq!(timelines_by_kind[1].is_some(), service.without_prefill.is_some());
        for ((timeline, step), time) in timelines_by_kind.iter().zip(steps).zip([Some(service.with_prefill), service.without_prefill]) {
            let (Some(timeline), Some(time)) = (timeline, time) else { continue };
            prop_assert_eq!(timeline.end(), time);
            let shares = step.time_shares();
            prop_assert_eq!(total_time(timeline, &[Activity::Compute, Activity::Embedding, Activity::Logits]), shares.compute);
            prop_assert_eq!(total_time(timeline, &[Activity::Tensor]), shares.tensor);
            prop_assert_eq!(total_time(timeline, &[Activity::Expert]), shares.expert);
            prop_assert_eq!(total_time(timeline, &[Activity::PipelineTransfer]), shares.pipeline_transfer);
            prop_assert_eq!(total_time(timeline, &[Activity::Bubble]), shares.bubble);
            prop_assert_eq!(total_time(timeline, &Activity::ALL), time);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn shares_sum_to_the_step_and_faster_hardware_never_hurts(drawn in drawn(), bandwidth in 1e9..900e9f64) {
        let job = drawn.job();
        let (step, service) = simulate_flat(&job, H100, bandwidth);
        prop_assert_eq!(step.shares.iter().map(|share| share.1).sum::<Picos>(), step.time);
        prop_assert!(step.exposed_communication() <= step.total_communication() + 1e-9);
        // The time of a request is its TTFT plus one TPOT for each further token.
        let decode_time = service.tpot.map_or(0, |tpot| tpot.0 * (job.output_tokens - 1));
        prop_assert!((service.ttft.unwrap().0 + decode_time).abs_diff(service.latency.0) <= job.output_tokens);
        let (_, wider) = simulate_flat(&job, H100, bandwidth * 1.5);
        let memory = PeakRates { memory: Bandwidth(4_800_000_000_000), ..H100 };
        let (_, hbm) = simulate_flat(&job, memory, bandwidth);
        let (_, units) = simulate_flat(&job, PeakRates { flops_per_s: 2e15, wide_flops_per_s: 2e15, ..H100 }, bandwidth);
        for faster in [wider, hbm, units] {
            prop_assert!(faster.ttft <= service.ttft && faster.latency <= service.latency, "{faster:?} {service:?}");
            prop_assert!(faster.tokens_per_s >= service.tokens_per_s);
        }
    }

    /// More concurrent requests reduce neither the throughput nor the latency.
    #[test]
    fn concurrency_trades_latency_for_throughput(drawn in drawn(), more in 1u64..500) {
        assert_latency_throughput_tradeoff(&drawn, more)?;
    }

    #[test]
    fn longer_prompts_never_reduce_ttft(drawn in drawn(), more in 1u64..4000) {
        let alone = Drawn { concurrency: 1, ..drawn };
        let (_, short) = simulate_flat(&alone.job(), H100, 300e9);
        let (_, long) = simulate_flat(&Drawn { prompt: alone.prompt + more, ..alone }.job(), H100, 300e9);
        prop_assert!(long.ttft >= short.ttft, "{short:?} {long:?}");
    }

    /// A token of a single request needs at least the time to read the weights; of the experts, only those of the token
    /// are read.
    #[test]
    fn single_request_tpot_is_bounded_by_weight_reads(drawn in drawn()) {
        let alone = Drawn { concurrency: 1, dp: 1, ep: 1, output: drawn.output + 1, ..drawn };
        let job = alone.job();
        let (_, service) = simulate_flat(&job, H100, 300e9);
        let model = &job.model;
        let experts = if alone.experts { model.experts_per_token * model.ffn_parameters() } else { 0 };
        let read = 2 * (model.layers * (model.shared_layer_parameters() + experts) + model.vocab * model.hidden);
        // GEMMs do not read norms and biases.
        let min_seconds = read as f64 * 0.999 / f64::from(alone.tp) / 3.35e12;
        prop_assert!(service.tpot.unwrap().0 as f64 / 1e12 >= min_seconds, "{service:?} {min_seconds}");
    }

    /// Tensor groups: two calls of 2 n h bytes per layer, one for the embedding, and logits of the requests that get a
    /// token. Expert groups: n k h elements in each direction. Pipeline: 2 n h / t bytes.
    #[test]
    fn traffic_matches_closed_forms(drawn in drawn(), decode in 0u32..500, prefill in 1u32..4000) {
        let job = drawn.job();
        let layout = specified_layout(&job);
        let (decode, prefill) = (f64::from(decode), f64::from(prefill));
        let calls = traffic(&job, &layout, &StepTokens { decode, prefill, chunks: 1.0, finished_prefills: 1.0, ..StepTokens::default() });
        let tokens = decode + prefill;
        let bytes = |phase: Phase, dimension: Dimension| -> Vec<u64> {
            let matching = calls.iter().filter(|call| call.phase == phase && call.dimension == dimension);
            matching.map(|call| call.bytes.0 * call.count).collect()
        };
        let near = |actual: &[u64], expected: &[f64], ranks: u32| {
            let slack = f64::from(2 * 16 * ranks) + 2.0;
            let expected: &[f64] = if ranks > 1 { expected } else { &[] };
            actual.len() == expected.len() && actual.iter().zip(expected).all(|(&a, &b)| (b..b + slack).contains(&(a as f64 + 1.0)))
        };
        let activation_bytes = 2.0 * tokens * 2048.0;
        let in_layer: &[f64] = if drawn.sequence { &[2.0 * activation_bytes, 2.0 * activation_bytes] } else { &[2.0 * activation_bytes] };
        prop_assert!(near(&bytes(Phase::LayerForward, Dimension::Tensor), in_layer, drawn.tp));
        prop_assert!(near(&bytes(Phase::Embedding, Dimension::Tensor), &[activation_bytes], drawn.tp));
        prop_assert!(near(&bytes(Phase::Logits, Dimension::Tensor), &[2.0 * (decode + 1.0) * 32_000.0], drawn.tp));
        let shares = if drawn.sequence { f64::from(drawn.tp) } else { 1.0 };
        let routed = activation_bytes / shares * 4.0 * 1.3f64.min(f64::from(drawn.ep));
        let mixed = if drawn.experts { drawn.ep } else { 1 };
        prop_assert!(near(&bytes(Phase::LayerForward, Dimension::Expert), &[routed, routed], mixed));
        let transfers: &[f64] = if drawn.pp > 1 { &[activation_bytes / f64::from(drawn.tp)] } else { &[] };
        prop_assert!(near(&bytes(Phase::PipelineTransfer, Dimension::Pipeline), transfers, drawn.pp));
    }
}

/// A prompt in one chunk has the same operations per layer as a forward pass of training.
#[test]
fn prefill_flops_match_training_forward_pass() {
    let model = "model = { layers = 4, hidden = 1024, heads = 16, ffn = 4096, gated = true, vocab = 51200, seq = 512";
    let latent = "latent = { q_lora_rank = 96, kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }";
    let [grouped, latent] = [", kv_heads = 4".to_owned(), format!(", {latent}")];
    for experts in [grouped.clone(), grouped + ", experts = 8, experts_per_token = 2, shared_experts = 1", latent] {
        let text = format!(
            "name = \"j\"\nglobal_batch = 1\nflash_attention = true\nparallel = {{ tp = 4 }}\n{model}{experts} }}\n"
        );
        let Job::Training(trained) = read_job(&text, "j").unwrap() else { panic!() };
        let job = served(&format!(
            "prompt_tokens = 511\noutput_tokens = 1\nconcurrency = 1\nparallel = {{ tp = 4 }}\n{model}{experts} }}\n"
        ));
        let mix = StepTokens { prefill: 512.0, chunks: 1.0, finished_prefills: 1.0, ..StepTokens::default() };
        let layout = specified_layout(&job);
        let work = layer_in_chunks(&loaded(&job), &layout, &mix, 1.0);
        let inference: u128 = work
            .kernels
            .iter()
            .chain(work.attention.iter().map(|kernel| &kernel.kernel))
            .map(|kernel| kernel.flops.0)
            .sum();
        let forward: u128 = crate::step::layer(&trained, &layout).forward.iter().map(|kernel| kernel.flops.0).sum();
        // Inference counts the whole diagonal of the attention scores, training half of it.
        assert!((inference as f64 / forward as f64 - 1.0).abs() < 1e-3, "{inference} {forward}");
    }
}

/// DeepSeek-V2 (arXiv 2405.04434, section 2.1.2 and appendix C): each head projects its query to the width of the
/// latent vector, attends to it together with the rotary part, and projects the result back.
#[test]
fn latent_decode_matches_closed_form() {
    let job = served(
        "model = { layers = 61, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280, latent = { q_lora_rank = 1536, \
         kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 } }\nparallel = { tp = 4 }\n",
    );
    let work = layer_in_chunks(
        &loaded(&job),
        &specified_layout(&job),
        &StepTokens { decode: 10.0, ..StepTokens::default() },
        1.0,
    );
    let [reading] = work.attention[..] else { panic!("{work:?}") };
    assert_eq!(reading.kv_bytes.0, 10 * 2250 * 576 * 2);
    assert_eq!(reading.kernel.flops.0, 2 * 10 * 2250 * 32 * (576 + 512));
    let gemm_flops: u128 = work.kernels.iter().map(|kernel| kernel.flops.0).sum();
    // A cache in another format is used as stored.
    let packed = Serving { kv_bytes_per_token: Some(656 * 61), ..job.clone() };
    let other = layer_in_chunks(
        &loaded(&packed),
        &specified_layout(&packed),
        &StepTokens { decode: 10.0, ..StepTokens::default() },
        1.0,
    );
    assert_eq!((other.attention[0].kernel, other.attention[0].kv_bytes.0), (reading.kernel, 10 * 2250 * 656));
    let attention = 7168 * (1536 + 576) + 1536 * 32 * 192 + 32 * 512 * (128 + 128) + 32 * 128 * 7168;
    assert_eq!(gemm_flops, 2 * 10 * (attention + 3 * 7168 * 512));
}

/// With a cached prefix of 1,000 tokens, each of two chunks expands keys and values of these 1,000 tokens again, and
/// the second also those of the first: 2 × 1,000 + 500 in addition to the chunks' own tokens.
#[test]
fn chunks_expand_all_cached_latent_vectors() {
    let prefill_flops = |hit: f64, chunks: f64| {
        let job = served(&format!(
            "prompt_tokens = 2000\nprefix_hit = {hit}\nparallel = {{ tp = 1 }}\nmodel = {{ layers = 2, hidden = 1024, heads = 8, vocab = 128, \
             latent = {{ kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }} }}\n"
        ));
        let mix = StepTokens { prefill: job.new_tokens() as f64, chunks, ..StepTokens::default() };
        layer_in_chunks(&loaded(&job), &specified_layout(&job), &mix, chunks)
            .kernels
            .iter()
            .map(|kernel| kernel.flops.0)
            .sum::<u128>()
    };
    let expanded_flops = 2 * 64 * 8 * (32 + 24);
    assert_eq!(prefill_flops(0.5, 2.0) - prefill_flops(0.5, 1.0), (2500 - 1000) * expanded_flops);
    assert_eq!(prefill_flops(0.0, 2.0) - prefill_flops(0.0, 1.0), 1000 * 2 / 2 * expanded_flops);
}

/// Decode reads the KV cache of its request and computes 4 operations per element and head. With a compressed cache
/// each head uses all of it (arXiv 2412.19437: 128 heads, 576 elements, 61 layers).
#[test]
fn decode_reads_the_kv_cache() {
    let model = "model = { layers = 61, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280 }\nparallel = { tp = 4 }\n";
    let mix = StepTokens { decode: 10.0, ..StepTokens::default() };
    for (lines, elements, kv_bytes) in [("", 56, 2 * 32 * 56 * 2), ("kv_bytes_per_token = 70272\n", 576, 576 * 2)] {
        let job = served(&format!("{model}{lines}"));
        let work = layer_in_chunks(&loaded(&job), &specified_layout(&job), &mix, 1.0);
        let [reading] = work.attention[..] else { panic!("{work:?}") };
        // 2000 prompt tokens and half of the output.
        assert_eq!(reading.kv_bytes.0, 10 * 2250 * kv_bytes, "{lines}");
        assert_eq!(reading.kernel.flops.0, 4 * 10 * 2250 * 32 * elements, "{lines}");
    }
}

#[test]
fn chosen_experts_are_counted_once() {
    let job = served(
        "parallel = { dp = 8, ep = 8 }\n\
         model = { layers = 8, hidden = 64, heads = 8, vocab = 128, experts = 256, experts_per_token = 8 }\n",
    );
    let chosen = |tokens: f64| chosen_experts(&loaded(&job), &specified_layout(&job), tokens);
    // One token over all ranks chooses eight experts, one on each rank; many tokens leave none unused.
    assert!((chosen(1.0 / 8.0) - 1.0).abs() < 1e-9, "{}", chosen(1.0 / 8.0));
    assert!((chosen(1e4) - 32.0).abs() < 1e-9 && chosen(8.0) < 32.0);
}

/// With 8-bit GEMMs, 16-bit inputs are read and written as 8 bits by a cast, and the GEMM reads 8 bits.
#[test]
fn low_precision_gemm_inputs_are_cast() {
    let mix = StepTokens { prefill: 100.0, chunks: 1.0, ..StepTokens::default() };
    let model = "model = { layers = 4, hidden = 1024, heads = 8, ffn = 4096, gated = true, vocab = 128 }\nparallel = { tp = 1 }\n";
    let kernel_bytes = |precision: &str| {
        let job = served(&format!("precision = \"{precision}\"\nprompt_tokens = 100\noutput_tokens = 1\n{model}"));
        let work = layer_in_chunks(&loaded(&job), &specified_layout(&job), &mix, 1.0);
        let bytes = |is_gemm: bool| -> u64 {
            let selected = work.kernels.iter().filter(|kernel| (kernel.kind == KernelKind::Gemm) == is_gemm);
            selected.map(|kernel| kernel.bytes.0).sum()
        };
        (bytes(true), bytes(false), work.kernels.len())
    };
    let (wide, narrow) = (kernel_bytes("bf16"), kernel_bytes("fp8"));
    let weights = 4 * 1024 * 1024 + 3 * 1024 * 4096;
    let activations = 100 * (1024 + 1024 + 1024 + 4096);
    assert_eq!((wide.0 - narrow.0, narrow.1 - wide.1, narrow.2 - wide.2), (weights + activations, 3 * activations, 4));
}

/// Tokens are permuted before and after experts: each token with its copies, and received tokens if a rank has several
/// experts.
#[test]
fn expert_tokens_are_permuted() {
    let mix = StepTokens { prefill: 100.0, chunks: 1.0, ..StepTokens::default() };
    let stream_bytes = |ranks: u32| {
        let job = served(&format!(
            "concurrency = 64\nparallel = {{ dp = {ranks}, ep = {ranks} }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }}\n"
        ));
        let streams = layer_in_chunks(&loaded(&job), &specified_layout(&job), &mix, 1.0).kernels;
        streams.iter().filter(|kernel| kernel.kind == KernelKind::Stream).map(|kernel| kernel.bytes.0).sum::<u64>()
    };
    let copies = 2 * 2 * 100 * 1024;
    assert_eq!((stream_bytes(4) - stream_bytes(1), stream_bytes(8) - stream_bytes(1)), (2 * 2 * copies, 0));
}

/// Experts process the mean of the replicas in lockstep, all other kernels the tokens of the most loaded one.
#[test]
fn experts_process_the_mean_of_lockstep_replicas() {
    let job = served(
        "concurrency = 64\nparallel = { dp = 4, ep = 4 }\n\
         model = { layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }\n",
    );
    let flops = |prefill: f64, imbalance: f64| {
        let mix = StepTokens { prefill, chunks: 1.0, imbalance, ..StepTokens::default() };
        let kernels = layer_in_chunks(&loaded(&job), &specified_layout(&job), &mix, 1.0).kernels;
        let (experts, others): (Vec<Kernel>, Vec<Kernel>) =
            kernels.into_iter().partition(|kernel| matches!(kernel.kind, KernelKind::GroupedGemm { .. }));
        let total_flops = |kernels: &[Kernel]| kernels.iter().map(|kernel| kernel.flops.0).sum::<u128>();
        (total_flops(&experts), total_flops(&others))
    };
    let (fullest, mean, mixed) = (flops(1000.0, 0.0), flops(300.0, 0.0), flops(1000.0, 700.0));
    assert_eq!(mixed, (mean.0, fullest.1));
    // Replicas without shared experts do not run in lockstep.
    let steps = |ep: u32| {
        let job = served(&format!(
            "concurrency = 64\nparallel = {{ dp = 4, ep = {ep} }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }}\n"
        ));
        steady_batch(&loaded(&job), &specified_layout(&job)).1.batch
    };
    let (alone, two, four) = (steps(1), steps(2), steps(4));
    assert!(
        alone.steps_without_prefill > two.steps_without_prefill
            && two.steps_without_prefill > four.steps_without_prefill
            && alone.with_prefill.imbalance == 0.0
    );
}

/// An expert with few rows computes a full tile of 128; one with many computes half a tile more.
#[test]
fn expert_tiles_are_computed_in_full() {
    let grouped_flops = |prefill: f64| {
        let job = served(
            "parallel = { tp = 1 }\n\
             model = { layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 8 }\n",
        );
        let work = layer_in_chunks(
            &loaded(&job),
            &specified_layout(&job),
            &StepTokens { prefill, chunks: 1.0, ..StepTokens::default() },
            1.0,
        );
        let experts = work.kernels.iter().filter(|kernel| matches!(kernel.kind, KernelKind::GroupedGemm { .. }));
        experts.map(|kernel| kernel.flops.0).sum::<u128>()
    };
    let row = 8 * 2 * 2 * 1024 * 512;
    assert_eq!([grouped_flops(1.0), grouped_flops(64.0), grouped_flops(1000.0)], [128 * row, 128 * row, 1064 * row]);
}

#[test]
fn slo_violations_are_reported() {
    let (_, service) = simulate_flat(&served("ttft_s = 0.001\ntpot_s = 10\n"), H100, 300e9);
    assert_eq!(service.slo_violations.len(), 1);
    assert!(
        service.slo_violations[0].starts_with("ttft_s 0.") && service.slo_violations[0].ends_with(" of 0.001"),
        "{:?}",
        service.slo_violations
    );
}

/// Reads from another tier reach the same fraction of the link rate as memory-bound kernels reach of the memory
/// bandwidth, independent of the efficiency of streaming kernels.
#[test]
fn remote_kv_cache_reads_at_memory_efficiency() {
    let curve = Efficiency { memory: 0.5, stream: 0.1, start: Picos(0), ..Efficiency::default() };
    let speeds = PeakRates { offload_bandwidth: Some(Bandwidth(100_000_000_000)), ..H100 };
    let costs = StepCosts { speeds: &speeds, curve: &curve, collective_costs: &FlatCosts(1e12) };
    let reading = AttentionKernel { kernel: Kernel::default(), kv_bytes: Bytes(1_000_000_000) };
    assert_eq!(costs.kernel_time(&reading), Picos(20_000_000_000));
}
