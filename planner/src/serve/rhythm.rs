//! Continuous batching once it is steady: what the steps of a replica are made of.
//!
//! A step has room for `budget` tokens. Requests that are being answered take one each; prompts take of what is left, in
//! chunks (Agrawal et al., Sarathi-Serve, arXiv 2403.02310, section 4; vLLM's scheduler does the same with chunked prefill).
//! So many requests are in flight always, and their beginnings have spread evenly over time. Let a prompt of `P` new tokens
//! need `n = ⌈P / (budget - others)⌉` steps and the answer `O - 1` more, the first token coming out of the prompt's last step.
//!
//! - **Few requests**, `c n ≤ n + O - 1`: prompts come one at a time. Each request sees `n` steps of its own prompt, `(c - 1) n`
//!   with another's, and the rest without any. Chunks of a prompt are taken as equal.
//! - **Many**: every step carries prompts. If `x` requests end in each step, it answers `x (O - 1)` others and takes `x P` tokens
//!   of prompts, so `x ≤ budget / (P + O - 1)`, and requests that are beyond that wait for their turn: what they wait
//!   follows from Little's law, `c = x × steps of a request`.
//!
//! Both agree where they meet. Numbers of requests are means, so that a part of one is possible.
//!
//! **Replicas that share experts** take each step together, since tokens of all meet at every layer (vLLM, `vllm/v1/engine/core.py`,
//! `DPEngineCoreProc`: those with nothing to do take steps of dummies). Each takes up prompts when its own requests make room, so that a
//! step lasts as long as that of the fullest. With prompts in a part `f` of a replica's steps, some of `R` has them in `1 - (1 - f)^R`, and
//! the fullest has as many as the greatest of `R` numbers that are Poisson's, as far as a step has room. Experts see the mean of all.
//!
//! Requests of a batch are all there at the start and equally long, so that their beginnings have not spread: a step with prompts takes
//! as many as fit, until all in flight have begun, and those that follow begin as these end. A step has room for `x` prompts beside the
//! answers of the others, `x (P - 1) = budget - c`, so that `⌈c / x⌉` steps of a round carry prompts, as many each, and the rest, up to `O`
//! in all, none, on all replicas alike. Where not one fits, parts of them fill `⌈c P / (budget - c + 1)⌉` steps.

/// What is asked of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// New tokens of a prompt, at least 1.
    pub prompt: f64,
    /// Tokens of an answer, at least 1.
    pub output: f64,
    /// Requests in flight, at least 1.
    pub requests: f64,
    /// Tokens of a step at most, at least 1.
    pub budget: f64,
    /// When they begin.
    pub beginnings: Beginnings,
}

/// When requests in flight begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginnings {
    /// Evenly over time.
    #[default]
    Spread,
    /// As many at once as a step has room for.
    Together,
}

/// What a step is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Tokens that are answers.
    pub decode: f64,
    /// Tokens of prompts.
    pub prefill: f64,
    /// Chunks that these are of, a part of a chunk counted as a part.
    pub chunks: f64,
    /// Prompts that end.
    pub ending: f64,
    /// Tokens more than the replicas that take the step together have in the mean: of the fullest of them.
    pub beyond_mean: f64,
}

impl Mix {
    /// Its tokens.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.decode + self.prefill
    }

    /// Tokens of the mean replica that takes the step with it.
    #[must_use]
    pub fn mean_tokens(&self) -> f64 {
        self.tokens() - self.beyond_mean
    }

    /// The mean replica's, with fewer prompts.
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

/// A request's way through the steps of its replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    /// Steps that carry prompts.
    pub with_prompts: Mix,
    /// Steps that do not.
    pub without: Mix,
    /// Steps up to the first token, all of which carry prompts; those of waiting included.
    pub first: f64,
    /// Steps after it that carry prompts of others.
    pub disturbed: f64,
    /// Steps after it that do not.
    pub quiet: f64,
    /// Chunks of a prompt.
    pub chunks: f64,
}

impl Rhythm {
    /// The steady state of a load.
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
        // Prompts that take several steps do so one after the other.
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

    /// Rounds of requests that begin together; `None` where every step carries prompts, or answers alone fill it.
    fn in_rounds(load: &Load) -> Option<Self> {
        let Load { prompt, output, requests, budget, .. } = *load;
        let room = budget - requests;
        if room < 0.0 {
            return None;
        }
        // Prompts that fit a step beside answers take the places of these; those that do not are taken up in parts, which fill steps.
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

    /// The same where so many replicas take each step together.
    #[must_use]
    pub fn in_step(self, load: &Load, replicas: f64) -> Self {
        if replicas <= 1.0 || load.beginnings == Beginnings::Together {
            return self;
        }
        // Of a replica's steps those with prompts, and of all of theirs those where one of them has some.
        let own = self.with_prompts;
        let is_always = self.quiet <= 0.0;
        let with = if is_always { 1.0 } else { load.requests * self.chunks / self.steps() };
        let [none, no_other] = [replicas, replicas - 1.0].map(|many| (1.0 - with).powf(many));
        let some = 1.0 - none;
        // Chunks of prompts of the fullest in these, as far as there is room, and of the mean.
        let each = own.prefill / own.chunks;
        let room = ((load.budget - own.tokens()) / each).max(0.0);
        let more = (greatest(with * own.chunks, replicas) / some - own.chunks).clamp(0.0, room);
        let mean = if is_always { own.tokens() } else { load.requests + with / some * (each - 1.0) };
        let times = 1.0 + more / own.chunks;
        // Where there is room for more chunks no request waits: each has its prompt taken or is answered. Where the budget binds, `more` is 0.
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

    /// Steps of a request.
    #[must_use]
    pub fn steps(&self) -> f64 {
        self.first + self.disturbed + self.quiet
    }
}

/// The greatest of so many numbers that are Poisson's, in the mean: the sum over `k` of the probability that one is greater.
fn greatest(mean: f64, many: f64) -> f64 {
    if mean > MOST_COUNTED {
        // So many are as numbers of a normal distribution, whose greatest is beyond the mean by so many deviations.
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

/// Prompts of a step that are counted one by one; the exponential of more is nearly nothing.
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

        /// Tokens that go in come out: a request's steps over all requests hold its prompt and its answer once.
        #[test]
        fn tokens_are_conserved(load in load()) {
            let rhythm = Rhythm::of(&load);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            for mix in [rhythm.with_prompts, rhythm.without] {
                prop_assert!(mix.decode + mix.prefill <= load.budget.max(load.requests) * (1.0 + 1e-9), "{rhythm:?}");
                prop_assert!(mix.decode >= 0.0 && mix.prefill >= 0.0);
            }
            prop_assert!(rhythm.with_prompts.decode + rhythm.with_prompts.prefill <= load.budget * (1.0 + 1e-9), "{rhythm:?}");
            // Steps with prompts of a cycle, seen by whoever is in flight.
            let steps = rhythm.steps();
            let with = steps - rhythm.quiet_of_all(&load);
            prop_assert!(near(with * rhythm.with_prompts.prefill, load.requests * load.prompt), "{rhythm:?}");
            let decoded = with * rhythm.with_prompts.decode + (steps - with) * rhythm.without.decode;
            prop_assert!(near(decoded, load.requests * (load.output - 1.0)), "{rhythm:?} {decoded}");
            prop_assert!(near(with * rhythm.with_prompts.ending, load.requests));
            prop_assert!(near(rhythm.disturbed + rhythm.quiet, load.output - 1.0));
            prop_assert!(rhythm.first >= 1.0 - 1e-9 && rhythm.quiet >= -1e-9 && rhythm.disturbed >= -1e-9);
        }

        /// More requests in flight: no fewer end in a step, and no fewer tokens are in one.
        #[test]
        fn more_requests_never_end_slower_in_steps(load in load()) {
            let more = Load { requests: load.requests + 1.0, ..load };
            let rate = |load: &Load| load.requests / Rhythm::of(load).steps();
            prop_assert!(rate(&more) >= rate(&load) * (1.0 - 1e-9), "{} {}", rate(&more), rate(&load));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Replicas in step: the tokens of all are what they were, none is fuller than a step, and more of them never have fewer steps
        /// with prompts, nor the fullest of them less in these.
        #[test]
        fn tokens_of_replicas_in_step_are_conserved(load in load(), replicas in 1u32..200) {
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

    /// Eight replicas of 20 requests of 100 steps each: tokens of the fullest of them in the mean step, against beginnings that are drawn,
    /// each apart, by a generator of remainders.
    #[test]
    fn the_fullest_replica_is_that_of_drawn_beginnings() {
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
        // One alone has 20 tokens, and 63 more where one of its own begins.
        assert!(told > 2.0 * (20.0 + 63.0 * 0.2));
    }

    /// Of one it is its mean; of two, by all pairs of numbers.
    #[test]
    fn the_greatest_of_numbers_of_poisson() {
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
        // Without a step where they are no longer counted: of 64 normal numbers the greatest is 2.4 deviations beyond.
        assert!((greatest(500.1, 64.0) - greatest(499.9, 64.0) - 0.2).abs() < 0.02);
        assert!((greatest(2000.0, 64.0) / (2000.0 + 2.4 * 2000.0f64.sqrt()) - 1.0).abs() < 0.003);
    }

    impl Rhythm {
        /// Steps of a cycle in which no request has its prompt taken.
        fn quiet_of_all(&self, load: &Load) -> f64 {
            if self.quiet == 0.0 { 0.0 } else { self.steps() - load.requests / self.with_prompts.ending }
        }
    }

    /// Two replicas whose requests just leave a step without prompts, and just do not: the fullest answers as many in its steps with prompts.
    #[test]
    fn replicas_in_step_answer_alike_where_quiet_steps_end() {
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
    fn one_request_is_alone() {
        let one = Load { prompt: 5000.0, output: 100.0, requests: 1.0, budget: 2048.0, beginnings: Beginnings::Spread };
        let rhythm = Rhythm::of(&one);
        assert_eq!((rhythm.first, rhythm.disturbed, rhythm.quiet), (3.0, 0.0, 99.0));
        assert_eq!((rhythm.with_prompts.decode, rhythm.without.decode), (0.0, 1.0));
    }

    /// 40 requests with prompts of 101 tokens in steps of 1,040: ten prompts at once, since each takes 100 tokens more than the answer in
    /// whose place it is, so that 4 of 50 steps carry prompts, each with 30 answers.
    #[test]
    fn a_batch_begins_together() {
        let load =
            Load { prompt: 101.0, output: 50.0, requests: 40.0, budget: 1040.0, beginnings: Beginnings::Together };
        let rhythm = Rhythm::of(&load);
        assert_eq!(
            rhythm.with_prompts,
            Mix { decode: 30.0, prefill: 1010.0, chunks: 10.0, ending: 10.0, beyond_mean: 0.0 }
        );
        assert_eq!((rhythm.first, rhythm.disturbed, rhythm.quiet, rhythm.without.decode), (1.0, 3.0, 46.0, 40.0));
        // Spread over time they begin one by one.
        let spread = Rhythm::of(&Load { beginnings: Beginnings::Spread, ..load });
        assert_eq!((spread.with_prompts.prefill, spread.disturbed, spread.quiet), (101.0, 39.0, 10.0));
        // What is over takes a step of its own: 41 requests in five steps of 8.2.
        let over = Rhythm::of(&Load { requests: 41.0, budget: 1041.0, ..load });
        assert_eq!((over.disturbed, over.with_prompts.ending), (4.0, 8.2));
        // Prompts of four steps each, beside 39 answers; ten of two and a half fill 25 steps of 100.
        let long = Rhythm::of(&Load { prompt: 4004.0, output: 1000.0, ..load });
        assert_eq!((long.first, long.with_prompts.decode, long.with_prompts.prefill), (4.0, 39.0, 1001.0));
        let parts = Rhythm::of(&Load { prompt: 250.0, requests: 10.0, budget: 109.0, ..load });
        assert_eq!((parts.first, parts.disturbed, parts.with_prompts.prefill), (2.5, 22.5, 100.0));
    }

    #[test]
    fn what_is_beyond_the_budget_waits() {
        // 2048 tokens of a step: 2048 / (1024 + 99) requests end in it.
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
