//! Construction of the answer from a study and its runs.

use std::path::Path;

use fabricast_sim::profile::Profile;
use fabricast_topologies::{Fabric, Picos, SourceLocation};
use rustc_hash::FxHashMap;

use super::notes::notes;
use super::ranking::ScoreBasis;
use super::sizing::sizings;
use super::{
    Answer, AssumptionsRow, CandidateRow, ConstraintsRow, CostsRow, FORMAT, JobKind, JobRow, KernelsRow, MeasuredRow,
    ModelRow, PaymentMode, PriceRow, RankedRow, ResultRow, ScoreRow, ScoredBy, SensitivityRow, SourceRow, decisions,
};
use crate::accuracy::{accuracy_statements, model_error};
use crate::cases::Cases;
use crate::cost::{CostedPrediction, RunCosts, Terms};
use crate::decision::{UncertainScore, lowest_score_probabilities};
use crate::error_figures::latency_error;
use crate::key::Key;
use crate::measured::Figure;
use crate::prediction::PredictedStep;
use crate::quantities::seconds;
use crate::rank::{JobResult, RankedCandidate, rank};
use crate::run::Outcome;
use crate::setting::Setting;
use crate::step_interval::StepInterval;
use crate::{Band, CURRENCY, Candidate, MachineSize, MeasuredStep, Payment, Price, Study, UnitCount};
use fabricast_workload::job::{Arrivals, Job, Model, Parallel, Precision, Recompute, Training};

/// Creates the answer of a study from the outcomes of its runs. `fabrics`: unchanged fabrics of the candidates, in
/// order. `None` if the outcome of a run of `cases` is missing.
#[must_use]
pub fn build_answer(
    study: &Study,
    fabrics: &[Fabric],
    cases: &Cases,
    outcomes: &FxHashMap<Key, Outcome>,
) -> Option<Answer> {
    let sizes: Vec<MachineSize> = fabrics.iter().map(MachineSize::new).collect();
    let evaluate = |number: usize, setting: &Setting| {
        let terms = Terms { assumptions: setting.assumptions(study.assumptions), factor: setting.price_factor() };
        let results = job_results(study, &sizes, cases, outcomes, number, &terms)?;
        let ranking = rank(study, &sizes, &results, &terms);
        Some((results, ranking))
    };
    let (job_results, ranking) = evaluate(0, &Setting::AsGiven)?;
    let mut sensitivities = Vec::new();
    for (number, setting) in cases.settings.iter().enumerate().skip(1) {
        let (_, changed_ranking) = evaluate(number, setting)?;
        sensitivities.push(sensitivity(study, cases, number, setting, &ranking, &changed_ranking));
    }
    let likely = probabilities_with_errors(study, fabrics, &ranking);
    let basis = match study.candidates.iter().any(|candidate| candidate.price.is_some()) {
        true => ScoreBasis::Cost,
        false => ScoreBasis::Time,
    };
    let scored_by =
        |candidate: usize| ScoredBy::new(basis, study.jobs_on(candidate).map(|(_, job)| matches!(job, Job::Trace(_))));
    let (assumptions, constraints) = (study.assumptions, &study.constraints);
    let measured = measured_rows(study, &job_results);
    let results = result_rows(study, &job_results);
    let ranked_rows: Vec<RankedRow> = ranking
        .chunk_by(|a, b| a.compared_with == b.compared_with)
        .flat_map(|group| (1..).zip(group.iter().cloned()))
        .map(|(rank, ranked)| RankedRow {
            rank,
            candidate: candidate_name(study, ranked.candidate),
            jobs: job_names(study, ranked.candidate),
            score: Some(ranked.score).filter(|score| score.is_finite()),
            by: scored_by(ranked.candidate),
            pareto: ranked.pareto,
            meets_constraints: ranked.violations.is_empty(),
            violations: ranked.violations,
            probability_best: ranked.probability_best,
            probability_best_with_errors: likely.get(ranked.candidate).copied().flatten(),
        })
        .collect();
    let rows = study.candidates.iter().zip(fabrics);
    let candidate_rows: Vec<CandidateRow> =
        rows.map(|(candidate, fabric)| candidate_row(candidate, fabric, &Terms::new(assumptions))).collect();
    let jobs: Vec<JobRow> = study.jobs.iter().enumerate().map(|(number, job)| job_row(study, number, job)).collect();
    let decisions = decisions(&ranked_rows, &jobs, &results);
    let sizings = sizings(&candidate_rows, &ranked_rows);
    Some(Answer {
        format: FORMAT.to_owned(),
        currency: CURRENCY.to_owned(),
        candidates: candidate_rows,
        jobs,
        decisions,
        sizings,
        constraints: ConstraintsRow {
            budget_usd: constraints.budget,
            cost_per_hour_usd: constraints.cost_per_hour,
            power_kw: constraints.power_kw,
            racks: constraints.racks,
            max_train_days: constraints.jobs.max_train_days,
            min_tokens_per_s: constraints.jobs.min_tokens_per_s,
            max_ttft_s: constraints.jobs.max_ttft_s,
        },
        assumptions: AssumptionsRow {
            years: assumptions.years,
            utilization: assumptions.utilization,
            usd_per_kwh: assumptions.per_kwh,
            pue: assumptions.pue,
            hosting_usd_per_kw_month: assumptions.hosting_per_kw_month,
            staff_usd_per_year: assumptions.staff_per_year,
            maintenance_per_year: assumptions.maintenance,
            residual: assumptions.residual,
            price_bands: price_bands(study),
        },
        notes: notes(study, &results),
        accuracy: accuracy_statements(study, fabrics),
        sources: sources(study),
        measured,
        results,
        ranking: ranked_rows,
        sensitivities,
    })
}

/// Probability that each candidate of the study has the lowest score among the candidates that it is compared with,
/// including the model's error. `None` for candidates that are compared with no other or have no score.
fn probabilities_with_errors(study: &Study, fabrics: &[Fabric], ranking: &[RankedCandidate]) -> Vec<Option<f64>> {
    let mut probabilities = vec![None; study.candidates.len()];
    for compared in ranking.chunk_by(|a, b| a.compared_with == b.compared_with).filter(|compared| compared.len() > 1) {
        let scores: Vec<Option<UncertainScore>> = compared
            .iter()
            .map(|ranked| {
                let error = model_error(study, fabrics, ranked.candidate);
                Some(UncertainScore { band: ranked.score_band?, error })
            })
            .collect();
        for (ranked, probability) in compared.iter().zip(lowest_score_probabilities(&scores)) {
            if let Some(entry) = probabilities.get_mut(ranked.candidate) {
                *entry = Some(probability.unwrap_or(0.0));
            }
        }
    }
    probabilities
}

/// Description of the price distribution behind `probability_best`.
const PRICE_BANDS: &str = "a price is uniform over its band; prices are independent, except that those of the same price-list entry vary together; times have no bands here";

fn price_bands(study: &Study) -> String {
    let is_wide = |candidate: &Candidate| candidate.power_kw.is_some_and(Band::is_wide);
    let power = if study.candidates.iter().any(is_wide) { "; power varies with the price" } else { "" };
    format!("{PRICE_BANDS}{power}")
}

fn candidate_name(study: &Study, candidate: usize) -> String {
    study.candidates.get(candidate).map_or_else(String::new, |candidate| candidate.name.clone())
}

/// Returns the names of the jobs by which a candidate is ranked; empty if all candidates have the same jobs.
fn job_names(study: &Study, candidate: usize) -> Vec<String> {
    let jobs = study.jobs.iter().enumerate().filter(|(number, _)| study.assignment.is_assigned(candidate, *number));
    let has_different_jobs = study.assignment.has_different_jobs(study.candidates.len());
    jobs.filter(|_| has_different_jobs).map(|(_, job)| job.name().to_owned()).collect()
}

/// Returns the results of every job on every candidate under a setting, with costs; `None` if the outcome of a run is
/// missing.
fn job_results<'a>(
    study: &Study,
    sizes: &[MachineSize],
    cases: &Cases,
    outcomes: &'a FxHashMap<Key, Outcome>,
    setting: usize,
    terms: &Terms,
) -> Option<Vec<JobResult<'a>>> {
    let mut results = Vec::with_capacity(study.candidates.len() * study.jobs.len());
    for (number, (candidate, &size)) in study.candidates.iter().zip(sizes).enumerate() {
        for (job_number, job) in study.jobs.iter().enumerate() {
            if !study.assignment.is_assigned(number, job_number) {
                results.push(None);
                continue;
            }
            results.push(Some(match outcomes.get(&cases.key(setting, number, job_number)?)? {
                Outcome::Refused(reason) => Err(format!("{}: {reason}", job.name())),
                Outcome::Done(prediction) => {
                    let costs = RunCosts::new(prediction, candidate, size, job, terms);
                    Ok(CostedPrediction { prediction, costs })
                }
            }));
        }
    }
    Some(results)
}

/// Returns the rows of the jobs that run, by candidate, then by job. A cached run may have been executed under other
/// names.
fn result_rows(study: &Study, results: &[JobResult<'_>]) -> Vec<ResultRow> {
    let names = study.candidates.iter().flat_map(|candidate| study.jobs.iter().map(move |job| (candidate, job)));
    let row = |((candidate, job), result): ((&Candidate, &Job), &JobResult<'_>)| {
        let CostedPrediction { prediction, costs } = result.as_ref()?.as_ref().ok()?;
        let row = ResultRow::new(prediction, costs);
        Some(ResultRow { candidate: candidate.name.clone(), job: job.name().to_owned(), ..row })
    };
    names.zip(results).filter_map(row).collect()
}

/// Returns the measured figures with the predictions for the same jobs and candidates.
fn measured_rows(study: &Study, results: &[JobResult<'_>]) -> Vec<MeasuredRow> {
    let measured_row = |step: &MeasuredStep| {
        let job = study.jobs.get(step.job)?;
        // Rejected jobs have no prediction; the ranking states the reason.
        let run = results.get(step.candidate * study.jobs.len() + step.job)?.as_ref()?.as_ref().ok();
        let predicted = run.and_then(|run| step.figure.predicted(job, run.prediction));
        // All figures scale with the step time, rates inversely.
        let scaled = |end: fn(StepInterval) -> Picos| {
            let PredictedStep { time, interval, .. } = &run?.prediction.step;
            let factor = seconds(end((*interval)?)) / seconds(*time);
            Some(if step.figure.is_rate() { predicted? / factor } else { predicted? * factor })
        };
        let ends = [scaled(|interval| interval.low), scaled(|interval| interval.high)];
        let ends = match (step.figure, latency_error(step.figure, job)) {
            (_, Some(error)) => error.measured_to_predicted().map(|factor| Some(predicted? * factor)),
            // It does not depend on the steps.
            (Figure::KvTransfer | Figure::AdapterSwap, _) => [None, None],
            _ => ends,
        };
        let [low, high] = if step.figure.is_rate() { [ends[1], ends[0]] } else { ends };
        Some(MeasuredRow {
            low,
            high,
            candidate: candidate_name(study, step.candidate),
            job: job.name().to_owned(),
            figure: step.figure.key().to_owned(),
            measured: step.value,
            predicted,
        })
    };
    study.measured.iter().filter_map(measured_row).collect()
}

fn sensitivity(
    study: &Study,
    cases: &Cases,
    number: usize,
    setting: &Setting,
    base_ranking: &[RankedCandidate],
    ranking: &[RankedCandidate],
) -> SensitivityRow {
    let order = |ranking: &[RankedCandidate]| -> Vec<(usize, bool)> {
        ranking.iter().map(|ranked| (ranked.candidate, ranked.violations.is_empty())).collect()
    };
    let unchanged = |candidate: usize| {
        let reason = cases.unchanged(number, candidate)?;
        Some(format!("{}: {reason}", candidate_name(study, candidate)))
    };
    SensitivityRow {
        name: setting.name().to_owned(),
        setting: setting.value(),
        changed: order(base_ranking) != order(ranking),
        ranking: ranking
            .iter()
            .map(|ranked| ScoreRow {
                candidate: candidate_name(study, ranked.candidate),
                score: Some(ranked.score).filter(|score| score.is_finite()),
                meets_constraints: ranked.violations.is_empty(),
                violations: ranked.violations.clone(),
            })
            .collect(),
        unchanged: (0..study.candidates.len()).filter_map(unchanged).collect(),
    }
}

fn format_location(place: &SourceLocation) -> String {
    let file = Path::new(&place.source).file_name().map_or(place.source.clone().into(), |name| name.to_string_lossy());
    SourceLocation { source: file.into_owned(), ..place.clone() }.to_string()
}

fn candidate_row(candidate: &Candidate, fabric: &Fabric, terms: &Terms) -> CandidateRow {
    let size = MachineSize::new(fabric);
    let price_row = |price: Price| {
        let (paid, band) = match (price.payment, price.unit_count) {
            (Payment::PerHour, UnitCount::Gpus) => (PaymentMode::HourlyByGpu, price.band),
            (Payment::PerHour, _) => (PaymentMode::Hourly, price.total(size)),
            (Payment::Bought, _) => (PaymentMode::Once, price.total(size)),
        };
        PriceRow {
            payment: paid,
            low: band.low,
            high: band.high,
            item: candidate.price_entry.as_ref().map(|listed| listed.item.clone()),
            count: candidate.price_entry.as_ref().map(|_| price.count(size)),
        }
    };
    let power = candidate.power_kw.filter(|band| band.is_wide());
    CandidateRow {
        name: candidate.name.clone(),
        machine: candidate.machine.clone(),
        fabric: candidate.fabric.fabric.clone(),
        fabric_name: fabric.name().to_owned(),
        nodes: size.hosts as u64,
        gpus: size.gpus as u64,
        network: candidate.network.clone(),
        price: candidate.price.map(price_row),
        power_kw: candidate.power_kw.map(Band::middle),
        power_kw_low: power.map(|band| band.low),
        power_kw_high: power.map(|band| band.high),
        racks: candidate.racks,
        costs: costs_row(candidate, size, terms),
        location: format_location(&candidate.location),
        // The name is missing only if a shipped file is invalid, which the runs report.
        profile: Profile::for_fabric(fabric).map(|profile| profile.name).unwrap_or_default(),
        kernels: KernelsRow::new(&candidate.efficiency.resolve(fabric)),
        sources: fabric.sources().to_vec(),
    }
}

/// Returns the yearly costs of a candidate; `None` without a price.
fn costs_row(candidate: &Candidate, size: MachineSize, terms: &Terms) -> Option<CostsRow> {
    let costs = candidate.yearly_costs(size, terms)?;
    let bought = candidate.price.filter(|price| price.payment == Payment::Bought);
    Some(CostsRow {
        purchase: bought.map_or(0.0, |price| price.total(size).middle()),
        depreciation_per_year: costs.depreciation,
        rent_per_year: costs.rent,
        energy_per_year: costs.energy,
        cooling_per_year: costs.cooling,
        hosting_per_year: costs.hosting,
        maintenance_per_year: costs.maintenance,
        staff_per_year: costs.staff,
        total_per_year: costs.total(),
        total_per_month: costs.per_month(),
        total: costs.total() * terms.assumptions.years,
    })
}

/// Returns the price-list entries that the candidates use, without duplicates.
fn sources(study: &Study) -> Vec<SourceRow> {
    let mut rows: Vec<SourceRow> = Vec::new();
    for entry in study.candidates.iter().filter_map(|candidate| candidate.price_entry.as_ref()) {
        let row = SourceRow {
            item: entry.item.clone(),
            low: entry.low,
            high: entry.high,
            currency: entry.currency.clone(),
            date: entry.date.clone(),
            source: entry.source.clone(),
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
    let precision = |value: Precision| match value {
        Precision::Fp32 => "fp32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
        Precision::Fp8 => "fp8",
        Precision::Nvfp4 => "nvfp4",
    };
    let recompute = |value: Recompute| match value {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
        Recompute::EarlyStop => "early_stop",
        Recompute::FeedForward => "feed_forward",
    };
    let recomputed = |job: &Training| match job.recompute_layers {
        None => recompute(job.recompute).to_owned(),
        Some(count) => format!("{}, {count} of {} layers", recompute(job.recompute), job.model.layers),
    };
    let (concurrency, requests) = match served.map(|job| job.arrivals) {
        Some(Arrivals::FixedConcurrency { concurrency, requests, .. }) => (Some(concurrency), requests),
        Some(Arrivals::Batch { requests, .. }) => (None, Some(requests)),
        Some(Arrivals::OpenLoop(open_loop)) => (None, open_loop.requests),
        Some(Arrivals::AutoConcurrency { .. }) | None => (None, None),
    };
    let placement = job.placement();
    JobRow {
        name: job.name().to_owned(),
        kind,
        weight: job.weight(),
        candidates: study
            .assignment
            .candidates(number)
            .unwrap_or_default()
            .iter()
            .map(|&candidate| candidate_name(study, candidate))
            .collect(),
        model: computed.map(|(model, ..)| model_row(model)),
        precision: computed.map(|(_, value, _)| precision(value).to_owned()),
        file: traced.map(|job| job.file.clone()),
        global_batch: trained.map(|job| job.global_batch),
        micro_batch: trained.map(|job| job.micro_batch),
        recompute: trained.map(recomputed),
        prompt_tokens: served.map(|job| job.prompt_tokens),
        output_tokens: served.map(|job| job.output_tokens),
        concurrency,
        requests,
        request_rate: served.and_then(|job| match job.arrivals {
            Arrivals::OpenLoop(open_loop) => Some(open_loop.rate()),
            _ => None,
        }),
        placement: Some(placement).filter(|placement| !placement.is_in_order()).map(ToString::to_string),
        keys: study.job_keys.get(number).cloned().unwrap_or_default(),
        auto: computed.is_some_and(|(_, _, parallel)| *parallel == Parallel::Auto),
        train_tokens: trained.and_then(|job| job.train_tokens),
        location: format_location(&job.spans().job),
    }
}

fn model_row(model: &Model) -> ModelRow {
    ModelRow {
        layers: model.layers,
        hidden: model.hidden,
        heads: model.heads,
        kv_heads: model.kv_heads,
        latent: model.latent.map(|latent| latent.cached_width()),
        ffn: model.ffn,
        vocab: model.vocab,
        seq: model.seq,
        experts: model.experts,
        experts_per_token: model.experts_per_token,
        parameters: model.parameters(),
    }
}
