//! Where a table departs from what the library does by itself, and what that gains.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use super::{SavedPick, SavedPlan, SavedRow, nccl_tuner};
use crate::library::Library;
use crate::library::nccl::Function;

/// A size for which something else is taken than the library's own choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Departure {
    /// The collective.
    pub collective: Collective,
    /// The size.
    pub bytes: Bytes,
    /// What is taken: `ring ll128 × 24`.
    pub taken: String,
    /// What the library takes by itself.
    pub library_default: String,
    /// Predicted: the default's time over that of what is taken, less one.
    pub predicted_gain: f64,
    /// The same between the ends of the two bands that are nearest to each other: below zero where the bands meet.
    pub least_gain: Option<f64>,
    /// The same between the ends that are farthest from each other.
    pub most_gain: Option<f64>,
    /// Measured, where both were.
    pub measured_gain: Option<f64>,
}

/// What is taken: the plan's own picks, or what stands for them in another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The picks.
    Picks,
    /// What tables of NCCL's tuners say.
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

/// The departures of a plan's picks, by collective and size; of NCCL's, those that its tuners decide. Of collectives without rows
/// they are those that the plan was saved with ([`SavedPlan::departures`]).
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
