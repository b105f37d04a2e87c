//! Settings with which the library is predicted to be faster, including calls whose times are as expected.
//!
//! The times with and without a setting are both predicted, for the same machine, so that the error that predictions of a
//! machine have in common cancels. A setting is stated if it gains a tenth or more.

use std::fmt;

use fabricast_libraries::Library;
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Picos};

use super::explanation::sample_evenly;
use super::{CompareError, Compared, ComparisonRequest, Group, profile};
use crate::measured::Row;
use crate::measured::manifest::Measurement;
use crate::measured_strategy::library;
use crate::measurement_simulation::MeasurementSimulation;

/// A setting of the library, and the sizes at which it is predicted to gain.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The setting.
    pub setting: Setting,
    /// Smallest compared size that gains.
    pub min: Bytes,
    /// Largest compared size that gains.
    pub max: Bytes,
    /// Largest predicted gain: time without the setting ÷ time with it.
    pub gain: f64,
}

/// Environment variable of NCCL with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the variable.
    pub variable: &'static str,
    /// Value of the variable.
    pub value: u16,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable, self.value)
    }
}

/// Channels of sends and receives to a peer on another host (NCCL 2.30.7 src/graph/paths.cc).
const CHANNELS_PER_PEER: &str = "NCCL_NCHANNELS_PER_NET_PEER";
/// Numbers of channels per peer that are tried.
const CHANNELS: [u16; 4] = [4, 8, 16, 32];
/// Largest number of sizes that are predicted with each setting.
const MAX_ROWS: usize = 6;
/// Number of simulation events of a setting's sizes after which no further size is predicted.
const MAX_EVENTS: u64 = 500_000;
/// Smallest gain that is stated.
const MIN_GAIN: f64 = 1.1;
/// Smallest part of the largest gain with which a smaller value is preferred.
const ENOUGH: f64 = 0.95;

/// Finds settings with which the calls of a group are predicted to be faster. Settings that the measurement states are
/// left as they are.
pub(super) fn advise(
    request: &ComparisonRequest<'_>,
    group: &Group,
    rows: &[Compared],
) -> Result<Vec<Advice>, CompareError> {
    let first = group.measurements.first().and_then(|&first| request.measurements.get(first));
    let Some(measurement) = first.filter(|measurement| can_gain(measurement)) else { return Ok(Vec::new()) };
    let profile = profile(request, measurement)?;
    let measured = |compared| Some((compared, Compared::measured_row(compared, request.measurements)?));
    let cases: Vec<(&Compared, &Row)> =
        sample_evenly(&group.usable_rows(rows), MAX_ROWS).into_iter().filter_map(measured).collect();
    let described = Predictions::new(measurement, request.routes, &cases, &profile);
    let advice: Vec<Advice> = CHANNELS
        .into_iter()
        .map(|value| Setting { variable: CHANNELS_PER_PEER, value })
        .filter_map(|setting| {
            let mut changed = Measurement { rows: Vec::new(), rejected: Vec::new(), ..measurement.clone() };
            changed.configuration.env.push((setting.variable.to_owned(), setting.value.to_string()));
            gain(setting, &cases, &described, &Predictions::new(&changed, request.routes, &cases, &profile))
        })
        .collect();
    let best = advice.iter().map(|advice| advice.gain).fold(0.0, f64::max);
    Ok(advice.into_iter().find(|advice| advice.gain >= ENOUGH * best).into_iter().collect())
}

/// Predicted times of rows with the library's choice; `None` for rows that cannot be predicted, and for those after
/// [`MAX_EVENTS`].
struct Predictions(Vec<Option<Picos>>);

impl Predictions {
    fn new(measurement: &Measurement, routes: RouteOptions, cases: &[(&Compared, &Row)], profile: &Profile) -> Self {
        let simulation = MeasurementSimulation::new(measurement, routes);
        let strategies = simulation.strategies();
        let mut events = 0u64;
        let predict = |&(_, row): &(&Compared, &Row)| {
            if events > MAX_EVENTS {
                return None;
            }
            let schedule = simulation.schedule(strategies.strategy(row)?, row, profile)?;
            let simulated = simulation.simulate(&*schedule, profile)?;
            events += simulated.events;
            Some(simulated.time)
        };
        Self(cases.iter().map(predict).collect())
    }
}

/// Returns true for sends between hosts whose number of channels NCCL decides.
fn can_gain(measurement: &Measurement) -> bool {
    let configuration = &measurement.configuration;
    matches!(library(measurement), Some(Library::Nccl(_)))
        && configuration.nodes > 1
        && configuration.collective.is_pairwise()
        && configuration.channels.is_none()
        && configuration.env.iter().all(|(name, _)| name != CHANNELS_PER_PEER)
}

/// Gain of a setting; `None` if no row gains.
fn gain(
    setting: Setting,
    cases: &[(&Compared, &Row)],
    described: &Predictions,
    changed: &Predictions,
) -> Option<Advice> {
    let times = described.0.iter().zip(&changed.0);
    let gaining: Vec<(Bytes, f64)> = cases
        .iter()
        .zip(times)
        .filter_map(|(&(compared, _), (&before, &after))| {
            let gain = before?.0 as f64 / after?.0.max(1) as f64;
            (gain >= MIN_GAIN).then_some((compared.bytes, gain))
        })
        .collect();
    let (&(min, _), &(max, _)) = (gaining.first()?, gaining.last()?);
    Some(Advice { setting, min, max, gain: gaining.iter().map(|&(_, gain)| gain).fold(0.0, f64::max) })
}
