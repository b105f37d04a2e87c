//! Message sizes at which a table uses another strategy than the library's default, and the gain at each size.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SavedPick, SavedPlan, SavedRow, nccl_tuner};
use fabricast_libraries::Library;
use fabricast_libraries::nccl::Function;

/// Message size for which a strategy other than the library's default is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Departure {
    /// The collective.
    pub collective: Collective,
    /// Message size, in bytes.
    pub bytes: Bytes,
    /// Strategy used: `ring ll128 × 24`.
    #[serde(alias = "taken")]
    pub used: String,
    /// The library's default strategy.
    pub library_default: String,
    /// Predicted gain: time of the default divided by the time of the strategy used, minus one.
    pub predicted_gain: f64,
    /// Lower end of the gain: the default's shortest time divided by the strategy's longest time, minus one, by the
    /// prediction intervals. Negative if the intervals overlap.
    #[serde(alias = "least_gain")]
    pub min_gain: Option<f64>,
    /// Upper end of the gain: the default's longest time divided by the strategy's shortest time, minus one.
    #[serde(alias = "most_gain")]
    pub max_gain: Option<f64>,
    /// Measured gain, if both strategies were measured.
    pub measured_gain: Option<f64>,
}

/// Strategies to compare with the library's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedStrategies {
    /// The plan's selected strategies.
    Picks,
    /// The entries of the plan's NCCL tuner table.
    NcclTable,
}

impl ComparedStrategies {
    fn select_pick<'a>(self, plan: &SavedPlan, row: &'a SavedRow) -> Option<&'a SavedPick> {
        match self {
            Self::Picks => Some(&row.pick),
            Self::NcclTable => {
                let mut picks = row.best_of_library.iter().chain([&row.pick]).chain(&row.library_default);
                picks.find(|pick| nccl_tuner::can_express(plan, row, pick))
            }
        }
    }
}

/// Returns the departures of a plan from the library's default, sorted by collective and size. For NCCL, only
/// collectives whose algorithm a tuner plugin can set are compared. Collectives without rows use the departures saved
/// with the plan ([`SavedPlan::departures`]).
#[must_use]
pub fn departures(plan: &SavedPlan, compared: ComparedStrategies) -> Vec<Departure> {
    let decided = |collective| match plan.library {
        Some(Library::Nccl(_)) => Function::from_collective(collective).is_some(),
        _ => true,
    };
    let row_departures = plan.all_rows().filter(|row| decided(row.collective)).filter_map(|row| {
        let (used, default) = (compared.select_pick(plan, row)?, row.library_default.as_ref()?);
        let parameters = |pick: &SavedPick| (pick.algorithm, pick.protocol, pick.channels);
        (parameters(used) != parameters(default)).then(|| Departure {
            collective: row.collective,
            bytes: row.bytes,
            used: used.to_string(),
            library_default: default.to_string(),
            predicted_gain: gain(default.time_us, used.time_us).unwrap_or(0.0),
            min_gain: default.low_us.zip(used.high_us).and_then(|(default, used)| gain(default, used)),
            max_gain: default.high_us.zip(used.low_us).and_then(|(default, used)| gain(default, used)),
            measured_gain: default.measured_us.zip(used.measured_us).and_then(|(default, used)| gain(default, used)),
        })
    });
    let saved = plan.departures.iter().flatten().filter(|departure| !plan.has_rows(departure.collective)).cloned();
    let mut all: Vec<Departure> = row_departures.chain(saved).collect();
    all.sort_by_key(|departure| (departure.collective, departure.bytes));
    all
}

fn gain(default: f64, used: f64) -> Option<f64> {
    (used > 0.0).then(|| default / used - 1.0)
}
