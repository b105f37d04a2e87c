//! What is between products, by how software runs it: the bytes that norms, activations, residuals and the loss move.
//!
//! A figure is bytes for an element of a tensor, forward and backward: e of what the job computes in, four where software goes over to 32
//! bits. **Fused by hand** (Megatron-LM, Transformer Engine): each reads its operands and writes its result once, the loss goes over the
//! scores in 32 bits several times. **Compiled** (torch.compile, or kernels that do as it does): the same in layers, and scores are read twice
//! and their gradient is written once, all in 16 bits. **Eager**: each operator of the authors' code is a kernel, which reads and writes
//! memory:
//!
//! ```text
//! RMS norm      to 32 bits e+4, squared 8, mean 4, times root 8, back 4+e, times weights 2e                    = 4e + 24
//!   backward    gradient of weights 4e, times weights 2e, to 32 bits e+4, root's 8 + 12 + 4, square's 8 + 8, sum 12, back 4+e,
//!               added to the residual's 3e                                                                     = 11e + 60
//! LayerNorm     one kernel 2e; backward two, 3e and 2e, and the residual's 3e
//! rotations     of queries and keys, as complex numbers of 32 bits: e+4, 8, 4+e; backward as much
//! residual      3e; with dropout 2e+1 more, both ways (fused, 3e+1 and 2e+1 with and without)
//! SiLU · up     2e + 3e; backward 2 × 3e and 3e, and what two products make of the input's gradient is added, 3e of it
//! GELU          2e; backward 3e
//! heads         what attention gives is put in order, 2e both ways; gradients of queries, keys and values are put together, or what
//!               their three products make of the input's is added, 6e
//! biases        gradients of the outputs are summed, e of each
//! scores        to 32 bits e+4, log-softmax 12; backward 4, 12, back 4+e
//! ```
//!
//! Models whose feed-forward is gated are Llama's kind, with RMS norms and rotations; others GPT's, with LayerNorm, biases and dropout. At the rate
//! of H100's `stream` these bytes take 0.98 to 1.12 of what was measured of layers of four models and of three output layers, those of Hugging
//! Face's Llama, whose rotations are of halves, 0.85; compiled 0.69 to 1.15 (`planner/data/h200-steps/eager.py` and eager.jsonl beside it,
//! PyTorch 2.11; the test below).

use crate::job::{Dropout, Fusion, Training};

/// Bytes of a number in 32 bits.
const WHOLE: u64 = 4;

/// Bytes forward and backward.
pub(super) type Ways = (u64, u64);

/// How the software of a job does what is between products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    /// Bytes of an element.
    e: u64,
    fusion: Fusion,
    gated: bool,
    biases: u64,
    dropout: Dropout,
}

impl Between {
    pub(super) fn of(job: &Training) -> Self {
        let (gated, biases) = (job.model.ffn_matrices == 3, job.model.biases);
        Self { e: job.precision.bytes(), fusion: job.fusion, gated, biases, dropout: job.dropout }
    }

    fn each(self, elements: u64, (forward, backward): Ways) -> Ways {
        (forward * elements, backward * elements)
    }

    /// Of so many elements, normalised.
    pub(super) fn norm(self, elements: u64) -> Ways {
        let e = self.e;
        let ways = match (self.fusion, self.gated) {
            (Fusion::Fused | Fusion::Compiled, _) => (2 * e, 3 * e),
            (Fusion::Eager, false) => (2 * e, 8 * e),
            (Fusion::Eager, true) => (4 * e + 6 * WHOLE, 11 * e + 15 * WHOLE),
        };
        self.each(elements, ways)
    }

    /// Dropped out in part and added to the residual.
    pub(super) fn added(self, elements: u64) -> Ways {
        let e = self.e;
        let ways = match (self.fusion, self.dropout) {
            (Fusion::Fused | Fusion::Compiled, _) => (3 * e + 1, 2 * e + 1),
            (Fusion::Eager, Dropout::On) => (5 * e + 1, 2 * e + 1),
            (Fusion::Eager, Dropout::Off) => (3 * e, 0),
        };
        self.each(elements, ways)
    }

    /// Between the products of a feed-forward: so many elements that are activated, of inputs of so many.
    pub(super) fn activated(self, elements: u64, inputs: u64) -> Ways {
        let e = self.e;
        let matrices = if self.gated { 3 } else { 2 };
        match (self.fusion, self.gated) {
            (Fusion::Fused | Fusion::Compiled, _) => self.each(elements, (matrices * e, (2 * matrices - 1) * e)),
            (Fusion::Eager, false) => self.each(elements, (2 * e, 3 * e)),
            (Fusion::Eager, true) => {
                let (forward, backward) = self.each(elements, (5 * e, 9 * e));
                (forward, backward + 3 * e * inputs)
            }
        }
    }

    /// Around attention: queries and keys of so many elements each are turned, heads of so many put in order, and gradients of so
    /// many inputs put together.
    pub(super) fn heads(self, (queries, keys): (u64, u64), inputs: u64) -> Ways {
        let e = self.e;
        let of_each = match (self.fusion, self.gated) {
            (_, false) => 0,
            (Fusion::Fused | Fusion::Compiled, true) => 2 * e,
            (Fusion::Eager, true) => 2 * (e + WHOLE) + 2 * WHOLE,
        };
        let turned = of_each * (queries + keys);
        match self.fusion {
            Fusion::Fused | Fusion::Compiled => (turned, turned),
            Fusion::Eager => (turned + 2 * e * queries, turned + 2 * e * queries + 6 * e * inputs),
        }
    }

    /// What products with weights and biases do besides: so many elements come out of them.
    pub(super) fn biases(self, elements: u64) -> Ways {
        match self.fusion {
            Fusion::Fused => (0, 0),
            Fusion::Compiled | Fusion::Eager => (0, self.biases * self.e * elements),
        }
    }

    /// Of scores of attention that are written: masked and normalised, then dropped out.
    pub(super) fn attention_scores(self, scores: u64) -> [Ways; 2] {
        let e = self.e;
        let normalised = match self.fusion {
            Fusion::Fused | Fusion::Compiled => (2 * e, 3 * e),
            // Scaled, masked, normalised.
            Fusion::Eager => (2 * e + 3 * e + 2 * e, 3 * e + 2 * e),
        };
        [normalised, (2 * e + 1, 2 * e + 1)].map(|ways| self.each(scores, ways))
    }

    /// Of scores of words, each pass over them: the loss in 32 bits.
    pub(super) fn word_scores(self, scores: u64) -> Vec<Ways> {
        let (e, whole) = (self.e, WHOLE);
        let passes = match self.fusion {
            // Converted, their greatest found, powers summed, and the gradient written and converted back.
            Fusion::Fused => vec![(e + whole, whole + e), (whole, 0), (2 * whole, 2 * whole)],
            Fusion::Compiled => vec![(2 * e, 2 * e)],
            Fusion::Eager => vec![(e + whole, whole + e), (3 * whole, 3 * whole), (0, whole)],
        };
        passes.into_iter().map(|ways| self.each(scores, ways)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::kernels::{Kind, Passes, layer, logits};
    use crate::job::{Job, Layout, Training, read_job};

    /// Bytes a second of kernels between products on H100, where the curve of Hopper puts them: what 132 SMs of H200 move.
    const RATE: f64 = 0.4970 * 4.8e12;

    /// What products of a micro-batch alone add to gradients that are there, by a kernel of their own: 2 reads and a write in 16 bits.
    const ADDED: u64 = 6;

    /// Bytes a second of a kernel that only adds: 0.9 of the memory's.
    const ADDS: f64 = 3.0e12;

    #[derive(Deserialize)]
    struct Pass {
        kinds: Kinds,
    }

    #[derive(Deserialize)]
    struct Kinds {
        stream: f64,
    }

    #[derive(Deserialize)]
    #[serde(tag = "what", rename_all = "lowercase")]
    enum Row {
        Layers {
            model: String,
            layers: u64,
            hidden: u64,
            heads: u64,
            kv_heads: u64,
            ffn: u64,
            tokens: u64,
            batch: u64,
            how: String,
            forward: Pass,
            backward: Pass,
        },
        Output {
            hidden: u64,
            vocab: u64,
            tokens: u64,
            how: String,
            forward: Pass,
            backward: Pass,
        },
    }

    fn job(how: &str, batch: u64, dropout: bool, model: &str) -> Training {
        let text = format!(
            "name = \"j\"\nglobal_batch = {batch}\nmicro_batch = {batch}\nkernels = \"{how}\"\ndropout = {dropout}\nflash_attention = true\n\
             parallel = {{ tp = 1 }}\nmodel = {{ {model} }}\n"
        );
        match read_job(&text, "j").unwrap() {
            Job::Training(job) => job,
            other => panic!("{other:?}"),
        }
    }

    /// Milliseconds of what streams.
    fn told(job: &Training, of: fn(&Training, &Layout) -> Passes) -> f64 {
        let passes = of(job, &Layout::given(job, 1).unwrap().unwrap());
        let every = passes.forward.iter().chain(&passes.backward).filter(|kernel| kernel.kind == Kind::Stream);
        every.map(|kernel| kernel.bytes.0 as f64 / RATE * 1e3).sum()
    }

    #[test]
    fn bytes_take_what_was_measured() {
        let file = include_str!("../../data/h200-steps/eager.jsonl");
        let mut compared = 0;
        for line in file.lines() {
            let Ok(row) = serde_json::from_str::<Row>(line) else { continue };
            let (what, how, told, measured) = match row {
                // Of few tokens kernels are short: starts, not bytes.
                Row::Layers { tokens: 64, .. } => continue,
                Row::Layers { model, layers, hidden, heads, kv_heads, ffn, tokens, batch, how, forward, backward } => {
                    let gated = model.ends_with("llama");
                    let text = format!(
                        "layers = {layers}, hidden = {hidden}, heads = {heads}, kv_heads = {kv_heads}, ffn = {ffn}, \
                         gated = {gated}, vocab = 32000, seq = {tokens}"
                    );
                    let job = job(&how, batch, model.ends_with("dropout"), &text);
                    let added = (ADDED * layers * job.model.shared_layer_parameters()) as f64 / ADDS * 1e3;
                    let measured = forward.kinds.stream + backward.kinds.stream - added;
                    (format!("{model} {hidden}"), how, told(&job, layer) * layers as f64, measured)
                }
                Row::Output { hidden, vocab, tokens, how, forward, backward } => {
                    let job = job(
                        &how,
                        1,
                        false,
                        &format!("layers = 1, hidden = {hidden}, heads = 16, vocab = {vocab}, seq = {tokens}"),
                    );
                    (format!("output {vocab}"), how, told(&job, logits), forward.kinds.stream + backward.kinds.stream)
                }
            };
            println!("{what} {how}: told {told:.2}, measured {measured:.2}, {:.2}", told / measured);
            let within = if how == "eager" { 0.79..1.05 } else { 0.63..1.0 };
            assert!(within.contains(&(told / measured)), "{what} {how}: {told} for {measured} ms");
            compared += 1;
        }
        assert_eq!(compared, 18);
    }
}
