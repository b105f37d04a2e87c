//! JSON of a comparison.

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use fabricast_validate::compare::{
    Advice, Basis, Compared, Explanation, Group, RankedCause, Regret, SizeRange, has_unpredicted_rccl,
};
use fabricast_validate::measured::manifest::{Measurement, RegistrationKind, Role};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::summary::{CoverageJson, SummaryJson};
use super::ComparisonAnswer;
use super::gate::{GateOutcome, RuleJson};
use super::text::distinct;
use super::verdict;

/// JSON of `compare`.
#[derive(Serialize, JsonSchema)]
pub struct ComparisonJson<'a> {
    /// Errors of all rows.
    summary: SummaryJson,
    /// Number of measured times inside their prediction intervals.
    coverage: CoverageJson,
    /// Slowdown of the strategies predicted to be the fastest; null if no call was measured with several forced
    /// strategies.
    regret: Option<PickSlowdownJson>,
    /// Errors of the rows that are not outliers of the measurement.
    without_outliers: SummaryJson,
    /// Assumptions about properties that neither the logs nor their descriptions state.
    assumptions: Vec<&'a str>,
    /// Contradictions and peculiarities, for example a GPU model that differs from the fabric's, or runs without MPI.
    remarks: Vec<&'a str>,
    /// Rows by configuration.
    groups: Vec<ConfigurationJson<'a>>,
    /// Measured rows with their predictions.
    rows: Vec<ComparisonRowJson<'a>>,
    /// Lines that were not read as measurements.
    rejected: Vec<RejectedJson>,
    /// Calls with several measured times that contradict each other.
    contradictions: Vec<ContradictionJson>,
    /// Results of the rules of `--gate`; absent without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<Vec<RuleJson<'a>>>,
}

/// Slowdown of the predicted best strategies relative to the fastest measured ones.
#[derive(Serialize, JsonSchema)]
struct PickSlowdownJson {
    /// Number of calls measured with several forced strategies.
    calls: usize,
    /// Number of forced strategies over all calls.
    forced_strategies: usize,
    /// Mean of the slowdowns, as a fraction: measured time of the predicted best strategy ÷ shortest measured time − 1.
    mean: f64,
    /// 90th percentile of the slowdowns, as a fraction.
    p90: f64,
    /// Largest slowdown, as a fraction.
    worst: f64,
}

/// Rows of one configuration.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GroupJson")]
struct ConfigurationJson<'a> {
    /// Name of the fabric.
    fabric: &'a str,
    /// Number of hosts.
    nodes: u32,
    /// Number of GPUs.
    gpus: u32,
    /// Number of ranks.
    ranks: u32,
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Forced algorithm; null if the library chose.
    algorithm: Option<&'static str>,
    /// Forced protocol; null if the library chose.
    protocol: Option<&'static str>,
    /// Forced number of channels; null if the library chose.
    channels: Option<u16>,
    /// Library and version; null if it is unknown.
    library: Option<String>,
    /// Registration of the buffers: `plain` or `symmetric`.
    registered: &'static str,
    /// Launch mode.
    launch: Launch,
    /// Processes that launch on the GPUs of a host.
    processes: Processes,
    /// Use of the rows in a calibration: `fit`, `check` or `fit and check`.
    role: &'static str,
    /// Name of the cost profile.
    profile: &'a str,
    /// Names of the measurements.
    files: Vec<&'a str>,
    #[serde(flatten)]
    summary: SummaryJson,
    /// Number of rows above their prediction intervals.
    slower: usize,
    /// Number of rows below their prediction intervals.
    faster: usize,
    /// Parameter change that would explain the error; null if there is none.
    explanation: Option<ExplanationJson<'a>>,
    /// Finding on the group: `slow` if some range of sizes is slow, otherwise `fast` if some range is fast, otherwise
    /// `expected`.
    verdict: &'static str,
    /// Findings on ranges of sizes, from small to large.
    ranges: Vec<SizeRangeJson>,
    /// Most likely cause, or a setting in the log that may have slowed the group down; null if there is neither.
    cause: Option<String>,
    /// Simulated causes of slow sizes, in order of decreasing probability.
    causes: Vec<CauseJson>,
    /// Settings with which the library is predicted to be faster, including calls whose times are as expected.
    advice: Vec<SettingAdviceJson>,
    /// False if the library's choices cannot be predicted; times are then predicted for fabricast's fastest strategies.
    modelled: bool,
}

/// Finding on a range of neighbouring sizes.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RangeJson")]
struct SizeRangeJson {
    /// Smallest size, in bytes.
    min_bytes: Bytes,
    /// Largest size, in bytes.
    max_bytes: Bytes,
    /// Largest size whose own times have the finding, in bytes; bandwidths are those of this size.
    busbw_bytes: Bytes,
    /// Number of distinct sizes.
    sizes: usize,
    /// Finding: `expected`, `slow` or `fast`.
    verdict: &'static str,
    /// Median of measured time ÷ predicted time.
    time_ratio: f64,
    /// Measured bus bandwidth, in GB/s.
    measured_busbw_gb_per_s: f64,
    /// Predicted bus bandwidth, in GB/s.
    predicted_busbw_gb_per_s: f64,
    /// Lower end of the 80 % prediction interval of the bus bandwidth, in GB/s.
    low_busbw_gb_per_s: f64,
    /// Upper end of the 80 % prediction interval of the bus bandwidth, in GB/s.
    high_busbw_gb_per_s: f64,
}

/// Setting with which the library is predicted to be faster.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdviceJson")]
struct SettingAdviceJson {
    /// Environment variable and its value.
    setting: String,
    /// Smallest compared size that gains, in bytes.
    min_bytes: Bytes,
    /// Largest compared size that gains, in bytes.
    max_bytes: Bytes,
    /// Largest predicted gain: time without the setting ÷ time with it; null if it is not predicted and a rule of the
    /// library is the reason for the setting.
    gain: Option<f64>,
    /// Rule of the library, or of its environment, that makes the setting necessary; null if there is none.
    rule: Option<&'static str>,
}

/// Simulated cause of slow sizes.
#[derive(Serialize, JsonSchema)]
struct CauseJson {
    /// Class: `nvls`, `peer_access`, `gpu_direct`, `topology`, `search`, `version`, `sockets`, `host`, `nvlink`, `nic`,
    /// `pcie`, `strategy`, `channels`, `channels_per_peer` or `launch`.
    class: &'static str,
    /// Description of the cause.
    text: String,
    /// Reason to expect the cause before times are compared: the log states it, or a rule or defect of the library's
    /// release applies, with its source; null if there is none.
    basis: Option<String>,
    /// Fraction of the difference between measured and predicted times that the cause explains.
    closed_share: f64,
    /// Posterior probability of the cause's class; all classes without a basis have the same prior probability. From two thirds on, the
    /// text calls the cause likely.
    probability: f64,
    /// Posterior probability that there is a fault. Below one half, the times are within the error of the prediction, and
    /// the cause is only the likeliest one if the machine is slow.
    fault_probability: f64,
    /// Commands that confirm or refute the cause.
    check: String,
}

/// Change of a profile parameter that would explain the error of a group.
#[derive(Serialize, JsonSchema)]
struct ExplanationJson<'a> {
    /// Name of the parameter.
    parameter: String,
    /// Factor by which the change multiplies the parameter's value.
    factor: f64,
    /// Current value, with its unit.
    now: &'a str,
    /// Value after the change, with its unit.
    then: &'a str,
    /// Median error before the change: predicted ÷ measured − 1.
    median_before: f64,
    /// Median error after the change: predicted ÷ measured − 1.
    median_after: f64,
}

/// Measured time with its prediction.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct ComparisonRowJson<'a> {
    /// Name of the measurement.
    file: &'a str,
    /// Line in the file, from 1.
    line: u32,
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Number of ranks.
    ranks: u32,
    /// Number of hosts.
    nodes: u32,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Predicted algorithm: the forced one, or the library's choice.
    algorithm: &'static str,
    /// Predicted protocol.
    protocol: &'static str,
    /// Predicted number of channels.
    channels: u16,
    /// Launch mode.
    launch: Launch,
    /// Processes that launch on the GPUs of a host.
    processes: Processes,
    /// Measured time, in µs.
    measured_us: f64,
    /// Predicted time, in µs.
    predicted_us: f64,
    /// Measured bus bandwidth, in GB/s.
    measured_busbw_gb_per_s: f64,
    /// Predicted bus bandwidth, in GB/s.
    predicted_busbw_gb_per_s: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Error: predicted ÷ measured − 1.
    error: f64,
    /// Position of the measured time relative to the prediction interval: inside, above or below.
    verdict: &'static str,
    /// Distance of the measured time from the nearer end of the prediction interval, as a fraction of that end; 0
    /// inside.
    outside: f64,
    /// For an outlier of the measurement, the nearest time consistent with its neighbours in size, in µs; otherwise
    /// null.
    neighbours_us: Option<f64>,
}

/// Line that was not read as a measurement.
#[derive(Serialize, JsonSchema)]
struct RejectedJson {
    /// Name of the file.
    file: String,
    /// Line, from 1.
    line: u32,
    /// Reason why the line was not read.
    reason: String,
}

/// Call whose measured times contradict each other.
#[derive(Serialize, JsonSchema)]
struct ContradictionJson {
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Shortest measured time, in µs.
    shortest_us: f64,
    /// File and line of the shortest time.
    shortest_at: String,
    /// Longest measured time, in µs.
    longest_us: f64,
    /// File and line of the longest time.
    longest_at: String,
}

/// Creates the JSON of a comparison.
pub(super) fn comparison_json<'a>(
    answer: &ComparisonAnswer<'a>,
    judged: Option<&'a GateOutcome>,
) -> ComparisonJson<'a> {
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
        gate: judged.map(|judged| judged.json(answer)),
    }
}

fn group_json<'a>(answer: &ComparisonAnswer<'a>, group: &'a Group) -> Option<ConfigurationJson<'a>> {
    let measurements: Vec<&'a Measurement> =
        group.measurements.iter().filter_map(|&number| answer.measurements.get(number)).collect();
    let first = *measurements.first()?;
    let configuration = &first.configuration;
    let role = |role: Role| match role {
        Role::Fit => "fit",
        Role::Check => "check",
    };
    let mixed = measurements.iter().any(|measurement| measurement.role != first.role);
    Some(ConfigurationJson {
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
            RegistrationKind::Plain => "plain",
            RegistrationKind::Symmetric => "symmetric",
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
        verdict: verdict::overall(group).name(),
        ranges: group.ranges.iter().map(range_json).collect(),
        cause: verdict::first_cause(group),
        causes: group.causes.iter().map(cause_json).collect(),
        advice: group.advice.iter().map(advice_json).collect(),
        modelled: !has_unpredicted_rccl(first),
    })
}

fn range_json(range: &SizeRange) -> SizeRangeJson {
    SizeRangeJson {
        min_bytes: range.min,
        max_bytes: range.max,
        busbw_bytes: range.representative,
        sizes: range.sizes,
        verdict: range.finding.name(),
        time_ratio: range.ratio,
        measured_busbw_gb_per_s: range.measured,
        predicted_busbw_gb_per_s: range.expected,
        low_busbw_gb_per_s: range.expected_low,
        high_busbw_gb_per_s: range.expected_high,
    }
}

fn advice_json(advice: &Advice) -> SettingAdviceJson {
    let Advice { setting, min, max, gain } = *advice;
    SettingAdviceJson { setting: setting.to_string(), min_bytes: min, max_bytes: max, gain, rule: setting.rule() }
}

fn cause_json(ranked: &RankedCause) -> CauseJson {
    let cause = &ranked.cause;
    CauseJson {
        class: cause.class(),
        text: cause.to_string(),
        basis: (ranked.basis != Basis::Assumed).then(|| ranked.basis.to_string()),
        closed_share: ranked.closed,
        probability: ranked.probability,
        fault_probability: ranked.fault_probability,
        check: cause.check(),
    }
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

fn row_json<'a>(answer: &ComparisonAnswer<'a>, row: &Compared) -> Option<ComparisonRowJson<'a>> {
    let measurement = answer.measurements.get(row.measurement)?;
    let configuration = &measurement.configuration;
    Some(ComparisonRowJson {
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
        measured_busbw_gb_per_s: row.bus_bandwidth(row.measured, measurement.bus_factor()),
        predicted_busbw_gb_per_s: row.bus_bandwidth(row.predicted, measurement.bus_factor()),
        low_us: row.low.us(),
        high_us: row.high.us(),
        error: row.error(),
        verdict: row.verdict().name(),
        outside: row.verdict().outside(),
        neighbours_us: row.outlier.map(fabricast_topologies::Picos::us),
    })
}
