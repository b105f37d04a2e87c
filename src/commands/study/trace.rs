//! `study --trace`: Chrome trace of the steps of a study, with a process per candidate, job and pipeline stage.
//!
//! A process has a thread for computation, for communication that overlaps with it, and for waiting time (pipeline
//! bubbles). Arrows connect the passes of a micro-batch from stage to stage, and the optimizer with the last gradients.

use std::collections::BTreeMap;

use fabricast_perf::step::Activity;
use fabricast_reports::page::{interval_name, step_title};
use fabricast_reports::trace::{Argument, Arrows, TraceNames, TraceSpan};
use fabricast_sim::schedule::{Channel, Rank};
use fabricast_study::answer::{Answer, IntervalRow, ResultRow, TimelineRow, TrackKind};
use fabricast_topologies::Picos;

use super::super::trace::encode;
use crate::failure::Failure;
use crate::output::Output;

const COMPUTE: Channel = Channel(0);
const COMMUNICATION: Channel = Channel(1);
const WAITING: Channel = Channel(2);

/// Writes the trace of all steps of an answer ([`encode`]).
///
/// # Errors
/// [`Failure`]: there is no step, or the trace cannot be encoded.
pub fn write_trace(answer: &Answer, output: &Output) -> Result<Vec<u8>, Failure> {
    let mut steps = StepTraces::default();
    for row in &answer.results {
        for timeline in &row.timelines {
            steps.add(row, timeline);
        }
    }
    if steps.spans.is_empty() {
        return Err(Failure::input("--trace shows steps of training and inference jobs, and the study has none"));
    }
    steps.spans.sort_by_key(|span| (span.start, span.rank, span.channel));
    let names = TraceNames {
        process: &|rank| steps.processes.get(rank.0 as usize).cloned().unwrap_or_default(),
        thread: &|_, channel| {
            match channel {
                COMPUTE => "computation",
                COMMUNICATION => "overlapped communication",
                _ => "waiting",
            }
            .to_owned()
        },
        arrow: "dependency",
        metadata: vec![("study", format!("{} candidates", answer.candidates.len()))],
    };
    encode(steps.spans.iter().cloned(), &[], &names, "intervals", output)
}

/// Pass of a micro-batch: activity, index of the micro-batch and of the model chunk, stage.
type Pass = (Activity, u64, u64, u64);

/// Spans of several steps.
#[derive(Default)]
struct StepTraces {
    /// Names of the processes, by their ranks in the trace.
    processes: Vec<String>,
    spans: Vec<TraceSpan<'static>>,
    arrows: u32,
}

impl StepTraces {
    fn add(&mut self, row: &ResultRow, timeline: &TimelineRow) {
        let first = self.processes.len() as u32;
        let stages: Vec<u64> = timeline
            .tracks
            .iter()
            .map(|track| track.stage)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        let title = format!("{} on {}, {}", row.job, row.candidate, step_title(&timeline.step));
        self.processes.extend(stages.iter().map(|stage| match stages.as_slice() {
            [_] => title.clone(),
            _ => format!("{title}, stage {stage}"),
        }));
        let mut passes: BTreeMap<Pass, usize> = BTreeMap::new();
        let mut last_gradients: BTreeMap<u64, usize> = BTreeMap::new();
        let mut optimizers: BTreeMap<u64, usize> = BTreeMap::new();
        let end = timeline.tracks.iter().flat_map(|track| &track.intervals).map(|one| one.end_ns).max().unwrap_or(0);
        for track in &timeline.tracks {
            let number = stages.iter().position(|&stage| stage == track.stage).unwrap_or_default() as u32;
            let rank = Rank(first + number);
            let mut free = 0;
            for interval in &track.intervals {
                let span = self.spans.len();
                let channel = match (track.kind, interval.activity) {
                    (_, Activity::Bubble) => WAITING,
                    (TrackKind::Compute, _) => COMPUTE,
                    (TrackKind::Communication, _) => COMMUNICATION,
                };
                self.push(rank, channel, interval_name(interval), (interval.begin_ns, interval.end_ns));
                match interval.activity {
                    Activity::Forward | Activity::Backward => {
                        passes.insert((interval.activity, interval.number, interval.chunk, track.stage), span);
                    }
                    Activity::Gradients => {
                        last_gradients.insert(track.stage, span);
                    }
                    Activity::Optimizer => {
                        optimizers.entry(track.stage).or_insert(span);
                    }
                    _ => {}
                }
                if track.kind == TrackKind::Compute {
                    self.push_waiting(rank, free, interval);
                    free = free.max(interval.end_ns);
                }
            }
            if track.kind == TrackKind::Compute && free < end {
                self.push(rank, WAITING, "waits for the other stages or for communication".to_owned(), (free, end));
            }
        }
        self.connect_passes(&passes);
        for (stage, optimizer) in optimizers {
            if let Some(&gradients) = last_gradients.get(&stage) {
                self.connect(gradients, optimizer);
            }
        }
    }

    fn push(&mut self, rank: Rank, channel: Channel, name: String, (begin, end): (u64, u64)) {
        let time = |ns: u64| Picos(ns.saturating_mul(1000));
        self.spans.push(TraceSpan {
            rank,
            channel,
            name: name.into(),
            start: time(begin),
            end: time(end),
            arguments: Vec::<(&'static str, Argument<'static>)>::new(),
            arrows: Arrows::default(),
        });
    }

    /// Adds the time from the end of the previous interval to the next one, for which the stage waits.
    fn push_waiting(&mut self, rank: Rank, free: u64, next: &IntervalRow) {
        if next.begin_ns > free {
            self.push(rank, WAITING, format!("waits for {}", interval_name(next)), (free, next.begin_ns));
        }
    }

    /// Connects each pass with the pass of its micro-batch that precedes it on another stage: of the previous stage
    /// forward, and of the next stage backward; chunks of an interleaved schedule continue at the other end.
    fn connect_passes(&mut self, passes: &BTreeMap<Pass, usize>) {
        let last = passes.keys().map(|&(_, _, _, stage)| stage).max().unwrap_or(0);
        for (&(activity, number, chunk, stage), &to) in passes {
            let before = match activity {
                Activity::Forward if stage > 0 => Some((chunk, stage - 1)),
                Activity::Forward => chunk.checked_sub(1).map(|chunk| (chunk, last)),
                _ if stage < last => Some((chunk, stage + 1)),
                _ => Some((chunk + 1, 0)),
            };
            let from = before.and_then(|(chunk, stage)| passes.get(&(activity, number, chunk, stage)));
            if let Some(&from) = from {
                self.connect(from, to);
            }
        }
    }

    /// Adds an arrow between two spans, if the first does not start after the second.
    fn connect(&mut self, from: usize, to: usize) {
        let start = |span: usize| self.spans.get(span).map(|span| span.start);
        if start(from) > start(to) || from == to {
            return;
        }
        if let Some(span) = self.spans.get_mut(from) {
            span.arrows.outgoing.push(self.arrows);
        }
        if let Some(span) = self.spans.get_mut(to) {
            span.arrows.incoming.push(self.arrows);
        }
        self.arrows += 1;
    }
}
