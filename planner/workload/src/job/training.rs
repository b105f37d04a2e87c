//! Training jobs: a model with its batch, precision, parallelism and memory-saving settings.

use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::{
    Accumulate, Checkpointing, CollectiveCandidates, Degrees, Dimension, Dispatch, ExpertOverlap, JobSpans, Layout,
    Lora, Model, Parallel, Placement, Precision, Reshard, StatePartition, Tier, Zero,
};

/// Training job: a model, its batch, and the configuration of the training software.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// Name of the job.
    pub name: String,
    /// Model that is trained.
    pub model: Model,
    /// Precision of GEMMs, which determines the precision of weights and activations.
    pub precision: Precision,
    /// Global batch size: sequences per step over all ranks.
    pub global_batch: u64,
    /// Micro-batch size: sequences per forward pass of a rank.
    pub micro_batch: u64,
    /// Adapter that is trained instead of the weights, which are frozen; `None` for all weights.
    pub lora: Option<Lora>,
    /// Parallel degrees, fixed or to be searched.
    pub parallel: Parallel,
    /// ZeRO stage: the states that data-parallel ranks shard.
    pub zero: Zero,
    /// Number of ranks over which one replica's states are sharded, at least 2; `None` for all ranks that hold
    /// replicas.
    pub shard: Option<u32>,
    /// Memory tier of the optimizer states. The GPU updates them in any tier; outside HBM they are transferred for the
    /// update.
    pub optimizer_tier: Tier,
    /// Memory tier of the sharded weights, which are read for each gather (DeepSpeed, `offload_param`). Only with ZeRO
    /// stage 3 if it is not HBM.
    pub weights_tier: Tier,
    /// Division of the optimizer states among ranks.
    pub state_partition: StatePartition,
    /// Device that computes the optimizer update.
    pub optimizer_device: OptimizerDevice,
    /// Bits of each of Adam's two moments.
    pub moment_bits: u32,
    /// 32-bit copy of narrower weights.
    pub master_weights: MasterWeights,
    /// Buffers of the software on each GPU: gathered weights in advance, buckets, temporaries of the optimizer.
    pub buffers: Bytes,
    /// Addition of weight gradients over micro-batches.
    pub gradient_addition: GradientAddition,
    /// Temporary copies of the parameters in 32 bits that the optimizer's kernels write: 0 for one fused kernel.
    pub optimizer_temporaries: u64,
    /// Gradients that the optimizer reads.
    pub updated_gradients: UpdatedGradients,
    /// NCCL's connection of a communicator's algorithms.
    pub connection: AlgorithmConnection,
    /// Number of pieces in which logits and loss are computed, each of which is freed before the next; at least 1.
    pub loss_chunks: u64,
    /// Launch of the step's kernels by the host.
    pub launch: LaunchMode,
    /// Time at which gathered weights are released; `None` for the default of [`Training::weight_lifetime`].
    pub reshard: Option<Reshard>,
    /// Accumulation of gradients; `None` for the default of [`Training::gradient_accumulation`].
    pub accumulate: Option<Accumulate>,
    /// Gradient bucket size in MiB, as in PyTorch's `bucket_cap_mb`; `None` for the default of [`Training::bucket`].
    pub bucket_mb: Option<u32>,
    /// Bits of a gradient in communication; fewer than the precision's means compression.
    pub gradient_bits: u32,
    /// Extent of activation recomputation.
    pub recompute: Recompute,
    /// Number of layers with recomputation; the others retain their activations. `None` for all.
    pub recompute_layers: Option<u64>,
    /// Attention implementation: unfused or one fused kernel.
    pub attention: Attention,
    /// Fusion of elementwise and normalization kernels; `None` if neither the kernels nor the software are stated.
    pub fusion: Option<KernelFusion>,
    /// Dropout on the outputs of layers.
    pub dropout: Dropout,
    /// Overlap of gradients, gathered weights and pipeline transfers with computation.
    pub overlap: Overlap,
    /// Overlap of sequence-parallel gathers and reductions with their GEMMs, in pieces (Megatron-LM's
    /// `--tp-comm-overlap`).
    pub tensor_overlap: Overlap,
    /// Placement of ranks on GPUs.
    pub placement: Placement,
    /// Candidate strategies for the job's collectives.
    pub collectives: CollectiveCandidates,
    /// Number of processes that drive the GPUs of a host: one, or one per GPU.
    pub processes: Processes,
    /// Load of the rank with the most loaded experts, divided by the mean; at least 1. [`Layout::expert_imbalance`]
    /// limits it.
    pub skew: f64,
    /// Dispatch and combine of experts' tokens.
    pub dispatch: Dispatch,
    /// Weight of the job among several jobs, above 0.
    pub weight: f64,
    /// Number of tokens to train on, for the time and cost of training; `None` if unknown.
    pub train_tokens: Option<u64>,
    /// Checkpoints, for the time that they and failures take; `None` if the job states nothing about them.
    pub checkpoint: Option<Checkpointing>,
    /// Source locations of the job's parts.
    pub spans: JobSpans,
}

impl Training {
    /// Returns true if exchanges of experts overlap with the computation of another micro-batch: ranks have different
    /// experts, and a step has a second micro-batch.
    #[must_use]
    pub fn overlaps_experts(&self, layout: &Layout) -> bool {
        self.dispatch.overlap == ExpertOverlap::TwoBatches
            && layout.size(Dimension::Expert) > 1
            && layout.micro_batches(self) > 1
    }

    /// Bytes of optimizer state per parameter: Adam's two moments, and a 32-bit master copy of narrower weights
    /// (Rajbhandari et al., ZeRO, section 3.1: K = 12).
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let has_master = self.precision.bytes() < 4 && self.master_weights == MasterWeights::Kept;
        u64::from(self.moment_bits.div_ceil(8)) * 2 + if has_master { 4 } else { 0 }
    }

    /// Returns the job with recomputation off, which describes the layers that are not recomputed; `None` if all layers
    /// have the same setting.
    #[must_use]
    pub fn without_recomputation(&self) -> Option<Self> {
        self.recompute_layers?;
        Some(Self { recompute: Recompute::None, recompute_layers: None, ..self.clone() })
    }

    /// Number of recomputed layers in a model chunk of a stage. The first chunks may have one more than the others, so
    /// that recomputing one more layer never increases the memory or reduces the time of any stage.
    #[must_use]
    pub fn recomputed_chunk_layers(&self, layout: &Layout, stage: u32, chunk: u32) -> u64 {
        let chunk_layers = |index: u64| {
            let stages = u64::from(layout.degrees.pipeline).max(1);
            layout.chunk_layers(&self.model, (index % stages) as u32, (index / stages) as u32)
        };
        let Degrees { pipeline, interleave, .. } = layout.degrees;
        let chunks = u64::from(pipeline) * u64::from(interleave);
        let index = u64::from(chunk) * u64::from(pipeline) + u64::from(stage);
        let Some(recomputed) = self.recompute_layers else { return chunk_layers(index) };
        // All chunks have this many; if embedding and logits count as layers, the middle chunks may have one more than
        // the first and the last.
        let (first, last) = (chunk_layers(0), chunk_layers(chunks.saturating_sub(1)));
        let min_layers = first.min(last);
        let even_layers = recomputed.min(min_layers * chunks);
        let longer_chunks_before = index - u64::from(index > 0 && first == min_layers);
        let extra = chunk_layers(index) > min_layers && longer_chunks_before < recomputed - even_layers;
        (even_layers + chunks - 1).saturating_sub(index) / chunks.max(1) + u64::from(extra)
    }

    /// Number of tokens of a micro-batch that reach the experts of the most loaded rank, counted once per expert. Ranks
    /// with undivided experts send only their own part of the tokens.
    #[must_use]
    pub fn routed_tokens(&self, layout: &Layout) -> u64 {
        let Degrees { tensor, context, .. } = layout.degrees;
        let tokens = self.micro_batch * self.model.seq / u64::from(context);
        let sent_tokens = tokens * u64::from(layout.degrees.expert_tensor()) / u64::from(tensor);
        (sent_tokens as f64 * self.model.experts_per_token.max(1) as f64 * layout.expert_imbalance(self.skew)).round()
            as u64
    }

    /// Number of recomputed layers of a pipeline stage.
    #[must_use]
    pub fn recomputed_stage_layers(&self, layout: &Layout, stage: u32) -> u64 {
        (0..layout.degrees.interleave).map(|chunk| self.recomputed_chunk_layers(layout, stage, chunk)).sum()
    }
}

/// Device that computes the optimizer update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerDevice {
    /// The GPU, in any memory tier of the state.
    #[default]
    Gpu,
    /// The CPU next to the GPU, from its own memory or its drives, as DeepSpeed's CPUAdam.
    Cpu,
}

/// 32-bit copy of 16-bit weights that the optimizer updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MasterWeights {
    /// The optimizer stores a copy.
    #[default]
    Kept,
    /// The optimizer updates the weights in place.
    Absent,
}

/// Addition of a micro-batch's weight gradients to those of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientAddition {
    /// By the GEMM that computes them (Megatron-LM, `gradient_accumulation_fusion`).
    #[default]
    Gemm,
    /// By one kernel per tensor (PyTorch, `AccumulateGrad`).
    Kernel,
    /// By several kernels through copies in 32 bits: PyTorch adds into a gradient that was set to zero, which is converted and
    /// added to a 32-bit buffer (DeepSpeed, deepspeed/runtime/bf16_optimizer.py, `update_hp_grads`).
    Copies,
}

impl GradientAddition {
    /// Bytes per parameter of the gradients that a rank stores: gradients of `e` bytes, which the passes compute, and
    /// their sum in 32 bits, or only a sum of `reduced` bytes.
    #[must_use]
    pub fn stored_bytes(self, e: u64, reduced: u64) -> u64 {
        match self {
            Self::Copies if e < 4 => e + 4,
            Self::Gemm | Self::Kernel | Self::Copies => reduced,
        }
    }

    /// Bytes of each element of temporary tensors with the gradient of one weight tensor: the gradient that a pass has
    /// computed while it is added to the stored one (`AccumulateGrad`), or its copy in 32 bits.
    #[must_use]
    pub fn temporary_bytes(self, e: u64) -> u64 {
        match self {
            Self::Gemm => 0,
            Self::Kernel => e,
            Self::Copies => e.max(4),
        }
    }

    /// Bytes per parameter and micro-batch in addition to those of the GEMM, for gradients of `e` bytes.
    #[must_use]
    pub fn added_bytes(self, e: u64) -> u64 {
        match self {
            Self::Gemm => 0,
            // Written by the GEMM and read again.
            Self::Kernel => 2 * e,
            // Set to zero e, added 3 e, converted e + 4, added 12, of which the GEMM counts 8 (read and write of 32 bits).
            Self::Copies => e + 3 * e + (e + 4) + 12 - 8,
        }
    }
}

/// Gradients that the optimizer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdatedGradients {
    /// The stored gradients.
    #[default]
    Stored,
    /// A flat copy of the stored gradients, converted to 32 bits before the update (DeepSpeed,
    /// deepspeed/runtime/zero/stage_1_and_2.py, `step`, and stage3.py, `_prepare_fp32_grad_for_sub_group`).
    Converted,
}

/// Time at which NCCL allocates the buffers of a communicator's algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlgorithmConnection {
    /// At the first call with the algorithm (NCCL from 2.22 on, `NCCL_RUNTIME_CONNECT`).
    #[default]
    Used,
    /// With the communicator, all algorithms: ring and tree.
    All,
}

/// Launch of the kernels of a step by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchMode {
    /// One call per kernel, on a stream.
    #[default]
    Stream,
    /// One call for a captured CUDA graph.
    Graph,
    /// CUDA graphs of all parts of a layer but dispatch, experts and combine (Megatron-LM, `--cuda-graph-scope attn
    /// moe_router moe_preprocess`).
    GraphWithoutExperts,
}

/// Processes that drive the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// One process per GPU: PyTorch's DistributedDataParallel, and all model parallelism.
    #[default]
    PerGpu,
    /// One process for all GPUs, which copies the model to the others in each step: PyTorch's DataParallel.
    Single,
}

/// Activation recomputation (Korthikanti et al., arXiv 2205.05198).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// No recomputation: all activations are retained.
    #[default]
    None,
    /// Attention scores, and the operations on them up to the multiplication by the values, are recomputed.
    Selective,
    /// Each layer is recomputed from its input.
    Full,
    /// Variant of [`Self::Full`] that stops at the last saved tensor, as PyTorch's non-reentrant `checkpoint` does: the
    /// last GEMM of a layer is not recomputed (`torch/utils/checkpoint.py` from 2.1 on, early stopping).
    #[serde(rename = "early_stop")]
    EarlyStop,
    /// The feed-forward of each layer is recomputed from its input; with experts, the router, dispatch, experts and
    /// combine (Megatron-LM, `--recompute-modules moe mlp`).
    #[serde(rename = "feed_forward")]
    FeedForward,
}

impl Recompute {
    /// Returns true if layers retain only their input.
    #[must_use]
    pub fn recomputes_layers(self) -> bool {
        matches!(self, Self::Full | Self::EarlyStop)
    }

    /// Returns true if feed-forwards, and exchanges of experts' tokens, are repeated in the backward pass.
    #[must_use]
    pub fn recomputes_feed_forwards(self) -> bool {
        self.recomputes_layers() || self == Self::FeedForward
    }
}

/// Attention implementation: unfused or one fused kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Scores are written to memory, masked, normalized, dropped out and read again.
    #[default]
    Unfused,
    /// One fused kernel that computes only the causal half.
    Flash(FlashKernel),
}

/// Version of the fused attention kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlashKernel {
    /// The best of current libraries for the GPU: FlashAttention-2 on Ampere, cuDNN's or FlashAttention-3 on Hopper.
    #[default]
    Newest,
    /// FlashAttention-2 (Dao, arXiv 2307.08691).
    Second,
    /// FlashAttention (Dao et al., arXiv 2205.14135).
    First,
}

/// Fusion of elementwise and normalization kernels by the software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelFusion {
    /// Fused kernels, as in Megatron-LM and Transformer Engine; the loss reads the logits in 32 bits.
    #[default]
    Fused,
    /// Kernels that torch.compile generates for a layer and for the loss.
    Compiled,
    /// One kernel per operator of the model's code (eager mode).
    Eager,
}

/// Dropout on the outputs of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropout {
    /// On; the mask has one byte per element.
    On,
    /// Off: there are no masks.
    Off,
}

/// Overlap of independent communication with computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// On: communication runs concurrently with computation that does not need it.
    #[default]
    On,
    /// Off: computation waits for every call.
    Off,
}
