//! Service of an open loop: requests arrive at a mean rate, and queue if the machine is busy.
//!
//! The requests that run are a closed loop whose number follows from the rate: the smallest with which the machine serves
//! as many requests per second as arrive. Its steps, calls and capacity are those of [`simulate_service`]. Latencies come
//! from a discrete-event simulation of single requests (`queue`), in which each step takes the time of its own tokens.
//!
//! ```text
//! request_source ─► queue: scheduler of each stream ─► StepCosts ─► latencies
//!               └─► tandem: queue of prefill ─► transfer_queue ─► queue of decode
//! ```

mod client_benchmark;
mod latencies;
mod queue;
mod request_source;
mod scheduler;
mod tandem;
mod transfer_queue;

#[cfg(test)]
mod benchmark_tests;
#[cfg(test)]
mod tests;

use fabricast_topologies::Picos;

pub(super) use client_benchmark::{ClientLoad, simulate_clients};
pub use latencies::{LatencySummary, RequestLatencies};
pub(super) use tandem::{ServingPart, TandemTransfers, simulate_tandem};
pub(super) use transfer_queue::{TransferPaths, TransferTime};

use self::latencies::RequestTimes;
use self::queue::{RequestQueue, RequestServer, StepDuration, StepTime, StreamSetup};
use self::request_source::RequestSource;
use self::scheduler::{CachedPrompt, DecodeStep, PlannedStep, StreamLimits};
use super::request_round::Streams;
use super::service::{Service, simulate_service, slo_violations};
use super::step_costs::StepCosts;
use super::stream_step::{StreamStep, TimeShares};
use crate::communication::SampledCosts;
use crate::step::Step;
use crate::time::scaled;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{
    Arrivals, Disaggregation, Layout, Limits, LoadedServing, OpenLoop, RequestVariation, Serving, format_number,
};

/// Number of requests whose latencies are summarized: 50 of them are beyond the 99th percentile.
const SUMMARIZED_REQUESTS: u64 = 5_000;

/// Largest number of repetitions of a benchmark with few requests.
const MAX_REPETITIONS: u64 = 32;

/// Estimates the service of an open loop without queueing, from the closed loop that serves as many requests.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub(super) fn estimate_open_loop(
    job: &LoadedServing<'_>,
    open_loop: &OpenLoop,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<(Step, Service), PlanError> {
    let machine = OpenLoopMachine::new(job, open_loop, layout, costs);
    match machine.equivalent_loop()? {
        EquivalentLoop { step, service, capacity } if machine.is_overloaded(capacity) => {
            Ok((step, machine.overloaded(service, capacity)))
        }
        EquivalentLoop { step, service, .. } => Ok((step, machine.with_violations(service))),
    }
}

/// Simulates the service of an open loop.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub(super) fn simulate_open_loop(
    job: &LoadedServing<'_>,
    open_loop: &OpenLoop,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<(Step, Service), PlanError> {
    let machine = OpenLoopMachine::new(job, open_loop, layout, costs);
    let EquivalentLoop { step, service, capacity } = machine.equivalent_loop()?;
    if machine.is_overloaded(capacity) {
        return Ok((step, machine.overloaded(service, capacity)));
    }
    let sampled = SampledCosts::new(costs.collective_costs);
    let times = StreamTimes { job, layout, costs: StepCosts { collective_costs: &sampled, ..*costs } };
    let setup = stream_setup(job, open_loop.max_num_seqs, layout);
    let server = || RequestQueue::new(&times, setup);
    let simulated = match open_loop.requests {
        None => simulate_steady_state(server(), &job.variation, open_loop, service.concurrent_requests)?,
        Some(requests) => simulate_benchmark(server, &job.variation, open_loop, requests)?,
    };
    if simulated.is_overloaded {
        return Ok((step, machine.overloaded(service, simulated.requests_per_s)));
    }
    let latencies = RequestLatencies::new(&simulated.times);
    // Steps and calls are those of the requests that run, whose number follows from their rate and time (Little's law).
    let in_system = latencies.map(|latencies| simulated.requests_per_s * latencies.latency.mean.0 as f64 / 1e12);
    let running = in_system.unwrap_or(1.0).round().clamp(1.0, job.concurrent_requests.max(1) as f64) as u64;
    let (step, service) = machine.with_requests(running)?;
    let mean = |summary: Option<LatencySummary>| summary.map(|summary| summary.mean);
    let service = Service {
        ttft: latencies.and_then(|latencies| mean(latencies.ttft)),
        tpot: latencies.and_then(|latencies| mean(latencies.tpot)),
        latency: latencies.map_or(service.latency, |latencies| latencies.latency.mean),
        tokens_per_s: simulated.requests_per_s * job.computed_output_tokens() as f64,
        latencies,
        ..service
    };
    Ok((step, machine.with_violations(service)))
}

/// Closed loop that serves as many requests per second as an open loop has arrivals.
struct EquivalentLoop {
    step: Step,
    service: Service,
    /// Requests that the machine serves per second with as many requests as may run; at most the rate of arrivals.
    capacity: f64,
}

/// Machine that serves an open loop with one layout.
struct OpenLoopMachine<'a> {
    job: &'a LoadedServing<'a>,
    /// The job as a closed loop, without limits.
    closed: Serving,
    open_loop: &'a OpenLoop,
    layout: &'a Layout,
    costs: &'a StepCosts<'a>,
}

impl<'a> OpenLoopMachine<'a> {
    fn new(job: &'a LoadedServing<'a>, open_loop: &'a OpenLoop, layout: &'a Layout, costs: &'a StepCosts<'a>) -> Self {
        let arrivals = Arrivals::AutoConcurrency { max_num_seqs: open_loop.max_num_seqs };
        let closed = Serving { arrivals, limits: Limits::default(), ..job.job.clone() };
        Self { job, closed, open_loop, layout, costs }
    }

    /// Simulates a closed loop of so many requests.
    fn with_requests(&self, concurrent_requests: u64) -> Result<(Step, Service), PlanError> {
        simulate_service(&LoadedServing { job: &self.closed, concurrent_requests }, self.layout, self.costs)
    }

    /// Finds the smallest number of concurrent requests with which as many are served as arrive, or the largest that may
    /// run.
    fn equivalent_loop(&self) -> Result<EquivalentLoop, PlanError> {
        let (rate, output) = (self.open_loop.rate(), self.job.computed_output_tokens().max(1) as f64);
        let with_requests = |concurrent_requests: u64| {
            let (step, service) = self.with_requests(concurrent_requests)?;
            let capacity = service.tokens_per_s / output;
            Ok::<_, PlanError>(EquivalentLoop { step, service, capacity })
        };
        let limit = self.job.concurrent_requests.max(1);
        let full = with_requests(limit)?;
        if full.capacity < rate {
            return Ok(full);
        }
        let (mut insufficient, mut sufficient, mut found) = (0, limit, full);
        while sufficient - insufficient > 1 {
            let middle = u64::midpoint(insufficient, sufficient);
            let candidate = with_requests(middle)?;
            if candidate.capacity < rate {
                insufficient = middle;
            } else {
                (sufficient, found) = (middle, candidate);
            }
        }
        let service = Service { tokens_per_s: rate * output, ..found.service };
        Ok(EquivalentLoop { service, capacity: rate, ..found })
    }

    /// Returns true if more requests arrive than `capacity` per second, without end.
    fn is_overloaded(&self, capacity: f64) -> bool {
        capacity < self.open_loop.rate() && self.open_loop.requests.is_none()
    }

    /// Returns the service of a machine that serves fewer requests than arrive: the number that wait grows without end, and
    /// so do latencies. `served`: requests that are served per second.
    fn overloaded(&self, service: Service, served: f64) -> Service {
        let tokens_per_s = served * self.job.computed_output_tokens() as f64;
        let mut service = self.with_violations(Service { ttft: None, tokens_per_s, ..service });
        service.slo_violations.insert(0, overload_violation(served, self.open_loop));
        service
    }

    /// Returns the service with a message for each limit that it exceeds.
    fn with_violations(&self, service: Service) -> Service {
        Service { slo_violations: open_loop_violations(self.job, &service), ..service }
    }
}

/// Returns a message for each limit of a job that the latencies of its requests exceed.
pub(super) fn open_loop_violations(job: &Serving, service: &Service) -> Vec<String> {
    let statistic = |summary: Option<LatencySummary>| Some(summary?.statistic(job.limits.statistic));
    let [ttft, tpot] = match service.latencies {
        Some(RequestLatencies { ttft, tpot, .. }) => [ttft, tpot].map(statistic),
        None => [service.ttft, service.tpot],
    };
    slo_violations(job, ttft, tpot)
}

/// Message that a machine serves fewer requests than arrive. `served`: requests that are served per second.
pub(super) fn overload_violation(served: f64, open_loop: &OpenLoop) -> String {
    let [served, rate] = [served, open_loop.rate()].map(|rate| format_number((rate * 100.0).round() / 100.0));
    format!("serves {served} of {rate} requests/s")
}

/// Times of steps of a stream.
struct StreamTimes<'a> {
    job: &'a LoadedServing<'a>,
    layout: &'a Layout,
    costs: StepCosts<'a>,
}

impl StepTime for StreamTimes<'_> {
    type Error = PlanError;

    fn step_time(&self, step: &PlannedStep) -> Result<StepDuration, PlanError> {
        let streams = f64::from(self.layout.degrees.pipeline);
        let step = self.costs.step(self.job, self.layout, &step.tokens, &step.context, streams)?;
        let launched = StreamStep { layer: TimeShares { launch: Picos::ZERO, ..step.layer }, ..step };
        Ok(StepDuration {
            idle: step.time_shares().time(),
            device: launched.time_shares().time(),
            launch: scaled(step.layer_launch, step.layers),
        })
    }
}

/// Streams of a layout, one per replica and pipeline stage. The cache of a stream has room for as many requests of mean
/// length as may run at a time.
fn stream_setup(job: &LoadedServing<'_>, max_num_seqs: u64, layout: &Layout) -> StreamSetup {
    let degrees = layout.degrees;
    let streams = u64::from(degrees.data) * u64::from(degrees.pipeline);
    let cached_requests = (Streams::new(job, layout).requests as u64).max(1);
    StreamSetup {
        streams: streams as usize,
        group: if degrees.expert > 1 { streams as usize } else { 1 },
        limits: StreamLimits {
            step_tokens: job.max_batched_tokens,
            requests: max_num_seqs.div_ceil(u64::from(degrees.pipeline).max(1)),
            cached_tokens: cached_requests.saturating_mul(job.tokens()),
        },
        cached_prompt: match job.disaggregation {
            Disaggregation::Decode => CachedPrompt::Whole,
            Disaggregation::None | Disaggregation::Prefill => CachedPrompt::Prefix(job.prefix_hit),
        },
        batching: job.batching,
        scheduler_steps: job.scheduler_steps,
        scheduling: job.scheduling,
        decode: DecodeStep { drafted: job.draft_tokens(), yielded: job.tokens_per_step() },
        delay: job.host.request,
    }
}

/// Requests whose latencies count, and the rate at which they were served.
struct SimulatedRequests {
    times: Vec<RequestTimes>,
    requests_per_s: f64,
    /// True if more requests arrive than are served.
    is_overloaded: bool,
}

/// Simulates requests that never end. Latencies count after as many requests as run at the same time several times over.
/// The machine is overloaded if the number of requests in it grows meanwhile by more than three standard deviations of the
/// number of arrivals.
fn simulate_steady_state<S: RequestServer>(
    mut server: S,
    variation: &RequestVariation,
    open_loop: &OpenLoop,
    running: u64,
) -> Result<SimulatedRequests, S::Error> {
    let ignored = (SUMMARIZED_REQUESTS / 4).max(running.saturating_mul(4));
    let summarized = SUMMARIZED_REQUESTS.max(running);
    let [mut first, mut last] = [Picos::ZERO; 2];
    let (mut counted, mut examined) = (Vec::new(), 0);
    // Later requests arrive until the counted ones have ended.
    for request in RequestSource::new(variation, open_loop.mean_gap, 0) {
        if request.number == ignored {
            first = request.arrival;
        } else if request.number == ignored + summarized {
            last = request.arrival;
        }
        let ended = server.finished().iter().skip(examined);
        counted.extend(ended.filter(|times| (ignored..ignored + summarized).contains(&times.request.number)).copied());
        examined = server.finished().len();
        if counted.len() as u64 >= summarized {
            break;
        }
        server.arrive(request)?;
    }
    let served = server.finished().iter().filter(|times| times.end > first && times.end <= last).count() as f64;
    let deviation = (summarized as f64 / variation.burstiness).sqrt();
    let is_overloaded = summarized as f64 - served > 3.0 * deviation;
    let seconds = ((last - first).0 as f64 / 1e12).max(1e-12);
    let requests_per_s = if is_overloaded { served / seconds } else { open_loop.rate() };
    Ok(SimulatedRequests { times: counted, requests_per_s, is_overloaded })
}

/// Simulates a benchmark on an idle machine, several times if it has few requests.
fn simulate_benchmark<S: RequestServer>(
    server: impl Fn() -> S,
    variation: &RequestVariation,
    open_loop: &OpenLoop,
    requests: u64,
) -> Result<SimulatedRequests, S::Error> {
    let repetitions = SUMMARIZED_REQUESTS.div_ceil(requests.max(1)).min(MAX_REPETITIONS);
    let (mut finished, mut seconds) = (Vec::new(), 0.0);
    for number in 0..repetitions {
        let mut queue = server();
        let mut sent = RequestSource::new(variation, open_loop.mean_gap, number).take(requests as usize);
        let mut first = None;
        sent.try_for_each(|request| {
            first.get_or_insert(request.arrival);
            queue.arrive(request)
        })?;
        queue.drain()?;
        let end = queue.finished().iter().map(|times| times.end).max().unwrap_or_default();
        seconds += (end - first.unwrap_or_default()).0 as f64 / 1e12;
        finished.extend_from_slice(queue.finished());
    }
    let requests_per_s = (repetitions * requests) as f64 / seconds.max(1e-12);
    Ok(SimulatedRequests { times: finished, requests_per_s, is_overloaded: false })
}
