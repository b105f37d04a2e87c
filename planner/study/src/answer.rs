//! Answer of a study: the content of `results.json`.
//!
//! Writing and reading share these types: a new field appears in the command's JSON, its tables and the page. Readers
//! ignore unknown fields and accept files that lack newer fields; incompatible files have another [`FORMAT`]. Figures
//! are floating-point numbers with the unit in their name. They are for display, not for computation.

mod decision;
mod disaggregation;
mod goodput;
mod job;
mod latencies;
mod load;
mod make;
mod negative;
mod notes;
mod prediction_row;
mod ranking;
mod result;
mod saved_prediction;
mod sizing;
mod timeline;

pub use decision::{Contender, DECISIVE, DecisionOutcome, DecisionRow, KindDecision};
pub use disaggregation::{DisaggregationRow, PoolRow, TransferRow};
pub use goodput::{EstimateRow, GoodputRow, MonthRow};
pub use job::{JobKind, JobRow, ModelRow, ParallelRow};
pub use latencies::{LatenciesRow, LatencyRow};
pub use load::{CallRow, ExchangeRow, LoadRow};
pub use make::build_answer;
pub use ranking::{RankedRow, ScoreRow, ScoredBy, SensitivityRow};
pub use result::{MemoryRow, ResultRow};
pub use saved_prediction::UnknownRowName;
pub use sizing::{SizeRow, SizingRow};
pub use timeline::{IntervalError, IntervalRow, TimelineRow, TrackKind, TrackRow};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measured::Figure;
use fabricast_perf::step::Efficiency;
use ranking::{ScoreBasis, comparable_groups};

/// Format of `results.json`. The number increases when the meaning of keys changes.
pub const FORMAT: &str = "fabricast-study/8";
/// Number of the previous format, which is also read.
const NUMBERED_FORMAT: u64 = 7;

/// Study with its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// [`FORMAT`]; also set for an answer that is read from a file of format 7.
    #[serde(skip_deserializing, default = "current_format")]
    pub format: String,
    /// Currency of all prices and costs.
    pub currency: String,
    /// Compared machines, in the order of the study.
    pub candidates: Vec<CandidateRow>,
    /// Jobs, in the order of the study.
    pub jobs: Vec<JobRow>,
    /// Decision among the candidates with the same jobs, in the order of the ranking. It is derived from the ranking, also
    /// for an answer that is read from a file.
    #[serde(skip_deserializing)]
    pub decisions: Vec<DecisionRow>,
    /// Fewest nodes of each machine that meet all constraints, for machines with several sizes. Derived as `decisions` are.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub sizings: Vec<SizingRow>,
    /// Limits for the candidates.
    pub constraints: ConstraintsRow,
    /// Assumptions for costs.
    pub assumptions: AssumptionsRow,
    /// Values that the study does not state, and the costs that are therefore not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Accuracy of predictions against published figures for such jobs and GPUs. Each entry is a sentence without the
    /// final period.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "trust")]
    pub accuracy: Vec<String>,
    /// Sources of listed prices, without duplicates, in the order of the candidates.
    pub sources: Vec<SourceRow>,
    /// Results of every candidate with every job that runs on it, by candidate.
    pub results: Vec<ResultRow>,
    /// Measured values with their predictions, in the order of the study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredRow>,
    /// Ranked candidates, best first. If jobs name candidates, the groups of comparable candidates follow each other.
    pub ranking: Vec<RankedRow>,
    /// Rankings under other assumptions, in the order of the study.
    #[serde(default)]
    pub sensitivities: Vec<SensitivityRow>,
}

/// Machine of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateRow {
    /// Name of the candidate.
    pub name: String,
    /// Name of the machine in the study, if this candidate is one of several sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Preset or file that the candidate requests.
    pub fabric: String,
    /// Name of the loaded fabric.
    pub fabric_name: String,
    /// Number of hosts with GPUs in use.
    pub nodes: u64,
    /// Number of GPUs in use on all hosts.
    pub gpus: u64,
    /// Network between hosts in command-line syntax; absent if it is that of the preset or file.
    pub network: Option<String>,
    /// Price of the candidate; absent if the study states none.
    pub price: Option<PriceRow>,
    /// Power of the whole machine in kW. If a band is stated, its middle.
    pub power_kw: Option<f64>,
    /// Lower end of the power band, in kW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_kw_low: Option<f64>,
    /// Upper end of the power band, in kW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_kw_high: Option<f64>,
    /// Number of racks; absent if it is not stated.
    pub racks: Option<f64>,
    /// Costs per year, per month and in the depreciation period; absent without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<CostsRow>,
    /// Source location of the candidate: file name, line and column.
    #[serde(alias = "place")]
    pub location: String,
    /// Name of the profile of communication costs.
    pub profile: String,
    /// Kernel efficiency of the candidate's GPUs.
    pub kernels: KernelsRow,
    /// Sources of the figures of the candidate's fabric.
    pub sources: Vec<String>,
}

/// Measured figure with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredRow {
    /// Name of the candidate.
    pub candidate: String,
    /// Name of the job.
    pub job: String,
    /// Key of the measured figure in the study's `[[measured]]`, with its unit: `step_s`, `tokens_per_s_per_gpu`.
    pub figure: String,
    /// Measured value, in the unit that the key of the figure states.
    pub measured: f64,
    /// Predicted value, in the same unit; absent if the job has no such figure, such as a decode-only step if all steps
    /// carry prefill.
    pub predicted: Option<f64>,
    /// Lower end of the prediction interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end of the prediction interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl MeasuredRow {
    /// Returns the relative error of the predicted time: predicted / measured − 1 for times, measured / predicted − 1
    /// for rates. `None` if there is no prediction.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let predicted = self.predicted?;
        let ratio = match Figure::from_key(&self.figure).is_some_and(Figure::is_rate) {
            true => self.measured / predicted,
            false => predicted / self.measured,
        };
        Some(ratio - 1.0)
    }
}

/// Kernel efficiency of a GPU ([`Efficiency`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelsRow {
    /// Fraction of the peak that large GEMMs reach.
    pub matrix: f64,
    /// Fraction of the 16-bit peak that attention reaches with many keys per row.
    pub attention: f64,
    /// Fraction of the memory bandwidth that memory-bound GEMMs and attention reach.
    pub memory: f64,
    /// Fraction of the memory bandwidth that elementwise and normalization kernels reach.
    pub stream: f64,
    /// Fixed time per kernel, in µs.
    #[serde(alias = "start_us")]
    pub launch_us: f64,
}

impl KernelsRow {
    /// Converts an efficiency curve to a row.
    #[must_use]
    pub fn new(curve: &Efficiency) -> Self {
        Self {
            matrix: curve.matrix,
            attention: curve.attention,
            memory: curve.memory,
            stream: curve.stream,
            launch_us: curve.start.us(),
        }
    }

    /// Returns true if all parameters are equal, except for rounding in the written numbers.
    #[must_use]
    pub fn is_near(&self, other: &Self) -> bool {
        let figures = |row: &Self| [row.matrix, row.attention, row.memory, row.stream, row.launch_us];
        figures(self).iter().zip(figures(other)).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs())
    }
}

/// Costs of a candidate in the currency of the study, with prices and power in the middle of their bands
/// ([`YearlyCosts`](crate::YearlyCosts)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostsRow {
    /// Purchase price; 0 if the candidate is rented.
    pub purchase: f64,
    /// Loss of value of the purchase per year.
    pub depreciation_per_year: f64,
    /// Rent in the hours of use of a year.
    pub rent_per_year: f64,
    /// Energy of the machine in the hours of use of a year.
    pub energy_per_year: f64,
    /// Energy of cooling and power distribution in the hours of use of a year.
    pub cooling_per_year: f64,
    /// Hosting per year.
    pub hosting_per_year: f64,
    /// Support contracts and spare parts per year.
    pub maintenance_per_year: f64,
    /// Staff per year.
    pub staff_per_year: f64,
    /// Sum of the costs per year.
    pub total_per_year: f64,
    /// A twelfth of the sum per year.
    pub total_per_month: f64,
    /// Sum in the depreciation period, or in the same time for a rented candidate.
    pub total: f64,
}

/// Price of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PriceRow {
    /// Mode of payment.
    #[serde(alias = "paid")]
    pub payment: PaymentMode,
    /// Lower end of the price, in the currency of the study.
    pub low: f64,
    /// Upper end of the price, in the currency of the study.
    pub high: f64,
    /// Name of the price-list entry; absent if the study states the price itself.
    pub item: Option<String>,
    /// Number of units of that entry for the whole candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
}

/// Mode of payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentMode {
    /// One payment for the whole candidate.
    Once,
    /// Payment per hour for the whole candidate.
    Hourly,
    /// Payment per hour and GPU.
    HourlyByGpu,
}

/// Limits for candidates. An absent value means no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConstraintsRow {
    /// Maximum purchase price, in USD.
    pub budget_usd: Option<f64>,
    /// Maximum cost per hour, energy included, in USD.
    pub cost_per_hour_usd: Option<f64>,
    /// Maximum power, in kW.
    pub power_kw: Option<f64>,
    /// Maximum number of racks.
    pub racks: Option<f64>,
    /// Longest duration of a whole training, in days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_train_days: Option<f64>,
    /// Smallest throughput of each job, in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_tokens_per_s: Option<f64>,
    /// Longest mean time to first token of inference jobs, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ttft_s: Option<f64>,
}

/// Assumptions for costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssumptionsRow {
    /// Depreciation period of purchases, in years.
    pub years: f64,
    /// Fraction of the time that machines are in use, 0 to 1.
    pub utilization: f64,
    /// Price of a kWh of energy, which is paid for purchased machines.
    pub usd_per_kwh: f64,
    /// Power usage effectiveness: energy of the data centre divided by that of the machine.
    #[serde(default = "no_overhead", skip_serializing_if = "is_no_overhead")]
    pub pue: f64,
    /// Price of hosting per kW and month, which is paid for purchased machines.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hosting_usd_per_kw_month: f64,
    /// Cost of staff per purchased machine and year.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub staff_usd_per_year: f64,
    /// Support contracts and spare parts per year, as a fraction of the purchase price.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub maintenance_per_year: f64,
    /// Value of a purchase after the depreciation period, as a fraction of its price.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub residual: f64,
    /// Description of the distribution of prices within their bands, on which `probability_best` is based. The
    /// probability is an integral, computed without random sampling.
    #[serde(default)]
    pub price_bands: String,
}

/// Price-list entry used by a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SourceRow {
    /// Name of the item in the price list.
    pub item: String,
    /// Lowest price seen, in `currency`.
    pub low: f64,
    /// Highest price seen, in `currency`.
    pub high: f64,
    /// Currency of the prices.
    pub currency: String,
    /// Date of the prices, as the source states it.
    pub date: String,
    /// Source of the prices.
    pub source: String,
}

/// Reason why a text is not a valid answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The text is not valid JSON, or has invalid fields.
    #[error("{source_name}:{line}:{column}: {message}")]
    Syntax {
        /// Name of the text, such as its file name.
        source_name: String,
        /// Line number of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
        /// Description of the error.
        message: String,
    },
    /// The text has a format that this version does not read.
    #[error("{source_name}: format {found}, but this version of fabricast reads format {FORMAT}")]
    Format {
        /// Name of the text, such as its file name.
        source_name: String,
        /// Format that the text states.
        found: String,
    },
}

/// Returns the decision of each group of candidates with the same jobs.
fn decisions(ranking: &[RankedRow], jobs: &[JobRow], results: &[ResultRow]) -> Vec<DecisionRow> {
    comparable_groups(ranking).filter_map(|compared| DecisionRow::new(compared, jobs, results)).collect()
}

/// Power usage effectiveness of files that state none.
fn no_overhead() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_no_overhead(pue: &f64) -> bool {
    *pue <= 1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_zero(value: &f64) -> bool {
    *value <= 0.0
}

fn current_format() -> String {
    FORMAT.to_owned()
}

impl Answer {
    /// Reads `results.json`; `source` names it in errors.
    ///
    /// # Errors
    /// [`AnswerError`]: invalid JSON, missing or invalid fields, negative figures, or another format.
    pub fn read(text: &str, source: &str) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        struct Header {
            format: serde_json::Value,
        }
        let syntax_error = |error: &serde_json::Error| AnswerError::Syntax {
            source_name: source.to_owned(),
            line: error.line(),
            column: error.column(),
            message: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        };
        let Header { format } = serde_json::from_str(text).map_err(|error| syntax_error(&error))?;
        if format != FORMAT && format != NUMBERED_FORMAT {
            let found = format.as_str().map_or_else(|| format.to_string(), str::to_owned);
            return Err(AnswerError::Format { source_name: source.to_owned(), found });
        }
        let mut answer: Self = serde_json::from_str(text).map_err(|error| syntax_error(&error))?;
        answer.decisions = decisions(&answer.ranking, &answer.jobs, &answer.results);
        answer.sizings = sizing::sizings(&answer.candidates, &answer.ranking);
        match negative::first_negative(text) {
            None => Ok(answer),
            Some(negative) => Err(AnswerError::Syntax {
                source_name: source.to_owned(),
                line: negative.line,
                column: negative.column,
                message: format!(
                    "{}: {} is negative; all figures of a study are at least 0",
                    negative.key, negative.figure
                ),
            }),
        }
    }

    /// Returns true if the candidates have prices.
    #[must_use]
    pub fn is_priced(&self) -> bool {
        self.results.iter().any(|row| row.cost_per_hour.is_some())
    }

    /// Returns the ranking in groups of candidates with the same jobs. Only candidates within a group are compared.
    #[must_use]
    pub fn comparable_groups(&self) -> Vec<&[RankedRow]> {
        comparable_groups(&self.ranking).collect()
    }

    /// Returns the jobs that no candidate can run as requested, because they are rejected or do not fit in memory.
    pub fn infeasible_jobs(&self) -> impl Iterator<Item = &JobRow> {
        let has_room = |row: &&ResultRow| row.memory_excess_gb.or(row.host_memory_excess_gb).is_none();
        self.jobs.iter().filter(move |job| !self.results.iter().filter(has_room).any(|row| row.job == job.name))
    }

    /// Returns the best candidate of each comparable group under the assumption of a sensitivity setting.
    #[must_use]
    pub fn first_candidates<'a>(&self, sensitivity: &'a SensitivityRow) -> Vec<&'a ScoreRow> {
        let first = |group: &[RankedRow]| {
            sensitivity.ranking.iter().find(|row| group.iter().any(|ranked| ranked.candidate == row.candidate))
        };
        self.comparable_groups().into_iter().filter_map(first).collect()
    }

    /// Returns the quantity that candidates are ranked by.
    #[must_use]
    pub fn scored_by(&self) -> ScoredBy {
        let basis = if self.is_priced() { ScoreBasis::Cost } else { ScoreBasis::Time };
        ScoredBy::new(basis, self.jobs.iter().map(|job| job.kind == JobKind::Trace))
    }
}

#[cfg(test)]
mod tests;
