//! Collectives of each group of ranks in a training step, with their sizes and counts.
//!
//! Sizes are those of nccl-tests (the larger buffer).
//!
//! Tensor parallelism follows Shoeybi et al. (arXiv 1909.08053): two all_reduces of a layer's activations forward and
//! two backward. Sequence parallelism replaces them by as many all_gathers and reduce_scatters (Korthikanti et al.).
//! The additional gather of its backward pass is hidden behind the GEMM of the weight gradients and is omitted.
//!
//! Expert parallelism follows Lepikhin et al. (arXiv 2006.16668): dispatch and combine, forward and backward. This
//! module contains those that use collectives; calls of dispatch libraries are in `expert_traffic`. Context parallelism
//! passes keys and values around a ring (Liu et al., arXiv 2310.01889).
//!
//! ZeRO is counted as by its authors: a reduce_scatter and an all_gather replace an all_reduce; with sharded weights
//! there is an all_gather in each direction and a reduce_scatter; all three happen once per step if gathered weights
//! and unsharded gradients are retained for it (job/sharding). With hybrid sharding these calls are within a replica's
//! ranks, and an all_reduce among ranks with the same shard follows for each shard of the gradients
//! (`torch/distributed/fsdp/_runtime_utils.py`, `_reduce_grad` of hybrid strategies). Where ranks own whole tensors
//! ([`StatePartition::Tensors`]), gradients are reduced on all ranks, and every owner broadcasts its tensors.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::expert_traffic::{CollectiveTokens, expert_collectives, expert_tokens};
use super::layout::SequenceParallelism;
use super::memory::{ParameterCounts, stage_embedding_parameters};
use super::{Accumulate, Dimension, Layout, StatePartition, Training, WeightLifetime, Zero};

/// Phase of a step in which a call happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Phase {
    /// Forward pass of each layer, per micro-batch.
    LayerForward,
    /// Backward pass of each layer, per micro-batch, including recomputation.
    LayerBackward,
    /// Forward pass of the embedding before the first layer, per micro-batch.
    Embedding,
    /// Backward pass of the logits, per micro-batch.
    Logits,
    /// Pipeline point-to-point transfer between model chunks on different stages, per micro-batch, in each direction.
    PipelineTransfer,
    /// Gathering of weights before the forward pass of each layer, per micro-batch.
    WeightsForward,
    /// Gathering of weights before the backward pass of each layer, per micro-batch.
    WeightsBackward,
    /// Reduction of gradients after each layer, per micro-batch.
    LayerGradients,
    /// Reduction of gradients once per step.
    Gradients,
    /// Gradients of the tied embedding, between the first and the last pipeline stage, once per step after all other
    /// gradients.
    EmbeddingGradients,
    /// Gathering of updated weights once per step, after the optimizer.
    UpdatedWeights,
}

impl Phase {
    /// All phases.
    const ALL: [Self; Self::COUNT] = variants();

    /// Returns the phase with a [name](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Returns the name of the phase in JSON output and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LayerForward => "layer_forward",
            Self::LayerBackward => "layer_backward",
            Self::Embedding => "words",
            Self::Logits => "logits",
            Self::PipelineTransfer => "hand_off",
            Self::WeightsForward => "weights_forward",
            Self::WeightsBackward => "weights_backward",
            Self::LayerGradients => "layer_gradients",
            Self::Gradients => "gradients",
            Self::EmbeddingGradients => "word_gradients",
            Self::UpdatedWeights => "updated",
        }
    }
}

/// Call that all groups of a dimension make concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupCall {
    /// Phase of the step in which the call is made.
    pub phase: Phase,
    /// Dimension whose groups make the call.
    pub dimension: Dimension,
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message size, the larger buffer; for gradients once per step, the total of all buckets.
    pub bytes: Bytes,
    /// Number of calls in each occurrence of the phase.
    pub count: u64,
}

impl GroupCall {
    /// Returns true for pipeline point-to-point transfers between stages.
    #[must_use]
    pub fn is_pipeline_transfer(&self) -> bool {
        self.phase == Phase::PipelineTransfer && self.dimension == Dimension::Pipeline
    }
}

/// Returns all calls of a step. Groups of one rank make no calls.
#[must_use]
pub fn traffic(job: &Training, layout: &Layout) -> Vec<GroupCall> {
    let mut calls = Vec::new();
    layer_calls(job, layout, &mut calls);
    end_stage_calls(job, layout, &mut calls);
    data_parallel_calls(job, layout, &mut calls);
    calls.extend(tied_embedding_call(job, layout));
    calls.retain(|call| layout.size(call.dimension) > 1 && call.bytes.0 > 0 && call.count > 0);
    calls
}

/// Bytes of a micro-batch's activations at a layer boundary, on one context-parallel rank without sequence parallelism.
pub fn activation_bytes(job: &Training, layout: &Layout) -> u64 {
    job.precision.bytes() * job.micro_batch * job.model.seq / u64::from(layout.degrees.context) * job.model.hidden
}

/// Total bytes of a micro-batch's tokens routed to the experts of the most loaded tensor group.
fn routed_bytes(job: &Training, layout: &Layout) -> u64 {
    job.precision.bytes() * job.routed_tokens(layout) * job.model.hidden
}

fn layer_calls(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let activation_bytes = activation_bytes(job, layout);
    // Recomputation repeats the forward pass of a layer, or of its feed-forward.
    let [backward, feed_forward] = [job.recompute.recomputes_layers(), job.recompute.recomputes_feed_forwards()]
        .map(|is_repeated| 1 + u64::from(is_repeated));
    for (phase, times, expert_times) in [(Phase::LayerForward, 1, 1), (Phase::LayerBackward, backward, feed_forward)] {
        let mut add = |dimension, collective, bytes, count| {
            calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count });
        };
        let parts = times + (layout.tensor_parts(&job.model) - 1) * expert_times;
        match layout.degrees.sequence {
            SequenceParallelism::Undivided => add(Dimension::Tensor, Collective::AllReduce, activation_bytes, parts),
            SequenceParallelism::TensorSharded => {
                let LatentGathers { bytes, gathered, reduced } = LatentGathers::new(job, activation_bytes, phase);
                add(Dimension::Tensor, Collective::AllGather, activation_bytes, parts - gathered);
                add(Dimension::Tensor, Collective::ReduceScatter, activation_bytes, parts - reduced);
                add(Dimension::Tensor, Collective::AllGather, bytes, gathered);
                add(Dimension::Tensor, Collective::ReduceScatter, bytes, reduced);
                // Tokens routed to experts whose matrices tensor-parallel ranks divide.
                let (routed_bytes, routed_calls) =
                    (routed_bytes(job, layout), u64::from(layout.gathers_routed_tokens(&job.model)) * expert_times);
                add(Dimension::Tensor, Collective::AllGather, routed_bytes, routed_calls);
                add(Dimension::Tensor, Collective::ReduceScatter, routed_bytes, routed_calls);
            }
        }
        let activation = job.precision.bytes() as f64;
        let tokens = CollectiveTokens {
            tokens: expert_tokens(job, layout) as f64,
            hidden: job.model.hidden as f64,
            top_k: job.model.experts_per_token as f64,
            skew: layout.expert_imbalance(job.skew),
            ranks: f64::from(layout.size(Dimension::Expert)),
            element_bytes: [job.dispatch.stated_element_bytes().unwrap_or(activation).min(activation), activation],
        };
        let exchanged = tokens.calls(job.dispatch.dispatcher).filter(|_| job.model.experts > 0);
        calls.extend(exchanged.into_iter().flat_map(|exchanged| expert_collectives(phase, exchanged, expert_times)));
        let mut add = |dimension, collective, bytes, count| {
            calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count });
        };
        // Keys and values in the forward pass; the backward pass sends them again, together with their gradients.
        let model = job.model.sharded_over(layout.degrees.tensor);
        let width = model.key_width() + model.value_width();
        let kv = activation_bytes / model.hidden * width / u64::from(layout.degrees.tensor);
        let rounds = u64::from(layout.degrees.context) - 1;
        let passes = if phase == Phase::LayerForward { 1 } else { times + 1 };
        add(Dimension::Context, Collective::SendRecv, kv, rounds * passes);
    }
}

/// Numbers and size of the gathers of latent vectors. With latent attention and sequence parallelism, ranks compute
/// latent vectors of their own tokens and gather these instead of the tokens before attention (Megatron Core,
/// `MLASelfAttention`). Queries without a latent vector still need the tokens.
struct LatentGathers {
    bytes: u64,
    /// Number of gathers in a pass of a layer.
    gathered: u64,
    /// Number of reductions of the gathered vectors' gradients in a pass of a layer.
    reduced: u64,
}

impl LatentGathers {
    fn new(job: &Training, activation_bytes: u64, phase: Phase) -> Self {
        let Some(latent) = job.model.latent else { return Self { bytes: 0, gathered: 0, reduced: 0 } };
        let width = latent.query.unwrap_or(job.model.hidden) + latent.cached_width();
        let bytes = activation_bytes / job.model.hidden * width;
        match phase {
            Phase::LayerForward => Self { bytes, gathered: 1, reduced: 0 },
            _ => Self { bytes, gathered: u64::from(job.recompute.recomputes_layers()), reduced: 1 },
        }
    }
}

fn end_stage_calls(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let activation_bytes = activation_bytes(job, layout);
    let tensor = u64::from(layout.degrees.tensor);
    let mut add = |phase, dimension, collective, bytes| {
        calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count: 1 });
    };
    // Each rank has a part of the vocabulary.
    let reduction = match layout.degrees.sequence {
        SequenceParallelism::Undivided => Collective::AllReduce,
        SequenceParallelism::TensorSharded => Collective::ReduceScatter,
    };
    add(Phase::Embedding, Dimension::Tensor, reduction, activation_bytes);
    add(Phase::Logits, Dimension::Tensor, reduction, activation_bytes);
    // Each tensor-parallel rank sends its part. Without sequence parallelism the receivers gather the other parts
    // immediately (Narayanan et al., section 4.1).
    add(Phase::PipelineTransfer, Dimension::Pipeline, Collective::SendRecv, activation_bytes / tensor);
    if layout.degrees.sequence == SequenceParallelism::Undivided && layout.degrees.pipeline > 1 {
        add(Phase::PipelineTransfer, Dimension::Tensor, Collective::AllGather, activation_bytes);
    }
}

fn data_parallel_calls(job: &Training, layout: &Layout, calls: &mut Vec<GroupCall>) {
    let degrees = layout.degrees;
    let tensor = u64::from(degrees.tensor);
    let ParameterCounts { shared, experts } = job.trained_layer_parameters(layout);
    let layer_weights = job.layer_weight_bytes(layout, 1);
    let embedding_parameters = |stage| stage_embedding_parameters(&job.model, layout, stage).div_ceil(tensor);
    let gradient = |parameters: u64| (parameters * u64::from(job.gradient_bits)).div_ceil(8);
    let weight = |parameters: u64| parameters * job.precision.bytes();
    for (dimension, replicas, layer, layer_bytes, embeddings) in [
        (Dimension::Data, Dimension::Replica, shared, layer_weights.shared, 1),
        (Dimension::ExpertData, Dimension::ExpertReplica, experts, layer_weights.experts, 0),
    ] {
        let mut add = |dimension, phase, collective, bytes| {
            calls.push(GroupCall { phase, dimension, collective, bytes: Bytes(bytes), count: 1 });
        };
        // Trained parameters, and bytes of weights whether or not they are trained.
        let stage_parameters = |stage| {
            layer * layout.stage_layers(&job.model, stage)
                + job.trained_end_parameters(embeddings * embedding_parameters(stage))
        };
        let stage_bytes = |stage| {
            layer_bytes * layout.stage_layers(&job.model, stage) + weight(embeddings * embedding_parameters(stage))
        };
        let total = layout.fullest_stages().into_iter().map(stage_parameters).max().unwrap_or_default();
        let total_bytes = layout.fullest_stages().into_iter().map(stage_bytes).max().unwrap_or_default();
        let embedding =
            embeddings * layout.fullest_stages().into_iter().map(embedding_parameters).max().unwrap_or_default();
        if job.zero == Zero::None {
            add(dimension, Phase::Gradients, Collective::AllReduce, gradient(total));
            continue;
        }
        if job.state_partition == StatePartition::Tensors {
            // (All ranks reduce the gradients: among shards first, then among replicas of each part.)
            let part = gradient(total).div_ceil(layout.size(dimension).max(1).into());
            let collective = if layout.size(replicas) > 1 { Collective::ReduceScatter } else { Collective::AllReduce };
            add(dimension, Phase::Gradients, collective, gradient(total));
            if layout.size(replicas) > 1 {
                add(replicas, Phase::Gradients, Collective::AllReduce, part);
                add(dimension, Phase::Gradients, Collective::AllGather, gradient(total));
            }
            let owners = job.tensor_owners(layout, dimension);
            calls.push(GroupCall {
                phase: Phase::UpdatedWeights,
                dimension,
                collective: Collective::Broadcast,
                bytes: Bytes(weight(total).div_ceil(owners)),
                count: owners,
            });
            continue;
        }
        let mut reduce = |phase, parameters| {
            let gradient_bytes = gradient(parameters);
            add(dimension, phase, Collective::ReduceScatter, gradient_bytes);
            add(replicas, phase, Collective::AllReduce, gradient_bytes.div_ceil(layout.size(dimension).max(1).into()));
        };
        match job.gradient_accumulation(layout) {
            Accumulate::Whole => reduce(Phase::Gradients, total),
            Accumulate::Shards => {
                reduce(Phase::LayerGradients, layer);
                reduce(Phase::Gradients, job.trained_end_parameters(embedding));
            }
        }
        let (gather_phases, updated) = match job.weight_lifetime(layout) {
            // Frozen weights are gathered only where they are sharded.
            WeightLifetime::Step if job.zero == Zero::Weights => (&[][..], total_bytes),
            WeightLifetime::Step => (&[][..], weight(total)),
            WeightLifetime::MicroBatch => (&[Phase::WeightsForward][..], weight(embedding)),
            WeightLifetime::Pass => (&[Phase::WeightsForward, Phase::WeightsBackward][..], weight(embedding)),
        };
        gather_phases.iter().for_each(|&phase| add(dimension, phase, Collective::AllGather, layer_bytes));
        add(dimension, Phase::UpdatedWeights, Collective::AllGather, updated);
    }
}

/// All_reduce of the tied embedding's gradients between first and last stage: all of them, or the shard that a rank
/// stores (Megatron Core, `_allreduce_word_embedding_grads`).
fn tied_embedding_call(job: &Training, layout: &Layout) -> Option<GroupCall> {
    let parameters = job.model.output_projection_parameters().div_ceil(layout.degrees.tensor.into());
    let shards = match job.gradient_accumulation(layout) {
        Accumulate::Whole => 1,
        Accumulate::Shards => u64::from(layout.size(Dimension::Data)).max(1),
    };
    let bytes = Bytes((parameters.div_ceil(shards) * u64::from(job.gradient_bits)).div_ceil(8));
    let (phase, dimension, collective) =
        (Phase::EmbeddingGradients, Dimension::FirstAndLastStage, Collective::AllReduce);
    (job.model.untied_embeddings == 0 && job.lora.is_none()).then_some(GroupCall {
        phase,
        dimension,
        collective,
        bytes,
        count: 1,
    })
}

#[cfg(test)]
mod tests;
