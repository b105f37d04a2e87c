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
    /// Width of the feed-forward, of each expert where there are several.
    pub ffn: u64,
    /// Whether a third matrix gates the feed-forward (SwiGLU), as a factor: matrices, 2 or 3.
    pub ffn_matrices: u64,
    /// Words of the vocabulary.
    pub vocab: u64,
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
    /// Width of all queries.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.head * self.heads
    }

    /// Width of all keys, or of all values.
    #[must_use]
    pub fn kv_width(&self) -> u64 {
        self.head * self.kv_heads
    }

    /// Feed-forwards that a token goes through.
    #[must_use]
    pub fn ffns_per_token(&self) -> u64 {
        self.experts_per_token.max(1) + self.shared_experts
    }

    /// Whether linear layers have biases: those of models without gates do.
    fn biases(&self) -> u64 {
        u64::from(self.ffn_matrices == 2)
    }

    /// Parameters of a layer outside of its feed-forwards: attention and the two norms.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        let (h, q, kv) = (self.hidden, self.query_width(), self.kv_width());
        let biases = self.biases() * (q + 2 * kv + h);
        let norms = if self.ffn_matrices == 2 { 4 * h } else { 2 * h };
        2 * h * q + 2 * h * kv + biases + norms
    }

    /// Parameters of one feed-forward.
    #[must_use]
    pub fn ffn_parameters(&self) -> u64 {
        self.ffn_matrices * self.hidden * self.ffn + self.biases() * (self.ffn + self.hidden)
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
        self.vocab * self.hidden + self.biases() * self.seq * self.hidden
    }

    /// All parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.layers * (self.shared_layer_parameters() + self.expert_layer_parameters()) + self.embedding_parameters()
    }

    /// Operations of a forward pass of so many sequences through one layer: products with weights, those of scores (whole,
    /// as they are counted, whether or not the upper triangle is left out), each token through its experts.
    #[must_use]
    pub fn layer_flops(&self, sequences: u64) -> Flops {
        let (h, kv) = (u128::from(self.hidden), u128::from(self.kv_width()));
        let q = u128::from(self.query_width());
        let (s, tokens) = (u128::from(self.seq), u128::from(sequences) * u128::from(self.seq));
        let attention = 2 * tokens * (2 * h * q + 2 * h * kv) + 4 * tokens * s * q;
        let ffn = 2 * tokens * u128::from(self.ffn_matrices) * h * u128::from(self.ffn);
        let (experts, each) = (u128::from(self.experts), u128::from(self.ffns_per_token()));
        Flops(if experts == 0 { attention + ffn } else { attention + ffn * each + 2 * tokens * h * experts })
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
            ffn: 4 * hidden,
            ffn_matrices: 2,
            vocab: 51_200,
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
    }

    /// Touvron et al. (arXiv 2307.09288): Llama 2 70B has 8 heads of keys and values, 69.0e9 parameters with 32,000 words,
    /// counted with two matrices of words; ours shares one.
    #[test]
    fn gates_and_grouped_heads_are_counted() {
        let llama = Model {
            layers: 80,
            hidden: 8192,
            heads: 64,
            head: 128,
            kv_heads: 8,
            ffn: 28_672,
            ffn_matrices: 3,
            vocab: 32_000,
            seq: 4096,
            experts: 0,
            experts_per_token: 0,
            shared_experts: 0,
        };
        let both = llama.parameters() + 32_000 * 8192;
        assert!((both as f64 / 68.98e9 - 1.0).abs() < 0.001, "{both}");
        // Experts: each has its own feed-forward, a token takes two of them.
        let experts = Model { experts: 8, experts_per_token: 2, ..llama };
        let more = experts.parameters() - llama.parameters();
        assert_eq!(more, 80 * (7 * llama.ffn_parameters() + 8 * 8192));
        assert!(experts.layer_flops(1).0 < llama.layer_flops(1).0 * 2);
    }
}
