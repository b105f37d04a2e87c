//! What `gpu run` says.

use fabricast_planner::plan::busbw_gbps;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::profile::Profile;
use fabricast_topologies::{Bytes, Fabric, Picos};
use fabricast_validate::execute::{ExecuteError, Job, Library, Stage, Times};
use fabricast_validate::kernel::{Carrier, GridShape};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Format, Output};

/// One way to run one call.
pub(super) struct Row {
    pub(super) job: Job,
    pub(super) executor: &'static str,
    carrier: Option<Carrier>,
    shape: Option<GridShape>,
    pub(super) times: Option<Times>,
    pub(super) predicted: Picos,
    pub(super) nccl: Option<Picos>,
    tried: Vec<(GridShape, Picos)>,
    fault: Option<String>,
}

impl Row {
    pub(super) fn new(
        job: &Job,
        executor: &'static str,
        kernel: Option<(Carrier, Option<GridShape>)>,
        times: Option<&Times>,
    ) -> Self {
        Self {
            job: job.clone(),
            executor,
            carrier: kernel.map(|kernel| kernel.0),
            shape: kernel.and_then(|kernel| kernel.1),
            times: times.cloned(),
            predicted: Picos::ZERO,
            nccl: None,
            tried: Vec::new(),
            fault: None,
        }
    }

    pub(super) fn with_tried(self, tried: Vec<(GridShape, Picos)>) -> Self {
        Self { tried, ..self }
    }

    pub(super) fn failed(self, error: &ExecuteError) -> Self {
        Self { fault: Some(error.to_string()), ..self }
    }

    /// Blocks that a rank ran.
    pub(super) fn blocks(&self) -> u32 {
        u32::from(self.job.header.channels) * self.shape.map_or(1, |shape| shape.split)
    }

    fn ratio(&self) -> Option<f64> {
        let (ours, nccl) = (self.times.as_ref()?.graph, self.nccl?);
        Some(nccl.us() / ours.us())
    }

    fn strategy(&self) -> String {
        let header = &self.job.header;
        if self.executor == "nccl" {
            String::new()
        } else {
            format!("{} {} × {}", header.name, header.protocol, header.channels)
        }
    }
}

/// All rows, and where they ran.
pub(super) struct Answer {
    pub(super) fabric: String,
    profile: String,
    pub(super) gpus: usize,
    ranks: u32,
    pub(super) nccl: Option<String>,
    pub(super) rows: Vec<Row>,
}

#[derive(Serialize)]
struct AnswerJson<'a> {
    fabric: &'a str,
    profile: &'a str,
    gpus: usize,
    ranks: u32,
    nccl: Option<&'a str>,
    rows: Vec<RowJson<'a>>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    collective: &'static str,
    bytes: Bytes,
    dtype: &'static str,
    op: String,
    in_place: bool,
    executor: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channels: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    carrier: Option<Carrier>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<GridShape>,
    correct: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    measured_us: Option<f64>,
    graph_us: Option<f64>,
    graph_trials_us: Vec<f64>,
    p99_us: Option<f64>,
    predicted_us: Option<f64>,
    low_us: Option<f64>,
    high_us: Option<f64>,
    nccl_us: Option<f64>,
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried: Vec<(GridShape, f64)>,
}

impl Answer {
    pub(super) fn new(fabric: &Fabric, profile: &str, stage: &Stage, library: Option<&Library>) -> Self {
        Self {
            fabric: fabric.name().to_owned(),
            profile: profile.to_owned(),
            gpus: stage.contexts().len(),
            ranks: stage.ranks(),
            nccl: library.map(|library| library.version().to_string()),
            rows: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The last row on standard error.
    pub(super) fn progress(&self) {
        if let Some(row) = self.rows.last() {
            output::note(&format!(
                "{} {} {}",
                row.job.header.call.collective,
                row.job.header.call.bytes,
                row.strategy()
            ));
        }
    }

    pub(super) fn write(&self, profile: &Profile, output: &Output) -> Result<(), Failure> {
        match output.format {
            Format::Json => output.write_json(&self.json(profile)),
            Format::Csv => output.write(&crate::commands::csv(&self.table())?),
            Format::Text => output.write(&self.table().text(&output.look())),
        }
    }

    fn json(&self, profile: &Profile) -> AnswerJson<'_> {
        let rows = self.rows.iter().map(|row| {
            let ours = row.executor != "nccl";
            let header = &row.job.header;
            let times = row.times.as_ref();
            let band = profile.bands.usual.around(row.predicted);
            let of_ours = |time: Picos| ours.then(|| time.us());
            RowJson {
                collective: header.call.collective.name(),
                bytes: header.call.bytes,
                dtype: row.job.dtype.name(),
                op: format!("{:?}", row.job.op).to_lowercase(),
                in_place: header.call.buffers == fabricast_sim::schedule::BufferUse::InPlace,
                executor: row.executor,
                algorithm: ours.then_some(header.name.as_str()),
                protocol: ours.then(|| header.protocol.name()),
                channels: ours.then_some(header.channels),
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
                predicted_us: of_ours(row.predicted),
                low_us: of_ours(band.0),
                high_us: of_ours(band.1),
                nccl_us: row.nccl.map(Picos::us),
                ratio: row.ratio(),
                tried: row.tried.iter().map(|(shape, time)| (*shape, time.us())).collect(),
            }
        });
        AnswerJson {
            fabric: &self.fabric,
            profile: &self.profile,
            gpus: self.gpus,
            ranks: self.ranks,
            nccl: self.nccl.as_deref(),
            rows: rows.collect(),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("executor", "executor", Unit::Text),
            Column::new("strategy", "strategy", Unit::Text),
            Column::new("carrier", "carrier", Unit::Text),
            Column::new("measured_us", "stream", Unit::Micros),
            Column::new("graph_us", "graph", Unit::Micros),
            Column::new("p99_us", "p99", Unit::Micros),
            Column::new("busbw_gbps", "busbw", Unit::Gbps),
            Column::new("predicted_us", "predicted", Unit::Micros),
            Column::new("nccl_us", "nccl", Unit::Micros),
            Column::new("ratio", "nccl ÷ ours", Unit::Text),
            Column::new("correct", "correct", Unit::Text),
        ]);
        table.heading(format!(
            "{} ranks on {} GPUs · {} · profile {} · NCCL {}",
            self.ranks,
            self.gpus,
            self.fabric,
            self.profile,
            self.nccl.as_deref().unwrap_or("absent")
        ));
        for row in &self.rows {
            let call = &row.job.header.call;
            let time = |time: Option<Picos>| time.map_or_else(|| Value::text("–"), Value::Time);
            let carrier = match (row.carrier, row.shape) {
                (Some(carrier), Some(GridShape { threads, split, unroll })) => {
                    format!("{} {split}x{threads}x{unroll}", carrier.name())
                }
                (Some(carrier), None) => carrier.name().to_owned(),
                (None, _) => String::new(),
            };
            let graph = row.times.as_ref().map(|times| times.graph);
            table.row(vec![
                Value::text(call.collective.name()).into(),
                Value::Bytes(call.bytes).into(),
                Value::text(row.executor).into(),
                Value::text(row.strategy()).into(),
                Value::text(carrier).into(),
                time(row.times.as_ref().map(|times| times.stream)).into(),
                time(graph).into(),
                time(row.times.as_ref().and_then(|times| times.p99)).into(),
                graph
                    .map_or_else(
                        || Value::text("–"),
                        |graph| Value::Rate(busbw_gbps(call.collective, call.bytes, graph, call.ranks)),
                    )
                    .into(),
                if row.executor == "nccl" { Value::text("–") } else { Value::Time(row.predicted) }.into(),
                time(row.nccl).into(),
                Value::text(row.ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))).into(),
                Value::text(if row.fault.is_none() { "yes" } else { "NO" }).into(),
            ]);
        }
        table
    }
}
