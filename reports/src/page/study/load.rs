//! Utilization of links in a step, by the kinds of devices at their ends, and the calls of the step.

use fabricast_study::answer::{Answer, CallRow, ExchangeRow, LoadRow, ResultRow};
use fabricast_topologies::{Bytes, Picos};

use super::super::Block;
use super::charts::sort_results;
use super::step_term;
use super::tables::{number, share, text};
use crate::chart::{Axis, Bar, BarChart, Quantity};
use crate::format;
use crate::table::{Column, Table, Unit, Value};

/// Number of candidates whose calls are shown.
const SHOWN: usize = 3;

/// Returns the blocks on a job: the links of the first-ranked candidate, and those of all candidates.
pub(super) fn blocks(answer: &Answer, job: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = links(answer, job).map(Block::Bars).into_iter().collect();
    let rows: Vec<&ResultRow> = sort_results(answer, job).filter(|row| !row.load.is_empty()).collect();
    if !rows.is_empty() {
        blocks.push(Block::Table(format!("{job}: links of every candidate"), table(&rows)));
    }
    blocks
}

/// Returns tables of the calls of a job's step, for the first-ranked candidates.
pub(super) fn calls(answer: &Answer, job: &str) -> Vec<Block> {
    let rows: Vec<&ResultRow> = sort_results(answer, job)
        .filter(|row| !(row.calls.is_empty() && row.exchanges.is_empty()))
        .take(SHOWN)
        .collect();
    match rows.is_empty() {
        true => Vec::new(),
        false => vec![Block::Table(format!("{job}: calls of a step"), calls_table(&rows))],
    }
}

/// Returns the chart of the utilization of the first-ranked candidate's links in a step of a job, with one bar per
/// class of equal links; `None` if it is unknown.
#[must_use]
pub fn links(answer: &Answer, job: &str) -> Option<BarChart> {
    let row = sort_results(answer, job).find(|row| !row.load.is_empty())?;
    let bar = |one: &LoadRow| Bar {
        name: one.links.clone(),
        parts: vec![one.mean.min(one.max), one.max - one.mean],
        remark: String::new(),
    };
    let busiest = row.load.first()?;
    Some(BarChart {
        title: format!("{job} on {}: link utilization in a step", row.candidate),
        subtitle: format!(
            "Bytes carried divided by the capacity of the link during a step. Busiest: {}, {} %.",
            busiest.busiest,
            format::percent(busiest.max)
        ),
        axis: Axis::linear(Quantity::Share),
        parts: vec!["mean of all".into(), "up to the busiest".into()],
        bars: row.load.iter().map(bar).collect(),
    })
}

fn table(rows: &[&ResultRow]) -> Table {
    let mut table = Table::new(vec![
        text("candidate", "candidate"),
        text("links", "links"),
        number("count", "number"),
        number("gb_per_s", "GB/s each way"),
        share("mean", "busy, mean"),
        share("max", "busiest"),
        text("busiest", "which"),
    ]);
    for row in rows {
        for one in &row.load {
            table.row(vec![
                Value::text(&row.candidate).into(),
                Value::text(&one.links).into(),
                Value::Count(one.count).into(),
                Value::Number(one.gb_per_s).into(),
                Value::Share(one.mean).into(),
                Value::Share(one.max).into(),
                Value::text(&one.busiest).into(),
            ]);
        }
    }
    table
}

fn calls_table(rows: &[&ResultRow]) -> Table {
    let mut table = Table::new(vec![
        text("candidate", "candidate"),
        text("phase", "when"),
        text("dimension", "dimension"),
        text("collective", "call"),
        Column::new("bytes", "size", Unit::Bytes),
        number("ranks", "ranks"),
        number("groups", "groups"),
        number("times", "times"),
        text("pick", "strategy"),
        Column::new("time_us", "time each", Unit::Micros),
    ]);
    for row in rows {
        for one in &row.calls {
            let CallRow { phase, dimension: among, collective, bytes, ranks, groups, times, pick, time_us } = one;
            table.row(vec![
                Value::text(&row.candidate).into(),
                Value::text(step_term(phase)).into(),
                Value::text(among.replace('_', " ")).into(),
                Value::text(collective).into(),
                Value::Bytes(Bytes(*bytes)).into(),
                Value::Count(*ranks).into(),
                Value::Count(*groups).into(),
                Value::Number(*times).into(),
                Value::text(pick.to_string()).into(),
                Value::Time(Picos::from_us(*time_us)).into(),
            ]);
        }
        for ExchangeRow { phase, operation, kernel, token_type, tokens, ranks, times, time_us } in &row.exchanges {
            table.row(vec![
                Value::text(&row.candidate).into(),
                Value::text(step_term(phase)).into(),
                Value::text("expert").into(),
                Value::text(operation).into(),
                Value::text(format!("{tokens} tokens")).into(),
                Value::Count(*ranks).into(),
                Value::text("").into(),
                Value::Number(*times).into(),
                Value::text(format!("{kernel}, {token_type}")).into(),
                Value::Time(Picos::from_us(*time_us)).into(),
            ]);
        }
    }
    table
}
