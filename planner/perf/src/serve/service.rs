//! Latency and throughput of an inference job as seen by its requests, and the calls of its steps.

use fabricast_topologies::Picos;

use super::adapters::swap_time;
use super::attention_context::AttentionContext;
use super::batch::seconds;
use super::closed_loop::ClosedLoop;
use super::disaggregated::DisaggregatedService;
use super::open_loop::{ClientLoad, RequestLatencies, simulate_clients, simulate_open_loop};
use super::request_round::{SteadyState, WeightedTime, steady_batch, sum};
use super::steady_state::{SteadyBatch, StepTokens};
use super::step_costs::{StepCosts, overlaps_halves};
use super::stream_step::StreamStep;
use super::traffic::{expert_calls, traffic};
use crate::communication::{CallCount, Exchange, StepCall, StepExchange};
use crate::step::{Step, Timeline};
use crate::time::share;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{
    Arrivals, Disaggregation, ExpertCall, Layout, Lengths, LoadedServing, MemoryCheck, Phase, Serving,
};

/// Latency and throughput of an inference job.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Time to first token; `None` for a batch, whose requests are queued.
    pub ttft: Option<Picos>,
    /// Time per output token after the first; `None` if there is only one.
    pub tpot: Option<Picos>,
    /// Time from the arrival of a request to its last token; for a batch, from the start of its prefill.
    pub latency: Picos,
    /// Output tokens per second, summed over all replicas.
    pub tokens_per_s: f64,
    /// Time of a step with prefill.
    pub with_prefill: Picos,
    /// Time of a step without prefill; `None` if all steps have prefill.
    pub without_prefill: Option<Picos>,
    /// SLO violations: name of the metric, its value and its limit, in seconds.
    pub slo_violations: Vec<String>,
    /// Number of concurrent requests summed over all replicas.
    pub concurrent_requests: u64,
    /// Percentiles of the latencies of an open loop, or of a benchmark; `None` for other loads, and if more requests arrive than are served.
    pub latencies: Option<RequestLatencies>,
    /// Time to swap a resident adapter; `None` without adapters.
    pub adapter_swap: Option<Picos>,
    /// Result of the memory check; `None` if the memory is unknown.
    pub memory_check: Option<MemoryCheck>,
    /// Pools of GPUs and their transfers; `None` if all GPUs process the same part of requests.
    pub disaggregation: Option<DisaggregatedService>,
}

/// Simulates a job's steps; returns the mean step and the service that its requests get. `memory_check` is set by the
/// caller.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub fn simulate_service(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<(Step, Service), PlanError> {
    if let Arrivals::OpenLoop(open_loop) = &job.arrivals {
        return simulate_open_loop(job, open_loop, layout, costs);
    }
    if let Arrivals::FixedConcurrency { concurrency, requests: Some(requests), .. } = job.arrivals {
        return simulate_clients(
            job,
            ClientLoad { clients: concurrency, requests, cached: job.cached_requests.into() },
            layout,
            costs,
        );
    }
    let round = SteadyState::new(job, layout, costs)?;
    let step = round.step(job, layout, costs);
    let [with_prefill, without_prefill] = round.times();
    let weighted = |time: Picos, weight: f64| WeightedTime { time, weight };
    let decode_time = sum(
        weighted(with_prefill, round.requests.batch.steps_with_prefill),
        weighted(without_prefill, round.requests.batch.steps_without_prefill),
    );
    let spread_ttft = sum(
        weighted(with_prefill, round.requests.batch.steps_to_first_token),
        weighted(round.other_step(), round.requests.batch.wait_for_last_step),
    );
    let later_tokens = job.output_tokens - 1;
    let later_steps = later_tokens as f64 / job.tokens_per_step();
    let (prefill_time, decode_time) = match (job.arrivals, job.lengths) {
        _ if job.disaggregation == Disaggregation::Decode => (Picos::ZERO, decode_time),
        (Arrivals::Batch { .. }, _) | (_, Lengths::Varied) => (spread_ttft, decode_time),
        (_, Lengths::Equal) => {
            let group = SteadyBatch::group_step(&round.requests.load).map(|step| step.with_drafts(job.draft_tokens()));
            let group_time = group.map_or(Ok(Picos::ZERO), |mix| step_time(job, layout, costs, &round, &mix))?;
            let decode = StepTokens { decode: round.requests.load.requests, ..StepTokens::default() };
            let decode = decode.with_drafts(job.draft_tokens());
            let decode_step = step_time(job, layout, costs, &round, &decode)?;
            let prefill = spread_ttft.max(group_time);
            // Later tokens are no faster than in steps without prefill.
            (prefill, (spread_ttft + decode_time - prefill).max(share(decode_step, later_steps)))
        }
    };
    let tpot = (later_tokens > 0).then(|| Picos(decode_time.0 / later_tokens.max(1)));
    let (requests_per_s, latency, ttft) = match job.arrivals {
        Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } | Arrivals::OpenLoop(_) => {
            let rate =
                round.requests.rate(prefill_time + decode_time, round.mean_step(), with_prefill, job.host.request);
            let latency = Picos((round.requests.clients / rate * 1e12).round() as u64);
            let ttft = Some(latency - decode_time).filter(|_| job.disaggregation != Disaggregation::Decode);
            (rate * job.concurrent_requests as f64 / round.streams.requests, latency, ttft)
        }
        Arrivals::Batch { requests, .. } => {
            let seconds = seconds(job, layout, costs, requests, &round)?;
            (requests as f64 / seconds.max(1e-12), prefill_time + decode_time, None)
        }
    };
    let service = Service {
        ttft,
        tpot,
        latency,
        tokens_per_s: requests_per_s * job.computed_output_tokens() as f64,
        with_prefill,
        without_prefill: (round.requests.batch.steps_without_prefill > 0.0).then_some(without_prefill),
        slo_violations: slo_violations(job, ttft, tpot),
        concurrent_requests: job.concurrent_requests,
        latencies: None,
        adapter_swap: swap_time(job, layout, costs.speeds, costs.curve),
        memory_check: None,
        disaggregation: None,
    };
    Ok((step, service))
}

/// Time of a step of one stream with these tokens.
fn step_time(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
    round: &SteadyState,
    mix: &StepTokens,
) -> Result<Picos, PlanError> {
    let context = AttentionContext::in_steady_state(job, 1.0);
    Ok(costs.step(job, layout, mix, &context, round.streams.per_replica)?.time_shares().time())
}

/// Returns the timelines of a stream's step with prefill and of one without, consistent with the times of
/// [`simulate_service`]; `None` if there is no such step.
///
/// # Errors
/// Errors of [`simulate_service`].
pub fn timelines(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<[Option<Timeline>; 2], PlanError> {
    let (streams, ClosedLoop { batch, .. }) = steady_batch(job, layout);
    let steps = costs.simulate_steps(job, layout, &batch, streams.per_replica)?;
    let step_counts = [batch.steps_to_first_token + batch.steps_with_prefill, batch.steps_without_prefill];
    let [with_prefill, without_prefill] = [0, 1].map(|number| {
        let step = steps.get(number).filter(|_| step_counts.get(number).is_some_and(|&count| count > 0.0));
        step.map(StreamStep::timeline)
    });
    Ok([with_prefill, without_prefill])
}

/// Returns the collectives of a mean step, summed over all streams of a replica. If replicas run in lockstep, these are
/// the calls of the most loaded replica, as in the cost model: exact for its own links, and an upper bound for shared
/// ones.
#[must_use]
pub fn calls(job: &LoadedServing<'_>, layout: &Layout) -> Vec<StepCall> {
    let layers = (job.model.layers / u64::from(layout.degrees.pipeline)) as f64;
    let mut calls = Vec::new();
    for MeanShare { mix, part } in mean_shares(job, layout) {
        calls.extend(traffic(job, layout, &mix).into_iter().map(|call| {
            let each = call.count as f64 * part;
            let count = match call.phase {
                _ if call.is_pipeline_transfer() => {
                    CallCount::PipelineTransfers { forward: each, backward: 0.0, wrap_around: 0.0 }
                }
                Phase::LayerForward => CallCount::Calls(layers * each),
                _ => CallCount::Calls(each),
            };
            StepCall { phase: call.phase, exchange: Exchange::new(&call, call.bytes), count }
        }));
    }
    calls
}

/// Returns the dispatches and combines of a mean step by the kernels of a library, summed as in [`calls`].
#[must_use]
pub fn exchanges(job: &LoadedServing<'_>, layout: &Layout) -> Vec<StepExchange> {
    let layers = (job.model.layers / u64::from(layout.degrees.pipeline)) as f64;
    let mut exchanges = Vec::new();
    for MeanShare { mix, part } in mean_shares(job, layout) {
        // Two overlapped batches exchange half of the tokens each.
        let halves = if overlaps_halves(job, layout, &mix) { 2.0 } else { 1.0 };
        exchanges.extend(expert_calls(job, layout, &mix.times(1.0 / halves)).into_iter().map(
            |ExpertCall { phase, exchange, count }| StepExchange {
                phase,
                exchange,
                times: layers * count as f64 * part * halves,
            },
        ));
    }
    exchanges
}

/// Kind of step and its number in a mean step, over all streams of a replica.
struct MeanShare {
    mix: StepTokens,
    part: f64,
}

fn mean_shares(job: &LoadedServing<'_>, layout: &Layout) -> Vec<MeanShare> {
    let (streams, ClosedLoop { batch, .. }) = steady_batch(job, layout);
    let (with_prefill, without_prefill) =
        (batch.steps_to_first_token + batch.steps_with_prefill, batch.steps_without_prefill);
    let share = |mix: StepTokens, steps: f64| {
        let part = steps / (with_prefill + without_prefill) * streams.per_replica;
        (!mix.is_empty() && steps > 0.0).then_some(MeanShare { mix, part })
    };
    [share(batch.with_prefill, with_prefill), share(batch.without_prefill, without_prefill)]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns a message for each SLO limit that the TTFT or TPOT exceeds.
pub(super) fn slo_violations(job: &Serving, ttft: Option<Picos>, tpot: Option<Picos>) -> Vec<String> {
    let checks = [("ttft_s", ttft, job.limits.ttft), ("tpot_s", tpot, job.limits.tpot)];
    let violations = checks.into_iter().filter_map(|(name, value, limit)| {
        let (value, limit) = (value?, limit?);
        let seconds = |time: Picos| time.0 as f64 / 1e12;
        (value > limit).then(|| format!("{name} {:.4} of {}", seconds(value), seconds(limit)))
    });
    violations.collect()
}
