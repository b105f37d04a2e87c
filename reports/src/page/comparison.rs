//! Page of a comparison: measured against predicted times, by group.

use std::collections::BTreeMap;

use fabricast_topologies::{Bytes, Picos};
use serde::Deserialize;

use super::{Block, LinesWithTooltips, Page, Section};
use crate::chart::{CompareChart, ComparedPoint, ComparedSeries, LineChart, Role};
use crate::format;
use crate::table::{Cell, Column, Emphasis, Table, Unit, Value};

/// Fields of the output of `compare --format json` that the page shows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Comparison {
    summary: ErrorSummary,
    coverage: Option<Coverage>,
    groups: Vec<Group>,
    rows: Vec<ComparisonRow>,
    #[serde(default)]
    rejected: Vec<RejectedRow>,
}

/// Statistics of the errors (predicted ÷ measured − 1), as fractions of one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct ErrorSummary {
    rows: usize,
    mean: f64,
    median: f64,
    p90: f64,
    bias: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Coverage {
    share: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Group {
    fabric: String,
    ranks: u32,
    nodes: u32,
    collective: String,
    algorithm: Option<String>,
    protocol: Option<String>,
    library: Option<String>,
    profile: String,
    #[serde(flatten)]
    summary: ErrorSummary,
    slower: usize,
    faster: usize,
    explanation: Option<Explanation>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Explanation {
    parameter: String,
    factor: f64,
    median_before: f64,
    median_after: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct ComparisonRow {
    file: String,
    collective: String,
    ranks: u32,
    nodes: u32,
    bytes: Bytes,
    algorithm: String,
    protocol: String,
    measured_us: f64,
    predicted_us: f64,
    low_us: f64,
    high_us: f64,
    error: f64,
    verdict: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct RejectedRow {
    file: String,
    line: u32,
    reason: String,
}

/// Maximum number of rows in the table of all rows. The rows with the largest errors are shown.
const MAX_ROWS: usize = 2_000;

pub(super) fn page(comparison: &Comparison) -> Page {
    let mut fabrics: Vec<&str> = comparison.groups.iter().map(|group| group.fabric.as_str()).collect();
    fabrics.sort_unstable();
    fabrics.dedup();
    let summary = comparison.summary;
    let mut answer = vec![format!(
        "The predictions differ from {} measured times by {} % in the median, and nine of ten by less than {} %.",
        format::grouped(summary.rows as u64),
        format::percent(summary.median),
        format::percent(summary.p90)
    )];
    if let Some(coverage) = comparison.coverage {
        answer.push(format!("{} % of them are inside the 80 % prediction interval.", format::percent(coverage.share)));
    }
    let worst = comparison.groups.iter().max_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
    if let Some(group) = worst.filter(|_| comparison.groups.len() > 1) {
        answer.push(format!(
            "The group with the largest error is {}: {} % in the median.",
            group.name(),
            format::percent(group.summary.median)
        ));
    }
    let mut profiles: Vec<&str> = comparison.groups.iter().map(|group| group.profile.as_str()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    let mut facts = vec![
        format!(
            "Costs of software: {} {}.",
            if profiles.len() == 1 { "profile" } else { "profiles" },
            profiles.join(", ")
        ),
        "Error: predicted ÷ measured − 1. The 80 % prediction interval contains four of five measurements.".to_owned(),
    ];
    if !comparison.rejected.is_empty() {
        facts.push(format!("{} rows of the logs could not be used; they are listed below.", comparison.rejected.len()));
    }
    let mut sections = vec![
        Section::new("Measured against predicted", charts(comparison)),
        Section::new("Groups", vec![Block::Table("Errors by group".into(), groups(comparison))]),
        Section::new("Every row", vec![Block::Table(rows_caption(comparison), rows(comparison))]),
        Section::new("Assumptions and sources", vec![Block::List(facts)]),
    ];
    if !comparison.rejected.is_empty() {
        let mut table = Table::new(vec![
            Column::new("file", "file", Unit::Text),
            Column::new("line", "line", Unit::Number),
            Column::new("reason", "reason", Unit::Text),
        ]);
        for one in comparison.rejected.iter().take(MAX_ROWS) {
            let line = Value::Count(one.line.into());
            table.row(vec![Value::text(&one.file).into(), line.into(), Value::text(&one.reason).into()]);
        }
        sections.push(Section::new("Not used", vec![Block::Table("Rows that could not be used".into(), table)]));
    }
    Page { title: format!("Measured against predicted on {}", fabrics.join(", ")), answer, sections }
}

impl Group {
    fn name(&self) -> String {
        let strategy = [&self.algorithm, &self.protocol].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        let strategy = if strategy.is_empty() { String::new() } else { format!(" {strategy}") };
        format!("{}{strategy} on {} of {}", self.collective, self.ranks, self.fabric)
    }
}

/// Returns the charts of `compare --chart`, with tooltips.
fn charts(comparison: &Comparison) -> Vec<Block> {
    let mut by_strategy: BTreeMap<(&str, &str), Vec<&ComparisonRow>> = BTreeMap::new();
    for row in &comparison.rows {
        by_strategy.entry((&row.algorithm, &row.protocol)).or_default().push(row);
    }
    let mut strategies: Vec<((&str, &str), Vec<&ComparisonRow>)> = by_strategy.into_iter().collect();
    strategies.sort_by_key(|(strategy, rows)| (std::cmp::Reverse(rows.len()), *strategy));
    let series = strategies.iter().map(|((algorithm, protocol), rows)| ComparedSeries {
        name: format!("{algorithm} {protocol}"),
        protocol: (*protocol).to_owned(),
        points: rows.iter().map(|row| row.point()).collect(),
    });
    let figure = CompareChart { title: String::new(), subtitle: String::new(), series: series.collect() }.figure();
    let details = |chart: &LineChart| -> Vec<Vec<String>> {
        let of_line = |name: &str| {
            let strategy =
                strategies.iter().find(|((algorithm, protocol), _)| name == format!("{algorithm} {protocol}"));
            strategy.map(|(_, rows)| rows.iter().map(|row| row.words()).collect()).unwrap_or_default()
        };
        chart
            .lines
            .iter()
            .map(|line| if let Role::Points(_) = line.role { of_line(&line.name) } else { Vec::new() })
            .collect()
    };
    let block =
        |chart: LineChart| Block::Lines(LinesWithTooltips { tooltips: details(&chart), chart, remark: String::new() });
    figure.panels.into_iter().map(block).collect()
}

impl ComparisonRow {
    fn point(&self) -> ComparedPoint {
        ComparedPoint {
            bytes: self.bytes,
            measured: Picos::from_us(self.measured_us),
            predicted: Picos::from_us(self.predicted_us),
            low: Picos::from_us(self.low_us),
            high: Picos::from_us(self.high_us),
        }
    }

    fn words(&self) -> String {
        format!(
            "{} of {} ranks, {}, error {} %",
            self.collective,
            self.ranks,
            format::bytes(self.bytes),
            format::percent(self.error)
        )
    }
}

fn groups(comparison: &Comparison) -> Table {
    let text = |key: &str, title: &str| Column::new(key, title, Unit::Text);
    let share = |key: &str, title: &str| Column::new(key, title, Unit::Percent);
    let number = |key: &str, title: &str| Column::new(key, title, Unit::Number);
    let mut table = Table::new(vec![
        text("group", "group"),
        text("library", "library"),
        number("nodes", "nodes"),
        number("rows", "rows"),
        share("median", "median"),
        share("mean", "mean"),
        share("p90", "p90"),
        share("bias", "bias"),
        number("slower", "slower"),
        number("faster", "faster"),
        text("explanation", "possible explanation"),
    ]);
    for group in &comparison.groups {
        let (summary, tone) = (group.summary, if group.summary.median > 0.2 { Emphasis::Bad } else { Emphasis::Plain });
        let explained = group.explanation.as_ref().map(|explanation| {
            let (before, after) =
                (format::percent(explanation.median_before), format::percent(explanation.median_after));
            Value::text(format!(
                "{} × {}: {before} % becomes {after} %",
                explanation.parameter,
                format::significant(explanation.factor)
            ))
        });
        table.row(vec![
            Value::text(group.name()).into(),
            Value::or_missing(group.library.as_ref(), Value::text).into(),
            Value::Count(group.nodes.into()).into(),
            Value::Count(summary.rows as u64).into(),
            Cell::from(Value::Share(summary.median)).tone(tone),
            Value::Share(summary.mean).into(),
            Value::Share(summary.p90).into(),
            Value::Deviation(summary.bias).into(),
            Value::Count(group.slower as u64).into(),
            Value::Count(group.faster as u64).into(),
            explained.unwrap_or(Value::Missing).into(),
        ]);
    }
    table
}

fn rows_caption(comparison: &Comparison) -> String {
    match comparison.rows.len() {
        all if all > MAX_ROWS => format!("The {MAX_ROWS} rows of {all} with the largest errors"),
        _ => "All rows".to_owned(),
    }
}

fn rows(comparison: &Comparison) -> Table {
    let time = |key: &str, title: &str| Column::new(key, title, Unit::Micros);
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("ranks", "ranks", Unit::Number),
        Column::new("nodes", "nodes", Unit::Number),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("strategy", "strategy", Unit::Text),
        time("measured_us", "measured"),
        time("predicted_us", "predicted"),
        time("low_us", "low"),
        time("high_us", "high"),
        Column::new("error", "error", Unit::Percent),
        Column::new("verdict", "verdict", Unit::Text),
        Column::new("file", "file", Unit::Text),
    ]);
    let mut rows: Vec<&ComparisonRow> = comparison.rows.iter().collect();
    if rows.len() > MAX_ROWS {
        rows.sort_by(|a, b| b.error.abs().total_cmp(&a.error.abs()));
        rows.truncate(MAX_ROWS);
    }
    let us = |us: f64| Cell::from(Value::Time(Picos::from_us(us)));
    for row in rows {
        table.row(vec![
            Value::text(&row.collective).into(),
            Value::Count(row.ranks.into()).into(),
            Value::Count(row.nodes.into()).into(),
            Value::Bytes(row.bytes).into(),
            Value::text(format!("{} {}", row.algorithm, row.protocol)).into(),
            us(row.measured_us),
            us(row.predicted_us),
            us(row.low_us),
            us(row.high_us),
            Value::Deviation(row.error).into(),
            Value::text(&row.verdict).into(),
            Value::text(&row.file).into(),
        ]);
    }
    table
}
