//! Weight matrices of a model's layers and its logits, as one rank holds them. Training and inference derive their
//! matrix multiplications from them; the numbers of rows and the precisions are theirs.

use super::Model;

/// Weight matrix of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightMatrix {
    /// Width of the input, over which an output element is summed.
    pub inner: u64,
    /// Width of the output.
    pub columns: u64,
}

/// Projections of the hidden states to queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionProjections {
    /// One matrix for queries, keys and values.
    Direct(WeightMatrix),
    /// Latent attention: projections to latent vectors, and from these to the heads of the rank.
    Latent {
        /// Hidden states to all latent vectors and the rotary key. Every rank computes all of them.
        down: WeightMatrix,
        /// Latent vector of the queries, or hidden states if there is none, to the queries.
        queries: WeightMatrix,
        /// Latent vector of keys and values to the keys and values.
        keys_values: WeightMatrix,
    },
}

/// Matrices of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForward {
    /// Width between the matrices.
    pub width: u64,
    /// Up-projection, with the gate if there is one.
    pub up: WeightMatrix,
    /// Down-projection.
    pub down: WeightMatrix,
}

impl FeedForward {
    fn new(model: &Model, width: u64) -> Self {
        Self {
            width,
            up: WeightMatrix { inner: model.hidden, columns: width * (model.ffn_matrices - 1) },
            down: WeightMatrix { inner: width, columns: model.hidden },
        }
    }
}

/// Weight matrices of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMatrices {
    /// Projections to queries, keys and values.
    pub projections: AttentionProjections,
    /// Projection of the attention output.
    pub attention_output: WeightMatrix,
    /// Router of the experts; `None` for dense models.
    pub router: Option<WeightMatrix>,
    /// Shared experts, which count as one feed-forward of their total width; `None` if there are none.
    pub shared_experts: Option<FeedForward>,
    /// Feed-forward of the layer, or of each routed expert.
    pub feed_forward: FeedForward,
}

impl LayerMatrices {
    /// Returns the matrices of a layer on one of `tensor` tensor-parallel ranks, of which `expert_tensor` divide the
    /// matrices of an expert. Both divide the heads and the feed-forward of the model.
    #[must_use]
    pub fn new(model: &Model, tensor: u32, expert_tensor: u32) -> Self {
        let model = &model.sharded_over(tensor);
        let (tensor, expert_tensor, hidden) = (u64::from(tensor), u64::from(expert_tensor), model.hidden);
        let queries = model.query_width() / tensor;
        let projections = match model.latent {
            None => AttentionProjections::Direct(WeightMatrix {
                inner: hidden,
                columns: (model.query_width() + model.key_width() + model.value_width()) / tensor,
            }),
            Some(latent) => AttentionProjections::Latent {
                down: WeightMatrix { inner: hidden, columns: latent.latent_width() },
                queries: WeightMatrix { inner: latent.query.unwrap_or(hidden), columns: queries },
                keys_values: WeightMatrix { inner: latent.kv, columns: model.kv_up_projection_width() / tensor },
            },
        };
        Self {
            projections,
            attention_output: WeightMatrix { inner: model.attention_output_width() / tensor, columns: hidden },
            router: (model.experts > 0).then_some(WeightMatrix { inner: hidden, columns: model.experts }),
            shared_experts: (model.shared_experts > 0)
                .then(|| FeedForward::new(model, model.ffn / tensor * model.shared_experts)),
            feed_forward: FeedForward::new(model, model.ffn / expert_tensor),
        }
    }
}

/// Returns the output projection (logits) on one of `tensor` tensor-parallel ranks.
#[must_use]
pub fn logits_matrix(model: &Model, tensor: u32) -> WeightMatrix {
    WeightMatrix { inner: model.hidden, columns: model.vocab / u64::from(tensor) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::LatentAttention;

    fn elements(matrix: WeightMatrix) -> u64 {
        matrix.inner * matrix.columns
    }

    fn feed_forward_elements(FeedForward { up, down, .. }: FeedForward) -> u64 {
        elements(up) + elements(down)
    }

    proptest! {
        /// Over all ranks, the matrices have the parameters of a layer without its norms. The down-projections of latent
        /// attention are whole on every rank.
        #[test]
        fn matrices_have_the_parameters_of_a_layer(
            degree in 0u32..3, heads in 1u64..4, head in 1u64..9, gated: bool, latent: Option<Option<u64>>, experts in 0u64..3, shared in 0u64..3
        ) {
            let tensor = 1 << degree;
            let heads = heads * u64::from(tensor);
            let rank = |query: u64| 1 + query % 7;
            let model = Model {
                layers: 1,
                hidden: heads * head,
                heads,
                head,
                kv_heads: heads,
                latent: latent.map(|query| LatentAttention { query: query.map(rank), kv: 5, rope: 3, value: 2 }),
                ffn: 6 * u64::from(tensor),
                ffn_matrices: if gated { 3 } else { 2 },
                biases: 0,
                vocab: 11 * u64::from(tensor),
                untied_embeddings: 0,
                seq: 1,
                experts: 2 * experts,
                experts_per_token: experts.min(1),
                shared_experts: if experts > 0 { shared } else { 0 },
                expert_groups: None,
                query_key_norm: super::super::QueryKeyNorm::Heads,
            };
            let matrices = LayerMatrices::new(&model, tensor, tensor);
            let (whole, divided) = match matrices.projections {
                AttentionProjections::Direct(matrix) => (0, elements(matrix)),
                AttentionProjections::Latent { down, queries, keys_values } => {
                    (elements(down), elements(queries) + elements(keys_values))
                }
            };
            let shared = matrices.shared_experts.map_or(0, feed_forward_elements);
            let feed_forwards = matrices.feed_forward;
            let routed = feed_forward_elements(feed_forwards) * model.experts.max(1);
            let divided = divided + elements(matrices.attention_output) + shared + routed;
            let router = matrices.router.map_or(0, elements);
            let norms = if gated { 2 } else { 4 } * model.hidden;
            let latent_norms = model.latent.map_or(0, |latent| latent.normalized_width());
            prop_assert_eq!(
                whole + router + divided * u64::from(tensor) + norms + latent_norms,
                model.shared_layer_parameters() + model.expert_layer_parameters()
            );
            prop_assert_eq!(
                elements(logits_matrix(&model, tensor)) * u64::from(tensor),
                model.output_projection_parameters()
            );
        }
    }
}
