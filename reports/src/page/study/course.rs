//! Timelines of steps: activity of each pipeline stage, for the first-ranked candidates.

use fabricast_planner::step::Doing;
use fabricast_planner::study::answer::{Answer, CourseRow, IntervalRow, JobKind, LaneKind, LaneRow, ResultRow};

use super::super::Block;
use crate::chart::{Span, Spans};
use crate::format;

/// Number of candidates shown, which limits the size of the page.
const SHOWN: usize = 3;

/// Blocks with the timelines of a job's steps, for the first-ranked candidates.
pub(super) fn blocks(answer: &Answer, job: &str) -> Vec<Block> {
    courses(answer, job).into_iter().map(Block::Spans).collect()
}

/// Timelines of a job's steps, for the first-ranked candidates.
#[must_use]
pub fn courses(answer: &Answer, job: &str) -> Vec<Spans> {
    super::charts::in_order(answer, job)
        .filter(|row| !row.courses.is_empty())
        .take(SHOWN)
        .flat_map(|row| row.courses.iter().map(move |course| chart(row, course)))
        .collect()
}

fn chart(row: &ResultRow, course: &CourseRow) -> Spans {
    let mut doings: Vec<Doing> = course.lanes.iter().flat_map(|lane| &lane.intervals).map(|one| one.doing).collect();
    doings.sort_unstable();
    doings.dedup();
    let us = |ns: u64| ns as f64 / 1e3;
    let spans = course.lanes.iter().enumerate().flat_map(|(number, lane)| {
        let doings = &doings;
        lane.intervals.iter().map(move |one| Span {
            row: number,
            kind: doings.binary_search(&one.doing).unwrap_or_default(),
            from: us(one.begin_ns),
            to: us(one.end_ns),
            name: said(one),
        })
    });
    let spans: Vec<Span> = spans.collect();
    let left_out = match course.stages_left_out {
        0 => String::new(),
        some => format!(" {} more stages are left out.", format::grouped(some)),
    };
    let step = match course.step.as_str() {
        "step" => "a step".to_owned(),
        other => format!("a step {other}"),
    };
    let of = match course.lanes.iter().any(|lane| lane.lane == LaneKind::Beside) {
        true => "What a stage does is above, what travels beside its work below; what is empty waits.",
        false => "What is empty waits.",
    };
    let copy = match (row.kind, row.parallel) {
        (JobKind::Training, Some(own)) => format!("One copy of the model, {own}, {} micro-batches.", row.micro_batches),
        (JobKind::Inference, Some(own)) => format!("One replica, {own}."),
        (JobKind::Trace, _) | (_, None) => String::new(),
    };
    Spans {
        title: format!("{} on {}: {step} in time", row.job, row.candidate),
        rows: course.lanes.iter().map(|lane| lane_name(lane, course.lanes.iter().any(|one| one.stage > 0))).collect(),
        kinds: doings.iter().map(|doing| kind(*doing).to_owned()).collect(),
        end: spans.iter().map(|span| span.to).fold(0.0, f64::max),
        spans,
        remark: format!("{copy} {of}{left_out}"),
    }
}

fn lane_name(lane: &LaneRow, several: bool) -> String {
    match (lane.lane, several) {
        (LaneKind::Work, true) => format!("stage {}", lane.stage),
        (LaneKind::Work, false) => "GPUs".to_owned(),
        (LaneKind::Beside, true) => format!("{}: beside it", lane.stage),
        (LaneKind::Beside, false) => "beside them".to_owned(),
    }
}

/// Name in the legend.
fn kind(doing: Doing) -> &'static str {
    match doing {
        Doing::Forward => "forward",
        Doing::Backward => "backward",
        Doing::HandOff => "hand-off",
        Doing::Gradients => "gradients travel",
        Doing::Optimizer => "optimizer",
        Doing::Weights => "weights travel",
        Doing::Words => "words",
        Doing::Compute => "kernels",
        Doing::Tensor => "tensor calls",
        Doing::Expert => "experts' exchange",
        Doing::Logits => "scores",
        Doing::Outputs => "inputs and outputs travel",
        Doing::Launch => "waits for launches",
        Doing::Bubble => "waits for other streams",
        Doing::More => "more of the same",
    }
}

fn said(one: &IntervalRow) -> String {
    let IntervalRow { doing, number, chunk, .. } = *one;
    let stretch = if chunk > 0 { format!(", stretch {chunk}") } else { String::new() };
    match doing {
        Doing::Forward | Doing::Backward => format!("{}, micro-batch {number}{stretch}", kind(doing)),
        Doing::HandOff => format!("hand-off{stretch}"),
        Doing::Compute | Doing::Expert | Doing::Tensor => format!("{}, layer {number}", kind(doing)),
        Doing::Gradients => format!("gradients, bucket {number}"),
        Doing::More => format!("{} more in a row", format::grouped(number)),
        other => kind(other).to_owned(),
    }
}
