//! Steady states against closed forms and conservation of tokens.

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
    let expected = prefill_share * batch.with_prefill.tokens() + (1.0 - prefill_share) * batch.without_prefill.tokens();
    let (mut state, mut fullest) = (12_345_u64, 0);
    for _ in 0..2000 {
        let mut max_starts = [0; 100];
        for _ in 0..8 {
            let mut starts = [0; 100];
            for _ in 0..20 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                starts[(state >> 33) as usize % 100] += 1;
            }
            max_starts.iter_mut().zip(starts).for_each(|(max_starts, starts)| *max_starts = starts.max(*max_starts));
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
        (batch.steps_to_first_token + batch.wait_for_last_step, batch.steps_with_prefill, batch.steps_without_prefill),
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
        StepTokens { decode: 30.0, prefill: 1010.0, chunks: 10.0, finished_prefills: 10.0, ..StepTokens::default() }
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
    assert_eq!((long.steps_to_first_token, long.with_prefill.decode, long.with_prefill.prefill), (4.0, 39.0, 1001.0));
    let parts = SteadyBatch::new(&Load { prompt: 250.0, requests: 10.0, budget: 109.0, ..load });
    assert_eq!((parts.steps_to_first_token, parts.steps_with_prefill, parts.with_prefill.prefill), (2.5, 22.5, 100.0));
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
