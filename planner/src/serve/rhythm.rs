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
//! Requests of a batch are all there at the start and equally long, so that their beginnings have not spread: a step with prompts takes
//! as many as fit, until all in flight have begun, and those that follow begin as these end. A step has room for `x` prompts beside the
//! answers of the others, `x (P - 1) = budget - c`, so that `⌈c / x⌉` steps of a round carry prompts, as many each, and the rest, up to `O`
//! in all, none. Where not one fits, parts of them fill `⌈c P / (budget - c + 1)⌉` steps.

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
                with_prompts: Mix { decode: others, prefill: prompt / chunks, chunks: 1.0, ending: 1.0 / chunks },
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
            with_prompts: Mix { decode: requests - taken, prefill: ending * prompt, chunks: taken, ending },
            without: Mix { decode: requests, ..Mix::default() },
            first,
            disturbed: with - first,
            quiet: output - 1.0 - (with - first),
            chunks: first,
        })
    }

    /// Steps of a request.
    #[must_use]
    pub fn steps(&self) -> f64 {
        self.first + self.disturbed + self.quiet
    }
}

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

    impl Rhythm {
        /// Steps of a cycle in which no request has its prompt taken.
        fn quiet_of_all(&self, load: &Load) -> f64 {
            if self.quiet == 0.0 { 0.0 } else { self.steps() - load.requests / self.with_prompts.ending }
        }
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
        assert_eq!(rhythm.with_prompts, Mix { decode: 30.0, prefill: 1010.0, chunks: 10.0, ending: 10.0 });
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
