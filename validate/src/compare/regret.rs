//! What picks by prediction cost, by the measured times of the ways that were forced.

use std::collections::HashMap;

use fabricast_topologies::{Bytes, FabricRequest};

use super::Compared;
use crate::measured::manifest::{Configuration, Measurement};

/// How much longer the ways took that the prediction puts first than the fastest ones, as measured; over the calls of
/// which several ways were forced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    /// Calls with a choice.
    pub calls: usize,
    /// Ways that were forced, of all calls.
    pub ways: usize,
    /// Mean of measured(pick) ÷ measured(fastest) − 1.
    pub mean: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// The largest.
    pub worst: f64,
}

/// What the ways of a call have in common.
#[derive(PartialEq)]
struct Call<'a> {
    request: &'a FabricRequest,
    configuration: Configuration,
    bytes: Bytes,
}

/// Of rows whose algorithm and protocol were forced; `None` where no call was done in several ways.
pub(super) fn regret(measurements: &[Measurement], rows: &[Compared]) -> Option<Regret> {
    let mut calls: Vec<(Call<'_>, Vec<&Compared>)> = Vec::new();
    // Numbers of the calls of each size, of which logs have many.
    let mut by_size: HashMap<Bytes, Vec<usize>> = HashMap::new();
    for row in rows {
        let Some(measurement) = measurements.get(row.measurement) else { continue };
        let forced = &measurement.configuration;
        if forced.algorithm.is_none() || forced.protocol.is_none() {
            continue;
        }
        let configuration = Configuration { algorithm: None, protocol: None, channels: None, ..forced.clone() };
        let call = Call { request: &measurement.request, configuration, bytes: row.bytes };
        let of_size = by_size.entry(row.bytes).or_default();
        let known = of_size.iter().copied().find(|&number| calls.get(number).is_some_and(|(known, _)| *known == call));
        match known.and_then(|number| calls.get_mut(number)) {
            Some((_, ways)) => ways.push(row),
            None => {
                of_size.push(calls.len());
                calls.push((call, vec![row]));
            }
        }
    }
    let several = |ways: &&Vec<&Compared>| ways.windows(2).any(|pair| pair[0].strategy != pair[1].strategy);
    let (mut regrets, mut count) = (Vec::new(), 0);
    for ways in calls.iter().map(|(_, ways)| ways).filter(several) {
        let pick = ways.iter().min_by_key(|way| (way.predicted, way.strategy))?;
        let fastest = ways.iter().map(|way| way.measured).min()?;
        regrets.push(pick.measured.0 as f64 / fastest.0.max(1) as f64 - 1.0);
        count += ways.len();
    }
    regrets.sort_unstable_by(f64::total_cmp);
    let calls = regrets.len();
    let p90 = regrets.get((calls * 9).div_ceil(10).checked_sub(1)?).copied()?;
    let mean = regrets.iter().sum::<f64>() / calls as f64;
    Some(Regret { calls, ways: count, mean, p90, worst: regrets.last().copied()? })
}
