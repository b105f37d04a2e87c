//! Dispatch, combine and their overlap in inference steps, and machines that only decode.

use super::*;
use crate::serve::{expert_calls, traffic};
use fabricast_experts::{ExchangeKernel, Operation, TokenType};
use fabricast_workload::job::{Dispatch, Dispatcher, ExpertOverlap};

/// DeepSeek-V3's shapes on 16 replicas that share the experts.
fn mixture(lines: &str) -> Serving {
    served(&format!(
        "precision = \"fp8\"\nparallel = {{ dp = 16, ep = 16 }}\n{lines}\nmodel = {{ layers = 8, hidden = 7168, heads = 128, \
         ffn = 2048, gated = true, vocab = 1000, experts = 256, experts_per_token = 8, shared_experts = 1, latent = {{ \
         q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }} }}\n"
    ))
}

fn mix(decode: f64, prefill: f64, chunks: f64) -> StepTokens {
    StepTokens { decode, prefill, chunks, finished_prefills: chunks, ..StepTokens::default() }
}

proptest! {
    /// Tokens are conserved: every rank dispatches and combines the tokens of its step, with fewer bits in the
    /// dispatch. An all_to_all moves a copy for each expert of a token; an all_gather moves the tokens of all ranks.
    #[test]
    fn exchanged_tokens_are_those_of_the_step(decode in 0u32..1000, prefill in 0u32..5000) {
        prop_assume!(decode + prefill > 0);
        let (tokens, mix) = (u64::from(decode + prefill), mix(decode.into(), prefill.into(), 1.0));
        let job = mixture("dispatcher = \"deepep\"\n");
        let layout = specified_layout(&job);
        let calls = expert_calls(&job, &layout, &mix);
        let expected = if prefill > 0 { ExchangeKernel::DeepEp } else { ExchangeKernel::DeepEpLowLatency };
        let actual: Vec<_> = calls.iter().map(|call| (call.exchange.operation, call.exchange.token_type)).collect();
        prop_assert_eq!(actual, [(Operation::Dispatch, TokenType::Fp8), (Operation::Combine, TokenType::Bf16)]);
        for call in &calls {
            prop_assert_eq!((call.exchange.tokens, call.exchange.kernel, call.count), (tokens, expected, 1));
        }
        let exchanged = |job: &Serving| -> Vec<u64> {
            let calls = traffic(job, &layout, &mix);
            calls.into_iter().filter(|call| call.dimension == Dimension::Expert).map(|call| call.bytes.0).collect()
        };
        prop_assert_eq!(exchanged(&job), Vec::<u64>::new());
        prop_assert_eq!(exchanged(&mixture("dispatcher = \"all_to_all\"\n")), [tokens * 8 * 7168, tokens * 8 * 2 * 7168]);
        prop_assert_eq!(exchanged(&mixture("dispatcher = \"all_gather\"\n")), [tokens * 16 * 7168, tokens * 16 * 2 * 7168]);
    }

    /// Two overlapped halves of a batch never take longer than the halves one after the other.
    #[test]
    fn overlapped_halves_take_no_longer_than_separate_ones(decode in 2u32..1000, prefill in 0u32..5000, bandwidth in 1.0..400.0f64) {
        let job = mixture("dispatcher = \"deepep\"\nexpert_overlap = true\n");
        let layout = specified_layout(&job);
        let flat_costs = FlatCosts(bandwidth * 1e9);
        let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat_costs };
        let tokens = mix(decode.into(), prefill.into(), 1.0);
        let time = |overlap, tokens: &StepTokens| {
            let job = Serving { dispatch: Dispatch { overlap, ..job.dispatch }, ..job.clone() };
            costs.step(&loaded(&job), &layout, tokens, &AttentionContext::in_steady_state(&job, 1.0), 1.0).unwrap().layer.time()
        };
        let separate = time(ExpertOverlap::Off, &tokens.times(0.5)).0 * 2;
        prop_assert!(time(ExpertOverlap::TwoBatches, &tokens).0 <= separate);
    }

    /// A machine that only decodes has no step with prefill, serves all its requests in each step, and has no time to
    /// first token. A machine that only prefills equals one whose requests have a single output token.
    #[test]
    fn machines_of_one_part_of_requests_match_closed_forms(concurrency in 16u32..2000, output in 2u32..500) {
        let job = |part: &str, output: u32| {
            mixture(&format!("dispatcher = \"all_to_all\"\nconcurrency = {concurrency}\noutput_tokens = {output}\ndisaggregation = \"{part}\"\n"))
        };
        let (step, service) = simulate_flat(&job("decode", output), H100, 50e9);
        prop_assert_eq!((service.ttft, service.with_prefill), (None, Picos::ZERO));
        prop_assert_eq!(service.tpot, Some(step.time));
        let expected = f64::from(concurrency) / (step.time.0 as f64 / 1e12);
        prop_assert!((service.tokens_per_s / expected - 1.0).abs() < 1e-6, "{} {expected}", service.tokens_per_s);
        let (prefill, one) = (simulate_flat(&job("prefill", 1), H100, 50e9), simulate_flat(&job("none", 1), H100, 50e9));
        prop_assert_eq!(prefill.1, one.1);
    }
}

/// Short chunks of prompts with many cached tokens are computed on the latent vectors, without expanding the cached
/// tokens.
#[test]
fn short_chunks_do_not_expand_cached_tokens() {
    let job = mixture("prompt_tokens = 20000\nprefix_hit = 0.995\n");
    let layout = specified_layout(&job);
    let flops = |prefill: f64| {
        let work = layer_in_chunks(&loaded(&job), &layout, &mix(0.0, prefill, 1.0), 1.0);
        work.kernels.iter().map(|kernel| kernel.flops.0).sum::<u128>()
    };
    // 19,900 cached tokens are expanded to 128 heads of 256 elements.
    let expansion = 2 * 19_900 * 512 * 128 * 256;
    assert!(flops(129.0) - flops(128.0) > expansion * 9 / 10);
    assert!(flops(128.0) < expansion);
}

/// Kernels that send a copy for each expert need no permutation at the receiver; with other kernels, received tokens
/// are permuted.
#[test]
fn dispatch_libraries_save_permutations() {
    let streamed = |dispatcher: Dispatcher, tokens: &StepTokens| {
        let job = mixture("");
        let job = Serving { dispatch: Dispatch { dispatcher, ..job.dispatch }, ..job };
        let work = layer_in_chunks(&loaded(&job), &specified_layout(&job), tokens, 1.0);
        work.kernels.iter().filter(|kernel| kernel.kind == KernelKind::Stream).map(|kernel| kernel.bytes.0).sum::<u64>()
    };
    let decode = mix(128.0, 0.0, 0.0);
    let [all_to_all, normal, low_latency] =
        [Dispatcher::AllToAll, Dispatcher::DeepEpNormal, Dispatcher::DeepEpLowLatency]
            .map(|one| streamed(one, &decode));
    // A read of each token and a write of its eight copies, and back; copies are read and written to be sorted, and back.
    assert_eq!(all_to_all - normal, 2 * 2 * 128 * 7168 * (1 + 8));
    assert_eq!(normal - low_latency, 2 * 2 * 2 * 128 * 7168 * 8);
}
