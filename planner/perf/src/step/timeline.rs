//! Timeline of a training step: intervals of each stage and of the communication that overlaps with it.
//!
//! The code that computes the step's time records the timeline pass by pass, so both agree: the last end is the step's
//! time, and the intervals of the stage that ends last add up to the step's shares. The timeline shows one replica of
//! the model, on the first tensor-parallel rank of each stage. It describes a steady-state step: weights that the
//! previous step's optimizer sent may still be arriving at its start.

use fabricast_topologies::Picos;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

/// Activity of a pipeline stage or of its communication during an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Activity {
    /// Forward pass of a micro-batch through a model chunk, its calls included.
    Forward,
    /// Backward pass of a micro-batch through a model chunk, its calls included.
    Backward,
    /// Pipeline point-to-point transfer that the sending stage waits for.
    PipelineTransfer,
    /// Reduction of a gradient bucket by data-parallel ranks.
    Gradients,
    /// Optimizer update of a rank's own parameters.
    Optimizer,
    /// Wait for offloaded weights and gradients of the passes.
    Offload,
    /// Gathering of updated weights after the optimizer.
    Weights,
    /// Kernels of the embedding in an inference step.
    Embedding,
    /// Kernels of a layer in an inference step.
    Compute,
    /// Tensor-parallel calls of a layer, the embedding or the logits.
    Tensor,
    /// Token dispatch to experts and combine, in a layer.
    Expert,
    /// Kernels of the logits and the loss.
    Logits,
    /// Transfer of input tokens and logits in a single-process job.
    Outputs,
    /// Kernel launch time on the host in a single-process job.
    Launch,
    /// Idle time of an inference step while other streams of requests run.
    Bubble,
    /// Several intervals merged into one, in a shortened timeline.
    Merged,
}

impl Activity {
    /// All activities, in the order of declaration.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the name of the activity in JSON output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::PipelineTransfer => "hand_off",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Offload => "offload",
            Self::Weights => "weights",
            Self::Embedding => "words",
            Self::Compute => "compute",
            Self::Tensor => "tensor",
            Self::Expert => "expert",
            Self::Logits => "logits",
            Self::Outputs => "outputs",
            Self::Launch => "launch",
            Self::Bubble => "bubble",
            Self::Merged => "more",
        }
    }
}

/// Interval of one activity on a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Activity during the interval.
    pub activity: Activity,
    /// Index from 0: micro-batch of a pass, layer of an inference step, or gradient bucket. For [`Activity::Merged`],
    /// the number of merged intervals.
    pub index: u64,
    /// Index of the model chunk of a pass, from 0; 0 for other activities.
    pub chunk: u64,
    /// Start of the interval, from the start of the step.
    pub begin: Picos,
    /// End of the interval, from the start of the step.
    pub end: Picos,
}

impl Interval {
    /// Returns the duration of the interval.
    #[must_use]
    pub fn time(&self) -> Picos {
        self.end - self.begin
    }
}

/// Interval in a sequence of consecutive intervals on a track, given by its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimelinePart {
    /// Activity during the interval.
    pub activity: Activity,
    /// Index as in [`Interval::index`].
    pub index: u64,
    /// Duration of the interval.
    pub time: Picos,
}

/// Track of a timeline, identified by the index of its pipeline stage, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// Computation on the GPUs of a pipeline stage.
    Stage(u64),
    /// Communication that overlaps with the computation of a stage.
    Communication(u64),
}

/// Timeline of a step: tracks in display order. The intervals of a track are sorted by time, do not overlap and are not
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Tracks with their intervals, in the order in which they are displayed.
    pub tracks: Vec<(Track, Vec<Interval>)>,
    /// Number of pipeline stages omitted from a shortened timeline.
    pub omitted_stages: u64,
}

/// Maximum number of pipeline stages in a shortened timeline.
const MAX_STAGES: usize = 8;
/// Maximum total numbers of intervals on compute tracks and on communication tracks in a shortened timeline.
const MAX_INTERVALS: (usize, usize) = (256, 64);

impl Timeline {
    /// Appends an interval to a track, which is created if it does not exist. Empty intervals are ignored.
    pub(crate) fn add(&mut self, track: Track, interval: Interval) {
        if interval.begin >= interval.end {
            return;
        }
        match self.tracks.iter_mut().find(|one| one.0 == track) {
            Some((_, intervals)) => intervals.push(interval),
            None => self.tracks.push((track, vec![interval])),
        }
    }

    /// Returns the end of the last interval of all tracks, from the start of the step.
    #[must_use]
    pub fn end(&self) -> Picos {
        let last = self.tracks.iter().filter_map(|(_, intervals)| intervals.last());
        last.map(|interval| interval.end).max().unwrap_or_default()
    }

    /// Appends consecutive intervals to a track, starting at `begin`. Returns the end of the last one.
    pub(crate) fn add_sequence(&mut self, track: Track, begin: Picos, parts: &[TimelinePart]) -> Picos {
        parts.iter().fold(begin, |begin, &TimelinePart { activity, index, time }| {
            self.add(track, Interval { activity, index, chunk: 0, begin, end: begin + time });
            begin + time
        })
    }

    /// Shortens the timeline for display. If there are many stages, an even selection remains, which includes the first
    /// and the last. If a track has many intervals, the first and the last ones remain, and those between are merged
    /// into one [`Activity::Merged`].
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.tracks.sort_by_key(|one| one.0.sort_key());
        let stage = |track: Track| track.sort_key().0;
        let mut stages: Vec<u64> = self.tracks.iter().map(|one| stage(one.0)).collect();
        stages.dedup();
        if stages.len() > MAX_STAGES {
            let last = stages.len() - 1;
            let is_shown =
                |index: usize| (0..MAX_STAGES).any(|k| (k * last + (MAX_STAGES - 1) / 2) / (MAX_STAGES - 1) == index);
            let shown: Vec<u64> =
                stages.iter().enumerate().filter(|(index, _)| is_shown(*index)).map(|(_, &stage)| stage).collect();
            self.omitted_stages += (stages.len() - shown.len()) as u64;
            self.tracks.retain(|one| shown.contains(&stage(one.0)));
        }
        let shown = self.tracks.iter().filter(|one| one.0.sort_key().1 == 0).count().max(1);
        for (track, intervals) in &mut self.tracks {
            let max_intervals = if track.sort_key().1 == 0 { MAX_INTERVALS.0 } else { MAX_INTERVALS.1 };
            shorten(intervals, max_intervals / shown);
        }
        self
    }
}

impl Track {
    /// Returns the sort key of a track: tracks are ordered by stage, and the communication track of a stage follows its
    /// compute track.
    fn sort_key(self) -> (u64, u64) {
        match self {
            Self::Stage(stage) => (stage, 0),
            Self::Communication(stage) => (stage, 1),
        }
    }
}

/// Merges intervals in the middle into one so that at most `max_intervals` remain.
fn shorten(intervals: &mut Vec<Interval>, max_intervals: usize) {
    if intervals.len() <= max_intervals {
        return;
    }
    let (head, tail) = ((max_intervals - 1).div_ceil(2), (max_intervals - 1) / 2);
    let remaining = intervals.split_off(intervals.len() - tail);
    let middle = intervals.split_off(head);
    if let (Some(first), Some(last)) = (middle.first(), middle.last()) {
        let count = middle.len() as u64;
        intervals.push(Interval {
            activity: Activity::Merged,
            index: count,
            chunk: 0,
            begin: first.begin,
            end: last.end,
        });
    }
    intervals.extend(remaining);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn build_timeline(stages: u64, intervals: u64) -> Timeline {
        let mut timeline = Timeline::default();
        for stage in 0..stages {
            for track in [Track::Stage(stage), Track::Communication(stage)] {
                let parts: Vec<TimelinePart> = (0..intervals)
                    .map(|index| TimelinePart { activity: Activity::Forward, index, time: Picos(1 + index % 3) })
                    .collect();
                timeline.add_sequence(track, Picos(stage), &parts);
            }
        }
        timeline
    }

    proptest! {
        /// Remaining intervals do not move, omitted ones are counted, and the start and end of each track do not
        /// change.
        #[test]
        fn shortened_timelines_count_omitted_stages_and_intervals(stages in 1u64..40, intervals in 1u64..300) {
            let full = build_timeline(stages, intervals);
            let short = full.clone().shortened();
            let shown = short.tracks.len() as u64 / 2;
            prop_assert_eq!(shown + short.omitted_stages, stages);
            prop_assert!(shown <= MAX_STAGES as u64 && (shown == stages || shown == MAX_STAGES as u64));
            prop_assert_eq!((short.tracks[0].0, short.tracks.last().unwrap().0), (Track::Stage(0), Track::Communication(stages - 1)));
            prop_assert_eq!(short.end(), full.end());
            let mut count = 0;
            for (track, shown_intervals) in &short.tracks {
                let (_, all) = full.tracks.iter().find(|one| one.0 == *track).unwrap();
                prop_assert_eq!(shown_intervals[0].begin, all[0].begin);
                prop_assert_eq!(shown_intervals.last().unwrap().end, all.last().unwrap().end);
                let represented: u64 =
                    shown_intervals.iter().map(|one| if one.activity == Activity::Merged { one.index } else { 1 }).sum();
                prop_assert_eq!(represented, intervals);
                prop_assert!(shown_intervals.windows(2).all(|pair| pair[0].end <= pair[1].begin));
                count += shown_intervals.len();
            }
            prop_assert!(count <= MAX_INTERVALS.0 + MAX_INTERVALS.1);
        }
    }
}
