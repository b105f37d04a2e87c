//! Tests of throughput and latency with more concurrent requests.

use super::*;

/// Part of a request's time that depends on the number of its chunks and not on the tokens in them.
struct ChunkOverheads {
    /// Number of chunks per prompt.
    chunks: f64,
    /// Time of kernel launches of prefill and of KV-cache reads by chunks, in all steps with prefill.
    chunk_time: f64,
    /// Time between the end of a prompt and the end of the step that contains it.
    wait: f64,
}

impl ChunkOverheads {
    fn new(job: &Serving, service: &Service) -> Self {
        let (job, layout) = (&loaded(job), &specified_layout(job));
        let (streams, ClosedLoop { batch, .. }) = steady_batch(job, layout);
        let flat_costs = FlatCosts(BANDWIDTH);
        let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: &flat_costs };
        let context = AttentionContext::in_steady_state(job, batch.chunks);
        let seconds = |mix: StepTokens| {
            let step = costs.step(job, layout, &mix, &context, streams.per_replica).unwrap();
            step.time_shares().time().0 as f64 / 1e12
        };
        let decode = StepTokens { decode: batch.with_prefill.decode, ..StepTokens::default() };
        let empty_chunks = StepTokens { prefill: 1e-9, chunks: batch.with_prefill.chunks, ..decode };
        let request_seconds = (job.concurrent_requests * job.output_tokens) as f64 / service.tokens_per_s;
        let steps = batch.steps_to_first_token + batch.steps_with_prefill;
        let longest_step = service.with_prefill.max(service.without_prefill.unwrap_or_default());
        Self {
            chunks: batch.chunks,
            chunk_time: steps * (seconds(empty_chunks) - seconds(decode)) / request_seconds,
            wait: batch.wait_for_last_step * longest_step.0 as f64 / 1e12 / request_seconds,
        }
    }
}

const BANDWIDTH: f64 = 300e9;

/// More concurrent requests reduce neither the throughput nor the latency. Kernels and calls are rounded to picoseconds
/// and bytes. If decode leaves so little room that prompts need more chunks, the throughput falls at most by the cost
/// of these chunks that is independent of their tokens.
pub(super) fn assert_latency_throughput_tradeoff(drawn: &Drawn, more: u64) -> Result<(), TestCaseError> {
    const ROUNDING: f64 = 1e-4;
    let jobs = [drawn.job(), Drawn { concurrency: drawn.concurrency + more, ..drawn.clone() }.job()];
    let services = jobs.each_ref().map(|job| simulate_flat(job, H100, BANDWIDTH).1);
    let [before, after] = [0, 1].map(|number| ChunkOverheads::new(&jobs[number], &services[number]));
    let [fewer, more_requests] = services;
    let new_chunks = (1.0 - before.chunks / after.chunks).max(0.0);
    let tolerance = ROUNDING + new_chunks * after.chunk_time + (after.wait - before.wait).max(0.0);
    prop_assert!(more_requests.tokens_per_s >= fewer.tokens_per_s * (1.0 - tolerance), "{fewer:?} {more_requests:?}");
    prop_assert!(
        more_requests.tpot.unwrap_or_default().0 as f64 >= fewer.tpot.unwrap_or_default().0 as f64 * (1.0 - ROUNDING),
        "{fewer:?} {more_requests:?}"
    );
    prop_assert!(more_requests.latency.0 as f64 >= fewer.latency.0 as f64 * (1.0 - ROUNDING));
    Ok(())
}

/// At the smallest load at which every step has prefill, the most loaded of two replicas decodes no more tokens in
/// these steps than at lower loads.
#[test]
fn concurrency_trades_latency_for_throughput_at_full_prefill() {
    let drawn = Drawn {
        tp: 1,
        pp: 2,
        dp: 2,
        ep: 2,
        sequence: false,
        experts: true,
        prompt: 3426,
        output: 341,
        budget: 608,
        hit: 0.95,
        concurrency: 1360,
    };
    assert_latency_throughput_tradeoff(&drawn, 4).unwrap();
}

/// A prompt of 2,614 new tokens fits in a step with 609 other requests, but not with 624.
#[test]
fn additional_chunk_loses_little_throughput() {
    let drawn = Drawn {
        tp: 1,
        pp: 2,
        dp: 2,
        ep: 2,
        sequence: false,
        experts: true,
        prompt: 4065,
        output: 382,
        budget: 2925,
        hit: 0.357_038_834_863_381_7,
        concurrency: 1218,
    };
    assert_latency_throughput_tradeoff(&drawn, 31).unwrap();
}

/// A prompt of 2,066 new tokens fits in a step with 91 other requests, but not with 91⅛. All of its tokens except a
/// fraction of one still fit.
#[test]
fn prompts_slightly_larger_than_a_step_cost_slightly_more() {
    let drawn = Drawn {
        tp: 1,
        pp: 1,
        dp: 8,
        ep: 8,
        sequence: false,
        experts: true,
        prompt: 5789,
        output: 364,
        budget: 2157,
        hit: 0.643_250_653_826_832_9,
        concurrency: 736,
    };
    assert_latency_throughput_tradeoff(&drawn, 1).unwrap();
    let tpot = |concurrency: u64| {
        let (_, service) = simulate_flat(&Drawn { concurrency, ..drawn.clone() }.job(), H100, 300e9);
        service.tpot.unwrap().0 as f64
    };
    let [before, at, after] = [735, 736, 737].map(tpot);
    assert!(((after - at) / (at - before) - 1.0).abs() < 0.02, "{before} {at} {after}");
}
