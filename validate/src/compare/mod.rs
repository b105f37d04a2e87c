//! Predicted against measured: how far off, whether that was to be expected, and what would explain it.
//!
//! [`compare`] predicts every row of every measurement with the strategy that was forced, or with what a
//! [`LibraryChoice`] narrows the choice to; an [`Explanation`] says which figure of the profile would have
//! to differ, and by how much.

mod choice;
mod explanation;
mod group;
mod knob;
mod outlier;
mod predict;
mod regret;
mod slow;
mod verdict;

use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_planner::plan::{Busiest, PlanError};
use fabricast_planner::strategy::Strategy;
use fabricast_sim::profile::{Profile, ProfileError, Software};
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Picos, Place};
use rayon::prelude::*;

pub use choice::{LibraryChoice, PlansPick, Question, is_rccl};
pub use explanation::Explanation;
pub use group::{Coverage, Group, Summary};
pub use knob::Knob;
pub use regret::Regret;
pub use slow::Cause;
pub use verdict::Verdict;

use crate::measured::LibraryName;
use crate::measured::manifest::Measurement;
use crate::rerun::Rerun;
use predict::Stage;

/// What to compare, and with what.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The measurements.
    pub measurements: &'a [Measurement],
    /// The profile; `None`: for each fabric the nearest.
    pub profile: Option<&'a Profile>,
    /// What libraries choose where measurements leave it to them.
    pub choice: &'a dyn LibraryChoice,
    /// How traffic travels.
    pub routes: RouteOptions,
    /// Whether groups that are off are explained.
    pub explanations: Explanations,
    /// Counts the rows done.
    pub rows_done: Option<&'a AtomicUsize>,
}

/// Whether groups that are off as a whole are explained, which takes more runs than predicting them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explanations {
    /// They are.
    #[default]
    Wanted,
    /// They are not.
    None,
}

/// A row beside its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which measurement, by number.
    pub measurement: usize,
    /// The row's line in its log.
    pub line: u32,
    /// nccl-tests' size.
    pub bytes: Bytes,
    /// The strategy that was predicted.
    pub strategy: Strategy,
    /// As measured.
    pub measured: Picos,
    /// As predicted.
    pub predicted: Picos,
    /// Lower end of the prediction's band.
    pub low: Picos,
    /// Upper end.
    pub high: Picos,
    /// The time nearest to its own that its neighbours in size allow, where it is more than a quarter off from that: an
    /// outlier of the measurement.
    pub outlier: Option<Picos>,
    /// measured ÷ predicted − 1, where all sizes of its group are slower alike.
    pub slow: Option<f64>,
    /// What the prediction uses most.
    pub busiest: Option<Busiest>,
}

impl Compared {
    /// predicted ÷ measured − 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted.0 as f64 / self.measured.0.max(1) as f64 - 1.0
    }

    /// Whether the measurement is what was to be expected.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (Verdict::of(self.measured, self.low, self.high), self.slow) {
            (Verdict::Expected, Some(by)) => Verdict::Slow { by },
            (verdict, _) => verdict,
        }
    }

    /// Returns true if the measured time lies inside the interval of its prediction.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.measured >= self.low && self.measured <= self.high
    }
}

/// Measurements beside their predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// All rows, in the order of the measurements and their logs.
    pub rows: Vec<Compared>,
    /// Rows of one configuration each, in the order in which they first come.
    pub groups: Vec<Group>,
    /// Over all rows.
    pub summary: Summary,
    /// Over those that are no outliers of the measurement.
    pub smooth: Summary,
    /// How many rows lie inside the intervals of their predictions.
    pub coverage: Coverage,
    /// What the picks cost among ways that were forced.
    pub regret: Option<Regret>,
    /// The profiles used, by measurement.
    pub profiles: Vec<String>,
}

/// Why there is no comparison.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompareError {
    /// The measurements have no row that can be used.
    #[error("nothing to compare: no row of the measurements can be used")]
    NoRows,
    /// No profile fits.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A row cannot be predicted.
    #[error("{place}: {source}")]
    Plan {
        /// Where the measurement is described.
        place: Place,
        /// Why.
        source: Box<PlanError>,
    },
}

/// Compares. Measurements are independent and run on all threads of the current rayon pool; the result does not depend on
/// their number.
///
/// # Errors
/// [`CompareError`]: nothing to compare, or a row that cannot be predicted.
pub fn compare(request: &Request<'_>) -> Result<Comparison, CompareError> {
    let found: Vec<Result<(Vec<Compared>, String), CompareError>> = request
        .measurements
        .par_iter()
        .enumerate()
        .map(|(number, measurement)| {
            let profile = profile(request, measurement)?;
            let stage = Stage::new(Rerun::new(measurement, request.routes), &profile);
            let rows = stage
                .rows(number, request.choice)
                .map_err(|source| CompareError::Plan { place: measurement.place.clone(), source: Box::new(source) })?;
            if let Some(done) = request.rows_done {
                done.fetch_add(rows.len(), Ordering::Relaxed);
            }
            Ok((rows, profile.name))
        })
        .collect();
    let (mut rows, mut profiles) = (Vec::new(), Vec::new());
    for found in found {
        let (more, profile) = found?;
        rows.extend(more);
        profiles.push(profile);
    }
    if rows.is_empty() {
        return Err(CompareError::NoRows);
    }
    outlier::mark(&mut rows);
    slow::mark(&group::groups(request.measurements, &rows), &mut rows);
    let mut groups = group::groups(request.measurements, &rows);
    for group in &mut groups {
        let first = group.measurements.first().and_then(|&first| request.measurements.get(first));
        group.cause = first.and_then(|first| slow::cause(first, group));
    }
    if request.explanations == Explanations::Wanted {
        let explained: Vec<Option<Explanation>> =
            groups.par_iter().map(|group| explanation::explain(request, group, &rows)).collect::<Result<_, _>>()?;
        for (group, explanation) in groups.iter_mut().zip(explained) {
            group.explanation = explanation;
        }
    }
    Ok(Comparison {
        summary: Summary::of(rows.iter().map(Compared::error)),
        smooth: Summary::of(rows.iter().filter(|row| row.outlier.is_none()).map(Compared::error)),
        coverage: Coverage::of(rows.iter().map(Compared::is_inside)),
        regret: regret::regret(request.measurements, &rows),
        groups,
        rows,
        profiles,
    })
}

fn profile(request: &Request<'_>, measurement: &Measurement) -> Result<Profile, ProfileError> {
    match request.profile {
        Some(profile) => Ok(profile.clone()),
        None => {
            let software = match measurement.configuration.library.as_ref().map(|library| library.name) {
                Some(LibraryName::Fabricast) => Software::Kernels,
                Some(LibraryName::OpenMpi) => Software::Mpi,
                _ => Software::Nccl,
            };
            Profile::nearest(&measurement.fabric, software)
        }
    }
}
