//! Ranking of the candidates, and their order under changed assumptions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Returns the groups of candidates with the same jobs, in the order of the ranking. Only candidates within a group are
/// compared.
pub(super) fn comparable_groups(ranking: &[RankedRow]) -> impl Iterator<Item = &[RankedRow]> {
    ranking.chunk_by(|a, b| a.jobs == b.jobs)
}

/// Candidate with its rank among those with the same jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankedRow {
    /// Rank among the candidates with the same jobs, from 1.
    pub rank: usize,
    /// Name of the candidate.
    pub candidate: String,
    /// Score in the unit of `by`; a lower score is better. Absent if the candidate cannot run all jobs.
    pub score: Option<f64>,
    /// Quantity that the score measures.
    pub by: ScoredBy,
    /// Jobs that the score includes, if candidates have different jobs; empty if it includes all jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// True if the candidate is Pareto-optimal among the compared candidates: none of them is both cheaper per hour and
    /// faster over all jobs. Absent without prices.
    pub pareto: Option<bool>,
    /// True if all jobs fit and all constraints are met.
    #[serde(alias = "within")]
    pub meets_constraints: bool,
    /// Violated constraints and jobs that do not fit.
    #[serde(alias = "beyond")]
    pub violations: Vec<String>,
    /// Probability of lowest cost among the compared candidates, with prices distributed over their bands. Absent
    /// without prices.
    #[serde(default)]
    pub probability_best: Option<f64>,
    /// Probability of the lowest score among the compared candidates, with prices distributed over their bands and
    /// times subject to the model's error for the candidate's jobs and GPUs. Absent for a candidate that is compared
    /// with no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability_best_with_errors: Option<f64>,
}

impl RankedRow {
    /// Probability of the lowest score by all that is known to be uncertain: prices and the model's error, or prices alone
    /// in results of versions that did not compute the former.
    #[must_use]
    pub fn best_probability(&self) -> Option<f64> {
        self.probability_best_with_errors.or(self.probability_best)
    }
}

/// Quantity that candidates are ranked by: a weighted geometric mean over jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoredBy {
    /// Cost per million tokens, with prices in the middle of their bands.
    CostPerMillionTokens,
    /// Seconds per million tokens.
    SecondsPerMillionTokens,
    /// Cost per step, if all jobs are traces.
    CostPerStep,
    /// Seconds per step, if all jobs are traces.
    SecondsPerStep,
    /// Cost per million tokens, and per step for jobs that are traces.
    CostPerUnit,
    /// Seconds per million tokens, and per step for jobs that are traces.
    SecondsPerUnit,
}

impl ScoredBy {
    /// Returns the name of the quantity in JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CostPerMillionTokens => "cost_per_million_tokens",
            Self::SecondsPerMillionTokens => "seconds_per_million_tokens",
            Self::CostPerStep => "cost_per_step",
            Self::SecondsPerStep => "seconds_per_step",
            Self::CostPerUnit => "cost_per_unit",
            Self::SecondsPerUnit => "seconds_per_unit",
        }
    }

    /// Returns the unit of work of the score: tokens, a step, or either depending on the job.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::CostPerMillionTokens | Self::SecondsPerMillionTokens => "M tokens",
            Self::CostPerStep | Self::SecondsPerStep => "step",
            Self::CostPerUnit | Self::SecondsPerUnit => "M tokens or step",
        }
    }

    /// Returns true if the quantity is a cost; false if it is a time.
    #[must_use]
    pub fn is_cost(self) -> bool {
        matches!(self, Self::CostPerMillionTokens | Self::CostPerStep | Self::CostPerUnit)
    }

    /// Returns the quantity for a set of jobs. `is_trace`: true for each job that is a trace.
    pub(super) fn new(basis: ScoreBasis, is_trace: impl Iterator<Item = bool>) -> Self {
        let (mut traces, mut jobs) = (0usize, 0usize);
        for is_trace in is_trace {
            traces += usize::from(is_trace);
            jobs += 1;
        }
        match (basis, traces) {
            (ScoreBasis::Cost, 0) => Self::CostPerMillionTokens,
            (ScoreBasis::Time, 0) => Self::SecondsPerMillionTokens,
            (ScoreBasis::Cost, count) if count == jobs => Self::CostPerStep,
            (ScoreBasis::Time, count) if count == jobs => Self::SecondsPerStep,
            (ScoreBasis::Cost, _) => Self::CostPerUnit,
            (ScoreBasis::Time, _) => Self::SecondsPerUnit,
        }
    }
}

/// Basis of the candidates' scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScoreBasis {
    /// Cost: candidates have prices.
    Cost,
    /// Time: candidates have no prices.
    Time,
}

/// Ranking of the candidates under a changed assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SensitivityRow {
    /// Name of the setting: `link_rate`, `gpu_price` and others.
    pub name: String,
    /// Value of the setting, such as `0.5`, or the names of the failed devices.
    pub setting: String,
    /// All candidates, in their order under the setting.
    pub ranking: Vec<ScoreRow>,
    /// True if the order differs from that of the unchanged study.
    pub changed: bool,
    /// Candidates to which the setting does not apply, each with the reason. Their figures do not change.
    #[serde(default)]
    pub unchanged: Vec<String>,
}

/// Score of a candidate under a changed assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScoreRow {
    /// Name of the candidate.
    pub candidate: String,
    /// Score as in the ranking; absent if the candidate cannot run all jobs.
    pub score: Option<f64>,
    /// True if all jobs fit and all constraints are met.
    #[serde(default)]
    #[serde(alias = "within")]
    pub meets_constraints: bool,
    /// Violated constraints and jobs that do not fit.
    #[serde(default)]
    #[serde(alias = "beyond")]
    pub violations: Vec<String>,
}
