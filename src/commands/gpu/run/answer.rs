//! Result of `gpu run`.

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::plan::busbw_gb_per_s;
use fabricast_sim::profile::Launch;
use fabricast_topologies::{Bytes, Fabric, Picos};
use fabricast_validate::execute::Testbed;
use fabricast_validate::kernel::{Carrier, GridShape};
use fabricast_validate::measured::gpu_run::FORMAT;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::verified::NOT_VERIFIED;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;

use super::row::{ExecutorKind, PredictedTime, RunRow};
use super::summary::Summary;

/// Results of all rows, and the setup of the run.
pub(super) struct RunAnswer {
    fabric: String,
    /// Fabric spec, if the fabric is not a preset.
    pub(super) fabric_spec: Option<String>,
    profile: String,
    /// True if the schedule was verified before the run; `None` without a schedule file.
    pub(super) verified: Option<bool>,
    /// Launch mode of the compared times.
    launch: Launch,
    pub(super) gpus: usize,
    ranks: u32,
    pub(super) nccl: Option<String>,
    /// NVSHMEM version, and the NCCL that it uses for its collectives.
    pub(super) nvshmem: Option<(String, Option<String>)>,
    pub(super) rows: Vec<RunRow>,
}

/// JSON of `gpu run`.
#[derive(Serialize, JsonSchema)]
pub struct AnswerJson<'a> {
    /// Version number of the measurement format.
    fabricast_gpu_run: u32,
    /// Name of the fabric.
    fabric: &'a str,
    /// Name of the cost profile.
    profile: &'a str,
    /// True if the schedule was verified before the run; absent without a schedule file.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    /// Number of GPUs.
    gpus: usize,
    /// Number of ranks.
    ranks: u32,
    /// NCCL version; null without NCCL.
    nccl: Option<&'a str>,
    /// NVSHMEM version; absent without NVSHMEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    nvshmem: Option<&'a str>,
    /// Version of the NCCL that NVSHMEM uses; absent if it uses none.
    #[serde(skip_serializing_if = "Option::is_none")]
    nvshmem_nccl: Option<&'a str>,
    /// Errors of predictions, and comparison with NCCL.
    summary: Summary,
    /// Results by call and executor.
    rows: Vec<RunRowJson<'a>>,
    /// Fabric spec, if the fabric is not a preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    fabric_spec: Option<&'a str>,
}

/// Result of a call on an executor.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RowJson")]
struct RunRowJson<'a> {
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Element type.
    dtype: &'static str,
    /// Reduction.
    op: String,
    /// True if input and output share a buffer.
    in_place: bool,
    /// Executor.
    executor: &'static str,
    /// Algorithm; absent if the executor has no strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    /// Protocol; absent if the executor has no strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    /// Number of channels; absent if the executor has no strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    channels: Option<u16>,
    /// Number of thread blocks per rank; several blocks may share a channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u32>,
    /// Message format of the generated kernels; absent for other executors.
    #[serde(skip_serializing_if = "Option::is_none")]
    carrier: Option<Carrier>,
    /// Grid of the generated kernels; absent for other executors.
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<GridShape>,
    /// True if the result is correct.
    correct: bool,
    /// Error message; absent if the result is correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    /// Measured time of a call on a stream, in µs; the median of the trials.
    measured_us: Option<f64>,
    /// Measured time of a call in a CUDA graph, in µs; the median of the trials.
    graph_us: Option<f64>,
    /// Times per call of the graph trials, in order, in µs.
    graph_trials_us: Vec<f64>,
    /// 99th percentile of single calls, in µs.
    p99_us: Option<f64>,
    /// Predicted time, in µs; null without a prediction.
    predicted_us: Option<f64>,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: Option<f64>,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: Option<f64>,
    /// Shortest time of NCCL's default for the same call, in µs.
    nccl_us: Option<f64>,
    /// NCCL's time ÷ the time of this row.
    ratio: Option<f64>,
    /// Shortest time of NCCL with buffers in symmetric windows for the same call, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    nccl_symmetric_us: Option<f64>,
    /// Shortest time of NCCL with forced strategies for the same call, in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    nccl_forced_us: Option<f64>,
    /// Other grids that were tried, each with its time in µs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried: Vec<(GridShape, f64)>,
}

impl RunAnswer {
    pub(super) fn new(fabric: &Fabric, profile: &str, launch: Launch, testbed: &Testbed, nccl: Option<String>) -> Self {
        Self {
            fabric: fabric.name().to_owned(),
            fabric_spec: None,
            verified: None,
            profile: profile.to_owned(),
            launch,
            gpus: testbed.contexts().len(),
            ranks: testbed.ranks(),
            nccl,
            nvshmem: None,
            rows: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, row: RunRow) {
        self.rows.push(row);
    }

    /// Prints collective, size and strategy of the last row on standard error.
    pub(super) fn progress(&self) {
        if let Some(row) = self.rows.last() {
            crate::terminal::write_stderr(&format!(
                "{} {} {}",
                row.job.header.call.collective,
                row.job.header.call.bytes,
                row.strategy()
            ));
        }
    }

    /// Shortest time of an executor for the call of a row; `None` if the executor was not timed.
    fn best_time(&self, row: &RunRow, by: ExecutorKind) -> Option<Picos> {
        let call = row.call();
        self.rows
            .iter()
            .filter(|candidate| candidate.executor == by && candidate.call() == call)
            .filter_map(|candidate| candidate.time(self.launch))
            .min()
    }

    pub(super) fn write(&self, output: &Output) -> Result<(), Failure> {
        match output.format {
            Format::Json => output.write_json(&Document::Run.with(&self.json())),
            Format::Csv => output.write(&crate::commands::csv(&self.table())?),
            Format::Text => output.write(&self.table().text(&output.text_options())),
        }
    }

    fn json(&self) -> AnswerJson<'_> {
        let rows = self.rows.iter().map(|row| {
            let has_strategy = row.executor.has_strategy();
            let header = &row.job.header;
            let times = row.times.as_ref();
            let predicted =
                |select: fn(&PredictedTime) -> Picos| row.predicted.as_ref().map(|prediction| select(prediction).us());
            let nccl = self.best_time(row, ExecutorKind::Nccl);
            RunRowJson {
                collective: header.call.collective.name(),
                bytes: header.call.bytes,
                dtype: row.job.dtype.name(),
                op: format!("{:?}", row.job.op).to_lowercase(),
                in_place: header.call.buffers == fabricast_sim::schedule::BufferUse::InPlace,
                executor: row.executor.name(),
                algorithm: has_strategy.then_some(header.name.as_str()),
                protocol: has_strategy.then(|| header.protocol.name()),
                channels: has_strategy.then_some(row.channels()),
                blocks: has_strategy.then_some(row.blocks()),
                carrier: row.carrier,
                shape: row.shape,
                correct: row.fault.is_none(),
                fault: row.fault.as_deref(),
                measured_us: times.map(|times| times.stream.us()),
                graph_us: times.map(|times| times.graph.us()),
                graph_trials_us: times
                    .map(|times| times.trials.iter().map(|time| time.us()).collect())
                    .unwrap_or_default(),
                p99_us: times.and_then(|times| times.p99).map(Picos::us),
                predicted_us: predicted(|prediction| prediction.time),
                low_us: predicted(|prediction| prediction.low),
                high_us: predicted(|prediction| prediction.high),
                nccl_us: nccl.map(Picos::us),
                ratio: self.ratio(nccl, row),
                nccl_symmetric_us: self.best_time(row, ExecutorKind::NcclSymmetric).map(Picos::us),
                nccl_forced_us: self.best_time(row, ExecutorKind::NcclForced).map(Picos::us),
                tried: row.tried.iter().map(|(shape, time)| (*shape, time.us())).collect(),
            }
        });
        AnswerJson {
            fabricast_gpu_run: FORMAT,
            fabric: &self.fabric,
            fabric_spec: self.fabric_spec.as_deref(),
            profile: &self.profile,
            verified: self.verified,
            gpus: self.gpus,
            ranks: self.ranks,
            nccl: self.nccl.as_deref(),
            nvshmem: self.nvshmem.as_ref().map(|(version, _)| version.as_str()),
            nvshmem_nccl: self.nvshmem.as_ref().and_then(|(_, nccl)| nccl.as_deref()),
            summary: Summary::new(&self.rows, self.launch),
            rows: rows.collect(),
        }
    }

    fn table(&self) -> Table {
        let references: Vec<ExecutorKind> = [ExecutorKind::Nccl, ExecutorKind::NcclSymmetric, ExecutorKind::NcclForced]
            .into_iter()
            .filter(|&by| by == ExecutorKind::Nccl || self.rows.iter().any(|row| row.executor == by))
            .collect();
        let mut columns = vec![
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("executor", "executor", Unit::Text),
            Column::new("strategy", "strategy", Unit::Text),
            Column::new("carrier", "carrier", Unit::Text),
            Column::new("measured_us", "stream", Unit::Micros),
            Column::new("graph_us", "graph", Unit::Micros),
            Column::new("p99_us", "p99", Unit::Micros),
            Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
            Column::new("predicted_us", "predicted", Unit::Micros),
            Column::new("low_us", "from", Unit::Micros),
            Column::new("high_us", "to", Unit::Micros),
        ];
        for by in &references {
            let key = by.name().replace('-', "_");
            columns.push(Column::new(&format!("{key}_us"), by.name(), Unit::Micros));
            let ratio = if *by == ExecutorKind::Nccl { "ratio".to_owned() } else { format!("{key}_ratio") };
            columns.push(Column::new(&ratio, &format!("{} ÷ ours", by.name()), Unit::Text));
        }
        columns.push(Column::new("correct", "correct", Unit::Text));
        let mut table = Table::new(columns);
        table.heading(format!(
            "{} ranks on {} GPUs · {} · profile {} · NCCL {}{}",
            self.ranks,
            self.gpus,
            self.fabric,
            self.profile,
            self.nccl.as_deref().unwrap_or("absent"),
            match &self.nvshmem {
                Some((version, Some(_))) => format!(" · NVSHMEM {version}, its collectives by NCCL"),
                Some((version, None)) => format!(" · NVSHMEM {version}"),
                None => String::new(),
            }
        ));
        for row in &self.rows {
            let call = &row.job.header.call;
            let time = |time: Option<Picos>| time.map_or_else(|| Value::text("–"), Value::Time);
            let carrier = match (row.carrier, row.shape) {
                (Some(carrier), Some(GridShape { threads, split, unroll, tiles_per_phase })) => {
                    format!("{} {split}x{threads}x{unroll}x{tiles_per_phase}", carrier.name())
                }
                (Some(carrier), None) => carrier.name().to_owned(),
                (None, _) => String::new(),
            };
            let measured = row.time(self.launch);
            let predicted = |select: fn(&PredictedTime) -> Picos| row.predicted.as_ref().map(select);
            let mut cells = vec![
                Value::text(call.collective.name()).into(),
                Value::Bytes(call.bytes).into(),
                Value::text(row.executor.name()).into(),
                Value::text(row.strategy()).into(),
                Value::text(carrier).into(),
                time(row.times.as_ref().map(|times| times.stream)).into(),
                time(row.times.as_ref().map(|times| times.graph)).into(),
                time(row.times.as_ref().and_then(|times| times.p99)).into(),
                measured
                    .map_or_else(
                        || Value::text("–"),
                        |measured| Value::Rate(busbw_gb_per_s(call.collective, call.bytes, measured, call.ranks)),
                    )
                    .into(),
                time(predicted(|prediction| prediction.time)).into(),
                time(predicted(|prediction| prediction.low)).into(),
                time(predicted(|prediction| prediction.high)).into(),
            ];
            for &by in &references {
                let reference_time = self.best_time(row, by);
                cells.push(time(reference_time).into());
                let ratio =
                    self.ratio(reference_time, row).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
                cells.push(Value::text(ratio).into());
            }
            cells.push(Value::text(if row.fault.is_none() { "yes" } else { "NO" }).into());
            table.row(cells);
        }
        for line in Summary::new(&self.rows, self.launch).lines() {
            table.note(line);
        }
        if self.verified == Some(false) {
            table.note(NOT_VERIFIED.to_owned());
        }
        table
    }

    /// Reference time divided by the row's time; `None` if the row is not one of fabricast's executors.
    fn ratio(&self, reference_time: Option<Picos>, row: &RunRow) -> Option<f64> {
        row.executor.is_driver_only().then_some(())?;
        Some(reference_time?.us() / row.time(self.launch)?.us())
    }
}
