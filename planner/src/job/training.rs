//! A training job: a batch through a model and back, again and again.

use serde::Deserialize;

use super::{
    Accumulate, Collectives, Degrees, Layout, Model, Parallel, Placement, Places, Precision, Reshard, Tier, Zero,
};

/// A training job.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// Its name.
    pub name: String,
    /// What is trained.
    pub model: Model,
    /// What matrix products are computed in.
    pub precision: Precision,
    /// Sequences of a step, on all ranks together.
    pub global_batch: u64,
    /// Sequences of a forward pass of one rank.
    pub micro_batch: u64,
    /// How the work is divided.
    pub parallel: Parallel,
    /// What data-parallel ranks share of the optimizer's state.
    pub zero: Zero,
    /// Ranks that a copy of what `zero` divides is spread over, 2 or more; absent: all that hold copies.
    pub shard: Option<u32>,
    /// Where the optimizer's state is kept. The GPU updates it wherever that is: it comes and goes meanwhile.
    pub optimizer_tier: Tier,
    /// Whether gathered weights are given away after a forward pass; absent: [`Training::gathered`] says.
    pub reshard: Option<Reshard>,
    /// What gradients are added up in; absent: [`Training::accumulated`] says.
    pub accumulate: Option<Accumulate>,
    /// The size of a bucket of gradients, in units of 2²⁰ bytes as PyTorch's `bucket_cap_mb` counts; absent: [`Training::bucket`]
    /// says.
    pub bucket_mb: Option<u32>,
    /// Bits of a gradient on its way between ranks; what is below the precision's own is compression.
    pub gradient_bits: u32,
    /// What the backward pass computes anew.
    pub recompute: Recompute,
    /// Of how many layers of all: the others keep what they compute. Absent: of all.
    pub recompute_layers: Option<u64>,
    /// Whether attention is one kernel that never writes its scores to memory.
    pub attention: Attention,
    /// What kernels are between products.
    pub fusion: Fusion,
    /// Whether a part of what layers add to the residual is dropped out.
    pub dropout: Dropout,
    /// Whether gradients, gathered weights and hand-offs travel while ranks compute.
    pub overlap: Overlap,
    /// Whether what tensor-parallel ranks that divide sequences gather and reduce travels in pieces beside the products that it is for
    /// (Megatron-LM's `--tp-comm-overlap`).
    pub tensor_overlap: Overlap,
    /// Which GPU each rank has.
    pub placement: Placement,
    /// What calls may be done by.
    pub collectives: Collectives,
    /// Who drives the GPUs of a host.
    pub processes: Processes,
    /// The load of the rank with the fullest experts over the mean, 1 or more; [`Layout::fullest`] says how much of it there can be.
    pub skew: f64,
    /// What the job counts for among others, over 0.
    pub weight: f64,
    /// Tokens to train on, for the time and cost to train; unknown where absent.
    pub train_tokens: Option<u64>,
    /// Where it stands.
    pub places: Places,
}

impl Training {
    /// The same job as its layers are done that keep what they compute, where only some are computed anew.
    #[must_use]
    pub fn keeping(&self) -> Option<Self> {
        self.recompute_layers?;
        Some(Self { recompute: Recompute::None, recompute_layers: None, ..self.clone() })
    }

    /// How many layers of a stretch of a stage are computed anew: as many in each as in any other, or one more in those that come first, so
    /// that with another layer no stage keeps more, and none is faster.
    #[must_use]
    pub fn recomputed(&self, layout: &Layout, stage: u32, stretch: u32) -> u64 {
        let layers_of = |stretch: u64| {
            let stages = u64::from(layout.degrees.pipeline).max(1);
            layout.stretch_layers(&self.model, (stretch % stages) as u32, (stretch / stages) as u32)
        };
        let Degrees { pipeline, interleave, .. } = layout.degrees;
        let stretches = u64::from(pipeline) * u64::from(interleave);
        let own = u64::from(stretch) * u64::from(pipeline) + u64::from(stage);
        let Some(some) = self.recompute_layers else { return layers_of(own) };
        // All have so many; where words and scores take the place of layers, others one more than the first and the last.
        let (first, last) = (layers_of(0), layers_of(stretches.saturating_sub(1)));
        let each = first.min(last);
        let in_each = some.min(each * stretches);
        let longer_before = own - u64::from(own > 0 && first == each);
        let more = layers_of(own) > each && longer_before < some - in_each;
        (in_each + stretches - 1).saturating_sub(own) / stretches.max(1) + u64::from(more)
    }

    /// Tokens of a micro-batch that come to the experts of the fullest rank, each as often as it goes to one of them. Ranks that have whole
    /// experts send their own part of the tokens to them.
    #[must_use]
    pub fn routed(&self, layout: &Layout) -> u64 {
        let Degrees { tensor, context, .. } = layout.degrees;
        let tokens = self.micro_batch * self.model.seq / u64::from(context);
        let sending = tokens * u64::from(layout.degrees.expert_tensor()) / u64::from(tensor);
        (sending as f64 * self.model.experts_per_token.max(1) as f64 * layout.fullest(self.skew)).round() as u64
    }

    /// How many layers of a stage are computed anew.
    #[must_use]
    pub fn recomputed_of_stage(&self, layout: &Layout, stage: u32) -> u64 {
        (0..layout.degrees.interleave).map(|stretch| self.recomputed(layout, stage, stretch)).sum()
    }
}

/// Who drives the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// A process each: PyTorch's DistributedDataParallel, and all that divides models.
    #[default]
    PerGpu,
    /// One for all, which copies the model to the others anew in each step: PyTorch's DataParallel.
    Single,
}

/// What the backward pass computes anew instead of keeping (Korthikanti et al., arXiv 2205.05198).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// The scores and what follows from them up to their product with the values.
    Selective,
    /// Each layer from its input.
    Full,
    /// The same up to the last tensor that somebody kept, as PyTorch's `checkpoint` does where it is not reentrant: the last product of
    /// a layer is not computed again (`torch/utils/checkpoint.py` from 2.1 on, early stopping).
    #[serde(rename = "early_stop")]
    EarlyStop,
}

impl Recompute {
    /// Whether layers keep nothing but their input.
    #[must_use]
    pub fn is_of_layers(self) -> bool {
        matches!(self, Self::Full | Self::EarlyStop)
    }
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Scores are written to memory, masked, normalised, dropped out and read again.
    #[default]
    Unfused,
    /// One kernel, of the lower triangle only.
    Flash(FlashKernel),
}

/// Which kernel computes attention in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlashKernel {
    /// What libraries of today have for the GPU: FlashAttention-2 on Ampere, cuDNN's or FlashAttention-3 on Hopper.
    #[default]
    Newest,
    /// FlashAttention-2 (Dao, arXiv 2307.08691).
    Second,
    /// The first (Dao et al., arXiv 2205.14135).
    First,
}

/// What kernels are between products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Written for what they do, as those of Megatron-LM and Transformer Engine; the loss goes over the scores in 32 bits.
    #[default]
    Fused,
    /// What torch.compile makes of a layer and of the loss.
    Compiled,
    /// One for each operator of the model's code.
    Eager,
}

/// Whether a part of what layers add to the residual is dropped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropout {
    /// It is, and which is kept in a mask of a byte each.
    On,
    /// All of it stays.
    Off,
}

/// Whether communication that nothing waits for runs beside computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// It does.
    #[default]
    On,
    /// Each call is waited for.
    Off,
}
