//! A run in a few figures: how well it was predicted, what the picks cost, and how much faster our ways are than NCCL's.

use std::collections::BTreeMap;

use fabricast_topologies::Picos;
use serde::Serialize;

use super::answer::{By, Row};

/// The figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Our ways: predicted ÷ measured − 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
    /// NCCL's forced ways, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_error: Option<Error>,
    /// The way predicted to be the fastest of each call, against the fastest measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pick: Option<Pick>,
    /// The fastest of our ways against NCCL.
    against: Vec<Against>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Error {
    rows: usize,
    /// Of absolute values.
    median: f64,
    p90: f64,
    bias: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pick {
    /// Calls with a choice.
    calls: usize,
    /// measured(pick) ÷ measured(fastest) − 1.
    mean: f64,
    worst: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Against {
    executor: &'static str,
    calls: usize,
    /// Of theirs ÷ ours.
    geometric_mean: f64,
    worst: f64,
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        let mut calls: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.graph().is_some()) {
            calls.entry(row.call()).or_default().push(row);
        }
        let against = [By::Nccl, By::NcclSymmetric, By::NcclForced];
        Self {
            error: error(rows.iter().filter(|row| row.by.is_ours())),
            forced_error: error(rows.iter().filter(|row| row.by == By::NcclForced)),
            pick: pick(calls.values()),
            against: against.into_iter().filter_map(|by| beside(by, calls.values())).collect(),
        }
    }

    /// In sentences.
    pub(super) fn lines(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let error = |what: &str, error: &Error| {
            let Error { rows, median, p90, bias } = error;
            format!(
                "{what}: {rows} rows, error {} median, {} of nine in ten, bias {}",
                percent(*median),
                percent(*p90),
                percent(*bias)
            )
        };
        let mut lines = Vec::new();
        lines.extend(self.error.as_ref().map(|one| error("predicted, our ways", one)));
        lines.extend(self.forced_error.as_ref().map(|one| error("predicted, NCCL forced", one)));
        lines.extend(self.pick.map(|Pick { calls, mean, worst }| {
            format!(
                "picked by prediction: {calls} calls, {} over the fastest (mean), {} (worst)",
                percent(mean),
                percent(worst)
            )
        }));
        lines.extend(self.against.iter().map(|Against { executor, calls, geometric_mean, worst }| {
            format!("{executor} ÷ ours: {calls} calls, {geometric_mean:.2} (geometric mean), {worst:.2} (worst)")
        }));
        lines
    }
}

fn error<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<Error> {
    let of = |row: &Row| Some(row.predicted.as_ref()?.time.us() / row.graph()?.us() - 1.0);
    let errors: Vec<f64> = rows.filter_map(of).collect();
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let at = |part: usize| sizes.get((sizes.len() * part).div_ceil(10).checked_sub(1)?).copied();
    Some(Error {
        rows: errors.len(),
        median: at(5)?,
        p90: at(9)?,
        bias: errors.iter().sum::<f64>() / errors.len() as f64,
    })
}

fn pick<'a>(calls: impl Iterator<Item = &'a Vec<&'a Row>>) -> Option<Pick> {
    let mut regrets = Vec::new();
    for call in calls {
        let ours: Vec<(Picos, Picos)> = call
            .iter()
            .filter(|row| row.by.is_ours())
            .filter_map(|row| Some((row.predicted.as_ref()?.time, row.graph()?)))
            .collect();
        if let (true, Some(pick), Some(best)) =
            (ours.len() > 1, ours.iter().min(), ours.iter().map(|times| times.1).min())
        {
            regrets.push(pick.1.us() / best.us() - 1.0);
        }
    }
    let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
    Some(Pick { calls: regrets.len(), mean, worst: regrets.into_iter().max_by(f64::total_cmp)? })
}

fn beside<'a>(by: By, calls: impl Iterator<Item = &'a Vec<&'a Row>>) -> Option<Against> {
    let least = |call: &[&Row], of: &dyn Fn(By) -> bool| {
        call.iter().filter(|row| of(row.by)).filter_map(|row| row.graph()).min()
    };
    let ratios: Vec<f64> =
        calls.filter_map(|call| Some(least(call, &|one| one == by)?.us() / least(call, &By::is_ours)?.us())).collect();
    let worst = ratios.iter().copied().min_by(f64::total_cmp)?;
    let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
    Some(Against { executor: by.name(), calls: ratios.len(), geometric_mean: mean.exp(), worst })
}
