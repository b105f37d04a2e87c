//! Low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): the trained matrices next to frozen weights.
//!
//! A linear layer with the frozen weights W (d × k) gets two matrices of rank r, A (r × k) and B (d × r), and computes
//! W x + B A x. Tensor-parallel ranks divide the dimension of W that they divide, and replicate the other matrix (vLLM,
//! `vllm/lora/layers/column_parallel_linear.py` and `row_parallel_linear.py`), so that a rank has r (k + d) parameters
//! of its part of W.

use serde::Deserialize;
use strum::{EnumCount, VariantArray};

use super::memory::ParameterCounts;
use super::{Layout, Model, Precision, Training, WeightMatrix, rank_parameters};
use fabricast_topologies::variants::variants;

/// Linear layer that may have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumCount, VariantArray)]
pub enum AdapterTarget {
    /// Projection of the queries.
    Query,
    /// Projection of the keys.
    Key,
    /// Projection of the values.
    Value,
    /// Projection of the attention output.
    Output,
    /// Gate of the feed-forward.
    Gate,
    /// Up-projection of the feed-forward.
    Up,
    /// Down-projection of the feed-forward.
    Down,
}

impl AdapterTarget {
    /// All targets, in the order of a layer.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Targets of attention.
    pub const ATTENTION: [Self; 4] = [Self::Query, Self::Key, Self::Value, Self::Output];

    /// Returns the name of the target in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q",
            Self::Key => "k",
            Self::Value => "v",
            Self::Output => "o",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Returns the target with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Returns true if a layer of the model has this linear layer.
    #[must_use]
    pub fn exists_in(self, model: &Model) -> bool {
        self != Self::Gate || model.ffn_matrices == 3
    }

    /// Returns the part of the linear layer on one of `tensor` tensor-parallel ranks.
    #[must_use]
    pub fn matrix(self, model: &Model, tensor: u32) -> WeightMatrix {
        let (model, ranks) = (&model.sharded_over(tensor), u64::from(tensor));
        let from_hidden = |columns: u64| WeightMatrix { inner: model.hidden, columns: columns / ranks };
        let to_hidden = |inner: u64| WeightMatrix { inner: inner / ranks, columns: model.hidden };
        match self {
            Self::Query => from_hidden(model.query_width()),
            Self::Key => from_hidden(model.key_width()),
            Self::Value => from_hidden(model.value_width()),
            Self::Output => to_hidden(model.attention_output_width()),
            Self::Gate | Self::Up => from_hidden(model.ffn),
            Self::Down => to_hidden(model.ffn),
        }
    }
}

/// Shape of an adapter: its rank and the linear layers that it changes, in all layers of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// Rank of the matrices, at least 1.
    pub rank: u64,
    /// Linear layers with matrices, in the order of a layer.
    pub targets: Vec<AdapterTarget>,
}

impl Adapter {
    /// Returns those of the given targets that the adapter changes.
    pub fn among<'a>(&'a self, targets: &'a [AdapterTarget]) -> impl Iterator<Item = AdapterTarget> + 'a {
        self.targets.iter().copied().filter(|target| targets.contains(target))
    }

    /// Returns true if the adapter changes one of the given linear layers.
    #[must_use]
    pub fn changes(&self, targets: &[AdapterTarget]) -> bool {
        self.among(targets).next().is_some()
    }

    /// Number of parameters of a layer on one of `tensor` tensor-parallel ranks.
    #[must_use]
    pub fn layer_parameters(&self, model: &Model, tensor: u32) -> u64 {
        let matrix_parameters = |target: &AdapterTarget| {
            let WeightMatrix { inner, columns } = target.matrix(model, tensor);
            self.rank * (inner + columns)
        };
        self.targets.iter().map(matrix_parameters).sum()
    }

    /// Number of parameters in all layers.
    #[must_use]
    pub fn parameters(&self, model: &Model) -> u64 {
        model.layers * self.layer_parameters(model, 1)
    }

    /// Number of matrices of a layer: two for each target.
    #[must_use]
    pub fn layer_tensors(&self) -> u64 {
        2 * self.targets.len() as u64
    }
}

/// Training of an adapter with frozen weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Adapter that is trained, in the precision of the job.
    pub adapter: Adapter,
    /// Storage of the frozen weights of layers.
    pub base: BaseWeights,
}

/// Storage of the frozen weights of a model's layers. Embeddings and logits have the precision of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseWeights {
    /// Precision of the job.
    #[default]
    Unquantized,
    /// 4-bit NormalFloat with double quantization (Dettmers et al., QLoRA, arXiv 2305.14314, section 3): 4 bits, an
    /// 8-bit scale for each 64 weights, and a 32-bit scale for each 256 of these. Every pass converts the weights to 16
    /// bits before their GEMM (bitsandbytes, `bitsandbytes/autograd/_functions.py`, `MatMul4Bit`).
    Nf4,
}

impl BaseWeights {
    /// Returns the number of bytes of weights of layers.
    #[must_use]
    pub fn bytes(self, parameters: u64, precision: Precision) -> u64 {
        match self {
            Self::Unquantized => parameters * precision.bytes(),
            Self::Nf4 => parameters.div_ceil(2) + parameters.div_ceil(64) + 4 * parameters.div_ceil(64 * 256),
        }
    }
}

impl Training {
    /// Number of trained parameters of one layer on a rank.
    #[must_use]
    pub fn trained_layer_parameters(&self, layout: &Layout) -> ParameterCounts {
        match &self.lora {
            None => rank_parameters(&self.model, layout, 1, 0),
            Some(lora) => ParameterCounts {
                shared: lora.adapter.layer_parameters(&self.model, layout.degrees.tensor),
                experts: 0,
            },
        }
    }

    /// Number of trained parameters of the whole model.
    #[must_use]
    pub fn trained_model_parameters(&self) -> u64 {
        self.lora.as_ref().map_or_else(|| self.model.parameters(), |lora| lora.adapter.parameters(&self.model))
    }

    /// Number of trained parameters of a rank outside its layers, of `parameters` that it stores.
    #[must_use]
    pub fn trained_end_parameters(&self, parameters: u64) -> u64 {
        if self.lora.is_some() { 0 } else { parameters }
    }

    /// Number of trained tensors of a layer. A matrix of all experts of a rank counts as one tensor.
    #[must_use]
    pub fn trained_layer_tensors(&self) -> u64 {
        let model = Model { experts: self.model.experts.min(1), shared_experts: 0, ..self.model };
        self.lora.as_ref().map_or_else(|| model.layer_tensors(), |lora| lora.adapter.layer_tensors())
    }

    /// Returns the number of bytes of `layers` layers of a rank, of the weights that all tokens use and of the rank's
    /// experts. Adapters are included.
    #[must_use]
    pub fn layer_weight_bytes(&self, layout: &Layout, layers: u64) -> ParameterCounts {
        let ParameterCounts { shared, experts } = rank_parameters(&self.model, layout, layers, 0);
        let base = self.lora.as_ref().map(|lora| lora.base).unwrap_or_default();
        let adapters = self.lora.as_ref().map_or(0, |lora| {
            layers * lora.adapter.layer_parameters(&self.model, layout.degrees.tensor) * self.precision.bytes()
        });
        ParameterCounts {
            shared: base.bytes(shared, self.precision) + adapters,
            experts: base.bytes(experts, self.precision),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::tests::job;
    use super::*;
    use crate::job::{footprint, traffic};

    const LLAMA_2_7B: &str =
        "model = { layers = 32, hidden = 4096, heads = 32, ffn = 11008, gated = true, vocab = 32000, seq = 512 }\n";

    fn lora_job(lines: &str) -> Training {
        job(&format!("{LLAMA_2_7B}parallel = {{ tp = 1 }}\nrecompute = \"full\"\n{lines}"))
    }

    /// Rank 64 on all linear layers of Llama 2 7B has 159,907,840 parameters, as peft prints for QLoRA's settings.
    #[test]
    fn adapter_parameters_match_peft() {
        for (keys, expected) in [
            ("lora = { rank = 64, targets = \"all\" }\n", 159_907_840),
            ("lora = { rank = 8, targets = [\"q\", \"v\"] }\n", 4_194_304),
        ] {
            assert_eq!(lora_job(keys).trained_model_parameters(), expected, "{keys}");
        }
    }

    /// Frozen weights have neither gradients nor optimizer states.
    #[test]
    fn only_adapters_have_gradients_and_states() {
        let layout = |job: &Training| Layout::specified_by(job, 1).unwrap().unwrap();
        let full = lora_job("");
        let lora = lora_job("lora = { rank = 64, targets = \"all\" }\n");
        let [full_memory, memory] = [&full, &lora].map(|job| footprint(job, &layout(job)));
        let adapters = lora.trained_model_parameters();
        assert_eq!(memory.weights.0 - full_memory.weights.0, 2 * adapters);
        assert_eq!(memory.gradients.0, 2 * adapters);
        assert_eq!(memory.optimizer.0, 12 * adapters);
        // Double quantization needs 4.127 bits for each of the layers' parameters (QLoRA, section 3).
        let quantized = lora_job("lora = { rank = 64, targets = \"all\", base = \"nf4\" }\n");
        let layers = 32 * full.model.shared_layer_parameters();
        let saved = memory.weights.0 - footprint(&quantized, &layout(&quantized)).weights.0;
        let buffer = 2 * 4096 * 11008;
        assert!(((saved + buffer) as f64 / layers as f64 - (16.0 - 4.127) / 8.0).abs() < 1e-4);
    }

    /// Data-parallel ranks reduce the gradients of adapters only. ZeRO-3 still gathers the frozen weights.
    #[test]
    fn frozen_weights_are_gathered_and_not_reduced() {
        let bytes = |keys: &str, phases: &[&str]| -> u64 {
            let job = job(&format!("{LLAMA_2_7B}parallel = {{ dp = 8 }}\n{keys}"));
            let calls = traffic(&job, &Layout::specified_by(&job, 8).unwrap().unwrap());
            calls.iter().filter(|call| phases.contains(&call.phase.name())).map(|call| call.bytes.0 * call.count).sum()
        };
        let lora = "lora = { rank = 8, targets = [\"q\", \"v\"] }\n";
        assert_eq!(bytes(lora, &["gradients"]), 2 * 4_194_304);
        let sharded = format!("zero = 3\n{lora}");
        assert_eq!(bytes(&sharded, &["layer_gradients"]), 2 * 4_194_304 / 32);
        let gathers = ["weights_forward", "weights_backward"];
        assert_eq!(bytes(&sharded, &gathers) - bytes("zero = 3\n", &gathers), 2 * 2 * 4_194_304 / 32);
        assert_eq!(bytes(&format!("zero = 1\n{lora}"), &["updated"]), 2 * 4_194_304);
    }

    proptest! {
        /// Tensor-parallel ranks divide one matrix of each target and replicate the other. More targets and a higher rank
        /// never reduce the memory, and recomputation never increases it.
        #[test]
        fn memory_grows_with_rank_and_targets(rank in 1u64..256, count in 1usize..7, degree in 0u32..4) {
            let tensor = 1u32 << degree;
            let with = |rank: u64, count: usize| {
                let names: Vec<&str> = AdapterTarget::ALL.iter().take(count).map(|target| target.name()).collect();
                let job = job(&format!(
                    "{LLAMA_2_7B}parallel = {{ tp = {tensor} }}\nflash_attention = true\nlora = {{ rank = {rank}, targets = {names:?} }}\n"
                ));
                let layout = Layout::specified_by(&job, tensor).unwrap().unwrap();
                (footprint(&job, &layout).total().0, job.trained_layer_parameters(&layout).shared)
            };
            let (memory, parameters) = with(rank, count);
            prop_assert!(memory < with(rank + 1, count).0 && memory < with(rank, count + 1).0);
            let model = lora_job("").model;
            let whole: u64 = AdapterTarget::ALL.iter().take(count).map(|target| {
                let WeightMatrix { inner, columns } = target.matrix(&model, 1);
                rank * (inner + columns)
            }).sum();
            let replicated: u64 = AdapterTarget::ALL.iter().take(count).map(|_| rank * 4096).sum();
            prop_assert_eq!(parameters - replicated, (whole - replicated) / u64::from(tensor));
        }
    }
}
