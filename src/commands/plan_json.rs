//! JSON of a plan. `table` reads it to make tuning tables.

use std::collections::BTreeMap;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::packing::TreeVariant;
use fabricast_libraries::{Chooser, LibraryCapabilities};
use fabricast_search::plan::{
    CompetingAlgorithm, Exclusion, Plan, PlanRequest, PlanRow, Range, SearchSpace, TimedStrategy, library_table,
};
use fabricast_sim::schedule::{BufferUse, Collective, Protocol};
use fabricast_topologies::{Bytes, Fabric};
use schemars::JsonSchema;
use serde::Serialize;

use super::memory::MemoryShortfall;
use super::plan_advice::PlanAdviceJson;
use super::plan_candidates::CandidateJson;
use super::{bottleneck, library_default};
use crate::args::PlanArgs;

/// Inputs of a plan that its JSON records.
pub struct PlanInputs<'a> {
    /// Request that was planned.
    pub request: &'a PlanRequest<'a>,
    /// Number of hosts with ranks.
    pub hosts: u32,
    /// Requested fabric, if its name and numbers identify it completely; otherwise `None`.
    pub requested_fabric: Option<RequestedFabric<'a>>,
    /// Strategies that the library can run on the fabric.
    pub offer: Option<LibraryCapabilities>,
    /// Smallest size that exceeds a GPU's memory.
    pub memory_shortfall: Option<MemoryShortfall>,
    /// Candidates that were considered.
    pub space: &'a SearchSpace,
    /// All candidates with their times; `None` without `--all`.
    pub candidates: Option<Vec<CandidateJson>>,
    /// Advice on the library's default choice; `None` if the default is unknown.
    pub advice: Option<PlanAdviceJson>,
}

/// Requested fabric.
#[derive(Serialize, JsonSchema)]
pub struct RequestedFabric<'a> {
    /// Requested preset or file.
    fabric: &'a str,
    /// Requested number of hosts; null: that of the fabric.
    nodes: Option<u32>,
    /// Requested number of GPUs per host; null: that of the fabric.
    gpus: Option<u32>,
    /// Requested profile; absent: the best match.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a str>,
}

impl<'a> RequestedFabric<'a> {
    /// Creates the description from the flags; `None` if a name and numbers do not identify the fabric completely.
    pub fn from_args(args: &'a PlanArgs) -> Option<Self> {
        let (fabric, what_if) = (&args.fabric, &args.what_if);
        let plain = fabric.size.network.is_none()
            && fabric.size.gpu_model.is_none()
            && fabric.size.mig.is_empty()
            && fabric.ranks_per_gpu == 1
            && what_if.fail.is_empty()
            && what_if.slow.is_empty();
        let profile = args.costs.profile.as_deref();
        plain.then_some(Self { fabric: &fabric.fabric, nodes: fabric.size.nodes, gpus: fabric.size.gpus, profile })
    }
}

/// JSON of `plan`.
#[derive(Serialize, JsonSchema)]
pub struct PlanJson<'a> {
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// Date of the cost profile.
    profile_date: &'a str,
    /// Number of ranks.
    ranks: u32,
    /// Number of hosts with ranks.
    nodes: u32,
    /// Library and version whose default choices are predicted; null if none is.
    library: Option<String>,
    /// Number of nodes from NCCL's point of view: NVLink domains if they span hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    library_nodes: Option<u32>,
    /// Options that identify the fabric; null if they do not describe it completely.
    request: Option<&'a RequestedFabric<'a>>,
    /// Root of rooted collectives; absent: rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<u32>,
    /// True if input and output share a buffer; absent: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    in_place: bool,
    /// Variant of packed trees to which `--trees` restricts the plan; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    trees: Option<TreeVariant>,
    /// Smallest size whose buffers exceed a GPU's memory; absent if all sizes fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_exceeded: Option<&'a MemoryShortfall>,
    /// Advice: sizes at which the library's default is best, and faster strategies at other sizes; absent if the
    /// default is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'a PlanAdviceJson>,
    /// Best strategies, by collective and requested size.
    rows: Vec<PlanRowJson>,
    /// Rows at intermediate sizes, near sizes at which the selected strategy changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refined_rows: Vec<PlanRowJson>,
    /// Best strategy of each range of sizes, by collective.
    ranges: Vec<StrategyRangeJson>,
    /// The library's default choices below the first size and above the last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outside_ranges: Vec<StrategyRangeJson>,
    /// Every candidate with its time, by collective and size, fastest first; only with `--all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<&'a [CandidateJson]>,
    /// Candidates that were tried, and candidates that were excluded.
    searched: SearchedJson,
}

/// Candidates that were tried, and candidates that were excluded.
#[derive(Serialize, JsonSchema)]
struct SearchedJson {
    /// Channel counts that were tried.
    channels: Vec<u16>,
    /// Algorithms and protocols that were tried.
    strategies: Vec<TriedJson>,
    /// Candidates that were excluded.
    not_tried: Vec<NotTriedJson>,
}

/// Algorithm that was tried for a collective.
#[derive(Serialize, JsonSchema)]
struct TriedJson {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Name of the algorithm.
    algorithm: &'static str,
    /// Protocols that were tried with the algorithm.
    protocols: Vec<&'static str>,
}

/// Candidates that were excluded.
#[derive(Serialize, JsonSchema)]
struct NotTriedJson {
    /// Collective of the candidates; null for all.
    collective: Option<Collective>,
    /// Size of the call in bytes; absent: any size.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Bytes>,
    /// Algorithm of the candidates; null for all.
    algorithm: Option<&'static str>,
    /// Protocols of the candidates; null for all.
    protocols: Option<Vec<&'static str>>,
    /// Number of channels of the candidates; null for all.
    channels: Option<u16>,
    /// Reason why they were excluded.
    reason: String,
}

/// Best strategy of a call, with alternatives.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct PlanRowJson {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    #[serde(flatten)]
    pick: PricedJson,
    /// Lower bound on the time of any schedule on this fabric, in µs.
    bound_us: f64,
    /// Share of the theoretical peak: bound ÷ predicted time.
    bound_share: f64,
    /// Resource or latency that determines the lower bound.
    bound_by: String,
    /// Link or cost that limits the call.
    bottleneck: String,
    /// Second-best strategy; null if there is none.
    runner_up: Option<PricedJson>,
    /// The library's default choice; null if it is unknown.
    library_default: Option<library_default::LibraryDefaultJson>,
    /// Overlap of the prediction intervals of the library's default and the fastest strategy, as a fraction of the
    /// shorter one; null unless the default was selected because of this overlap.
    #[serde(rename = "kept_for_overlap")]
    default_interval_overlap: Option<f64>,
    /// Fastest of all candidates (`searched`). It differs from the selected strategy if fewer channels, the library's
    /// default or the strategy of neighbouring sizes was preferred.
    fastest: PricedJson,
    /// Entry of the library's table, if it differs from the selected strategy: the fastest strategy that the library
    /// runs, if this is clearly faster than its default. Absent if the candidates are restricted to the library.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_of_library: Option<PricedJson>,
}

/// Strategy with its predicted time.
#[derive(Serialize, JsonSchema)]
struct PricedJson {
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Chunk size in bytes; absent: the profile's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<u64>,
    /// Threads per thread block; absent: the protocol's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<u16>,
    /// Variant of packed trees, as `--trees` names it; absent for other algorithms.
    #[serde(skip_serializing_if = "Option::is_none")]
    trees: Option<TreeVariant>,
    /// Predicted time, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Bus bandwidth as nccl-tests defines it, in GB/s (10⁹ bytes per second).
    busbw_gb_per_s: f64,
    /// Measured time, in µs; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
}

/// Strategy of a range of sizes.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RangeJson")]
struct StrategyRangeJson {
    /// The collective, as nccl-tests names it.
    collective: Collective,
    /// Smallest size of the range, in bytes.
    min_bytes: Bytes,
    /// Largest size of the range, in bytes.
    max_bytes: Bytes,
    /// Algorithm of the strategy.
    algorithm: &'static str,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy.
    channels: u16,
    /// Variant of packed trees, as `--trees` names it; absent for other algorithms.
    #[serde(skip_serializing_if = "Option::is_none")]
    trees: Option<TreeVariant>,
}

impl<'a> PlanJson<'a> {
    pub fn new(plan: &'a Plan, fabric: &Fabric, inputs: &'a PlanInputs<'_>) -> Self {
        let communicator = inputs.request.library.and_then(Chooser::communicator);
        let best = library_table_entries(&plan.all_rows(), inputs);
        let json = |row: &PlanRow| {
            PlanRowJson::new(row, plan.ranks, fabric, best.get(&(row.collective, row.bytes)).copied().flatten())
        };
        let rows = |rows: &[PlanRow]| rows.iter().map(json).collect();
        Self {
            fabric: &plan.fabric,
            profile: &plan.profile,
            profile_date: &inputs.request.profile.date,
            ranks: plan.ranks,
            nodes: inputs.hosts,
            library: plan.library.map(|library| library.to_string()),
            library_nodes: communicator.map(|communicator| communicator.nodes),
            request: inputs.requested_fabric.as_ref(),
            root: Some(inputs.request.root).filter(|&root| root > 0),
            in_place: inputs.request.buffers == BufferUse::InPlace,
            trees: inputs.request.restriction.trees,
            memory_exceeded: inputs.memory_shortfall.as_ref(),
            advice: inputs.advice.as_ref(),
            rows: rows(&plan.rows),
            refined_rows: rows(&plan.refined_rows),
            ranges: plan.ranges.iter().map(StrategyRangeJson::from).collect(),
            outside_ranges: plan.outside_ranges.iter().map(StrategyRangeJson::from).collect(),
            candidates: inputs.candidates.as_deref(),
            searched: SearchedJson::new(inputs.space),
        }
    }
}

impl SearchedJson {
    fn new(space: &SearchSpace) -> Self {
        let names = |protocols: &[Protocol]| protocols.iter().map(|protocol| protocol.name()).collect::<Vec<_>>();
        let tried = |candidate: &CompetingAlgorithm| TriedJson {
            collective: candidate.collective,
            algorithm: candidate.algorithm.name(),
            protocols: names(&candidate.protocols),
        };
        let not_tried = |candidate: &Exclusion| {
            let (collective, algorithm) = match candidate {
                Exclusion::Impossible { collective, algorithm, .. }
                | Exclusion::UnsupportedByLibrary { collective, algorithm, .. }
                | Exclusion::Omitted { collective, algorithm, .. } => (Some(*collective), Some(algorithm.name())),
                Exclusion::PackedTrees => (None, Some(Algorithm::TreePacking.name())),
                Exclusion::ManyChannels { .. } | Exclusion::UnselectableChannels(_) | Exclusion::OtherChannels => {
                    (None, None)
                }
            };
            let protocols = match candidate {
                Exclusion::UnsupportedByLibrary { protocols, .. } => Some(names(protocols)),
                Exclusion::Omitted { protocol, .. } => Some(names(&[*protocol])),
                _ => None,
            };
            let (channels, bytes) = match candidate {
                Exclusion::ManyChannels { channels, .. } => (vec![Some(*channels)], None),
                Exclusion::Omitted { channels, bytes, .. } => {
                    (channels.iter().copied().map(Some).collect(), Some(*bytes))
                }
                _ => (vec![None], None),
            };
            let reason = match candidate {
                Exclusion::Omitted { reason, .. } => reason.clone(),
                _ => candidate.to_string(),
            };
            let entry = move |channels| NotTriedJson {
                collective,
                bytes,
                algorithm,
                protocols: protocols.clone(),
                channels,
                reason: reason.clone(),
            };
            channels.into_iter().map(entry).collect::<Vec<_>>()
        };
        Self {
            channels: space.channels.clone(),
            strategies: space.competing.iter().map(tried).collect(),
            not_tried: space.excluded.iter().flat_map(not_tried).collect(),
        }
    }
}

impl PlanRowJson {
    fn new(row: &PlanRow, ranks: u32, fabric: &Fabric, best_of_library: Option<TimedStrategy>) -> Self {
        let priced = |priced: TimedStrategy| PricedJson {
            algorithm: priced.strategy.algorithm.name(),
            protocol: priced.strategy.protocol.name(),
            channels: priced.strategy.channels,
            chunk: priced.strategy.chunk.map(|chunk| chunk.0),
            threads: priced.strategy.threads,
            trees: priced.strategy.trees,
            time_us: priced.time.us(),
            low_us: priced.low.us(),
            high_us: priced.high.us(),
            busbw_gb_per_s: row.busbw_gb_per_s(priced.time, ranks),
            measured_us: priced.measured.map(|measured| measured.time.us()),
        };
        Self {
            collective: row.collective,
            bytes: row.bytes,
            pick: priced(row.pick),
            bound_us: row.bound.time.us(),
            bound_share: row.fraction_of_bound(),
            bound_by: row.bound.limited_by.to_string(),
            bottleneck: bottleneck::bottleneck_of_row(row, fabric),
            runner_up: row.runner_up.map(priced),
            library_default: library_default::LibraryDefaultJson::from_row(row),
            default_interval_overlap: library_default::overlap(row),
            fastest: priced(row.fastest),
            best_of_library: best_of_library.filter(|best| best.strategy != row.pick.strategy).map(priced),
        }
    }
}

/// Returns the entry of the library's table for each row, if the candidates are not restricted to the library.
fn library_table_entries(
    rows: &[PlanRow],
    inputs: &PlanInputs<'_>,
) -> BTreeMap<(Collective, Bytes), Option<TimedStrategy>> {
    let (Some(offer), None) = (inputs.offer, inputs.request.restriction.library) else { return BTreeMap::new() };
    let keys = rows.iter().map(|row| (row.collective, row.bytes));
    keys.zip(library_table(inputs.request, offer, rows)).collect()
}

impl From<&Range> for StrategyRangeJson {
    fn from(range: &Range) -> Self {
        Self {
            collective: range.collective,
            min_bytes: range.min_bytes,
            max_bytes: range.max_bytes,
            algorithm: range.strategy.algorithm.name(),
            protocol: range.strategy.protocol.name(),
            channels: range.strategy.channels,
            trees: range.strategy.trees,
        }
    }
}
