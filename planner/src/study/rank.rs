//! Ranking of candidates: those that meet all constraints first, then by the cost of their jobs, or by speed without
//! prices.
//!
//! The score is a geometric mean over jobs, weighted, so that jobs with long and with short steps count alike. Only
//! candidates with the same jobs are compared; those with the jobs of the first candidate come first.

use super::answer::{JobKind, ResultRow};
use super::chance::{self, Span};
use super::{Band, Constraints, Extent, Study, Terms};

/// Candidate with its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Index of the candidate in the study.
    pub candidate: usize,
    /// First candidate of the group that it is compared with ([`Pairs::first_like`](super::Pairs::first_like)).
    pub among: usize,
    /// Weighted geometric mean over jobs of the cost per million tokens, or of the seconds per million tokens without
    /// prices. Infinite if a job cannot run.
    pub score: f64,
    /// True if it is Pareto-optimal: no other candidate of its group is both cheaper per hour and faster over all jobs.
    /// `None` without prices.
    pub pareto: Option<bool>,
    /// Violated constraints and jobs that do not fit.
    pub beyond: Vec<String>,
    /// Probability of lowest cost in its group, with prices anywhere in their bands; `None` without prices.
    pub probability_best: Option<f64>,
}

/// Result of a job on a candidate with costs, or the reason why it cannot run; `None` if it is not assigned to the
/// candidate.
pub type Row = Option<Result<ResultRow, String>>;

/// Ranks the candidates of a study. `rows` are by candidate, then by job; `extents` are those that prices refer to.
#[must_use]
pub fn rank(study: &Study, extents: &[Extent], rows: &[Row], terms: &Terms) -> Vec<Ranked> {
    let of = |candidate: usize| {
        let rows = rows.chunks(study.jobs.len().max(1)).nth(candidate).unwrap_or_default();
        study.jobs.iter().zip(rows).filter_map(|(job, row)| Some((job, row.as_ref()?)))
    };
    let mean = |candidate: usize, of_row: fn(&ResultRow) -> f64| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (job, row) in of(candidate) {
            let value = row.as_ref().map_or(f64::INFINITY, of_row);
            (sum, weights) = (sum + job.weight() * value.ln(), weights + job.weight());
        }
        (sum / weights).exp()
    };
    let seconds = |candidate| mean(candidate, ResultRow::seconds_of_unit);
    let hourly = |candidate: usize| {
        let extent = extents.get(candidate).copied().unwrap_or_default();
        study.candidates.get(candidate).and_then(|one| one.hourly(extent, terms))
    };
    let priced = study.candidates.iter().all(|one| one.price.is_some());
    let mut ranked: Vec<Ranked> = study
        .candidates
        .iter()
        .enumerate()
        .map(|(number, candidate)| {
            let lacking = of(number).flat_map(|(job, row)| match row {
                Ok(row) => shortfalls(job.name(), row),
                Err(why) => vec![why.clone()],
            });
            let constraints =
                candidate.beyond(extents.get(number).copied().unwrap_or_default(), terms, &study.constraints);
            let beyond = lacking.chain(constraints).collect();
            let score = match priced {
                true => mean(number, |row| row.cost_per_million_tokens.or(row.cost_per_step).unwrap_or(f64::INFINITY)),
                false => seconds(number),
            };
            let among = study.pairs.first_like(number);
            Ranked { candidate: number, among, score, pareto: None, beyond, probability_best: None }
        })
        .collect();
    // (A stable sort keeps compared candidates in study order.)
    ranked.sort_by_key(|one| one.among);
    if priced {
        for compared in ranked.chunk_by_mut(|a, b| a.among == b.among) {
            weigh(study, compared, seconds, hourly);
        }
    }
    ranked.sort_by(|a, b| {
        let key = |one: &Ranked| (one.among, !one.beyond.is_empty());
        key(a).cmp(&key(b)).then(a.score.total_cmp(&b.score)).then(a.candidate.cmp(&b.candidate))
    });
    ranked
}

/// Computes Pareto optimality and the probability of lowest cost for candidates that are compared.
fn weigh(
    study: &Study,
    compared: &mut [Ranked],
    seconds: impl Fn(usize) -> f64,
    hourly: impl Fn(usize) -> Option<Band>,
) {
    let middle = |candidate| hourly(candidate).map_or(f64::INFINITY, Band::middle);
    let points: Vec<(f64, f64, bool)> =
        compared.iter().map(|one| (middle(one.candidate), seconds(one.candidate), one.beyond.is_empty())).collect();
    for (one, own) in compared.iter_mut().zip(&points) {
        let better = |other: &&(f64, f64, bool)| {
            other.2 && other.0 <= own.0 && other.1 <= own.1 && (other.0 < own.0 || other.1 < own.1)
        };
        one.pareto = Some(own.2 && points.iter().find(better).is_none());
    }
    let spans: Vec<Option<Span>> = compared
        .iter()
        .map(|one| {
            let band = hourly(one.candidate).filter(|_| one.beyond.is_empty())?;
            let by_hour = one.score / band.middle();
            Some(Span { low: band.low * by_hour, high: band.high * by_hour, group: group(study, one.candidate) })
        })
        .collect();
    for (one, chance) in compared.iter_mut().zip(chance::of_being_best(&spans)) {
        one.probability_best = Some(chance.unwrap_or(0.0));
    }
}

/// Describes the memory that a job lacks, changes that would make it fit, and SLO violations.
fn shortfalls(name: &str, row: &ResultRow) -> Vec<String> {
    let lacking = row.memory_beyond_gb.map(|over| {
        let would = match (row.kind, row.would_fit.as_slice()) {
            (JobKind::Training | JobKind::Trace, _) => String::new(),
            (JobKind::Inference, []) if has_room_for_weights(row, over) => {
                " (weights fit, but not what max_batched_tokens takes besides: fewer would)".to_owned()
            }
            (JobKind::Inference, []) => " (not even the weights fit)".to_owned(),
            (JobKind::Inference, some) => format!(" ({} would fit)", some.join(" or ")),
        };
        format!("{name} lacks {over:.1} GB of memory{would}")
    });
    let beside = row.host_memory_beyond_gb.map(|over| {
        let would = match row.would_fit.as_slice() {
            [] => String::new(),
            some => format!(" ({} would fit)", some.join(" or ")),
        };
        format!("{name} lacks {over:.1} GB of a GPU's part of the CPUs' memory{would}")
    });
    lacking.into_iter().chain(beside).chain(row.late.iter().map(|late| format!("{name}: {late}"))).collect()
}

/// Returns true if the weights and the libraries fit the available memory, although the whole job does not.
fn has_room_for_weights(row: &ResultRow, over: f64) -> bool {
    let filled = row.memory_gb.map(|all| all - over);
    row.memory.zip(filled).is_some_and(|(memory, filled)| memory.weights_gb + memory.runtime_gb <= filled)
}

/// Returns the first candidate with the same price-list entry: such candidates have the same price within its band.
fn group(study: &Study, candidate: usize) -> usize {
    let listed = |number: usize| study.candidates.get(number).and_then(|one| one.listed.as_ref());
    let own = listed(candidate);
    let first = own.and_then(|own| (0..candidate).find(|&other| listed(other) == Some(own)));
    first.unwrap_or(candidate)
}

/// Returns the candidate closest to the constraints on budget, cost per hour, power and racks, by its worst violation,
/// if no candidate meets them. `None` if one does, or without constraints.
#[must_use]
pub fn nearest(study: &Study, extents: &[Extent]) -> Option<usize> {
    let terms = Terms::of(study.assumptions);
    if study.constraints == (Constraints { place: study.constraints.place.clone(), ..Constraints::default() }) {
        return None;
    }
    let excess =
        study.candidates.iter().zip(extents).map(|(one, &extent)| one.excess(extent, &terms, &study.constraints));
    let excess: Vec<f64> = excess.collect();
    if excess.iter().any(|&one| one <= 1.0) {
        return None;
    }
    // Ties go to the first.
    excess.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map(|(number, _)| number)
}
