//! Result of `simulate`: JSON, table and text.

use fabricast_collectives::bound::Bound;
use fabricast_collectives::packing::TreeVariant;
use fabricast_reports::format;
use fabricast_reports::share::{self, TimePart};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_search::plan::{algbw_gb_per_s, busbw_gb_per_s};
use fabricast_sim::Timeline;
use fabricast_sim::profile::TimeInterval;
use fabricast_sim::schedule::Header;
use fabricast_topologies::{Bytes, Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::critical::{CriticalPath, CriticalStepJson};
use super::links::{self, LinkJson};
use super::load::LoadJson;
use super::memory::MemoryShortfall;
use super::{format_count, verified};
use crate::output::Output;
use crate::output_format::Format;

/// Result of a simulation: JSON of `simulate`, and the values of its tables.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Answer")]
pub struct SimulationAnswer {
    /// Algorithm of the strategy.
    algorithm: String,
    /// Protocol of the strategy.
    protocol: &'static str,
    /// Number of channels of the strategy, each a thread block.
    channels: u16,
    /// Variant of packed trees, as `--trees` names it; absent for other algorithms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trees: Option<TreeVariant>,
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Number of ranks.
    ranks: u32,
    /// Buffers that exceed a GPU's memory; absent if all fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_exceeded: Option<MemoryShortfall>,
    /// True if the schedule was verified before the run; absent without a schedule file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,
    /// Predicted time, in µs.
    time_us: f64,
    /// Lower end of the 80 % prediction interval, in µs.
    low_us: f64,
    /// Upper end of the 80 % prediction interval, in µs.
    high_us: f64,
    /// Algorithm bandwidth, size ÷ time, in GB/s (10⁹ bytes per second).
    algbw_gb_per_s: f64,
    /// Bus bandwidth as nccl-tests defines it, in GB/s (10⁹ bytes per second).
    busbw_gb_per_s: f64,
    /// Lower bound on the time of any schedule on this fabric, in µs.
    bound_us: f64,
    /// Share of the theoretical peak: bound ÷ predicted time.
    bound_share: f64,
    /// Resource or latency that determines the lower bound.
    bound_by: String,
    /// Link or cost that limits the call.
    pub bottleneck: String,
    /// Number of simulated operations.
    operations: u64,
    /// Number of events of the simulation.
    events: u64,
    /// True if one representative of interchangeable ranks or channels was simulated.
    folded: bool,
    /// Number of operations that a simulated one represents; 1 if nothing was folded.
    fold_factor: f64,
    /// Predicted time by kind, in µs.
    cost_us: CostsJson,
    /// Utilization of the link directions that carried traffic.
    links: Vec<LinkJson>,
    /// Number of link directions with traffic that `links` omits, those with the lowest utilization.
    links_omitted: usize,
    /// Operations that determine the time; only with `--critical-path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical_path: Option<Vec<CriticalStepJson>>,
    /// Utilization of the busiest resources over time; only with `--utilization-over-time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadJson>,
    #[serde(skip)]
    pub path: Option<CriticalPath>,
    #[serde(skip)]
    busiest: Option<String>,
    #[serde(skip)]
    time: Picos,
    #[serde(skip)]
    band: TimeInterval,
    #[serde(skip)]
    bound: Picos,
    #[serde(skip)]
    costs: Vec<TimePart>,
}

/// Columns of the result table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TableColumns {
    /// Results only; the heading above the table names the call.
    ResultsOnly,
    /// Call, strategy and results, for CSV without a heading.
    WithLabels,
}

/// Parts of the predicted time, in µs; their sum is `time_us`.
#[derive(Serialize, JsonSchema)]
struct CostsJson {
    /// Software time, in µs.
    software: f64,
    /// Latency of paths, in µs.
    latency: f64,
    /// Transfer time at the bandwidth of the links, in µs.
    bandwidth: f64,
    /// Time added by ranks that start late and by contention, in µs.
    waiting: f64,
}

impl SimulationAnswer {
    pub fn new(header: &Header, timeline: &Timeline, bound: &Bound, fabric: &Fabric, format: Format) -> Self {
        // Only JSON lists links, because formatting the names of half a million links takes long.
        let (links, links_omitted) = match format {
            Format::Json => LinkJson::list(&timeline.utilization, fabric),
            Format::Text | Format::Csv => Default::default(),
        };
        let call = header.call;
        let costs = timeline.costs;
        let TimeInterval { low, high } = timeline.band.around(timeline.time);
        // The lower bound applies to any software, so the interval is cut there.
        let band = TimeInterval { low: low.max(bound.time).min(timeline.time), high };
        let part = |name: &str, time| TimePart { name: name.to_owned(), time };
        Self {
            algorithm: header.name.clone(),
            protocol: header.protocol.name(),
            trees: None,
            channels: header.blocks_per_rank(),
            collective: call.collective.name(),
            bytes: call.bytes,
            ranks: call.ranks,
            memory_exceeded: None,
            verified: None,
            time_us: timeline.time.us(),
            low_us: band.low.us(),
            high_us: band.high.us(),
            algbw_gb_per_s: algbw_gb_per_s(header.size(), timeline.time),
            busbw_gb_per_s: busbw_gb_per_s(call.collective, header.size(), timeline.time, call.ranks),
            bound_us: bound.time.us(),
            bound_share: if timeline.time.0 == 0 { 1.0 } else { bound.time.0 as f64 / timeline.time.0 as f64 },
            bound_by: bound.limited_by.to_string(),
            bottleneck: String::new(),
            operations: timeline.operations,
            events: timeline.events,
            folded: timeline.fold_factor.is_some(),
            fold_factor: timeline.fold_factor.unwrap_or(1.0),
            cost_us: CostsJson {
                software: costs.software.us(),
                latency: costs.latency.us(),
                bandwidth: costs.bandwidth.us(),
                waiting: costs.waiting.us(),
            },
            links,
            links_omitted,
            critical_path: None,
            load: None,
            path: None,
            busiest: links::busiest(&timeline.utilization, fabric),
            time: timeline.time,
            band,
            bound: bound.time,
            costs: vec![
                part("software", costs.software),
                part("latency", costs.latency),
                part("bandwidth", costs.bandwidth),
                part("waiting", costs.waiting),
            ],
        }
    }

    /// Collective and number of ranks of the call.
    pub fn call(&self) -> (&'static str, u32) {
        (self.collective, self.ranks)
    }

    /// Cells of a table of several simulations: size, strategy, time, bandwidth, share of the peak, bottleneck, ends of
    /// the interval, algorithm bandwidth, bound.
    pub fn sweep_cells(&self) -> Vec<Value> {
        vec![
            Value::Bytes(self.bytes),
            Value::text(&*self.algorithm),
            Value::text(self.protocol),
            Value::Count(self.channels.into()),
            Value::Time(self.time),
            Value::Rate(self.busbw_gb_per_s),
            Value::Share(self.bound_share),
            Value::text(&*self.bottleneck),
            Value::Time(self.band.low),
            Value::Time(self.band.high),
            Value::Rate(self.algbw_gb_per_s),
            Value::Time(self.bound),
        ]
    }

    /// Table of several simulations with their calls and strategies, a row each.
    pub fn labelled_table(answers: &[Self]) -> Table {
        let rows: Vec<Vec<(Column, Value)>> =
            answers.iter().map(|answer| answer.fields(TableColumns::WithLabels)).collect();
        let columns = rows.first().map(|row| row.iter().map(|(column, _)| column.clone()).collect());
        let mut table = Table::new(columns.unwrap_or_default());
        for row in rows {
            table.row(row.into_iter().map(|(_, value)| value.into()).collect());
        }
        table
    }

    /// Table with one row: the call if requested, and its results.
    pub fn table(&self, contents: TableColumns) -> Table {
        let (columns, values): (Vec<Column>, Vec<Value>) = self.fields(contents).into_iter().unzip();
        let mut table = Table::new(columns);
        table.row(values.into_iter().map(Into::into).collect());
        table
    }

    /// Columns of the result table with their values.
    fn fields(&self, contents: TableColumns) -> Vec<(Column, Value)> {
        let labels = [
            (Column::new("collective", "collective", Unit::Text), Value::text(self.collective)),
            (Column::new("algorithm", "algorithm", Unit::Text), Value::text(&*self.algorithm)),
            (Column::new("protocol", "protocol", Unit::Text), Value::text(self.protocol)),
            (Column::new("channels", "channels", Unit::Number), Value::Count(self.channels.into())),
            (Column::new("ranks", "ranks", Unit::Number), Value::Count(self.ranks.into())),
            (Column::new("bytes", "size", Unit::Bytes), Value::Bytes(self.bytes)),
        ];
        let results = [
            (Column::new("time_us", "time", Unit::Micros), Value::Time(self.time)),
            (Column::new("low_us", "low", Unit::Micros), Value::Time(self.band.low)),
            (Column::new("high_us", "high", Unit::Micros), Value::Time(self.band.high)),
            (Column::new("algbw_gb_per_s", "algbw", Unit::GbPerS).spare(), Value::Rate(self.algbw_gb_per_s)),
            (Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS), Value::Rate(self.busbw_gb_per_s)),
            (Column::new("bound_us", "bound", Unit::Micros).spare(), Value::Time(self.bound)),
            (Column::new("bound_share", "of peak", Unit::Percent), Value::Share(self.bound_share)),
            (Column::new("bottleneck", "bottleneck", Unit::Text), Value::text(&*self.bottleneck)),
        ];
        let labels = labels.into_iter().filter(|_| contents == TableColumns::WithLabels);
        labels.chain(results).collect()
    }

    /// Text of the result: a table, the parts of the time, the busiest links and, if requested, critical path and load.
    pub fn text(&self, fabric: &str, profile: &str, output: &Output) -> String {
        let mut table = self.table(TableColumns::ResultsOnly);
        let trees = self.trees.map(|trees| format!(" · trees {trees}")).unwrap_or_default();
        table.heading(format!(
            "{} of {} on {fabric} · {} · {} {} × {}{trees} · profile {profile}",
            self.collective,
            format::bytes(self.bytes),
            format_count(self.ranks.into(), "rank"),
            self.algorithm,
            self.protocol,
            self.channels
        ));
        let mut text = table.text(&output.text_options());
        text.push_str("\nwhere the time goes\n");
        text.push_str(&share::bars(&self.costs, 40, output.text_options().glyphs));
        text.push('\n');
        if let Some(busiest) = &self.busiest {
            text.push_str(&format!("busiest links: {busiest}\n"));
        }
        let folded = if self.folded {
            format!(", folded {}-fold", format::grouped(self.fold_factor.round() as u64))
        } else {
            String::new()
        };
        let (operations, events) = (format_count(self.operations, "operation"), format_count(self.events, "event"));
        text.push_str(&format!("{operations}{folded}, {events}\n"));
        if self.verified == Some(false) {
            text.push_str(&format!("{}\n", verified::NOT_VERIFIED));
        }
        if let Some(path) = &self.path {
            text.push_str(&format!("\n{}", path.text(&output.text_options())));
        }
        if let Some(load) = &self.load {
            text.push_str(&format!("\n{}", load.text(output.text_options().glyphs)));
        }
        text
    }
}
