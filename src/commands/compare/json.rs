//! JSON of a comparison.

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use fabricast_validate::compare::{Compared, Explanation, Group, Regret, is_rccl};
use fabricast_validate::measured::manifest::{Measurement, Registered, Role};
use serde::Serialize;

use super::super::summary::{CoverageJson, SummaryJson};
use super::Answer;
use super::text::distinct;

#[derive(Serialize)]
pub struct ComparisonJson<'a> {
    summary: SummaryJson,
    coverage: CoverageJson,
    /// Null if no call was measured with several forced strategies.
    regret: Option<PickSlowdownJson>,
    /// Errors without outliers of the measurement.
    without_outliers: SummaryJson,
    /// Assumptions for facts that neither the logs nor their descriptions contain.
    assumptions: Vec<&'a str>,
    /// Contradictions and peculiarities, for example a GPU model that differs from the fabric's, or runs without MPI.
    remarks: Vec<&'a str>,
    groups: Vec<GroupJson<'a>>,
    rows: Vec<RowJson<'a>>,
    rejected: Vec<RejectedJson>,
    contradictions: Vec<ContradictionJson>,
}

#[derive(Serialize)]
struct PickSlowdownJson {
    calls: usize,
    forced_strategies: usize,
    mean: f64,
    p90: f64,
    worst: f64,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    fabric: &'a str,
    nodes: u32,
    gpus: u32,
    ranks: u32,
    collective: Collective,
    /// Forced algorithm; null if the library chose.
    algorithm: Option<&'static str>,
    protocol: Option<&'static str>,
    channels: Option<u16>,
    library: Option<String>,
    registered: &'static str,
    launch: Launch,
    processes: Processes,
    role: &'static str,
    profile: &'a str,
    files: Vec<&'a str>,
    #[serde(flatten)]
    summary: SummaryJson,
    slower: usize,
    faster: usize,
    explanation: Option<ExplanationJson<'a>>,
    /// Setting that may have slowed the group down.
    cause: Option<String>,
    /// False if the library's choices are not modelled; the strategies are then fabricast's fastest ones.
    modelled: bool,
}

#[derive(Serialize)]
struct ExplanationJson<'a> {
    parameter: String,
    factor: f64,
    now: &'a str,
    then: &'a str,
    median_before: f64,
    median_after: f64,
}

#[derive(Serialize)]
struct RowJson<'a> {
    file: &'a str,
    line: u32,
    collective: Collective,
    ranks: u32,
    nodes: u32,
    bytes: Bytes,
    /// Predicted algorithm: the forced one, or the library's choice.
    algorithm: &'static str,
    protocol: &'static str,
    channels: u16,
    launch: Launch,
    processes: Processes,
    measured_us: f64,
    predicted_us: f64,
    low_us: f64,
    high_us: f64,
    error: f64,
    verdict: &'static str,
    outside: f64,
    /// For an outlier of the measurement, the nearest time consistent with its neighbours in size; otherwise null.
    neighbours_us: Option<f64>,
}

#[derive(Serialize)]
struct RejectedJson {
    file: String,
    line: u32,
    reason: String,
}

#[derive(Serialize)]
struct ContradictionJson {
    bytes: Bytes,
    shortest_us: f64,
    shortest_at: String,
    longest_us: f64,
    longest_at: String,
}

/// Creates the JSON of a comparison.
pub fn comparison_json<'a>(answer: &Answer<'a>) -> ComparisonJson<'a> {
    let comparison = answer.comparison;
    let rejected = answer.measurements.iter().flat_map(|measurement| {
        let file = measurement.file.display().to_string();
        measurement.rejected.iter().map(move |rejected| RejectedJson {
            file: file.clone(),
            line: rejected.line,
            reason: rejected.reason.to_string(),
        })
    });
    let contradictions = answer.loaded.contradictions.iter().map(|contradiction| ContradictionJson {
        bytes: contradiction.bytes,
        shortest_us: contradiction.shortest.1.us(),
        shortest_at: contradiction.shortest.0.to_string(),
        longest_us: contradiction.longest.1.us(),
        longest_at: contradiction.longest.0.to_string(),
    });
    ComparisonJson {
        summary: comparison.summary.into(),
        coverage: comparison.coverage.into(),
        regret: comparison.regret.map(|Regret { calls, strategies: forced_strategies, mean, p90, worst }| {
            PickSlowdownJson { calls, forced_strategies, mean, p90, worst }
        }),
        without_outliers: comparison.without_outliers.into(),
        assumptions: distinct(answer, |context| &context.assumptions),
        remarks: distinct(answer, |context| &context.remarks),
        groups: comparison.groups.iter().filter_map(|group| group_json(answer, group)).collect(),
        rows: comparison.rows.iter().filter_map(|row| row_json(answer, row)).collect(),
        rejected: rejected.collect(),
        contradictions: contradictions.collect(),
    }
}

fn group_json<'a>(answer: &Answer<'a>, group: &'a Group) -> Option<GroupJson<'a>> {
    let measurements: Vec<&'a Measurement> =
        group.measurements.iter().filter_map(|&number| answer.measurements.get(number)).collect();
    let first = *measurements.first()?;
    let configuration = &first.configuration;
    let role = |role: Role| match role {
        Role::Fit => "fit",
        Role::Check => "check",
    };
    let mixed = measurements.iter().any(|measurement| measurement.role != first.role);
    Some(GroupJson {
        fabric: first.fabric.name(),
        nodes: configuration.nodes,
        gpus: configuration.gpus,
        ranks: first.ranks(),
        collective: configuration.collective,
        algorithm: configuration.algorithm.map(fabricast_collectives::algorithm::Algorithm::name),
        protocol: configuration.protocol.map(fabricast_sim::schedule::Protocol::name),
        channels: configuration.channels,
        library: configuration.library.as_ref().map(ToString::to_string),
        registered: match configuration.registered {
            Registered::Plain => "plain",
            Registered::Symmetric => "symmetric",
        },
        launch: configuration.launch,
        processes: configuration.processes,
        role: if mixed { "fit and check" } else { role(first.role) },
        profile: group.measurements.first().and_then(|&number| answer.comparison.profiles.get(number))?,
        files: measurements.iter().map(|measurement| measurement.name.as_str()).collect(),
        summary: group.summary.into(),
        slower: group.slower,
        faster: group.faster,
        explanation: group.explanation.as_ref().map(ExplanationJson::from),
        cause: group.cause.map(|cause| cause.to_string()),
        modelled: !is_rccl(first),
    })
}

impl<'a> From<&'a Explanation> for ExplanationJson<'a> {
    fn from(explanation: &'a Explanation) -> Self {
        Self {
            parameter: explanation.parameter.to_string(),
            factor: explanation.factor,
            now: &explanation.current,
            then: &explanation.required,
            median_before: explanation.before,
            median_after: explanation.after,
        }
    }
}

fn row_json<'a>(answer: &Answer<'a>, row: &Compared) -> Option<RowJson<'a>> {
    let measurement = answer.measurements.get(row.measurement)?;
    let configuration = &measurement.configuration;
    Some(RowJson {
        file: &measurement.name,
        line: row.line,
        collective: configuration.collective,
        ranks: measurement.ranks(),
        nodes: configuration.nodes,
        bytes: row.bytes,
        algorithm: row.strategy.algorithm.name(),
        protocol: row.strategy.protocol.name(),
        channels: row.strategy.channels,
        launch: configuration.launch,
        processes: configuration.processes,
        measured_us: row.measured.us(),
        predicted_us: row.predicted.us(),
        low_us: row.low.us(),
        high_us: row.high.us(),
        error: row.error(),
        verdict: row.verdict().name(),
        outside: row.verdict().outside(),
        neighbours_us: row.outlier.map(fabricast_topologies::Picos::us),
    })
}
