//! What a run says, before prices: a job's step as a row of `results.json`.

use fabricast_topologies::{Bytes, Picos};

use super::answer::{JobKind, MemoryRow, ParallelRow, ResultRow};
use crate::job::{Footprint, Layout, Training, Zero};
use crate::step::{Share, Step};

/// A training job's step on so many ranks. `beyond` is what the memory of a GPU lacks; `hosts` are those of the ranks, and
/// `of_one_host` is what the step takes on one of them.
#[must_use]
pub fn trained(
    job: &Training,
    (ranks, hosts): (usize, usize),
    (step, footprint, beyond): (&Step, Footprint, Option<Bytes>),
    of_one_host: Option<Picos>,
) -> ResultRow {
    let seconds = step.time.us() / 1e6;
    let tokens = (job.global_batch * job.model.seq) as f64;
    ResultRow {
        candidate: String::new(),
        job: job.name.clone(),
        kind: JobKind::Training,
        ranks: ranks as u64,
        parallel: parallel(&step.layout, job.zero),
        micro_batches: step.layout.micro_batches(job),
        step_time_s: seconds,
        tokens_per_s: tokens / (step.time.0.max(1) as f64 / 1e12),
        samples_per_s: job.global_batch as f64 / seconds,
        ttft_s: None,
        tpot_s: None,
        late: Vec::new(),
        requests_that_fit: None,
        would_fit: Vec::new(),
        exposed_comm_share: step.exposed(),
        total_comm_share: step.total_communication(),
        efficiency: step.efficiency(),
        efficiency_node: of_one_host.map(|time| step.part(time) / hosts.max(1) as f64),
        step_s: Share::ALL.iter().map(|&share| (share.name().to_owned(), step.of(share).us() / 1e6)).collect(),
        memory_gb: gb(footprint.total()),
        memory: memory(&footprint),
        fits: beyond.is_none(),
        memory_beyond_gb: beyond.map(gb),
        cost_per_hour: None,
        cost_per_hour_low: None,
        cost_per_hour_high: None,
        cost_per_step: None,
        cost_per_million_tokens: None,
        cost_per_million_tokens_low: None,
        cost_per_million_tokens_high: None,
        kwh_per_million_tokens: None,
        time_to_train_h: None,
        cost_to_train: None,
        binds: step.binds().name().to_owned(),
    }
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
    }
}

fn parallel(layout: &Layout, zero: Zero) -> ParallelRow {
    let degrees = layout.degrees;
    ParallelRow {
        tp: degrees.tensor,
        pp: degrees.pipeline,
        dp: degrees.data,
        ep: degrees.expert,
        cp: degrees.context,
        interleave: degrees.interleave,
        sequence: degrees.token_shares() > 1,
        zero: match zero {
            Zero::None => 0,
            Zero::Optimizer => 1,
            Zero::Gradients => 2,
            Zero::Weights => 3,
        },
    }
}
