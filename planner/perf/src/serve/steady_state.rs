//! Steady state of continuous batching: composition of a replica's steps.
//!
//! A step has room for `budget` tokens. Each decoding request uses one; prefill uses the rest, in chunks (Agrawal et
//! al., Sarathi-Serve, arXiv 2403.02310, section 4; vLLM's scheduler does the same with chunked prefill). The number
//! `c` of concurrent requests is constant, and their starts are spread evenly over time. A prompt of `P` new tokens
//! fills `n = P / (budget - others)` steps, at least 1, and the output needs `O - 1` more, as the last prefill step
//! yields the first token. `n` may be fractional: all chunks but the last fill their step, and a step with a part of a
//! chunk takes that part of the additional time of a full chunk. (If a prompt had `⌈n⌉` equal chunks instead, one more
//! concurrent request could halve the chunks of all prompts.)
//!
//! - **Few requests**, `c n ≤ n + O - 1`: one prompt is processed at a time. A request sees `n` steps with its own
//!   prefill, `(c - 1) n` with another's, and otherwise steps without prefill.
//! - **Many requests**: every step has prefill. If `x` requests end in each step, it decodes `x (O - 1)` others and
//!   prefills `x P` tokens, so `x ≤ budget / (P + O - 1)`. Further requests are queued; the waiting time follows from
//!   Little's law, `c = x × steps of a request`.
//!
//! Both cases agree at their boundary. Numbers of requests are means and may be fractional. A request waits for the end
//! of the step in which its prompt ends, `⌈n⌉ - n` steps, unless it was queued for as long. `closed_loop` has the wait
//! before the first step.
//!
//! **Groups.** The total time of a request does not depend on whether starts are spread, but the times of its parts do.
//! Requests of equal length that start together stay together in groups that share a step of prefill
//! ([`SteadyBatch::group_step`]): their TTFT is the time of that step, and they are interrupted less often later.
//! Requests of varied lengths soon start at different times.
//!
//! **Replicas that share experts** run in lockstep, since the tokens of all replicas are exchanged in every layer
//! (vLLM, `vllm/v1/engine/core.py`, `DPEngineCoreProc`: idle replicas run dummy steps). Each starts prompts when its
//! own requests make room, so a step lasts as long as that of the most loaded replica. If a fraction `f` of a replica's
//! steps has prefill, at least one of `R` replicas has it in a fraction `1 - (1 - f)^R`, and the most loaded one has as
//! many prompts as the maximum of `R` Poisson variables, limited by the room in a step. Experts process the mean of all
//! replicas.
//!
//! **Requests of a batch** are all present at the start and have equal length, so their starts are not spread. Steps
//! with prefill start as many prompts as fit until all concurrent requests have started, and their successors start
//! when they end. A step has room for `x` prompts next to the decode tokens of the others, `x (P - 1) = budget - c`. So
//! `⌈c / x⌉` steps of a round have prefill, with equally many prompts each, and the rest, up to `O` in total, have
//! none; all replicas do the same. If not even one prompt fits, parts of prompts fill `⌈c P / (budget - c + 1)⌉` steps.

use fabricast_workload::job::Batching;

use super::prefill_first::prefill_first;

/// Load of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// New prompt tokens of a request, at least 1.
    pub prompt: f64,
    /// Output tokens of a request, at least 1.
    pub output: f64,
    /// Concurrent requests, at least 1.
    pub requests: f64,
    /// Token limit of a step, at least 1.
    pub budget: f64,
    /// Distribution of start times.
    pub start_times: StartTimes,
    /// Tokens that steps with prefill process.
    pub batching: Batching,
}

/// Distribution of the requests' start times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartTimes {
    /// Spread evenly over time.
    #[default]
    Spread,
    /// Simultaneous, as many as a step has room for.
    Simultaneous,
}

/// Composition of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTokens {
    /// Requests that decode.
    pub decode: f64,
    /// Proposed tokens of these requests that the step verifies.
    pub drafted: f64,
    /// Prefill tokens.
    pub prefill: f64,
    /// Number of prefill chunks; may be fractional.
    pub chunks: f64,
    /// Number of prompts whose prefill ends.
    pub finished_prefills: f64,
    /// Excess of the most loaded replica's tokens over the mean of all replicas in lockstep.
    pub imbalance: f64,
}

impl StepTokens {
    /// Total number of tokens.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.decode + self.drafted + self.prefill
    }

    /// Tokens of the mean replica in lockstep.
    #[must_use]
    pub fn mean_tokens(&self) -> f64 {
        self.tokens() - self.imbalance
    }

    /// Returns the composition of the mean replica, which has less prefill.
    #[must_use]
    pub fn mean(&self) -> Self {
        let part = if self.prefill > 0.0 { 1.0 - self.imbalance / self.prefill } else { 1.0 };
        Self {
            prefill: self.prefill * part,
            chunks: self.chunks * part,
            finished_prefills: self.finished_prefills * part,
            imbalance: 0.0,
            ..*self
        }
    }

    pub(super) fn times(&self, count: f64) -> Self {
        Self {
            decode: self.decode * count,
            drafted: self.drafted * count,
            prefill: self.prefill * count,
            chunks: self.chunks * count,
            finished_prefills: self.finished_prefills * count,
            imbalance: self.imbalance * count,
        }
    }

    /// Tokens of requests that decode: one each, and those that are proposed.
    #[must_use]
    pub fn decode_tokens(&self) -> f64 {
        self.decode + self.drafted
    }

    /// Returns the step with so many proposed tokens for each request that decodes.
    #[must_use]
    pub(super) fn with_drafts(self, draft_tokens: u64) -> Self {
        Self { drafted: self.decode * draft_tokens as f64, ..self }
    }

    /// Returns true if the step has no tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens() <= 0.0
    }
}

/// Steady-state batch of a replica, and the steps that a request sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyBatch {
    /// Steps with prefill.
    pub with_prefill: StepTokens,
    /// Steps without prefill.
    pub without_prefill: StepTokens,
    /// Number of steps up to the first token, all with prefill; includes queueing.
    pub steps_to_first_token: f64,
    /// Number of steps after the first token with prefill of other requests.
    pub steps_with_prefill: f64,
    /// Number of steps after the first token without prefill.
    pub steps_without_prefill: f64,
    /// Chunks per prompt; an incomplete last chunk counts as a fraction of a full one.
    pub chunks: f64,
    /// Steps that a request waits for the end of the last step with its prefill, in addition to `steps_to_first_token`.
    pub wait_for_last_step: f64,
}

impl SteadyBatch {
    /// Computes the steady state of a load.
    #[must_use]
    pub fn new(load: &Load) -> Self {
        let Load { prompt, output, requests, budget, start_times, batching } = *load;
        if batching == Batching::PrefillFirst && output > 1.0 {
            return prefill_first(load);
        }
        let others = requests - 1.0;
        let room = budget - others;
        if let (StartTimes::Simultaneous, Some(rounds)) = (start_times, Self::from_simultaneous_starts(load)) {
            return rounds;
        }
        let chunks = if room > 0.0 { (prompt / room).max(1.0) } else { f64::INFINITY };
        // (Without a sum of both sides' terms, in which rounding could decide for a single request.)
        let steps_with_prefill = others * chunks;
        if chunks.is_finite() && steps_with_prefill <= output - 1.0 {
            return Self {
                with_prefill: StepTokens {
                    decode: others,
                    prefill: prompt / chunks,
                    chunks: 1.0,
                    finished_prefills: 1.0 / chunks,
                    ..StepTokens::default()
                },
                without_prefill: StepTokens { decode: requests, ..StepTokens::default() },
                steps_to_first_token: chunks,
                steps_with_prefill,
                steps_without_prefill: output - 1.0 - steps_with_prefill,
                chunks,
                wait_for_last_step: chunks.ceil() - chunks,
            };
        }
        let max_ending = budget / (prompt + output - 1.0);
        let unlimited = if max_ending >= 1.0 {
            requests / output
        } else if output > 1.0 {
            others / (output - 1.0)
        } else {
            max_ending
        };
        let ending = unlimited.min(max_ending);
        // A prompt that needs several steps is processed in consecutive ones. The wait for the last one is part of the
        // queueing.
        let chunks = (1.0 / ending).max(1.0);
        let steps_to_first_token = requests / ending - (output - 1.0);
        Self {
            with_prefill: StepTokens {
                decode: ending * (output - 1.0),
                prefill: ending * prompt,
                chunks: ending * chunks,
                finished_prefills: ending,
                ..StepTokens::default()
            },
            without_prefill: StepTokens::default(),
            steps_to_first_token,
            steps_with_prefill: output - 1.0,
            steps_without_prefill: 0.0,
            chunks,
            wait_for_last_step: (chunks.ceil() - steps_to_first_token.max(chunks)).max(0.0),
        }
    }

    /// Number of steps that a request is queued for room in steps.
    #[must_use]
    pub fn queued_steps(&self) -> f64 {
        (self.steps_to_first_token - self.chunks).max(0.0)
    }

    /// Steady state of a machine that only decodes: all requests are past their first token in every step.
    #[must_use]
    pub fn decode_only(load: &Load) -> Self {
        Self {
            with_prefill: StepTokens::default(),
            without_prefill: StepTokens { decode: load.requests, ..StepTokens::default() },
            steps_to_first_token: 0.0,
            steps_with_prefill: 0.0,
            steps_without_prefill: load.output - 1.0,
            chunks: 1.0,
            wait_for_last_step: 0.0,
        }
    }

    /// Steady state of requests that start simultaneously; `None` if every step has prefill, or decode alone fills it.
    fn from_simultaneous_starts(load: &Load) -> Option<Self> {
        let Load { prompt, output, requests, budget, .. } = *load;
        let room = budget - requests;
        if room < 0.0 {
            return None;
        }
        // Prompts that fit a step next to the decode tokens replace those of their own requests. Larger ones are
        // processed in parts, which fill the steps.
        let prefill_steps = match room >= prompt - 1.0 {
            true => (requests * (prompt - 1.0) / room.max(1.0)).ceil().max(1.0),
            false => (requests * prompt / (room + 1.0)).ceil(),
        };
        let first = (prefill_steps / requests).max(1.0);
        let ending = requests / prefill_steps;
        let chunks_per_step = ending.max(1.0);
        (prefill_steps <= first + output - 1.0).then(|| Self {
            with_prefill: StepTokens {
                decode: requests - chunks_per_step,
                prefill: ending * prompt,
                chunks: chunks_per_step,
                finished_prefills: ending,
                ..StepTokens::default()
            },
            without_prefill: StepTokens { decode: requests, ..StepTokens::default() },
            steps_to_first_token: first,
            steps_with_prefill: prefill_steps - first,
            steps_without_prefill: output - 1.0 - (prefill_steps - first),
            chunks: first,
            wait_for_last_step: 0.0,
        })
    }

    /// Composition of the step that prefills requests that started together; `None` if a prompt fills a step alone.
    ///
    /// Requests of a fixed concurrency start together, and requests of equal length end together. Those that fit in a
    /// step next to the decode tokens of the others, `x = (budget - c) / (P - 1)` in number, are replaced by their
    /// successors at the same time.
    #[must_use]
    pub fn group_step(load: &Load) -> Option<StepTokens> {
        let Load { prompt, requests, budget, batching, .. } = *load;
        let group = match batching {
            Batching::Mixed => ((budget - requests) / (prompt - 1.0).max(1.0)).min(requests),
            Batching::PrefillFirst => (budget / prompt).min(requests),
        };
        (group > 1.0).then(|| StepTokens {
            decode: if batching == Batching::Mixed { requests - group } else { 0.0 },
            prefill: group * prompt,
            chunks: group,
            finished_prefills: group,
            ..StepTokens::default()
        })
    }

    /// Returns the steady state with `replicas` replicas in lockstep.
    #[must_use]
    pub fn in_lockstep(self, load: &Load, replicas: f64) -> Self {
        if replicas <= 1.0 || load.start_times == StartTimes::Simultaneous {
            return self;
        }
        // Fraction of a replica's steps with prefill, and of all steps those in which any replica has prefill.
        let prefill_step = self.with_prefill;
        let is_always = self.steps_without_prefill <= 0.0;
        let prefill_share = if is_always { 1.0 } else { load.requests * self.chunks / self.steps() };
        let [none, no_other] = [replicas, replicas - 1.0].map(|count| (1.0 - prefill_share).powf(count));
        let any = 1.0 - none;
        // Prefill chunks of the most loaded replica in these steps, limited by the room, and the mean.
        let each = prefill_step.prefill / prefill_step.chunks;
        let room = ((load.budget - prefill_step.tokens()) / each).max(0.0);
        let extra_chunks = (poisson_maximum(prefill_share * prefill_step.chunks, replicas) / any - prefill_step.chunks)
            .clamp(0.0, room);
        let mean = if is_always { prefill_step.tokens() } else { load.requests + prefill_share / any * (each - 1.0) };
        let factor = 1.0 + extra_chunks / prefill_step.chunks;
        // If there is room for more chunks, no request is queued: each is in prefill or decode. If the budget is the
        // limit, `more` is 0.
        let decode = (prefill_step.decode - extra_chunks).max(0.0);
        let prefill = prefill_step.prefill * factor;
        let imbalance = decode + prefill - mean;
        Self {
            with_prefill: StepTokens {
                decode,
                drafted: 0.0,
                prefill,
                chunks: prefill_step.chunks * factor,
                finished_prefills: prefill_step.finished_prefills * factor,
                imbalance,
            },
            steps_with_prefill: self.steps_with_prefill + self.steps_without_prefill * (1.0 - no_other),
            steps_without_prefill: self.steps_without_prefill * no_other,
            ..self
        }
    }

    /// Number of steps of a request.
    #[must_use]
    pub fn steps(&self) -> f64 {
        self.steps_to_first_token + self.steps_with_prefill + self.steps_without_prefill
    }
}

/// Expected maximum of `count` Poisson variables: the sum over `k` of the probability that one is at least `k`.
fn poisson_maximum(mean: f64, count: f64) -> f64 {
    if mean > MAX_EXACT_MEAN {
        // Normal approximation: the maximum exceeds the mean by a constant number of standard deviations.
        return mean + (poisson_maximum(MAX_EXACT_MEAN, count) - MAX_EXACT_MEAN) * (mean / MAX_EXACT_MEAN).sqrt();
    }
    let (mut term, mut cumulative, mut sum) = ((-mean).exp(), 0.0, 0.0);
    for k in 1..=2 * MAX_EXACT_MEAN as u32 {
        cumulative += term;
        sum += 1.0 - f64::min(cumulative, 1.0).powf(count);
        term *= mean / f64::from(k);
    }
    sum
}

/// Largest mean that is summed exactly; the exponential of a larger one underflows.
const MAX_EXACT_MEAN: f64 = 500.0;

#[cfg(test)]
mod tests;
