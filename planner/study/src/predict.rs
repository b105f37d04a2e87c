//! Conversion of a run to a row of `results.json`, without prices.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos};

use super::answer::{CallRow, ExchangeRow, JobKind, MemoryRow, ParallelRow, ResultRow};
use fabricast_perf::communication::{Exchange, StepExchange, TimedCall};
use fabricast_perf::replay::Outcome;
use fabricast_perf::serve::Service;
use fabricast_perf::step::{Share, Step};
use fabricast_workload::job::{
    Dimension, EndAccounting, ExpertSharding, Footprint, Layout, Serving, TraceJob, Training, Zero,
};

/// Additional memory that a rank would need; both fields are `None` if the job fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingMemory {
    /// Memory needed in excess of the memory of the rank's GPU.
    pub gpu: Option<Bytes>,
    /// Memory needed in excess of the rank's share of the memory of its CPU.
    pub host: Option<Bytes>,
}

/// Predicted step of a training job on a machine.
#[derive(Clone, Debug)]
pub struct TrainingRun<'a> {
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
}

/// Creates the row of a training job, without costs.
#[must_use]
pub fn training_row(job: &Training, run: &TrainingRun<'_>) -> ResultRow {
    let TrainingRun { ranks, hosts, step, ref footprint, missing, single_host_time } = *run;
    let tokens = (job.global_batch * job.model.seq) as f64;
    let row = step_row(&job.name, JobKind::Training, ranks, step, footprint, missing);
    ResultRow {
        parallel: Some(ParallelRow {
            zero: match job.zero {
                Zero::None => 0,
                Zero::Optimizer => 1,
                Zero::Gradients => 2,
                Zero::Weights => 3,
            },
            ..parallel(&step.layout)
        }),
        micro_batches: step.layout.micro_batches(job),
        tokens_per_s: Some(tokens / (step.time.0.max(1) as f64 / 1e12)),
        samples_per_s: Some(job.global_batch as f64 / row.step_time_s),
        efficiency_node: single_host_time.map(|time| step.fraction(time) / hosts.max(1) as f64),
        ..row
    }
}

/// Creates the row of an inference job, without costs: mean step, memory of a rank, and latencies of requests.
#[must_use]
pub fn inference_row(job: &Serving, ranks: usize, step: &Step, footprint: &Footprint, service: &Service) -> ResultRow {
    let check = service.memory_check.as_ref();
    let missing = check
        .map_or_else(MissingMemory::default, |check| MissingMemory { gpu: check.missing, host: check.missing_host });
    let row = step_row(&job.name, JobKind::Inference, ranks, step, footprint, missing);
    ResultRow {
        tokens_per_s: Some(service.tokens_per_s),
        samples_per_s: Some(service.tokens_per_s / job.output_tokens as f64),
        ttft_s: service.ttft.map(seconds),
        tpot_s: service.tpot.map(seconds),
        prefill_step_s: Some(seconds(service.with_prefill)),
        decode_step_s: service.without_prefill.map(seconds),
        slo_violations: service.slo_violations.clone(),
        concurrent_requests: Some(service.concurrent_requests),
        requests_that_fit: check.map(|check| check.requests),
        would_fit: check.map(|check| check.remedies.clone()).unwrap_or_default(),
        fits: row.fits && service.slo_violations.is_empty(),
        ..row
    }
}

/// Creates the row of a trace, from the start of its first event to the end of its last. Traces record neither tokens
/// nor memory.
#[must_use]
pub fn trace_row(job: &TraceJob, outcome: &Outcome) -> ResultRow {
    let time = outcome.time;
    let fraction = |duration: Picos| duration.0 as f64 / time.0.max(1) as f64;
    // The time in which the busiest rank does not compute counts as exposed communication up to the total time of
    // communication, and the remainder as waiting (for other ranks, or for recorded start times).
    let exposed = outcome.exposed().min(outcome.communication);
    let shares = [("compute", outcome.compute), ("communication", exposed), ("waiting", outcome.exposed() - exposed)];
    let bottleneck = shares.iter().rev().max_by_key(|share| share.1).map_or("compute", |share| share.0);
    ResultRow {
        job: job.name.clone(),
        kind: JobKind::Trace,
        ranks: u64::from(job.trace.ranks),
        micro_batches: 1,
        step_time_s: seconds(time),
        exposed_comm_share: fraction(exposed),
        total_comm_share: fraction(outcome.communication),
        step_s: shares.iter().map(|&(name, time)| (name.to_owned(), seconds(time))).collect(),
        fits: true,
        bottleneck: bottleneck.to_owned(),
        ..ResultRow::empty()
    }
}

/// Creates a row with the fields that training and inference have in common. Throughput is set separately.
fn step_row(
    job: &str,
    kind: JobKind,
    ranks: usize,
    step: &Step,
    footprint: &Footprint,
    missing: MissingMemory,
) -> ResultRow {
    ResultRow {
        job: job.to_owned(),
        kind,
        ranks: ranks as u64,
        parallel: Some(parallel(&step.layout)),
        micro_batches: 1,
        step_time_s: seconds(step.time),
        exposed_comm_share: step.exposed_communication(),
        total_comm_share: step.total_communication(),
        efficiency: Some(step.efficiency()),
        step_s: Share::ALL.iter().map(|&share| (share.name().to_owned(), seconds(step.share_time(share)))).collect(),
        memory_gb: Some(gb(footprint.total())),
        memory: Some(memory(footprint)),
        fits: missing == MissingMemory::default(),
        memory_excess_gb: missing.gpu.map(gb),
        host_memory_gb: Some(footprint.host).filter(|host| host.0 > 0).map(gb),
        host_memory_excess_gb: missing.host.map(gb),
        bottleneck: step.bottleneck().name().to_owned(),
        ..ResultRow::empty()
    }
}

/// Creates the row of a call of a step.
#[must_use]
pub fn call_row(timed_call: &TimedCall, layout: &Layout) -> CallRow {
    let Exchange { dimension, collective, bytes } = timed_call.call.exchange;
    let groups = layout.shape(dimension).first_ranks(layout.degrees.ranks()).count() as u64;
    CallRow {
        phase: timed_call.call.phase.name().to_owned(),
        dimension: dimension.name().to_owned(),
        collective: collective.to_string(),
        bytes: bytes.0,
        ranks: layout.size(dimension).into(),
        groups: groups / u64::from(timed_call.call.stages(layout)),
        times: timed_call.call.calls_per_rank(),
        pick: timed_call.strategy,
        time_us: timed_call.time.us(),
    }
}

/// Creates the row of an exchange of tokens in a step; `runs`: its kernel runs on the machine.
#[must_use]
pub fn exchange_row(step_exchange: &StepExchange, layout: &Layout, runs: bool, time: Picos) -> ExchangeRow {
    let StepExchange { phase, exchange, times } = *step_exchange;
    let collective = Collective::AllToAll.to_string();
    ExchangeRow {
        phase: phase.name().to_owned(),
        operation: exchange.operation.name().to_owned(),
        kernel: if runs { exchange.kernel.name().to_owned() } else { collective },
        token_type: exchange.token_type.name().to_owned(),
        tokens: exchange.tokens,
        ranks: layout.size(Dimension::Expert).into(),
        times,
        time_us: time.us(),
    }
}

fn seconds(time: Picos) -> f64 {
    time.0 as f64 / 1e12
}

fn gb(bytes: Bytes) -> f64 {
    bytes.0 as f64 / 1e9
}

fn memory(footprint: &Footprint) -> MemoryRow {
    MemoryRow {
        weights_gb: gb(footprint.weights),
        gradients_gb: gb(footprint.gradients),
        optimizer_gb: gb(footprint.optimizer),
        activations_gb: gb(footprint.activations),
        kv_cache_gb: gb(footprint.kv_cache),
        runtime_gb: gb(footprint.runtime),
    }
}

fn parallel(layout: &Layout) -> ParallelRow {
    let degrees = layout.degrees;
    ParallelRow {
        tp: degrees.tensor,
        pp: degrees.pipeline,
        dp: degrees.data,
        ep: degrees.expert,
        etp: (degrees.experts == ExpertSharding::Whole).then_some(1),
        cp: degrees.context,
        interleave: degrees.interleave,
        sequence: degrees.token_shares() > 1,
        ends_as_layers: degrees.ends == EndAccounting::AsLayers,
        zero: 0,
        shard: degrees.shard,
    }
}
