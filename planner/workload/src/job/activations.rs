//! Activations of a training rank: those retained for the backward pass, those of the layer being recomputed, and
//! logits. They follow Korthikanti et al. (arXiv 2205.05198, equations 1 to 6), term by term.

use fabricast_topologies::Bytes;

use super::{AdapterTarget, Attention, Dropout, KernelFusion, Layout, Recompute, Training};

/// Returns the number of bytes of a logit while the loss is computed: its value and gradient in 32 bits in the same
/// memory, and the computed value, or later its gradient, in 16 bits (Megatron-LM, megatron/core/fusions/fused_cross_entropy.py and
/// tensor_parallel/cross_entropy.py, which convert logits). Compiled losses have no copy in 32 bits. In eager mode, PyTorch stores it in the computed type, its copy in 32 bits, the logarithm of the softmax,
/// and the gradient (torch/nn/functional.py, `cross_entropy`; transformers, `ForCausalLMLoss`, which converts logits to
/// 32 bits).
fn logit_bytes(job: &Training) -> u64 {
    match job.fusion {
        Some(KernelFusion::Eager) => job.precision.bytes() + 3 * 4,
        Some(KernelFusion::Fused) if job.precision.bytes() < 4 => job.precision.bytes() + 4,
        Some(KernelFusion::Fused | KernelFusion::Compiled) | None => 4,
    }
}

/// Returns the size of the activations that a rank of a stage retains, of those of a layer being recomputed, and of the
/// logits on the last stage.
pub(super) fn activations(job: &Training, layout: &Layout, stage: u32) -> Bytes {
    let degrees = layout.degrees;
    let (stages, chunks) = (u64::from(degrees.pipeline), u64::from(degrees.interleave));
    let layers = layout.stage_layers(&job.model, stage);
    let (is_last, index) = (layout.is_last(stage), u64::from(stage));
    // Number of micro-batches whose activations a stage holds. Under 1F1B it is the number of stages from this one to
    // the last. With interleaved chunks, (p − 1) / v of a stage's activations are added (equations 5 and 6); each
    // further stage has two chunks less.
    let in_flight = if chunks > 1 { stages } else { stages - index };
    // If exchanges of experts overlap, the forward pass of another micro-batch runs during a backward pass, and its
    // chunk is held in addition (DualPipe, arXiv 2412.19437, table 2: p + 1 instead of p).
    let overlapped = u64::from(job.overlaps_experts(layout));
    let micro_batches = layout.micro_batches(job);
    let retained = match job.recompute {
        Recompute::Full | Recompute::EarlyStop => layer_input(job, layout),
        Recompute::None | Recompute::Selective | Recompute::FeedForward => {
            layer_activation_bytes(job, layout, job.recompute)
        }
    };
    let unrecomputed = layers - job.recomputed_stage_layers(layout, stage);
    let chunk = (retained * (layers - unrecomputed)
        + layer_activation_bytes(job, layout, Recompute::None) * unrecomputed)
        / chunks;
    let warmup_chunks = if chunks > 1 { (stages - 1).saturating_sub(2 * index) } else { 0 };
    let retained_chunks = (in_flight * chunks + warmup_chunks + overlapped).min(micro_batches * chunks);
    // A recomputed layer temporarily holds all of its activations.
    let recomputed = if job.recompute == Recompute::None || (layers > 0 && unrecomputed == layers) {
        0
    } else {
        layer_activation_bytes(job, layout, Recompute::None)
            - retained.min(layer_activation_bytes(job, layout, Recompute::None))
    };
    let tokens = job.micro_batch * job.model.seq / u64::from(degrees.context);
    // Dropout mask of the embedding.
    let embedding_mask = match (stage, job.dropout) {
        (0, Dropout::On) => {
            tokens * job.model.hidden / degrees.token_shares() * (in_flight + overlapped).min(micro_batches)
        }
        _ => 0,
    };
    // Logits and their 32-bit gradient, for one piece of the tokens.
    let loss_tokens = tokens.div_ceil(job.loss_chunks.max(1));
    let logits =
        (4 * tokens * job.model.hidden + logit_bytes(job) * loss_tokens * job.model.vocab) / u64::from(degrees.tensor);
    let logits = if is_last { logits } else { 0 };
    Bytes(chunk * retained_chunks + recomputed + embedding_mask + logits)
}

/// Returns the size in bytes of a layer's input on a rank, for a micro-batch.
pub(super) fn layer_input(job: &Training, layout: &Layout) -> u64 {
    let tokens = job.micro_batch * job.model.seq / u64::from(layout.degrees.context);
    job.precision.bytes() * tokens * job.model.hidden / layout.degrees.token_shares()
}

/// Returns the number of bytes that a layer retains on a rank for a micro-batch.
pub(super) fn layer_activation_bytes(job: &Training, layout: &Layout, recompute: Recompute) -> u64 {
    let (model, degrees) = (&job.model.sharded_over(layout.degrees.tensor), layout.degrees);
    let (e, tensor) = (job.precision.bytes(), u64::from(degrees.tensor));
    let tokens = job.micro_batch * model.seq / u64::from(degrees.context);
    // Inputs of attention, of the feed-forward layer and of both norms; with dropout, also two masks of one byte per
    // element. Frozen linear layers retain their input only for an adapter.
    let masks = if job.dropout == Dropout::On { 2 } else { 0 };
    let [keeps_attention_input, keeps_ffn_input, keeps_activated] = retained_inputs(job);
    let inputs = 2 + u64::from(keeps_attention_input) + u64::from(keeps_ffn_input);
    let norms_and_dropouts = tokens * model.hidden * (inputs * e + masks) / degrees.token_shares();
    let latent_width = model.latent.map_or(0, |latent| latent.latent_width());
    let attention = tokens * model.attention_width() * e / tensor + tokens * latent_width * e / degrees.token_shares();
    // Feed-forward columns of the tokens that the rank processes, and the tokens copied for routed experts (Megatron
    // Core's dispatchers permute tokens by expert, and GEMMs retain their inputs).
    let (columns, routed_inputs) = match model.experts {
        // Only the input is retained.
        _ if recompute == Recompute::FeedForward => (0, 0),
        0 => (tokens * model.ffn / tensor, 0),
        _ => {
            let routed = job.routed_tokens(layout);
            let shared = tokens * model.shared_experts * model.ffn / tensor;
            (shared + routed * model.ffn / u64::from(degrees.expert_tensor()), routed * model.hidden * e)
        }
    };
    let ffn = columns * (model.ffn_matrices - 1 + u64::from(keeps_activated)) * e + routed_inputs;
    let scores = match (recompute, job.attention) {
        (Recompute::None | Recompute::FeedForward, Attention::Unfused) => {
            let elements =
                job.micro_batch * model.heads / tensor * (model.seq / u64::from(degrees.context)) * model.seq;
            elements * (2 * e + 1)
        }
        _ => 0,
    };
    // In eager mode, RMS norms retain their input in 32 bits and their output, and the output of the activation
    // function is retained in addition to the gated product.
    let unfused = match (job.fusion, model.ffn_matrices) {
        (Some(KernelFusion::Eager), 3) => {
            // The output is retained for the gradient of the norm's weights.
            let output = if job.lora.is_some() { 0 } else { e };
            2 * tokens * model.hidden * (4 + output) / degrees.token_shares() + columns * e
        }
        _ => 0,
    };
    // The product of A and its input is retained for the gradient of B.
    let adapters =
        job.lora.as_ref().map_or(0, |lora| tokens * lora.adapter.rank * lora.adapter.targets.len() as u64 * e);
    norms_and_dropouts + attention + ffn + scores + unfused + adapters
}

/// Returns true for the inputs that linear layers retain for the gradients of their weights or of their adapters: of
/// the projections to queries, keys and values, of the first and of the last matrices of the feed-forward. The input of
/// the output projection is retained by attention in any case. Experts retain their inputs, as their adapters are not
/// modelled.
fn retained_inputs(job: &Training) -> [bool; 3] {
    let groups: [&[AdapterTarget]; 3] = [
        &[AdapterTarget::Query, AdapterTarget::Key, AdapterTarget::Value],
        &[AdapterTarget::Gate, AdapterTarget::Up],
        &[AdapterTarget::Down],
    ];
    groups.map(|targets| job.lora.as_ref().is_none_or(|lora| lora.adapter.changes(targets)))
}
