//! The kernels of a layer, of the words and of the optimizer: operations and bytes of memory of each.
//!
//! Matrix products move their two operands and their result once. What is between them streams ([`super::between`]): normalisation
//! reads and writes its tokens (backward it reads them, their gradients, and writes), dropout with the residual reads two tensors
//! and writes one and a mask of a byte, and so on; the backward figures are read off the formulas of the derivatives.
//! Unfused attention writes its scores, and reads and writes them again for masking with softmax and for dropout
//! (Megatron-LM's fused softmax; Korthikanti et al., figure 3). Gradients of weights are added to a buffer of them, by
//! the product that computes them (Megatron-LM's `gradient_accumulation_fusion`); PyTorch's `AccumulateGrad` is a kernel of its own.

use fabricast_topologies::{Bytes, Picos};

use super::between::{Between, Ways};
use super::{Efficiency, Speeds};
use crate::job::{Attention, FlashKernel, Flops, GroupCall, Layout, Phase, Precision, Recompute, Training};

/// Bytes of a number in 32 bits.
const WHOLE: u64 = 4;

/// What a kernel is, by which it reaches more or less of the GPU ([`Efficiency`](super::Efficiency)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// What is between products, the optimizer's, copies.
    #[default]
    Stream,
    /// A matrix product.
    Product,
    /// One whose sums of 8-bit products are kept exact: backward (Transformer Engine, `use_split_accumulator` of its recipes).
    Exact,
    /// One that keeps 16 bits where others have 8: with all words, of a router, of attention in several kernels (Transformer Engine
    /// and vLLM leave them so).
    Wide,
    /// Attention in one kernel.
    Attention {
        /// That a row of queries meets, in the mean.
        keys: u64,
        /// Which.
        by: FlashKernel,
    },
    /// Products of all experts by one kernel, each with the rows that are its own.
    Experts {
        /// Bytes of a row of an operand: what an element of the result is summed over.
        inner: u64,
    },
}

/// Rows of a tile of such products; an expert's last tile is computed whole and is filled by half in the mean (`torch._grouped_mm`
/// takes as long for 192 rows of each as for 256, `planner/data/h200-steps/products.jsonl`).
const TILE: f64 = 128.0;

/// The rows that are computed for an expert that has so many.
pub(crate) fn tiled(rows: f64) -> f64 {
    (rows + TILE / 2.0).max(TILE)
}

/// What one kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// What it is.
    pub kind: Kind,
    /// Operations of matrix units; those of others hide behind memory.
    pub flops: Flops,
    /// Bytes read and written.
    pub bytes: Bytes,
}

impl Kernel {
    /// One that streams so many bytes.
    pub(crate) fn stream(bytes: u64) -> Self {
        Self { bytes: Bytes(bytes), ..Self::default() }
    }
}

/// The kernels of both passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// Forward.
    pub forward: Vec<Kernel>,
    /// Backward, what is recomputed included.
    pub backward: Vec<Kernel>,
}

impl Passes {
    /// A product of an m × k by a k × n matrix in elements of so many bytes, `times` over; backward there are two of it, for
    /// both operands.
    fn product(&mut self, kind: Kind, (m, n, k): (u64, u64, u64), element: u64, times: u64) {
        let flops = Flops(2 * u128::from(m) * u128::from(n) * u128::from(k) * u128::from(times));
        let bytes = Bytes(element * times * (m * k + k * n + m * n));
        let kernel = Kernel { kind, flops, bytes };
        self.forward.push(kernel);
        self.backward.extend([kernel, kernel]);
    }

    /// The same with weights of a job, the k × n matrix: what is computed of their gradient is read from a buffer of its width and
    /// added to it.
    fn weights(&mut self, job: &Training, kind: Kind, shape: (u64, u64, u64), times: u64) {
        let ((m, n, k), element, gradient) = (shape, job.precision.bytes(), job.gradient_bytes());
        // Products of 8 bits are given operands of 16, read, and written in 8 as they are and transposed: those of the forward pass once
        // for both passes, gradients for both products (TransformerEngine, transformer_engine/common/transpose/cast_transpose.cu).
        let short = (job.precision, kind) == (Precision::Fp8, Kind::Product);
        if short {
            self.stream((4 * times * m * k, 4 * times * m * n));
        }
        self.product(kind, shape, element, times);
        if let [.., of_inputs, of_weights] = self.backward.as_mut_slice() {
            of_weights.bytes = Bytes(of_weights.bytes.0 + (2 * gradient - element) * n * k * times);
            if short {
                (of_inputs.kind, of_weights.kind) = (Kind::Exact, Kind::Exact);
            }
        }
    }

    /// The products of so many experts, each with so many rows of its own, with weights of a job.
    fn experts(&mut self, job: &Training, (rows, n, k): (u64, u64, u64), experts: u64) {
        let element = job.precision.bytes();
        self.weights(job, Kind::Product, (rows, n, k), experts);
        let computed = tiled(rows as f64) / rows.max(1) as f64;
        let by_one_kernel = |kernel: &mut Kernel, inner: u64, computed: f64| {
            kernel.kind = Kind::Experts { inner: element * inner };
            kernel.flops = Flops((kernel.flops.0 as f64 * computed).round() as u128);
        };
        if let Some(forward) = self.forward.last_mut() {
            by_one_kernel(forward, k, computed);
        }
        // Of the gradient of weights an expert's rows are what is summed over.
        if let [.., of_rows, of_weights] = self.backward.as_mut_slice() {
            by_one_kernel(of_rows, n, computed);
            by_one_kernel(of_weights, rows, 1.0);
        }
    }

    fn stream(&mut self, (forward, backward): Ways) {
        self.forward.extend((forward > 0).then(|| Kernel::stream(forward)));
        self.backward.extend((backward > 0).then(|| Kernel::stream(backward)));
    }
}

/// A layer, for one micro-batch on one rank.
#[must_use]
pub fn layer(job: &Training, layout: &Layout) -> Passes {
    let (model, degrees) = (&job.model.held_by(layout.degrees.tensor), layout.degrees);
    let (e, tensor) = (job.precision.bytes(), u64::from(degrees.tensor));
    let tokens = job.micro_batch * model.seq / u64::from(degrees.context);
    let between = tokens * model.hidden / degrees.token_shares();
    let h = model.hidden;
    let mut passes = Passes::default();
    let software = Between::of(job);
    let (norm, added) = (software.norm(between), software.added(between));

    passes.stream(norm);
    projections(job, layout, tokens, &mut passes);
    let core = attention(job, layout, tokens);
    passes.forward.extend_from_slice(&core.forward);
    passes.backward.extend_from_slice(&core.backward);
    let heads = [model.query_width(), model.key_width()].map(|width| tokens * width / tensor);
    passes.stream(software.heads(heads.into(), tokens * h / tensor));
    passes.weights(job, Kind::Product, (tokens, h, model.found_width() / tensor), 1);
    passes.stream(added);

    passes.stream(norm);
    let f = model.ffn / u64::from(degrees.expert_tensor());
    let (routed, matrices) = match model.experts {
        0 => (tokens, 1),
        experts => {
            let routed = job.routed(layout);
            passes.weights(job, Kind::Wide, (between / h, experts, h), 1);
            let matrices = (experts / u64::from(degrees.expert)).max(1);
            // Tokens are sorted by the ranks of their experts, what comes is sorted by experts where there are several, and both are
            // undone (Megatron Core, `MoEAlltoAllTokenDispatcher`: `permute`, `sort_chunks_by_idxs`, `unpermute`).
            let sent = e * (between + between * model.experts_per_token);
            let sorted = if degrees.expert > 1 && matrices > 1 { 2 * e * routed * h } else { 0 };
            passes.stream((2 * (sent + sorted), 2 * (sent + sorted)));
            (routed, matrices)
        }
    };
    // Experts that all tokens go to are one of their joint width.
    if model.shared_experts > 0 {
        let shared = model.ffn / tensor * model.shared_experts;
        passes.weights(job, Kind::Product, (tokens, shared * (model.ffn_matrices - 1), h), 1);
        passes.stream(software.activated(tokens * shared, tokens * h));
        passes.weights(job, Kind::Product, (tokens, h, shared), 1);
    }
    // The rank's experts have a share of the tokens each.
    let each = routed.div_ceil(matrices);
    let products = |passes: &mut Passes, n: u64, k: u64| match model.experts {
        0 => passes.weights(job, Kind::Product, (each, n, k), 1),
        _ => passes.experts(job, (each, n, k), matrices),
    };
    products(&mut passes, f * (model.ffn_matrices - 1), h);
    passes.stream(software.activated(routed * f, routed * h));
    // The last product reads what is the last to be kept.
    let kept = passes.forward.len();
    products(&mut passes, h, f);
    passes.stream(added);
    // Queries, keys and values, what attention gives, and both ends of the feed-forward.
    let biased = tokens * (model.query_width() + model.key_width() + model.value_width()) / tensor
        + between
        + routed * f
        + between;
    passes.stream(software.biases(biased));

    match (job.recompute, job.attention) {
        (Recompute::Full, _) => passes.backward.extend_from_within_front(&passes.forward.clone()),
        (Recompute::EarlyStop, _) => passes.backward.extend_from_within_front(&passes.forward[..kept]),
        // Flash attention does it in the kernel that it counts backward anyway.
        (Recompute::Selective, Attention::Unfused) => passes.backward.extend_from_within_front(&core.forward),
        _ => {}
    }
    passes
}

/// All layers of a model, by how they are done: those that compute something anew, and where others keep what they compute, these.
pub(super) fn layers(job: &Training, layout: &Layout) -> Vec<(Passes, u64)> {
    let anew = job.recompute_layers.unwrap_or(job.model.layers);
    let whole = job.keeping().map(|keeping| (layer(&keeping, layout), job.model.layers - anew));
    std::iter::once((layer(job, layout), anew)).chain(whole).collect()
}

/// The products that make queries, keys and values. Where these are compressed, every rank makes the short vectors of its tokens (of all,
/// where sequences are whole), norms them, and makes its own heads' of all (Megatron Core, `MLASelfAttention`: both ways down are
/// `TELinear` that ranks duplicate, and what they made is gathered).
fn projections(job: &Training, layout: &Layout, tokens: u64, passes: &mut Passes) {
    let (model, tensor) = (&job.model.held_by(layout.degrees.tensor), u64::from(layout.degrees.tensor));
    let Some(latent) = model.latent else {
        let columns = (model.query_width() + model.key_width() + model.value_width()) / tensor;
        return passes.weights(job, Kind::Product, (tokens, columns, model.hidden), 1);
    };
    let own = tokens / layout.degrees.token_shares();
    passes.weights(job, Kind::Product, (own, latent.short(), model.hidden), 1);
    let (e, normed) = (job.precision.bytes(), own * latent.normed());
    passes.stream(Between::of(job).norm(normed));
    passes.weights(job, Kind::Product, (tokens, model.query_width() / tensor, latent.query.unwrap_or(model.hidden)), 1);
    passes.weights(job, Kind::Product, (tokens, model.unfolded_width() / tensor, latent.kv), 1);
    // The key of places is written to all heads beside what they made, and both parts of queries are put together.
    let joined = 2 * e * tokens * (model.query_width() + model.key_width()) / tensor;
    passes.stream((joined, joined));
}

/// The products of a pass that tensor-parallel ranks divide among them with what they gather before and reduce after, in this order: of
/// experts that tokens choose none, whose tokens travel otherwise.
pub(super) fn divided(job: &Training, passes: &Passes) -> Vec<Kernel> {
    let products = if job.model.experts == 0 || job.model.shared_experts > 0 { 4 } else { 2 };
    // Of short vectors: what makes them is of a rank's own tokens, and keys and values follow queries.
    let aside: &[usize] = if job.model.latent.is_some() { &[0, 2] } else { &[] };
    let all = passes.forward.iter().filter(|kernel| kernel.kind == Kind::Product).enumerate();
    all.filter(|(place, _)| !aside.contains(place)).map(|(_, kernel)| *kernel).take(products).collect()
}

trait Front {
    fn extend_from_within_front(&mut self, first: &[Kernel]);
}

impl Front for Vec<Kernel> {
    fn extend_from_within_front(&mut self, first: &[Kernel]) {
        self.splice(0..0, first.iter().copied());
    }
}

/// Between the products with weights: scores, softmax, values.
fn attention(job: &Training, layout: &Layout, tokens: u64) -> Passes {
    let model = &job.model.held_by(layout.degrees.tensor);
    let (e, tensor) = (job.precision.bytes(), u64::from(layout.degrees.tensor));
    let (score, value) = (model.score_width(), model.head_value());
    let rows = model.seq / u64::from(layout.degrees.context);
    let heads = job.micro_batch * model.heads / tensor;
    let mut passes = Passes::default();
    match job.attention {
        Attention::Unfused => {
            let scores = heads * rows * model.seq;
            passes.product(Kind::Wide, (rows, model.seq, score), e, heads);
            let [normalised, dropped] = Between::of(job).attention_scores(scores);
            passes.stream(normalised);
            passes.stream(dropped);
            passes.product(Kind::Wide, (rows, value, model.seq), e, heads);
        }
        Attention::Flash(by) => {
            // Half of the products forward; backward five in place of two (Dao, arXiv 2307.08691, section 4.1).
            let met = u128::from(heads) * u128::from(rows) * u128::from(model.seq);
            let bytes = e * tokens * model.attention_width() / tensor;
            // Rounds of a context-parallel group are kernels of their own, each with the keys of a rank.
            let kind = Kind::Attention { keys: rows / 2, by };
            // Scores, and their gradients by queries and keys, are of the one width; values and gradients of both of the other.
            let (forward, backward) = (met * u128::from(score + value), met * u128::from(3 * score + 2 * value));
            passes.forward.push(Kernel { kind, flops: Flops(forward), bytes: Bytes(bytes) });
            passes.backward.push(Kernel { kind, flops: Flops(backward), bytes: Bytes(2 * bytes) });
        }
    }
    passes
}

/// Words to vectors, before the first layer.
#[must_use]
pub fn words(job: &Training, layout: &Layout) -> Passes {
    let degrees = layout.degrees;
    let tokens = job.micro_batch * job.model.seq / u64::from(degrees.context);
    let bytes = job.precision.bytes() * tokens * job.model.hidden;
    let mut passes = Passes::default();
    passes.stream((2 * bytes, 2 * bytes));
    passes.stream((3 * bytes / degrees.token_shares(), 2 * bytes / degrees.token_shares()));
    passes
}

/// The product with all words after the last layer, and the loss.
#[must_use]
pub fn logits(job: &Training, layout: &Layout) -> Passes {
    let (model, degrees) = (&job.model, layout.degrees);
    let tensor = u64::from(degrees.tensor);
    let tokens = job.micro_batch * model.seq / u64::from(degrees.context);
    let mut passes = Passes::default();
    passes.weights(job, Kind::Wide, (tokens, model.vocab / tensor, model.hidden), 1);
    for ways in Between::of(job).word_scores(tokens * model.vocab / tensor) {
        passes.stream(ways);
    }
    passes
}

/// What copies a layer's weights out of the buffer in which they were gathered, and its gradients into the one from which they are
/// reduced, in as many bits as travel, as PyTorch's FSDP does with each unit
/// (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: `split_with_sizes_copy`, `chunk_cat`); nothing for other calls.
pub(super) fn copied(job: &Training, call: &GroupCall) -> Option<Kernel> {
    match call.phase {
        // What groups reduced among themselves is added up where it is.
        _ if call.dimension.is_of_replicas() => None,
        Phase::WeightsForward | Phase::WeightsBackward => Some(Kernel::stream(2 * call.bytes.0)),
        Phase::LayerGradients => {
            let gradients = 8 * call.bytes.0 / u64::from(job.gradient_bits.max(1));
            Some(Kernel::stream(gradients * job.precision.bytes() + call.bytes.0))
        }
        _ => None,
    }
}

/// Adam over a rank's own part of the parameters, as PyTorch and Megatron-LM do it: gradients are read for their norm, and
/// written in the 32 bits of the state on the way where they are narrower; the step reads them and the state, and writes the
/// state; weights are written from the state where they are narrower; gradients are set to zero.
#[must_use]
pub fn optimizer(job: &Training, parameters: u64) -> Vec<Kernel> {
    let (weight, gradient, state) = (job.precision.bytes(), job.gradient_bytes(), job.precision.state_bytes());
    let stream = |bytes: u64| Kernel::stream(parameters * bytes);
    let normed = if gradient < WHOLE { gradient + WHOLE } else { gradient };
    // Weights of 32 bits are the step's own, beside the state.
    let (masters, narrowed) = if weight < WHOLE { (0, WHOLE + weight) } else { (2 * weight, 0) };
    let kernels = [normed, WHOLE + 2 * state + masters, narrowed, gradient];
    kernels.into_iter().filter(|&bytes| bytes > 0).map(stream).collect()
}

/// What the optimizer takes for a rank's own part of the parameters: its kernels, or what its state takes to come and go where that
/// is kept elsewhere.
pub(super) fn update(job: &Training, parameters: u64, speeds: &Speeds, curve: &Efficiency) -> Picos {
    let kernels = curve.total(&optimizer(job, parameters), speeds);
    let state = Bytes(parameters * job.precision.state_bytes());
    kernels.max(speeds.elsewhere.map_or(Picos::ZERO, |rate| curve.fetched(state, rate)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, read_job, traffic};

    fn flops(kernels: &[Kernel]) -> u128 {
        kernels.iter().map(|kernel| kernel.flops.0).sum()
    }

    fn read(text: &str) -> Training {
        match read_job(text, "j").unwrap() {
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
            let layout = Layout::given(&job, tp).unwrap().unwrap();
            let (layer, logits) = (layer(&job, &layout), logits(&job, &layout));
            assert_eq!(flops(&layer.forward) * u128::from(tp), job.model.layer_flops(1).0);
            assert_eq!(flops(&layer.backward), 2 * flops(&layer.forward));
            assert_eq!(flops(&logits.forward) * u128::from(tp), job.model.logit_flops(1).0);
        }
    }

    /// Compressed keys and values: where sequences are whole every rank makes the short vectors of all tokens, the rest is divided.
    #[test]
    fn short_vectors_are_made_of_a_ranks_tokens() {
        for (rank, queries) in [("q_lora_rank = 96, ", 96), ("", 0)] {
            let model = format!(
                "model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 51200, seq = 512, latent = {{ {rank}kv_lora_rank = 64, \
                 qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 24 }} }}\n"
            );
            let of = |tp: u32, sequence: bool| {
                let parallel = format!("parallel = {{ tp = {tp}, sequence = {sequence} }}");
                let job = read(&format!("name = \"j\"\nglobal_batch = 64\n{parallel}\n{model}"));
                let passes = layer(&job, &Layout::given(&job, tp).unwrap().unwrap());
                assert_eq!(flops(&passes.backward), 2 * flops(&passes.forward));
                (flops(&passes.forward), divided(&job, &passes).iter().map(|one| one.flops.0).collect::<Vec<_>>(), job)
            };
            let ((whole, _, job), (half, products, _), (more, ..)) = (of(1, false), of(2, true), of(2, false));
            assert_eq!(whole, job.model.layer_flops(1).0);
            assert_eq!(2 * half, whole);
            assert_eq!(2 * more, whole + 2 * 512 * 1024 * (queries + 64 + 16));
            let up = 2 * 512 * if queries > 0 { 96 } else { 1024 } * 16 * 48 / 2;
            assert_eq!(products, [up, 2 * 512 * 1024 * 16 * 24 / 2, 2 * 512 * 1024 * 2048, 2 * 512 * 1024 * 2048]);
        }
    }

    #[test]
    fn recomputation_adds_what_it_computes_again() {
        let of = |recompute: &str| {
            let job = job(&format!("parallel = {{ tp = 1 }}\nrecompute = \"{recompute}\"\n"));
            let layout = Layout::given(&job, 1).unwrap().unwrap();
            (flops(&layer(&job, &layout).backward), job)
        };
        let ((none, job), (full, _), (selective, _)) = (of("none"), of("full"), of("selective"));
        assert_eq!(full, none + job.model.layer_flops(1).0);
        let last = 2 * u128::from(job.model.seq * job.model.ffn * job.model.hidden);
        assert_eq!(of("early_stop").0, full - last);
        assert_eq!(selective, none + 4 * 512 * 512 * 1024);
    }

    /// A parameter in 16 bits moves 42 bytes a step: 2 read and 4 written for its gradient in 32 bits, 16 read and 12 written by
    /// the step, 4 read and 2 written for the weight, 2 for zero. In 32 bits 36, and no conversions.
    #[test]
    fn optimizers_move_the_bytes_of_their_passes() {
        let of = |lines: &str| -> u64 {
            optimizer(&job(&format!("parallel = {{ tp = 1 }}\n{lines}")), 1000).iter().map(|one| one.bytes.0).sum()
        };
        assert_eq!([of(""), of("gradient_bits = 32\n"), of("precision = \"fp32\"\n")], [42_000, 42_000, 36_000]);
    }

    /// FSDP's copies read what was gathered and write it in place, 4 bytes of a weight in 16 bits, each pass; and read gradients of
    /// 16 bits and write them in the 32, 16 or 8 that travel, 6, 4 or 3 bytes.
    #[test]
    fn sharded_weights_and_gradients_are_copied() {
        for (bits, bytes) in [(32, 6), (16, 4), (8, 3)] {
            let job = job(&format!("zero = 3\ngradient_bits = {bits}\nparallel = {{ dp = 4 }}\n"));
            let layout = Layout::given(&job, 4).unwrap().unwrap();
            let copied: Vec<u64> =
                traffic(&job, &layout).iter().filter_map(|call| copied(&job, call)).map(|one| one.bytes.0).collect();
            let weights = job.model.shared_layer_parameters();
            assert_eq!(copied, [bytes * weights, 4 * weights, 4 * weights]);
        }
        let whole = job("zero = 1\nparallel = { dp = 4 }\n");
        let layout = Layout::given(&whole, 4).unwrap().unwrap();
        assert!(traffic(&whole, &layout).iter().all(|call| copied(&whole, call).is_none()));
    }

    /// Of each operand of a product with weights 2 bytes are read and 1 written twice: inputs of 3 h, h, h and 4 h columns forward,
    /// backward gradients of as many outputs. Products with words and attention stay as they are.
    #[test]
    fn products_of_8_bits_are_given_them() {
        let of = |precision: &str| {
            let job = job(&format!("precision = \"{precision}\"\nflash_attention = true\nparallel = {{ tp = 1 }}\n"));
            let layout = Layout::given(&job, 1).unwrap().unwrap();
            let bytes = |kernels: &[Kernel]| kernels.iter().map(|one| one.bytes.0).sum::<u64>();
            let (layer, logits) = (layer(&job, &layout), logits(&job, &layout));
            assert!(logits.forward.iter().all(|one| one.kind != Kind::Product));
            [bytes(&layer.forward), bytes(&layer.backward), bytes(&logits.forward) + bytes(&logits.backward)]
        };
        let ([forward, backward, words], wide) = (of("fp8"), of("bf16"));
        assert_eq!(forward - wide[0], 4 * 512 * (1 + 1 + 1 + 4) * 1024);
        assert_eq!(backward - wide[1], 4 * 512 * (3 + 1 + 4 + 1) * 1024);
        assert_eq!(words, wide[2]);
    }

    /// The gradient of weights is added where it is kept: in all backward passes 2 reads and a write, less the write of the product.
    #[test]
    fn gradients_are_added_to_what_is_kept() {
        let bytes = |lines: &str| -> u64 {
            let job = job(&format!("parallel = {{ tp = 1 }}\n{lines}"));
            let layout = Layout::given(&job, 1).unwrap().unwrap();
            layer(&job, &layout).backward.iter().map(|one| one.bytes.0).sum()
        };
        // 16 bits more are read, and 16 more written.
        assert_eq!(bytes("gradient_bits = 32\n") - bytes(""), 4 * 12 * 1024 * 1024);
    }

    #[test]
    fn experts_do_the_work_of_their_tokens() {
        let dense = job("parallel = { tp = 1 }\n");
        let text = "name = \"j\"\nglobal_batch = 64\nparallel = { dp = 4, ep = 4 }\nmodel = { layers = 4, hidden = 1024, heads = 16, \
                    vocab = 51200, seq = 512, experts = 8, experts_per_token = 2 }\n";
        let experts = read(text);
        let one = layer(&dense, &Layout::given(&dense, 1).unwrap().unwrap());
        let many = layer(&experts, &Layout::given(&experts, 4).unwrap().unwrap());
        let ffn = 2 * 2 * 512 * 1024 * 4096u128;
        // Each expert has the 512 rows of a dense layer, of which 64 more are computed.
        assert_eq!(flops(&many.forward), flops(&one.forward) + ffn + 2 * ffn / 8 + 2 * 512 * 1024 * 8);
    }

    /// 512 rows of each of two experts by 1,024 × 4,096 weights: results are summed over 1,024 numbers, gradients of rows over 4,096, and
    /// those of weights over the rows, none of them in tiles that are not full.
    #[test]
    fn products_of_experts_sum_over_what_they_are_of() {
        let experts = read(
            "name = \"j\"\nglobal_batch = 64\nparallel = { dp = 4, ep = 4 }\nmodel = { layers = 4, hidden = 1024, heads = 16, \
             vocab = 51200, seq = 512, experts = 8, experts_per_token = 2 }\n",
        );
        let passes = layer(&experts, &Layout::given(&experts, 4).unwrap().unwrap());
        let of = |kernels: &[Kernel]| -> Vec<(u64, u128)> {
            let own = kernels.iter().filter_map(|one| match one.kind {
                Kind::Experts { inner } => Some((inner / 2, one.flops.0 / (2 * 2 * 1024 * 4096))),
                _ => None,
            });
            own.collect()
        };
        assert_eq!(of(&passes.forward), [(1024, 576), (4096, 576)]);
        assert_eq!(of(&passes.backward), [(4096, 576), (512, 512), (1024, 576), (512, 512)]);
    }

    /// Of 512 tokens of 1,024 numbers in 16 bits 2 copies each go away and come back, and are sorted by the two experts of a rank and
    /// back; where a rank has one, or all experts, they are sorted once.
    #[test]
    fn tokens_of_experts_are_sorted() {
        let bytes = |experts: u32, ranks: u32| {
            let text = format!(
                "name = \"j\"\nglobal_batch = 64\nparallel = {{ dp = {ranks}, ep = {ranks} }}\nmodel = {{ layers = 4, hidden = 1024, \
                 heads = 16, vocab = 51200, seq = 512, experts = {experts}, experts_per_token = 2 }}\n"
            );
            let job = read(&text);
            let passes = layer(&job, &Layout::given(&job, ranks).unwrap().unwrap());
            // What streams beside a layer that is not of experts: these.
            let streams = |kernels: &[Kernel]| -> u64 {
                kernels.iter().filter(|one| one.kind == Kind::Stream).map(|one| one.bytes.0).sum()
            };
            (streams(&passes.forward), streams(&passes.backward))
        };
        let (one, several, alone) = (bytes(4, 4), bytes(8, 4), bytes(8, 1));
        let (token, copies) = (2 * 512 * 1024, 2 * 2 * 512 * 1024);
        assert_eq!((several.0 - one.0, several.1 - one.1), (4 * copies, 4 * copies));
        assert_eq!(one, alone);
        let dense = job("parallel = { tp = 1 }\n");
        let dense = layer(&dense, &Layout::given(&dense, 1).unwrap().unwrap());
        let streams = dense.forward.iter().filter(|one| one.kind == Kind::Stream).map(|one| one.bytes.0).sum::<u64>();
        // Two feed-forwards of a token activate twice as much: 2 reads and writes of 4,096 numbers.
        assert_eq!(alone.0 - streams, 2 * (token + copies) + 2 * 4 * token);
    }

    /// Products whose operands tensor-parallel ranks gather and whose results they reduce: all of a layer, or those of attention where
    /// tokens choose experts.
    #[test]
    fn divided_products_are_those_that_all_tokens_meet() {
        let flops = |model: &str| -> Vec<u128> {
            let job = read(&format!(
                "name = \"j\"\nglobal_batch = 64\nflash_attention = true\nparallel = {{ tp = 2, sequence = true }}\n\
                 model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 51200, seq = 512{model} }}\n"
            ));
            let passes = layer(&job, &Layout::given(&job, 2).unwrap().unwrap());
            divided(&job, &passes).iter().map(|one| one.flops.0 / (512 * 1024 * 1024)).collect()
        };
        assert_eq!(flops(""), [3, 1, 4, 4]);
        assert_eq!(flops(", gated = true"), [3, 1, 8, 4]);
        assert_eq!(flops(", experts = 4, experts_per_token = 2"), [3, 1]);
        assert_eq!(flops(", experts = 4, experts_per_token = 2, shared_experts = 1"), [3, 1, 4, 4]);
    }
}
