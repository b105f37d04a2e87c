//! Settings with which the library is faster, including calls whose times are as expected.
//!
//! The times with and without a setting are both predicted, for the same machine, so that the error that predictions of a
//! machine have in common cancels. A setting is stated if it gains a tenth or more, compared with the predicted time and with
//! the measured one: a gain that the machine already has is no advice.
//!
//! Tried are more channels for sends between hosts, and for other collectives another algorithm or protocol than the
//! library's choice, which the library takes from its own model of the machine.
//!
//! Where the rules of the measured release leave peer access or GPUDirect RDMA off, or the environment forbids rings to
//! change the NIC, the setting that permits them is stated, too. Its gain is relative to the measured time, because the rate
//! of copies through host memory is uncertain; without a predicted gain, only the rule is stated.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::{GpuDirect, PathClass, PeerAccess, RouteOptions};
use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::diagnosis::rules;
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
    /// Largest predicted gain: time without the setting ÷ time with it. `None` if the gain is not predicted and a rule of the
    /// library is the reason for the setting.
    pub gain: Option<f64>,
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
    /// Peer access between GPUs of a host that are connected through a CPU (`NCCL_P2P_LEVEL=SYS`).
    PeerAccessThroughCpu,
    /// GPUDirect RDMA at the distance of the NICs (`NCCL_NET_GDR_LEVEL`).
    GpuDirectAt(PathClass),
    /// Rings that leave a host by another NIC than they entered it (`NCCL_CROSS_NIC=1`).
    CrossNic,
}

impl Setting {
    /// Returns the configuration with this setting.
    fn applied_to(self, configuration: &Configuration) -> Configuration {
        let mut changed = configuration.clone();
        match self {
            Self::ChannelsPerPeer(count) => changed.env.push((CHANNELS_PER_PEER.to_owned(), count.to_string())),
            Self::Choice { algorithm, protocol } => (changed.algorithm, changed.protocol) = (algorithm, protocol),
            Self::PeerAccessThroughCpu | Self::GpuDirectAt(_) | Self::CrossNic => {}
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
            // NVIDIA/nccl issue 1817 and nccl-tests issue 74.
            Self::PeerAccessThroughCpu => {
                Some("peer access through a CPU is slower than host memory on some machines, so compare both")
            }
            // NCCL user guide, NCCL_CROSS_NIC.
            Self::CrossNic => Some("the switches must connect all NICs with each other"),
            _ => None,
        }
    }

    /// Returns the rule of the library that makes the setting necessary; `None` if the library's own choice is reason enough.
    #[must_use]
    pub fn rule(self) -> Option<&'static str> {
        match self {
            Self::ChannelsPerPeer(_) | Self::Choice { .. } => None,
            Self::PeerAccessThroughCpu => {
                Some("by default, this release uses host memory between GPUs that are connected through a CPU")
            }
            Self::GpuDirectAt(_) => {
                Some("by default, this release uses no GPUDirect RDMA at the distance of these NICs")
            }
            Self::CrossNic => Some("NCCL_CROSS_NIC=0 makes each ring leave a host by the NIC that it entered"),
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
            Self::PeerAccessThroughCpu => f.write_str("NCCL_P2P_LEVEL=SYS"),
            Self::GpuDirectAt(PathClass::Sys) => f.write_str("NCCL_NET_GDR_LEVEL=SYS"),
            Self::GpuDirectAt(_) => f.write_str("NCCL_NET_GDR_LEVEL=PHB"),
            Self::CrossNic => f.write_str("NCCL_CROSS_NIC=1"),
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
    let (settings, permissions) = (settings(measurement), permissions(measurement));
    if settings.is_empty() && permissions.is_empty() {
        return Ok(Vec::new());
    }
    let profile = profile(request, measurement)?;
    let measured = |compared| Some((compared, Compared::measured_row(compared, request.measurements)?));
    let cases: Vec<(&Compared, &Row)> =
        sample_evenly(&group.usable_rows(rows), MAX_ROWS).into_iter().filter_map(measured).collect();
    let cache = TimeCache::default();
    let described = Predictions::predict(measurement, request.routes, &cases, &profile, &cache);
    let advice: Vec<Advice> = settings
        .into_par_iter()
        .filter_map(|setting| {
            let configuration = setting.applied_to(&measurement.configuration);
            let changed = Measurement { rows: Vec::new(), rejected: Vec::new(), configuration, ..measurement.clone() };
            let predicted = Predictions::predict(&changed, request.routes, &cases, &profile, &cache);
            gain(setting, &cases, &described, &predicted)
        })
        .collect();
    let best = advice.iter().filter_map(|advice| advice.gain).fold(0.0, f64::max);
    let chosen = advice.into_iter().find(|advice| advice.gain.is_some_and(|gain| gain >= ENOUGH * best));
    let permitted = permissions.into_iter().filter_map(|permission| {
        let Permission { setting, routes } = permission;
        let forbidden = Predictions::new(measurement, routes(request.routes), &cases, &profile);
        permitted_gain(setting, &cases, &forbidden, &described)
    });
    Ok(chosen.into_iter().chain(permitted).collect())
}

/// A setting that permits what a rule of the library forbids.
struct Permission {
    setting: Setting,
    /// Routes under the rule, of those without it.
    routes: fn(RouteOptions) -> RouteOptions,
}

/// Settings that permit what the measured release or the environment forbids, unless the log shows that it is not in
/// effect.
fn permissions(measurement: &Measurement) -> Vec<Permission> {
    let connections = measurement.context.report.connections;
    let mut found = Vec::new();
    // Pairs behind one switch have peer access in any case.
    let is_refuted = connections.peer_access > 0 && connections.host_memory == 0;
    if !is_refuted && rules::ends_peer_access_at_cpu(measurement) {
        let routes = |routes: RouteOptions| RouteOptions { p2p: routes.p2p.max(PeerAccess::Switches), ..routes };
        found.push(Permission { setting: Setting::PeerAccessThroughCpu, routes });
    }
    if let Some(class) = rules::farthest_nic(measurement)
        .filter(|_| connections.gpu_direct == 0 && rules::leaves_gpu_direct_off(measurement))
    {
        let routes = |routes: RouteOptions| RouteOptions { gdr: GpuDirect::Off, ..routes };
        found.push(Permission { setting: Setting::GpuDirectAt(class), routes });
    }
    if rules::forbids_other_nics(measurement) {
        found.push(Permission { setting: Setting::CrossNic, routes: |routes| routes });
    }
    found
}

/// Gain of a setting that permits what a rule forbids, relative to the measured times. If the simulation sees no difference of
/// [`MIN_GAIN`], the setting is stated without a gain. `None` if the measured times leave no room for a gain of [`MIN_GAIN`]; GPUDirect
/// RDMA needs none, because it is better at any rate that host memory reaches (it is the default of later releases).
fn permitted_gain(
    setting: Setting,
    cases: &[(&Compared, &Row)],
    forbidden: &Predictions,
    permitted: &Predictions,
) -> Option<Advice> {
    let over_measured = |(&(compared, _), after): (&(&Compared, &Row), &Option<Picos>)| {
        Some((compared.bytes, compared.measured.0 as f64 / after.as_ref()?.0.max(1) as f64))
    };
    let gains: Vec<(Bytes, f64)> = cases.iter().zip(&permitted.0).filter_map(over_measured).collect();
    let largest = gains.iter().map(|&(_, gain)| gain).fold(0.0, f64::max);
    if largest < MIN_GAIN && !matches!(setting, Setting::GpuDirectAt(_)) {
        return None;
    }
    let range = |gains: &[(Bytes, f64)]| Some((gains.first()?.0, gains.last()?.0));
    if gain(setting, cases, forbidden, permitted).is_some() {
        let gaining: Vec<(Bytes, f64)> = gains.into_iter().filter(|&(_, gain)| gain >= MIN_GAIN).collect();
        let (min, max) = range(&gaining)?;
        return Some(Advice { setting, min, max, gain: Some(largest) });
    }
    let differs = |(before, after): (&Option<Picos>, &Option<Picos>)| match (before, after) {
        (Some(before), Some(after)) => before.0 as f64 >= MIN_GAIN * after.0 as f64,
        _ => false,
    };
    let (min, max) = range(&gains)?;
    (!forbidden.0.iter().zip(&permitted.0).any(differs)).then_some(Advice { setting, min, max, gain: None })
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

/// Times of rows with strategies that were simulated before, by the index of the row. They hold for measurements that
/// differ only in settings that select the strategy.
#[derive(Default)]
struct TimeCache(Mutex<HashMap<(usize, Strategy), Option<RowTime>>>);

/// Simulated time of a row, and the number of events of its simulation.
#[derive(Clone, Copy)]
struct RowTime {
    time: Picos,
    events: u64,
}

impl TimeCache {
    /// Returns a cached time, or the result of `simulate`, which is then cached.
    fn get_or_simulate(
        &self,
        row: usize,
        strategy: Strategy,
        simulate: impl FnOnce() -> Option<RowTime>,
    ) -> Option<RowTime> {
        let key = (row, strategy);
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        cached.unwrap_or_else(|| {
            let simulated = simulate();
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, simulated);
            simulated
        })
    }
}

impl Predictions {
    fn new(measurement: &Measurement, routes: RouteOptions, cases: &[(&Compared, &Row)], profile: &Profile) -> Self {
        Self::predict(measurement, routes, cases, profile, &TimeCache::default())
    }

    /// Predicts rows; a strategy whose time for a row is cached is not simulated again.
    fn predict(
        measurement: &Measurement,
        routes: RouteOptions,
        cases: &[(&Compared, &Row)],
        profile: &Profile,
        cache: &TimeCache,
    ) -> Self {
        let simulation = MeasurementSimulation::new(measurement, routes);
        let strategies = simulation.strategies();
        let mut events = 0u64;
        let predict = |(number, &(_, row)): (usize, &(&Compared, &Row))| {
            if events > MAX_EVENTS {
                return None;
            }
            let strategy = strategies.strategy(row)?;
            let predicted = cache.get_or_simulate(number, strategy, || {
                let schedule = simulation.schedule(strategy, row, profile)?;
                let simulated = simulation.simulate(&*schedule, profile)?;
                Some(RowTime { time: simulated.time, events: simulated.events })
            })?;
            events += predicted.events;
            Some(predicted.time)
        };
        Self(cases.iter().enumerate().map(predict).collect())
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
    Some(Advice { setting, min, max, gain: Some(gaining.iter().map(|&(_, gain)| gain).fold(0.0, f64::max)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_of_a_row_is_simulated_once() {
        let [ring, tree] =
            [Algorithm::Ring, Algorithm::Tree].map(|algorithm| Strategy::new(algorithm, Protocol::Ll, 1));
        let cache = TimeCache::default();
        let mut simulations = 0;
        let mut time = |row, strategy| {
            let simulate = || {
                simulations += 1;
                Some(RowTime { time: Picos(simulations), events: 1 })
            };
            cache.get_or_simulate(row, strategy, simulate).map(|row| row.time.0)
        };
        let times = [time(0, ring), time(0, tree), time(1, ring), time(0, ring), time(1, ring)];
        assert_eq!(times, [Some(1), Some(2), Some(3), Some(1), Some(3)]);
    }
}
