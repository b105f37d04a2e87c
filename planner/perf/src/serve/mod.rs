//! Performance of inference jobs: time to first token (TTFT), time per output token (TPOT) and throughput.
//!
//! ```text
//! Serving × Layout ─► steady_state: composition of batches ─► kernels ─► Efficiency ─┐
//!                                                        └──► traffic ─► cost model ─┴─► Step, Service
//! ```
//!
//! Kernel times use the same efficiency curve as training. Collectives use `plan` and the simulator, with all groups
//! concurrent. Kernels and calls of a step are sequential, as in vLLM. CPU time between steps is ignored.
//!
//! With pipeline parallelism each stage processes a different stream of requests, as vLLM runs as many concurrent
//! batches as there are stages. A stream's step passes through all stages, and its next step starts when the slowest
//! stage has processed all streams.

mod batch;
mod kernels;
mod search;
mod steady_state;
mod stream_step;
mod traffic;

pub use kernels::{AttentionKernel, Work, chosen_experts, embedding, layer, logits};
pub use search::mean_step;
pub use search::{ServiceRun, best_service, service_without_memory_limit, step_timelines};
pub use steady_state::{Load, StartTimes, SteadyBatch, StepTokens};
pub use traffic::traffic;

use fabricast_topologies::Picos;
use rayon::prelude::*;

use crate::step::{
    CallCount, CommunicationCostModel, Efficiency, Exchange, Kernel, PeakRates, Share, Step, StepCall, Timeline,
    exchange, scaled,
};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{
    Arrivals, Degrees, Dimension, GroupCall, Layout, LoadedServing, MemoryCheck, Phase, Serving,
};
use stream_step::{StreamStep, TimeShares};

/// Performance of an inference job.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Time to first token; `None` for a batch, whose requests are queued.
    pub ttft: Option<Picos>,
    /// Time per output token after the first; `None` if there is only one.
    pub tpot: Option<Picos>,
    /// Time from a request to its last token; for a batch, from the start of its prefill.
    pub latency: Picos,
    /// Output tokens per second, of all replicas.
    pub tokens_per_s: f64,
    /// Time of a step with prefill.
    pub with_prefill: Picos,
    /// Time of a step without prefill; `None` if all steps have prefill.
    pub without_prefill: Option<Picos>,
    /// SLO violations.
    pub slo_violations: Vec<String>,
    /// Concurrent requests of all replicas.
    pub concurrent_requests: u64,
    /// Result of the memory check; `None` if the memory is unknown.
    pub memory_check: Option<MemoryCheck>,
}

/// Cost models for the time of steps.
#[derive(Clone, Copy)]
pub struct StepCosts<'a> {
    /// Peak rates of the GPU.
    pub speeds: &'a PeakRates,
    /// Efficiency curve of kernels.
    pub curve: &'a Efficiency,
    /// Cost model of collectives.
    pub collective_costs: &'a dyn CommunicationCostModel,
}

/// Time with a weight.
#[derive(Clone, Copy)]
struct WeightedTime {
    time: Picos,
    weight: f64,
}

impl WeightedTime {
    fn product(self) -> f64 {
        self.time.0 as f64 * self.weight
    }
}

/// Weighted mean of two times.
fn mean(a: WeightedTime, b: WeightedTime) -> Picos {
    Picos(((a.product() + b.product()) / (a.weight + b.weight).max(f64::MIN_POSITIVE)).round() as u64)
}

/// Weighted sum of two times.
fn sum(a: WeightedTime, b: WeightedTime) -> Picos {
    Picos((a.product() + b.product()).round() as u64)
}

/// Simulates a job's steps and the performance that its requests see. The caller sets `memory_check`.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub fn simulate_service(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<(Step, Service), PlanError> {
    let round = SteadyState::new(job, layout, costs)?;
    let step = round.step(job, layout, costs);
    let [with_prefill, without_prefill] = round.times();
    let weighted = |time: Picos, weight: f64| WeightedTime { time, weight };
    let decode_time = sum(
        weighted(with_prefill, round.batch.steps_with_prefill),
        weighted(without_prefill, round.batch.steps_without_prefill),
    );
    let later_tokens = job.output_tokens - 1;
    let tpot = (later_tokens > 0).then(|| Picos(decode_time.0 / later_tokens.max(1)));
    let time_to_first_token =
        sum(weighted(with_prefill, round.batch.steps_to_first_token), weighted(without_prefill, 0.0));
    let (requests, seconds, ttft) = match job.arrivals {
        Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } => {
            (job.concurrent_requests, round.request_seconds(), Some(time_to_first_token))
        }
        Arrivals::Batch { requests, .. } => (requests, batch::seconds(job, layout, costs, requests, &round)?, None),
    };
    let service = Service {
        ttft,
        tpot,
        latency: time_to_first_token + decode_time,
        tokens_per_s: requests as f64 * job.output_tokens as f64 / seconds.max(1e-12),
        with_prefill,
        without_prefill: (round.batch.steps_without_prefill > 0.0).then_some(without_prefill),
        slo_violations: slo_violations(job, ttft, tpot),
        concurrent_requests: job.concurrent_requests,
        memory_check: None,
    };
    Ok((step, service))
}

/// Steady state with the full number of concurrent requests.
struct SteadyState {
    streams: Streams,
    batch: SteadyBatch,
    /// Steps with prefill and without.
    steps: [StreamStep; 2],
}

impl SteadyState {
    fn new(job: &LoadedServing<'_>, layout: &Layout, costs: &StepCosts<'_>) -> Result<Self, PlanError> {
        let (streams, batch) = steady_batch(job, layout);
        let steps = costs.simulate_steps(job, layout, &batch, &streams)?;
        Ok(Self { streams, batch, steps })
    }

    fn times(&self) -> [Picos; 2] {
        self.steps.map(|step| step.time_shares().time())
    }

    /// Seconds from a request's start to its last token.
    fn request_seconds(&self) -> f64 {
        let [with_prefill, without_prefill] = self.times().map(|time| time.0 as f64 / 1e12);
        with_prefill * (self.batch.steps_to_first_token + self.batch.steps_with_prefill)
            + without_prefill * self.batch.steps_without_prefill
    }

    /// Returns the mean step.
    fn step(&self, job: &LoadedServing<'_>, layout: &Layout, costs: &StepCosts<'_>) -> Step {
        let Self { streams, batch, steps } = self;
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
        let [alone_with, alone_without] = [batch.with_prefill, batch.without_prefill]
            .map(|mix| costs.single_gpu_time(job, &mix.mean().times(all), batch.chunks));
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

/// Returns the timelines of a stream's step with prefill and of one without, consistent with the times of [`simulate_service`];
/// `None` if there is no such step.
///
/// # Errors
/// Errors of [`simulate_service`].
pub fn timelines(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
) -> Result<[Option<Timeline>; 2], PlanError> {
    let (streams, batch) = steady_batch(job, layout);
    let steps = costs.simulate_steps(job, layout, &batch, &streams)?;
    let step_counts = [batch.steps_to_first_token + batch.steps_with_prefill, batch.steps_without_prefill];
    let [with_prefill, without_prefill] = [0, 1].map(|number| {
        let step = steps.get(number).filter(|_| step_counts.get(number).is_some_and(|&count| count > 0.0));
        step.map(StreamStep::timeline)
    });
    Ok([with_prefill, without_prefill])
}

/// Returns the collectives of a mean step, of all streams of a replica. If replicas run in lockstep, they are those of
/// the most loaded one, as in the cost model: exact for its own links, and an upper bound for shared ones.
#[must_use]
pub fn calls(job: &LoadedServing<'_>, layout: &Layout) -> Vec<StepCall> {
    let (streams, batch) = steady_batch(job, layout);
    let (steps_with_prefill, steps_without_prefill) =
        (batch.steps_to_first_token + batch.steps_with_prefill, batch.steps_without_prefill);
    let layers = (job.model.layers / u64::from(layout.degrees.pipeline)) as f64;
    let mut calls = Vec::new();
    for (mix, steps) in [(&batch.with_prefill, steps_with_prefill), (&batch.without_prefill, steps_without_prefill)] {
        if mix.is_empty() || steps <= 0.0 {
            continue;
        }
        let part = steps / (steps_with_prefill + steps_without_prefill) * streams.per_replica;
        calls.extend(traffic(job, layout, mix).into_iter().map(|call| {
            let each = call.count as f64 * part;
            let count = match call.phase {
                _ if call.is_pipeline_transfer() => {
                    CallCount::PipelineTransfers { forward: each, backward: 0.0, wrap_around: 0.0 }
                }
                Phase::LayerForward => CallCount::Calls(layers * each),
                _ => CallCount::Calls(each),
            };
            StepCall { phase: call.phase, exchange: exchange(&call, call.bytes), count }
        }));
    }
    calls
}

/// Returns the streams of the schedulers, and the steady-state batch of each.
fn steady_batch(job: &LoadedServing<'_>, layout: &Layout) -> (Streams, SteadyBatch) {
    let streams = Streams::new(job, layout);
    let load = Load {
        prompt: job.new_tokens() as f64,
        output: job.output_tokens as f64,
        requests: streams.requests,
        budget: job.max_batched_tokens as f64,
        start_times: match job.arrivals {
            Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } => StartTimes::Spread,
            Arrivals::Batch { .. } => StartTimes::Simultaneous,
        },
    };
    // Replicas that share experts and have requests.
    let sharing_replicas = f64::from(layout.degrees.expert) * kernels::active_replica_share(job, layout);
    (streams, SteadyBatch::new(&load).in_lockstep(&load, sharing_replicas))
}

/// Returns the SLO violations.
fn slo_violations(job: &Serving, ttft: Option<Picos>, tpot: Option<Picos>) -> Vec<String> {
    let checks = [("ttft_s", ttft, job.limits.ttft), ("tpot_s", tpot, job.limits.tpot)];
    let violations = checks.into_iter().filter_map(|(name, value, limit)| {
        let (value, limit) = (value?, limit?);
        let seconds = |time: Picos| time.0 as f64 / 1e12;
        (value > limit).then(|| format!("{name} {:.4} of {}", seconds(value), seconds(limit)))
    });
    violations.collect()
}

/// Requests per scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Streams {
    /// Replicas with requests.
    replicas: f64,
    /// Concurrent batches of a replica, each in a different stage.
    per_replica: f64,
    /// Requests of each batch.
    requests: f64,
}

impl Streams {
    fn new(job: &LoadedServing<'_>, layout: &Layout) -> Self {
        let requests = job.concurrent_requests as f64;
        let replicas = f64::from(layout.degrees.data).min(requests);
        let per_replica = f64::from(layout.degrees.pipeline).min(requests / replicas);
        let each = requests / replicas / per_replica;
        // Under continuous load replicas alternate in having one request more; a batch ends with the replicas that have
        // it.
        let requests = match job.arrivals {
            Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } => each,
            Arrivals::Batch { .. } => each.ceil(),
        };
        Self { replicas, per_replica, requests }
    }
}

impl StepTokens {
    fn times(&self, count: f64) -> Self {
        Self {
            decode: self.decode * count,
            prefill: self.prefill * count,
            chunks: self.chunks * count,
            finished_prefills: self.finished_prefills * count,
            imbalance: self.imbalance * count,
        }
    }

    /// Returns true if the step has no tokens.
    fn is_empty(&self) -> bool {
        self.tokens() <= 0.0
    }
}

impl StepCosts<'_> {
    /// Simulates steps with prefill and without.
    fn simulate_steps(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        batch: &SteadyBatch,
        streams: &Streams,
    ) -> Result<[StreamStep; 2], PlanError> {
        let mixes = [batch.with_prefill, batch.without_prefill];
        let steps: Vec<Result<StreamStep, PlanError>> = mixes
            .par_iter()
            .with_max_len(1)
            .map(|mix| self.step(job, layout, mix, batch.chunks, streams.per_replica))
            .collect();
        Ok(<[StreamStep; 2]>::try_from(steps.into_iter().collect::<Result<Vec<_>, _>>()?).unwrap_or_default())
    }

    /// Simulates a step of a stream.
    fn step(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        mix: &StepTokens,
        chunks: f64,
        streams: f64,
    ) -> Result<StreamStep, PlanError> {
        if mix.is_empty() {
            return Ok(StreamStep::default());
        }
        let calls = traffic(job, layout, mix);
        let times: Vec<Result<Picos, PlanError>> =
            calls.par_iter().with_max_len(1).map(|call| self.call_time(layout, call)).collect();
        let times = times.into_iter().collect::<Result<Vec<Picos>, PlanError>>()?;
        let total = |phase: Phase, dimension: Option<Dimension>| -> Picos {
            let matching = calls
                .iter()
                .zip(&times)
                .filter(|(call, _)| call.phase == phase && dimension.is_none_or(|wanted| wanted == call.dimension));
            matching.map(|(call, &time)| scaled(time, call.count)).sum()
        };
        let stages = u64::from(layout.degrees.pipeline);
        Ok(StreamStep {
            layer: TimeShares {
                compute: self.work(&layer(job, layout, mix, chunks)),
                tensor: total(Phase::LayerForward, Some(Dimension::Tensor)),
                expert: total(Phase::LayerForward, Some(Dimension::Expert)),
                ..TimeShares::default()
            },
            first: (self.work(&embedding(job, mix)), total(Phase::Embedding, None)),
            last: (self.work(&logits(job, layout, mix)), total(Phase::Logits, None)),
            pipeline_transfer: if stages > 1 { total(Phase::PipelineTransfer, None) } else { Picos::ZERO },
            stages,
            layers: job.model.layers,
            streams,
        })
    }

    /// Computing time on one GPU with enough memory.
    fn single_gpu_time(&self, job: &LoadedServing<'_>, mix: &StepTokens, chunks: f64) -> Picos {
        if mix.is_empty() {
            return Picos::ZERO;
        }
        let layout = Layout { degrees: Degrees::default() };
        let local_costs = StepCosts { speeds: &PeakRates { offload_bandwidth: None, ..*self.speeds }, ..*self };
        scaled(local_costs.work(&layer(job, &layout, mix, chunks)), job.model.layers)
            + local_costs.work(&embedding(job, mix))
            + local_costs.work(&logits(job, &layout, mix))
    }

    fn call_time(&self, layout: &Layout, call: &GroupCall) -> Result<Picos, PlanError> {
        let exchange = Exchange { dimension: call.dimension, collective: call.collective, bytes: call.bytes };
        self.collective_costs.time(layout, exchange)
    }

    fn work(&self, work: &Work) -> Picos {
        let attention = work.attention.iter().map(|reading| self.kernel_time(reading));
        self.curve.total(&work.kernels, self.speeds) + attention.sum()
    }

    /// Time of a kernel, including its reads of a KV cache in another memory tier.
    fn kernel_time(&self, reading: &AttentionKernel) -> Picos {
        let AttentionKernel { kernel, kv_bytes } = *reading;
        match self.speeds.offload_bandwidth {
            None => {
                let combined = Kernel { bytes: fabricast_topologies::Bytes(kernel.bytes.0 + kv_bytes.0), ..kernel };
                self.curve.time(&combined, self.speeds)
            }
            Some(rate) => self.curve.time(&kernel, self.speeds).max(self.curve.transfer_time(kv_bytes, rate)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
