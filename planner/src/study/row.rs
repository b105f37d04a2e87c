//! Conversion of a run to a row of `results.json`, without prices.

use fabricast_topologies::{Bytes, Picos};

use super::answer::{CallRow, JobKind, MemoryRow, ParallelRow, ResultRow};
use crate::job::{Ends, Experts, Footprint, Layout, Serving, Traced, Training, Zero};
use crate::serve::Service;
use crate::step::{Exchange, PricedCall, Share, Step};
use crate::trace::Outcome;

/// Memory that a rank lacks; `None` if it fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Memory of its GPU.
    pub own: Option<Bytes>,
    /// Its share of the memory of the next CPU.
    pub host: Option<Bytes>,
}

/// Row of a training job. `beyond` is the memory that lacks; `hosts` is the number of hosts of the ranks; `of_one_host`
/// is the time of the step on one host.
#[must_use]
pub fn trained(
    job: &Training,
    (ranks, hosts): (usize, usize),
    (step, footprint, beyond): (&Step, Footprint, Lacking),
    of_one_host: Option<Picos>,
) -> ResultRow {
    let tokens = (job.global_batch * job.model.seq) as f64;
    let row = stepped(&job.name, JobKind::Training, ranks, step, &footprint, beyond);
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
        efficiency_node: of_one_host.map(|time| step.part(time) / hosts.max(1) as f64),
        ..row
    }
}

/// Row of an inference job: mean step, memory of a rank, and latencies of its requests.
#[must_use]
pub fn served(job: &Serving, ranks: usize, step: &Step, footprint: &Footprint, service: &Service) -> ResultRow {
    let room = service.room.as_ref();
    let beyond = room.map_or_else(Lacking::default, |room| Lacking { own: room.beyond, host: room.beyond_host });
    let row = stepped(&job.name, JobKind::Inference, ranks, step, footprint, beyond);
    ResultRow {
        tokens_per_s: Some(service.tokens_per_s),
        samples_per_s: Some(service.tokens_per_s / job.output_tokens as f64),
        ttft_s: service.ttft.map(seconds),
        tpot_s: service.tpot.map(seconds),
        prompt_step_s: Some(seconds(service.with_prompts)),
        answer_step_s: service.without.map(seconds),
        late: service.late.clone(),
        in_flight: Some(service.in_flight),
        requests_that_fit: room.map(|room| room.requests),
        would_fit: room.map(|room| room.remedies.clone()).unwrap_or_default(),
        fits: row.fits && service.late.is_empty(),
        ..row
    }
}

/// Row of a trace, from its first event to its last. Traces record neither tokens nor memory.
#[must_use]
pub fn traced(job: &Traced, outcome: &Outcome) -> ResultRow {
    let time = outcome.time;
    let part = |of: Picos| of.0 as f64 / time.0.max(1) as f64;
    // While the busiest rank does not compute, calls are active, or it waits for other ranks or for recorded start
    // times.
    let exposed = outcome.exposed().min(outcome.communication);
    let shares = [("compute", outcome.compute), ("communication", exposed), ("waiting", outcome.exposed() - exposed)];
    let binds = shares.iter().rev().max_by_key(|share| share.1).map_or("compute", |share| share.0);
    ResultRow {
        job: job.name.clone(),
        kind: JobKind::Trace,
        ranks: u64::from(job.trace.ranks),
        micro_batches: 1,
        step_time_s: seconds(time),
        exposed_comm_share: part(exposed),
        total_comm_share: part(outcome.communication),
        step_s: shares.iter().map(|&(name, time)| (name.to_owned(), seconds(time))).collect(),
        fits: true,
        binds: binds.to_owned(),
        ..ResultRow::nothing()
    }
}

/// Fields that training and inference share; throughput is not known here.
fn stepped(job: &str, kind: JobKind, ranks: usize, step: &Step, footprint: &Footprint, beyond: Lacking) -> ResultRow {
    ResultRow {
        job: job.to_owned(),
        kind,
        ranks: ranks as u64,
        parallel: Some(parallel(&step.layout)),
        micro_batches: 1,
        step_time_s: seconds(step.time),
        exposed_comm_share: step.exposed(),
        total_comm_share: step.total_communication(),
        efficiency: Some(step.efficiency()),
        step_s: Share::ALL.iter().map(|&share| (share.name().to_owned(), seconds(step.of(share)))).collect(),
        memory_gb: Some(gb(footprint.total())),
        memory: Some(memory(footprint)),
        fits: beyond == Lacking::default(),
        memory_beyond_gb: beyond.own.map(gb),
        host_memory_gb: Some(footprint.host).filter(|host| host.0 > 0).map(gb),
        host_memory_beyond_gb: beyond.host.map(gb),
        binds: step.binds().name().to_owned(),
        ..ResultRow::nothing()
    }
}

/// Row of a call of a step.
#[must_use]
pub fn call(one: &PricedCall, layout: &Layout) -> CallRow {
    let Exchange { dimension, collective, bytes } = one.call.exchange;
    let groups = layout.shape(dimension).begins(layout.degrees.ranks()).count() as u64;
    CallRow {
        phase: one.call.phase.name().to_owned(),
        among: dimension.name().to_owned(),
        collective: collective.to_string(),
        bytes: bytes.0,
        ranks: layout.size(dimension).into(),
        groups: groups / u64::from(one.call.stages(layout)),
        times: one.call.times(),
        pick: one.strategy,
        time_us: one.time.us(),
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
        etp: (degrees.experts == Experts::Whole).then_some(1),
        cp: degrees.context,
        interleave: degrees.interleave,
        sequence: degrees.token_shares() > 1,
        ends_as_layers: degrees.ends == Ends::AsLayers,
        zero: 0,
        shard: degrees.shard,
    }
}
