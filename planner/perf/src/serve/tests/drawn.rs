//! Random inference jobs.

use super::*;

/// Parameters of a random job.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub tp: u32,
    pub pp: u32,
    pub dp: u32,
    pub ep: u32,
    pub sequence: bool,
    pub experts: bool,
    pub prompt: u64,
    pub output: u64,
    pub budget: u64,
    pub hit: f64,
    pub concurrency: u64,
}

impl Drawn {
    pub(super) fn job(&self) -> Serving {
        let Self { tp, pp, dp, ep, sequence, prompt, output, budget, hit, concurrency, .. } = self;
        let mixture = if self.experts { ", experts = 16, experts_per_token = 4, shared_experts = 1" } else { "" };
        served(&format!(
            "prompt_tokens = {prompt}\noutput_tokens = {output}\nconcurrency = {concurrency}\nmax_batched_tokens = {budget}\n\
             prefix_hit = {hit}\nexpert_skew = 1.3\nparallel = {{ tp = {tp}, pp = {pp}, dp = {dp}, ep = {ep}, sequence = {sequence} }}\n\
             model = {{ layers = 8, hidden = 2048, heads = 16, kv_heads = 4, ffn = 4096, gated = true, vocab = 32000{mixture} }}\n"
        ))
    }
}

/// Generates jobs of a small model, with or without experts, on up to 256 GPUs.
pub(super) fn drawn() -> impl Strategy<Value = Drawn> {
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
