//! Predictions of jobs from their steps, services and replays.

use std::collections::BTreeMap;

use fabricast_experts::ExchangeKernel;
use fabricast_perf::communication::{Exchange, StepExchange, TimedCall};
use fabricast_perf::replay;
use fabricast_perf::serve::Service;
use fabricast_perf::step::{Share, Step};
use fabricast_topologies::Picos;
use fabricast_workload::job::{Dimension, Footprint, Layout, Serving, TraceJob, Training, Zero};

use super::prediction::{
    LinkClassLoad, MissingMemory, PredictedCall, PredictedExchange, PredictedMemory, PredictedService, PredictedStep,
    PredictedWork, Prediction, ShardedLayout, StepPart, StepTimeline,
};
use super::quantities::seconds;
use super::step_interval::StepInterval;

/// Calls of a step and the load of the links.
#[derive(Clone, Debug, Default)]
pub(super) struct StepCommunication {
    /// Calls; for inference, of the mean step.
    pub calls: Vec<PredictedCall>,
    /// Exchanges of tokens with experts by kernels of dispatch libraries; for inference, of the mean step.
    pub exchanges: Vec<PredictedExchange>,
    /// Link utilization in the step, busiest class first.
    pub load: Vec<LinkClassLoad>,
}

/// Predicted step of a training job on a machine.
#[derive(Clone, Debug)]
pub(super) struct TrainingRun<'a> {
    /// Name of the candidate.
    pub candidate: &'a str,
    /// Number of ranks of the job.
    pub ranks: usize,
    /// Number of hosts that the ranks occupy.
    pub hosts: usize,
    /// Predicted step of all ranks.
    pub step: &'a Step,
    /// Memory needed by the rank with the highest use.
    pub footprint: Footprint,
    /// Memory needed by that rank in excess of the available memory.
    pub missing: MissingMemory,
    /// Time of the step on the GPUs of one host; `None` if the job cannot run there.
    pub single_host_time: Option<Picos>,
    /// Interval of the time of the step.
    pub interval: StepInterval,
    /// Timeline of the step.
    pub timeline: StepTimeline,
    /// Calls of the step.
    pub communication: StepCommunication,
    /// Assumptions behind the figures.
    pub notes: Vec<String>,
}

/// Predicted steps and service of an inference job on a machine.
#[derive(Clone, Debug)]
pub(super) struct InferenceRun<'a> {
    /// Name of the candidate.
    pub candidate: &'a str,
    /// Number of ranks of the job.
    pub ranks: usize,
    /// Number of hosts that the ranks occupy.
    pub hosts: usize,
    /// Mean step of all ranks.
    pub step: &'a Step,
    /// Memory needed by the rank with the highest use.
    pub footprint: Footprint,
    /// Service that requests get.
    pub service: &'a Service,
    /// Tokens per second on the GPUs of one host; `None` if the job cannot run there.
    pub single_host_throughput: Option<f64>,
    /// Interval of the time of the step.
    pub interval: StepInterval,
    /// Timelines of the steps with and without prefill.
    pub timelines: Vec<StepTimeline>,
    /// Calls of the mean step.
    pub communication: StepCommunication,
    /// Assumptions behind the figures.
    pub notes: Vec<String>,
}

/// Replay of a trace on a machine.
#[derive(Clone, Debug)]
pub(super) struct TraceRun<'a> {
    /// Name of the candidate.
    pub candidate: &'a str,
    /// Result of the replay.
    pub outcome: &'a replay::Outcome,
    /// Assumptions behind the figures.
    pub notes: Vec<String>,
}

/// Creates the prediction of a training job.
#[must_use]
pub(super) fn training_prediction(job: &Training, run: TrainingRun<'_>) -> Prediction {
    let TrainingRun { candidate, ranks, hosts, step, footprint, missing, single_host_time, .. } = run;
    let StepCommunication { calls, exchanges, load } = run.communication;
    let tokens = (job.global_batch * job.model.seq) as f64;
    Prediction {
        candidate: candidate.to_owned(),
        job: job.name.clone(),
        ranks: ranks as u64,
        work: PredictedWork::Training,
        layout: Some(ShardedLayout { layout: step.layout, zero: job.zero }),
        micro_batches: step.layout.micro_batches(job),
        tokens_per_s: Some(tokens / (step.time.0.max(1) as f64 / 1e12)),
        samples_per_s: Some(job.global_batch as f64 / seconds(step.time)),
        step: PredictedStep {
            host_efficiency: single_host_time.map(|time| step.fraction(time) / hosts.max(1) as f64),
            ..predicted_step(step, run.interval)
        },
        memory: Some(PredictedMemory { footprint, missing }),
        notes: run.notes,
        timelines: vec![run.timeline],
        calls,
        exchanges,
        load,
    }
}

/// Creates the prediction of an inference job: mean step, memory of a rank, and latencies of requests.
#[must_use]
pub(super) fn inference_prediction(job: &Serving, run: InferenceRun<'_>) -> Prediction {
    let InferenceRun { candidate, ranks, hosts, step, footprint, service, single_host_throughput, .. } = run;
    let StepCommunication { calls, exchanges, load } = run.communication;
    let host_efficiency = |throughput: f64| service.tokens_per_s / (throughput * hosts.max(1) as f64);
    let check = service.memory_check.as_ref();
    let missing = check
        .map_or_else(MissingMemory::default, |check| MissingMemory { gpu: check.missing, host: check.missing_host });
    Prediction {
        candidate: candidate.to_owned(),
        job: job.name.clone(),
        ranks: ranks as u64,
        work: PredictedWork::Inference(PredictedService {
            ttft: service.ttft,
            tpot: service.tpot,
            prefill_step: Some(service.with_prefill),
            decode_step: service.without_prefill,
            adapter_swap: service.adapter_swap,
            slo_violations: service.slo_violations.clone(),
            concurrent_requests: Some(service.concurrent_requests),
            requests_that_fit: check.map(|check| check.requests),
            would_fit: check.map(|check| check.remedies.clone()).unwrap_or_default(),
            latencies: service.latencies.map(Box::new),
            disaggregation: service.disaggregation.map(Box::new),
        }),
        layout: Some(ShardedLayout { layout: step.layout, zero: Zero::None }),
        micro_batches: 1,
        tokens_per_s: Some(service.tokens_per_s),
        samples_per_s: Some(service.tokens_per_s / job.output_tokens as f64),
        step: PredictedStep {
            host_efficiency: single_host_throughput.map(host_efficiency),
            ..predicted_step(step, run.interval)
        },
        memory: Some(PredictedMemory { footprint, missing }),
        notes: run.notes,
        timelines: run.timelines,
        calls,
        exchanges,
        load,
    }
}

/// Creates the prediction of a trace, from the start of its first event to the end of its last. Traces record neither
/// tokens nor memory.
#[must_use]
pub(super) fn trace_prediction(job: &TraceJob, run: TraceRun<'_>) -> Prediction {
    let TraceRun { candidate, outcome, notes } = run;
    let StepCommunication { calls, exchanges, load } = StepCommunication::default();
    let time = outcome.time;
    let fraction = |duration: Picos| duration.0 as f64 / time.0.max(1) as f64;
    // The time in which the busiest rank does not compute counts as exposed communication up to the total time of
    // communication, and the remainder as waiting (for other ranks, or for recorded start times).
    let exposed = outcome.exposed().min(outcome.communication);
    let parts = [
        (StepPart::Share(Share::Compute), outcome.compute),
        (StepPart::Communication, exposed),
        (StepPart::Waiting, outcome.exposed() - exposed),
    ];
    let bottleneck = parts.iter().rev().max_by_key(|part| part.1);
    Prediction {
        candidate: candidate.to_owned(),
        job: job.name.clone(),
        ranks: u64::from(job.trace.ranks),
        work: PredictedWork::Trace,
        layout: None,
        micro_batches: 1,
        step: PredictedStep {
            time,
            interval: None,
            bottleneck: bottleneck.map_or(StepPart::Share(Share::Compute), |part| part.0),
            exposed_communication: fraction(exposed),
            total_communication: fraction(outcome.communication),
            parts: BTreeMap::from(parts),
            efficiency: None,
            host_efficiency: None,
        },
        tokens_per_s: None,
        samples_per_s: None,
        memory: None,
        notes,
        timelines: Vec::new(),
        calls,
        exchanges,
        load,
    }
}

/// Returns the time of a step of training or inference.
fn predicted_step(step: &Step, interval: StepInterval) -> PredictedStep {
    PredictedStep {
        time: step.time,
        interval: Some(interval),
        parts: Share::ALL.iter().map(|&share| (StepPart::Share(share), step.share_time(share))).collect(),
        bottleneck: StepPart::Share(step.bottleneck()),
        exposed_communication: step.exposed_communication(),
        total_communication: step.total_communication(),
        efficiency: Some(step.efficiency()),
        host_efficiency: None,
    }
}

/// Returns the prediction of a call of a step.
#[must_use]
pub(super) fn predicted_call(timed_call: &TimedCall, layout: &Layout) -> PredictedCall {
    let Exchange { dimension, .. } = timed_call.call.exchange;
    let groups = layout.shape(dimension).first_ranks(layout.degrees.ranks()).count() as u64;
    PredictedCall {
        phase: timed_call.call.phase,
        exchange: timed_call.call.exchange,
        ranks: layout.size(dimension).into(),
        groups: groups / u64::from(timed_call.call.stages(layout)),
        times: timed_call.call.calls_per_rank(),
        strategy: timed_call.strategy,
        time: timed_call.time,
    }
}

/// Returns the prediction of an exchange of tokens in a step. `kernel`: kernel that runs it; `None` for an all_to_all.
#[must_use]
pub(super) fn predicted_exchange(
    step_exchange: &StepExchange,
    layout: &Layout,
    kernel: Option<ExchangeKernel>,
    time: Picos,
) -> PredictedExchange {
    let StepExchange { phase, exchange, times } = *step_exchange;
    PredictedExchange {
        phase,
        operation: exchange.operation,
        kernel,
        token_type: exchange.token_type,
        tokens: exchange.tokens,
        ranks: layout.size(Dimension::Expert).into(),
        times,
        time,
    }
}
