//! Kernels of an inference step on one rank, with the operations and memory traffic of each.
//!
//! Counted as in training (`step/kernels`): a GEMM moves its operands and its result once, elementwise kernels stream.
//! Weights have the job's precision, activations at least 16 bits. Differences:
//!
//! - Attention of decode reads the KV cache of its request. Attention of a prefill chunk uses the cached tokens and,
//!   within the chunk, the causal half (Dao, arXiv 2307.08691). Keys and values are written once. With latent
//!   attention, decode computes on the latent vectors (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), prefill on
//!   expanded heads.
//! - Only experts chosen by some token are read: of `slots` experts, each chosen by a token with probability
//!   `k / slots`, the `N` tokens of all ranks that share the experts leave a fraction `(1 - k / slots)^N` unread.
//! - A decode step verifies the proposed tokens of a request with one read of its KV cache.
//! - Only decode tokens and the last token of each prompt need logits.
//! - Residual addition and norm are one kernel, which reads and writes the hidden states and the residual.
//! - Inputs of 8- or 4-bit GEMMs are cast by a separate kernel (vLLM, `csrc/quantization`: `scaled_fp8_quant`,
//!   `scaled_fp4_quant`), without a second pass for scales.
//! - Expert GEMMs compute full tiles ([`padded_rows`]), and tokens are permuted before and after.

use fabricast_topologies::Bytes;

use super::adapters::adapter_kernels;
use super::attention_context::AttentionContext;
use super::steady_state::StepTokens;
use super::traffic::step_kind;
use crate::step::{Kernel, KernelKind, padded_rows};
use fabricast_workload::job::{
    AttentionProjections, FeedForward, FlashKernel, Flops, LayerMatrices, Layout, LoadedServing, QueryKeyNorm, Serving,
    TokenCopies, WeightMatrix, logits_matrix,
};

/// Attention kernel. Its reads of the KV cache are counted separately, because they may come from another memory tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionKernel {
    /// Attention kernel without its KV-cache reads.
    pub kernel: Kernel,
    /// Bytes that the kernel reads from the KV cache.
    pub kv_bytes: Bytes,
}

/// Kernels of a part of a step (a layer, the embedding or the logits) on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Kernels other than attention; their order has no meaning.
    pub kernels: Vec<Kernel>,
    /// Attention kernels of prefill and decode.
    pub attention: Vec<AttentionKernel>,
}

/// Rounds a mean number of bytes to whole bytes.
fn bytes(count: f64) -> Bytes {
    Bytes(count.round() as u64)
}

/// Rounds a mean number of floating-point operations to whole operations.
fn flops(count: f64) -> Flops {
    Flops(count.round() as u128)
}

impl Work {
    fn stream(&mut self, count: f64) {
        self.kernels.push(Kernel::stream(bytes(count).0));
    }

    /// Adds a GEMM; `times` is the number of weight matrices of this size that are read.
    fn gemm(&mut self, kind: KernelKind, shape: MeanGemmShape, elements: Elements, times: f64) {
        let MeanGemmShape { rows, inner, columns } = shape;
        self.cast(rows * inner, elements);
        let kernel =
            Kernel { kind, flops: flops(2.0 * rows * inner * columns), bytes: elements.bytes_moved(shape, times) };
        self.kernels.push(kernel);
    }

    /// Adds the grouped GEMM of all experts chosen by some token; `chosen` is their number.
    fn experts(&mut self, shape: MeanGemmShape, elements: Elements, chosen: f64) {
        let MeanGemmShape { rows, inner, columns } = shape;
        self.cast(rows * inner, elements);
        let computed = chosen * padded_rows(rows / chosen.max(f64::MIN_POSITIVE));
        self.kernels.push(Kernel {
            kind: KernelKind::GroupedGemm { inner: (elements.weight * inner) as u64 },
            flops: flops(2.0 * computed * inner * columns),
            bytes: elements.bytes_moved(shape, chosen),
        });
    }

    /// Adds the cast of a GEMM's input of `count` elements if activations have more bits than the GEMM's operands.
    fn cast(&mut self, count: f64, elements: Elements) {
        if elements.weight < elements.activation {
            self.stream((elements.activation + elements.weight) * count);
        }
    }
}

/// Shape of a GEMM of `rows` × `inner` by `inner` × `columns`; fractional, as it is a mean over steps.
#[derive(Clone, Copy, Debug)]
struct MeanGemmShape {
    rows: f64,
    inner: f64,
    columns: f64,
}

impl MeanGemmShape {
    /// Returns the shape of the product of a mean number of rows with a weight matrix.
    fn with_weights(rows: f64, matrix: WeightMatrix) -> Self {
        Self { rows, inner: matrix.inner as f64, columns: matrix.columns as f64 }
    }
}

/// Bytes per element of activations and of weights.
#[derive(Clone, Copy, Debug)]
struct Elements {
    activation: f64,
    weight: f64,
}

impl Elements {
    fn new(job: &Serving) -> Self {
        Self { activation: job.precision.bytes() as f64, weight: job.precision.served_bytes() }
    }

    /// Bytes moved by a GEMM of `rows` rows and `matrices` weight matrices: operands in the smaller of the two element
    /// sizes, results as activations.
    fn bytes_moved(self, shape: MeanGemmShape, matrices: f64) -> Bytes {
        let MeanGemmShape { rows, inner, columns } = shape;
        let operand_bytes = self.weight.min(self.activation);
        bytes(rows * (operand_bytes * inner + self.activation * columns) + self.weight * matrices * inner * columns)
    }

    /// Returns the element sizes of GEMMs whose weights have the precision of activations.
    fn with_16_bit_weights(self) -> Self {
        Self { weight: self.activation, ..self }
    }
}

/// Mean number of a rank's experts chosen by some token of the ranks that share them; `tokens` are those of a replica.
#[must_use]
pub fn chosen_experts(job: &LoadedServing<'_>, layout: &Layout, tokens: f64) -> f64 {
    let slots = job.expert_slots() as f64;
    let expert = f64::from(layout.degrees.expert);
    let missed = 1.0 - job.model.experts_per_token as f64 / slots.max(1.0);
    slots / expert * (1.0 - missed.powf(tokens * expert * active_replica_share(job, layout)))
}

/// Share of the replicas that have requests.
pub(super) fn active_replica_share(job: &LoadedServing<'_>, layout: &Layout) -> f64 {
    (job.concurrent_requests as f64 / f64::from(layout.degrees.data)).min(1.0)
}

/// Kernels of one transformer layer on one rank.
#[must_use]
pub fn layer(job: &LoadedServing<'_>, layout: &Layout, mix: &StepTokens, context: &AttentionContext) -> Work {
    let (model, degrees) = (&job.model, layout.degrees);
    let elements = Elements::new(job);
    let a = elements.activation;
    let tokens = mix.tokens();
    let hidden = model.hidden as f64;
    let activations = tokens * hidden / degrees.token_shares() as f64;
    let mut work = Work::default();

    work.kernels.extend(adapter_kernels(job, layout, mix));
    let matrices = LayerMatrices::new(model, degrees.tensor, degrees.tensor);
    work.stream(4.0 * a * activations);
    projections(job, matrices.projections, mix, context, &mut work);
    if model.query_key_norm == QueryKeyNorm::AllHeads {
        // Queries and keys are copied, their squares are summed, and they are scaled (sglang,
        // python/sglang/srt/models/minimax_m2.py, `MiniMaxM2QKRMSNorm`).
        let heads = model.heads.div_ceil(degrees.tensor.into()) + model.kv_heads.div_ceil(degrees.tensor.into());
        let width = a * tokens * (heads * model.head) as f64;
        for passes in [2.0, 1.0, 2.0] {
            work.stream(passes * width);
        }
    }
    attention(job, layout, mix, context, &mut work);
    let output = MeanGemmShape::with_weights(tokens, matrices.attention_output);
    work.gemm(KernelKind::Gemm, output, elements, 1.0);
    work.stream(4.0 * a * activations);

    let matrix_count = model.ffn_matrices as f64;
    let feed_forward = |work: &mut Work, FeedForward { width, up, down }: FeedForward| {
        work.gemm(KernelKind::Gemm, MeanGemmShape::with_weights(tokens, up), elements, 1.0);
        work.stream(matrix_count * a * tokens * width as f64);
        work.gemm(KernelKind::Gemm, MeanGemmShape::with_weights(tokens, down), elements, 1.0);
    };
    let Some(router) = matrices.router else {
        feed_forward(&mut work, matrices.feed_forward);
        return work;
    };
    if let Some(shared) = matrices.shared_experts {
        feed_forward(&mut work, shared);
    }
    let routed = mix.mean_tokens()
        * model.experts_per_token as f64
        * layout.expert_imbalance(job.skew)
        * active_replica_share(job, layout);
    let chosen = chosen_experts(job, layout, mix.mean_tokens());
    // Tokens are permuted by destination rank, received ones by expert, and both are reversed, as in training
    // (`step/kernels`).
    let slots = job.expert_slots() / u64::from(degrees.expert);
    let copies = token_copies(job, layout, mix);
    let sent = if copies.by_rank { a * activations * (1 + model.experts_per_token) as f64 } else { 0.0 };
    let is_sorted = copies.by_expert && degrees.expert > 1 && slots > 1;
    let sorted = if is_sorted { 2.0 * a * routed * hidden } else { 0.0 };
    work.stream(sent + sorted);
    let FeedForward { width, up, down } = matrices.feed_forward;
    work.experts(MeanGemmShape::with_weights(routed, up), elements, chosen);
    work.stream(matrix_count * a * routed * width as f64);
    work.experts(MeanGemmShape::with_weights(routed, down), elements, chosen);
    work.stream(sent + sorted);
    let routing = MeanGemmShape::with_weights(activations / hidden, router);
    work.gemm(KernelKind::Gemm16Bit, routing, elements.with_16_bit_weights(), 1.0);
    work
}

/// Copies of tokens around the experts of a step. Without expert parallelism, tokens are permuted by expert.
fn token_copies(job: &Serving, layout: &Layout, mix: &StepTokens) -> TokenCopies {
    match layout.degrees.expert {
        0 | 1 => TokenCopies { by_rank: true, by_expert: false },
        _ => job.dispatch.copies(step_kind(mix)),
    }
}

/// Projections of queries, keys and values. With latent attention, every rank computes the latent vectors and its own
/// heads' queries. For prefill, keys and values are expanded for the chunk and again for all cached tokens. For decode,
/// queries are projected to the width of the cached vectors and outputs back, in 16 bits (vLLM,
/// `vllm/v1/attention/backends/mla/common.py`: `_forward_prefill`, `_compute_prefill_context`, `W_UK_T`, `_v_up_proj`).
fn projections(
    job: &Serving,
    matrices: AttentionProjections,
    mix: &StepTokens,
    context: &AttentionContext,
    work: &mut Work,
) {
    let (elements, tokens) = (Elements::new(job), mix.tokens());
    let gemm = |work: &mut Work, rows: f64, matrix: WeightMatrix| {
        work.gemm(KernelKind::Gemm, MeanGemmShape::with_weights(rows, matrix), elements, 1.0);
    };
    let (down, queries, keys_values) = match matrices {
        AttentionProjections::Direct(matrix) => return gemm(work, tokens, matrix),
        AttentionProjections::Latent { down, queries, keys_values } => (down, queries, keys_values),
    };
    let latent_queries = job.model.latent.and_then(|latent| latent.query);
    let normalized = job.model.latent.map_or(0, |latent| latent.normalized_width());
    // Queries of the hidden states are a part of the down-projection's GEMM.
    let direct_columns = if latent_queries.is_some() { 0 } else { queries.columns };
    gemm(work, tokens, WeightMatrix { columns: direct_columns + down.columns, ..down });
    work.stream(2.0 * elements.activation * tokens * normalized as f64);
    if latent_queries.is_some() {
        gemm(work, tokens, queries);
    }
    let is_absorbed = has_short_chunks(mix);
    if mix.prefill > 0.0 && !is_absorbed {
        let rows = mix.prefill + mix.chunks * context.cached;
        gemm(work, rows, keys_values);
    }
    let absorbed = mix.decode_tokens() + if is_absorbed { mix.prefill } else { 0.0 };
    if absorbed > 0.0 {
        let shape = MeanGemmShape::with_weights(absorbed, keys_values);
        work.gemm(KernelKind::Gemm16Bit, shape, elements.with_16_bit_weights(), 1.0);
    }
}

/// Largest number of new tokens of a chunk whose latent attention is computed as in decode, on the latent vectors, so
/// that the cached tokens are not expanded (vLLM, `vllm/v1/attention/backends/mla/flashmla.py`,
/// `reorder_batch_threshold`; 512 in `flashattn_mla.py`; SGLang's decision also depends on the number of cached tokens,
/// `attention_backend_handler.py`).
const MAX_ABSORBED_TOKENS: f64 = 128.0;

/// Returns true if the prefill chunks of a step are so short that latent attention is computed as in decode.
fn has_short_chunks(mix: &StepTokens) -> bool {
    mix.prefill > 0.0 && mix.prefill <= MAX_ABSORBED_TOKENS * mix.chunks
}

fn attention(job: &Serving, layout: &Layout, mix: &StepTokens, context: &AttentionContext, work: &mut Work) {
    let model = &job.model;
    let (a, tensor) = (job.precision.bytes() as f64, f64::from(layout.degrees.tensor));
    let heads = model.heads as f64 / tensor;
    // Width per token of all heads' queries and outputs, equal to that of scores and weighted values.
    let widths = (model.score_width() + model.head_value()) as f64 * heads;
    // KV-cache bytes of a token on a rank, per layer.
    let layers = (model.layers / u64::from(layout.degrees.pipeline)).max(1) as f64;
    let kv_bytes_per_token = job.kv_bytes_per_rank(layout) as f64 / layers;
    work.stream(2.0 * kv_bytes_per_token * mix.tokens());
    if mix.decode > 0.0 {
        let keys = context.decode;
        // Each head processes the whole latent vector, with a query of the same width.
        let elements = (model.layers * job.kv_precision.bytes()) as f64;
        let latent_width = model.latent.map(|latent| (latent.cached_width() + latent.kv) as f64 * heads);
        let query_output_width = latent_width.unwrap_or(widths);
        let compressed_width = job.kv_bytes_per_token.map(|bytes| 2.0 * bytes as f64 / elements * heads);
        let score_width = latent_width.or(compressed_width).unwrap_or(widths);
        let kernel = Kernel {
            kind: KernelKind::Attention { keys: keys as u64, implementation: FlashKernel::Newest },
            flops: flops(2.0 * mix.decode_tokens() * keys * score_width),
            bytes: bytes(a * mix.decode_tokens() * query_output_width),
        };
        work.attention.push(AttentionKernel { kernel, kv_bytes: bytes(mix.decode * keys * kv_bytes_per_token) });
    }
    if mix.prefill > 0.0 {
        let AttentionContext { prefill: keys, cached, .. } = *context;
        // A chunk reads the cached tokens; with latent attention, their expanded keys and values unless it is short.
        let absorbed = model.latent.filter(|_| has_short_chunks(mix));
        let widths = absorbed.map_or(widths, |latent| (latent.cached_width() + latent.kv) as f64 * heads);
        let read = match (model.latent, absorbed) {
            (Some(_), None) => a * widths * (mix.prefill + mix.chunks * cached),
            (Some(_), Some(_)) | (None, _) => mix.prefill * kv_bytes_per_token,
        };
        let kernel = Kernel {
            kind: KernelKind::Attention { keys: keys as u64, implementation: FlashKernel::Newest },
            flops: flops(2.0 * mix.prefill * keys * widths),
            bytes: bytes(mix.prefill * a * widths + read),
        };
        work.attention.push(AttentionKernel { kernel, kv_bytes: bytes(mix.chunks * cached * kv_bytes_per_token) });
    }
}

/// Kernels of the embedding before the first layer: one read and one write of the activations.
#[must_use]
pub fn embedding(job: &Serving, mix: &StepTokens) -> Work {
    let mut work = Work::default();
    work.stream(2.0 * job.precision.bytes() as f64 * mix.tokens() * job.model.hidden as f64);
    work
}

/// GEMM of the logits after the last layer, and sampling: logits are read three times in 32 bits (maximum, sum of
/// exponentials, sampling).
#[must_use]
pub fn logits(job: &Serving, layout: &Layout, mix: &StepTokens) -> Work {
    let rows = mix.decode_tokens() + mix.finished_prefills;
    let matrix = logits_matrix(&job.model, layout.degrees.tensor);
    let mut work = Work::default();
    let shape = MeanGemmShape::with_weights(rows, matrix);
    work.gemm(KernelKind::Gemm16Bit, shape, Elements::new(job).with_16_bit_weights(), 1.0);
    work.stream(3.0 * 4.0 * rows * matrix.columns as f64);
    work
}
