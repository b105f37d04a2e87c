//! Decision of a study: the best candidate, or the candidates between which prices and the model's error do not decide.
//!
//! Text, page and `results.json` state this decision. It follows from the ranking alone, so that it is derived again when
//! an answer is read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{JobKind, JobRow, RankedRow, ResultRow, ScoredBy};
use crate::quantities::weighted_geometric_mean;

/// Minimum of [`RankedRow::best_probability`] for which the first candidate is called best. Below it, the decision is
/// reported as too close to call. The value is a judgement: four in five.
pub const DECISIVE: f64 = 0.8;

/// Decision among candidates with the same jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionRow {
    /// Jobs of the compared candidates, if candidates have different jobs; empty if all have the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Kind of the decision.
    pub outcome: DecisionOutcome,
    /// Quantity by which candidates are compared.
    pub by: ScoredBy,
    /// Chosen candidate, or the candidates that share the decision, the likeliest first. Empty without a valid candidate.
    pub candidates: Vec<Contender>,
    /// Candidate with the next score, if one candidate is best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Contender>,
    /// Best candidates of training alone and of inference alone, at the middle of the price bands, if they differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_kind: Vec<KindDecision>,
}

/// Best candidate for the jobs of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KindDecision {
    /// Kind of the jobs.
    pub kind: JobKind,
    /// Name of the candidate.
    pub candidate: String,
    /// Weighted geometric mean over the jobs of this kind, in the unit of the decision.
    pub score: f64,
}

/// Kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionOutcome {
    /// One candidate is best with a probability of at least [`DECISIVE`].
    Best,
    /// No candidate is best with that probability.
    TooCloseToCall,
    /// Only one candidate meets all constraints.
    OnlyValid,
    /// The study has one candidate for these jobs, and it meets all constraints.
    SingleCandidate,
    /// No candidate runs all jobs within the constraints.
    NoneValid,
}

/// Candidate of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contender {
    /// Name of the candidate.
    pub candidate: String,
    /// Score, as in the ranking.
    pub score: Option<f64>,
    /// Probability of the best score, [`RankedRow::best_probability`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability_best: Option<f64>,
}

impl Contender {
    fn new(row: &RankedRow) -> Self {
        Self { candidate: row.candidate.clone(), score: row.score, probability_best: row.best_probability() }
    }
}

impl DecisionRow {
    /// Derives the decision from the ranking of candidates with the same jobs, best first; `None` without candidates.
    /// `all_jobs`, `results`: jobs and results of the study.
    #[must_use]
    pub fn new(compared: &[RankedRow], all_jobs: &[JobRow], results: &[ResultRow]) -> Option<Self> {
        let RankedRow { jobs, by, .. } = compared.first()?;
        let valid: Vec<&RankedRow> = compared.iter().filter(|row| row.meets_constraints).collect();
        let by_kind = kind_decisions(&valid, all_jobs, results);
        let decision = |outcome, candidates, next| Self {
            jobs: jobs.clone(),
            outcome,
            by: *by,
            candidates,
            next,
            by_kind: by_kind.clone(),
        };
        let single = |outcome, row| decision(outcome, vec![Contender::new(row)], None);
        Some(match *valid.as_slice() {
            [] => decision(DecisionOutcome::NoneValid, Vec::new(), None),
            [only] if compared.len() == 1 => single(DecisionOutcome::SingleCandidate, only),
            [only] => single(DecisionOutcome::OnlyValid, only),
            [first, second, ..] => {
                // Results of earlier versions have no probability for candidates without prices.
                if first.best_probability().is_none_or(|probability| probability >= DECISIVE) {
                    decision(DecisionOutcome::Best, vec![Contender::new(first)], Some(Contender::new(second)))
                } else {
                    decision(DecisionOutcome::TooCloseToCall, contenders(&valid), None)
                }
            }
        })
    }
}

/// Returns the best of the valid candidates for training and for inference, if both occur and have different ones.
fn kind_decisions(valid: &[&RankedRow], jobs: &[JobRow], results: &[ResultRow]) -> Vec<KindDecision> {
    let best = |kind: JobKind| {
        let scores = valid.iter().filter_map(|row| Some((&row.candidate, kind_score(row, kind, jobs, results)?)));
        let (candidate, score) = scores.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some(KindDecision { kind, candidate: candidate.clone(), score })
    };
    match (best(JobKind::Training), best(JobKind::Inference)) {
        (Some(training), Some(inference)) if training.candidate != inference.candidate => vec![training, inference],
        _ => Vec::new(),
    }
}

/// Returns the weighted geometric mean of cost, or of time without prices, over the jobs of a kind on a candidate; `None`
/// if it runs none.
fn kind_score(row: &RankedRow, kind: JobKind, jobs: &[JobRow], results: &[ResultRow]) -> Option<f64> {
    let of_kind = jobs.iter().filter(|job| job.kind == kind);
    let figures = of_kind.filter_map(|job| {
        let result = results.iter().find(|result| result.candidate == row.candidate && result.job == job.name)?;
        let value = if row.by.is_cost() { result.cost_per_million_tokens } else { Some(result.seconds_per_unit()) };
        Some(value.map(|value| (value, job.weight)))
    });
    weighted_geometric_mean(figures.collect::<Option<Vec<_>>>()?)
}

/// Returns the likeliest candidates whose probabilities add up to [`DECISIVE`].
fn contenders(valid: &[&RankedRow]) -> Vec<Contender> {
    let mut likely: Vec<Contender> = valid.iter().map(|row| Contender::new(row)).collect();
    let probability = |contender: &Contender| contender.probability_best.unwrap_or(0.0);
    likely.sort_by(|a, b| probability(b).total_cmp(&probability(a)));
    let mut covered = 0.0;
    let count = likely
        .iter()
        .take_while(|contender| {
            let is_open = covered < DECISIVE;
            covered += probability(contender);
            is_open && probability(contender) > 0.0
        })
        .count();
    likely.truncate(count.max(2));
    likely
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(candidate: &str, score: f64, probability: Option<f64>, valid: bool) -> RankedRow {
        RankedRow {
            rank: 1,
            candidate: candidate.to_owned(),
            score: Some(score),
            by: ScoredBy::CostPerMillionTokens,
            jobs: Vec::new(),
            pareto: None,
            meets_constraints: valid,
            violations: Vec::new(),
            probability_best: Some(1.0),
            probability_best_with_errors: probability,
        }
    }

    #[test]
    fn decision_follows_the_probability_with_errors() {
        let decided = |first, second| {
            DecisionRow::new(&[row("a", 1.0, Some(first), true), row("b", 1.1, Some(second), true)], &[], &[])
        };
        let best = decided(0.81, 0.19).unwrap();
        assert_eq!((best.outcome, best.candidates[0].candidate.as_str()), (DecisionOutcome::Best, "a"));
        assert_eq!(best.next.unwrap().candidate, "b");
        let open = decided(0.45, 0.55).unwrap();
        assert_eq!(open.outcome, DecisionOutcome::TooCloseToCall);
        assert_eq!(open.candidates.iter().map(|one| one.candidate.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert!(open.next.is_none());
    }

    #[test]
    fn candidates_that_violate_constraints_are_never_chosen() {
        let outcome = |rows: &[RankedRow]| DecisionRow::new(rows, &[], &[]).map(|decision| decision.outcome);
        let (valid, invalid) = (row("a", 2.0, Some(1.0), true), row("b", 1.0, None, false));
        assert_eq!(outcome(&[valid.clone(), invalid.clone()]), Some(DecisionOutcome::OnlyValid));
        assert_eq!(outcome(std::slice::from_ref(&valid)), Some(DecisionOutcome::SingleCandidate));
        assert_eq!(outcome(&[invalid]), Some(DecisionOutcome::NoneValid));
        assert_eq!(outcome(&[]), None);
    }

    proptest! {
        /// Contenders cover four fifths, no fewer of them do, and a candidate that is left out is no likelier than one of them.
        #[test]
        fn contenders_are_the_fewest_that_cover_the_decision(weights in prop::collection::vec(1u32..100, 2..8)) {
            let total = f64::from(weights.iter().sum::<u32>());
            let rows: Vec<RankedRow> = weights.iter().enumerate()
                .map(|(number, &weight)| row(&number.to_string(), number as f64 + 1.0, Some(f64::from(weight) / total), true))
                .collect();
            let decision = DecisionRow::new(&rows, &[], &[]).unwrap();
            prop_assume!(decision.outcome == DecisionOutcome::TooCloseToCall);
            let chosen: Vec<f64> = decision.candidates.iter().filter_map(|one| one.probability_best).collect();
            let covered: f64 = chosen.iter().sum();
            let last = chosen[chosen.len() - 1];
            prop_assert!(covered >= DECISIVE - 1e-9);
            prop_assert!(chosen.len() == 2 || covered - last < DECISIVE + 1e-9);
            let named = |row: &&RankedRow| decision.candidates.iter().any(|one| one.candidate == row.candidate);
            prop_assert!(rows.iter().filter(|row| !named(row)).all(|row| row.best_probability() <= Some(last)));
        }
    }
}
