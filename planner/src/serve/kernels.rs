//! The kernels of a step that answers requests, on one rank: operations and bytes of memory of each.
//!
//! Counted as those of training are (`step/kernels`): a product moves its operands and its result once, what is between
//! streams. Weights are kept in the job's precision, activations in 16 bits at least. What differs:
//!
//! - Attention of an answer reads all that is kept of its request; that of a chunk of a prompt computes with what came
//!   before it and, of itself, the lower triangle (Dao, arXiv 2307.08691). Keys and values are written once.
//!   Where they are compressed, heads of answers work on the compressed ones (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), those of
//!   prompts as heads do.
//! - Of experts only those are read that some token has chosen: of `slots`, each chosen by a token with `k / slots`, all tokens
//!   `N` of those who share the experts leave `(1 - k / slots)^N` alone.
//! - Only the last tokens of prompts and those of answers meet the words.
//! - Sum and norm are one kernel, which reads and writes both.
//! - What products of 8 or 4 bits are given is cast by a kernel before each (vLLM, `csrc/quantization`: `scaled_fp8_quant`,
//!   `scaled_fp4_quant`), nothing for two passes.
//! - Of experts tiles are computed whole ([`tiled`]), and tokens are sorted on their way there and back.

use fabricast_topologies::Bytes;

use super::rhythm::Mix;
use crate::job::{FlashKernel, Flops, Layout, Loaded, Serving};
use crate::step::{Kernel, Kind, tiled};

/// A kernel and what it reads of kept keys and values, wherever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// All but that.
    pub kernel: Kernel,
    /// That.
    pub kept: Bytes,
}

/// The kernels of some part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// In order of their size only: nothing depends on their order.
    pub kernels: Vec<Kernel>,
    /// Those of attention.
    pub attention: Vec<Reading>,
}

/// Whole bytes.
fn bytes(count: f64) -> Bytes {
    Bytes(count.round() as u64)
}

/// Whole operations.
fn flops(count: f64) -> Flops {
    Flops(count.round() as u128)
}

impl Work {
    fn stream(&mut self, count: f64) {
        self.kernels.push(Kernel::stream(bytes(count).0));
    }

    /// Rows by weights of `inner` × `columns` elements, of which so many times as many are read as one row meets.
    fn product(&mut self, kind: Kind, shape @ (rows, inner, columns): (f64, f64, f64), elements: Elements, times: f64) {
        self.cast(rows * inner, elements);
        let kernel = Kernel { kind, flops: flops(2.0 * rows * inner * columns), bytes: elements.moved(shape, times) };
        self.kernels.push(kernel);
    }

    /// Rows of all experts that some token has chosen, by the `inner` × `columns` elements of each of them, in one kernel.
    fn experts(&mut self, shape @ (rows, inner, columns): (f64, f64, f64), elements: Elements, chosen: f64) {
        self.cast(rows * inner, elements);
        let computed = chosen * tiled(rows / chosen.max(f64::MIN_POSITIVE));
        self.kernels.push(Kernel {
            kind: Kind::Experts { inner: (elements.weight * inner) as u64 },
            flops: flops(2.0 * computed * inner * columns),
            bytes: elements.moved(shape, chosen),
        });
    }

    /// Elements that a product is given, where it takes them in fewer bits than they are kept in.
    fn cast(&mut self, count: f64, elements: Elements) {
        if elements.weight < elements.activation {
            self.stream((elements.activation + elements.weight) * count);
        }
    }
}

/// Bytes of an element.
#[derive(Clone, Copy, Debug)]
struct Elements {
    activation: f64,
    weight: f64,
}

impl Elements {
    fn of(job: &Serving) -> Self {
        Self { activation: job.precision.bytes() as f64, weight: job.precision.served_bytes() }
    }

    /// What a product of rows by so many matrices moves: operands in its own precision, results as activations.
    fn moved(self, (rows, inner, columns): (f64, f64, f64), matrices: f64) -> Bytes {
        let given = self.weight.min(self.activation);
        bytes(rows * (given * inner + self.activation * columns) + self.weight * matrices * inner * columns)
    }

    /// Those of products that keep 16 bits.
    fn wide(self) -> Self {
        Self { weight: self.activation, ..self }
    }
}

/// Experts of a rank that some token of those who share them has chosen, on average; `tokens` are those of a replica.
#[must_use]
pub fn chosen_experts(job: &Loaded<'_>, layout: &Layout, tokens: f64) -> f64 {
    let slots = job.expert_slots() as f64;
    let expert = f64::from(layout.degrees.expert);
    let missed = 1.0 - job.model.experts_per_token as f64 / slots.max(1.0);
    slots / expert * (1.0 - missed.powf(tokens * expert * busy(job, layout)))
}

/// The part of the replicas that have something to do.
pub(super) fn busy(job: &Loaded<'_>, layout: &Layout) -> f64 {
    (job.in_flight as f64 / f64::from(layout.degrees.data)).min(1.0)
}

/// A layer.
#[must_use]
pub fn layer(job: &Loaded<'_>, layout: &Layout, mix: &Mix, chunks: f64) -> Work {
    let (model, degrees) = (&job.model, layout.degrees);
    let elements = Elements::of(job);
    let (a, tensor) = (elements.activation, f64::from(degrees.tensor));
    let tokens = mix.tokens();
    let hidden = model.hidden as f64;
    let between = tokens * hidden / degrees.token_shares() as f64;
    let mut work = Work::default();

    work.stream(4.0 * a * between);
    projections(job, layout, mix, chunks, &mut work);
    attention(job, layout, mix, chunks, &mut work);
    work.product(Kind::Product, (tokens, model.found_width() as f64 / tensor, hidden), elements, 1.0);
    work.stream(4.0 * a * between);

    let ffn = model.ffn as f64 / tensor;
    let matrices = model.ffn_matrices as f64;
    let feed_forward = |work: &mut Work, rows: f64, width: f64| {
        work.product(Kind::Product, (rows, hidden, width * (matrices - 1.0)), elements, 1.0);
        work.stream(matrices * a * rows * width);
        work.product(Kind::Product, (rows, width, hidden), elements, 1.0);
    };
    if model.experts == 0 {
        feed_forward(&mut work, tokens, ffn);
        return work;
    }
    if model.shared_experts > 0 {
        feed_forward(&mut work, tokens, ffn * model.shared_experts as f64);
    }
    let routed = mix.mean_tokens() * model.experts_per_token as f64 * layout.fullest(job.skew) * busy(job, layout);
    let chosen = chosen_experts(job, layout, mix.mean_tokens());
    // Tokens are sorted by the ranks of their experts, what comes by experts, and both are undone, as in training (`step/kernels`).
    let sent = a * between * (1 + model.experts_per_token) as f64;
    let slots = job.expert_slots() / u64::from(degrees.expert);
    let sorted = if degrees.expert > 1 && slots > 1 { 2.0 * a * routed * hidden } else { 0.0 };
    work.stream(sent + sorted);
    work.experts((routed, hidden, ffn * (matrices - 1.0)), elements, chosen);
    work.stream(matrices * a * routed * ffn);
    work.experts((routed, ffn, hidden), elements, chosen);
    work.stream(sent + sorted);
    work.product(Kind::Wide, (between / hidden, hidden, model.experts as f64), elements.wide(), 1.0);
    work
}

/// Tokens that each chunk of a prompt finds known, in the mean: of the prefix, and of chunks before it.
fn known_before(job: &Serving, chunks: f64) -> f64 {
    let new = job.new_tokens() as f64;
    job.prompt_tokens as f64 - new + new * (chunks - 1.0) / chunks / 2.0
}

/// What makes queries, keys and values. Where these are compressed, every rank makes the short vectors and its own heads' queries of
/// them; prompts have keys and values made of theirs and, for each chunk, of all that are known, while queries of answers are brought to
/// the width of what is kept and what heads find is brought back, in 16 bits (vLLM, `vllm/v1/attention/backends/mla/common.py`:
/// `_forward_prefill`, `_compute_prefill_context`, `W_UK_T`, `_v_up_proj`).
fn projections(job: &Serving, layout: &Layout, mix: &Mix, chunks: f64, work: &mut Work) {
    let (model, elements) = (&job.model, Elements::of(job));
    let tensor = f64::from(layout.degrees.tensor);
    let (tokens, hidden) = (mix.tokens(), model.hidden as f64);
    let queries = model.query_width() as f64 / tensor;
    let Some(latent) = model.latent else {
        // Each rank has a head of keys and values at least.
        let kv = (model.score_width() + model.head_value()) as f64 * (model.kv_heads as f64 / tensor).max(1.0);
        return work.product(Kind::Product, (tokens, hidden, queries + kv), elements, 1.0);
    };
    let down = latent.query.map_or(queries, |rank| rank as f64) + latent.kept() as f64;
    work.product(Kind::Product, (tokens, hidden, down), elements, 1.0);
    work.stream(2.0 * elements.activation * tokens * latent.normed() as f64);
    if let Some(rank) = latent.query {
        work.product(Kind::Product, (tokens, rank as f64, queries), elements, 1.0);
    }
    let (kv, unfolded) = (latent.kv as f64, model.unfolded_width() as f64 / tensor);
    if mix.prefill > 0.0 {
        let rows = mix.prefill + mix.chunks * known_before(job, chunks);
        work.product(Kind::Product, (rows, kv, unfolded), elements, 1.0);
    }
    if mix.decode > 0.0 {
        work.product(Kind::Wide, (mix.decode, kv, unfolded), elements.wide(), 1.0);
    }
}

fn attention(job: &Serving, layout: &Layout, mix: &Mix, chunks: f64, work: &mut Work) {
    let model = &job.model;
    let (a, tensor) = (job.precision.bytes() as f64, f64::from(layout.degrees.tensor));
    let heads = model.heads as f64 / tensor;
    // What a head is given of a token and finds, of a score and of what it adds: queries and results have the same widths.
    let widths = (model.score_width() + model.head_value()) as f64 * heads;
    // What a rank of this stage keeps of a token, in one of its layers.
    let layers = (model.layers / u64::from(layout.degrees.pipeline)).max(1) as f64;
    let kept = job.kv_bytes_of_rank(layout) as f64 / layers;
    work.stream(2.0 * kept * mix.tokens());
    if mix.decode > 0.0 {
        // A request is half answered on average.
        let context = job.prompt_tokens as f64 + job.output_tokens as f64 / 2.0;
        // Each head meets the whole of what is compressed, with a query as wide.
        let elements = (model.layers * job.kv_precision.bytes()) as f64;
        let of_latent = model.latent.map(|latent| (latent.kept() + latent.kv) as f64 * heads);
        let given = of_latent.unwrap_or(widths);
        let of_bytes = job.kv_bytes_per_token.map(|bytes| 2.0 * bytes as f64 / elements * heads);
        let met = of_latent.or(of_bytes).unwrap_or(widths);
        let kernel = Kernel {
            kind: Kind::Attention { keys: context as u64, by: FlashKernel::Newest },
            flops: flops(2.0 * mix.decode * context * met),
            bytes: bytes(a * mix.decode * given),
        };
        work.attention.push(Reading { kernel, kept: bytes(mix.decode * context * kept) });
    }
    if mix.prefill > 0.0 {
        let new = job.new_tokens() as f64;
        let context = job.prompt_tokens as f64 - new + (new + 1.0) / 2.0;
        // A chunk reads what came before it, where it is compressed as it was made of that.
        let before = known_before(job, chunks);
        let read = match model.latent {
            Some(_) => a * widths * (mix.prefill + mix.chunks * before),
            None => mix.prefill * kept,
        };
        let kernel = Kernel {
            kind: Kind::Attention { keys: context as u64, by: FlashKernel::Newest },
            flops: flops(2.0 * mix.prefill * context * widths),
            bytes: bytes(mix.prefill * a * widths + read),
        };
        work.attention.push(Reading { kernel, kept: bytes(mix.chunks * before * kept) });
    }
}

/// Words to vectors, before the first layer.
#[must_use]
pub fn words(job: &Serving, mix: &Mix) -> Work {
    let mut work = Work::default();
    work.stream(2.0 * job.precision.bytes() as f64 * mix.tokens() * job.model.hidden as f64);
    work
}

/// The product with all words after the last layer, and the choice of one: scores are read three times in 32 bits (greatest,
/// sum of powers, choice).
#[must_use]
pub fn logits(job: &Serving, layout: &Layout, mix: &Mix) -> Work {
    let rows = mix.decode + mix.ending;
    let words = job.model.vocab as f64 / f64::from(layout.degrees.tensor);
    let mut work = Work::default();
    work.product(Kind::Wide, (rows, job.model.hidden as f64, words), Elements::of(job).wide(), 1.0);
    work.stream(3.0 * 4.0 * rows * words);
    work
}
