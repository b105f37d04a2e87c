//! Steady state of continuous batching: composition of a replica's steps.
//!
//! A step has room for `budget` tokens. Each decoding request uses one; prefill uses the rest, in chunks (Agrawal et
//! al., Sarathi-Serve, arXiv 2403.02310, section 4; vLLM's scheduler does the same with chunked prefill). The number
//! `c` of concurrent requests is constant, and their starts are spread evenly over time. A prompt of `P` new tokens
//! needs `n = ⌈P / (budget - others)⌉` steps, and the output `O - 1` more, as the last prefill step yields the first
//! token.
//!
//! - **Few requests**, `c n ≤ n + O - 1`: one prompt is processed at a time. A request sees `n` steps with its own
//!   prefill, `(c - 1) n` with another's, and otherwise steps without prefill. Chunks of a prompt are assumed equal.
//! - **Many requests**: every step has prefill. If `x` requests end in each step, it decodes `x (O - 1)` others and
//!   prefills `x P` tokens, so `x ≤ budget / (P + O - 1)`. Further requests are queued; the waiting time follows from
//!   Little's law, `c = x × steps of a request`.
//!
//! Both cases agree at their boundary. Numbers of requests are means and may be fractional.
//!
//! **Replicas that share experts** run in lockstep, since tokens of all meet in every layer (vLLM,
//! `vllm/v1/engine/core.py`, `DPEngineCoreProc`: idle replicas run dummy steps). Each starts prompts when its own
//! requests make room, so a step lasts as long as that of the most loaded replica. If a fraction `f` of a replica's
//! steps has prefill, at least one of `R` replicas has it in a fraction `1 - (1 - f)^R`, and the most loaded one has as
//! many prompts as the maximum of `R` Poisson variables, limited by the room in a step. Experts process the mean of all
//! replicas.
//!
//! **Requests of a batch** are all present at the start and have equal length, so their starts are not spread. Steps
//! with prefill start as many prompts as fit until all concurrent requests have started, and their successors start
//! when they end. A step has room for `x` prompts next to the decode tokens of the others, `x (P - 1) = budget - c`. So
//! `⌈c / x⌉` steps of a round have prefill, with equally many prompts each, and the rest, up to `O` in total, have
//! none; all replicas do the same. If not even one prompt fits, parts of prompts fill `⌈c P / (budget - c + 1)⌉` steps.

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
    pub beginnings: Beginnings,
}

/// Distribution of the requests' start times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginnings {
    /// Spread evenly over time.
    #[default]
    Spread,
    /// Simultaneous, as many as a step has room for.
    Together,
}

/// Composition of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Decode tokens.
    pub decode: f64,
    /// Prefill tokens.
    pub prefill: f64,
    /// Number of prefill chunks; may be fractional.
    pub chunks: f64,
    /// Number of prompts whose prefill ends.
    pub ending: f64,
    /// Excess of the most loaded replica's tokens over the mean of all replicas in lockstep.
    pub beyond_mean: f64,
}

impl Mix {
    /// Total number of tokens.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.decode + self.prefill
    }

    /// Tokens of the mean replica in lockstep.
    #[must_use]
    pub fn mean_tokens(&self) -> f64 {
        self.tokens() - self.beyond_mean
    }

    /// Returns the composition of the mean replica, which has less prefill.
    #[must_use]
    pub fn mean(&self) -> Self {
        let part = if self.prefill > 0.0 { 1.0 - self.beyond_mean / self.prefill } else { 1.0 };
        Self {
            prefill: self.prefill * part,
            chunks: self.chunks * part,
            ending: self.ending * part,
            beyond_mean: 0.0,
            ..*self
        }
    }
}

/// Steady-state batch of a replica, and the steps that a request sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    /// Steps with prefill.
    pub with_prompts: Mix,
    /// Steps without prefill.
    pub without: Mix,
    /// Number of steps up to the first token, all with prefill; includes queueing.
    pub first: f64,
    /// Number of steps after it with prefill of other requests.
    pub disturbed: f64,
    /// Number of steps after it without prefill.
    pub quiet: f64,
    /// Chunks per prompt.
    pub chunks: f64,
}

impl Rhythm {
    /// Computes the steady state of a load.
    #[must_use]
    pub fn of(load: &Load) -> Self {
        let Load { prompt, output, requests, budget, beginnings } = *load;
        let others = requests - 1.0;
        let room = budget - others;
        if let (Beginnings::Together, Some(rounds)) = (beginnings, Self::in_rounds(load)) {
            return rounds;
        }
        let chunks = if room >= 1.0 { (prompt / room).ceil() } else { f64::INFINITY };
        if chunks.is_finite() && requests * chunks <= chunks + output - 1.0 {
            let disturbed = others * chunks;
            return Self {
                with_prompts: Mix {
                    decode: others,
                    prefill: prompt / chunks,
                    chunks: 1.0,
                    ending: 1.0 / chunks,
                    ..Mix::default()
                },
                without: Mix { decode: requests, ..Mix::default() },
                first: chunks,
                disturbed,
                quiet: output - 1.0 - disturbed,
                chunks,
            };
        }
        let most = budget / (prompt + output - 1.0);
        let unbound = if most >= 1.0 {
            requests / output
        } else if output > 1.0 {
            others / (output - 1.0)
        } else {
            most
        };
        let ending = unbound.min(most);
        // A prompt that needs several steps is processed in consecutive ones.
        let chunks = (1.0 / ending).max(1.0);
        Self {
            with_prompts: Mix {
                decode: ending * (output - 1.0),
                prefill: ending * prompt,
                chunks: ending * chunks,
                ending,
                ..Mix::default()
            },
            without: Mix::default(),
            first: requests / ending - (output - 1.0),
            disturbed: output - 1.0,
            quiet: 0.0,
            chunks,
        }
    }

    /// Steady state of requests that start simultaneously; `None` if every step has prefill, or decode alone fills it.
    fn in_rounds(load: &Load) -> Option<Self> {
        let Load { prompt, output, requests, budget, .. } = *load;
        let room = budget - requests;
        if room < 0.0 {
            return None;
        }
        // Prompts that fit a step next to the decode tokens replace those of their own requests. Larger ones are
        // processed in parts, which fill the steps.
        let with = match room >= prompt - 1.0 {
            true => (requests * (prompt - 1.0) / room.max(1.0)).ceil().max(1.0),
            false => (requests * prompt / (room + 1.0)).ceil(),
        };
        let first = (with / requests).max(1.0);
        let ending = requests / with;
        let taken = ending.max(1.0);
        (with <= first + output - 1.0).then(|| Self {
            with_prompts: Mix {
                decode: requests - taken,
                prefill: ending * prompt,
                chunks: taken,
                ending,
                ..Mix::default()
            },
            without: Mix { decode: requests, ..Mix::default() },
            first,
            disturbed: with - first,
            quiet: output - 1.0 - (with - first),
            chunks: first,
        })
    }

    /// Returns the steady state with `replicas` replicas in lockstep.
    #[must_use]
    pub fn in_step(self, load: &Load, replicas: f64) -> Self {
        if replicas <= 1.0 || load.beginnings == Beginnings::Together {
            return self;
        }
        // Fraction of a replica's steps with prefill, and of all steps those in which any replica has prefill.
        let own = self.with_prompts;
        let is_always = self.quiet <= 0.0;
        let with = if is_always { 1.0 } else { load.requests * self.chunks / self.steps() };
        let [none, no_other] = [replicas, replicas - 1.0].map(|many| (1.0 - with).powf(many));
        let some = 1.0 - none;
        // Prefill chunks of the most loaded replica in these steps, limited by the room, and the mean.
        let each = own.prefill / own.chunks;
        let room = ((load.budget - own.tokens()) / each).max(0.0);
        let more = (greatest(with * own.chunks, replicas) / some - own.chunks).clamp(0.0, room);
        let mean = if is_always { own.tokens() } else { load.requests + with / some * (each - 1.0) };
        let times = 1.0 + more / own.chunks;
        // If there is room for more chunks, no request is queued: each is in prefill or decode. If the budget is the
        // limit, `more` is 0.
        let decode = (own.decode - more).max(0.0);
        let prefill = own.prefill * times;
        let beyond_mean = decode + prefill - mean;
        Self {
            with_prompts: Mix { decode, prefill, chunks: own.chunks * times, ending: own.ending * times, beyond_mean },
            disturbed: self.disturbed + self.quiet * (1.0 - no_other),
            quiet: self.quiet * no_other,
            ..self
        }
    }

    /// Number of steps of a request.
    #[must_use]
    pub fn steps(&self) -> f64 {
        self.first + self.disturbed + self.quiet
    }
}

/// Expected maximum of `many` Poisson variables: the sum over `k` of the probability that one is at least `k`.
fn greatest(mean: f64, many: f64) -> f64 {
    if mean > MOST_COUNTED {
        // Normal approximation: the maximum exceeds the mean by a constant number of standard deviations.
        return mean + (greatest(MOST_COUNTED, many) - MOST_COUNTED) * (mean / MOST_COUNTED).sqrt();
    }
    let (mut each, mut up_to, mut sum) = ((-mean).exp(), 0.0, 0.0);
    for k in 1..=2 * MOST_COUNTED as u32 {
        up_to += each;
        sum += 1.0 - f64::min(up_to, 1.0).powf(many);
        each *= mean / f64::from(k);
    }
    sum
}

/// Largest mean that is summed exactly; the exponential of a larger one underflows.
const MOST_COUNTED: f64 = 500.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load() -> impl Strategy<Value = Load> {
        let beginnings = prop_oneof![Just(Beginnings::Spread), Just(Beginnings::Together)];
        (1u32..20_000, 1u32..3000, 1u32..2000, 1u32..20_000, beginnings).prop_map(
            |(prompt, output, requests, budget, beginnings)| Load {
                prompt: prompt.into(),
                output: output.into(),
                requests: requests.into(),
                budget: budget.into(),
                beginnings,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Conservation of tokens: the steps of a request, over all requests, contain each prompt and output once.
        #[test]
        fn tokens_are_conserved(load in load()) {
            let rhythm = Rhythm::of(&load);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            for mix in [rhythm.with_prompts, rhythm.without] {
                prop_assert!(mix.decode + mix.prefill <= load.budget.max(load.requests) * (1.0 + 1e-9), "{rhythm:?}");
                prop_assert!(mix.decode >= 0.0 && mix.prefill >= 0.0);
            }
            prop_assert!(rhythm.with_prompts.decode + rhythm.with_prompts.prefill <= load.budget * (1.0 + 1e-9), "{rhythm:?}");
            // Steps with prefill in a cycle, as seen by any request.
            let steps = rhythm.steps();
            let with = steps - rhythm.quiet_of_all(&load);
            prop_assert!(near(with * rhythm.with_prompts.prefill, load.requests * load.prompt), "{rhythm:?}");
            let decoded = with * rhythm.with_prompts.decode + (steps - with) * rhythm.without.decode;
            prop_assert!(near(decoded, load.requests * (load.output - 1.0)), "{rhythm:?} {decoded}");
            prop_assert!(near(with * rhythm.with_prompts.ending, load.requests));
            prop_assert!(near(rhythm.disturbed + rhythm.quiet, load.output - 1.0));
            prop_assert!(rhythm.first >= 1.0 - 1e-9 && rhythm.quiet >= -1e-9 && rhythm.disturbed >= -1e-9);
        }

        /// With more concurrent requests, the rate of finished requests does not decrease.
        #[test]
        fn more_concurrent_requests_never_reduce_the_rate(load in load()) {
            let more = Load { requests: load.requests + 1.0, ..load };
            let rate = |load: &Load| load.requests / Rhythm::of(load).steps();
            prop_assert!(rate(&more) >= rate(&load) * (1.0 - 1e-9), "{} {}", rate(&more), rate(&load));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Lockstep conserves the tokens of all replicas and never exceeds the budget. With more replicas, neither the
        /// share of steps with prefill nor the load of the most loaded one in them decreases.
        #[test]
        fn lockstep_conserves_tokens(load in load(), replicas in 1u32..200) {
            let alone = Rhythm::of(&load);
            let all = alone.in_step(&load, replicas.into());
            if replicas == 1 || load.beginnings == Beginnings::Together {
                prop_assert_eq!(all, alone);
            }
            let tokens = |rhythm: &Rhythm| {
                (rhythm.first + rhythm.disturbed) * rhythm.with_prompts.mean_tokens() + rhythm.quiet * rhythm.without.mean_tokens()
            };
            prop_assert!((tokens(&all) / tokens(&alone) - 1.0).abs() < 1e-9, "{alone:?} {all:?}");
            prop_assert!((all.steps() / alone.steps() - 1.0).abs() < 1e-9);
            prop_assert!(all.with_prompts.tokens() <= load.budget.max(load.requests) * (1.0 + 1e-9));
            let more = alone.in_step(&load, f64::from(replicas) + 1.0);
            prop_assert!(more.disturbed >= all.disturbed * (1.0 - 1e-9) && all.disturbed >= alone.disturbed * (1.0 - 1e-9));
            prop_assert!(more.with_prompts.tokens() >= all.with_prompts.tokens() * (1.0 - 1e-9));
        }
    }

    /// Eight replicas with 20 requests of 100 steps each: mean tokens of the most loaded one, compared with start times
    /// drawn from a linear congruential generator.
    #[test]
    fn most_loaded_replica_matches_sampled_start_times() {
        let load = Load { prompt: 64.0, output: 100.0, requests: 20.0, budget: 8192.0, beginnings: Beginnings::Spread };
        let rhythm = Rhythm::of(&load).in_step(&load, 8.0);
        let with = (rhythm.first + rhythm.disturbed) / rhythm.steps();
        let told = with * rhythm.with_prompts.tokens() + (1.0 - with) * rhythm.without.tokens();
        let (mut state, mut fullest) = (12_345_u64, 0);
        for _ in 0..2000 {
            let mut most = [0; 100];
            for _ in 0..8 {
                let mut begun = [0; 100];
                for _ in 0..20 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    begun[(state >> 33) as usize % 100] += 1;
                }
                most.iter_mut().zip(begun).for_each(|(most, own)| *most = own.max(*most));
            }
            fullest += most.iter().map(|one| 20 + 63 * one).sum::<u64>();
        }
        let drawn = fullest as f64 / 200_000.0;
        assert!((told / drawn - 1.0).abs() < 0.01, "{told} {drawn}");
        // A single replica has 20 tokens, and 63 more when one of its requests starts.
        assert!(told > 2.0 * (20.0 + 63.0 * 0.2));
    }

    /// One variable has its own mean; two are compared with the sum over all pairs.
    #[test]
    fn poisson_maximum_matches_direct_sums() {
        for mean in [0.0, 0.3, 4.0, 30.0, 300.0] {
            assert!((greatest(mean, 1.0) - mean).abs() < 1e-6 * (1.0 + mean), "{mean}");
        }
        let mean: f64 = 3.0;
        let mut each = vec![(-mean).exp()];
        (1..60).for_each(|k| each.push(each[k - 1] * mean / k as f64));
        let pairs = (0..60).flat_map(|a| (0..60).map(move |b| (a, b)));
        let both: f64 = pairs.map(|(a, b)| a.max(b) as f64 * each[a] * each[b]).sum();
        assert!((greatest(mean, 2.0) - both).abs() < 1e-9, "{both}");
        assert!((7.0..10.0).contains(&greatest(3.0, 64.0)));
        // No jump at the switch to the normal approximation; the maximum of 64 normal variables is 2.4 standard
        // deviations above the mean.
        assert!((greatest(500.1, 64.0) - greatest(499.9, 64.0) - 0.2).abs() < 0.02);
        assert!((greatest(2000.0, 64.0) / (2000.0 + 2.4 * 2000.0f64.sqrt()) - 1.0).abs() < 0.003);
    }

    impl Rhythm {
        /// Steps of a cycle without prefill of any request.
        fn quiet_of_all(&self, load: &Load) -> f64 {
            if self.quiet == 0.0 { 0.0 } else { self.steps() - load.requests / self.with_prompts.ending }
        }
    }

    /// Two replicas just below and just above the load at which all steps have prefill: the most loaded one decodes
    /// equally many tokens in steps with prefill.
    #[test]
    fn lockstep_is_continuous_at_full_prefill() {
        let load = |output: f64| Load { prompt: 50.0, output, requests: 40.0, budget: 8192.0, ..few() };
        let [quiet, always] = [40.0, 40.0 - 1e-9].map(|output| Rhythm::of(&load(output)));
        let [before, after] = [&quiet, &always].map(|rhythm| rhythm.in_step(&load(40.0), 2.0).with_prompts);
        assert!(
            (before.decode - after.decode).abs() < 1e-6 && (before.tokens() - after.tokens()).abs() < 1e-6,
            "{before:?} {after:?}"
        );
        assert!(after.decode < always.with_prompts.decode);
    }

    fn few() -> Load {
        Load { prompt: 1.0, output: 1.0, requests: 1.0, budget: 1.0, beginnings: Beginnings::Spread }
    }

    #[test]
    fn single_request_has_no_interference() {
        let one = Load { prompt: 5000.0, output: 100.0, requests: 1.0, budget: 2048.0, beginnings: Beginnings::Spread };
        let rhythm = Rhythm::of(&one);
        assert_eq!((rhythm.first, rhythm.disturbed, rhythm.quiet), (3.0, 0.0, 99.0));
        assert_eq!((rhythm.with_prompts.decode, rhythm.without.decode), (0.0, 1.0));
    }

    /// 40 requests with prompts of 101 tokens and steps of 1,040: ten prompts fit, since each adds 100 tokens to the
    /// decode token it replaces. So 4 of 50 steps have prefill, with 30 decode tokens each.
    #[test]
    fn batch_requests_start_simultaneously() {
        let load =
            Load { prompt: 101.0, output: 50.0, requests: 40.0, budget: 1040.0, beginnings: Beginnings::Together };
        let rhythm = Rhythm::of(&load);
        assert_eq!(
            rhythm.with_prompts,
            Mix { decode: 30.0, prefill: 1010.0, chunks: 10.0, ending: 10.0, beyond_mean: 0.0 }
        );
        assert_eq!((rhythm.first, rhythm.disturbed, rhythm.quiet, rhythm.without.decode), (1.0, 3.0, 46.0, 40.0));
        // Spread over time, they start one by one.
        let spread = Rhythm::of(&Load { beginnings: Beginnings::Spread, ..load });
        assert_eq!((spread.with_prompts.prefill, spread.disturbed, spread.quiet), (101.0, 39.0, 10.0));
        // A remainder needs a step of its own: 41 requests in five steps of 8.2.
        let over = Rhythm::of(&Load { requests: 41.0, budget: 1041.0, ..load });
        assert_eq!((over.disturbed, over.with_prompts.ending), (4.0, 8.2));
        // Prompts of four steps each, with 39 decode tokens; ten prompts of two and a half steps fill 25 steps of 100
        // tokens.
        let long = Rhythm::of(&Load { prompt: 4004.0, output: 1000.0, ..load });
        assert_eq!((long.first, long.with_prompts.decode, long.with_prompts.prefill), (4.0, 39.0, 1001.0));
        let parts = Rhythm::of(&Load { prompt: 250.0, requests: 10.0, budget: 109.0, ..load });
        assert_eq!((parts.first, parts.disturbed, parts.with_prompts.prefill), (2.5, 22.5, 100.0));
    }

    #[test]
    fn requests_beyond_the_budget_are_queued() {
        // 2048 tokens per step: 2048 / (1024 + 99) requests end in each.
        let of = |requests: f64| {
            Rhythm::of(&Load {
                prompt: 1024.0,
                output: 100.0,
                requests,
                budget: 2048.0,
                beginnings: Beginnings::Spread,
            })
        };
        let (some, more) = (of(500.0), of(600.0));
        assert_eq!(some.with_prompts, more.with_prompts);
        let rate = 2048.0 / 1123.0;
        assert!((more.first - some.first - 100.0 / rate).abs() < 1e-9);
        assert!((some.with_prompts.decode + some.with_prompts.prefill - 2048.0).abs() < 1e-9);
    }
}
