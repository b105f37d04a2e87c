//! What data-parallel ranks divide among them, and for how long they have the whole of it.
//!
//! Stages after Rajbhandari et al. (ZeRO, arXiv 1910.02054). How long weights stay gathered and when gradients are divided is a
//! choice that memory pays and bytes gain, or the other way round, so both read it here. Left to itself a job does what PyTorch does:
//! without stages of layers every micro-batch gathers weights for each pass and divides its gradients; with stages weights are
//! gathered once a step (torchtitan's default: `reshard_after_forward = not pp_enabled`) and gradients are added up whole until the
//! last backward pass of a stretch, behind which they are reduced (`torch/distributed/pipelining/stage.py`:
//! `backward_maybe_with_nosync`). So does Llama 3 (arXiv 2407.21783, section 3.3.2). What is left of ZeRO's stages 2 and 3 then are the
//! bytes and the memory of stage 1.

use serde::Deserialize;

use super::{Layout, Training};

/// What data-parallel ranks divide among them instead of each keeping a copy (Rajbhandari et al., ZeRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zero {
    /// Nothing: plain data parallelism.
    #[default]
    None,
    /// The optimizer's state.
    Optimizer,
    /// Gradients too.
    Gradients,
    /// Weights too: ZeRO-3, or FSDP with full sharding.
    Weights,
}

/// Whether weights that were gathered for a forward pass are given away after it (FSDP's `reshard_after_forward`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reshard {
    /// They are, and gathered again for the backward pass.
    AfterForward,
    /// They stay for the backward pass; with stages of layers, between whose passes others come, until the last of the step.
    AfterBackward,
}

/// What gradients of several micro-batches are added up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// In each rank's part: every micro-batch reduces its gradients.
    Shards,
    /// In whole gradients on every rank (FSDP's `no_sync`), reduced behind the last micro-batch.
    Whole,
}

/// For how long a rank has whole weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gathered {
    /// For a pass of a layer: gathered for each.
    Pass,
    /// From a micro-batch's forward pass to its backward pass: gathered once for each micro-batch.
    MicroBatch,
    /// For the step, or always: gathered once, after the optimizer.
    Step,
}

impl Training {
    /// For how long ranks of a layout have whole weights.
    #[must_use]
    pub fn gathered(&self, layout: &Layout) -> Gathered {
        let stages = layout.degrees.pipeline > 1;
        match (self.zero, self.reshard) {
            (Zero::None | Zero::Optimizer | Zero::Gradients, _) => Gathered::Step,
            (Zero::Weights, None) if stages => Gathered::Step,
            (Zero::Weights, None | Some(Reshard::AfterForward)) => Gathered::Pass,
            (Zero::Weights, Some(Reshard::AfterBackward)) if stages => Gathered::Step,
            (Zero::Weights, Some(Reshard::AfterBackward)) => Gathered::MicroBatch,
        }
    }

    /// What ranks of a layout add gradients up in.
    #[must_use]
    pub fn accumulated(&self, layout: &Layout) -> Accumulate {
        match (self.zero, self.accumulate) {
            (Zero::None | Zero::Optimizer, _) => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, Some(given)) => given,
            (Zero::Gradients | Zero::Weights, None) if layout.degrees.pipeline > 1 => Accumulate::Whole,
            (Zero::Gradients | Zero::Weights, None) => Accumulate::Shards,
        }
    }

    /// Bytes of a gradient that is kept: those of the precision, or of what it travels in where that is more
    /// (`gradient_bits = 32`: added up in 32 bits, as Megatron-LM's `--accumulate-allreduce-grads-in-fp32`).
    #[must_use]
    pub fn gradient_bytes(&self) -> u64 {
        self.precision.bytes().max(u64::from(self.gradient_bits.div_ceil(8)))
    }
}
