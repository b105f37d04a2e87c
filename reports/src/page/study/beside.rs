//! The library's default choices in a step of the first-ranked candidate, and its calls over sizes.

use fabricast_planner::library::Library;
use fabricast_planner::study::answer::{Answer, ResultRow};
use fabricast_planner::study::beside::{Beside, Curve, MOST_BETWEEN, MOST_INSIDE, Shown};
use fabricast_topologies::{Bytes, Picos};

use super::super::plan::busbw;
use super::super::{Block, Lines, Picture};
use super::tables::{number, text};
use crate::chart::Figure;
use crate::format;
use crate::table::{Cell, Column, Table, Tone, Unit, Value};

/// Relative difference below which times count as equal.
const LEAST: f64 = 0.005;

/// The library's choices in a step of a job, as a sentence and by call.
pub(super) fn choices(answer: &Answer, job: &str, beside: &Beside) -> Vec<Block> {
    let Some(row) = of_first(answer, job) else { return Vec::new() };
    vec![
        Block::Text(sentence(row, beside)),
        Block::Table(format!("{job}: calls of a step, both ways"), table(row, beside)),
    ]
}

/// Sentence on jobs whose calls on the first-ranked candidate were not examined; `None` if all were.
pub(super) fn left_out(answer: &Answer, besides: &[(String, Beside)]) -> Option<String> {
    let is_left_out = |job: &&str| {
        of_first(answer, job).is_some_and(|row| !row.calls.is_empty()) && besides.iter().all(|(known, _)| known != job)
    };
    let jobs: Vec<&str> = answer.jobs.iter().map(|job| job.name.as_str()).filter(is_left_out).collect();
    (!jobs.is_empty()).then(|| {
        format!(
            "Not looked at in {}: the library's choices are worked out for groups of up to {MOST_BETWEEN} GPUs that leave their NVLink domain \
             and of up to {MOST_INSIDE} inside of one.",
            jobs.join(", ")
        )
    })
}

fn of_first<'a>(answer: &'a Answer, job: &str) -> Option<&'a ResultRow> {
    let first = &answer.ranking.first()?.candidate;
    answer.results.iter().find(|row| row.candidate == *first && row.job == job)
}

/// Display name of a library: `NCCL 2.29`.
fn name(library: Library) -> String {
    match library {
        Library::Nccl(version) => format!("NCCL {version}"),
        Library::OpenMpi(version) => format!("Open MPI {version}"),
    }
}

fn sentence(row: &ResultRow, beside: &Beside) -> String {
    let name = name(beside.library);
    // A decode step, for example, has no prefill calls.
    let made = || row.calls.iter().zip(&beside.calls).filter(|(call, _)| call.times > 0.0);
    let all = made().count();
    let known: Vec<_> = made().filter_map(|(call, own)| Some((call, own.as_ref()?))).collect();
    let slower = known.iter().filter(|(call, own)| own.time_us > call.time_us * (1.0 + LEAST)).count();
    let faster = known.iter().filter(|(call, own)| own.time_us < call.time_us * (1.0 - LEAST)).count();
    let unknown = all - known.len();
    let unknown = match unknown {
        0 => String::new(),
        some => {
            format!(" What it would do in {some} of {all} calls is not known; these are taken to be as picked.")
        }
    };
    let (ours, own) = beside.step_s;
    let more = own / ours.max(f64::MIN_POSITIVE) - 1.0;
    let step = match more {
        same if same.abs() < LEAST => "a step takes the same time within half a per cent".to_owned(),
        more => format!(
            "a step takes {} instead of {}, {} % {}",
            format::time(Picos::from_us(own * 1e6)),
            format::time(Picos::from_us(ours * 1e6)),
            format::percent(more.abs()),
            if more > 0.0 { "more" } else { "less" }
        ),
    };
    let does = match slower {
        0 => "does none".to_owned(),
        some => format!("does {some}"),
    };
    let better = match faster {
        0 => String::new(),
        some => format!(" and {some} faster"),
    };
    // Calls that overlap with kernels slow these down by the SMs that they use.
    let why = if slower == 0 && more >= LEAST { ", for what its calls hold of the GPUs meanwhile" } else { "" };
    format!(
        "On {}, {name} left to itself {does} of the {all} calls of {} more slowly than what is picked here{better}; {step}{why}.{unknown}",
        row.candidate, row.job
    )
}

fn table(row: &ResultRow, beside: &Beside) -> Table {
    let mut table = Table::new(vec![
        text("phase", "when"),
        text("among", "among"),
        text("collective", "call"),
        Column::new("bytes", "size", Unit::Bytes),
        number("times", "times"),
        text("pick", "pick"),
        Column::new("time_us", "takes", Unit::Micros),
        text("library_default", "library"),
        Column::new("library_us", "takes", Unit::Micros),
        Column::new("gain", "gain", Unit::Percent),
    ]);
    for (call, own) in row.calls.iter().zip(&beside.calls) {
        let own = own.as_ref();
        let gain = own.map(|own| own.time_us / call.time_us.max(f64::MIN_POSITIVE) - 1.0);
        let tone = if gain.is_some_and(|gain| gain > LEAST) { Tone::Good } else { Tone::Plain };
        let time = |us: f64| Value::Time(Picos::from_us(us));
        table.row(vec![
            Value::text(call.phase.replace('_', " ")).into(),
            Value::text(call.among.replace('_', " ")).into(),
            Value::text(&call.collective).into(),
            Value::Bytes(Bytes(call.bytes)).into(),
            Value::Number(call.times).into(),
            Value::text(call.pick.to_string()).into(),
            time(call.time_us).into(),
            Value::or_missing(own, |own| Value::text(format!("{} × {}", own.name, own.strategy.channels))).into(),
            Value::or_missing(own, |own| time(own.time_us)).into(),
            Cell::from(Value::or_missing(gain, Value::Deviation)).tone(tone),
        ]);
    }
    table
}

/// Schedule of the call with the largest share of a step.
pub(super) fn schedule(beside: &Beside) -> Vec<Block> {
    let Some(Shown { among, bytes, pick, schedule }) = &beside.shown else { return Vec::new() };
    let call = &schedule.header().call;
    let drawn = match call.bytes < *bytes {
        true => format!("on one channel, in a call of {}", format::bytes(call.bytes)),
        false => "on one channel".to_owned(),
    };
    let caption = format!(
        "{} of {} among the {} ranks of each {} group by {pick}: what ranks send each other {drawn}",
        call.collective,
        format::bytes(*bytes),
        call.ranks,
        among.name(),
    );
    Picture::of_schedule(caption, schedule).map(Block::Picture).into_iter().collect()
}

/// Bus bandwidth of the calls with the largest shares of a step.
pub(super) fn curves(beside: &Beside) -> Vec<Block> {
    beside.curves.iter().map(curve).collect()
}

/// Variant of `curves` that returns figures.
#[must_use]
pub fn bandwidths(beside: &Beside) -> Vec<Figure> {
    let figure = |one: &Curve| {
        let Lines { mut chart, x_title, remark, .. } = of_curve(one);
        let title = std::mem::take(&mut chart.title);
        Figure { title, subtitle: remark, ribbon: None, panels: vec![chart], x_title }
    };
    beside.curves.iter().map(figure).collect()
}

fn curve(one: &Curve) -> Block {
    Block::Lines(of_curve(one))
}

fn of_curve(one: &Curve) -> Lines {
    let rows: Vec<_> = one.plan.rows.iter().collect();
    let mut lines = busbw(&one.plan, one.collective, &rows);
    lines.chart.title = format!(
        "{} among the {} ranks of one {} group: bus bandwidth, GB/s",
        one.collective,
        one.plan.ranks,
        one.among.name()
    );
    let called: Vec<String> = one.called.iter().map(|&size| format::bytes(size)).collect();
    lines.remark = format!(
        "The step calls it at {}, all groups at once, by what the table above says; this is one group alone, whose pick is the library's choice where the band does not tell them apart.",
        called.join(", ")
    );
    lines
}
