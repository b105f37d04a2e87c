//! Timelines of steps: activity of each pipeline stage, for the first-ranked candidates.

use fabricast_perf::step::Activity;
use fabricast_study::answer::{Answer, IntervalRow, JobKind, ResultRow, TimelineRow, TrackKind};

use super::super::Block;
use crate::chart::{Spans, TimeSpan};
use crate::format;

/// Number of candidates whose timelines are shown, which limits the size of the page.
const SHOWN: usize = 3;

/// Returns blocks with the timelines of a job's steps, for the first-ranked candidates.
pub(super) fn blocks(answer: &Answer, job: &str) -> Vec<Block> {
    timelines(answer, job).into_iter().map(Block::Spans).collect()
}

/// Returns the timelines of a job's steps, for the first-ranked candidates.
#[must_use]
pub fn timelines(answer: &Answer, job: &str) -> Vec<Spans> {
    super::charts::sort_results(answer, job)
        .filter(|row| !row.timelines.is_empty())
        .take(SHOWN)
        .flat_map(|row| row.timelines.iter().map(move |timeline| chart(row, timeline)))
        .collect()
}

fn chart(row: &ResultRow, timeline: &TimelineRow) -> Spans {
    let mut activities: Vec<Activity> =
        timeline.tracks.iter().flat_map(|track| &track.intervals).map(|one| one.activity).collect();
    activities.sort_unstable();
    activities.dedup();
    let us = |ns: u64| ns as f64 / 1e3;
    let spans = timeline.tracks.iter().enumerate().flat_map(|(number, track)| {
        let activities = &activities;
        track.intervals.iter().map(move |one| TimeSpan {
            row: number,
            kind: activities.binary_search(&one.activity).unwrap_or_default(),
            from: us(one.begin_ns),
            to: us(one.end_ns),
            name: interval_name(one),
        })
    });
    let spans: Vec<TimeSpan> = spans.collect();
    let left_out = match timeline.omitted_stages {
        0 => String::new(),
        some => format!(" {} more stages are not shown.", format::grouped(some)),
    };
    let step = step_title(&timeline.step);
    let description = match timeline.tracks.iter().any(|track| track.kind == TrackKind::Communication) {
        true => {
            "The upper track of a stage is computation, the lower one overlapped communication; gaps are waiting time."
        }
        false => "Gaps are waiting time.",
    };
    let copy = match (row.kind, row.parallel) {
        (JobKind::Training, Some(parallel)) => {
            format!("One model replica, {parallel}, {} micro-batches.", row.micro_batches)
        }
        (JobKind::Inference, Some(parallel)) => format!("One replica, {parallel}."),
        (JobKind::Trace, _) | (_, None) => String::new(),
    };
    Spans {
        title: format!("{} on {}: timeline of {step}", row.job, row.candidate),
        rows: timeline
            .tracks
            .iter()
            .map(|track| {
                let has_stages = timeline.tracks.iter().any(|one| one.stage > 0);
                track_name(track.kind, has_stages.then_some(track.stage))
            })
            .collect(),
        kinds: activities.iter().map(|activity| kind(*activity).to_owned()).collect(),
        end: spans.iter().map(|span| span.to).fold(0.0, f64::max),
        spans,
        remark: format!("{copy} {description}{left_out}"),
    }
}

/// Returns the kind of a step, such as `a step with prefill`. `step`: its name in `results.json`.
#[must_use]
pub fn step_title(step: &str) -> String {
    match step {
        "step" => "a step".to_owned(),
        "with prompts" => "a step with prefill".to_owned(),
        "without prompts" => "a step without prefill".to_owned(),
        other => format!("a step {other}"),
    }
}

/// Returns the name of a track. `stage`: its pipeline stage, if there are several.
fn track_name(kind: TrackKind, stage: Option<u64>) -> String {
    match (kind, stage) {
        (TrackKind::Compute, Some(stage)) => format!("stage {stage}"),
        (TrackKind::Compute, None) => "GPUs".to_owned(),
        (TrackKind::Communication, Some(stage)) => format!("{stage}: overlapped"),
        (TrackKind::Communication, None) => "overlapped".to_owned(),
    }
}

/// Returns the name of an activity in the legend.
fn kind(activity: Activity) -> &'static str {
    match activity {
        Activity::Forward => "forward",
        Activity::Backward => "backward",
        Activity::PipelineTransfer => "pipeline transfer",
        Activity::Gradients => "gradient communication",
        Activity::Optimizer => "optimizer",
        Activity::Offload => "waits for offloaded data",
        Activity::Weights => "weight communication",
        Activity::Embedding => "embedding",
        Activity::Compute => "kernels",
        Activity::Tensor => "tensor calls",
        Activity::Expert => "expert exchange",
        Activity::Logits => "logits",
        Activity::Outputs => "input and output transfers",
        Activity::Launch => "waits for launches",
        Activity::Bubble => "waits for other streams",
        Activity::Merged => "more intervals",
    }
}

/// Returns the name of an interval, such as `forward, micro-batch 3`.
#[must_use]
pub fn interval_name(interval: &IntervalRow) -> String {
    let IntervalRow { activity, number, chunk, .. } = *interval;
    let chunk_text = if chunk > 0 { format!(", model chunk {chunk}") } else { String::new() };
    match activity {
        Activity::Forward | Activity::Backward => format!("{}, micro-batch {number}{chunk_text}", kind(activity)),
        Activity::PipelineTransfer => format!("pipeline transfer{chunk_text}"),
        Activity::Compute | Activity::Expert | Activity::Tensor => format!("{}, layer {number}", kind(activity)),
        Activity::Gradients => format!("gradients, bucket {number}"),
        Activity::Merged => format!("{} more intervals", format::grouped(number)),
        other => kind(other).to_owned(),
    }
}
