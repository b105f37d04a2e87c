//! Statistics of a run: prediction errors, slowdown of the strategies predicted to be the fastest, and speed-up over
//! NCCL.

use std::collections::BTreeMap;

use fabricast_sim::profile::Launch;
use fabricast_topologies::Picos;
use schemars::JsonSchema;
use serde::Serialize;

use super::row::{ExecutorKind, RunRow};

/// Statistics of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(super) struct Summary {
    /// Prediction errors of fabricast's executors: predicted ÷ measured − 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
    /// Prediction errors of NCCL's forced strategies.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_error: Option<Error>,
    /// Slowdown of the strategy predicted to be the fastest, relative to the fastest measured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pick: Option<Pick>,
    /// Comparison of fabricast's fastest executors with NCCL.
    references: Vec<ReferenceComparison>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
struct Error {
    /// Number of rows.
    rows: usize,
    /// Median of the absolute errors.
    median: f64,
    /// 90th percentile of the absolute errors, as a fraction.
    p90: f64,
    /// Mean of the signed errors, as a fraction.
    bias: f64,
}

/// Slowdown of the strategies predicted to be the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
struct Pick {
    /// Number of calls with several strategies.
    calls: usize,
    /// Mean slowdown, as a fraction: measured time of the predicted best strategy ÷ shortest measured time − 1.
    mean: f64,
    /// Largest slowdown, as a fraction.
    worst: f64,
}

/// Comparison of fabricast's fastest executors with NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
struct ReferenceComparison {
    /// Executor (of NCCL) with which fabricast's fastest executor is compared.
    executor: &'static str,
    /// Number of calls.
    calls: usize,
    /// Geometric mean of the executor's time ÷ fabricast's shortest time.
    geometric_mean: f64,
    /// Smallest ratio of the executor's time ÷ fabricast's shortest time.
    worst: f64,
}

impl Summary {
    pub(super) fn new(rows: &[RunRow], launch: Launch) -> Self {
        let mut calls: BTreeMap<&str, Vec<&RunRow>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.times.is_some()) {
            calls.entry(row.call()).or_default().push(row);
        }
        let reference_executors = [ExecutorKind::Nccl, ExecutorKind::NcclSymmetric, ExecutorKind::NcclForced];
        Self {
            error: error(rows.iter().filter(|row| row.executor.is_driver_only()), launch),
            forced_error: error(rows.iter().filter(|row| row.executor == ExecutorKind::NcclForced), launch),
            pick: pick(calls.values(), launch),
            references: reference_executors
                .into_iter()
                .filter_map(|by| compare_with_reference(by, calls.values(), launch))
                .collect(),
        }
    }

    /// Formats the statistics as sentences.
    pub(super) fn lines(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let error = |label: &str, error: &Error| {
            let Error { rows, median, p90, bias } = error;
            format!(
                "{label}: {rows} rows, error {} median, {} of nine in ten, bias {}",
                percent(*median),
                percent(*p90),
                percent(*bias)
            )
        };
        let mut lines = Vec::new();
        lines.extend(self.error.as_ref().map(|statistics| error("predicted, our schedules", statistics)));
        lines.extend(self.forced_error.as_ref().map(|statistics| error("predicted, NCCL forced", statistics)));
        lines.extend(self.pick.map(|Pick { calls, mean, worst }| {
            format!(
                "picked by prediction: {calls} calls, {} over the fastest (mean), {} (worst)",
                percent(mean),
                percent(worst)
            )
        }));
        lines.extend(self.references.iter().map(|ReferenceComparison { executor, calls, geometric_mean, worst }| {
            format!("{executor} ÷ ours: {calls} calls, {geometric_mean:.2} (geometric mean), {worst:.2} (worst)")
        }));
        lines
    }
}

fn error<'a>(rows: impl Iterator<Item = &'a RunRow>, launch: Launch) -> Option<Error> {
    let relative_error = |row: &RunRow| Some(row.predicted.as_ref()?.time.us() / row.time(launch)?.us() - 1.0);
    let errors: Vec<f64> = rows.filter_map(relative_error).collect();
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let quantile = |tenths: usize| sizes.get((sizes.len() * tenths).div_ceil(10).checked_sub(1)?).copied();
    Some(Error {
        rows: errors.len(),
        median: quantile(5)?,
        p90: quantile(9)?,
        bias: errors.iter().sum::<f64>() / errors.len() as f64,
    })
}

fn pick<'a>(calls: impl Iterator<Item = &'a Vec<&'a RunRow>>, launch: Launch) -> Option<Pick> {
    let mut slowdowns = Vec::new();
    for call in calls {
        let candidates: Vec<(Picos, Picos)> = call
            .iter()
            .filter(|row| row.executor.is_driver_only())
            .filter_map(|row| Some((row.predicted.as_ref()?.time, row.time(launch)?)))
            .collect();
        if let (true, Some(pick), Some(fastest)) =
            (candidates.len() > 1, candidates.iter().min(), candidates.iter().map(|times| times.1).min())
        {
            slowdowns.push(pick.1.us() / fastest.us() - 1.0);
        }
    }
    let mean = slowdowns.iter().sum::<f64>() / slowdowns.len() as f64;
    Some(Pick { calls: slowdowns.len(), mean, worst: slowdowns.into_iter().max_by(f64::total_cmp)? })
}

fn compare_with_reference<'a>(
    by: ExecutorKind,
    calls: impl Iterator<Item = &'a Vec<&'a RunRow>>,
    launch: Launch,
) -> Option<ReferenceComparison> {
    let fastest_time = |call: &[&RunRow], is_selected: &dyn Fn(ExecutorKind) -> bool| {
        call.iter().filter(|row| is_selected(row.executor)).filter_map(|row| row.time(launch)).min()
    };
    let ratios: Vec<f64> = calls
        .filter_map(|call| {
            Some(
                fastest_time(call, &|executor| executor == by)?.us()
                    / fastest_time(call, &ExecutorKind::is_driver_only)?.us(),
            )
        })
        .collect();
    let worst = ratios.iter().copied().min_by(f64::total_cmp)?;
    let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
    Some(ReferenceComparison { executor: by.name(), calls: ratios.len(), geometric_mean: mean.exp(), worst })
}

#[cfg(test)]
mod tests {
    use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
    use fabricast_sim::schedule::{BufferUse, Call, Collective, DataType, Protocol, Rank, ReduceOp};
    use fabricast_topologies::Bytes;
    use fabricast_validate::execute::{Job, Times};

    use super::super::row::PredictedTime;
    use super::*;

    fn row(by: ExecutorKind, bytes: u64, measured: u64, predicted: Option<u64>) -> RunRow {
        let call = Call {
            collective: Collective::AllReduce,
            bytes: Bytes(bytes),
            ranks: 4,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let shape = Shape::new(call, Protocol::Symmetric);
        let header = generator(Algorithm::OneShot, &shape).unwrap().header().clone();
        let job = Job { header, dtype: DataType::F32, op: ReduceOp::Sum };
        let times = Times { graph: Picos(measured), ..Times::default() };
        let mut row = RunRow::new(&job, by, None, None, Some(&times));
        row.predicted = predicted.map(|time| PredictedTime { time: Picos(time), low: Picos(time), high: Picos(time) });
        row
    }

    #[test]
    fn pick_follows_predictions_and_is_scored_by_measured_time() {
        let rows = [
            row(ExecutorKind::Nccl, 1024, 400, None),
            row(ExecutorKind::NcclSymmetric, 1024, 150, None),
            // The predicted best strategy is 25 % slower than the fastest one.
            row(ExecutorKind::Kernels, 1024, 125, Some(100)),
            row(ExecutorKind::Kernels, 1024, 100, Some(110)),
            // A call with a single strategy.
            row(ExecutorKind::Nccl, 2048, 100, None),
            row(ExecutorKind::Kernels, 2048, 100, Some(100)),
        ];
        let summary = Summary::new(&rows, Launch::Graph);
        assert_eq!(summary.pick, Some(Pick { calls: 1, mean: 0.25, worst: 0.25 }));
        let error = summary.error.unwrap();
        assert_eq!((error.rows, summary.forced_error), (3, None));
        assert!((error.median - 0.1).abs() < 1e-9 && (error.p90 - 0.2).abs() < 1e-9, "{error:?}");
        let [nccl, windows] = &summary.references[..] else { panic!("{:?}", summary.references) };
        assert_eq!((nccl.calls, windows.calls), (2, 1));
        for (value, expected) in [(nccl.worst, 1.0), (windows.worst, 1.5), (nccl.geometric_mean, 2.0)] {
            assert!((value - expected).abs() < 1e-9, "{value} {expected}");
        }
    }

    #[test]
    fn untimed_rows_give_an_empty_summary() {
        assert!(Summary::new(&[], Launch::Graph).lines().is_empty());
    }
}
