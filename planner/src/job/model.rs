//! A transformer, its parameters and its floating-point operations.
//!
//! Counted after Narayanan et al. (arXiv 2104.04473, section 3 and appendix): a layer with a feed-forward of four times
//! the hidden size has 12 h² + 13 h parameters, and a product of an m × k by a k × n matrix is 2 m k n operations. Grouped
//! queries, gated feed-forwards (three matrices, no biases) and experts change the terms that they change.

/// A number of floating-point operations.
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
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(u128::from(times)))
    }
}

/// Attention whose keys and values are made of one short vector of each token, which is all that is kept of it (multi-head latent
/// attention; DeepSeek-V2, arXiv 2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Latent {
    /// Width of the vector of which queries are made; `None`: of the token itself.
    pub query: Option<u64>,
    /// Width of the vector of which keys and values are made.
    pub kv: u64,
    /// Width of what is rotated by place: of each head's query besides its [`Model::head`], of one key for all heads.
    pub rope: u64,
    /// Width of a head's value.
    pub value: u64,
}

impl Latent {
    /// What is kept of a token: the vector of keys and values, and the key of places.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kv + self.rope
    }

    /// Vectors that are normed: of keys and values, and of queries where there is one.
    #[must_use]
    pub fn normed(&self) -> u64 {
        self.query.unwrap_or(0) + self.kv
    }

    /// All that is made of a token first: these, and the key of places.
    #[must_use]
    pub fn short(&self) -> u64 {
        self.normed() + self.rope
    }
}

/// A decoder of equal layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    /// Transformer layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Width of a head.
    pub head: u64,
    /// Heads of keys and values, which groups of heads share.
    pub kv_heads: u64,
    /// Where keys and values are compressed, how; then `head` is the width of what is not rotated.
    pub latent: Option<Latent>,
    /// Width of the feed-forward, of each expert where there are several.
    pub ffn: u64,
    /// Whether a third matrix gates the feed-forward (SwiGLU), as a factor: matrices, 2 or 3.
    pub ffn_matrices: u64,
    /// Whether linear layers have biases, as a factor: 0 or 1.
    pub biases: u64,
    /// Words of the vocabulary.
    pub vocab: u64,
    /// Whether words are scored with a matrix of their own, not with the one in which they are looked up, as a factor: 0 or 1.
    pub untied: u64,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Experts of a layer; 0: one feed-forward for all tokens.
    pub experts: u64,
    /// Experts that a token goes to.
    pub experts_per_token: u64,
    /// Experts that every token goes to besides (Dai et al., DeepSeekMoE, arXiv 2401.06066).
    pub shared_experts: u64,
}

impl Model {
    /// As so many tensor-parallel ranks hold it together. Where there are fewer heads of keys and values than ranks each has a whole one, so
    /// that there are as many (vLLM, `QKVParallelLinear`: `num_kv_head_replicas`).
    #[must_use]
    pub fn held_by(&self, ranks: u32) -> Self {
        Self { kv_heads: self.kv_heads.max(ranks.into()), ..*self }
    }

    /// Width of a head's query and of its key, whose product is a score.
    #[must_use]
    pub fn score_width(&self) -> u64 {
        self.head + self.latent.map_or(0, |latent| latent.rope)
    }

    /// Width of a head's value.
    #[must_use]
    pub fn head_value(&self) -> u64 {
        self.latent.map_or(self.head, |latent| latent.value)
    }

    /// Width of all queries.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.score_width() * self.heads
    }

    /// Width of all keys.
    #[must_use]
    pub fn key_width(&self) -> u64 {
        self.score_width() * self.kv_heads
    }

    /// Width of all values.
    #[must_use]
    pub fn value_width(&self) -> u64 {
        self.head_value() * self.kv_heads
    }

    /// Width of what all heads found.
    #[must_use]
    pub fn found_width(&self) -> u64 {
        self.head_value() * self.heads
    }

    /// Width of what attention is given and gives, of a token: queries, keys, values, what heads found.
    #[must_use]
    pub fn attention_width(&self) -> u64 {
        self.query_width() + self.key_width() + self.value_width() + self.found_width()
    }

    /// Width of what is made of a short vector of keys and values: keys of all heads, but for their part that is rotated, and values.
    #[must_use]
    pub fn unfolded_width(&self) -> u64 {
        self.heads * (self.head + self.head_value())
    }

    /// Elements of the matrices that make queries, keys and values of a token.
    fn projections(&self) -> u64 {
        let h = self.hidden;
        match self.latent {
            None => h * (self.query_width() + self.key_width() + self.value_width()),
            Some(latent) => {
                let queries = latent.query.map_or(h * self.query_width(), |rank| rank * (h + self.query_width()));
                queries + h * latent.kept() + latent.kv * self.unfolded_width()
            }
        }
    }

    /// Feed-forwards that a token goes through.
    #[must_use]
    pub fn ffns_per_token(&self) -> u64 {
        self.experts_per_token.max(1) + self.shared_experts
    }

    /// Parameters of a layer outside of its feed-forwards: attention and the two norms.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        let (h, found) = (self.hidden, self.found_width());
        let biases = self.biases * (self.attention_width() - found + h);
        let norms = if self.ffn_matrices == 2 { 4 * h } else { 2 * h };
        let latent = self.latent.map_or(0, |latent| latent.normed());
        self.projections() + h * found + biases + norms + latent
    }

    /// Parameters of a layer that every tensor-parallel rank has whole: what makes short vectors, and their norms (Megatron Core,
    /// `MLASelfAttention`: both ways down are duplicated; vLLM: `ReplicatedLinear`).
    #[must_use]
    pub fn whole_layer_parameters(&self) -> u64 {
        self.latent.map_or(0, |latent| self.hidden * latent.short() + latent.normed())
    }

    /// Parameters of one feed-forward.
    #[must_use]
    pub fn ffn_parameters(&self) -> u64 {
        self.ffn_matrices * self.hidden * self.ffn + self.biases * (self.ffn + self.hidden)
    }

    /// Parameters of a layer that every rank needs: all of it but experts that tokens choose.
    #[must_use]
    pub fn shared_layer_parameters(&self) -> u64 {
        let of_tokens = match self.experts {
            0 => self.ffn_parameters(),
            experts => self.hidden * experts + self.shared_experts * self.ffn_parameters(),
        };
        self.attention_parameters() + of_tokens
    }

    /// Parameters of all experts of a layer; 0 where there are none.
    #[must_use]
    pub fn expert_layer_parameters(&self) -> u64 {
        self.experts * self.ffn_parameters()
    }

    /// Parameters before the first layer: words (which the last stage shares), and places in the sequence for models of
    /// the GPT kind; gated ones rotate instead.
    #[must_use]
    pub fn embedding_parameters(&self) -> u64 {
        self.vocab * self.hidden + self.biases * self.seq * self.hidden
    }

    /// Parameters with which words are scored.
    #[must_use]
    pub fn scoring_parameters(&self) -> u64 {
        self.vocab * self.hidden
    }

    /// All parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.layers * (self.shared_layer_parameters() + self.expert_layer_parameters())
            + self.embedding_parameters()
            + self.untied * self.scoring_parameters()
    }

    /// Operations of a forward pass of so many sequences through one layer: products with weights, those of scores (whole,
    /// as they are counted, whether or not the upper triangle is left out), each token through its experts.
    #[must_use]
    pub fn layer_flops(&self, sequences: u64) -> Flops {
        let (h, found) = (u128::from(self.hidden), u128::from(self.found_width()));
        let tokens = u128::from(sequences) * u128::from(self.seq);
        let products = u128::from(self.projections()) + h * found;
        let attention = 2 * tokens * products + self.score_flops(sequences).0;
        let ffn = 2 * tokens * u128::from(self.ffn_matrices) * h * u128::from(self.ffn);
        let (experts, each) = (u128::from(self.experts), u128::from(self.ffns_per_token()));
        Flops(if experts == 0 { attention + ffn } else { attention + ffn * each + 2 * tokens * h * experts })
    }

    /// Those of them that every token has with every other of its sequence: scores, and values by their weight.
    fn score_flops(&self, sequences: u64) -> Flops {
        let met = u128::from(sequences) * u128::from(self.seq) * u128::from(self.seq);
        Flops(2 * met * (u128::from(self.query_width()) + u128::from(self.found_width())))
    }

    /// Operations of the last product, that with the vocabulary.
    #[must_use]
    pub fn logit_flops(&self, sequences: u64) -> Flops {
        Flops(2 * u128::from(sequences) * u128::from(self.seq) * u128::from(self.hidden) * u128::from(self.vocab))
    }

    /// Operations of a step without recomputation: a backward pass is twice the forward one.
    #[must_use]
    pub fn step_flops(&self, sequences: u64) -> Flops {
        (self.layer_flops(sequences) * self.layers + self.logit_flops(sequences)) * 3
    }

    /// Those without the upper triangle of scores, which no token asks for (as FlashAttention's authors count, arXiv 2307.08691, section
    /// 4.1).
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
            untied: 0,
            seq: 2048,
            experts: 0,
            experts_per_token: 0,
            shared_experts: 0,
        }
    }

    /// arXiv 2104.04473, section 5.1: P = 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)).
    #[test]
    fn parameters_are_those_of_the_closed_form() {
        for (layers, hidden, heads, billions) in
            [(96, 12_288, 96, 175.0), (105, 20_480, 128, 530.0), (128, 25_600, 160, 1008.0), (48, 6144, 64, 22.0)]
        {
            let model = gpt(layers, hidden, heads);
            let (l, h, v, s) = (layers as f64, hidden as f64, 51_200.0, 2048.0);
            let closed = 12.0 * l * h * h * (1.0 + 13.0 / (12.0 * h) + (v + s) / (12.0 * l * h));
            assert!((model.parameters() as f64 / closed - 1.0).abs() < 1e-12, "{}", model.parameters());
            assert!((model.parameters() as f64 / (billions * 1e9) - 1.0).abs() < 0.02, "{}", model.parameters());
        }
    }

    /// arXiv 2205.05198, equation 7: 72 B L s h² (1 + s/(6 h) + V/(12 h L)).
    #[test]
    fn operations_are_those_of_the_closed_form() {
        let model = gpt(105, 20_480, 128);
        let (b, l, s, h, v) = (280.0, 105.0, 2048.0, 20_480.0, 51_200.0);
        let closed = 72.0 * b * l * s * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * h * l));
        assert!((model.step_flops(280).0 as f64 / closed - 1.0).abs() < 1e-12);
        // Half of the scores are left out: 72 B L s h² · s/(12 h).
        let upper = 72.0 * b * l * s * h * h * s / (12.0 * h);
        assert!((model.causal_step_flops(280).0 as f64 / (closed - upper) - 1.0).abs() < 1e-12);
    }

    /// Touvron et al. (arXiv 2307.09288): Llama 2 70B has 8 heads of keys and values, 69.0e9 parameters with 32,000 words, counted with
    /// two matrices of words.
    #[test]
    fn gates_and_grouped_heads_are_counted() {
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
            untied: 0,
            seq: 4096,
            experts: 0,
            experts_per_token: 0,
            shared_experts: 0,
        };
        let both = Model { untied: 1, ..llama }.parameters();
        assert_eq!(both, llama.parameters() + 32_000 * 8192);
        assert!((both as f64 / 68.98e9 - 1.0).abs() < 0.001, "{both}");
        // Experts: each has its own feed-forward, a token takes two of them.
        let experts = Model { experts: 8, experts_per_token: 2, ..llama };
        let more = experts.parameters() - llama.parameters();
        assert_eq!(more, 80 * (7 * llama.ffn_parameters() + 8 * 8192));
        assert!(experts.layer_flops(1).0 < llama.layer_flops(1).0 * 2);
    }

    /// DeepSeek-V3 (arXiv 2412.19437, sections 4.2 and 2.2): 61 layers, of which the first 3 have one feed-forward of 18,432 in place
    /// of experts; 671e9 parameters with two matrices of words of 129,280, 37e9 of them at work on a token.
    #[test]
    fn compressed_keys_and_values_are_counted() {
        let model = Model {
            layers: 61,
            hidden: 7168,
            heads: 128,
            head: 128,
            kv_heads: 128,
            latent: Some(Latent { query: Some(1536), kv: 512, rope: 64, value: 128 }),
            ffn: 2048,
            ffn_matrices: 3,
            biases: 0,
            vocab: 129_280,
            untied: 1,
            seq: 4096,
            experts: 256,
            experts_per_token: 8,
            shared_experts: 1,
        };
        // config.json and modeling_deepseek.py of the published weights: q_a 7168 × 1536, q_b 1536 × 128 × 192, kv_a 7168 × 576,
        // kv_b 512 × 128 × 256, o 128 × 128 × 7168, and four norms.
        let attention = 7168 * 1536 + 1536 * 24_576 + 7168 * 576 + 512 * 32_768 + 16_384 * 7168;
        assert_eq!(model.attention_parameters(), attention + 2 * 7168 + 1536 + 512);
        let (dense, chosen) = (3 * 7168 * 18_432, 257 * model.ffn_parameters() + 256 * 7168);
        let published = (model.parameters() + 3 * dense - 3 * chosen) as f64;
        assert!((published / 671.03e9 - 1.0).abs() < 1e-3, "{published}");
        // Two operations for each parameter at work on a token, those of words among them once, and the scores.
        let ffns = 9 * model.ffn_parameters() + 256 * 7168;
        let at_work = 2 * 4096 * (attention + ffns) + 2 * 4096 * 4096 * 128 * (192 + 128);
        assert_eq!(model.layer_flops(1), Flops(u128::from(at_work)));
    }
}
