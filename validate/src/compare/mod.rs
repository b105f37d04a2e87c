//! Comparison of predictions with measurements: errors, expected scatter and possible explanations.
//!
//! [`compare`] predicts every row of every measurement with the strategy that was forced, or with the choice of a
//! [`LibraryChoice`]. Neighbouring sizes share a [`RangeFinding`]: as expected, slow or fast. For slow groups, faults and
//! settings are simulated and ranked by the likelihood of the measured times ([`RankedCause`]). An [`Explanation`]
//! names the profile parameter whose change would explain the error of a group, with the factor.

mod advice;
mod choice;
mod diagnosis;
mod explanation;
pub mod gate;
mod group;
mod knob;
mod outlier;
mod predict;
mod range;
mod regret;
mod slow;
mod statistics;
mod verdict;

use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::{Busiest, PlanError};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Profile, ProfileError, Software};
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Picos, SourceLocation};
use rayon::prelude::*;

pub use advice::{Advice, Setting};
pub use choice::{ChoiceRequest, FastestPlanned, LibraryChoice, has_unpredicted_rccl};
pub use diagnosis::{Basis, Cause, Extent, KnownDefect, PcieDevice, RankedCause, Slowdown};
pub use explanation::Explanation;
pub use group::Group;
pub use knob::ProfileParameter;
pub use range::{RangeFinding, SizeRange};
pub use regret::Regret;
pub use statistics::{Coverage, Summary};
pub use verdict::Verdict;

use crate::measured::manifest::Measurement;
use crate::measured::{LibraryName, Row};
use crate::measurement_simulation::MeasurementSimulation;
use predict::Predictor;

/// Input of a comparison.
#[derive(Clone, Copy)]
pub struct ComparisonRequest<'a> {
    /// Measurements to compare with predictions.
    pub measurements: &'a [Measurement],
    /// Profile for all predictions; `None` to use the best match for each fabric.
    pub profile: Option<&'a Profile>,
    /// Model of the choices that measurements leave to the library.
    pub choice: &'a dyn LibraryChoice,
    /// Options of the routes between GPUs.
    pub routes: RouteOptions,
    /// Explanations of deviating groups, on or off.
    pub explanations: Explanations,
    /// Monitor of the comparison, which counts predicted rows, and groups once for each of the three searches.
    pub monitor: Monitor<'a>,
}

/// Search for explanations of groups that deviate as a whole. The search needs more simulations than the predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explanations {
    /// Groups are explained.
    #[default]
    Wanted,
    /// Groups are not explained.
    None,
}

/// A row with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Index of the measurement in [`ComparisonRequest::measurements`].
    pub measurement: usize,
    /// Line of the row in its log, from 1.
    pub line: u32,
    /// Message size as defined by nccl-tests.
    pub bytes: Bytes,
    /// Strategy that the prediction assumes.
    pub strategy: Strategy,
    /// Measured time of a call.
    pub measured: Picos,
    /// Predicted time of a call.
    pub predicted: Picos,
    /// Lower end of the prediction interval.
    pub low: Picos,
    /// Upper end of the prediction interval.
    pub high: Picos,
    /// Nearest time that is consistent with the rows of the next smaller and larger sizes, if the row is an outlier:
    /// its measured time differs from this time by more than a quarter. `None` for other rows.
    pub outlier: Option<Picos>,
    /// Slowdown of the row, measured ÷ predicted − 1, if all sizes of its group are slower by the same factor.
    pub slow: Option<f64>,
    /// Resource with the highest utilization in the simulation of the prediction.
    pub busiest: Option<Busiest>,
}

impl Compared {
    /// Bus bandwidth for a time of this row, in GB/s. `factor`: bus bandwidth ÷ algorithm bandwidth of the collective.
    #[must_use]
    pub fn bus_bandwidth(&self, time: Picos, factor: f64) -> f64 {
        range::bus_bandwidth(self.bytes, time, factor)
    }

    /// The measured row that was compared; `None` if `measurements` are not those of the comparison.
    fn measured_row<'a>(&self, measurements: &'a [Measurement]) -> Option<&'a Row> {
        measurements.get(self.measurement)?.rows.iter().find(|row| row.line == self.line)
    }

    /// Relative error of the prediction: predicted ÷ measured − 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted.0 as f64 / self.measured.0.max(1) as f64 - 1.0
    }

    /// Verdict on the measured time against the prediction interval.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (Verdict::classify(self.measured, self.low, self.high), self.slow) {
            (Verdict::Expected, Some(by)) => Verdict::Slow { slowdown: by },
            (verdict, _) => verdict,
        }
    }

    /// Returns true if the measured time lies inside the interval of its prediction.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.measured >= self.low && self.measured <= self.high
    }
}

/// Measurements with their predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// All rows, in the order of the measurements and their logs.
    pub rows: Vec<Compared>,
    /// Groups of rows of one configuration, in the order of first appearance.
    pub groups: Vec<Group>,
    /// Error statistics of all rows.
    pub summary: Summary,
    /// Error statistics of the rows that are not outliers.
    pub without_outliers: Summary,
    /// Coverage of the rows by their prediction intervals.
    pub coverage: Coverage,
    /// Slowdown that results if the strategy of each call is selected by predicted time, relative to the fastest forced
    /// strategy of the measurements. `None` if no call was measured with several forced strategies.
    pub regret: Option<Regret>,
    /// Name of the profile used for each measurement.
    pub profiles: Vec<String>,
}

/// Reason that a comparison is impossible.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompareError {
    /// The measurements have no usable row.
    #[error("nothing to compare: no row of the measurements can be used")]
    NoRows,
    /// No profile fits the fabric.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A row cannot be predicted.
    #[error("{location}: {source}")]
    Plan {
        /// Source location of the measurement's description.
        location: SourceLocation,
        /// Cause of the failure.
        source: Box<PlanError>,
    },
    /// The comparison was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// Compares measurements with predictions. Measurements are processed in parallel on the current rayon pool; the
/// result does not depend on the number of threads.
///
/// # Errors
/// [`CompareError`]: nothing to compare, a row that cannot be predicted, or an interruption.
pub fn compare(request: &ComparisonRequest<'_>) -> Result<Comparison, CompareError> {
    let monitor = request.monitor;
    monitor.add_total(request.measurements.iter().map(|measurement| measurement.rows.len()).sum());
    let results: Vec<Result<(Vec<Compared>, String), CompareError>> = request
        .measurements
        .par_iter()
        .enumerate()
        .map(|(number, measurement)| {
            if monitor.is_interrupted() {
                return Err(CompareError::Interrupted);
            }
            let profile = profile(request, measurement)?;
            let predictor = Predictor::new(MeasurementSimulation::new(measurement, request.routes), &profile);
            let rows = predictor.rows(number, request.choice).map_err(|source| CompareError::Plan {
                location: measurement.location.clone(),
                source: Box::new(source),
            })?;
            monitor.add_done(measurement.rows.len());
            Ok((rows, profile.name))
        })
        .collect();
    let (mut rows, mut profiles) = (Vec::new(), Vec::new());
    for result in results {
        let (more, profile) = result?;
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
        group.setting = first.and_then(|first| slow::setting(first, group));
    }
    if request.explanations == Explanations::Wanted {
        monitor.add_total(3 * groups.len());
        let explained: Vec<Option<Explanation>> =
            search_groups(monitor, &groups, |group| explanation::explain(request, group, &rows))?;
        let causes: Vec<Vec<RankedCause>> =
            search_groups(monitor, &groups, |group| diagnosis::causes(request, group, &rows))?;
        let advice: Vec<Vec<Advice>> = search_groups(monitor, &groups, |group| advice::advise(request, group, &rows))?;
        for (((group, explanation), causes), advice) in groups.iter_mut().zip(explained).zip(causes).zip(advice) {
            // The choices of a machine with a fault are not those that were predicted for the machine as described.
            let has_fault = causes.first().is_some_and(RankedCause::is_established);
            let applies = |advice: &Advice| !has_fault || matches!(advice.setting, Setting::ChannelsPerPeer(_));
            let advice = advice.into_iter().filter(applies).collect();
            (group.explanation, group.causes, group.advice) = (explanation, causes, advice);
        }
    }
    Ok(Comparison {
        summary: Summary::from_errors(rows.iter().map(Compared::error)),
        without_outliers: Summary::from_errors(rows.iter().filter(|row| row.outlier.is_none()).map(Compared::error)),
        coverage: Coverage::count(rows.iter().map(Compared::is_inside)),
        regret: regret::regret(request.measurements, &rows),
        groups,
        rows,
        profiles,
    })
}

/// Calls `search` with each group, in parallel.
///
/// # Errors
/// [`CompareError`] of the search, or an interruption.
fn search_groups<T: Send, E: Send + Into<CompareError>>(
    monitor: Monitor<'_>,
    groups: &[Group],
    search: impl Fn(&Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, CompareError> {
    let search = |group| {
        if monitor.is_interrupted() {
            return Err(CompareError::Interrupted);
        }
        let found = search(group).map_err(Into::into);
        monitor.add_done(1);
        found
    };
    groups.par_iter().map(search).collect()
}

fn profile(request: &ComparisonRequest<'_>, measurement: &Measurement) -> Result<Profile, ProfileError> {
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
