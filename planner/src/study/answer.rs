//! What a study answers, as it is written to `results.json` and read again by whatever shows it.
//!
//! One set of types for both ways: who adds a field here adds it for the command's JSON, its tables and the page. Readers
//! take files with fields that they do not know and without those that came later; what they cannot understand has another
//! [`FORMAT`]. Figures are floating-point here, with the unit in the name: they are to be shown, nothing is computed on.

mod course;
mod job;
mod load;
mod make;
mod negative;
mod notes;
mod result;

pub use course::{CourseRow, IntervalError, IntervalRow, LaneKind, LaneRow};
pub use job::{JobKind, JobRow, ModelRow, ParallelRow};
pub use load::{CallRow, LoadRow};
pub use make::answer;
pub(in crate::study) use notes::together;
pub use result::{MemoryRow, ResultRow};

use serde::{Deserialize, Serialize};

use super::measured::Figure;
use crate::step::Efficiency;

/// The number of this format; another one means other things by the same names.
pub const FORMAT: u32 = 7;

/// A study and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// [`FORMAT`].
    pub format: u32,
    /// The currency of all prices and costs.
    pub currency: String,
    /// What was compared, in the order of the study.
    pub candidates: Vec<CandidateRow>,
    /// What for, in the order of the study.
    pub jobs: Vec<JobRow>,
    /// What candidates had to keep within.
    pub constraints: ConstraintsRow,
    /// What costs were worked out with.
    pub assumptions: AssumptionsRow,
    /// What the figures leave out, since the study does not state it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How far forecasts of such jobs on such GPUs were from published figures, each a sentence without its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust: Vec<String>,
    /// Where the listed prices come from, each entry once, in the order of the candidates that took them.
    pub sources: Vec<SourceRow>,
    /// Every candidate with every job, candidates first.
    pub results: Vec<ResultRow>,
    /// What was measured beside what is predicted, in the order of the study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredRow>,
    /// Candidates, the best first; where jobs name theirs, those of the same jobs together, one set after the other.
    pub ranking: Vec<RankedRow>,
    /// How the order changes under other assumptions, in the order of the study.
    #[serde(default)]
    pub sensitivities: Vec<SensitivityRow>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRow {
    /// Its name.
    pub name: String,
    /// The preset or file that was asked for.
    pub fabric: String,
    /// The fabric's own name.
    pub fabric_name: String,
    /// Hosts with GPUs in use.
    pub nodes: u64,
    /// GPUs in use, on all hosts together.
    pub gpus: u64,
    /// The network between hosts in the words of the command line; absent: the preset's or file's own.
    pub network: Option<String>,
    /// What is paid.
    pub price: Option<PriceRow>,
    /// Power of all of it, kW: the middle where it is a band.
    pub power_kw: Option<f64>,
    /// The least, where it is a band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_kw_low: Option<f64>,
    /// The most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_kw_high: Option<f64>,
    /// Racks that it fills.
    pub racks: Option<f64>,
    /// Where it stands: file without its folder, line, column.
    pub place: String,
    /// The profile that communication was priced with.
    pub profile: String,
    /// The curve of its kernels.
    pub kernels: KernelsRow,
    /// Where the figures of its fabric come from.
    pub sources: Vec<String>,
}

/// A step that was measured, and what is predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRow {
    /// Name of the candidate.
    pub candidate: String,
    /// Name of the job.
    pub job: String,
    /// What was measured: a key of [`ResultRow`], with its unit.
    pub figure: String,
    /// Measured.
    pub measured: f64,
    /// Predicted; absent where the job has none such, as a step without prompts where all carry some.
    pub predicted: Option<f64>,
}

impl MeasuredRow {
    /// Predicted ÷ measured − 1, of times: of what is counted by the second measured ÷ predicted − 1.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let predicted = self.predicted?;
        let ratio = match Figure::of_key(&self.figure).is_some_and(Figure::is_rate) {
            true => self.measured / predicted,
            false => predicted / self.measured,
        };
        Some(ratio - 1.0)
    }
}

/// How long kernels were taken to be ([`Efficiency`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelsRow {
    /// What large matrix products reach of the peak.
    pub matrix: f64,
    /// What attention reaches of the peak of 16 bits where rows meet many keys.
    pub attention: f64,
    /// What products and attention that wait for their bytes reach of the memory's bandwidth.
    pub memory: f64,
    /// What kernels between products reach of it.
    pub stream: f64,
    /// What each kernel takes besides, µs.
    pub start_us: f64,
}

impl KernelsRow {
    /// Of a curve.
    #[must_use]
    pub fn of(curve: &Efficiency) -> Self {
        Self {
            matrix: curve.matrix,
            attention: curve.attention,
            memory: curve.memory,
            stream: curve.stream,
            start_us: curve.start.us(),
        }
    }

    /// Whether two are equal but for what is lost when numbers are written down.
    #[must_use]
    pub fn is_near(&self, other: &Self) -> bool {
        let all = |one: &Self| [one.matrix, one.attention, one.memory, one.stream, one.start_us];
        all(self).iter().zip(all(other)).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs())
    }
}

/// What is paid for a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceRow {
    /// How it is paid.
    pub paid: Paid,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// The entry of the price list, where it is one's.
    pub item: Option<String>,
    /// How many of that entry all of the candidate takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
}

/// How a price is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Paid {
    /// Once, for all of the candidate.
    Once,
    /// By the hour, for all of it.
    Hourly,
    /// By the hour, for each GPU.
    HourlyByGpu,
}

/// What candidates had to keep within; absent: anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConstraintsRow {
    /// The most that may be paid at once.
    pub budget_usd: Option<f64>,
    /// The most that an hour may cost, energy included.
    pub cost_per_hour_usd: Option<f64>,
    /// The most power, kW.
    pub power_kw: Option<f64>,
    /// The most racks.
    pub racks: Option<f64>,
}

/// What costs were worked out with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssumptionsRow {
    /// Years over which purchases are written off.
    pub years: f64,
    /// The part of the time that machines work.
    pub utilization: f64,
    /// A kWh, for who buys.
    pub usd_per_kwh: f64,
    /// How prices lie in their bands, which `probability_best` is worked out with. It is an integral: there is no seed.
    #[serde(default)]
    pub price_bands: String,
}

/// An entry of a price list that a candidate took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    /// What it is the price of.
    pub item: String,
    /// The least seen, in `currency`.
    pub low: f64,
    /// The most seen.
    pub high: f64,
    /// Its currency.
    pub currency: String,
    /// When, as the source says.
    pub date: String,
    /// Who says so.
    pub source: String,
}

/// A candidate and its place in the order of those that have the same jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedRow {
    /// Its place among those that have the same jobs, from 1.
    pub rank: usize,
    /// Its name.
    pub candidate: String,
    /// What it is ranked by, in the unit of `by`; less is better. Absent where it cannot run all jobs.
    pub score: Option<f64>,
    /// What the score is.
    pub by: ScoredBy,
    /// The jobs that it is ranked by, where candidates have different ones; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Whether nothing that it is compared with is both cheaper by the hour and faster over all jobs; absent without prices.
    pub pareto: Option<bool>,
    /// Whether all jobs fit and all constraints are kept.
    pub within: bool,
    /// Why not.
    pub beyond: Vec<String>,
    /// How likely it is to be the best of these, prices anywhere in their bands; absent without prices.
    #[serde(default)]
    pub probability_best: Option<f64>,
}

/// What candidates are ranked by: a geometric mean over jobs by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoredBy {
    /// What a million tokens cost, prices in the middle of their bands.
    CostPerMillionTokens,
    /// Seconds that a million tokens take.
    SecondsPerMillionTokens,
    /// What a step costs: all jobs are traces.
    CostPerStep,
    /// Seconds of a step: all jobs are traces.
    SecondsPerStep,
    /// What a million tokens of some jobs and a step of others, which are traces, cost.
    CostPerUnit,
    /// Seconds that a million tokens of some jobs and a step of others, which are traces, take.
    SecondsPerUnit,
}

impl ScoredBy {
    /// As it is written.
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

    /// Of what a score is: tokens, a step, or one of the two by job.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::CostPerMillionTokens | Self::SecondsPerMillionTokens => "M tokens",
            Self::CostPerStep | Self::SecondsPerStep => "step",
            Self::CostPerUnit | Self::SecondsPerUnit => "M tokens or step",
        }
    }

    /// Whether it is money, or time.
    #[must_use]
    pub fn is_cost(self) -> bool {
        matches!(self, Self::CostPerMillionTokens | Self::CostPerStep | Self::CostPerUnit)
    }

    /// Of jobs so many of which are traces.
    fn of(priced: bool, (traces, jobs): (usize, usize)) -> Self {
        match (priced, traces) {
            (true, 0) => Self::CostPerMillionTokens,
            (false, 0) => Self::SecondsPerMillionTokens,
            (true, some) if some == jobs => Self::CostPerStep,
            (false, some) if some == jobs => Self::SecondsPerStep,
            (true, _) => Self::CostPerUnit,
            (false, _) => Self::SecondsPerUnit,
        }
    }
}

/// The order under another assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SensitivityRow {
    /// What was changed: `link_rate`, `gpu_price`, ….
    pub name: String,
    /// To what: `0.5`, or the names that failed.
    pub setting: String,
    /// All candidates in the order that they then have.
    pub ranking: Vec<ScoreRow>,
    /// Whether that is another order than the study's.
    pub changed: bool,
    /// Candidates that it does not apply to, each with the reason; they keep their figures.
    #[serde(default)]
    pub unchanged: Vec<String>,
}

/// A candidate under another assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreRow {
    /// Its name.
    pub candidate: String,
    /// As in the ranking; absent where it cannot run the jobs then.
    pub score: Option<f64>,
    /// Whether all jobs fit and all constraints are kept.
    #[serde(default)]
    pub within: bool,
    /// Why not.
    #[serde(default)]
    pub beyond: Vec<String>,
}

/// Why a text is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Not these fields, or no JSON at all.
    #[error("{source_name}:{line}:{column}: {message}")]
    Syntax {
        /// What was read.
        source_name: String,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What was expected.
        message: String,
    },
    /// Another format.
    #[error("{source_name}: format {found}, and this version reads format {FORMAT}")]
    Format {
        /// What was read.
        source_name: String,
        /// Its number.
        found: u32,
    },
}

impl Answer {
    /// Reads `results.json`; `source` names it in errors.
    ///
    /// # Errors
    /// [`AnswerError`]: no JSON, fields missing or of another kind, figures under 0, or another format.
    pub fn read(text: &str, source: &str) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        struct Numbered {
            format: u32,
        }
        let refused = |error: &serde_json::Error| AnswerError::Syntax {
            source_name: source.to_owned(),
            line: error.line(),
            column: error.column(),
            message: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        };
        let numbered: Numbered = serde_json::from_str(text).map_err(|error| refused(&error))?;
        if numbered.format != FORMAT {
            return Err(AnswerError::Format { source_name: source.to_owned(), found: numbered.format });
        }
        let read = serde_json::from_str(text).map_err(|error| refused(&error))?;
        match negative::first_negative(text) {
            None => Ok(read),
            Some(found) => Err(AnswerError::Syntax {
                source_name: source.to_owned(),
                line: found.line,
                column: found.column,
                message: format!("{}: {} is under 0, which no figure of a study is", found.key, found.figure),
            }),
        }
    }

    /// Whether there are prices.
    #[must_use]
    pub fn is_priced(&self) -> bool {
        self.results.iter().any(|one| one.cost_per_hour.is_some())
    }

    /// The ranking in parts, each of candidates that have the same jobs and are compared.
    #[must_use]
    pub fn compared(&self) -> Vec<&[RankedRow]> {
        self.ranking.chunk_by(|a, b| a.jobs == b.jobs).collect()
    }

    /// Jobs that no candidate can run as it is asked for: refused by all, or without memory enough on any.
    pub fn beyond_all(&self) -> impl Iterator<Item = &JobRow> {
        let has_room = |row: &&ResultRow| row.memory_beyond_gb.or(row.host_memory_beyond_gb).is_none();
        self.jobs.iter().filter(move |job| !self.results.iter().filter(has_room).any(|row| row.job == job.name))
    }

    /// Who is first under another assumption in each of these parts.
    #[must_use]
    pub fn firsts<'a>(&self, changed: &'a SensitivityRow) -> Vec<&'a ScoreRow> {
        let first = |part: &[RankedRow]| {
            changed.ranking.iter().find(|row| part.iter().any(|one| one.candidate == row.candidate))
        };
        self.compared().into_iter().filter_map(first).collect()
    }

    /// What the ranking is by.
    #[must_use]
    pub fn by(&self) -> ScoredBy {
        let traces = self.jobs.iter().filter(|job| job.kind == JobKind::Trace).count();
        ScoredBy::of(self.is_priced(), (traces, self.jobs.len()))
    }
}

#[cfg(test)]
mod tests;
