//! Sizes at which a table differs from the library's default, and the gain there.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use super::{SavedPick, SavedPlan, SavedRow, nccl_tuner};
use crate::library::Library;
use crate::library::nccl::Function;

/// Message size for which a strategy other than the library's default is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Departure {
    /// The collective.
    pub collective: Collective,
    /// Message size.
    pub bytes: Bytes,
    /// Strategy used: `ring ll128 × 24`.
    pub taken: String,
    /// The library's default strategy.
    pub library_default: String,
    /// Predicted gain: time of the default divided by the time of the strategy used, minus one.
    pub predicted_gain: f64,
    /// Lower end of the gain, from the prediction interval ends that are nearest to each other. Negative if the
    /// intervals overlap.
    pub least_gain: Option<f64>,
    /// Upper end of the gain, from the interval ends that are farthest apart.
    pub most_gain: Option<f64>,
    /// Measured gain, if both strategies were measured.
    pub measured_gain: Option<f64>,
}

/// Strategies to compare with the library's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The plan's selected strategies.
    Picks,
    /// The entries of the plan's NCCL tuner table.
    NcclTable,
}

impl Taken {
    fn of<'a>(self, plan: &SavedPlan, row: &'a SavedRow) -> Option<&'a SavedPick> {
        match self {
            Self::Picks => Some(&row.pick),
            Self::NcclTable => {
                let mut all = row.best_of_library.iter().chain([&row.pick]).chain(&row.library_default);
                all.find(|pick| nccl_tuner::says(plan, row, pick))
            }
        }
    }
}

/// Returns the departures of a plan from the library's default, by collective and size. For NCCL, only collectives that
/// its tuners decide are compared. Collectives without rows use the departures saved with the plan
/// ([`SavedPlan::departures`]).
#[must_use]
pub fn departures(plan: &SavedPlan, what: Taken) -> Vec<Departure> {
    let decided = |collective| match plan.library {
        Some(Library::Nccl(_)) => Function::of(collective).is_some(),
        _ => true,
    };
    let of_rows = plan.all_rows().filter(|row| decided(row.collective)).filter_map(|row| {
        let (taken, default) = (what.of(plan, row)?, row.library_default.as_ref()?);
        let same = |pick: &SavedPick| (pick.algorithm, pick.protocol, pick.channels);
        (same(taken) != same(default)).then(|| Departure {
            collective: row.collective,
            bytes: row.bytes,
            taken: taken.to_string(),
            library_default: default.to_string(),
            predicted_gain: gain(default.time_us, taken.time_us).unwrap_or(0.0),
            least_gain: default.low_us.zip(taken.high_us).and_then(|(default, taken)| gain(default, taken)),
            most_gain: default.high_us.zip(taken.low_us).and_then(|(default, taken)| gain(default, taken)),
            measured_gain: default.measured_us.zip(taken.measured_us).and_then(|(default, taken)| gain(default, taken)),
        })
    });
    let saved = plan.departures.iter().flatten().filter(|one| !plan.has_rows(one.collective)).cloned();
    let mut all: Vec<Departure> = of_rows.chain(saved).collect();
    all.sort_by_key(|one| (one.collective, one.bytes));
    all
}

fn gain(default: f64, taken: f64) -> Option<f64> {
    (taken > 0.0).then(|| default / taken - 1.0)
}
