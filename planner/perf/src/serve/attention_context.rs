//! Numbers of tokens that the attention of a step reads.

use fabricast_workload::job::Serving;

/// Mean numbers of tokens that attention reads in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionContext {
    /// Tokens that a decode token attends to.
    pub decode: f64,
    /// Tokens that a prompt token attends to, itself included.
    pub prefill: f64,
    /// Cached tokens before a chunk of a prompt: its prefix and preceding chunks.
    pub cached: f64,
}

impl AttentionContext {
    /// Context of requests that have the mean lengths and are spread evenly over their output. `chunks`: number of chunks
    /// into which a prompt is divided; may be fractional.
    #[must_use]
    pub fn in_steady_state(job: &Serving, chunks: f64) -> Self {
        let (prompt, new) = (job.prompt_tokens as f64, job.new_tokens() as f64);
        Self {
            // On average half of a request's output exists.
            decode: prompt + job.output_tokens as f64 / 2.0,
            prefill: prompt - new + (new + 1.0) / 2.0,
            cached: prompt - new + new * (chunks - 1.0) / chunks / 2.0,
        }
    }
}
