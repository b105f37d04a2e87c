//! Transformer model: parameters and floating-point operations.
//!
//! Counts follow Narayanan et al. (arXiv 2104.04473, section 3 and appendix): a layer whose feed-forward is four times
//! the hidden size has 12 h² + 13 h parameters, and an (m × k) by (k × n) GEMM is 2 m k n operations. Grouped-query
//! attention, gated feed-forwards (three matrices, no biases) and experts change the corresponding terms.

use fabricast_experts::RoutingPattern;
use serde::Deserialize;

/// Number of floating-point operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flops(pub u128);

impl std::ops::Add for Flops {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Mul<u64> for Flops {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(u128::from(factor)))
    }
}

/// Multi-head latent attention: keys and values are computed from one latent vector per token, which is all that is
/// cached (DeepSeek-V2, arXiv 2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentAttention {
    /// Width of the latent vector of queries (`q_lora_rank`), in elements; `None` if queries are computed from the
    /// token itself.
    pub query: Option<u64>,
    /// Width of the latent vector of keys and values (`kv_lora_rank`), in elements.
    pub kv: u64,
    /// Width of the rotary part (`qk_rope_head_dim`): in addition to [`Model::head`] in each head's query, and one key
    /// shared by all heads.
    pub rope: u64,
    /// Width of a head's value (`v_head_dim`), in elements.
    pub value: u64,
}

impl LatentAttention {
    /// Number of cached elements per token and layer: the latent vector of keys and values, and the rotary key.
    #[must_use]
    pub fn cached_width(&self) -> u64 {
        self.kv + self.rope
    }

    /// Width of the normalized latent vectors: that of keys and values, and that of queries if there is one.
    #[must_use]
    pub fn normalized_width(&self) -> u64 {
        self.query.unwrap_or(0) + self.kv
    }

    /// Total width of the down-projections: the latent vectors and the rotary key.
    #[must_use]
    pub fn latent_width(&self) -> u64 {
        self.normalized_width() + self.rope
    }
}

/// Node-limited routing: a token uses experts of a limited number of equal groups (DeepSeek-V3, arXiv 2412.19437,
/// section 2.1.2; `n_group` and `topk_group` of its `config.json`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// Number of equal groups of consecutive experts.
    pub groups: u64,
    /// Number of groups that a token may use.
    pub limit: u64,
}

/// Normalization of queries and keys before attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNorm {
    /// None, or of each head, which every rank computes for its own heads.
    #[default]
    Heads,
    /// Of all heads of a layer: tensor-parallel ranks sum the squares (MiniMax M2, sglang
    /// python/sglang/srt/models/minimax_m2.py, `MiniMaxM2RMSNormTP`).
    AllHeads,
}

/// Decoder-only transformer of identical layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    /// Number of transformer layers.
    pub layers: u64,
    /// Hidden size: width of the residual stream, in elements.
    pub hidden: u64,
    /// Number of attention heads.
    pub heads: u64,
    /// Width of a head, in elements.
    pub head: u64,
    /// Number of KV heads, each shared by a group of query heads.
    pub kv_heads: u64,
    /// Latent attention; `None` if the model does not use it. With latent attention `head` is the width of the
    /// non-rotary part (`qk_nope_head_dim`).
    pub latent: Option<LatentAttention>,
    /// Width of the feed-forward, or of each expert's, in elements.
    pub ffn: u64,
    /// Number of matrices of a feed-forward: 3 if gated (SwiGLU), else 2.
    pub ffn_matrices: u64,
    /// Factor on the parameters of biases: 1 if linear layers have biases, else 0.
    pub biases: u64,
    /// Vocabulary size, in tokens.
    pub vocab: u64,
    /// Factor on the parameters of the output projection: 1 if it has its own matrix, 0 if it is tied to the embedding.
    pub untied_embeddings: u64,
    /// Sequence length in tokens.
    pub seq: u64,
    /// Number of routed experts of a layer; 0 for one feed-forward for all tokens.
    pub experts: u64,
    /// Number of routed experts per token (top-k).
    pub experts_per_token: u64,
    /// Number of shared experts, which process every token (Dai et al., DeepSeekMoE, arXiv 2401.06066).
    pub shared_experts: u64,
    /// Limit of the groups of experts that a token may use; `None` without limit.
    pub expert_groups: Option<ExpertGroups>,
    /// Normalization of queries and keys.
    pub query_key_norm: QueryKeyNorm,
}

impl Model {
    /// Distribution of the experts of a token among `experts` experts, redundant copies included. Without a limit of
    /// groups, or if the copies cannot be divided evenly among the groups, all sets of experts are equally likely.
    #[must_use]
    pub fn routing(&self, experts: u64) -> RoutingPattern {
        match self.expert_groups {
            Some(ExpertGroups { groups, limit }) if groups > 0 && experts.is_multiple_of(groups) => {
                RoutingPattern::GroupLimited { groups: groups as u32, limit: limit as u32 }
            }
            _ => RoutingPattern::Random,
        }
    }

    /// Returns the model with dense layers, whose feed-forward is as wide as all experts of a token together.
    #[must_use]
    pub fn with_dense_layers(&self) -> Self {
        match self.experts {
            0 => *self,
            _ => Self {
                experts: 0,
                experts_per_token: 0,
                shared_experts: 0,
                expert_groups: None,
                ffn: self.ffn * (self.experts_per_token + self.shared_experts),
                ..*self
            },
        }
    }

    /// Returns the model as `ranks` tensor-parallel ranks store it. With fewer KV heads than ranks each rank has a full
    /// head, so there are as many as ranks (vLLM, `QKVParallelLinear`: `num_kv_head_replicas`).
    #[must_use]
    pub fn sharded_over(&self, ranks: u32) -> Self {
        Self { kv_heads: self.kv_heads.max(ranks.into()), ..*self }
    }

    /// Width of a head's query and of its key, in elements.
    #[must_use]
    pub fn score_width(&self) -> u64 {
        self.head + self.latent.map_or(0, |latent| latent.rope)
    }

    /// Width of a head's value, in elements.
    #[must_use]
    pub fn head_value(&self) -> u64 {
        self.latent.map_or(self.head, |latent| latent.value)
    }

    /// Width of all queries, in elements per token and layer.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.score_width() * self.heads
    }

    /// Width of the keys of all KV heads, in elements per token and layer.
    #[must_use]
    pub fn key_width(&self) -> u64 {
        self.score_width() * self.kv_heads
    }

    /// Width of the values of all KV heads, in elements per token and layer.
    #[must_use]
    pub fn value_width(&self) -> u64 {
        self.head_value() * self.kv_heads
    }

    /// Width of the attention output of all heads, in elements per token and layer.
    #[must_use]
    pub fn attention_output_width(&self) -> u64 {
        self.head_value() * self.heads
    }

    /// Width of the inputs and outputs of attention (queries, keys, values, attention output), in elements per token
    /// and layer.
    #[must_use]
    pub fn attention_width(&self) -> u64 {
        self.query_width() + self.key_width() + self.value_width() + self.attention_output_width()
    }

    /// Width of the up-projection from the latent vector of keys and values (non-rotary keys and values of all heads),
    /// in elements.
    #[must_use]
    pub fn kv_up_projection_width(&self) -> u64 {
        self.heads * (self.head + self.head_value())
    }

    /// Number of elements of the projection matrices for queries, keys and values of a layer.
    fn projections(&self) -> u64 {
        let h = self.hidden;
        match self.latent {
            None => h * (self.query_width() + self.key_width() + self.value_width()),
            Some(latent) => {
                let queries = latent.query.map_or(h * self.query_width(), |rank| rank * (h + self.query_width()));
                queries + h * latent.cached_width() + latent.kv * self.kv_up_projection_width()
            }
        }
    }

    /// Number of feed-forwards that a token passes through in a layer.
    #[must_use]
    pub fn ffns_per_token(&self) -> u64 {
        self.experts_per_token.max(1) + self.shared_experts
    }

    /// Number of parameters of a layer outside its feed-forwards: attention and two norms.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        let (h, output_width) = (self.hidden, self.attention_output_width());
        let biases = self.biases * (self.attention_width() - output_width + h);
        let norms = if self.ffn_matrices == 2 { 4 * h } else { 2 * h };
        let latent = self.latent.map_or(0, |latent| latent.normalized_width());
        self.projections() + h * output_width + biases + norms + latent
    }

    /// Number of parameters of a layer that every tensor-parallel rank has in full: the down-projections of latent
    /// attention and their norms (Megatron Core, `MLASelfAttention`: both down-projections are duplicated; vLLM:
    /// `ReplicatedLinear`).
    #[must_use]
    pub fn replicated_layer_parameters(&self) -> u64 {
        self.latent.map_or(0, |latent| self.hidden * latent.latent_width() + latent.normalized_width())
    }

    /// Number of parameters of one feed-forward.
    #[must_use]
    pub fn ffn_parameters(&self) -> u64 {
        self.ffn_matrices * self.hidden * self.ffn + self.biases * (self.ffn + self.hidden)
    }

    /// Number of parameters of a layer without its routed experts.
    #[must_use]
    pub fn shared_layer_parameters(&self) -> u64 {
        let feed_forward = match self.experts {
            0 => self.ffn_parameters(),
            experts => self.hidden * experts + self.shared_experts * self.ffn_parameters(),
        };
        self.attention_parameters() + feed_forward
    }

    /// Number of parameter tensors of a layer: fused input projection and output projection of attention, matrices of the
    /// feed-forward or of each expert, router, two norms, and as many biases as there are tensors if there are any.
    #[must_use]
    pub fn layer_tensors(&self) -> u64 {
        let feed_forward = match self.experts {
            0 => self.ffn_matrices,
            experts => 1 + (experts + self.shared_experts) * self.ffn_matrices,
        };
        (2 + feed_forward + 2) * (1 + self.biases.min(1))
    }

    /// Number of parameters of all routed experts of a layer; 0 if there are none.
    #[must_use]
    pub fn expert_layer_parameters(&self) -> u64 {
        self.experts * self.ffn_parameters()
    }

    /// Number of parameters before the first layer: the embedding (whose matrix the last stage may share), and position
    /// embeddings for GPT-like models; gated models use rotary embeddings.
    #[must_use]
    pub fn embedding_parameters(&self) -> u64 {
        self.vocab * self.hidden + self.biases * self.seq * self.hidden
    }

    /// Number of parameters of the output projection, which is a copy of the embedding if tied.
    #[must_use]
    pub fn output_projection_parameters(&self) -> u64 {
        self.vocab * self.hidden
    }

    /// Total number of parameters, including all experts.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.layers * (self.shared_layer_parameters() + self.expert_layer_parameters())
            + self.embedding_parameters()
            + self.untied_embeddings * self.output_projection_parameters()
    }

    /// Operations of a forward pass of `sequences` sequences through one layer: GEMMs with weights, attention scores
    /// (in full, whether or not the causal half is skipped), each token through its experts.
    #[must_use]
    pub fn layer_flops(&self, sequences: u64) -> Flops {
        let (h, output_width) = (u128::from(self.hidden), u128::from(self.attention_output_width()));
        let tokens = u128::from(sequences) * u128::from(self.seq);
        let weights = u128::from(self.projections()) + h * output_width;
        let attention = 2 * tokens * weights + self.score_flops(sequences).0;
        let ffn = 2 * tokens * u128::from(self.ffn_matrices) * h * u128::from(self.ffn);
        let (experts, ffns) = (u128::from(self.experts), u128::from(self.ffns_per_token()));
        Flops(if experts == 0 { attention + ffn } else { attention + ffn * ffns + 2 * tokens * h * experts })
    }

    /// Operations of attention scores and of weighting the values, over all pairs of tokens of a sequence.
    fn score_flops(&self, sequences: u64) -> Flops {
        let token_pairs = u128::from(sequences) * u128::from(self.seq) * u128::from(self.seq);
        Flops(2 * token_pairs * (u128::from(self.query_width()) + u128::from(self.attention_output_width())))
    }

    /// Operations of the output projection for `sequences` sequences, forward.
    #[must_use]
    pub fn logit_flops(&self, sequences: u64) -> Flops {
        Flops(2 * u128::from(sequences) * u128::from(self.seq) * u128::from(self.hidden) * u128::from(self.vocab))
    }

    /// Operations of a step of `sequences` sequences without recomputation; the backward pass counts twice the forward
    /// pass.
    #[must_use]
    pub fn step_flops(&self, sequences: u64) -> Flops {
        (self.layer_flops(sequences) * self.layers + self.logit_flops(sequences)) * 3
    }

    /// Variant of [`Self::step_flops`] without the causally masked half of attention scores (as counted by the authors
    /// of FlashAttention, arXiv 2307.08691, section 4.1).
    #[must_use]
    pub fn causal_step_flops(&self, sequences: u64) -> Flops {
        let upper = self.score_flops(sequences).0 / 2 * u128::from(self.layers) * 3;
        Flops(self.step_flops(sequences).0.saturating_sub(upper))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpt(layers: u64, hidden: u64, heads: u64) -> Model {
        Model {
            layers,
            hidden,
            heads,
            head: hidden / heads,
            kv_heads: heads,
            latent: None,
            ffn: 4 * hidden,
            ffn_matrices: 2,
            biases: 1,
            vocab: 51_200,
            untied_embeddings: 0,
            seq: 2048,
            experts: 0,
            experts_per_token: 0,
            shared_experts: 0,
            expert_groups: None,
            query_key_norm: QueryKeyNorm::Heads,
        }
    }

    /// Parameters match arXiv 2104.04473, section 5.1: P = 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)).
    #[test]
    fn parameters_match_closed_form() {
        for (layers, hidden, heads, billions) in
            [(96, 12_288, 96, 175.0), (105, 20_480, 128, 530.0), (128, 25_600, 160, 1008.0), (48, 6144, 64, 22.0)]
        {
            let model = gpt(layers, hidden, heads);
            let (l, h, v, s) = (layers as f64, hidden as f64, 51_200.0, 2048.0);
            let expected = 12.0 * l * h * h * (1.0 + 13.0 / (12.0 * h) + (v + s) / (12.0 * l * h));
            assert!((model.parameters() as f64 / expected - 1.0).abs() < 1e-12, "{}", model.parameters());
            assert!((model.parameters() as f64 / (billions * 1e9) - 1.0).abs() < 0.02, "{}", model.parameters());
        }
    }

    /// Operations of a step match arXiv 2205.05198, equation 7: 72 B L s h² (1 + s/(6 h) + V/(12 h L)).
    #[test]
    fn flops_match_closed_form() {
        let model = gpt(105, 20_480, 128);
        let (b, l, s, h, v) = (280.0, 105.0, 2048.0, 20_480.0, 51_200.0);
        let expected = 72.0 * b * l * s * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * h * l));
        assert!((model.step_flops(280).0 as f64 / expected - 1.0).abs() < 1e-12);
        // Half of the attention scores are omitted: 72 B L s h² · s/(12 h).
        let upper = 72.0 * b * l * s * h * h * s / (12.0 * h);
        assert!((model.causal_step_flops(280).0 as f64 / (expected - upper) - 1.0).abs() < 1e-12);
    }

    /// Llama 2 70B has 8 KV heads and 69.0e9 parameters with a vocabulary of 32,000, if embedding and output projection
    /// count separately (Touvron et al., arXiv 2307.09288).
    #[test]
    fn gated_and_grouped_query_parameters_match_llama_2() {
        let llama = Model {
            layers: 80,
            hidden: 8192,
            heads: 64,
            head: 128,
            kv_heads: 8,
            latent: None,
            ffn: 28_672,
            ffn_matrices: 3,
            biases: 0,
            vocab: 32_000,
            untied_embeddings: 0,
            seq: 4096,
            experts: 0,
            experts_per_token: 0,
            shared_experts: 0,
            expert_groups: None,
            query_key_norm: QueryKeyNorm::Heads,
        };
        let untied = Model { untied_embeddings: 1, ..llama }.parameters();
        assert_eq!(untied, llama.parameters() + 32_000 * 8192);
        assert!((untied as f64 / 68.98e9 - 1.0).abs() < 0.001, "{untied}");
        // Each expert has its own feed-forward, and a token uses two of them.
        let experts = Model { experts: 8, experts_per_token: 2, ..llama };
        let added = experts.parameters() - llama.parameters();
        assert_eq!(added, 80 * (7 * llama.ffn_parameters() + 8 * 8192));
        assert!(experts.layer_flops(1).0 < llama.layer_flops(1).0 * 2);
    }

    /// DeepSeek-V3 has 671e9 parameters with embedding and output projection for a vocabulary of 129,280, 37e9 of them
    /// active per token, in 61 layers, the first 3 with one feed-forward of 18,432 instead of experts (arXiv
    /// 2412.19437, sections 4.2 and 2.2).
    #[test]
    fn latent_attention_parameters_match_deepseek_v3() {
        let model = Model {
            layers: 61,
            hidden: 7168,
            heads: 128,
            head: 128,
            kv_heads: 128,
            latent: Some(LatentAttention { query: Some(1536), kv: 512, rope: 64, value: 128 }),
            ffn: 2048,
            ffn_matrices: 3,
            biases: 0,
            vocab: 129_280,
            untied_embeddings: 1,
            seq: 4096,
            experts: 256,
            experts_per_token: 8,
            shared_experts: 1,
            expert_groups: None,
            query_key_norm: QueryKeyNorm::Heads,
        };
        // From config.json and modeling_deepseek.py of the published weights: q_a 7168 × 1536, q_b 1536 × 128 × 192,
        // kv_a 7168 × 576, kv_b 512 × 128 × 256, o 128 × 128 × 7168, and four norms.
        let attention = 7168 * 1536 + 1536 * 24_576 + 7168 * 576 + 512 * 32_768 + 16_384 * 7168;
        assert_eq!(model.attention_parameters(), attention + 2 * 7168 + 1536 + 512);
        let (dense, mixture) = (3 * 7168 * 18_432, 257 * model.ffn_parameters() + 256 * 7168);
        let published = (model.parameters() + 3 * dense - 3 * mixture) as f64;
        assert!((published / 671.03e9 - 1.0).abs() < 1e-3, "{published}");
        // Two operations per active parameter and token, and the attention scores.
        let ffns = 9 * model.ffn_parameters() + 256 * 7168;
        let expected = 2 * 4096 * (attention + ffns) + 2 * 4096 * 4096 * 128 * (192 + 128);
        assert_eq!(model.layer_flops(1), Flops(u128::from(expected)));
    }
}
