//! The library's default strategies in a step of the first-ranked candidate, and its calls over sizes.

use fabricast_libraries::Library;
use fabricast_study::answer::{Answer, ResultRow};
use fabricast_study::library_comparison::{
    Curve, LibraryComparison, MAX_RANKS_BETWEEN_DOMAINS, MAX_RANKS_IN_DOMAIN, ShownSchedule, StepTimes,
};
use fabricast_topologies::{Bytes, Picos};

use super::super::plan::busbw;
use super::super::{Block, LinesWithTooltips, Picture};
use super::step_term;
use super::tables::{number, text};
use crate::chart::Figure;
use crate::format;
use crate::table::{Cell, Column, Emphasis, Table, Unit, Value};

/// Relative difference below which two times count as equal.
const MIN_DIFFERENCE: f64 = 0.005;

/// Returns the library's strategies in a step of a job, as a sentence and by call.
pub(super) fn choices(answer: &Answer, job: &str, comparison: &LibraryComparison) -> Vec<Block> {
    let Some(row) = first_ranked_result(answer, job) else { return Vec::new() };
    vec![
        Block::Text(sentence(row, comparison)),
        Block::Table(format!("{job}: calls of a step, picks and library defaults"), table(row, comparison)),
    ]
}

/// Returns a sentence on jobs whose calls on the first-ranked candidate were not examined; `None` if all were examined.
pub(super) fn unexamined_jobs(answer: &Answer, comparisons: &[(String, LibraryComparison)]) -> Option<String> {
    let is_left_out = |job: &&str| {
        first_ranked_result(answer, job).is_some_and(|row| !row.calls.is_empty())
            && comparisons.iter().all(|(compared, _)| compared != job)
    };
    let jobs: Vec<&str> = answer.jobs.iter().map(|job| job.name.as_str()).filter(is_left_out).collect();
    (!jobs.is_empty()).then(|| {
        format!(
            "Not examined in {}: the library's choices are predicted for groups of up to {MAX_RANKS_BETWEEN_DOMAINS} GPUs that leave their NVLink domain and of up to {MAX_RANKS_IN_DOMAIN} inside of one.",
            jobs.join(", ")
        )
    })
}

fn first_ranked_result<'a>(answer: &'a Answer, job: &str) -> Option<&'a ResultRow> {
    let first = &answer.ranking.first()?.candidate;
    answer.results.iter().find(|row| row.candidate == *first && row.job == job)
}

/// Returns the display name of a library, such as `NCCL 2.29`.
fn name(library: Library) -> String {
    match library {
        Library::Nccl(version) => format!("NCCL {version}"),
        Library::Rccl(version) => format!("RCCL {version}"),
        Library::OpenMpi(version) => format!("Open MPI {version}"),
    }
}

fn sentence(row: &ResultRow, comparison: &LibraryComparison) -> String {
    let name = name(comparison.library);
    // Some steps lack calls: a decode step, for example, has no calls of prefill.
    let active_calls = || row.calls.iter().zip(&comparison.calls).filter(|(call, _)| call.times > 0.0);
    let total = active_calls().count();
    let predicted: Vec<_> = active_calls().filter_map(|(call, default)| Some((call, default.as_ref()?))).collect();
    let slower =
        predicted.iter().filter(|(call, default)| default.time.us() > call.time_us * (1.0 + MIN_DIFFERENCE)).count();
    let faster =
        predicted.iter().filter(|(call, default)| default.time.us() < call.time_us * (1.0 - MIN_DIFFERENCE)).count();
    let unknown = total - predicted.len();
    let unknown = match unknown {
        0 => String::new(),
        some => {
            format!(" Its choice in {some} of {total} calls cannot be predicted; these are assumed to be as picked.")
        }
    };
    let StepTimes { picked, library_default } = comparison.step;
    let seconds = |time: Picos| time.0 as f64 / 1e12;
    let more = seconds(library_default) / seconds(picked).max(f64::MIN_POSITIVE) - 1.0;
    let step = match more {
        same if same.abs() < MIN_DIFFERENCE => "the step time is the same within 0.5 %".to_owned(),
        more => format!(
            "the step time is {} instead of {}, {} % {}",
            format::time(library_default),
            format::time(picked),
            format::percent(more.abs()),
            if more > 0.0 { "more" } else { "less" }
        ),
    };
    let does = match slower {
        0 => "none".to_owned(),
        some => some.to_string(),
    };
    let better = match faster {
        0 => String::new(),
        some => format!(" and faster for {some}"),
    };
    // Calls that overlap with kernels slow the kernels by the SMs that they use.
    let reason = if slower == 0 && more >= MIN_DIFFERENCE { ", because of the SMs that its calls use" } else { "" };
    format!(
        "On {}, the default of {name} is slower than the pick for {does} of the {total} calls of {}{better}; {step}{reason}.{unknown}",
        row.candidate, row.job
    )
}

fn table(row: &ResultRow, comparison: &LibraryComparison) -> Table {
    let mut table = Table::new(vec![
        text("phase", "when"),
        text("dimension", "dimension"),
        text("collective", "call"),
        Column::new("bytes", "size", Unit::Bytes),
        number("times", "times"),
        text("pick", "pick"),
        Column::new("time_us", "time", Unit::Micros),
        text("library_default", "library"),
        Column::new("library_us", "time", Unit::Micros),
        Column::new("gain", "gain", Unit::Percent),
    ]);
    for (call, default) in row.calls.iter().zip(&comparison.calls) {
        let default = default.as_ref();
        let gain = default.map(|default| default.time.us() / call.time_us.max(f64::MIN_POSITIVE) - 1.0);
        let tone = if gain.is_some_and(|gain| gain > MIN_DIFFERENCE) { Emphasis::Good } else { Emphasis::Plain };
        table.row(vec![
            Value::text(step_term(&call.phase)).into(),
            Value::text(call.dimension.replace('_', " ")).into(),
            Value::text(&call.collective).into(),
            Value::Bytes(Bytes(call.bytes)).into(),
            Value::Number(call.times).into(),
            Value::text(call.pick.to_string()).into(),
            Value::Time(Picos::from_us(call.time_us)).into(),
            Value::or_missing(default, |default| {
                Value::text(format!("{} × {}", default.name, default.strategy.channels))
            })
            .into(),
            Value::or_missing(default, |default| Value::Time(default.time)).into(),
            Cell::from(Value::or_missing(gain, Value::Deviation)).tone(tone),
        ]);
    }
    table
}

/// Returns the picture of the schedule of the call with the largest share of a step; empty if there is none.
pub(super) fn schedule(comparison: &LibraryComparison) -> Vec<Block> {
    let Some(ShownSchedule { dimension: among, bytes, pick, schedule }) = &comparison.shown else { return Vec::new() };
    let call = &schedule.header().call;
    let drawn = match call.bytes < *bytes {
        true => format!("on one channel, in a call of {}", format::bytes(call.bytes)),
        false => "on one channel".to_owned(),
    };
    let caption = format!(
        "{} of {} among the {} ranks of each {} group by {pick}: transfers between ranks {drawn}",
        call.collective,
        format::bytes(*bytes),
        call.ranks,
        among.name(),
    );
    Picture::from_schedule(caption, schedule).map(Block::Picture).into_iter().collect()
}

/// Returns charts of the bus bandwidth of the calls with the largest shares of a step.
pub(super) fn curves(comparison: &LibraryComparison) -> Vec<Block> {
    comparison.curves.iter().map(curve).collect()
}

/// Returns the bus bandwidth of the calls with the largest shares of a step, one figure per call.
#[must_use]
pub fn bandwidths(comparison: &LibraryComparison) -> Vec<Figure> {
    let figure = |curve: &Curve| {
        let LinesWithTooltips { mut chart, remark, .. } = curve_lines(curve);
        let title = std::mem::take(&mut chart.title);
        Figure { title, subtitle: remark, panels: vec![chart], ..Figure::default() }
    };
    comparison.curves.iter().map(figure).collect()
}

fn curve(data: &Curve) -> Block {
    Block::Lines(curve_lines(data))
}

fn curve_lines(curve: &Curve) -> LinesWithTooltips {
    let rows: Vec<_> = curve.plan.rows.iter().collect();
    let mut lines = busbw(&curve.plan, curve.collective, &rows);
    lines.chart.title = format!(
        "{} among the {} ranks of one {} group: bus bandwidth, GB/s",
        curve.collective,
        curve.plan.ranks,
        curve.dimension.name()
    );
    let called: Vec<String> = curve.sizes.iter().map(|&size| format::bytes(size)).collect();
    lines.remark = format!(
        "The step calls it at {}, all groups concurrently, as in the table above; this is one group alone, whose pick is the library's choice where their intervals overlap.",
        called.join(", ")
    );
    lines
}
