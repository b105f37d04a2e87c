//! Construction of the answer from a study and its runs.

use std::path::Path;

use fabricast_sim::profile::Profile;
use fabricast_topologies::{Fabric, Place};
use rustc_hash::FxHashMap;

use super::notes::notes;
use super::{
    Answer, AssumptionsRow, CandidateRow, ConstraintsRow, FORMAT, JobKind, JobRow, KernelsRow, MeasuredRow, ModelRow,
    Paid, PriceRow, RankedRow, ResultRow, ScoreRow, ScoredBy, SensitivityRow, SourceRow,
};
use crate::job::{Arrivals, Job, Model, Parallel, Precision, Recompute, Training};
use crate::study::cases::Cases;
use crate::study::cost::{Terms, price};
use crate::study::key::Key;
use crate::study::rank::{Ranked, Row, rank};
use crate::study::run::Outcome;
use crate::study::setting::Setting;
use crate::study::trust::trust;
use crate::study::{Band, CURRENCY, Candidate, Counted, Extent, MeasuredStep, Payment, Price, Study};

/// Creates the answer of a study; `fabrics` are the unchanged ones of its candidates, in order. `None` if a run of
/// `cases` is missing in `outcomes`.
#[must_use]
pub fn answer(study: &Study, fabrics: &[Fabric], cases: &Cases, outcomes: &FxHashMap<Key, Outcome>) -> Option<Answer> {
    let extents: Vec<Extent> = fabrics.iter().map(Extent::of).collect();
    let under = |number: usize, setting: &Setting| {
        let terms = Terms { assumptions: setting.assumptions(study.assumptions), factor: setting.price_factor() };
        let rows = rows(study, &extents, cases, outcomes, (number, &terms))?;
        let ranking = rank(study, &extents, &rows, &terms);
        Some((rows, ranking))
    };
    let (rows, ranking) = under(0, &Setting::AsGiven)?;
    let mut sensitivities = Vec::new();
    for (number, setting) in cases.settings.iter().enumerate().skip(1) {
        let (_, changed) = under(number, setting)?;
        sensitivities.push(sensitivity(study, cases, (number, setting), &ranking, &changed));
    }
    let priced = study.candidates.iter().any(|one| one.price.is_some());
    let by = |candidate: usize| {
        let traces = study.jobs_on(candidate).filter(|(_, job)| matches!(job, Job::Trace(_))).count();
        ScoredBy::of(priced, (traces, study.jobs_on(candidate).count()))
    };
    let (own, within) = (study.assumptions, &study.constraints);
    let measured = measured(study, &rows);
    let results: Vec<ResultRow> = rows.into_iter().flatten().filter_map(Result::ok).collect();
    Some(Answer {
        format: FORMAT,
        currency: CURRENCY.to_owned(),
        candidates: study.candidates.iter().zip(fabrics).map(candidate).collect(),
        jobs: study.jobs.iter().enumerate().map(|(number, job)| job_row(study, number, job)).collect(),
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
            price_bands: price_bands(study),
        },
        notes: notes(study, &results),
        trust: trust(study, fabrics),
        sources: sources(study),
        measured,
        results,
        ranking: ranking
            .chunk_by(|a, b| a.among == b.among)
            .flat_map(|compared| (1..).zip(compared.iter().cloned()))
            .map(|(rank, one)| RankedRow {
                rank,
                candidate: name(study, one.candidate),
                jobs: jobs_of(study, one.candidate),
                score: Some(one.score).filter(|score| score.is_finite()),
                by: by(one.candidate),
                pareto: one.pareto,
                within: one.beyond.is_empty(),
                beyond: one.beyond,
                probability_best: one.probability_best,
            })
            .collect(),
        sensitivities,
    })
}

/// Description of the distribution behind probabilities.
const PRICE_BANDS: &str = "a price is uniform over its band; prices are independent, but for those of the same entry of a \
                           price list, which are low or high together; times have no bands here";

fn price_bands(study: &Study) -> String {
    let is_wide = |one: &Candidate| one.power_kw.is_some_and(Band::is_wide);
    let power = if study.candidates.iter().any(is_wide) { "; power is low or high with the price" } else { "" };
    format!("{PRICE_BANDS}{power}")
}

fn name(study: &Study, candidate: usize) -> String {
    study.candidates.get(candidate).map_or_else(String::new, |one| one.name.clone())
}

/// Returns the jobs that a candidate is ranked by, if not all candidates have the same.
fn jobs_of(study: &Study, candidate: usize) -> Vec<String> {
    let jobs = study.jobs.iter().enumerate().filter(|(number, _)| study.pairs.has(candidate, *number));
    let differ = study.pairs.differ(study.candidates.len());
    jobs.filter(|_| differ).map(|(_, job)| job.name().to_owned()).collect()
}

/// Results of every job on every candidate under a setting, with costs; `None` if a run is missing.
fn rows(
    study: &Study,
    extents: &[Extent],
    cases: &Cases,
    outcomes: &FxHashMap<Key, Outcome>,
    (setting, terms): (usize, &Terms),
) -> Option<Vec<Row>> {
    let mut rows = Vec::with_capacity(study.candidates.len() * study.jobs.len());
    for (number, (candidate, &extent)) in study.candidates.iter().zip(extents).enumerate() {
        for (job_number, job) in study.jobs.iter().enumerate() {
            if !study.pairs.has(number, job_number) {
                rows.push(None);
                continue;
            }
            rows.push(Some(match outcomes.get(&cases.key(setting, number, job_number)?)? {
                Outcome::Refused(why) => Err(format!("{}: {why}", job.name())),
                Outcome::Done(row) => {
                    // Cached runs may have other names.
                    let names = (candidate.name.clone(), job.name().to_owned());
                    let mut row = ResultRow { candidate: names.0, job: names.1, ..(**row).clone() };
                    price(&mut row, candidate, extent, job, terms);
                    Ok(row)
                }
            }));
        }
    }
    Some(rows)
}

/// Measured figures with the predictions for the same jobs and candidates.
fn measured(study: &Study, rows: &[Row]) -> Vec<MeasuredRow> {
    let of = |one: &MeasuredStep| {
        let job = study.jobs.get(one.job)?;
        // (Rejected jobs have no prediction; the ranking contains the reason.)
        let run = rows.get(one.candidate * study.jobs.len() + one.job)?.as_ref()?.as_ref().ok();
        Some(MeasuredRow {
            candidate: name(study, one.candidate),
            job: job.name().to_owned(),
            figure: one.figure.key().to_owned(),
            measured: one.value,
            predicted: run.and_then(|run| one.figure.of_row(job, run)),
        })
    };
    study.measured.iter().filter_map(of).collect()
}

fn sensitivity(
    study: &Study,
    cases: &Cases,
    (number, setting): (usize, &Setting),
    given: &[Ranked],
    ranking: &[Ranked],
) -> SensitivityRow {
    let order = |ranking: &[Ranked]| -> Vec<(usize, bool)> {
        ranking.iter().map(|one| (one.candidate, one.beyond.is_empty())).collect()
    };
    let unchanged = |candidate: usize| {
        let why = cases.unchanged(number, candidate)?;
        Some(format!("{}: {why}", name(study, candidate)))
    };
    SensitivityRow {
        name: setting.name().to_owned(),
        setting: setting.value(),
        changed: order(given) != order(ranking),
        ranking: ranking
            .iter()
            .map(|one| ScoreRow {
                candidate: name(study, one.candidate),
                score: Some(one.score).filter(|score| score.is_finite()),
                within: one.beyond.is_empty(),
                beyond: one.beyond.clone(),
            })
            .collect(),
        unchanged: (0..study.candidates.len()).filter_map(unchanged).collect(),
    }
}

fn place(place: &Place) -> String {
    let file = Path::new(&place.source).file_name().map_or(place.source.clone().into(), |name| name.to_string_lossy());
    Place { source: file.into_owned(), ..place.clone() }.to_string()
}

fn candidate((candidate, fabric): (&Candidate, &Fabric)) -> CandidateRow {
    let extent = Extent::of(fabric);
    let row = |price: Price| {
        let (paid, band) = match (price.payment, price.counted) {
            (Payment::Hired, Counted::Gpus) => (Paid::HourlyByGpu, price.band),
            (Payment::Hired, _) => (Paid::Hourly, price.total(extent)),
            (Payment::Bought, _) => (Paid::Once, price.total(extent)),
        };
        PriceRow {
            paid,
            low: band.low,
            high: band.high,
            item: candidate.listed.as_ref().map(|listed| listed.item.clone()),
            count: candidate.listed.as_ref().map(|_| price.count(extent)),
        }
    };
    let power = candidate.power_kw.filter(|band| band.is_wide());
    CandidateRow {
        name: candidate.name.clone(),
        fabric: candidate.fabric.fabric.clone(),
        fabric_name: fabric.name().to_owned(),
        nodes: extent.hosts as u64,
        gpus: extent.gpus as u64,
        network: candidate.network.clone(),
        price: candidate.price.map(row),
        power_kw: candidate.power_kw.map(Band::middle),
        power_kw_low: power.map(|band| band.low),
        power_kw_high: power.map(|band| band.high),
        racks: candidate.racks,
        place: place(&candidate.place),
        // Missing only if a shipped file is defective, which the runs have reported by now.
        profile: Profile::for_fabric(fabric).map(|profile| profile.name).unwrap_or_default(),
        kernels: KernelsRow::of(&candidate.efficiency.on(fabric)),
        sources: fabric.sources().to_vec(),
    }
}

/// Price-list entries used by the candidates.
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

fn job_row(study: &Study, number: usize, job: &Job) -> JobRow {
    let (kind, computed) = match job {
        Job::Training(job) => (JobKind::Training, Some((&job.model, job.precision, &job.parallel))),
        Job::Inference(job) => (JobKind::Inference, Some((&job.model, job.precision, &job.parallel))),
        Job::Trace(_) => (JobKind::Trace, None),
    };
    let (trained, served, traced) = match job {
        Job::Training(job) => (Some(job), None, None),
        Job::Inference(job) => (None, Some(job), None),
        Job::Trace(job) => (None, None, Some(job)),
    };
    let precision = |of: Precision| match of {
        Precision::Fp32 => "fp32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
        Precision::Fp8 => "fp8",
        Precision::Nvfp4 => "nvfp4",
    };
    let recompute = |of: Recompute| match of {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
        Recompute::EarlyStop => "early_stop",
    };
    let recomputed = |job: &Training| match job.recompute_layers {
        None => recompute(job.recompute).to_owned(),
        Some(some) => format!("{}, {some} of {} layers", recompute(job.recompute), job.model.layers),
    };
    let (concurrency, requests) = match served.map(|job| job.arrivals) {
        Some(Arrivals::OneByOne { concurrency }) => (Some(concurrency), None),
        Some(Arrivals::Together { requests, .. }) => (None, Some(requests)),
        Some(Arrivals::AsMany { .. }) | None => (None, None),
    };
    let placed = job.placement();
    JobRow {
        name: job.name().to_owned(),
        kind,
        weight: job.weight(),
        candidates: study.pairs.of_job(number).unwrap_or_default().iter().map(|&one| name(study, one)).collect(),
        model: computed.map(|(model, ..)| model_row(model)),
        precision: computed.map(|(_, of, _)| precision(of).to_owned()),
        file: traced.map(|job| job.file.clone()),
        global_batch: trained.map(|job| job.global_batch),
        micro_batch: trained.map(|job| job.micro_batch),
        recompute: trained.map(recomputed),
        prompt_tokens: served.map(|job| job.prompt_tokens),
        output_tokens: served.map(|job| job.output_tokens),
        concurrency,
        requests,
        placement: Some(placed).filter(|placement| !placement.is_in_order()).map(ToString::to_string),
        asked: study.asked.get(number).cloned().unwrap_or_default(),
        auto: computed.is_some_and(|(_, _, parallel)| *parallel == Parallel::Auto),
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
        latent: model.latent.map(|latent| latent.kept()),
        ffn: model.ffn,
        vocab: model.vocab,
        seq: model.seq,
        experts: model.experts,
        experts_per_token: model.experts_per_token,
        parameters: model.parameters(),
    }
}
