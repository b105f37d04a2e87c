//! Benchmark of a fixed number of clients: each sends its first request at the start, and the next one when the last has
//! ended, until all requests of the benchmark are sent.
//!
//! So do the tools of vLLM and SGLang with `--max-concurrency` (`vllm/benchmarks/serve.py`,
//! `python/sglang/bench_serving.py`): a semaphore admits requests in their order, and the time to first token counts from the admission. The
//! start is a burst of prompts, and the number of running requests declines at the end; both are part of means and rates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_search::plan::PlanError;
use fabricast_topologies::Picos;
use fabricast_workload::job::{Layout, LoadedServing, RequestVariation};

use super::super::service::{Service, simulate_service, slo_violations};
use super::super::step_costs::StepCosts;
use super::latencies::{RequestLatencies, RequestTimes};
use super::queue::{RequestQueue, RequestServer, StepTime};
use super::request_source::{Request, RequestLengths, shuffled_lengths};
use super::scheduler::StreamLimits;
use super::{LatencySummary, SampledCosts, StreamSetup, StreamTimes, stream_setup};
use crate::step::Step;

/// Number of requests of all repetitions of a benchmark, if it has fewer.
const SIMULATED_REQUESTS: u64 = 500;

/// Largest number of repetitions.
const MAX_REPETITIONS: u64 = 8;

/// Clients of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct ClientLoad {
    /// Number of clients, over all replicas.
    pub clients: u64,
    /// Number of requests of all clients.
    pub requests: u64,
    /// Number of first requests whose prompts an earlier run has left in the prefix cache.
    pub cached: u64,
}

/// Simulates a benchmark from its start to its end. Steps and calls are those of clients that never stop.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub(in crate::serve) fn simulate_clients(
    job: &LoadedServing<'_>,
    load: ClientLoad,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<(Step, Service), PlanError> {
    let (step, service) = simulate_service(&LoadedServing { job: &job.without_end(), ..*job }, layout, costs)?;
    let sampled = SampledCosts::new(costs.collective_costs);
    let times = StreamTimes { job, layout, costs: StepCosts { collective_costs: &sampled, ..*costs } };
    let setup = benchmark_setup(job, load, layout);
    let repetitions = SIMULATED_REQUESTS.div_ceil(load.requests.max(1)).min(MAX_REPETITIONS);
    let (mut finished, mut seconds) = (Vec::new(), 0.0);
    for number in 0..repetitions {
        let times = run_benchmark(RequestQueue::new(&times, setup), &job.variation, load, number)?;
        seconds += times.iter().map(|times| times.end).max().unwrap_or_default().0 as f64 / 1e12;
        finished.extend(times);
    }
    let latencies = RequestLatencies::new(&finished);
    let output_tokens = finished.iter().map(|times| times.request.output as f64).sum::<f64>();
    let mean = |summary: Option<LatencySummary>| summary.map(|summary| summary.mean);
    let [ttft, tpot] = [latencies.and_then(|of| mean(of.ttft)), latencies.and_then(|of| mean(of.tpot))];
    let service = Service {
        ttft,
        tpot,
        latency: latencies.map_or(service.latency, |latencies| latencies.latency.mean),
        tokens_per_s: output_tokens / seconds.max(1e-12),
        slo_violations: slo_violations(job, ttft, tpot),
        latencies,
        ..service
    };
    Ok((step, service))
}

/// Streams of a benchmark. Their cache has no limit if it holds the requests of all clients at mean length.
fn benchmark_setup(job: &LoadedServing<'_>, load: ClientLoad, layout: &Layout) -> StreamSetup {
    let setup = stream_setup(job, job.concurrent_requests, layout);
    let cached_tokens = if job.concurrent_requests < load.clients { setup.limits.cached_tokens } else { u64::MAX / 2 };
    StreamSetup { limits: StreamLimits { requests: load.clients, cached_tokens, ..setup.limits }, ..setup }
}

/// Simulates the requests of all clients, and returns their times. `seed`: order of their lengths.
pub(super) fn run_benchmark<T: StepTime>(
    mut queue: RequestQueue<'_, T>,
    variation: &RequestVariation,
    load: ClientLoad,
    seed: u64,
) -> Result<Vec<RequestTimes>, T::Error> {
    let mut unsent = (0u64..).zip(shuffled_lengths(variation, load.requests, seed));
    // Times at which clients send their next request.
    let mut ready: BinaryHeap<Reverse<Picos>> =
        (0..load.clients.min(load.requests)).map(|_| Reverse(Picos::ZERO)).collect();
    let mut examined = 0;
    loop {
        let arrival = ready.peek().map(|&Reverse(arrival)| arrival);
        match (arrival, queue.next_event()) {
            (None, None) => break,
            // Ends of later steps are later.
            (Some(arrival), event) if event.is_none_or(|event| arrival + queue.delay() <= event) => {
                ready.pop();
                if let Some((number, RequestLengths { prompt, output })) = unsent.next() {
                    let cached = if number < load.cached { prompt } else { 0 };
                    queue.arrive(Request { number, arrival, prompt, output, cached })?;
                }
            }
            (_, event) => queue.run_until(event.unwrap_or_default())?,
        }
        ready.extend(queue.finished().iter().skip(examined).map(|ended| Reverse(ended.end)));
        examined = queue.finished().len();
    }
    Ok(queue.finished)
}
