//! The plan: which strategy for which collective and size, how sure, and how far from the bound.

mod ahead;
mod between;
mod beyond;
mod default;
mod for_library;
mod kept;
mod least;
mod measured;
mod preference;
mod ranges;
mod recent;
mod search;
mod space;
mod steady;
mod templates;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Collective, Matrix};
use fabricast_sim::timeline::Utilization;
use fabricast_sim::{LaunchMode, Timeline};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};

use crate::algorithm::Unsupported;
use crate::bound::Bound;
use crate::library::{Chooser, Library};
use crate::strategy::{Restriction, Strategy};
pub use default::LibraryDefault;
pub use for_library::for_library;
pub(crate) use kept::{same_pair, worth_of_time};
pub use measured::{MEASURED_NOISE, Measured, Measurements};
pub use preference::{MOST_OVERLAP, Preference};
pub use ranges::{LAST_BYTES, Range, Stretch};
pub(crate) use search::plan_within;
pub use search::{Watcher, least_time, plan, plan_with, prices};
pub use space::{NotTried, SearchSpace, Tried};

/// What to plan.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// Its routes.
    pub router: &'a Router<'a>,
    /// The device of each rank.
    pub placement: &'a [NodeId],
    /// What software costs.
    pub profile: &'a Profile,
    /// Ranks on each host, for algorithms with levels.
    pub ranks_per_node: u32,
    /// How calls are launched.
    pub mode: LaunchMode,
    /// In place or not.
    pub buffers: BufferUse,
    /// The root of broadcast and reduce.
    pub root: u32,
    /// Who sends how much to whom in an all_to_allv.
    pub matrix: Option<&'a Matrix>,
    /// The collectives.
    pub collectives: &'a [Collective],
    /// The sizes. An all_to_allv's matrix is scaled to them; a barrier has a single row whatever they are.
    pub sizes: &'a [Bytes],
    /// What may be chosen from.
    pub restriction: &'a Restriction,
    /// Whose own choice is shown beside the pick; none is with `None`.
    pub library: Option<&'a Chooser>,
    /// Whether strategies that cannot win are simulated too (a chart wants them, a table does not).
    pub effort: Effort,
}

/// How many strategies are simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Those that can still win or come second.
    #[default]
    Contenders,
    /// The best channel count of every algorithm and protocol too.
    EveryPair,
}

/// A strategy with its predicted time and the band around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priced {
    /// The strategy.
    pub strategy: Strategy,
    /// Predicted time.
    pub time: Picos,
    /// Lower end of the band.
    pub low: Picos,
    /// Upper end of the band.
    pub high: Picos,
    /// The capacity that was used most, and how much of it; empty where bytes hardly matter.
    pub busiest: Option<Busiest>,
    /// What was measured of it, which counts before what is predicted.
    pub measured: Option<Measured>,
}

impl Priced {
    /// What counts: the measured time, or else the predicted one with its band.
    #[must_use]
    pub fn counted(&self) -> Measured {
        self.measured.unwrap_or(Measured { time: self.time, low: self.low, high: self.high })
    }

    /// Whether both are of one algorithm and protocol.
    #[must_use]
    pub fn is_pair_of(&self, other: &Self) -> bool {
        (self.strategy.algorithm, self.strategy.protocol) == (other.strategy.algorithm, other.strategy.protocol)
    }
}

/// A capacity and the part of it that a run used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busiest {
    /// The capacity.
    pub resource: fabricast_sim::lower::Resource,
    /// Used ÷ available.
    pub fraction: f64,
}

impl Busiest {
    /// Of a run; `None` where it used no capacity.
    #[must_use]
    pub fn of(timeline: &Timeline) -> Option<Self> {
        let Utilization { resource, fraction, .. } = Utilization::busiest(&timeline.utilization)?;
        Some(Self { resource, fraction })
    }
}

/// The answer for one collective and size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The collective.
    pub collective: Collective,
    /// The size of the call.
    pub bytes: Bytes,
    /// What bandwidths count: nccl-tests' size. Only an all_to_allv's differs from `bytes`.
    pub size: Bytes,
    /// The strategy to take: the fastest, or one with fewer channels that is slower by no more than those are worth, or the library's
    /// default where it is not told which of the two is faster.
    pub pick: Priced,
    /// Why it is the pick.
    pub preference: Preference,
    /// The fastest of all candidates, whatever is preferred to it: no strategy that the search tries is done sooner.
    pub fastest: Priced,
    /// The best strategy of another algorithm or protocol; where the library's default is the pick, the fastest.
    pub runner_up: Option<Priced>,
    /// What no schedule can beat.
    pub bound: Bound,
    /// The best channel count of each algorithm and protocol that was simulated, fastest first.
    pub pairs: Vec<Priced>,
    /// What the library would have chosen by itself; `None` where none was asked for, or its choice is not known.
    pub library_default: Option<LibraryDefault>,
    /// Candidates that were not simulated because no schedule of this size is possible or it is too large, each with the reason.
    pub left_out: Vec<(Strategy, Unsupported)>,
}

/// A plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The fabric's name.
    pub fabric: String,
    /// The profile's name.
    pub profile: String,
    /// Number of ranks.
    pub ranks: u32,
    /// By collective, then size.
    pub rows: Vec<Row>,
    /// Sizes between those of the rows, around those at which picks change; by collective, then size.
    pub between: Vec<Row>,
    /// Equal neighbours among the rows and what is between them, merged.
    pub ranges: Vec<Range>,
    /// What the library does by itself below the first size and above the last, by its own formula; empty where that is not known.
    pub beyond: Vec<Range>,
    /// Whose own choices stand in the rows.
    pub library: Option<Library>,
    /// Where the intervals of the fastest and of the library's choice overlap by more than this part of the shorter one, its choice is
    /// the pick.
    pub most_overlap: f64,
    /// Why some of its choices are not known, each reason once.
    pub library_unknown: Vec<String>,
    /// Collectives among several for which the restriction leaves nothing, each with the reason; they have no rows.
    pub left_out: Vec<(Collective, String)>,
}

/// Why there is no plan.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing is left to choose from.
    #[error("no strategy for {collective} is left: {}", reasons(.rejected, .possible))]
    NothingToChoose {
        /// The collective.
        collective: Collective,
        /// What was tried, and why not.
        rejected: Vec<(Strategy, Unsupported)>,
        /// Algorithms and protocols that go together here without the restriction: `ring (ll, ll128, simple)`.
        possible: Vec<String>,
    },
    /// A simulation failed.
    #[error("{strategy} for {collective} of {bytes}: {source}")]
    Simulation {
        /// The strategy.
        strategy: Strategy,
        /// The collective.
        collective: Collective,
        /// The size.
        bytes: Bytes,
        /// Why.
        source: Box<fabricast_sim::SimulateError>,
    },
}

fn reasons(rejected: &[(Strategy, Unsupported)], possible: &[String]) -> String {
    match rejected.first() {
        Some((strategy, why)) => format!("{strategy}: {why}"),
        None => format!("expected one of {}", possible.join(", ")),
    }
}

impl Plan {
    /// The rows and what is between them, by collective and size.
    #[must_use]
    pub fn all_rows(&self) -> Vec<Row> {
        between::all(&self.rows, &self.between)
    }
}

impl Row {
    /// What a table tells the library for sizes like this: the pick; where that is the library's own choice, on all channels that it
    /// allows such calls, so that it does for all of them as it would.
    #[must_use]
    pub fn told(&self) -> Strategy {
        let pick = self.pick.strategy;
        let own = self.library_default.as_ref().filter(|default| default.priced.strategy == pick);
        Strategy { channels: own.map_or(pick.channels, |default| default.choice.most_channels), ..pick }
    }

    /// Bus bandwidth of a time, GB/s, as nccl-tests counts it.
    #[must_use]
    pub fn busbw_gbps(&self, time: Picos, ranks: u32) -> f64 {
        busbw_gbps(self.collective, self.size, time, ranks)
    }

    /// The bound ÷ the pick's time, 0 to 1.
    #[must_use]
    pub fn fraction_of_bound(&self) -> f64 {
        if self.pick.time.0 == 0 { 1.0 } else { self.bound.time.0 as f64 / self.pick.time.0 as f64 }
    }
}

/// Bus bandwidth in GB/s, as nccl-tests counts it; 0 for no time.
#[must_use]
pub fn busbw_gbps(collective: Collective, bytes: Bytes, time: Picos, ranks: u32) -> f64 {
    algbw_gbps(bytes, time) * collective.busbw_factor(ranks)
}

/// Bytes over time in GB/s; 0 for no time.
#[must_use]
pub fn algbw_gbps(bytes: Bytes, time: Picos) -> f64 {
    if time.0 == 0 { 0.0 } else { bytes.0 as f64 * 1e3 / time.0 as f64 }
}
