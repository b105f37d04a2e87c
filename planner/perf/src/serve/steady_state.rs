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
    /// Decode tokens.
    pub decode: f64,
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
        self.decode + self.prefill
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
            prefill: self.prefill * count,
            chunks: self.chunks * count,
            finished_prefills: self.finished_prefills * count,
            imbalance: self.imbalance * count,
        }
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load() -> impl Strategy<Value = Load> {
        let start_times = prop_oneof![Just(StartTimes::Spread), Just(StartTimes::Simultaneous)];
        (1u32..20_000, 1u32..3000, 1u32..2000, 1u32..20_000, start_times).prop_map(
            |(prompt, output, requests, budget, start_times)| Load {
                batching: Batching::Mixed,
                prompt: prompt.into(),
                output: output.into(),
                requests: requests.into(),
                budget: budget.into(),
                start_times,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Conservation of tokens: the steps of a request, over all requests, contain each prompt and output once.
        #[test]
        fn tokens_are_conserved(load in load()) {
            let batch = SteadyBatch::new(&load);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            for mix in [batch.with_prefill, batch.without_prefill] {
                prop_assert!(mix.decode + mix.prefill <= load.budget.max(load.requests) * (1.0 + 1e-9), "{batch:?}");
                prop_assert!(mix.decode >= 0.0 && mix.prefill >= 0.0);
            }
            prop_assert!(batch.with_prefill.decode + batch.with_prefill.prefill <= load.budget * (1.0 + 1e-9), "{batch:?}");
            // Steps with prefill in a cycle, as seen by any request.
            let steps = batch.steps();
            let prefill_steps = steps - batch.steps_without_any_prefill(&load);
            prop_assert!(near(prefill_steps * batch.with_prefill.prefill, load.requests * load.prompt), "{batch:?}");
            let decoded = prefill_steps * batch.with_prefill.decode + (steps - prefill_steps) * batch.without_prefill.decode;
            prop_assert!(near(decoded, load.requests * (load.output - 1.0)), "{batch:?} {decoded}");
            prop_assert!(near(prefill_steps * batch.with_prefill.finished_prefills, load.requests));
            prop_assert!(near(batch.steps_with_prefill + batch.steps_without_prefill, load.output - 1.0));
            prop_assert!(batch.steps_to_first_token >= 1.0 - 1e-9 && batch.steps_without_prefill >= -1e-9 && batch.steps_with_prefill >= -1e-9);
        }

        /// A single request never waits for steps with prefill of others.
        #[test]
        fn single_requests_have_their_own_prefill_only(prompt in 1u32..20_000, output in 1u32..3000, budget in 1u32..20_000) {
            let [prompt, output, budget] = [prompt, output, budget].map(f64::from);
            let load = Load { prompt, output, requests: 1.0, budget, start_times: StartTimes::Spread, batching: Batching::Mixed };
            let batch = SteadyBatch::new(&load);
            prop_assert_eq!((batch.steps_with_prefill, batch.without_prefill.decode), (0.0, 1.0));
        }

        /// With more concurrent requests, the rate of finished requests does not decrease.
        #[test]
        fn more_concurrent_requests_never_reduce_the_rate(load in load()) {
            let more = Load { requests: load.requests + 1.0, ..load };
            let rate = |load: &Load| load.requests / SteadyBatch::new(load).steps();
            prop_assert!(rate(&more) >= rate(&load) * (1.0 - 1e-9), "{} {}", rate(&more), rate(&load));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Lockstep conserves the tokens of all replicas and never exceeds the budget. With more replicas, neither the
        /// share of steps with prefill nor the load of the most loaded one in them decreases.
        #[test]
        fn lockstep_conserves_tokens(load in load(), replicas in 1u32..200) {
            let alone = SteadyBatch::new(&load);
            let all = alone.in_lockstep(&load, replicas.into());
            if replicas == 1 || load.start_times == StartTimes::Simultaneous {
                prop_assert_eq!(all, alone);
            }
            let tokens = |batch: &SteadyBatch| {
                (batch.steps_to_first_token + batch.steps_with_prefill) * batch.with_prefill.mean_tokens() + batch.steps_without_prefill * batch.without_prefill.mean_tokens()
            };
            prop_assert!((tokens(&all) / tokens(&alone) - 1.0).abs() < 1e-9, "{alone:?} {all:?}");
            prop_assert!((all.steps() / alone.steps() - 1.0).abs() < 1e-9);
            prop_assert!(all.with_prefill.tokens() <= load.budget.max(load.requests) * (1.0 + 1e-9));
            let more = alone.in_lockstep(&load, f64::from(replicas) + 1.0);
            prop_assert!(more.steps_with_prefill >= all.steps_with_prefill * (1.0 - 1e-9) && all.steps_with_prefill >= alone.steps_with_prefill * (1.0 - 1e-9));
            prop_assert!(more.with_prefill.tokens() >= all.with_prefill.tokens() * (1.0 - 1e-9));
        }
    }

    /// Eight replicas with 20 requests of 100 steps each: mean tokens of the most loaded one, compared with start times
    /// drawn from a linear congruential generator.
    #[test]
    fn most_loaded_replica_matches_sampled_start_times() {
        let load = Load {
            prompt: 64.0,
            output: 100.0,
            requests: 20.0,
            budget: 8192.0,
            start_times: StartTimes::Spread,
            batching: Batching::Mixed,
        };
        let batch = SteadyBatch::new(&load).in_lockstep(&load, 8.0);
        let prefill_share = (batch.steps_to_first_token + batch.steps_with_prefill) / batch.steps();
        let expected =
            prefill_share * batch.with_prefill.tokens() + (1.0 - prefill_share) * batch.without_prefill.tokens();
        let (mut state, mut fullest) = (12_345_u64, 0);
        for _ in 0..2000 {
            let mut max_starts = [0; 100];
            for _ in 0..8 {
                let mut starts = [0; 100];
                for _ in 0..20 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    starts[(state >> 33) as usize % 100] += 1;
                }
                max_starts
                    .iter_mut()
                    .zip(starts)
                    .for_each(|(max_starts, starts)| *max_starts = starts.max(*max_starts));
            }
            fullest += max_starts.iter().map(|count| 20 + 63 * count).sum::<u64>();
        }
        let drawn = fullest as f64 / 200_000.0;
        assert!((expected / drawn - 1.0).abs() < 0.01, "{expected} {drawn}");
        // A single replica has 20 tokens, and 63 more when one of its requests starts.
        assert!(expected > 2.0 * (20.0 + 63.0 * 0.2));
    }

    /// One variable has its own mean; two are compared with the sum over all pairs.
    #[test]
    fn poisson_maximum_matches_direct_sums() {
        for mean in [0.0, 0.3, 4.0, 30.0, 300.0] {
            assert!((poisson_maximum(mean, 1.0) - mean).abs() < 1e-6 * (1.0 + mean), "{mean}");
        }
        let mean: f64 = 3.0;
        let mut probabilities = vec![(-mean).exp()];
        (1..60).for_each(|k| probabilities.push(probabilities[k - 1] * mean / k as f64));
        let pairs = (0..60).flat_map(|a| (0..60).map(move |b| (a, b)));
        let maximum: f64 = pairs.map(|(a, b)| a.max(b) as f64 * probabilities[a] * probabilities[b]).sum();
        assert!((poisson_maximum(mean, 2.0) - maximum).abs() < 1e-9, "{maximum}");
        assert!((7.0..10.0).contains(&poisson_maximum(3.0, 64.0)));
        // No jump at the switch to the normal approximation; the maximum of 64 normal variables is 2.4 standard
        // deviations above the mean.
        assert!((poisson_maximum(500.1, 64.0) - poisson_maximum(499.9, 64.0) - 0.2).abs() < 0.02);
        assert!((poisson_maximum(2000.0, 64.0) / (2000.0 + 2.4 * 2000.0f64.sqrt()) - 1.0).abs() < 0.003);
    }

    impl SteadyBatch {
        /// Steps of a cycle without prefill of any request.
        fn steps_without_any_prefill(&self, load: &Load) -> f64 {
            if self.steps_without_prefill == 0.0 {
                0.0
            } else {
                self.steps() - load.requests / self.with_prefill.finished_prefills
            }
        }
    }

    /// Two replicas just below and just above the load at which all steps have prefill: the most loaded one decodes
    /// equally many tokens in steps with prefill.
    #[test]
    fn lockstep_is_continuous_at_full_prefill() {
        let load = |output: f64| Load { prompt: 50.0, output, requests: 40.0, budget: 8192.0, ..minimal_load() };
        let [partial, full] = [40.0, 40.0 - 1e-9].map(|output| SteadyBatch::new(&load(output)));
        let [before, after] = [&partial, &full].map(|batch| batch.in_lockstep(&load(40.0), 2.0).with_prefill);
        assert!(
            (before.decode - after.decode).abs() < 1e-6 && (before.tokens() - after.tokens()).abs() < 1e-6,
            "{before:?} {after:?}"
        );
        assert!(after.decode < full.with_prefill.decode);
    }

    fn minimal_load() -> Load {
        Load {
            prompt: 1.0,
            output: 1.0,
            requests: 1.0,
            budget: 1.0,
            start_times: StartTimes::Spread,
            batching: Batching::Mixed,
        }
    }

    #[test]
    fn single_request_has_no_interference() {
        let load = Load {
            prompt: 5000.0,
            output: 100.0,
            requests: 1.0,
            budget: 2048.0,
            start_times: StartTimes::Spread,
            batching: Batching::Mixed,
        };
        let batch = SteadyBatch::new(&load);
        assert_eq!(batch.steps_to_first_token, 5000.0 / 2048.0);
        assert_eq!(
            (
                batch.steps_to_first_token + batch.wait_for_last_step,
                batch.steps_with_prefill,
                batch.steps_without_prefill
            ),
            (3.0, 0.0, 99.0)
        );
        assert_eq!((batch.with_prefill.decode, batch.without_prefill.decode), (0.0, 1.0));
    }

    /// 40 requests with prompts of 101 tokens and steps of 1,040: ten prompts fit, since each adds 100 tokens to the
    /// decode token it replaces. So 4 of 50 steps have prefill, with 30 decode tokens each.
    #[test]
    fn batch_requests_start_simultaneously() {
        let load = Load {
            prompt: 101.0,
            output: 50.0,
            requests: 40.0,
            budget: 1040.0,
            start_times: StartTimes::Simultaneous,
            batching: Batching::Mixed,
        };
        let batch = SteadyBatch::new(&load);
        assert_eq!(
            batch.with_prefill,
            StepTokens { decode: 30.0, prefill: 1010.0, chunks: 10.0, finished_prefills: 10.0, imbalance: 0.0 }
        );
        assert_eq!(
            (
                batch.steps_to_first_token,
                batch.steps_with_prefill,
                batch.steps_without_prefill,
                batch.without_prefill.decode
            ),
            (1.0, 3.0, 46.0, 40.0)
        );
        // Spread over time, they start one by one.
        let spread = SteadyBatch::new(&Load { start_times: StartTimes::Spread, ..load });
        assert_eq!(
            (spread.with_prefill.prefill, spread.steps_with_prefill, spread.steps_without_prefill),
            (101.0, 39.0, 10.0)
        );
        // A remainder needs a step of its own: 41 requests in five steps of 8.2.
        let over = SteadyBatch::new(&Load { requests: 41.0, budget: 1041.0, ..load });
        assert_eq!((over.steps_with_prefill, over.with_prefill.finished_prefills), (4.0, 8.2));
        // Prompts of four steps each, with 39 decode tokens; ten prompts of two and a half steps fill 25 steps of 100
        // tokens.
        let long = SteadyBatch::new(&Load { prompt: 4004.0, output: 1000.0, ..load });
        assert_eq!(
            (long.steps_to_first_token, long.with_prefill.decode, long.with_prefill.prefill),
            (4.0, 39.0, 1001.0)
        );
        let parts = SteadyBatch::new(&Load { prompt: 250.0, requests: 10.0, budget: 109.0, ..load });
        assert_eq!(
            (parts.steps_to_first_token, parts.steps_with_prefill, parts.with_prefill.prefill),
            (2.5, 22.5, 100.0)
        );
    }

    #[test]
    fn requests_beyond_the_budget_are_queued() {
        // 2048 tokens per step: 2048 / (1024 + 99) requests end in each.
        let steady_batch = |requests: f64| {
            SteadyBatch::new(&Load {
                prompt: 1024.0,
                output: 100.0,
                requests,
                budget: 2048.0,
                start_times: StartTimes::Spread,
                batching: Batching::Mixed,
            })
        };
        let (some, more) = (steady_batch(500.0), steady_batch(600.0));
        assert_eq!(some.with_prefill, more.with_prefill);
        let rate = 2048.0 / 1123.0;
        assert!((more.steps_to_first_token - some.steps_to_first_token - 100.0 / rate).abs() < 1e-9);
        assert!((some.with_prefill.decode + some.with_prefill.prefill - 2048.0).abs() < 1e-9);
    }
}
