//! Timeline of a training step: intervals of each stage and of the communication that overlaps with it.
//!
//! The code that computes the step's time records the timeline pass by pass, so both always agree: the last end is the
//! step's time, and the intervals of the stage that ends last sum up to the step's shares. The timeline shows one
//! replica of the model, on the first tensor-parallel rank of each stage. It describes a steady-state step: weights
//! that the previous step's optimizer sent may still be arriving at its start.

use fabricast_topologies::Picos;

/// Activity of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// Forward pass of a micro-batch through a model chunk, its calls included.
    Forward,
    /// Backward pass.
    Backward,
    /// Pipeline point-to-point transfer that the sending stage waits for.
    HandOff,
    /// Reduction of a gradient bucket.
    Gradients,
    /// Optimizer update.
    Optimizer,
    /// Gathering of updated weights.
    Weights,
    /// Embedding kernels.
    Words,
    /// Kernels of a layer.
    Compute,
    /// Tensor-parallel calls of a layer, the embedding or the logits.
    Tensor,
    /// Token dispatch to experts and combine, in a layer.
    Expert,
    /// Kernels of the logits and the loss.
    Logits,
    /// Transfer of input tokens and logits in a single-process job.
    Outputs,
    /// Kernel launch time on the host.
    Launch,
    /// Idle time while other streams of requests run.
    Bubble,
    /// Several intervals merged into one.
    More,
}

impl Doing {
    /// All activities.
    pub const ALL: [Self; 15] = [
        Self::Forward,
        Self::Backward,
        Self::HandOff,
        Self::Gradients,
        Self::Optimizer,
        Self::Weights,
        Self::Words,
        Self::Compute,
        Self::Tensor,
        Self::Expert,
        Self::Logits,
        Self::Outputs,
        Self::Launch,
        Self::Bubble,
        Self::More,
    ];

    /// The name as serialized.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::HandOff => "hand_off",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Weights => "weights",
            Self::Words => "words",
            Self::Compute => "compute",
            Self::Tensor => "tensor",
            Self::Expert => "expert",
            Self::Logits => "logits",
            Self::Outputs => "outputs",
            Self::Launch => "launch",
            Self::Bubble => "bubble",
            Self::More => "more",
        }
    }
}

/// Interval on a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The activity.
    pub doing: Doing,
    /// Index from 0: micro-batch of a pass, layer of an inference step, gradient bucket. For [`Doing::More`] the number
    /// of merged intervals.
    pub number: u64,
    /// Model chunk of a pass, from 0.
    pub chunk: u64,
    /// Start time.
    pub begin: Picos,
    /// End time.
    pub end: Picos,
}

impl Interval {
    /// Duration.
    #[must_use]
    pub fn time(&self) -> Picos {
        self.end - self.begin
    }
}

/// Track of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Computation of a pipeline stage.
    Stage(u64),
    /// Communication that overlaps with the computation of a stage.
    Beside(u64),
}

/// Timeline of a step: tracks in display order. The intervals of a track are sorted by time, do not overlap and are not
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// The tracks with their intervals.
    pub lanes: Vec<(Lane, Vec<Interval>)>,
    /// Number of stages omitted from a shortened timeline.
    pub stages_left_out: u64,
}

/// Largest number of stages in a shortened timeline.
const MOST_STAGES: usize = 8;
/// Largest number of intervals in a shortened timeline: all compute tracks, all communication tracks.
const MOST_INTERVALS: (usize, usize) = (256, 64);

impl Course {
    /// Appends an interval to a track, which is created if it does not exist. Empty intervals are ignored.
    pub(crate) fn add(&mut self, lane: Lane, interval: Interval) {
        if interval.begin >= interval.end {
            return;
        }
        match self.lanes.iter_mut().find(|one| one.0 == lane) {
            Some((_, intervals)) => intervals.push(interval),
            None => self.lanes.push((lane, vec![interval])),
        }
    }

    /// End of the last interval.
    #[must_use]
    pub fn end(&self) -> Picos {
        let last = self.lanes.iter().filter_map(|(_, intervals)| intervals.last());
        last.map(|interval| interval.end).max().unwrap_or_default()
    }

    /// Appends consecutive intervals to a track from `begin` on. Returns the end of the last one.
    pub(crate) fn in_a_row(&mut self, lane: Lane, begin: Picos, parts: &[(Doing, u64, Picos)]) -> Picos {
        parts.iter().fold(begin, |begin, &(doing, number, time)| {
            self.add(lane, Interval { doing, number, chunk: 0, begin, end: begin + time });
            begin + time
        })
    }

    /// Shortens the timeline for display. Of many stages it keeps an even selection that includes the first and the
    /// last. Of many intervals on a track it keeps the first and the last and merges those between into one
    /// [`Doing::More`].
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.lanes.sort_by_key(|one| one.0.place());
        let stage = |lane: Lane| lane.place().0;
        let mut stages: Vec<u64> = self.lanes.iter().map(|one| stage(one.0)).collect();
        stages.dedup();
        if stages.len() > MOST_STAGES {
            let last = stages.len() - 1;
            let is_shown = |number: usize| {
                (0..MOST_STAGES).any(|k| (k * last + (MOST_STAGES - 1) / 2) / (MOST_STAGES - 1) == number)
            };
            let shown: Vec<u64> =
                stages.iter().enumerate().filter(|(number, _)| is_shown(*number)).map(|(_, &stage)| stage).collect();
            self.stages_left_out += (stages.len() - shown.len()) as u64;
            self.lanes.retain(|one| shown.contains(&stage(one.0)));
        }
        let shown = self.lanes.iter().filter(|one| one.0.place().1 == 0).count().max(1);
        for (lane, intervals) in &mut self.lanes {
            let most = if lane.place().1 == 0 { MOST_INTERVALS.0 } else { MOST_INTERVALS.1 };
            shorten(intervals, most / shown);
        }
        self
    }
}

impl Lane {
    /// Sort key: stages in order, each followed by its communication track.
    fn place(self) -> (u64, u64) {
        match self {
            Self::Stage(stage) => (stage, 0),
            Self::Beside(stage) => (stage, 1),
        }
    }
}

/// Merges the intervals in the middle into one if there are more than `most`.
fn shorten(intervals: &mut Vec<Interval>, most: usize) {
    if intervals.len() <= most {
        return;
    }
    let (head, tail) = ((most - 1).div_ceil(2), (most - 1) / 2);
    let rest = intervals.split_off(intervals.len() - tail);
    let middle = intervals.split_off(head);
    if let (Some(first), Some(last)) = (middle.first(), middle.last()) {
        let number = middle.len() as u64;
        intervals.push(Interval { doing: Doing::More, number, chunk: 0, begin: first.begin, end: last.end });
    }
    intervals.extend(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn course(stages: u64, intervals: u64) -> Course {
        let mut course = Course::default();
        for stage in 0..stages {
            for lane in [Lane::Stage(stage), Lane::Beside(stage)] {
                let parts: Vec<_> =
                    (0..intervals).map(|number| (Doing::Forward, number, Picos(1 + number % 3))).collect();
                course.in_a_row(lane, Picos(stage), &parts);
            }
        }
        course
    }

    proptest! {
        /// Remaining intervals stay in place, omitted ones are counted, and begin and end of each track are unchanged.
        #[test]
        fn shortened_timelines_count_omitted_stages_and_intervals(stages in 1u64..40, intervals in 1u64..300) {
            let whole = course(stages, intervals);
            let short = whole.clone().shortened();
            let shown = short.lanes.len() as u64 / 2;
            prop_assert_eq!(shown + short.stages_left_out, stages);
            prop_assert!(shown <= MOST_STAGES as u64 && (shown == stages || shown == MOST_STAGES as u64));
            prop_assert_eq!((short.lanes[0].0, short.lanes.last().unwrap().0), (Lane::Stage(0), Lane::Beside(stages - 1)));
            prop_assert_eq!(short.end(), whole.end());
            let mut count = 0;
            for (lane, of) in &short.lanes {
                let (_, all) = whole.lanes.iter().find(|one| one.0 == *lane).unwrap();
                prop_assert_eq!((of[0].begin, of.last().unwrap().end), (all[0].begin, all.last().unwrap().end));
                let told = of.iter().map(|one| if one.doing == Doing::More { one.number } else { 1 }).sum::<u64>();
                prop_assert_eq!(told, intervals);
                prop_assert!(of.windows(2).all(|pair| pair[0].end <= pair[1].begin));
                count += of.len();
            }
            prop_assert!(count <= MOST_INTERVALS.0 + MOST_INTERVALS.1);
        }
    }
}
