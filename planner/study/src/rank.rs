//! Ranking of candidates: those that meet all constraints first, then by the cost of their jobs, or by speed without
//! prices.
//!
//! The score is a weighted geometric mean over jobs, so that jobs with long steps do not dominate those with short
//! steps. Only candidates with the same jobs are compared. Candidates with the jobs of the first candidate come first.

use super::cost::CostedPrediction;
use super::cost_probability::{self, ScoreBand};
use super::prediction::{MissingMemory, PredictedMemory, PredictedWork, Prediction};
use super::quantities::{gb, weighted_geometric_mean};
use super::{Band, Constraints, MachineSize, Study, Terms};

/// Candidate with its score.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedCandidate {
    /// Index of the candidate in the study.
    pub candidate: usize,
    /// First candidate of the group of comparable candidates
    /// ([`JobAssignment::first_with_same_jobs`](super::JobAssignment::first_with_same_jobs)).
    pub compared_with: usize,
    /// Weighted geometric mean over jobs of the cost per million tokens; without prices, of the seconds per million
    /// tokens. Infinite if a job cannot run.
    pub score: f64,
    /// True if the candidate is Pareto-optimal: no other candidate of its group is both cheaper per hour and faster
    /// over all jobs. `None` without prices.
    pub pareto: Option<bool>,
    /// Descriptions of violated constraints and of jobs that do not fit; empty if there are none.
    pub violations: Vec<String>,
    /// Probability of lowest cost in the candidate's group, with prices distributed over their bands; `None` without
    /// prices.
    pub probability_best: Option<f64>,
    /// Score as a function of the price; constant without prices. `None` if the candidate violates a constraint.
    pub(crate) score_band: Option<ScoreBand>,
}

/// Prediction of a job on a candidate with costs, or the reason why the job cannot run; `None` if the job is not
/// assigned to the candidate.
pub type JobResult<'a> = Option<Result<CostedPrediction<'a>, String>>;

/// Ranks the candidates of a study, best first in each group of comparable candidates. `results`: results by
/// candidate, then by job. `sizes`: size that prices refer to, by candidate.
#[must_use]
pub fn rank(study: &Study, sizes: &[MachineSize], results: &[JobResult<'_>], terms: &Terms) -> Vec<RankedCandidate> {
    let job_results = |candidate: usize| {
        let results = results.chunks(study.jobs.len().max(1)).nth(candidate).unwrap_or_default();
        study.jobs.iter().zip(results).filter_map(|(job, result)| Some((job, result.as_ref()?)))
    };
    let mean = |candidate: usize, figure: fn(&CostedPrediction<'_>) -> f64| {
        let figures =
            job_results(candidate).map(|(job, result)| (result.as_ref().map_or(f64::INFINITY, figure), job.weight()));
        weighted_geometric_mean(figures).unwrap_or(f64::NAN)
    };
    let seconds =
        |candidate| mean(candidate, |CostedPrediction { prediction, costs }| costs.seconds_per_unit(prediction));
    let hourly = |candidate: usize| {
        let size = sizes.get(candidate).copied().unwrap_or_default();
        study.candidates.get(candidate).and_then(|candidate| candidate.hourly(size, terms))
    };
    let priced = study.candidates.iter().all(|candidate| candidate.price.is_some());
    let mut ranked: Vec<RankedCandidate> = study
        .candidates
        .iter()
        .enumerate()
        .map(|(number, candidate)| {
            let missing = job_results(number).flat_map(|(job, result)| match result {
                Ok(run) => {
                    let mut missing = shortfalls(job.name(), run.prediction);
                    missing.extend(study.constraints.jobs.violations(job.name(), run));
                    missing
                }
                Err(reason) => vec![reason.clone()],
            });
            let constraints =
                candidate.violations(sizes.get(number).copied().unwrap_or_default(), terms, &study.constraints);
            let violations = missing.chain(constraints).collect();
            let score = match priced {
                true => mean(number, |CostedPrediction { costs, .. }| {
                    let per_tokens = costs.per_million_tokens.map(Band::middle);
                    per_tokens.or(costs.per_step).unwrap_or(f64::INFINITY)
                }),
                false => seconds(number),
            };
            let compared_with = study.assignment.first_with_same_jobs(number);
            RankedCandidate {
                candidate: number,
                compared_with,
                score,
                pareto: None,
                violations,
                probability_best: None,
                score_band: None,
            }
        })
        .collect();
    // The sort is stable, so compared candidates stay in the order of the study.
    ranked.sort_by_key(|entry| entry.compared_with);
    if priced {
        for compared in ranked.chunk_by_mut(|a, b| a.compared_with == b.compared_with) {
            compute_pareto(study, compared, seconds, hourly);
        }
    }
    for entry in ranked.iter_mut().filter(|entry| entry.score_band.is_none()) {
        let is_scored = entry.violations.is_empty() && entry.score.is_finite();
        let (low, high, group) = (entry.score, entry.score, entry.candidate);
        entry.score_band = is_scored.then_some(ScoreBand { low, high, group });
    }
    ranked.sort_by(|a, b| {
        let key = |entry: &RankedCandidate| (entry.compared_with, !entry.violations.is_empty());
        key(a).cmp(&key(b)).then(a.score.total_cmp(&b.score)).then(a.candidate.cmp(&b.candidate))
    });
    ranked
}

/// Computes Pareto optimality and the probability of lowest cost for candidates that are compared with each other.
fn compute_pareto(
    study: &Study,
    compared: &mut [RankedCandidate],
    seconds: impl Fn(usize) -> f64,
    hourly: impl Fn(usize) -> Option<Band>,
) {
    let middle = |candidate| hourly(candidate).map_or(f64::INFINITY, Band::middle);
    let points: Vec<(f64, f64, bool)> = compared
        .iter()
        .map(|ranked| (middle(ranked.candidate), seconds(ranked.candidate), ranked.violations.is_empty()))
        .collect();
    for (ranked, point) in compared.iter_mut().zip(&points) {
        let better = |other: &&(f64, f64, bool)| {
            other.2 && other.0 <= point.0 && other.1 <= point.1 && (other.0 < point.0 || other.1 < point.1)
        };
        ranked.pareto = Some(point.2 && points.iter().find(better).is_none());
    }
    let bands: Vec<Option<ScoreBand>> = compared
        .iter()
        .map(|ranked| {
            let band = hourly(ranked.candidate).filter(|_| ranked.violations.is_empty())?;
            let hours = ranked.score / band.middle();
            Some(ScoreBand { low: band.low * hours, high: band.high * hours, group: group(study, ranked.candidate) })
        })
        .collect();
    let probabilities = cost_probability::lowest_score_probabilities(&bands);
    for ((ranked, probability), band) in compared.iter_mut().zip(probabilities).zip(bands) {
        ranked.probability_best = Some(probability.unwrap_or(0.0));
        ranked.score_band = band;
    }
}

/// Describes the memory that a job lacks, the changes that would make it fit, and its SLO violations.
fn shortfalls(name: &str, prediction: &Prediction) -> Vec<String> {
    let MissingMemory { gpu, host } = prediction.missing_memory();
    let remedies = prediction.service().map(|service| service.would_fit.as_slice()).unwrap_or_default();
    let would_fit = || match remedies {
        [] => String::new(),
        remedies => format!(" ({} would fit)", remedies.join(" or ")),
    };
    let gpu = gpu.map(gb).map(|excess| {
        let remedy = match (&prediction.work, remedies) {
            (PredictedWork::Training | PredictedWork::Trace, _) => String::new(),
            (PredictedWork::Inference(_), []) if has_room_for_weights(prediction, excess) => {
                " (weights fit, but not the buffers for max_batched_tokens: a smaller value would)".to_owned()
            }
            (PredictedWork::Inference(_), []) => " (not even the weights fit)".to_owned(),
            (PredictedWork::Inference(_), _) => would_fit(),
        };
        format!("{name} lacks {excess:.1} GB of memory{remedy}")
    });
    let host = host
        .map(gb)
        .map(|excess| format!("{name} lacks {excess:.1} GB of a GPU's part of the CPUs' memory{}", would_fit()));
    let violations = prediction.service().map(|service| service.slo_violations.as_slice()).unwrap_or_default();
    gpu.into_iter().chain(host).chain(violations.iter().map(|violation| format!("{name}: {violation}"))).collect()
}

/// Returns true if the weights and the libraries fit in the available memory, although the whole job does not fit.
fn has_room_for_weights(prediction: &Prediction, excess_gb: f64) -> bool {
    prediction.memory.is_some_and(|PredictedMemory { footprint, .. }| {
        gb(footprint.weights) + gb(footprint.runtime) <= gb(footprint.total()) - excess_gb
    })
}

/// Returns the first candidate with the same price-list entry. The prices of such candidates have the same position in
/// their bands.
fn group(study: &Study, candidate: usize) -> usize {
    let listed = |number: usize| study.candidates.get(number).and_then(|candidate| candidate.price_entry.as_ref());
    let entry = listed(candidate);
    let first = entry.and_then(|entry| (0..candidate).find(|&other| listed(other) == Some(entry)));
    first.unwrap_or(candidate)
}

/// Returns the candidate that is closest to meeting the constraints on budget, cost per hour, power and racks, by its
/// largest ratio of a value to a limit. `None` if some candidate meets all constraints, or there are no constraints.
#[must_use]
pub fn nearest_candidate(study: &Study, sizes: &[MachineSize]) -> Option<usize> {
    let terms = Terms::new(study.assumptions);
    if study.constraints == (Constraints { location: study.constraints.location.clone(), ..Constraints::default() }) {
        return None;
    }
    let excess =
        study.candidates.iter().zip(sizes).map(|(candidate, &size)| candidate.excess(size, &terms, &study.constraints));
    let excess: Vec<f64> = excess.collect();
    if excess.iter().any(|&ratio| ratio <= 1.0) {
        return None;
    }
    // The first of several equal candidates is returned.
    excess.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map(|(number, _)| number)
}
