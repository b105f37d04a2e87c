//! Comparison of batches of requests with a step-by-step scheduler.

use super::*;

/// Full rounds of a batch have equal times, and one more request adds a round. The time to drain the last round does
/// not depend on the number of rounds.
#[test]
fn batches_run_in_rounds() {
    let simulate = |requests: u64| {
        let job = served(&format!("requests = {requests}\nmax_num_seqs = 50\nparallel = {{ tp = 8 }}\n"));
        let (_, service) = simulate_flat(&job, H100, 300e9);
        let seconds = (requests * job.output_tokens) as f64 / service.tokens_per_s;
        (service.concurrent_requests, seconds, service.latency.0 as f64 / 1e12, service.ttft)
    };
    let [(concurrent_50, one, round, _), (concurrent_200, four, ..), (_, two, ..), (_, more, ..)] =
        [50, 200, 100, 101].map(simulate);
    let (_, alone, ..) = simulate(1);
    assert_eq!((concurrent_50, concurrent_200, simulate(50).3), (50, 50, None));
    let drained = one - round;
    assert!(drained > 0.0 && drained < 0.1 * round, "{one} {round}");
    assert!((two - one - round).abs() < 1e-9 && (four - two - 2.0 * round).abs() < 1e-9, "{one} {two} {four} {round}");
    // A batch of a single request has no draining phase.
    assert!((more - (two - drained + alone)).abs() < 1e-9, "{more} {two} {alone}");
}

/// A batch ends with the replica that has one request more than the others.
#[test]
fn batches_end_with_the_most_loaded_replica() {
    let seconds = |requests: u64| {
        let job = served(&format!("requests = {requests}\nparallel = {{ dp = 8 }}\n"));
        (requests * job.output_tokens) as f64 / simulate_flat(&job, H100, 300e9).1.tokens_per_s
    };
    let [eight, nine, sixteen] = [8, 9, 16].map(seconds);
    assert!(eight < nine && (nine / sixteen - 1.0).abs() < 1e-9, "{eight} {nine} {sixteen}");
}

/// Step-by-step scheduler that serves as the oracle. It starts a prompt when a part of it fits in a step next to the
/// decode tokens.
fn simulate_scheduler(
    job: &Serving,
    requests: u64,
    max_concurrent: u64,
    mut step: impl FnMut(f64, f64, f64) -> f64,
) -> f64 {
    let (prompt, output, budget) = (job.new_tokens(), job.output_tokens, job.max_batched_tokens);
    // Remaining prompt and output tokens of the concurrent requests.
    let mut active: Vec<(u64, u64)> = Vec::new();
    let (mut waiting, mut seconds) = (requests, 0.0);
    while waiting > 0 || !active.is_empty() {
        while waiting > 0 && active.len() < max_concurrent as usize {
            active.push((prompt, output));
            waiting -= 1;
        }
        let decode = active.iter().filter(|request| request.0 == 0).count() as u64;
        let (mut room, mut prefill, mut ending) = (budget.saturating_sub(decode), 0, 0);
        for request in &mut active {
            let used = request.0.min(room);
            match request.0 {
                0 => request.1 -= 1,
                remaining if used == remaining && used > 0 => {
                    (request.0, request.1, ending) = (0, request.1 - 1, ending + 1);
                }
                remaining => request.0 = remaining - used,
            }
            if request.0 > 0 || used > 0 {
                (room, prefill) = (room - used, prefill + used);
            }
        }
        seconds += step(decode as f64, prefill as f64, f64::from(ending));
        active.retain(|request| request.0 > 0 || request.1 > 0);
    }
    seconds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Batch times match those of the step-by-step scheduler, which uses the same cost of a step.
    #[test]
    fn batch_time_matches_step_by_step_scheduler(
        requests in 1u64..400, max_concurrent in 1u64..120, prompt in 1u64..3000, output in 2u64..300, budget in 512u64..8192,
    ) {
        let job = served(&format!(
            "requests = {requests}\nmax_num_seqs = {max_concurrent}\nprompt_tokens = {prompt}\noutput_tokens = {output}\n\
             max_batched_tokens = {budget}\nparallel = {{ tp = 1 }}\n\
             model = {{ layers = 8, hidden = 2048, heads = 16, kv_heads = 4, ffn = 4096, gated = true, vocab = 32000 }}\n"
        ));
        let (flat_costs, layout) = (FlatCosts(300e9), specified_layout(&job));
        let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat_costs };
        let (_, service) = simulate_service(&loaded(&job), &layout, &costs).unwrap();
        let predicted = (requests * output) as f64 / service.tokens_per_s;
        let mut longest: f64 = 0.0;
        let simulated = simulate_scheduler(&job, requests, max_concurrent, |decode, prefill, finished_prefills| {
            let mix = StepTokens { decode, prefill, chunks: prefill / prompt as f64, finished_prefills, ..StepTokens::default() };
            let time = costs.step(&loaded(&job), &layout, &mix, &AttentionContext::in_steady_state(&job, 1.0), 1.0).unwrap().time_shares().time().0 as f64 / 1e12;
            longest = longest.max(time);
            time
        });
        // Rounds of the scheduler consist of whole steps, so each may have one step more than predicted.
        let rounds = (requests as f64 / max_concurrent as f64).ceil();
        prop_assert!((predicted - simulated).abs() < 0.03 * simulated + rounds * longest, "{predicted} {simulated}");
    }
}
