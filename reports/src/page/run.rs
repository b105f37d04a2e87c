//! Page of one simulation: composition of its time, and utilization of links.

use fabricast_topologies::{Bytes, Picos};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::{Block, Page, Section};
use crate::chart::{Axis, Bar, BarChart, Quantity};
use crate::format;
use crate::table::{Column, Table, Unit, Value};

/// Fields of the output of `simulate --format json` that the page shows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Run {
    #[serde(alias = "schedule")]
    algorithm: String,
    protocol: String,
    channels: u16,
    collective: String,
    bytes: Bytes,
    ranks: u32,
    time_us: f64,
    low_us: f64,
    high_us: f64,
    #[serde(alias = "busbw_gbps")]
    busbw_gb_per_s: f64,
    bound_us: f64,
    bound_by: String,
    #[serde(alias = "binds")]
    bottleneck: String,
    cost_us: Costs,
    links: Vec<Link>,
    #[serde(default)]
    links_omitted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Costs {
    software: f64,
    latency: f64,
    bandwidth: f64,
    waiting: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Link {
    link: String,
    bytes: u64,
    utilization: f64,
}

/// Maximum number of links in the table. The busiest links are shown.
const MAX_LINKS: usize = 500;

impl Run {
    /// Returns the name of the call, such as `all_reduce of 1 MiB, ring ll128`.
    pub(super) fn call_name(&self) -> String {
        format!("{} of {}, {} {}", self.collective, format::bytes(self.bytes), self.algorithm, self.protocol)
    }

    /// Returns the utilization (0 to 1) of each link in `names`; `None` if the run has no links or links with other
    /// names.
    pub(super) fn link_load(&self, names: &[String]) -> Option<Vec<f64>> {
        let numbers: FxHashMap<&str, usize> = names.iter().enumerate().map(|(k, name)| (name.as_str(), k)).collect();
        let mut load = vec![0.0; names.len()];
        for link in &self.links {
            let number = numbers.get(link.link.as_str())?;
            *load.get_mut(*number)? = link.utilization;
        }
        (!self.links.is_empty()).then_some(load)
    }
}

pub(super) fn page(run: &Run) -> Page {
    let us = |us: f64| format::time(Picos::from_us(us));
    let answer = vec![
        format!(
            "{} completes in {} on {} ranks ({} to {}).",
            run.call_name(),
            us(run.time_us),
            run.ranks,
            us(run.low_us),
            us(run.high_us)
        ),
        format!(
            "That is {} GB/s of bus bandwidth and {} % of the bound ({}, set by {}). Bottleneck: {}.",
            format::gb_per_s(run.busbw_gb_per_s),
            format::percent(run.bound_us / run.time_us),
            us(run.bound_us),
            run.bound_by,
            run.bottleneck
        ),
    ];
    let Costs { software, latency, bandwidth, waiting } = run.cost_us;
    let chart = BarChart {
        title: "Time on the critical path".into(),
        subtitle: format!("{} channels", run.channels),
        axis: Axis::linear(Quantity::Time),
        parts: ["software", "latency", "bandwidth", "waiting"].map(String::from).to_vec(),
        bars: vec![Bar {
            name: run.call_name(),
            parts: vec![software, latency, bandwidth, waiting],
            remark: String::new(),
        }],
    };
    let mut table = Table::new(vec![
        Column::new("link", "link", Unit::Text),
        Column::new("utilization", "busy", Unit::Percent),
        Column::new("bytes", "carried", Unit::Bytes),
    ]);
    let mut links: Vec<&Link> = run.links.iter().collect();
    links.sort_by(|a, b| b.utilization.total_cmp(&a.utilization));
    let left_out = run.links_omitted + links.len().saturating_sub(MAX_LINKS);
    links.truncate(MAX_LINKS);
    for link in links {
        table.row(vec![
            Value::text(&link.link).into(),
            Value::Share(link.utilization).into(),
            Value::Bytes(Bytes(link.bytes)).into(),
        ]);
    }
    let mut blocks = vec![Block::Table("Links by utilization".into(), table)];
    if left_out > 0 {
        blocks.push(Block::Text(format!("{left_out} more links are not shown.")));
    }
    Page {
        title: format!("{} on {} ranks", run.call_name(), run.ranks),
        answer,
        sections: vec![Section::new("Time", vec![Block::Bars(chart)]), Section::new("Links", blocks)],
    }
}
