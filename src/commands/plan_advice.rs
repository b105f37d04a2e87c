//! Advice of a plan as sentences and JSON: sizes at which the library's default is best, settings for other sizes, and
//! kernels of other software that are faster.

use fabricast_libraries::{Library, LibraryCapabilities};
use fabricast_reports::format::{bytes, percent};
use fabricast_search::plan::{Advice, Gain, Improvement, Runner};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use super::format_count;

/// Maximum number of size ranges in one line; the table lists all ranges.
const MAX_RANGES: usize = 3;

/// Lines at the top of a plan's text: one line per collective, the settings that select faster strategies, and kernels
/// of other software.
pub fn lines(advice: &Advice, capabilities: LibraryCapabilities) -> Vec<String> {
    let mut collectives: Vec<Collective> = advice.rows.iter().map(|row| row.collective).collect();
    collectives.dedup();
    let library = capabilities.library;
    let mut lines = Vec::new();
    let is_right = |collective: &Collective| {
        advice.changes.iter().all(|change| change.collective != *collective) && unknown_rows(advice, *collective) == 0
    };
    let (right, other): (Vec<Collective>, Vec<Collective>) = collectives.iter().partition(|one| is_right(one));
    for &collective in &other {
        let prefix = if collectives.len() > 1 { format!("{collective}: ") } else { String::new() };
        lines.push(format!("{prefix}{}", own_choice(advice, collective, library)));
    }
    if !right.is_empty() {
        let names: Vec<&str> = right.iter().map(|collective| collective.name()).collect();
        let scope = match (collectives.len(), other.is_empty()) {
            (1, _) => String::new(),
            (_, true) => format!(" of all {} collectives", collectives.len()),
            (_, false) => format!(" of {}", names.join(", ")),
        };
        lines.push(match possible_gain(advice, &right) {
            None => format!("{library}'s own choice is right at all sizes{scope}: nothing to set"),
            Some(possible) => {
                format!("{library}'s own choice is right at all sizes{scope}, within the model's error: {possible}")
            }
        });
    }
    if let Some(how) = how_to_set(advice, library) {
        lines.push(format!("how: {how}"));
    }
    for &collective in &collectives {
        let prefix = if collectives.len() > 1 { format!("{collective}: ") } else { String::new() };
        let kernels: Vec<&Improvement> =
            advice.other_kernels.iter().filter(|kernels| kernels.collective == collective).collect();
        if let Some(first) = kernels.first() {
            let ranges = listed(&kernels, |kernels| format!("{}, {}", range(kernels), gain(&kernels.gain)));
            lines.push(format!("{prefix}faster with other kernels than {library}'s: {ranges}"));
            lines.push(format!("  they run {}", runners(first, capabilities)));
        }
    }
    lines
}

/// Sentence on the library's default choice for a collective.
fn own_choice(advice: &Advice, collective: Collective, library: Library) -> String {
    let changes: Vec<&Improvement> = advice.changes.iter().filter(|change| change.collective == collective).collect();
    let unknown = match unknown_rows(advice, collective) {
        0 => String::new(),
        unknown => format!("; it cannot be predicted at {}", format_count(unknown as u64, "size")),
    };
    if changes.is_empty() {
        return format!("{library}'s own choice is right where it can be predicted{unknown}");
    }
    let rows = advice.rows.iter().filter(|row| row.collective == collective).count();
    let changed: usize = changes.iter().map(|change| change.strategies.len()).sum();
    let rest = if changed < rows { "; elsewhere its own choice is right" } else { "" };
    let ranges = listed(&changes, |change| format!("{}, {}", range(change), gain(&change.gain)));
    format!("change {library}'s own choice: {ranges}{rest}{unknown}")
}

/// Number of sizes for which the library's default choice is unknown.
fn unknown_rows(advice: &Advice, collective: Collective) -> usize {
    advice.rows.iter().filter(|row| row.collective == collective && row.library_default.is_none()).count()
}

/// Descriptions of the first ranges, followed by the number of further ranges.
fn listed(ranges: &[&Improvement], describe: impl Fn(&Improvement) -> String) -> String {
    let mut texts: Vec<String> = ranges.iter().take(MAX_RANGES).map(|range| describe(range)).collect();
    if ranges.len() > MAX_RANGES {
        texts.push(format_count((ranges.len() - MAX_RANGES) as u64, "more range"));
    }
    texts.join("; ")
}

/// Strategy and sizes: `ring ll128 x16 at 64 KiB to 256 KiB`.
fn range(improvement: &Improvement) -> String {
    let span = match improvement.min == improvement.max {
        true => bytes(improvement.min),
        false => format!("{} to {}", bytes(improvement.min), bytes(improvement.max)),
    };
    let Some(first) = improvement.strategies.first() else { return span };
    let channels = match improvement.strategies.iter().all(|strategy| strategy.channels == first.channels) {
        true => format!(" x{}", first.channels),
        false => String::new(),
    };
    format!("{} {}{channels} at {span}", first.algorithm, first.protocol)
}

/// Gain with its interval: `12 % faster (4 to 20 %)`.
fn gain(Gain { predicted, min, max }: &Gain) -> String {
    let (low, high) = (percent(*min), percent(*max));
    let interval = if low == high { String::new() } else { format!(" ({low} to {high} %)") };
    format!("{} % faster{interval}", percent(*predicted))
}

/// Minimum predicted gain, as a fraction, for which a trial is suggested although the prediction intervals overlap.
const WORTH_A_TRIAL: f64 = 0.1;

/// Sentence on the largest predicted gain of another strategy of the library whose prediction interval overlaps that of
/// the default. `None` if no gain reaches [`WORTH_A_TRIAL`].
fn possible_gain(advice: &Advice, collectives: &[Collective]) -> Option<String> {
    let rows = advice.rows.iter().filter(|row| collectives.contains(&row.collective));
    let gains = rows.filter_map(|row| {
        let other = row.runner_up?;
        let gain = row.pick.time.0 as f64 / other.time.0.max(1) as f64 - 1.0;
        (gain >= WORTH_A_TRIAL).then_some((gain, row, other))
    });
    let (gain, row, other) = gains.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
    Some(format!(
        "{} {} may be faster, by {} % at {} (not certain)",
        other.strategy.algorithm,
        other.strategy.protocol,
        percent(gain),
        bytes(row.bytes)
    ))
}

/// Sentence on the settings with which the library uses the faster strategies; `None` if there are no such settings.
fn how_to_set(advice: &Advice, library: Library) -> Option<String> {
    let first = advice.changes.first()?;
    let table = |format: &str| {
        format!(
            "a tuning table: this plan with --library {library} --format json, then fabricast table - --to {format}"
        )
    };
    let table = match library {
        Library::Nccl(_) => Some(table("nccl-tuner")),
        Library::OpenMpi(_) => Some(table("openmpi")),
        Library::Rccl(_) => None,
    };
    // Environment variables (NCCL_ALGO and NCCL_PROTO, which RCCL also reads) apply to calls of all sizes.
    let serves_all = first.strategies.len() == advice.rows.len();
    let variables = match (library, serves_all, first.algorithm(), first.protocol()) {
        (Library::Nccl(_) | Library::Rccl(_), true, Some(algorithm), Some(protocol)) => {
            let algorithm = algorithm.name().replace('_', "").to_uppercase();
            Some(format!("NCCL_ALGO={algorithm} NCCL_PROTO={}", protocol.name().to_uppercase()))
        }
        _ => None,
    };
    let alternatives: Vec<String> = variables.into_iter().chain(table).collect();
    (!alternatives.is_empty()).then(|| alternatives.join(", or "))
}

fn runners(improvement: &Improvement, capabilities: LibraryCapabilities) -> String {
    let text = |runner: Runner| match runner {
        Runner::RegisteredWindows => format!(
            "in {} on buffers registered as symmetric windows (--registered symmetric; nccl-tests -R 2)",
            capabilities.library
        ),
        Runner::NetworkPlugin => format!(
            "in {} with a plugin for networks that reduce, such as nccl-rdma-sharp (NCCL_COLLNET_ENABLE=1)",
            capabilities.library
        ),
        Runner::InferenceEngines => "in the custom all_reduce of vLLM, SGLang and TensorRT-LLM".to_owned(),
        Runner::GeneratedKernels => "by `fabricast gpu run`".to_owned(),
    };
    improvement.runners(capabilities).into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// JSON of the advice.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdviceJson")]
pub struct PlanAdviceJson {
    /// Library to which the advice applies.
    library: String,
    /// Advice as sentences, the most important one first.
    text: Vec<String>,
    /// Ranges in which another strategy of the library is clearly faster than its default.
    changes: Vec<ImprovementJson>,
    /// Ranges in which kernels that the library does not have are faster than its best strategy.
    other_kernels: Vec<ImprovementJson>,
    /// Number of rows for which the library's default is unknown.
    unknown: usize,
}

/// Faster strategy of a range of sizes.
#[derive(Serialize, JsonSchema)]
struct ImprovementJson {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Smallest planned size, in bytes.
    min_bytes: Bytes,
    /// Largest planned size, in bytes.
    max_bytes: Bytes,
    /// Algorithm of the faster strategy.
    algorithm: Option<&'static str>,
    /// Protocol of the faster strategy.
    protocol: Option<&'static str>,
    /// Numbers of channels, by planned size.
    channels: Vec<u16>,
    /// Gain by the predicted times, as a fraction: time of the slower strategy ÷ time of the faster one − 1.
    gain: f64,
    /// Gain at the unfavourable ends of both 80 % prediction intervals.
    min_gain: f64,
    /// Gain at the favourable ends of both 80 % prediction intervals.
    max_gain: f64,
}

impl PlanAdviceJson {
    pub fn new(advice: &Advice, capabilities: LibraryCapabilities) -> Self {
        Self {
            library: capabilities.library.to_string(),
            text: lines(advice, capabilities),
            changes: advice.changes.iter().map(improvement_json).collect(),
            other_kernels: advice.other_kernels.iter().map(improvement_json).collect(),
            unknown: advice.unknown,
        }
    }
}

fn improvement_json(improvement: &Improvement) -> ImprovementJson {
    ImprovementJson {
        collective: improvement.collective,
        min_bytes: improvement.min,
        max_bytes: improvement.max,
        algorithm: improvement.algorithm().map(fabricast_collectives::algorithm::Algorithm::name),
        protocol: improvement.protocol().map(fabricast_sim::schedule::Protocol::name),
        channels: improvement.strategies.iter().map(|strategy| strategy.channels).collect(),
        gain: improvement.gain.predicted,
        min_gain: improvement.gain.min,
        max_gain: improvement.gain.max,
    }
}
