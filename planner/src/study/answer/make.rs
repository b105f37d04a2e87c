//! From a study and its results to its answer.

use std::path::Path;

use fabricast_sim::profile::Profile;
use fabricast_topologies::{Bytes, Fabric, Place};
use rustc_hash::FxHashSet;

use super::{
    Answer, AssumptionsRow, CandidateRow, ConstraintsRow, FORMAT, JobKind, JobRow, MemoryRow, ModelRow, Paid,
    ParallelRow, PriceRow, RankedRow, ResultRow, ScoredBy, SourceRow,
};
use crate::job::{Job, Model, Parallel, Precision, Recompute, Training, Zero};
use crate::step::Share;
use crate::study::{Band, Candidate, JobResult, Price, Ranked, Study, served};

/// The answer of a study; `fabrics` are those of its candidates, in their order.
#[must_use]
pub fn answer(study: &Study, fabrics: &[Fabric], results: &[JobResult], ranking: &[Ranked]) -> Answer {
    let priced = results.iter().any(|one| one.cost_per_hour.is_some());
    let by = if priced { ScoredBy::CostPerMillionTokens } else { ScoredBy::SecondsPerMillionTokens };
    let candidates: Vec<CandidateRow> = study.candidates.iter().zip(fabrics).map(candidate).collect();
    let name = |number: usize| study.candidates.get(number).map_or("", |one| one.name.as_str()).to_owned();
    let (own, curve, within) = (study.assumptions, study.efficiency, &study.constraints);
    Answer {
        format: FORMAT,
        currency: "USD".to_owned(),
        candidates,
        jobs: study.jobs.iter().map(job).collect(),
        constraints: ConstraintsRow {
            budget_usd: within.budget,
            cost_per_hour_usd: within.hourly,
            power_kw: within.power_kw,
            racks: within.racks,
        },
        assumptions: AssumptionsRow {
            years: own.years,
            utilization: own.utilization,
            usd_per_kwh: own.per_kwh,
            efficiency_matrix: curve.matrix,
            efficiency_memory: curve.memory,
            efficiency_start_us: curve.start.us(),
        },
        sources: sources(study),
        results: results.iter().map(|one| result(study, one, name(one.candidate))).collect(),
        ranking: (1..)
            .zip(ranking)
            .map(|(rank, one)| RankedRow {
                rank,
                candidate: name(one.candidate),
                score: one.score,
                by,
                pareto: one.pareto,
                within: one.beyond.is_empty(),
                beyond: one.beyond.clone(),
                probability_best: None,
            })
            .collect(),
        sensitivities: Vec::new(),
    }
}

fn place(place: &Place) -> String {
    let file = Path::new(&place.source).file_name().map_or(place.source.clone().into(), |name| name.to_string_lossy());
    Place { source: file.into_owned(), ..place.clone() }.to_string()
}

fn candidate((candidate, fabric): (&Candidate, &Fabric)) -> CandidateRow {
    let hosts: FxHashSet<_> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host).collect();
    let row = |(paid, band): (Paid, Band)| PriceRow {
        paid,
        low: band.low,
        high: band.high,
        item: candidate.listed.as_ref().map(|listed| listed.item.clone()),
    };
    let price = candidate.price.map(|price| match price {
        Price::Bought(band) => (Paid::Once, band),
        Price::Hired(band) => (Paid::Hourly, band),
        Price::HiredByGpu(band) => (Paid::HourlyByGpu, band),
    });
    CandidateRow {
        name: candidate.name.clone(),
        fabric: candidate.fabric.fabric.clone(),
        fabric_name: fabric.name().to_owned(),
        nodes: hosts.len() as u64,
        gpus: fabric.gpus().len() as u64,
        network: candidate.network.clone(),
        price: price.map(row),
        power_kw: candidate.power_kw,
        racks: candidate.racks,
        place: place(&candidate.place),
        // None is missing but for a defect of a file that ships, which running has told by now.
        profile: Profile::for_fabric(fabric).map(|profile| profile.name).unwrap_or_default(),
        sources: fabric.sources().to_vec(),
    }
}

/// The entries of price lists that candidates took.
fn sources(study: &Study) -> Vec<SourceRow> {
    let mut rows: Vec<SourceRow> = Vec::new();
    for one in study.candidates.iter().filter_map(|candidate| candidate.listed.as_ref()) {
        let row = SourceRow {
            item: one.item.clone(),
            low: one.low,
            high: one.high,
            currency: one.currency.clone(),
            date: one.date.clone(),
            source: one.source.clone(),
        };
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows
}

fn job(job: &Job) -> JobRow {
    let (kind, model, precision, parallel) = match job {
        Job::Training(job) => (JobKind::Training, &job.model, job.precision, &job.parallel),
        Job::Inference(job) => (JobKind::Inference, &job.model, job.precision, &job.parallel),
    };
    let (trained, served) = match job {
        Job::Training(job) => (Some(job), None),
        Job::Inference(job) => (None, Some(job)),
    };
    let precision = match precision {
        Precision::Fp32 => "fp32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
        Precision::Fp8 => "fp8",
    };
    let recompute = |of: Recompute| match of {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    };
    JobRow {
        name: job.name().to_owned(),
        kind,
        weight: job.weight(),
        model: model_row(model),
        precision: precision.to_owned(),
        global_batch: trained.map(|job| job.global_batch),
        micro_batch: trained.map(|job| job.micro_batch),
        recompute: trained.map(|job| recompute(job.recompute).to_owned()),
        prompt_tokens: served.map(|job| job.prompt_tokens),
        output_tokens: served.map(|job| job.output_tokens),
        concurrency: served.map(|job| job.concurrency),
        auto: *parallel == Parallel::Auto,
        train_tokens: trained.and_then(|job| job.train_tokens),
        place: place(&job.places().job),
    }
}

fn model_row(model: &Model) -> ModelRow {
    ModelRow {
        layers: model.layers,
        hidden: model.hidden,
        heads: model.heads,
        kv_heads: model.kv_heads,
        ffn: model.ffn,
        vocab: model.vocab,
        seq: model.seq,
        experts: model.experts,
        experts_per_token: model.experts_per_token,
        parameters: model.parameters(),
    }
}

fn result(study: &Study, one: &JobResult, candidate: String) -> ResultRow {
    let row = match (study.jobs.get(one.job), &one.service) {
        (Some(Job::Inference(job)), Some(service)) => served(job, one.ranks, &one.step, &one.footprint, service),
        _ => trained(study, one),
    };
    let (hour, million) = (one.cost_per_hour, one.cost_per_million_tokens);
    ResultRow {
        candidate,
        cost_per_hour: hour.map(Band::middle),
        cost_per_hour_low: hour.map(|band| band.low),
        cost_per_hour_high: hour.map(|band| band.high),
        cost_per_step: hour.map(|band| band.middle() * row.step_time_s / 3600.0),
        cost_per_million_tokens: million.map(Band::middle),
        cost_per_million_tokens_low: million.map(|band| band.low),
        cost_per_million_tokens_high: million.map(|band| band.high),
        kwh_per_million_tokens: one.kwh_per_million_tokens,
        ..row
    }
}

fn trained(study: &Study, one: &JobResult) -> ResultRow {
    let name = study.jobs.get(one.job).map_or("", Job::name);
    let job = study.jobs.get(one.job).and_then(|job| match job {
        Job::Training(job) => Some(job),
        Job::Inference(_) => None,
    });
    let seconds = one.step.time.us() / 1e6;
    let gb = |bytes: Bytes| bytes.0 as f64 / 1e9;
    ResultRow {
        candidate: String::new(),
        job: name.to_owned(),
        kind: JobKind::Training,
        ranks: one.ranks as u64,
        parallel: parallel(one, job),
        micro_batches: job.map_or(0, |job| one.step.layout.micro_batches(job)),
        step_time_s: seconds,
        tokens_per_s: one.tokens_per_s,
        samples_per_s: job.map_or(0.0, |job| job.global_batch as f64 / seconds),
        ttft_s: None,
        tpot_s: None,
        late: Vec::new(),
        requests_that_fit: None,
        would_fit: Vec::new(),
        exposed_comm_share: one.step.exposed(),
        total_comm_share: one.step.total_communication(),
        efficiency: one.step.efficiency(),
        efficiency_node: None,
        step_s: Share::ALL.iter().map(|&share| (share.name().to_owned(), one.step.of(share).us() / 1e6)).collect(),
        memory_gb: gb(one.footprint.total()),
        memory: MemoryRow {
            weights_gb: gb(one.footprint.weights),
            gradients_gb: gb(one.footprint.gradients),
            optimizer_gb: gb(one.footprint.optimizer),
            activations_gb: gb(one.footprint.activations),
            kv_cache_gb: gb(one.footprint.kv_cache),
        },
        fits: one.beyond.is_none(),
        memory_beyond_gb: one.beyond.map(gb),
        cost_per_hour: None,
        cost_per_hour_low: None,
        cost_per_hour_high: None,
        cost_per_step: None,
        cost_per_million_tokens: None,
        cost_per_million_tokens_low: None,
        cost_per_million_tokens_high: None,
        kwh_per_million_tokens: None,
        time_to_train_h: one.train_hours,
        cost_to_train: one.train_hours.zip(one.cost_per_hour).map(|(hours, band)| hours * band.middle()),
        binds: one.step.binds().name().to_owned(),
    }
}

fn parallel(one: &JobResult, job: Option<&Training>) -> ParallelRow {
    let degrees = one.step.layout.degrees;
    ParallelRow {
        tp: degrees.tensor,
        pp: degrees.pipeline,
        dp: degrees.data,
        ep: degrees.expert,
        cp: degrees.context,
        interleave: degrees.interleave,
        sequence: degrees.token_shares() > 1,
        zero: match job.map_or(Zero::None, |job| job.zero) {
            Zero::None => 0,
            Zero::Optimizer => 1,
            Zero::Gradients => 2,
            Zero::Weights => 3,
        },
    }
}
