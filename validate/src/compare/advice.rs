//! Settings with which the library is predicted to be faster, including calls whose times are as expected.
//!
//! The times with and without a setting are both predicted, for the same machine, so that the error that predictions of a
//! machine have in common cancels. A setting is stated if it gains a tenth or more, compared with the predicted time and with
//! the measured one: a gain that the machine already has is no advice.
//!
//! Tried are more channels for sends between hosts, and for other collectives another algorithm or protocol than the
//! library's choice, which the library takes from its own model of the machine.

use std::fmt;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_libraries::Library;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::RouteOptions;
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::explanation::sample_evenly;
use super::{CompareError, Compared, ComparisonRequest, Group, has_unpredicted_rccl, profile};
use crate::measured::Row;
use crate::measured::manifest::{Configuration, Measurement};
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

/// Setting of NCCL or RCCL by environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Number of channels of sends and receives to a peer on another host (`NCCL_NCHANNELS_PER_NET_PEER`).
    ChannelsPerPeer(u16),
    /// Another algorithm or protocol than the library's choice (`NCCL_ALGO`, `NCCL_PROTO`).
    Choice {
        /// Algorithm; `None`: chosen by the library.
        algorithm: Option<Algorithm>,
        /// Protocol; `None`: chosen by the library.
        protocol: Option<Protocol>,
    },
}

impl Setting {
    /// Returns the configuration with this setting.
    fn applied_to(self, configuration: &Configuration) -> Configuration {
        let mut changed = configuration.clone();
        match self {
            Self::ChannelsPerPeer(count) => changed.env.push((CHANNELS_PER_PEER.to_owned(), count.to_string())),
            Self::Choice { algorithm, protocol } => (changed.algorithm, changed.protocol) = (algorithm, protocol),
        }
        changed
    }

    /// Returns what must be checked before the setting is used; `None` if nothing.
    #[must_use]
    pub fn caution(self) -> Option<&'static str> {
        match self {
            // User guide of NCCL 2.28, NCCL_PROTO.
            Self::Choice { protocol: Some(Protocol::Ll128), .. } => Some(
                "LL128 corrupts data on machines whose stores of 128 bytes are not atomic, so check results (nccl-tests -c 1)",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ChannelsPerPeer(count) => write!(f, "{CHANNELS_PER_PEER}={count}"),
            Self::Choice { algorithm, protocol } => {
                // NCCL ignores case and knows no underscores.
                let variables = [
                    algorithm.map(|algorithm| format!("NCCL_ALGO={}", algorithm.name().replace('_', ""))),
                    protocol.map(|protocol| format!("NCCL_PROTO={}", protocol.name().to_uppercase())),
                ];
                f.write_str(&variables.into_iter().flatten().collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// Channels of sends and receives to a peer on another host (NCCL 2.30.7 src/graph/paths.cc).
const CHANNELS_PER_PEER: &str = "NCCL_NCHANNELS_PER_NET_PEER";
/// Numbers of channels per peer that are tried.
const CHANNELS: [u16; 4] = [4, 8, 16, 32];
/// Algorithms and protocols that are tried, of those that a user can set for all collectives. NVLS needs no setting where it
/// is available.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Ring, Algorithm::Tree];
const PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];
/// Largest number of sizes that are predicted with each setting.
const MAX_ROWS: usize = 6;
/// Number of simulation events of a setting's sizes after which no further size is predicted.
const MAX_EVENTS: u64 = 500_000;
/// Smallest gain that is stated.
const MIN_GAIN: f64 = 1.1;
/// Smallest part of the largest gain with which an earlier setting is preferred.
const ENOUGH: f64 = 0.95;

/// Finds settings with which the calls of a group are predicted to be faster. Settings that the measurement states are
/// left as they are.
pub(super) fn advise(
    request: &ComparisonRequest<'_>,
    group: &Group,
    rows: &[Compared],
) -> Result<Vec<Advice>, CompareError> {
    let first = group.measurements.first().and_then(|&first| request.measurements.get(first));
    let Some(measurement) = first else { return Ok(Vec::new()) };
    let settings = settings(measurement);
    if settings.is_empty() {
        return Ok(Vec::new());
    }
    let profile = profile(request, measurement)?;
    let measured = |compared| Some((compared, Compared::measured_row(compared, request.measurements)?));
    let cases: Vec<(&Compared, &Row)> =
        sample_evenly(&group.usable_rows(rows), MAX_ROWS).into_iter().filter_map(measured).collect();
    let described = Predictions::new(measurement, request.routes, &cases, &profile);
    let advice: Vec<Advice> = settings
        .into_par_iter()
        .filter_map(|setting| {
            let configuration = setting.applied_to(&measurement.configuration);
            let changed = Measurement { rows: Vec::new(), rejected: Vec::new(), configuration, ..measurement.clone() };
            gain(setting, &cases, &described, &Predictions::new(&changed, request.routes, &cases, &profile))
        })
        .collect();
    let best = advice.iter().map(|advice| advice.gain).fold(0.0, f64::max);
    Ok(advice.into_iter().find(|advice| advice.gain >= ENOUGH * best).into_iter().collect())
}

/// Settings that are tried, the simplest ones first.
fn settings(measurement: &Measurement) -> Vec<Setting> {
    let configuration = &measurement.configuration;
    let is_stated = |variable: &str| configuration.env.iter().any(|(name, _)| name == variable);
    let library = library(measurement);
    if configuration.collective.is_pairwise() {
        let can_gain = matches!(library, Some(Library::Nccl(_)))
            && configuration.nodes > 1
            && configuration.channels.is_none()
            && !is_stated(CHANNELS_PER_PEER);
        return if can_gain { CHANNELS.map(Setting::ChannelsPerPeer).into() } else { Vec::new() };
    }
    let is_predicted =
        matches!(library, Some(Library::Nccl(_) | Library::Rccl(_))) && !has_unpredicted_rccl(measurement);
    let is_forced = configuration.algorithm.is_some()
        || configuration.protocol.is_some()
        || ["NCCL_ALGO", "NCCL_PROTO"].into_iter().any(is_stated);
    if !is_predicted || is_forced {
        return Vec::new();
    }
    let choice = |algorithm, protocol| Setting::Choice { algorithm, protocol };
    let protocols = PROTOCOLS.map(Some).map(|protocol| choice(None, protocol));
    let algorithms = ALGORITHMS.map(Some).map(|algorithm| choice(algorithm, None));
    protocols.into_iter().chain(algorithms).collect()
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
            let after = after?.0.max(1) as f64;
            let gain = before?.0 as f64 / after;
            let is_faster_than_measured = compared.measured.0 as f64 >= MIN_GAIN * after;
            (gain >= MIN_GAIN && is_faster_than_measured).then_some((compared.bytes, gain))
        })
        .collect();
    let (&(min, _), &(max, _)) = (gaining.first()?, gaining.last()?);
    Some(Advice { setting, min, max, gain: gaining.iter().map(|&(_, gain)| gain).fold(0.0, f64::max) })
}
