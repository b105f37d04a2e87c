//! What a run of inference says, before prices, as a row of `results.json`.

use fabricast_topologies::{Bytes, Picos};

use super::answer::{JobKind, MemoryRow, ParallelRow, ResultRow};
use crate::job::{Footprint, Room, Serving};
use crate::serve::Service;
use crate::step::{Share, Step};

/// An inference job's mean step on so many ranks, what a rank holds, and what its requests see.
#[must_use]
pub fn served(job: &Serving, ranks: usize, step: &Step, footprint: &Footprint, service: &Service) -> ResultRow {
    let gb = |bytes: Bytes| bytes.0 as f64 / 1e9;
    let seconds = |time: Picos| time.0 as f64 / 1e12;
    let degrees = step.layout.degrees;
    let room = service.room.as_ref();
    let beyond = room.and_then(|room| room.beyond);
    ResultRow {
        candidate: String::new(),
        job: job.name.clone(),
        kind: JobKind::Inference,
        ranks: ranks as u64,
        parallel: ParallelRow {
            tp: degrees.tensor,
            pp: degrees.pipeline,
            dp: degrees.data,
            ep: degrees.expert,
            cp: degrees.context,
            interleave: degrees.interleave,
            sequence: degrees.token_shares() > 1,
            zero: 0,
        },
        micro_batches: 1,
        step_time_s: seconds(step.time),
        tokens_per_s: service.tokens_per_s,
        samples_per_s: service.tokens_per_s / job.output_tokens as f64,
        ttft_s: Some(seconds(service.ttft)),
        tpot_s: service.tpot.map(seconds),
        late: service.late.clone(),
        requests_that_fit: room.map(|room| room.requests),
        would_fit: room.map(|room| room.remedies.clone()).unwrap_or_default(),
        exposed_comm_share: step.exposed(),
        total_comm_share: step.total_communication(),
        efficiency: step.efficiency(),
        efficiency_node: None,
        step_s: Share::ALL.iter().map(|&share| (share.name().to_owned(), seconds(step.of(share)))).collect(),
        memory_gb: gb(footprint.total()),
        memory: MemoryRow {
            weights_gb: gb(footprint.weights),
            gradients_gb: gb(footprint.gradients),
            optimizer_gb: gb(footprint.optimizer),
            activations_gb: gb(footprint.activations),
            kv_cache_gb: gb(footprint.kv_cache),
        },
        fits: beyond.is_none() && service.late.is_empty(),
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

/// What a job lacks of memory and what would fit, in words; its limits that are broken.
#[must_use]
pub fn shortfalls(name: &str, service: &Service) -> Vec<String> {
    let lacking = service.room.as_ref().and_then(|room| lacking(name, room));
    lacking.into_iter().chain(service.late.iter().map(|late| format!("{name}: {late}"))).collect()
}

fn lacking(name: &str, room: &Room) -> Option<String> {
    let over = room.beyond?.0 as f64 / 1e9;
    let would = match room.remedies.as_slice() {
        [] => "not even the weights fit".to_owned(),
        some => format!("{} would fit", some.join(" or ")),
    };
    Some(format!("{name} lacks {over:.1} GB of memory ({would})"))
}
