//! Page of a trace: activity of each rank and channel over time.

use std::collections::BTreeMap;

use fabricast_topologies::Picos;
use serde::Deserialize;

use super::{Block, Page, Section, Spans};
use crate::format;

/// Fields of the output of `simulate --trace` that the page shows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// Event of a trace. Types other than spans and names are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Event {
    ph: String,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    name: String,
    /// Start of the event, in µs.
    #[serde(default)]
    ts: f64,
    /// Duration of the event, in µs.
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: NamedEvent,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct NamedEvent {
    #[serde(default)]
    name: Option<String>,
}

/// Maximum number of rows. The first rows are shown.
const MAX_ROWS: usize = 64;
/// Maximum number of spans. The longest spans are shown.
const MAX_SPANS: usize = 6_000;

pub(super) fn page(name: &str, trace: &Trace) -> Page {
    let named =
        |event: &Event, kind: &str| (event.ph == "M" && event.name == kind).then(|| event.args.name.clone()).flatten();
    let mut ranks: BTreeMap<u64, String> = BTreeMap::new();
    let mut channels: BTreeMap<(u64, u64), String> = BTreeMap::new();
    for event in &trace.events {
        if let Some(name) = named(event, "process_name") {
            ranks.insert(event.pid, name);
        }
        if let Some(name) = named(event, "thread_name") {
            channels.insert((event.pid, event.tid), name);
        }
    }
    let is_span = |event: &&Event| event.ph == "X" && event.ts.is_finite() && event.dur.is_finite() && event.dur >= 0.0;
    let mut spans: Vec<&Event> = trace.events.iter().filter(is_span).collect();
    let end = spans.iter().map(|span| span.ts + span.dur).fold(0.0, f64::max);
    let mut rows: Vec<(u64, u64)> = spans.iter().map(|span| (span.pid, span.tid)).collect();
    rows.sort_unstable();
    rows.dedup();
    let (all_rows, all_spans) = (rows.len(), spans.len());
    rows.truncate(MAX_ROWS);
    spans.retain(|span| rows.binary_search(&(span.pid, span.tid)).is_ok());
    spans.sort_by(|a, b| b.dur.total_cmp(&a.dur).then(a.ts.total_cmp(&b.ts)));
    spans.truncate(MAX_SPANS);
    // The first word of a span is its kind: `put 3 → 4` is a put.
    let kind = |span: &Event| span.name.split_whitespace().next().unwrap_or("span").to_owned();
    let mut kinds: Vec<String> = spans.iter().map(|span| kind(span)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let label = |&(pid, tid): &(u64, u64)| {
        let rank = ranks.get(&pid).cloned().unwrap_or_else(|| format!("process {pid}"));
        channels.get(&(pid, tid)).map_or(rank.clone(), |channel| format!("{rank}, {channel}"))
    };
    let drawn = spans.iter().filter_map(|span| {
        let row = rows.binary_search(&(span.pid, span.tid)).ok()?;
        let kind = kinds.binary_search(&kind(span)).ok()?;
        Some(super::TimeSpan { row, kind, from: span.ts, to: span.ts + span.dur, name: span.name.clone() })
    });
    let mut remark = String::new();
    if rows.len() < all_rows || spans.len() < all_spans {
        remark = format!(
            "Shown are the first {} of {} rows and the {} longest of {} spans; Perfetto (ui.perfetto.dev) opens the full trace.",
            rows.len(),
            format::grouped(all_rows as u64),
            format::grouped(spans.len() as u64),
            format::grouped(all_spans as u64)
        );
    }
    let chart = Spans {
        title: "Timeline of the channels".into(),
        rows: rows.iter().map(label).collect(),
        spans: drawn.collect(),
        kinds: kinds.clone(),
        end,
        remark,
    };
    Page {
        title: format!("Timeline {name}"),
        answer: vec![format!(
            "{} spans of {} ranks end after {}.",
            format::grouped(all_spans as u64),
            ranks.values().filter(|name| name.starts_with("rank")).count(),
            format::time(Picos::from_us(end))
        )],
        sections: vec![Section::new("Timeline", vec![Block::Spans(chart)])],
    }
}
