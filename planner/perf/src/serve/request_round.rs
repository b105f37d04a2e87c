//! Steady state of an inference job: the streams of its schedulers, their batches, and the steps that process them.

use fabricast_topologies::Picos;

use super::attention_context::AttentionContext;
use super::closed_loop::ClosedLoop;
use super::kernels::active_replica_share;
use super::steady_state::{Load, StartTimes, SteadyBatch};
use super::step_costs::StepCosts;
use super::stream_step::StreamStep;
use crate::step::{Share, Step};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Arrivals, Batching, Disaggregation, Layout, Lengths, LoadedServing};

/// Summand of a weighted sum or mean of times.
#[derive(Clone, Copy)]
pub(super) struct WeightedTime {
    pub time: Picos,
    pub weight: f64,
}

impl WeightedTime {
    fn product(self) -> f64 {
        self.time.0 as f64 * self.weight
    }
}

/// Mean of two times by their weights; 0 if both weights are 0.
fn mean(a: WeightedTime, b: WeightedTime) -> Picos {
    Picos(((a.product() + b.product()) / (a.weight + b.weight).max(f64::MIN_POSITIVE)).round() as u64)
}

/// Sum of two times, each multiplied by its weight.
pub(super) fn sum(a: WeightedTime, b: WeightedTime) -> Picos {
    Picos((a.product() + b.product()).round() as u64)
}

/// Steady state of an inference job with the full number of concurrent requests.
pub(super) struct SteadyState {
    pub streams: Streams,
    /// Requests of a stream, and their batch.
    pub requests: ClosedLoop,
    /// Step with prefill, then step without.
    pub steps: [StreamStep; 2],
}

impl SteadyState {
    pub(super) fn new(job: &LoadedServing<'_>, layout: &Layout, costs: &StepCosts<'_>) -> Result<Self, PlanError> {
        let (streams, requests) = steady_batch(job, layout);
        let steps = costs.simulate_steps(job, layout, &requests.batch, streams.per_replica)?;
        Ok(Self { streams, requests, steps })
    }

    pub(super) fn times(&self) -> [Picos; 2] {
        self.steps.map(|step| step.time_shares().time())
    }

    /// Mean time of the steps of a request after its first token; if there are none, time of a step without the
    /// request's prefill.
    pub(super) fn other_step(&self) -> Picos {
        let [with_prefill, without_prefill] = self.times();
        let SteadyBatch { steps_with_prefill, steps_without_prefill, .. } = self.requests.batch;
        if steps_with_prefill + steps_without_prefill > 0.0 {
            mean(
                WeightedTime { time: with_prefill, weight: steps_with_prefill },
                WeightedTime { time: without_prefill, weight: steps_without_prefill },
            )
        } else if self.requests.batch.without_prefill.is_empty() {
            with_prefill
        } else {
            without_prefill
        }
    }

    /// Mean time of the steps of a request.
    pub(super) fn mean_step(&self) -> Picos {
        Picos(
            (self.request_seconds() * 1e12 / (self.requests.batch.steps() + self.requests.batch.wait_for_last_step))
                .round() as u64,
        )
    }

    /// Mean time of a request in seconds, from its first step or its queueing for it to the last output token.
    pub(super) fn request_seconds(&self) -> f64 {
        let [with_prefill, without_prefill] = self.times().map(|time| time.0 as f64 / 1e12);
        with_prefill * (self.requests.batch.steps_to_first_token + self.requests.batch.steps_with_prefill)
            + without_prefill * self.requests.batch.steps_without_prefill
            + self.other_step().0 as f64 / 1e12 * self.requests.batch.wait_for_last_step
    }

    /// Returns the mean of the steps with and without prefill, weighted by their numbers.
    pub(super) fn step(&self, job: &LoadedServing<'_>, layout: &Layout, costs: &StepCosts<'_>) -> Step {
        let Self { streams, requests: ClosedLoop { batch, .. }, steps } = self;
        let [with_prefill, without_prefill] = steps.map(|step| step.time_shares().shares());
        let (steps_with_prefill, steps_without_prefill) =
            (batch.steps_to_first_token + batch.steps_with_prefill, batch.steps_without_prefill);
        let mean_step = |with_prefill: Picos, without_prefill: Picos| {
            mean(
                WeightedTime { time: with_prefill, weight: steps_with_prefill },
                WeightedTime { time: without_prefill, weight: steps_without_prefill },
            )
        };
        let pairs = with_prefill.iter().zip(without_prefill);
        let shares: Vec<(Share, Picos)> = pairs.map(|(&(share, a), (_, b))| (share, mean_step(a, b))).collect();
        // The reference on one GPU processes all streams that hold the concurrent requests, each like the mean.
        let all = job.concurrent_requests as f64 / streams.requests;
        let context = AttentionContext::in_steady_state(job, batch.chunks);
        let [alone_with, alone_without] = [batch.with_prefill, batch.without_prefill]
            .map(|mix| costs.single_gpu_time(job, &mix.mean().times(all), &context));
        Step {
            layout: *layout,
            time: shares.iter().map(|share| share.1).sum(),
            communication: shares.iter().filter(|share| share.0.is_communication()).map(|share| share.1).sum(),
            shares,
            single_gpu_time: mean_step(alone_with, alone_without),
            collectives: job.collectives,
        }
    }
}

/// Number of replicas that have requests and share experts, and so make their steps together.
fn sharing_replicas(job: &LoadedServing<'_>, layout: &Layout) -> f64 {
    f64::from(layout.degrees.expert) * active_replica_share(job, layout)
}

/// Returns the load of one request stream. Replicas in lockstep decode next to the prompts of others.
fn stream_load(job: &LoadedServing<'_>, layout: &Layout, streams: &Streams) -> Load {
    Load {
        prompt: job.new_tokens() as f64,
        // Steps of a request: one for the first token, and those that yield the others.
        output: 1.0 + (job.output_tokens - 1) as f64 / job.tokens_per_step(),
        requests: streams.requests,
        // Proposed tokens of the others leave less room for prompts.
        budget: (job.max_batched_tokens as f64 - (streams.requests - 1.0) * job.draft_tokens() as f64).max(1.0),
        batching: if sharing_replicas(job, layout) > 1.0 { Batching::Mixed } else { job.batching },
        start_times: match job.arrivals {
            Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } | Arrivals::OpenLoop(_) => {
                StartTimes::Spread
            }
            Arrivals::Batch { .. } => StartTimes::Simultaneous,
        },
    }
}

/// Returns the request streams of the schedulers, and the steady state of one stream.
///
/// A request waits for a step if others run in a replica in lockstep, which begins every step. Pipeline stages begin a
/// step of another stream before, which the request joins. Requests of a batch do not wait. Those that arrive with their
/// first token are assumed not to.
pub(super) fn steady_batch(job: &LoadedServing<'_>, layout: &Layout) -> (Streams, ClosedLoop) {
    let (streams, requests) = batch_of_single_tokens(job, layout);
    let [with_prefill, without_prefill] =
        [requests.batch.with_prefill, requests.batch.without_prefill].map(|step| step.with_drafts(job.draft_tokens()));
    (streams, ClosedLoop { batch: SteadyBatch { with_prefill, without_prefill, ..requests.batch }, ..requests })
}

/// Steady state of a stream, with one token of each request that decodes.
fn batch_of_single_tokens(job: &LoadedServing<'_>, layout: &Layout) -> (Streams, ClosedLoop) {
    let streams = Streams::new(job, layout);
    let load = stream_load(job, layout, &streams);
    let clients = load.requests * (1.0 + job.waiting_requests() as f64 / job.concurrent_requests.max(1) as f64);
    if job.disaggregation == Disaggregation::Decode {
        return (streams, ClosedLoop::without_wait(&load, clients, SteadyBatch::decode_only(&load)));
    }
    let sharing_replicas = sharing_replicas(job, layout);
    let in_lockstep = |stream: ClosedLoop| {
        (streams, ClosedLoop { batch: stream.batch.in_lockstep(&stream.load, sharing_replicas), ..stream })
    };
    let replicas = sharing_replicas.max(1.0);
    let others = match (job.arrivals, job.lengths) {
        (Arrivals::Batch { .. }, _) => {
            return in_lockstep(ClosedLoop::without_wait(&load, clients, SteadyBatch::new(&load)));
        }
        (_, Lengths::Varied) => clients * replicas - 1.0,
        // Groups of all replicas start together.
        (_, Lengths::Equal) => (clients - SteadyBatch::group_step(&load).map_or(1.0, |mix| mix.chunks)) * replicas,
    };
    in_lockstep(ClosedLoop::new(&load, clients, others.clamp(0.0, 1.0) / streams.per_replica))
}

/// Streams of requests of the replicas' schedulers: one per concurrent batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Streams {
    /// Number of replicas with requests; at most one per concurrent request.
    pub replicas: f64,
    /// Number of concurrent batches of a replica, each in a different pipeline stage.
    pub per_replica: f64,
    /// Mean number of requests of each batch; rounded up for jobs of a fixed number of requests.
    pub requests: f64,
}

impl Streams {
    pub(super) fn new(job: &LoadedServing<'_>, layout: &Layout) -> Self {
        let requests = job.concurrent_requests as f64;
        let replicas = f64::from(layout.degrees.data).min(requests);
        let per_replica = f64::from(layout.degrees.pipeline).min(requests / replicas);
        let each = requests / replicas / per_replica;
        // Under continuous load replicas alternate in having one request more; a batch ends with the replicas that have
        // it.
        let requests = match job.arrivals {
            Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } | Arrivals::OpenLoop(_) => each,
            Arrivals::Batch { .. } => each.ceil(),
        };
        Self { replicas, per_replica, requests }
    }
}
