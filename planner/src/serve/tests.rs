//! Inference against closed forms, against the forward pass of training, and against known properties of serving.

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, load};
use proptest::prelude::*;

use super::*;
use crate::job::serving_tests::served;
use crate::job::{Footprint, Job, read_job};
use crate::step::{Blocks, Doing, Interval, Kind, Machine, Simulated};

/// Cost model with a fixed bandwidth in bytes per second.
struct Flat(f64);

impl Tariff for Flat {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let factor = exchange.collective.busbw_factor(layout.size(exchange.dimension));
        Ok(Picos((exchange.bytes.0 as f64 * factor / self.0 * 1e12).round() as u64 + 5_000_000))
    }
}

const H100: Speeds = Speeds {
    flops_per_s: 989e12,
    wide_flops_per_s: 989e12,
    exact_flops_per_s: 989e12,
    second_flash: 1.0,
    memory: Bandwidth(3_350_000_000_000),
    sms: Some(132),
    blocks: Blocks::OneForEachSm,
    elsewhere: None,
};

fn laid(job: &Serving) -> Layout {
    let crate::job::Parallel::Given { degrees, data } = job.parallel else { panic!() };
    let degrees = Degrees { data: data.unwrap_or(1), ..degrees };
    Layout::serving(job, degrees.ranks() as u32, degrees).unwrap()
}

fn loaded(job: &Serving) -> Loaded<'_> {
    job.filled(&laid(job), None)
}

fn flat(job: &Serving, speeds: Speeds, bandwidth: f64) -> (Step, Service) {
    let tariff = Flat(bandwidth);
    let clock = Clock { speeds: &speeds, curve: &Efficiency::default(), tariff: &tariff };
    serve(&loaded(job), &laid(job), &clock).unwrap()
}

/// Total time of operations of the given kinds in a timeline.
fn told(course: &Course, doing: &[Doing]) -> Picos {
    let intervals = course.lanes.iter().flat_map(|lane| &lane.1);
    intervals.filter(|one| doing.contains(&one.doing)).map(Interval::time).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Timelines of both kinds of steps end with their step, are contiguous across stages, and have the same time per
    /// share as the step.
    #[test]
    fn timelines_match_the_steps(drawn in drawn(), bandwidth in 1.0..400.0f64) {
        let job = drawn.job();
        let tariff = Flat(bandwidth * 1e9);
        let clock = Clock { speeds: &H100, curve: &Efficiency::default(), tariff: &tariff };
        let layout = laid(&job);
        let (_, service) = serve(&loaded(&job), &layout, &clock).unwrap();
        let (streams, rhythm) = steady(&loaded(&job), &layout);
        let ways = clock.ways(&loaded(&job), &layout, &rhythm, &streams).unwrap();
        let courses = courses(&loaded(&job), &layout, &clock).unwrap();
        prop_assert_eq!(courses[1].is_some(), service.without.is_some());
        for ((course, way), time) in courses.iter().zip(ways).zip([Some(service.with_prompts), service.without]) {
            let (Some(course), Some(time)) = (course, time) else { continue };
            prop_assert_eq!(course.end(), time);
            let spent = way.spent();
            prop_assert_eq!(told(course, &[Doing::Compute, Doing::Words, Doing::Logits]), spent.compute);
            prop_assert_eq!(told(course, &[Doing::Tensor]), spent.tensor);
            prop_assert_eq!(told(course, &[Doing::Expert]), spent.expert);
            prop_assert_eq!(told(course, &[Doing::HandOff]), spent.hand_off);
            prop_assert_eq!(told(course, &[Doing::Bubble]), spent.bubble);
            prop_assert_eq!(told(course, &Doing::ALL), time);
        }
    }
}

/// Tolerated relative loss of throughput if a prompt needs one more chunk. Empirical: the
/// largest loss seen is 0.7 %; the rest is margin, since nothing derives it.
const A_CHUNK_MORE: f64 = 0.05;

/// More concurrent requests reduce neither the throughput nor the latency.
fn trades_time_for_tokens(drawn: &Drawn, more: u64) -> Result<(), TestCaseError> {
    let jobs = [drawn.job(), Drawn { concurrency: drawn.concurrency + more, ..drawn.clone() }.job()];
    let [(_, few), (_, many)] = jobs.each_ref().map(|job| flat(job, H100, 300e9));
    let [before, after] = jobs.each_ref().map(|job| steady(&loaded(job), &laid(job)).1.chunks);
    // Kernels and calls are rounded to picoseconds and bytes. If decode leaves so little room that a prompt needs one
    // more chunk, replicas in lockstep see more such steps.
    let lost = if after > before { A_CHUNK_MORE } else { 1e-4 };
    prop_assert!(many.tokens_per_s >= few.tokens_per_s * (1.0 - lost), "{few:?} {many:?}");
    prop_assert!(
        many.tpot.unwrap_or_default().0 as f64 >= few.tpot.unwrap_or_default().0 as f64 * (1.0 - 1e-4),
        "{few:?} {many:?}"
    );
    prop_assert!(many.whole.0 as f64 >= few.whole.0 as f64 * (1.0 - 1e-4));
    Ok(())
}

/// At the smallest load at which every step has prefill, the most loaded of two replicas decodes no more in these steps
/// than at lower loads.
#[test]
fn concurrency_trades_latency_for_throughput_at_full_prefill() {
    let drawn = Drawn {
        tp: 1,
        pp: 2,
        dp: 2,
        ep: 2,
        sequence: false,
        experts: true,
        prompt: 3426,
        output: 341,
        budget: 608,
        hit: 0.95,
        concurrency: 1360,
    };
    trades_time_for_tokens(&drawn, 4).unwrap();
}

/// A prompt of 2,614 new tokens fits a step next to 609 requests, but not next to 624.
#[test]
fn additional_chunk_loses_little_throughput() {
    let drawn = Drawn {
        tp: 1,
        pp: 2,
        dp: 2,
        ep: 2,
        sequence: false,
        experts: true,
        prompt: 4065,
        output: 382,
        budget: 2925,
        hit: 0.357_038_834_863_381_7,
        concurrency: 1218,
    };
    trades_time_for_tokens(&drawn, 31).unwrap();
}

#[derive(Clone, Debug)]
struct Drawn {
    tp: u32,
    pp: u32,
    dp: u32,
    ep: u32,
    sequence: bool,
    experts: bool,
    prompt: u64,
    output: u64,
    budget: u64,
    hit: f64,
    concurrency: u64,
}

impl Drawn {
    fn job(&self) -> Serving {
        let Self { tp, pp, dp, ep, sequence, prompt, output, budget, hit, concurrency, .. } = self;
        let mixture = if self.experts { ", experts = 16, experts_per_token = 4, shared_experts = 1" } else { "" };
        served(&format!(
            "prompt_tokens = {prompt}\noutput_tokens = {output}\nconcurrency = {concurrency}\nmax_batched_tokens = {budget}\n\
             prefix_hit = {hit}\nexpert_skew = 1.3\nparallel = {{ tp = {tp}, pp = {pp}, dp = {dp}, ep = {ep}, sequence = {sequence} }}\n\
             model = {{ layers = 8, hidden = 2048, heads = 16, kv_heads = 4, ffn = 4096, gated = true, vocab = 32000{mixture} }}\n"
        ))
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let degrees = (0u32..4, 0u32..3, 0u32..4, prop::bool::ANY, prop::bool::ANY);
    let load = (1u64..9000, 1u64..600, 64u64..9000, 0.0..0.95f64, 1u64..3000);
    (degrees, load).prop_map(|((tp, pp, dp, sequence, experts), (prompt, output, budget, hit, concurrency))| Drawn {
        tp: 1 << tp,
        pp: 1 << pp,
        dp: 1 << dp,
        ep: if experts { 1 << dp } else { 1 },
        sequence,
        experts,
        prompt,
        output,
        budget,
        hit,
        concurrency,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn shares_sum_to_the_step_and_faster_hardware_never_hurts(drawn in drawn(), bandwidth in 1e9..900e9f64) {
        let job = drawn.job();
        let (step, service) = flat(&job, H100, bandwidth);
        prop_assert_eq!(step.shares.iter().map(|one| one.1).sum::<Picos>(), step.time);
        prop_assert!(step.exposed() <= step.total_communication() + 1e-9);
        // The time of a request is its TTFT plus one TPOT for each further token.
        let rest = service.tpot.map_or(0, |tpot| tpot.0 * (job.output_tokens - 1));
        prop_assert!((service.ttft.unwrap().0 + rest).abs_diff(service.whole.0) <= job.output_tokens);
        let (_, wider) = flat(&job, H100, bandwidth * 1.5);
        let memory = Speeds { memory: Bandwidth(4_800_000_000_000), ..H100 };
        let (_, hbm) = flat(&job, memory, bandwidth);
        let (_, units) = flat(&job, Speeds { flops_per_s: 2e15, wide_flops_per_s: 2e15, ..H100 }, bandwidth);
        for faster in [wider, hbm, units] {
            prop_assert!(faster.ttft <= service.ttft && faster.whole <= service.whole, "{faster:?} {service:?}");
            prop_assert!(faster.tokens_per_s >= service.tokens_per_s);
        }
    }

    /// More concurrent requests reduce neither the throughput nor the latency.
    #[test]
    fn concurrency_trades_latency_for_throughput(drawn in drawn(), more in 1u64..500) {
        trades_time_for_tokens(&drawn, more)?;
    }

    #[test]
    fn longer_prompts_never_reduce_ttft(drawn in drawn(), more in 1u64..4000) {
        let alone = Drawn { concurrency: 1, ..drawn };
        let (_, short) = flat(&alone.job(), H100, 300e9);
        let (_, long) = flat(&Drawn { prompt: alone.prompt + more, ..alone }.job(), H100, 300e9);
        prop_assert!(long.ttft >= short.ttft, "{short:?} {long:?}");
    }

    /// A token of a single request needs at least the time to read the weights; of experts, those of the token.
    #[test]
    fn single_request_tpot_is_bounded_by_weight_reads(drawn in drawn()) {
        let alone = Drawn { concurrency: 1, dp: 1, ep: 1, output: drawn.output + 1, ..drawn };
        let job = alone.job();
        let (_, service) = flat(&job, H100, 300e9);
        let model = &job.model;
        let experts = if alone.experts { model.experts_per_token * model.ffn_parameters() } else { 0 };
        let read = 2 * (model.layers * (model.shared_layer_parameters() + experts) + model.vocab * model.hidden);
        // GEMMs do not read norms and biases.
        let least = read as f64 * 0.999 / f64::from(alone.tp) / 3.35e12;
        prop_assert!(service.tpot.unwrap().0 as f64 / 1e12 >= least, "{service:?} {least}");
    }

    /// Tensor groups: two calls of 2 n h bytes per layer, one for the embedding, and logits of the requests that get a
    /// token. Expert groups: n k h elements in each direction. Pipeline: 2 n h / t bytes.
    #[test]
    fn traffic_matches_closed_forms(drawn in drawn(), decode in 0u32..500, prefill in 1u32..4000) {
        let job = drawn.job();
        let layout = laid(&job);
        let (decode, prefill) = (f64::from(decode), f64::from(prefill));
        let calls = traffic(&job, &layout, &Mix { decode, prefill, chunks: 1.0, ending: 1.0, ..Mix::default() });
        let tokens = decode + prefill;
        let bytes = |phase: Phase, dimension: Dimension| -> Vec<u64> {
            let own = calls.iter().filter(|call| call.phase == phase && call.dimension == dimension);
            own.map(|call| call.bytes.0 * call.count).collect()
        };
        let near = |found: &[u64], expected: &[f64], ranks: u32| {
            let slack = f64::from(2 * 16 * ranks) + 2.0;
            let expected: &[f64] = if ranks > 1 { expected } else { &[] };
            found.len() == expected.len() && found.iter().zip(expected).all(|(&a, &b)| (b..b + slack).contains(&(a as f64 + 1.0)))
        };
        let whole = 2.0 * tokens * 2048.0;
        let in_layer: &[f64] = if drawn.sequence { &[2.0 * whole, 2.0 * whole] } else { &[2.0 * whole] };
        prop_assert!(near(&bytes(Phase::LayerForward, Dimension::Tensor), in_layer, drawn.tp));
        prop_assert!(near(&bytes(Phase::Words, Dimension::Tensor), &[whole], drawn.tp));
        prop_assert!(near(&bytes(Phase::Logits, Dimension::Tensor), &[2.0 * (decode + 1.0) * 32_000.0], drawn.tp));
        let shares = if drawn.sequence { f64::from(drawn.tp) } else { 1.0 };
        let routed = whole / shares * 4.0 * 1.3f64.min(f64::from(drawn.ep));
        let mixed = if drawn.experts { drawn.ep } else { 1 };
        prop_assert!(near(&bytes(Phase::LayerForward, Dimension::Expert), &[routed, routed], mixed));
        let handed: &[f64] = if drawn.pp > 1 { &[whole / f64::from(drawn.tp)] } else { &[] };
        prop_assert!(near(&bytes(Phase::HandOff, Dimension::Pipeline), handed, drawn.pp));
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
        let mix = Mix { prefill: 512.0, chunks: 1.0, ending: 1.0, ..Mix::default() };
        let layout = laid(&job);
        let work = layer(&loaded(&job), &layout, &mix, 1.0);
        let own: u128 =
            work.kernels.iter().chain(work.attention.iter().map(|one| &one.kernel)).map(|one| one.flops.0).sum();
        let forward: u128 = crate::step::layer(&trained, &layout).forward.iter().map(|one| one.flops.0).sum();
        // Inference counts the whole diagonal of the attention scores, training half of it.
        assert!((own as f64 / forward as f64 - 1.0).abs() < 1e-3, "{own} {forward}");
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
    let work = layer(&loaded(&job), &laid(&job), &Mix { decode: 10.0, ..Mix::default() }, 1.0);
    let [reading] = work.attention[..] else { panic!("{work:?}") };
    assert_eq!(reading.kept.0, 10 * 2250 * 576 * 2);
    assert_eq!(reading.kernel.flops.0, 2 * 10 * 2250 * 32 * (576 + 512));
    let products: u128 = work.kernels.iter().map(|one| one.flops.0).sum();
    // A cache in another format is used as stored.
    let packed = Serving { kv_bytes_per_token: Some(656 * 61), ..job.clone() };
    let other = layer(&loaded(&packed), &laid(&packed), &Mix { decode: 10.0, ..Mix::default() }, 1.0);
    assert_eq!((other.attention[0].kernel, other.attention[0].kept.0), (reading.kernel, 10 * 2250 * 656));
    let attention = 7168 * (1536 + 576) + 1536 * 32 * 192 + 32 * 512 * (128 + 128) + 32 * 128 * 7168;
    assert_eq!(products, 2 * 10 * (attention + 3 * 7168 * 512));
}

/// With a cached prefix of 1,000 tokens, each of two chunks expands keys and values of these 1,000 tokens again, and
/// the second also those of the first: 2 × 1,000 + 500 in addition to the chunks' own tokens.
#[test]
fn chunks_expand_all_cached_latent_vectors() {
    let of = |hit: f64, chunks: f64| {
        let job = served(&format!(
            "prompt_tokens = 2000\nprefix_hit = {hit}\nparallel = {{ tp = 1 }}\nmodel = {{ layers = 2, hidden = 1024, heads = 8, vocab = 128, \
             latent = {{ kv_lora_rank = 64, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }} }}\n"
        ));
        let mix = Mix { prefill: job.new_tokens() as f64, chunks, ..Mix::default() };
        layer(&loaded(&job), &laid(&job), &mix, chunks).kernels.iter().map(|one| one.flops.0).sum::<u128>()
    };
    let unfolded = 2 * 64 * 8 * (32 + 24);
    assert_eq!(of(0.5, 2.0) - of(0.5, 1.0), (2500 - 1000) * unfolded);
    assert_eq!(of(0.0, 2.0) - of(0.0, 1.0), 1000 * 2 / 2 * unfolded);
}

/// Decode reads the KV cache of its request and computes 4 operations per element and head. With a compressed cache
/// each head uses all of it (arXiv 2412.19437: 128 heads, 576 elements, 61 layers).
#[test]
fn decode_reads_the_kv_cache() {
    let model = "model = { layers = 61, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280 }\nparallel = { tp = 4 }\n";
    let mix = Mix { decode: 10.0, ..Mix::default() };
    for (lines, elements, kept) in [("", 56, 2 * 32 * 56 * 2), ("kv_bytes_per_token = 70272\n", 576, 576 * 2)] {
        let job = served(&format!("{model}{lines}"));
        let work = layer(&loaded(&job), &laid(&job), &mix, 1.0);
        let [reading] = work.attention[..] else { panic!("{work:?}") };
        // 2000 prompt tokens and half of the output.
        assert_eq!(reading.kept.0, 10 * 2250 * kept, "{lines}");
        assert_eq!(reading.kernel.flops.0, 4 * 10 * 2250 * 32 * elements, "{lines}");
    }
}

#[test]
fn chosen_experts_are_counted_once() {
    let job = served(
        "parallel = { dp = 8, ep = 8 }\n\
         model = { layers = 8, hidden = 64, heads = 8, vocab = 128, experts = 256, experts_per_token = 8 }\n",
    );
    let of = |tokens: f64| chosen_experts(&loaded(&job), &laid(&job), tokens);
    // One token over all ranks chooses eight experts, one on each rank; many tokens leave none unused.
    assert!((of(1.0 / 8.0) - 1.0).abs() < 1e-9, "{}", of(1.0 / 8.0));
    assert!((of(1e4) - 32.0).abs() < 1e-9 && of(8.0) < 32.0);
}

/// Full rounds of a batch have equal times, and one more request adds a round of its own. The time to drain the last
/// round does not depend on the number of rounds.
#[test]
fn batches_run_in_rounds() {
    let of = |requests: u64| {
        let job = served(&format!("requests = {requests}\nmax_num_seqs = 50\nparallel = {{ tp = 8 }}\n"));
        let (_, service) = flat(&job, H100, 300e9);
        let seconds = (requests * job.output_tokens) as f64 / service.tokens_per_s;
        (service.in_flight, seconds, service.whole.0 as f64 / 1e12, service.ttft)
    };
    let [(few, one, round, _), (many, four, ..), (_, two, ..), (_, more, ..)] = [50, 200, 100, 101].map(of);
    let (_, alone, ..) = of(1);
    assert_eq!((few, many, of(50).3), (50, 50, None));
    let drained = one - round;
    assert!(drained > 0.0 && drained < 0.1 * round, "{one} {round}");
    assert!((two - one - round).abs() < 1e-9 && (four - two - 2.0 * round).abs() < 1e-9, "{one} {two} {four} {round}");
    // A single request has nothing to drain.
    assert!((more - (two - drained + alone)).abs() < 1e-9, "{more} {two} {alone}");
}

/// A batch ends with the replica that has one request more than the others.
#[test]
fn batches_end_with_the_most_loaded_replica() {
    let seconds = |requests: u64| {
        let job = served(&format!("requests = {requests}\nparallel = {{ dp = 8 }}\n"));
        (requests * job.output_tokens) as f64 / flat(&job, H100, 300e9).1.tokens_per_s
    };
    let [eight, nine, sixteen] = [8, 9, 16].map(seconds);
    assert!(eight < nine && (nine / sixteen - 1.0).abs() < 1e-9, "{eight} {nine} {sixteen}");
}

/// Step-by-step scheduler as the oracle: starts a prompt when there is room for a part of it next to the decode tokens.
fn scheduled(job: &Serving, requests: u64, at_once: u64, mut step: impl FnMut(f64, f64, f64) -> f64) -> f64 {
    let (prompt, output, budget) = (job.new_tokens(), job.output_tokens, job.max_batched_tokens);
    // Remaining prompt and output tokens of the concurrent requests.
    let mut flying: Vec<(u64, u64)> = Vec::new();
    let (mut waiting, mut seconds) = (requests, 0.0);
    while waiting > 0 || !flying.is_empty() {
        while waiting > 0 && flying.len() < at_once as usize {
            flying.push((prompt, output));
            waiting -= 1;
        }
        let decode = flying.iter().filter(|one| one.0 == 0).count() as u64;
        let (mut room, mut prefill, mut ending) = (budget.saturating_sub(decode), 0, 0);
        for one in &mut flying {
            let taken = one.0.min(room);
            match one.0 {
                0 => one.1 -= 1,
                all if taken == all && taken > 0 => (one.0, one.1, ending) = (0, one.1 - 1, ending + 1),
                all => one.0 = all - taken,
            }
            if one.0 > 0 || taken > 0 {
                (room, prefill) = (room - taken, prefill + taken);
            }
        }
        seconds += step(decode as f64, prefill as f64, f64::from(ending));
        flying.retain(|one| one.0 > 0 || one.1 > 0);
    }
    seconds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Batches compared with the step-by-step scheduler, using the same cost of a step.
    #[test]
    fn batch_time_matches_step_by_step_scheduler(
        requests in 1u64..400, at_once in 1u64..120, prompt in 1u64..3000, output in 2u64..300, budget in 512u64..8192,
    ) {
        let job = served(&format!(
            "requests = {requests}\nmax_num_seqs = {at_once}\nprompt_tokens = {prompt}\noutput_tokens = {output}\n\
             max_batched_tokens = {budget}\nparallel = {{ tp = 1 }}\n\
             model = {{ layers = 8, hidden = 2048, heads = 16, kv_heads = 4, ffn = 4096, gated = true, vocab = 32000 }}\n"
        ));
        let (tariff, layout) = (Flat(300e9), laid(&job));
        let clock = Clock { speeds: &H100, curve: &Efficiency::default(), tariff: &tariff };
        let (_, service) = serve(&loaded(&job), &layout, &clock).unwrap();
        let told = (requests * output) as f64 / service.tokens_per_s;
        let mut longest: f64 = 0.0;
        let taken = scheduled(&job, requests, at_once, |decode, prefill, ending| {
            let mix = Mix { decode, prefill, chunks: prefill / prompt as f64, ending, ..Mix::default() };
            let time = clock.step(&loaded(&job), &layout, &mix, 1.0, 1.0).unwrap().spent().time().0 as f64 / 1e12;
            longest = longest.max(time);
            time
        });
        // The scheduler's rounds have whole steps, so each may have one more than predicted.
        let rounds = (requests as f64 / at_once as f64).ceil();
        prop_assert!((told - taken).abs() < 0.03 * taken + rounds * longest, "{told} {taken}");
    }
}

/// With 8-bit GEMMs, 16-bit inputs are read and written as 8 bits by a cast, and the GEMM reads 8 bits.
#[test]
fn low_precision_gemm_inputs_are_cast() {
    let mix = Mix { prefill: 100.0, chunks: 1.0, ..Mix::default() };
    let model = "model = { layers = 4, hidden = 1024, heads = 8, ffn = 4096, gated = true, vocab = 128 }\nparallel = { tp = 1 }\n";
    let of = |precision: &str| {
        let job = served(&format!("precision = \"{precision}\"\nprompt_tokens = 100\noutput_tokens = 1\n{model}"));
        let work = layer(&loaded(&job), &laid(&job), &mix, 1.0);
        let bytes = |is_product: bool| -> u64 {
            let own = work.kernels.iter().filter(|one| (one.kind == Kind::Product) == is_product);
            own.map(|one| one.bytes.0).sum()
        };
        (bytes(true), bytes(false), work.kernels.len())
    };
    let (wide, narrow) = (of("bf16"), of("fp8"));
    let weights = 4 * 1024 * 1024 + 3 * 1024 * 4096;
    let given = 100 * (1024 + 1024 + 1024 + 4096);
    assert_eq!((wide.0 - narrow.0, narrow.1 - wide.1, narrow.2 - wide.2), (weights + given, 3 * given, 4));
}

/// Tokens are permuted before and after experts: each token with its copies, and received tokens if a rank has several
/// experts.
#[test]
fn expert_tokens_are_permuted() {
    let mix = Mix { prefill: 100.0, chunks: 1.0, ..Mix::default() };
    let of = |ranks: u32| {
        let job = served(&format!(
            "concurrency = 64\nparallel = {{ dp = {ranks}, ep = {ranks} }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }}\n"
        ));
        let streams = layer(&loaded(&job), &laid(&job), &mix, 1.0).kernels;
        streams.iter().filter(|one| one.kind == Kind::Stream).map(|one| one.bytes.0).sum::<u64>()
    };
    let copies = 2 * 2 * 100 * 1024;
    assert_eq!((of(4) - of(1), of(8) - of(1)), (2 * 2 * copies, 0));
}

/// Experts process the mean of the replicas in lockstep, all other kernels the tokens of the most loaded one.
#[test]
fn experts_process_the_mean_of_lockstep_replicas() {
    let job = served(
        "concurrency = 64\nparallel = { dp = 4, ep = 4 }\n\
         model = { layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }\n",
    );
    let of = |prefill: f64, beyond_mean: f64| {
        let mix = Mix { prefill, chunks: 1.0, beyond_mean, ..Mix::default() };
        let kernels = layer(&loaded(&job), &laid(&job), &mix, 1.0).kernels;
        let (experts, others): (Vec<Kernel>, Vec<Kernel>) =
            kernels.into_iter().partition(|one| matches!(one.kind, Kind::Experts { .. }));
        let products = |kernels: &[Kernel]| kernels.iter().map(|one| one.flops.0).sum::<u128>();
        (products(&experts), products(&others))
    };
    let (fullest, mean, mixed) = (of(1000.0, 0.0), of(300.0, 0.0), of(1000.0, 700.0));
    assert_eq!(mixed, (mean.0, fullest.1));
    // Replicas without shared experts do not run in lockstep.
    let steps = |ep: u32| {
        let job = served(&format!(
            "concurrency = 64\nparallel = {{ dp = 4, ep = {ep} }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 2 }}\n"
        ));
        steady(&loaded(&job), &laid(&job)).1
    };
    let (alone, two, four) = (steps(1), steps(2), steps(4));
    assert!(alone.quiet > two.quiet && two.quiet > four.quiet && alone.with_prompts.beyond_mean == 0.0);
}

/// An expert with few rows computes a full tile of 128; one with many computes half a tile more.
#[test]
fn expert_tiles_are_computed_in_full() {
    let of = |prefill: f64| {
        let job = served(
            "parallel = { tp = 1 }\n\
             model = { layers = 4, hidden = 1024, heads = 8, ffn = 512, vocab = 128, experts = 8, experts_per_token = 8 }\n",
        );
        let work = layer(&loaded(&job), &laid(&job), &Mix { prefill, chunks: 1.0, ..Mix::default() }, 1.0);
        let experts = work.kernels.iter().filter(|one| matches!(one.kind, Kind::Experts { .. }));
        experts.map(|one| one.flops.0).sum::<u128>()
    };
    let row = 8 * 2 * 2 * 1024 * 512;
    assert_eq!([of(1.0), of(64.0), of(1000.0)], [128 * row, 128 * row, 1064 * row]);
}

#[test]
fn slo_violations_are_reported() {
    let (_, service) = flat(&served("ttft_s = 0.001\ntpot_s = 10\n"), H100, 300e9);
    assert_eq!(service.late.len(), 1);
    assert!(service.late[0].starts_with("ttft_s 0.") && service.late[0].ends_with(" of 0.001"), "{:?}", service.late);
}

/// Best performance of jobs with these lines on eight H100.
fn on_a_host<const N: usize>(jobs: [String; N]) -> [(Step, Footprint, Service); N] {
    let fabric = load(&FabricRequest::of("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = Simulated::new(&router, &profile, fabric.gpus());
    let machine =
        Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve: Efficiency::of(&fabric) };
    jobs.map(|lines| best_service(&served(&lines), &machine).unwrap())
}

/// With automatic concurrency, requests are limited by `max_num_seqs`, memory and SLO limits: one more per replica
/// violates one of them.
#[test]
fn automatic_concurrency_fills_memory_within_limits() {
    let lines = "prompt_tokens = 200\noutput_tokens = 100\nparallel = { tp = 4, dp = 2 }\n";
    let as_many = |more: &str| format!("concurrency = \"auto\"\n{lines}{more}");
    let given = |in_flight: u64, more: &str| format!("concurrency = {in_flight}\n{lines}{more}");
    let [filled, few] = on_a_host(["max_num_seqs = 20000\n", "max_num_seqs = 3\n"].map(as_many)).map(|found| found.2);
    let room = filled.room.as_ref().unwrap();
    assert!(filled.in_flight == room.requests && filled.in_flight > 100 && room.beyond.is_none(), "{filled:?}");
    assert_eq!(few.in_flight, 6);
    // Twice the TPOT of a few requests.
    let limit = format!("tpot_s = {}\n", few.tpot.unwrap().0 as f64 * 2e-12);
    let [limited, hopeless] = on_a_host([limit.as_str(), "tpot_s = 0.00001\n"].map(as_many)).map(|found| found.2);
    assert!(limited.late.is_empty() && (7..filled.in_flight).contains(&limited.in_flight), "{limited:?}");
    assert_eq!((hopeless.in_flight, hopeless.late.len()), (2, 1));
    let [as_told, more] = on_a_host([0, 2].map(|more| given(limited.in_flight + more, &limit)));
    assert_eq!(as_told.2.tokens_per_s, limited.tokens_per_s);
    assert_eq!(more.2.late.len(), 1);
    // A search over degrees also meets the limits, with at least the same throughput.
    let [searched] = on_a_host([as_many(&limit).replace("{ tp = 4, dp = 2 }", "\"auto\"")]);
    assert!(searched.2.late.is_empty() && searched.2.tokens_per_s >= limited.tokens_per_s, "{searched:?}");
}

/// A KV cache in another memory tier is read over the fabric: slower than HBM, and much slower over PCIe.
#[test]
fn kv_cache_tiers_cost_fabric_reads() {
    let of = |tier| format!("kv_tier = \"{tier}\"\nprompt_tokens = 8000\nconcurrency = 16\n");
    let [(_, near, hbm), (_, _, peer), (_, far, host)] = on_a_host(["hbm", "peer", "host"].map(of));
    assert!(hbm.tpot < peer.tpot && peer.tpot < host.tpot, "{hbm:?} {peer:?} {host:?}");
    assert_eq!((near.kv_cache.0 > 0, far.kv_cache.0), (true, 0));
}

/// Reads from another tier reach the same share of the link rate as memory-bound kernels do of the memory's, whatever
/// streaming kernels reach.
#[test]
fn remote_kv_cache_reads_at_memory_efficiency() {
    let curve = Efficiency { memory: 0.5, stream: 0.1, start: Picos(0), ..Efficiency::default() };
    let speeds = Speeds { elsewhere: Some(Bandwidth(100_000_000_000)), ..H100 };
    let clock = Clock { speeds: &speeds, curve: &curve, tariff: &Flat(1e12) };
    let reading = Reading { kernel: Kernel::default(), kept: Bytes(1_000_000_000) };
    assert_eq!(clock.reading(&reading), Picos(20_000_000_000));
}

#[test]
fn searched_degrees_fit_and_meet_limits() {
    let lines = ["\"auto\"", "{ tp = 8 }", "{ tp = 4, dp = 2 }", "{ tp = 4, pp = 2 }"];
    let [(step, footprint, service), given @ ..] = on_a_host(lines.map(|given| format!("parallel = {given}\n")));
    assert_eq!(step.layout.degrees.ranks(), 8);
    assert!(footprint.total().0 < 72_000_000_000 && service.room.as_ref().unwrap().beyond.is_none(), "{footprint:?}");
    for (given, (_, _, other)) in lines[1..].iter().zip(given) {
        let fits = other.room.as_ref().unwrap().beyond.is_none();
        assert!(!fits || other.tokens_per_s <= service.tokens_per_s * 1.02, "{given}: {other:?} {service:?}");
    }
}
