//! Plans: the best strategy for each collective and message size, its uncertainty, and its distance from the lower
//! bound. Module `row_search` searches the candidates of a row, `preference` selects between the fastest one and the
//! library's default, and `smoothing` selects again over neighbouring sizes.

mod advice;
mod examination;
mod incumbents;
mod library_default;
mod library_table;
mod lower_bounds;
mod measured;
mod outline_cache;
mod outside;
mod preference;
mod ranges;
mod refinement;
mod row_planner;
mod row_search;
mod search;
mod search_space;
mod simulated_candidates;
mod smoothing;
mod speculative;
mod templates;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Collective, TrafficMatrix};
use fabricast_sim::utilization::Utilization;
use fabricast_sim::{LaunchMode, Timeline};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};

use crate::candidates::{PlacedRanks, Restriction};
pub use advice::{Advice, Gain, Improvement, Runner, advise};
use fabricast_collectives::algorithm::{Algorithm, Unsupported};
use fabricast_collectives::bound::{Bound, Bounds};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::{Mismatch, Strategy};
use fabricast_libraries::{Chooser, Library};
pub use library_default::LibraryDefault;
pub use library_table::library_table;
pub use measured::{MEASURED_NOISE, MeasuredTime, Measurements};
pub use preference::{MAX_OVERLAP, Preference};
pub use ranges::{LAST_BYTES, Range, SizeRange};
pub use search::{
    StrategyCall, chain_lower_bound, lower_bound, plan, plan_single_calls, plan_table, plan_with_bounds,
    simulate_strategies,
};
pub use search_space::{CompetingAlgorithm, Exclusion, SearchSpace};
pub use simulated_candidates::{preference_limit_for, same_pair};

/// Input of a plan.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// Fabric that connects the ranks.
    pub fabric: &'a Fabric,
    /// Routes between the devices of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    pub placement: &'a [NodeId],
    /// Profile of software costs.
    pub profile: &'a Profile,
    /// Number of ranks on each host, for hierarchical algorithms.
    pub ranks_per_node: u32,
    /// Launch of the calls: CUDA graph or stream, processes and GPUs per host.
    pub mode: LaunchMode,
    /// Use of the buffers: in place or out of place.
    pub buffers: BufferUse,
    /// Root rank of broadcast, reduce, gather and scatter.
    pub root: u32,
    /// Bytes from each rank to each rank in an all_to_allv.
    pub matrix: Option<&'a TrafficMatrix>,
    /// Collectives to plan.
    pub collectives: &'a [Collective],
    /// Message sizes, in bytes. The matrix of an all_to_allv is scaled to each size. A barrier has one row for all
    /// sizes.
    pub sizes: &'a [Bytes],
    /// Restriction of the candidates.
    pub restriction: &'a Restriction,
    /// Library whose default is shown next to the selected strategy, if any.
    pub library: Option<&'a Chooser>,
    /// Set of candidates that are simulated.
    pub effort: Effort,
}

impl PlanRequest<'_> {
    /// Returns the lower bounds on all calls of the ranks.
    fn bounds(&self) -> Bounds {
        let Self { fabric, router, placement, root, restriction, .. } = *self;
        Bounds::new(fabric, router, placement, root).with_in_network(restriction.in_network)
    }

    /// Returns the capabilities of the fabric for the ranks.
    #[must_use]
    pub fn fabric_capabilities(&self) -> FabricCapabilities {
        self.restriction.capabilities(&self.placed_ranks())
    }

    fn placed_ranks(&self) -> PlacedRanks<'_> {
        let Self { fabric, router, placement, root, ranks_per_node, .. } = *self;
        PlacedRanks { fabric, router, placement, root, ranks_per_node }
    }
}

/// Set of candidates that a search simulates. Charts need the times of strategies that cannot win; tables do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Strategies that can still be the fastest or the second-fastest.
    #[default]
    Contenders,
    /// Additionally, the best channel count of every pair of algorithm and protocol.
    EveryPair,
}

/// Strategy with its predicted time and prediction interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedStrategy {
    /// Strategy that was simulated.
    pub strategy: Strategy,
    /// Predicted completion time.
    pub time: Picos,
    /// Lower end of the prediction interval.
    pub low: Picos,
    /// Upper end of the prediction interval.
    pub high: Picos,
    /// Resource with the highest utilization in the simulation; `None` if the strategy used no resource.
    pub busiest: Option<Busiest>,
    /// Measured time, which takes precedence over the predicted one.
    pub measured: Option<MeasuredTime>,
}

impl TimedStrategy {
    /// The measured time if there is one, otherwise the predicted time with its interval.
    #[must_use]
    pub fn effective_time(&self) -> MeasuredTime {
        self.measured.unwrap_or(MeasuredTime { time: self.time, low: self.low, high: self.high })
    }

    /// Returns true if both strategies have the same algorithm and protocol.
    #[must_use]
    pub fn has_same_pair(&self, other: &Self) -> bool {
        (self.strategy.algorithm, self.strategy.protocol) == (other.strategy.algorithm, other.strategy.protocol)
    }
}

/// Resource and its utilization in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busiest {
    /// Resource with limited capacity: a link, memory, a channel.
    pub resource: fabricast_sim::lower::Resource,
    /// Used capacity divided by available capacity, 0 to 1.
    pub fraction: f64,
}

impl Busiest {
    /// Returns the resource with the highest utilization in a run; `None` if the run used none.
    #[must_use]
    pub fn from_timeline(timeline: &Timeline) -> Option<Self> {
        let Utilization { resource, fraction, .. } = Utilization::busiest(&timeline.utilization)?;
        Some(Self { resource, fraction })
    }
}

/// Result for one collective and message size.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRow {
    /// Collective of the call.
    pub collective: Collective,
    /// Message size of the call, in bytes.
    pub bytes: Bytes,
    /// Message size that bandwidths refer to, in bytes, as in nccl-tests. Differs from `bytes` only for an all_to_allv.
    pub size: Bytes,
    /// Selected strategy. This is the fastest one, or one with fewer channels whose slowdown is below the accepted
    /// limit, or the library's default if predictions cannot determine which of the two is faster.
    pub pick: TimedStrategy,
    /// Reason for selecting `pick`.
    pub preference: Preference,
    /// Fastest of all candidates: no strategy in the search space has a shorter predicted time.
    pub fastest: TimedStrategy,
    /// Best strategy with another algorithm or protocol than the selected one; the fastest strategy if the library's
    /// default is selected.
    pub runner_up: Option<TimedStrategy>,
    /// Lower bound on the completion time of every schedule.
    pub bound: Bound,
    /// Best channel count of each simulated algorithm and protocol, fastest first.
    pub pairs: Vec<TimedStrategy>,
    /// Best channel count of each algorithm and protocol that the library can be configured to run, fastest first; empty if
    /// no library was requested.
    pub library_pairs: Vec<TimedStrategy>,
    /// The library's default; `None` if no library was requested or its choice is unknown.
    pub library_default: Option<LibraryDefault>,
    /// Candidates that were not simulated because their schedule is impossible at this size or too large, each with the
    /// reason.
    pub omitted: Vec<(Strategy, Unsupported)>,
}

/// Selected strategies by collective and message size.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the fabric.
    pub fabric: String,
    /// Name of the profile of software costs.
    pub profile: String,
    /// Number of ranks of the calls.
    pub ranks: u32,
    /// Results at the requested sizes, sorted by collective, then size.
    pub rows: Vec<PlanRow>,
    /// Rows planned between the requested sizes, near sizes at which the selected strategy changes; sorted by
    /// collective, then size.
    pub refined_rows: Vec<PlanRow>,
    /// Ranges of adjacent sizes, from the requested and the refined rows, that share a selected strategy.
    pub ranges: Vec<Range>,
    /// The library's defaults below the first size and above the last, from the library's own cost model; empty if
    /// unknown.
    pub outside_ranges: Vec<Range>,
    /// Library whose defaults are in the rows.
    pub library: Option<Library>,
    /// Overlap of prediction intervals, as a fraction of the shorter one, above which the library's default is selected
    /// instead of the fastest strategy.
    pub max_overlap: f64,
    /// Reasons why some of the library's defaults are unknown, without duplicates.
    pub library_unknown: Vec<String>,
    /// Collectives for which the restriction leaves no candidate, each with the reason; they have no rows.
    pub left_out: Vec<(Collective, String)>,
}

/// Reason why there is no plan.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlanError {
    /// No candidate strategy is left for a collective.
    #[error("no strategy remains for {collective}: {}", reasons(.rejected, .named, .possible))]
    NothingToChoose {
        /// Collective without a candidate.
        collective: Collective,
        /// Rejected candidates, each with the reason.
        rejected: Vec<(Strategy, Unsupported)>,
        /// Algorithms that the restriction names and that cannot run with any of its protocols, each with the reason.
        named: Vec<(Algorithm, Mismatch)>,
        /// Combinations of algorithm and protocol available without the restriction: `ring (ll, ll128, simple)`.
        possible: Vec<String>,
    },
    /// The simulation of a strategy failed.
    #[error("{strategy} for {collective} of {bytes}: {source}")]
    Simulation {
        /// Strategy whose simulation failed.
        strategy: Strategy,
        /// Collective of the simulated call.
        collective: Collective,
        /// Message size of the simulated call, in bytes.
        bytes: Bytes,
        /// Error of the simulator.
        source: Box<fabricast_sim::SimulateError>,
    },
    /// The caller stopped the computation between two simulations.
    #[error("interrupted")]
    Interrupted,
}

fn reasons(rejected: &[(Strategy, Unsupported)], named: &[(Algorithm, Mismatch)], possible: &[String]) -> String {
    let named = named.iter().map(|(algorithm, reason)| format!("{algorithm}: {reason}; "));
    match rejected.first() {
        Some((strategy, reason)) => format!("{strategy}: {reason}"),
        None => format!("{}expected one of {}", named.collect::<String>(), possible.join(", ")),
    }
}

impl Plan {
    /// Returns the requested and the refined rows, by collective and size.
    #[must_use]
    pub fn all_rows(&self) -> Vec<PlanRow> {
        refinement::merge_rows(&self.rows, &self.refined_rows)
    }
}

impl PlanRow {
    /// Returns the entry of a library's table for message sizes near this row: the selected strategy. If the library's
    /// default is selected, the entry has the maximum number of channels that the library allows for such calls, so
    /// that the table does not change the library's behaviour.
    #[must_use]
    pub fn table_entry(&self) -> Strategy {
        let pick = self.pick.strategy;
        let default = self.library_default.as_ref().filter(|default| default.timed.strategy == pick);
        Strategy { channels: default.map_or(pick.channels, |default| default.choice.max_channels), ..pick }
    }

    /// Bus bandwidth for a time, in GB/s, as defined by nccl-tests.
    #[must_use]
    pub fn busbw_gb_per_s(&self, time: Picos, ranks: u32) -> f64 {
        busbw_gb_per_s(self.collective, self.size, time, ranks)
    }

    /// Lower bound divided by the time of the selected strategy, 0 to 1.
    #[must_use]
    pub fn fraction_of_bound(&self) -> f64 {
        if self.pick.time.0 == 0 { 1.0 } else { self.bound.time.0 as f64 / self.pick.time.0 as f64 }
    }
}

/// Bus bandwidth in GB/s, as defined by nccl-tests; 0 if the time is 0.
#[must_use]
pub fn busbw_gb_per_s(collective: Collective, bytes: Bytes, time: Picos, ranks: u32) -> f64 {
    algbw_gb_per_s(bytes, time) * collective.busbw_factor(ranks)
}

/// Bytes divided by time, in GB/s; 0 if the time is 0.
#[must_use]
pub fn algbw_gb_per_s(bytes: Bytes, time: Picos) -> f64 {
    if time.0 == 0 { 0.0 } else { bytes.0 as f64 * 1e3 / time.0 as f64 }
}
