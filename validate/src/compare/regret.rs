//! Slowdown from selecting strategies by prediction, computed from the measured times of forced strategies.

use std::collections::HashMap;

use fabricast_topologies::{Bytes, FabricRequest};

use super::Compared;
use crate::measured::manifest::{Configuration, Measurement};

/// Slowdown of the strategies predicted to be the fastest, relative to the fastest measured strategy of the same call.
/// Only calls that were measured with several forced strategies are included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    /// Number of calls with several strategies.
    pub calls: usize,
    /// Number of rows of these calls, each with a forced strategy.
    pub strategies: usize,
    /// Mean slowdown: measured time of the predicted best strategy ÷ shortest measured time − 1.
    pub mean: f64,
    /// 90th percentile of the slowdowns.
    pub p90: f64,
    /// Largest slowdown.
    pub worst: f64,
}

/// Properties that identify a call, regardless of its strategy.
#[derive(PartialEq)]
struct CallKey<'a> {
    request: &'a FabricRequest,
    configuration: Configuration,
    bytes: Bytes,
}

/// Slowdown over the rows whose algorithm and protocol were forced; `None` if no call was measured with several
/// strategies.
pub(super) fn regret(measurements: &[Measurement], rows: &[Compared]) -> Option<Regret> {
    let mut calls: Vec<(CallKey<'_>, Vec<&Compared>)> = Vec::new();
    // Indices of the calls by size, because logs have many calls of each size.
    let mut by_size: HashMap<Bytes, Vec<usize>> = HashMap::new();
    for row in rows {
        let Some(measurement) = measurements.get(row.measurement) else { continue };
        let forced = &measurement.configuration;
        if forced.algorithm.is_none() || forced.protocol.is_none() {
            continue;
        }
        let configuration = Configuration { algorithm: None, protocol: None, channels: None, ..forced.clone() };
        let call = CallKey { request: &measurement.request, configuration, bytes: row.bytes };
        let same_size = by_size.entry(row.bytes).or_default();
        let existing =
            same_size.iter().copied().find(|&number| calls.get(number).is_some_and(|(existing, _)| *existing == call));
        match existing.and_then(|number| calls.get_mut(number)) {
            Some((_, results)) => results.push(row),
            None => {
                same_size.push(calls.len());
                calls.push((call, vec![row]));
            }
        }
    }
    let compares_strategies =
        |results: &&Vec<&Compared>| results.windows(2).any(|pair| pair[0].strategy != pair[1].strategy);
    let (mut regrets, mut count) = (Vec::new(), 0);
    for results in calls.iter().map(|(_, results)| results).filter(compares_strategies) {
        let pick = results.iter().min_by_key(|result| (result.predicted, result.strategy))?;
        let fastest = results.iter().map(|result| result.measured).min()?;
        regrets.push(pick.measured.0 as f64 / fastest.0.max(1) as f64 - 1.0);
        count += results.len();
    }
    regrets.sort_unstable_by(f64::total_cmp);
    let calls = regrets.len();
    let p90 = regrets.get((calls * 9).div_ceil(10).checked_sub(1)?).copied()?;
    let mean = regrets.iter().sum::<f64>() / calls as f64;
    Some(Regret { calls, strategies: count, mean, p90, worst: regrets.last().copied()? })
}
