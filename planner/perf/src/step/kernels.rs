//! Kernels of a layer, of the embedding and logits, and of the optimizer, each with its operations and its memory
//! traffic.
//!
//! GEMMs move their two operands and their result once. The kernels between GEMMs are memory-bound
//! ([`super::elementwise`]). Normalization, for example, reads and writes its tokens (in the backward pass it reads
//! tokens and gradients, and writes gradients); dropout with the residual addition reads two tensors and writes one,
//! plus a mask of one byte per element. The figures of the backward pass follow from the formulas of the derivatives.
//! Unfused attention writes its scores, and reads and writes them again for masking with softmax and for dropout
//! (Megatron-LM's fused softmax; Korthikanti et al., figure 3). The GEMM that computes a weight gradient also
//! accumulates it (Megatron-LM's `gradient_accumulation_fusion`); PyTorch's `AccumulateGrad` is a separate kernel.

use fabricast_topologies::Bytes;

use super::adapter_kernels::AdapterKernels;
use super::elementwise::{HeadElements, PassBytes};
use super::kernel::{GemmShape, Kernel, KernelKind, PassKernels};
use super::software_traffic::SoftwareTraffic;
use fabricast_workload::job::{
    Accumulate, AdapterTarget, Attention, AttentionProjections, FeedForward, Flops, GroupCall, LayerMatrices, Layout,
    Phase, Recompute, StepKind, Training, WeightMatrix, logits_matrix,
};

/// Returns the kernels of a layer, for one micro-batch on one rank.
#[must_use]
pub fn layer(job: &Training, layout: &Layout) -> PassKernels {
    let (model, degrees) = (&job.model.sharded_over(layout.degrees.tensor), layout.degrees);
    let (e, tensor) = (job.precision.bytes(), u64::from(degrees.tensor));
    let tokens = job.micro_batch * model.seq / u64::from(degrees.context);
    let elements = tokens * model.hidden / degrees.token_shares();
    let h = model.hidden;
    let matrices = LayerMatrices::new(model, degrees.tensor, degrees.expert_tensor());
    let mut passes = PassKernels::default();
    let software = SoftwareTraffic::new(job);
    let (norm, residual) =
        (software.bytes(|kernels| kernels.norm(elements)), software.bytes(|kernels| kernels.residual(elements)));

    passes.add_stream(gradient_addition(job, layout, job.trained_layer_parameters(layout).total()));
    passes.add_stream(norm);
    projections(job, layout, tokens, matrices.projections, &mut passes);
    let adapters = AdapterKernels::new(job, layout);
    adapters.add(&mut passes, tokens, &[AdapterTarget::Query, AdapterTarget::Key, AdapterTarget::Value]);
    let core = attention(job, layout, tokens);
    passes.forward.extend_from_slice(&core.forward);
    passes.backward.extend_from_slice(&core.backward);
    let heads =
        HeadElements { queries: tokens * model.query_width() / tensor, keys: tokens * model.key_width() / tensor };
    passes.add_stream(software.bytes(|kernels| kernels.heads(heads, tokens * h / tensor)));
    passes.add_weight_gemm(job, KernelKind::Gemm, GemmShape::with_weights(tokens, matrices.attention_output), 1);
    adapters.add(&mut passes, tokens, &[AdapterTarget::Output]);
    passes.add_stream(residual);

    passes.add_stream(norm);
    let feed_forward = passes.forward.len();
    let (routed, local_experts) = match matrices.router {
        None => (tokens, 1),
        Some(router) => {
            let routed = job.routed_tokens(layout);
            passes.add_weight_gemm(job, KernelKind::Gemm16Bit, GemmShape::with_weights(elements / h, router), 1);
            let local_experts = (model.experts / u64::from(degrees.expert)).max(1);
            // Tokens are permuted by destination rank, sorted by expert on arrival if a rank has several experts, and
            // both steps are undone (Megatron Core, `MoEAlltoAllTokenDispatcher`: `permute`, `sort_chunks_by_idxs`,
            // `unpermute`).
            let is_exchanged = degrees.expert > 1;
            let copies = job.dispatch.copies(StepKind::Prefill);
            let is_permuted = copies.by_rank || !is_exchanged;
            let sent = if is_permuted { e * (elements + elements * model.experts_per_token) } else { 0 };
            let is_sorted = copies.by_expert && is_exchanged && local_experts > 1;
            let sorted = if is_sorted { 2 * e * routed * h } else { 0 };
            passes.add_stream(PassBytes { forward: 2 * (sent + sorted), backward: 2 * (sent + sorted) });
            (routed, local_experts)
        }
    };
    if let Some(FeedForward { width, up, down }) = matrices.shared_experts {
        adapters.add_conversion(&mut passes, up, 1);
        adapters.add_conversion(&mut passes, down, 1);
        passes.add_weight_gemm(job, KernelKind::Gemm, GemmShape::with_weights(tokens, up), 1);
        passes.add_stream(software.bytes(|kernels| kernels.activation(tokens * width, tokens * h)));
        passes.add_weight_gemm(job, KernelKind::Gemm, GemmShape::with_weights(tokens, down), 1);
    }
    // The tokens of a rank are divided evenly among its experts.
    let rows = routed.div_ceil(local_experts);
    let add_gemms = |passes: &mut PassKernels, matrix: WeightMatrix| match model.experts {
        0 => passes.add_weight_gemm(job, KernelKind::Gemm, GemmShape::with_weights(rows, matrix), 1),
        _ => passes.add_experts(job, GemmShape::with_weights(rows, matrix), local_experts),
    };
    // Routed experts have no adapters.
    let add_adapters = |passes: &mut PassKernels, matrix: WeightMatrix, targets: &[AdapterTarget]| match model.experts {
        0 => adapters.add(passes, rows, targets),
        _ => adapters.add_conversion(passes, matrix, local_experts),
    };
    let FeedForward { width: f, up, down } = matrices.feed_forward;
    add_gemms(&mut passes, up);
    add_adapters(&mut passes, up, &[AdapterTarget::Gate, AdapterTarget::Up]);
    passes.add_stream(software.bytes(|kernels| kernels.activation(routed * f, routed * h)));
    // The input of the last GEMM is the last saved activation.
    let saved = passes.forward.len();
    add_gemms(&mut passes, down);
    add_adapters(&mut passes, down, &[AdapterTarget::Down]);
    let feed_forward_end = passes.forward.len();
    passes.add_stream(residual);
    // Output widths of the GEMMs with biases: queries, keys and values; attention projection; both GEMMs of the
    // feed-forward layer.
    let biased = tokens * (model.query_width() + model.key_width() + model.value_width()) / tensor
        + elements
        + routed * f
        + elements;
    passes.add_stream(software.bytes(|kernels| kernels.biases(biased)));

    match (job.recompute, job.attention) {
        (Recompute::Full, _) => passes.backward.prepend(&passes.forward.clone()),
        (Recompute::EarlyStop, _) => passes.backward.prepend(&passes.forward[..saved]),
        (Recompute::FeedForward, _) => passes.backward.prepend(&passes.forward[feed_forward..feed_forward_end]),
        // Flash attention recomputes inside its backward kernel, which is already counted.
        (Recompute::Selective, Attention::Unfused) => passes.backward.prepend(&core.forward),
        _ => {}
    }
    passes
}

/// Returns the layers of a model by recomputation setting, with their numbers: layers that are recomputed, and layers
/// that save all activations.
pub(super) fn layers(job: &Training, layout: &Layout) -> Vec<(PassKernels, u64)> {
    let recomputed = job.recompute_layers.unwrap_or(job.model.layers);
    let remaining =
        job.without_recomputation().map(|saving_job| (layer(&saving_job, layout), job.model.layers - recomputed));
    std::iter::once((layer(job, layout), recomputed)).chain(remaining).collect()
}

/// Adds the GEMMs for queries, keys and values. With latent compression, each rank computes the latent vectors of its
/// tokens (of all tokens without sequence parallelism), normalizes them, and expands its own heads from all (Megatron
/// Core, `MLASelfAttention`: both down projections are duplicated `TELinear`, and their outputs are gathered).
fn projections(job: &Training, layout: &Layout, tokens: u64, matrices: AttentionProjections, passes: &mut PassKernels) {
    let (model, tensor) = (&job.model.sharded_over(layout.degrees.tensor), u64::from(layout.degrees.tensor));
    let add_gemm = |passes: &mut PassKernels, rows: u64, matrix: WeightMatrix| {
        passes.add_weight_gemm(job, KernelKind::Gemm, GemmShape::with_weights(rows, matrix), 1);
    };
    let (down, queries, keys_values) = match matrices {
        AttentionProjections::Direct(matrix) => return add_gemm(passes, tokens, matrix),
        AttentionProjections::Latent { down, queries, keys_values } => (down, queries, keys_values),
    };
    let local_tokens = tokens / layout.degrees.token_shares();
    add_gemm(passes, local_tokens, down);
    let normed = local_tokens * model.latent.map_or(0, |latent| latent.normalized_width());
    passes.add_stream(SoftwareTraffic::new(job).bytes(|software| software.norm(normed)));
    add_gemm(passes, tokens, queries);
    add_gemm(passes, tokens, keys_values);
    // The positional key is copied to all heads next to their keys, and both parts of the queries are concatenated.
    let concatenated = 2 * job.precision.bytes() * tokens * (model.query_width() + model.key_width()) / tensor;
    passes.add_stream(PassBytes { forward: concatenated, backward: concatenated });
}

/// Returns, in order, the GEMMs of a pass whose operands are gathered from tensor-parallel ranks before them, or whose
/// results are reduced among these ranks after them. Routed experts have none, because their tokens are exchanged by
/// all-to-all.
pub(super) fn tensor_parallel_gemms(job: &Training, passes: &PassKernels) -> Vec<Kernel> {
    let count = if job.model.experts == 0 || job.model.shared_experts > 0 { 4 } else { 2 };
    // The down projection to latent vectors covers only the tokens of the rank, and keys and values follow the queries.
    let excluded: &[usize] = if job.model.latent.is_some() { &[0, 2] } else { &[] };
    let all = passes.forward.iter().filter(|kernel| kernel.kind == KernelKind::Gemm).enumerate();
    all.filter(|(index, _)| !excluded.contains(index)).map(|(_, kernel)| *kernel).take(count).collect()
}

trait PrependKernels {
    fn prepend(&mut self, first: &[Kernel]);
}

impl PrependKernels for Vec<Kernel> {
    fn prepend(&mut self, first: &[Kernel]) {
        self.splice(0..0, first.iter().copied());
    }
}

/// Returns the traffic of the kernels that add the weight gradients of a micro-batch to those of the step, as a mean
/// over micro-batches. Sharded gradients are added in shards, after their reduction. The first micro-batch needs no
/// addition.
fn gradient_addition(job: &Training, layout: &Layout, parameters: u64) -> PassBytes {
    let micro_batches = layout.micro_batches(job).max(1);
    let bytes = match job.gradient_accumulation(layout) {
        Accumulate::Whole => job.gradient_addition.added_bytes(job.precision.bytes()) * parameters,
        Accumulate::Shards => 0,
    };
    PassBytes {
        forward: 0,
        backward: (u128::from(bytes) * u128::from(micro_batches - 1) / u128::from(micro_batches)) as u64,
    }
}

/// Returns the kernels of attention between the projections: scores, softmax, values.
fn attention(job: &Training, layout: &Layout, tokens: u64) -> PassKernels {
    let model = &job.model.sharded_over(layout.degrees.tensor);
    let (e, tensor) = (job.precision.bytes(), u64::from(layout.degrees.tensor));
    let (score, value) = (model.score_width(), model.head_value());
    let rows = model.seq / u64::from(layout.degrees.context);
    let heads = job.micro_batch * model.heads / tensor;
    let mut passes = PassKernels::default();
    match job.attention {
        Attention::Unfused => {
            let scores = heads * rows * model.seq;
            passes.add_gemm(KernelKind::Gemm16Bit, GemmShape { m: rows, n: model.seq, k: score }, e, heads);
            for bytes in SoftwareTraffic::new(job).kernels(|software| software.attention_scores(scores)) {
                passes.add_stream(bytes);
            }
            passes.add_gemm(KernelKind::Gemm16Bit, GemmShape { m: rows, n: value, k: model.seq }, e, heads);
        }
        Attention::Flash(by) => {
            // Causal masking halves the operations of the forward GEMMs. The backward pass has five GEMMs instead of
            // two (Dao, arXiv 2307.08691, section 4.1).
            let pairs = u128::from(heads) * u128::from(rows) * u128::from(model.seq);
            let bytes = e * tokens * model.attention_width() / tensor;
            // Each round of a context-parallel group is a separate kernel over the keys of one rank.
            let kind = KernelKind::Attention { keys: rows / 2, implementation: by };
            // Scores and the gradients of queries and keys have the score width; values and their gradients have the
            // value width.
            let (forward, backward) = (pairs * u128::from(score + value), pairs * u128::from(3 * score + 2 * value));
            passes.forward.push(Kernel { kind, flops: Flops(forward), bytes: Bytes(bytes) });
            passes.backward.push(Kernel { kind, flops: Flops(backward), bytes: Bytes(2 * bytes) });
        }
    }
    passes
}

/// Returns the kernels of the embedding lookup before the first layer.
#[must_use]
pub fn embedding(job: &Training, layout: &Layout) -> PassKernels {
    let degrees = layout.degrees;
    let tokens = job.micro_batch * job.model.seq / u64::from(degrees.context);
    let bytes = job.precision.bytes() * tokens * job.model.hidden;
    let mut passes = PassKernels::default();
    // A frozen embedding needs no gradients.
    let backward = if job.lora.is_some() { 0 } else { 2 * bytes };
    passes.add_stream(PassBytes { forward: 2 * bytes, backward });
    passes.add_stream(PassBytes {
        forward: 3 * bytes / degrees.token_shares(),
        backward: backward / degrees.token_shares(),
    });
    passes
}

/// Returns the kernels of the output projection (logits) after the last layer, and of the loss.
#[must_use]
pub fn logits(job: &Training, layout: &Layout) -> PassKernels {
    let (model, degrees) = (&job.model, layout.degrees);
    let tensor = u64::from(degrees.tensor);
    let tokens = job.micro_batch * model.seq / u64::from(degrees.context);
    let mut passes = PassKernels::default();
    let matrix = logits_matrix(model, degrees.tensor);
    passes.add_weight_gemm(job, KernelKind::Gemm16Bit, GemmShape::with_weights(tokens, matrix), 1);
    passes.add_stream(gradient_addition(job, layout, job.trained_end_parameters(model.vocab * model.hidden / tensor)));
    let scores = tokens * model.vocab / tensor;
    for bytes in SoftwareTraffic::new(job).kernels(|software| software.logits(scores)) {
        passes.add_stream(bytes);
    }
    passes
}

/// Returns the copy of a layer's weights out of the all-gather buffer, or of its gradients into the reduce-scatter
/// buffer at communication precision, as in PyTorch's FSDP (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
/// `split_with_sizes_copy`, `chunk_cat`); `None` for other calls.
pub(super) fn fsdp_copy(job: &Training, call: &GroupCall) -> Option<Kernel> {
    match call.phase {
        // Gradients that were reduced within groups are reduced among groups in place.
        _ if call.dimension.is_replica_group() => None,
        Phase::WeightsForward | Phase::WeightsBackward => Some(Kernel::stream(2 * call.bytes.0)),
        Phase::LayerGradients => {
            let gradients = 8 * call.bytes.0 / u64::from(job.gradient_bits.max(1));
            Some(Kernel::stream(gradients * job.precision.bytes() + call.bytes.0))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::optimizer;
    use fabricast_workload::job::{Job, KernelFusion, read_job, traffic};

    fn flops(kernels: &[Kernel]) -> u128 {
        kernels.iter().map(|kernel| kernel.flops.0).sum()
    }

    fn read(text: &str) -> Training {
        match read_job(text, "j").unwrap() {
            Job::Training(job) if !text.contains("kernels =") => Training { fusion: Some(KernelFusion::Fused), ..job },
            Job::Training(job) => job,
            other => panic!("{other:?}"),
        }
    }

    fn job(lines: &str) -> Training {
        let text = "name = \"j\"\nglobal_batch = 64\nmodel = { layers = 4, hidden = 1024, heads = 16, vocab = 51200, seq = 512 }\n";
        read(&format!("{text}{lines}"))
    }

    #[test]
    fn kernels_add_up_to_the_models_operations() {
        for tp in [1, 2, 4] {
            let job = job(&format!("parallel = {{ tp = {tp} }}\n"));
            let layout = Layout::specified_by(&job, tp).unwrap().unwrap();
            let (layer, logits) = (layer(&job, &layout), logits(&job, &layout));
            assert_eq!(flops(&layer.forward) * u128::from(tp), job.model.layer_flops(1).0);
            assert_eq!(flops(&layer.backward), 2 * flops(&layer.forward));
            assert_eq!(flops(&logits.forward) * u128::from(tp), job.model.logit_flops(1).0);
        }
    }

    /// Without sequence parallelism each rank computes the latent vectors of all tokens. All other kernels of latent
    /// attention are divided.
    #[test]
    fn latent_projections_follow_sequence_parallelism() {
        for (rank, queries) in [("q_lora_rank = 96, ", 96), ("", 0)] {
            let model = format!(
                "model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 51200, seq = 512, latent = {{ {rank}kv_lora_rank = 64, \
                 qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }} }}\n"
            );
            let measure = |tp: u32, sequence: bool| {
                let parallel = format!("parallel = {{ tp = {tp}, sequence = {sequence} }}");
                let job = read(&format!("name = \"j\"\nglobal_batch = 64\n{parallel}\n{model}"));
                let passes = layer(&job, &Layout::specified_by(&job, tp).unwrap().unwrap());
                assert_eq!(flops(&passes.backward), 2 * flops(&passes.forward));
                (
                    flops(&passes.forward),
                    tensor_parallel_gemms(&job, &passes).iter().map(|one| one.flops.0).collect::<Vec<_>>(),
                    job,
                )
            };
            let ((full, _, job), (half, gemms, _), (unsharded, ..)) =
                (measure(1, false), measure(2, true), measure(2, false));
            assert_eq!(full, job.model.layer_flops(1).0);
            assert_eq!(2 * half, full);
            assert_eq!(2 * unsharded, full + 2 * 512 * 1024 * (queries + 64 + 16));
            let up = 2 * 512 * if queries > 0 { 96 } else { 1024 } * 16 * 48 / 2;
            assert_eq!(gemms, [up, 2 * 512 * 1024 * 16 * 24 / 2, 2 * 512 * 1024 * 2048, 2 * 512 * 1024 * 2048]);
        }
    }

    #[test]
    fn recomputation_adds_forward_operations() {
        let backward_flops = |recompute: &str| {
            let job = job(&format!("parallel = {{ tp = 1 }}\nrecompute = \"{recompute}\"\n"));
            let layout = Layout::specified_by(&job, 1).unwrap().unwrap();
            (flops(&layer(&job, &layout).backward), job)
        };
        let ((none, job), (full, _), (selective, _)) =
            (backward_flops("none"), backward_flops("full"), backward_flops("selective"));
        assert_eq!(full, none + job.model.layer_flops(1).0);
        let last = 2 * u128::from(job.model.seq * job.model.ffn * job.model.hidden);
        assert_eq!(backward_flops("early_stop").0, full - last);
        assert_eq!(selective, none + 4 * 512 * 512 * 1024);
    }

    /// A 16-bit parameter moves 42 bytes per step: 2 read and 4 written for its gradient in 32 bits, 16 read and 12
    /// written by the update, 4 read and 2 written for the weight, 2 to set the gradient to zero. A 32-bit parameter
    /// moves 36 bytes, without conversions.
    #[test]
    fn optimizers_move_the_bytes_of_their_passes() {
        let optimizer_bytes = |lines: &str| -> u64 {
            optimizer(&job(&format!("parallel = {{ tp = 1 }}\n{lines}")), 1000).iter().map(|one| one.bytes.0).sum()
        };
        assert_eq!(
            [optimizer_bytes(""), optimizer_bytes("gradient_bits = 32\n"), optimizer_bytes("precision = \"fp32\"\n")],
            [42_000, 42_000, 36_000]
        );
    }

    /// FSDP copies move 4 bytes per 16-bit weight in each pass, and 6, 4 or 3 bytes per 16-bit gradient that is sent in
    /// 32, 16 or 8 bits.
    #[test]
    fn sharded_weights_and_gradients_are_copied() {
        for (bits, bytes) in [(32, 6), (16, 4), (8, 3)] {
            let job = job(&format!("zero = 3\ngradient_bits = {bits}\nparallel = {{ dp = 4 }}\n"));
            let layout = Layout::specified_by(&job, 4).unwrap().unwrap();
            let copied: Vec<u64> =
                traffic(&job, &layout).iter().filter_map(|call| fsdp_copy(&job, call)).map(|one| one.bytes.0).collect();
            let weights = job.model.shared_layer_parameters();
            assert_eq!(copied, [bytes * weights, 4 * weights, 4 * weights]);
        }
        let unsharded = job("zero = 1\nparallel = { dp = 4 }\n");
        let layout = Layout::specified_by(&unsharded, 4).unwrap().unwrap();
        assert!(traffic(&unsharded, &layout).iter().all(|call| fsdp_copy(&unsharded, call).is_none()));
    }

    /// Each operand of a GEMM with weights adds 2 bytes read and twice 1 byte written: inputs of 3 h, h, h and 4 h
    /// columns in the forward pass, gradients of the outputs in the backward pass. The logits and attention stay in 16
    /// bits.
    #[test]
    fn fp8_gemms_pay_for_casts() {
        let kernel_bytes = |precision: &str| {
            let job = job(&format!("precision = \"{precision}\"\nflash_attention = true\nparallel = {{ tp = 1 }}\n"));
            let layout = Layout::specified_by(&job, 1).unwrap().unwrap();
            let bytes = |kernels: &[Kernel]| kernels.iter().map(|one| one.bytes.0).sum::<u64>();
            let (layer, logits) = (layer(&job, &layout), logits(&job, &layout));
            assert!(logits.forward.iter().all(|one| one.kind != KernelKind::Gemm));
            [bytes(&layer.forward), bytes(&layer.backward), bytes(&logits.forward) + bytes(&logits.backward)]
        };
        let ([forward, backward, logit_bytes], wide) = (kernel_bytes("fp8"), kernel_bytes("bf16"));
        assert_eq!(forward - wide[0], 4 * 512 * (1 + 1 + 1 + 4) * 1024);
        assert_eq!(backward - wide[1], 4 * 512 * (3 + 1 + 4 + 1) * 1024);
        assert_eq!(logit_bytes, wide[2]);
    }

    /// Weight gradients are accumulated in place: two reads and one write in all backward passes, minus the write of
    /// the GEMM.
    #[test]
    fn weight_gradients_are_accumulated_in_place() {
        let bytes = |lines: &str| -> u64 {
            let job = job(&format!("parallel = {{ tp = 1 }}\n{lines}"));
            let layout = Layout::specified_by(&job, 1).unwrap().unwrap();
            layer(&job, &layout).backward.iter().map(|one| one.bytes.0).sum()
        };
        // 16 bits more are read, and 16 more are written.
        let parameters = 12 * 1024 * 1024;
        assert_eq!(bytes("gradient_bits = 32\n") - bytes(""), 4 * parameters);
        // A separate kernel reads the result of the GEMM, in 63 of 64 micro-batches.
        let per_parameter = |addition: &str| {
            let added = bytes(&format!("gradient_addition = \"{addition}\"\n")) - bytes("");
            added as f64 / parameters as f64 * 64.0 / 63.0
        };
        assert!((per_parameter("kernel") - 4.0).abs() < 0.01 && (per_parameter("copies") - 18.0).abs() < 0.05);
        assert_eq!(bytes("zero = 3\ngradient_addition = \"kernel\"\n"), bytes("zero = 3\n"));
    }

    #[test]
    fn expert_operations_match_routed_tokens() {
        let dense = job("parallel = { tp = 1 }\n");
        let text = "name = \"j\"\nglobal_batch = 64\nparallel = { dp = 4, ep = 4 }\nmodel = { layers = 4, hidden = 1024, heads = 16, \
                    vocab = 51200, seq = 512, experts = 8, experts_per_token = 2 }\n";
        let experts = read(text);
        let dense_layer = layer(&dense, &Layout::specified_by(&dense, 1).unwrap().unwrap());
        let expert_layer = layer(&experts, &Layout::specified_by(&experts, 4).unwrap().unwrap());
        let ffn = 2 * 2 * 512 * 1024 * 4096u128;
        // Each expert has 512 rows as the dense layer does, and 64 more are computed to fill tiles.
        assert_eq!(flops(&expert_layer.forward), flops(&dense_layer.forward) + ffn + 2 * ffn / 8 + 2 * 512 * 1024 * 8);
    }

    /// Two experts with 512 rows each and weights of 1,024 × 4,096. Outputs are summed over 1,024 elements, row
    /// gradients over 4,096, and weight gradients over the rows, without partial tiles.
    #[test]
    fn grouped_gemm_inner_dimensions_are_correct() {
        let experts = read(
            "name = \"j\"\nglobal_batch = 64\nparallel = { dp = 4, ep = 4 }\nmodel = { layers = 4, hidden = 1024, heads = 16, \
             vocab = 51200, seq = 512, experts = 8, experts_per_token = 2 }\n",
        );
        let passes = layer(&experts, &Layout::specified_by(&experts, 4).unwrap().unwrap());
        let grouped_gemms = |kernels: &[Kernel]| -> Vec<(u64, u128)> {
            let gemms = kernels.iter().filter_map(|one| match one.kind {
                KernelKind::GroupedGemm { inner } => Some((inner / 2, one.flops.0 / (2 * 2 * 1024 * 4096))),
                _ => None,
            });
            gemms.collect()
        };
        assert_eq!(grouped_gemms(&passes.forward), [(1024, 576), (4096, 576)]);
        assert_eq!(grouped_gemms(&passes.backward), [(4096, 576), (512, 512), (1024, 576), (512, 512)]);
    }

    /// Two copies of each of 512 tokens (1,024 16-bit elements) are dispatched and combined, and sorted by the two
    /// experts of a rank and back. With one expert per rank, or with all experts on one rank, they are sorted once.
    #[test]
    fn expert_tokens_are_permuted_and_sorted() {
        let bytes = |experts: u32, ranks: u32| {
            let text = format!(
                "name = \"j\"\nglobal_batch = 64\nparallel = {{ dp = {ranks}, ep = {ranks} }}\nmodel = {{ layers = 4, hidden = 1024, \
                 heads = 16, vocab = 51200, seq = 512, experts = {experts}, experts_per_token = 2 }}\n"
            );
            let job = read(&text);
            let passes = layer(&job, &Layout::specified_by(&job, ranks).unwrap().unwrap());
            // Elementwise kernels in addition to those of a dense layer.
            let streams = |kernels: &[Kernel]| -> u64 {
                kernels.iter().filter(|one| one.kind == KernelKind::Stream).map(|one| one.bytes.0).sum()
            };
            (streams(&passes.forward), streams(&passes.backward))
        };
        let (one, several, alone) = (bytes(4, 4), bytes(8, 4), bytes(8, 1));
        let (token, copies) = (2 * 512 * 1024, 2 * 2 * 512 * 1024);
        assert_eq!((several.0 - one.0, several.1 - one.1), (4 * copies, 4 * copies));
        assert_eq!(one, alone);
        let dense = job("parallel = { tp = 1 }\n");
        let dense = layer(&dense, &Layout::specified_by(&dense, 1).unwrap().unwrap());
        let streams =
            dense.forward.iter().filter(|one| one.kind == KernelKind::Stream).map(|one| one.bytes.0).sum::<u64>();
        // Two feed-forward layers per token have twice the activation traffic: 2 reads and writes of 4,096 elements.
        assert_eq!(alone.0 - streams, 2 * (token + copies) + 2 * 4 * token);
    }

    /// The GEMMs whose operands tensor-parallel ranks gather, or whose results they reduce, are all of a dense layer,
    /// and those of attention in a layer with routed experts.
    #[test]
    fn tensor_parallel_gemms_exclude_routed_experts() {
        let flops = |model: &str| -> Vec<u128> {
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = 64\nflash_attention = true\nparallel = {{ tp = 2, sequence = true }}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 51200, seq = 512{model} }}\n"
            ));
            let passes = layer(&job, &Layout::specified_by(&job, 2).unwrap().unwrap());
            tensor_parallel_gemms(&job, &passes).iter().map(|one| one.flops.0 / (512 * 1024 * 1024)).collect()
        };
        assert_eq!(flops(""), [3, 1, 4, 4]);
        assert_eq!(flops(", gated = true"), [3, 1, 8, 4]);
        assert_eq!(flops(", experts = 4, experts_per_token = 2"), [3, 1]);
        assert_eq!(flops(", experts = 4, experts_per_token = 2, shared_experts = 1"), [3, 1, 4, 4]);
    }
}
