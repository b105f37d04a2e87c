//! Memory of a rank that serves inference: weights, KV cache and activations; and the number of concurrent requests
//! that fit.
//!
//! The KV cache of a token has 2 × KV heads × head width elements in each layer (Kwon et al., vLLM, arXiv 2309.06180,
//! section 3). Tensor-parallel ranks divide it as far as there are KV heads. With latent attention, each
//! tensor-parallel rank has a full copy, since all heads need the same latent vector (DeepSeek-V2, arXiv 2405.04434,
//! section 2.1). Each request counts with its final number of tokens, so that no request is preempted.

use fabricast_topologies::Bytes;

use super::memory::RUNTIME;
use super::{Footprint, KvPrecision, Layout, LoadedServing, MemoryLimits, Precision, Serving, Tier};

impl Serving {
    /// Returns the KV-cache size of a token in bytes, over all layers and heads.
    #[must_use]
    pub fn kv_bytes(&self) -> u64 {
        let model = &self.model;
        let width = model.latent.map_or(model.key_width() + model.value_width(), |latent| latent.cached_width());
        self.kv_bytes_per_token.unwrap_or(width * self.kv_precision.bytes() * model.layers)
    }

    /// Returns the KV-cache size of a token in bytes on one rank, in the layers of its pipeline stage.
    #[must_use]
    pub fn kv_bytes_per_rank(&self, layout: &Layout) -> u64 {
        let stage_bytes = self.kv_bytes().div_ceil(u64::from(layout.degrees.pipeline));
        match (self.kv_bytes_per_token, self.model.latent) {
            (Some(_), _) | (_, Some(_)) => stage_bytes,
            (None, None) => stage_bytes.div_ceil(u64::from(layout.degrees.tensor).min(self.model.kv_heads)),
        }
    }

    /// Returns the memory that a job may fill: its share of the GPU's memory ([`Serving::memory_share`]), and all of
    /// the CPU's memory.
    fn usable_memory(&self, memories: MemoryLimits) -> MemoryLimits {
        MemoryLimits { gpu: Bytes((memories.gpu.0 as f64 * self.memory_share) as u64), ..memories }
    }

    /// Returns the size in bytes of the weights of a rank of the first stage. Embeddings are stored in the precision of
    /// activations. With latent attention, each tensor-parallel rank has full down-projections, and the up-projections
    /// that decoding absorbs into queries and outputs are also stored in 16 bits (vLLM,
    /// `vllm/v1/attention/backends/mla/common.py`: `process_weights_after_loading`).
    #[must_use]
    pub fn weight_bytes_per_rank(&self, layout: &Layout) -> u64 {
        let degrees = layout.degrees;
        let (model, tensor) = (&self.model.sharded_over(degrees.tensor), u64::from(degrees.tensor));
        let layers = model.layers / u64::from(degrees.pipeline);
        let experts = self.expert_slots() / u64::from(degrees.expert) * model.ffn_parameters();
        let stored_bytes = |parameters: u64| (parameters as f64 * self.precision.served_bytes()).ceil() as u64;
        let replicated = stored_bytes(layers * model.replicated_layer_parameters());
        let sharded = stored_bytes(layers * (model.shared_layer_parameters() + experts)) - replicated;
        let up_projections = model.latent.map_or(0, |latent| latent.kv * model.kv_up_projection_width());
        // If there are several stages, the first has the embedding and the last has the output projection.
        let output_projection =
            if degrees.pipeline == 1 { model.untied_embeddings * model.output_projection_parameters() } else { 0 };
        let unquantized =
            (model.embedding_parameters() + output_projection + layers * up_projections) * self.precision.bytes();
        replicated + (sharded + unquantized).div_ceil(tensor)
    }
}

impl LoadedServing<'_> {
    /// Returns the number of requests of the most loaded replica.
    #[must_use]
    pub fn requests_per_replica(&self, layout: &Layout) -> u64 {
        self.concurrent_requests.div_ceil(u64::from(layout.degrees.data).max(1))
    }

    /// Returns the KV-cache size of the most loaded replica on one rank, in any memory tier.
    #[must_use]
    pub fn kv_cache_per_rank(&self, layout: &Layout) -> Bytes {
        Bytes(self.requests_per_replica(layout) * self.tokens() * self.kv_bytes_per_rank(layout))
    }
}

/// Returns the memory footprint of the rank that uses most memory.
#[must_use]
pub fn serving_footprint(job: &LoadedServing<'_>, layout: &Layout) -> Footprint {
    let (kv_cache, host) = match job.kv_tier {
        Tier::Hbm | Tier::Peer => (job.kv_cache_per_rank(layout), Bytes(0)),
        Tier::Host | Tier::Nvme => (Bytes(0), job.kv_cache_per_rank(layout)),
    };
    Footprint {
        weights: Bytes(job.weight_bytes_per_rank(layout) + job.resident_adapter_bytes(layout).0),
        kv_cache,
        host: Bytes(host.0 + job.host_adapter_bytes(layout).0),
        activations: Bytes(activations(job, layout)),
        runtime: RUNTIME,
        ..Footprint::default()
    }
}

/// Returns the size in bytes of the activations in the largest possible step: those of one layer, since no activations
/// are retained, and the logits.
fn activations(job: &LoadedServing<'_>, layout: &Layout) -> u64 {
    let model = &job.model.sharded_over(layout.degrees.tensor);
    let (e, tensor) = (job.precision.bytes(), u64::from(layout.degrees.tensor));
    let tokens = job.max_batched_tokens;
    let attention = model.attention_width().div_ceil(tensor);
    // Without experts there is no load imbalance.
    let skew = if model.experts == 0 { 1.0 } else { layout.expert_imbalance(job.skew) };
    let ffns = (model.ffns_per_token() as f64 * skew).ceil() as u64;
    let routed = if model.experts == 0 { 0 } else { ffns * model.hidden };
    let ffn = ffns * (model.ffn_matrices * model.ffn).div_ceil(tensor) + routed;
    let layer = tokens * e * (2 * model.hidden + attention.max(ffn));
    // Logits in 32 bits, for each request.
    layer + 4 * job.requests_per_replica(layout) * model.vocab.div_ceil(tensor)
}

/// Returns the largest number of concurrent requests that fit in memories of these sizes, summed over all replicas. All
/// replicas have the same number; 0 if no request fits.
pub(super) fn max_concurrent_requests(job: &Serving, layout: &Layout, memories: MemoryLimits) -> u64 {
    let replicas = u64::from(layout.degrees.data);
    let footprint = |concurrent_requests: u64| serving_footprint(&LoadedServing { job, concurrent_requests }, layout);
    // Each further request of a replica needs as much memory as its first.
    let (empty, one_request_each) = (footprint(0), footprint(replicas));
    let usable = job.usable_memory(memories);
    let gpu_limit =
        usable.gpu.0.saturating_sub(empty.total().0) / (one_request_each.total().0 - empty.total().0).max(1);
    let host_limit = usable.host.0.saturating_sub(empty.host.0) / (one_request_each.host.0 - empty.host.0).max(1);
    gpu_limit.min(host_limit).saturating_mul(replicas)
}

/// Result of a memory check: the memory needed in excess, and changes that make the job fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryCheck {
    /// GPU memory that the job may fill.
    pub memory: Bytes,
    /// GPU memory needed in excess of `memory`; `None` if the job fits.
    pub missing: Option<Bytes>,
    /// CPU memory needed in excess of a rank's share; `None` if the job fits.
    pub missing_host: Option<Bytes>,
    /// Largest number of concurrent requests that fit, summed over all replicas.
    pub requests: u64,
    /// Changes of the job in job-file syntax, each of which is sufficient to make it fit.
    pub remedies: Vec<String>,
}

/// Checks whether a job fits in memories of these sizes.
#[must_use]
pub fn check_memory(job: &LoadedServing<'_>, layout: &Layout, memories: impl Into<MemoryLimits>) -> MemoryCheck {
    let memories = memories.into();
    let requests = max_concurrent_requests(job, layout, memories);
    let usable = job.usable_memory(memories);
    let footprint = serving_footprint(job, layout);
    let exceeds_memory =
        |variant: &Serving| !serving_footprint(&LoadedServing { job: variant, ..*job }, layout).fits(usable);
    let mut remedies = Vec::new();
    if exceeds_memory(job) {
        let fp8_cache = Serving { kv_precision: KvPrecision::Fp8, ..job.job.clone() };
        if job.kv_bytes_per_token.is_none() && job.kv_precision != KvPrecision::Fp8 && !exceeds_memory(&fp8_cache) {
            remedies.push("kv_precision = \"fp8\"".to_owned());
        }
        let fp8_weights = Serving { precision: Precision::Fp8, ..job.job.clone() };
        if job.precision.served_bytes() > fp8_weights.precision.served_bytes() && !exceeds_memory(&fp8_weights) {
            remedies.push("precision = \"fp8\"".to_owned());
        }
        let host_cache = Serving { kv_tier: Tier::Host, ..job.job.clone() };
        if job.kv_tier != Tier::Host && !exceeds_memory(&host_cache) {
            remedies.push("kv_tier = \"host\"".to_owned());
        }
    }
    MemoryCheck {
        memory: usable.gpu,
        missing: footprint.excess(usable.gpu),
        missing_host: footprint.host_excess(usable.host),
        requests,
        remedies,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::serving_tests::served;
    use super::*;

    const DEEPSEEK_V3: &str = "{ layers = 61, hidden = 7168, heads = 128, ffn = 2048, gated = true, vocab = 129280, experts = 256, \
        experts_per_token = 8, shared_experts = 1, latent = { q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, \
        qk_rope_head_dim = 64, v_head_dim = 128 } }";

    fn specified_layout(job: &Serving, ranks: u32) -> Layout {
        Layout::specified_by_serving(job, ranks).unwrap().unwrap()
    }

    proptest! {
        /// The KV cache has 2 × layers × heads × width × bytes per token, once per replica, or several times if there
        /// are fewer KV heads than tensor-parallel ranks.
        #[test]
        fn kv_cache_matches_closed_form(tp in 0u32..5, pp in 0u32..3, dp in 1u32..4, kv in 0u32..4, bits in 0..2, requests in 1u64..99) {
            let (tp, pp, kv) = (1u32 << tp, 1u32 << pp, 1u64 << kv);
            let (name, element_bytes) = if bits == 0 { ("fp8", 1) } else { ("bf16", 2) };
            let job = served(&format!(
                "concurrency = {requests}\nkv_precision = \"{name}\"\nparallel = {{ tp = {tp}, pp = {pp}, dp = {dp} }}\n\
                 model = {{ layers = 16, hidden = 2048, heads = 16, kv_heads = {kv}, ffn = 8192, vocab = 32000 }}\n"
            ));
            let layout = specified_layout(&job, tp * pp * dp);
            let replicas = u64::from(tp).div_ceil(kv).max(1);
            let token_bytes = 2 * 16 * kv * 128 * element_bytes;
            prop_assert_eq!(job.kv_bytes(), token_bytes);
            prop_assert_eq!(job.kv_bytes_per_rank(&layout) * u64::from(tp * pp), token_bytes * replicas);
            let max_requests = requests.div_ceil(u64::from(dp));
            prop_assert_eq!(serving_footprint(&job.with_concurrency(&layout, None), &layout).kv_cache.0, max_requests * 2500 * job.kv_bytes_per_rank(&layout));
        }

        /// The reported number of requests fits, and one more per replica does not.
        #[test]
        fn room_is_the_largest_request_count_that_fits(dp in 1u32..4, requests in 1u64..2000, gigabytes in 20u64..200) {
            let job = |requests: u64| served(&format!("concurrency = {requests}\nparallel = {{ tp = 8, dp = {dp} }}\n"));
            let (requested, memory) = (job(requests), Bytes(gigabytes * 1_000_000_000));
            let layout = specified_layout(&requested, 8 * dp);
            let check = check_memory(&requested.with_concurrency(&layout, None), &layout, memory);
            prop_assert_eq!(check.missing.is_none(), requests.div_ceil(dp.into()) <= check.requests / u64::from(dp) && check.requests > 0);
            let fits = |requests: u64| check_memory(&job(requests).with_concurrency(&layout, None), &layout, memory).missing.is_none();
            prop_assert!(check.requests == 0 || fits(check.requests));
            prop_assert!(!fits(check.requests + u64::from(dp)));
        }
    }

    /// The number of concurrent requests of a batch is the minimum of the number that fits, the size of the batch, and
    /// the limit of the replicas; it is one if none fits.
    #[test]
    fn batch_concurrency_fills_the_memory() {
        let gigabytes = |count: u64| Some(Bytes(count * 1_000_000_000));
        let fill = |requests: u64, max_num_seqs: u64, memory: Option<Bytes>, tier: &str| {
            let lines = format!(
                "requests = {requests}\nmax_num_seqs = {max_num_seqs}\nkv_tier = \"{tier}\"\nparallel = {{ tp = 8, dp = 2 }}\n"
            );
            let job = served(&lines);
            let layout = specified_layout(&job, 16);
            let loaded = job.with_concurrency(&layout, memory.map(Into::into));
            (loaded.concurrent_requests, memory.map(|memory| check_memory(&loaded, &layout, memory)))
        };
        assert_eq!(fill(100, 64, None, "hbm").0, 100);
        assert_eq!(fill(1000, 64, None, "hbm").0, 128);
        // The number that fits does not depend on the number of requests of the job.
        let (max_requests, check) = fill(100_000, 1024, gigabytes(40), "hbm");
        let check = check.unwrap();
        assert_eq!((check.missing, check.requests), (None, max_requests));
        assert!((100..2048).contains(&max_requests), "{max_requests}");
        assert_eq!(fill(1 << 24, 1 << 24, gigabytes(40), "hbm").0, max_requests);
        let (single, check) = fill(1000, 1000, gigabytes(5), "hbm");
        assert!(single == 1 && check.unwrap().missing.is_some());
        // With the KV cache in host memory, only the logits of a request need GPU memory.
        assert!(fill(1 << 24, 1 << 24, gigabytes(40), "host").0 > 100 * max_requests);
        // Concurrent requests are limited to the CPU's memory; more do not fit.
        let host_job =
            served("requests = 100000\nmax_num_seqs = 100000\nkv_tier = \"host\"\nparallel = { tp = 8, dp = 1 }\n");
        let layout = specified_layout(&host_job, 8);
        let request_bytes = 2500 * host_job.kv_bytes_per_rank(&layout);
        let memories = MemoryLimits { gpu: Bytes(1 << 40), host: Bytes(100 * request_bytes + request_bytes / 2) };
        assert_eq!(host_job.with_concurrency(&layout, Some(memories)).concurrent_requests, 100);
        let fixed_job = served("concurrency = 101\nkv_tier = \"host\"\nparallel = { tp = 8, dp = 1 }\n");
        let check = check_memory(&fixed_job.with_concurrency(&layout, None), &layout, memories);
        assert_eq!(
            (check.missing, check.missing_host, check.requests),
            (None, Some(Bytes(request_bytes - request_bytes / 2)), 100)
        );
        // The remaining requests of a fixed concurrency wait.
        let waiting = fixed_job.with_concurrency(&layout, Some(memories));
        assert_eq!((waiting.concurrent_requests, waiting.waiting_requests()), (100, 1));
        let job = served("concurrency = 77\nparallel = { tp = 8 }\n");
        let unfit = job.with_concurrency(&specified_layout(&job, 8), Some(Bytes(1).into()));
        assert_eq!((unfit.concurrent_requests, unfit.waiting_requests()), (1, 76));
    }

    /// Weights of Llama 2 70B have 137e9 bytes in 16 bits, half of that in fp8 except for the embeddings, and 9/16 of
    /// the fp8 size in nvfp4.
    #[test]
    fn llama_2_70b_weights_match_published_size() {
        let weight_bytes = |precision: &str| {
            let job = served(&format!("precision = \"{precision}\"\nparallel = {{ tp = 1 }}\n"));
            job.weight_bytes_per_rank(&specified_layout(&job, 1))
        };
        let embeddings = 2 * 32_000 * 8192;
        assert_eq!(weight_bytes("bf16") - embeddings, 2 * (weight_bytes("fp8") - embeddings));
        assert_eq!(9 * (weight_bytes("fp8") - embeddings), 16 * (weight_bytes("nvfp4") - embeddings));
        assert!((weight_bytes("bf16") as f64 / 137.4e9 - 1.0).abs() < 0.001);
    }

    /// Expert skew affects the memory only of models with experts.
    #[test]
    fn skew_affects_only_experts() {
        let activations = |lines: &str| {
            let job = served(&format!("concurrency = 4\n{lines}"));
            serving_footprint(&job.with_concurrency(&specified_layout(&job, 8), None), &specified_layout(&job, 8))
                .activations
        };
        let (dense, skewed) = ("parallel = { tp = 8 }\n", "expert_skew = 50\n");
        assert_eq!(activations(&format!("{dense}{skewed}")), activations(dense));
        let mixture = |parallel: &str| format!("model = {DEEPSEEK_V3}\nparallel = {{ {parallel} }}\n");
        let divided = mixture("dp = 8, ep = 8");
        assert!(activations(&format!("{divided}{skewed}")) > activations(&divided));
        // No rank has more than the total load.
        assert_eq!(activations(&format!("{divided}{skewed}")), activations(&format!("{divided}expert_skew = 8\n")));
        assert_eq!(activations(&format!("{}{skewed}", mixture("tp = 8"))), activations(&mixture("tp = 8")));
    }

    #[test]
    fn overfull_memory_lists_remedies() {
        let job = served("concurrency = 400\nparallel = { tp = 8 }\n");
        let layout = specified_layout(&job, 8);
        let check = check_memory(&job.with_concurrency(&layout, None), &layout, Bytes(60_000_000_000));
        let excess = check.missing.unwrap();
        assert_eq!(
            excess.0,
            serving_footprint(&job.with_concurrency(&layout, None), &layout).total().0 - 54_000_000_000
        );
        assert_eq!(check.remedies, ["kv_precision = \"fp8\"", "precision = \"fp8\"", "kv_tier = \"host\""]);
        assert!((300..400).contains(&check.requests), "{check:?}");
        // There is no remedy if not even the weights fit.
        let small = check_memory(&job.with_concurrency(&layout, None), &layout, Bytes(5_000_000_000));
        assert_eq!((small.requests, small.remedies.len()), (0, 0));
        // A compressed KV cache is not divided among tensor-parallel ranks.
        let latent = served("kv_bytes_per_token = 70272\nparallel = { tp = 8 }\n");
        assert_eq!(latent.kv_bytes_per_rank(&specified_layout(&latent, 8)), 70_272);
        // DeepSeek-V3 has the same size of the KV cache (arXiv 2505.09343, table 1).
        let deepseek = served(&format!("parallel = {{ tp = 8 }}\nmodel = {DEEPSEEK_V3}\n"));
        assert_eq!(
            (deepseek.kv_bytes(), deepseek.kv_bytes_per_rank(&specified_layout(&deepseek, 8))),
            (70_272, 70_272)
        );
    }
}
