//! Speculative decoding against steps of one token.

use super::*;

fn with(lines: &str, speculation: &str) -> Service {
    let job = served(&format!("{lines}\nspeculation = {speculation}\n"));
    simulate_flat(&job, H100, 300e9).1
}

/// A lookup that proposes tokens which are all accepted: a step of four tokens takes about as long as one of one token, as
/// decode reads the same weights and caches.
#[test]
fn accepted_tokens_divide_the_time_per_token() {
    let lines = "concurrency = 1\noutput_tokens = 401";
    let plain = simulate_flat(&served(&format!("{lines}\n")), H100, 300e9).1;
    let lookup = with(lines, "{ method = \"ngram\", draft_tokens = 3, acceptance = 1.0 }");
    let (plain, lookup) = (plain.tpot.unwrap().0 as f64, lookup.tpot.unwrap().0 as f64);
    assert!((plain / lookup / 4.0 - 1.0).abs() < 0.05, "{plain} {lookup}");
    // Nothing is accepted: only cost.
    let rejected = with(lines, "{ method = \"ngram\", draft_tokens = 3, acceptance = 0.0 }").tpot.unwrap().0 as f64;
    assert!(rejected >= plain, "{rejected} {plain}");
}

/// A drafter costs its passes: EAGLE is slower than a lookup with equal acceptance, by one layer and the logits per token.
#[test]
fn drafters_add_their_passes() {
    let lines = "concurrency = 1\noutput_tokens = 401";
    let tpot = |method: &str, count: u64| {
        let speculation = format!("{{ method = \"{method}\", draft_tokens = {count}, tokens_per_step = 2 }}");
        with(lines, &speculation).tpot.unwrap().0 as f64
    };
    let passes = [2, 4].map(|count| tpot("eagle", count) - tpot("ngram", count));
    assert!(passes[0] > 0.0 && (passes[1] / passes[0] - 2.0).abs() < 0.01, "{passes:?}");
    // Layers of a dense model are equal.
    assert_eq!(tpot("eagle", 3), tpot("mtp", 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// More accepted tokens are never slower.
    #[test]
    fn acceptance_never_hurts(drawn in drawn(), count in 1u64..8, acceptance in 0.0..0.9f64, more in 0.0..0.1f64) {
        let tokens_per_s = |acceptance: f64| {
            let tokens = fabricast_workload::job::Speculation::expected_tokens(acceptance, count);
            let speculation = fabricast_workload::job::Speculation {
                method: fabricast_workload::job::DraftMethod::Eagle,
                draft_tokens: count,
                draft_steps: count,
                tokens_per_step: tokens,
            };
            simulate_flat(&Serving { speculation: Some(speculation), ..drawn.job() }, H100, 300e9).1.tokens_per_s
        };
        let [few, many] = [acceptance, acceptance + more].map(tokens_per_s);
        prop_assert!(many >= few * (1.0 - 1e-9), "{few} {many}");
    }
}
