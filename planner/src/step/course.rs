//! The course of a step in time: what each stage does, and what travels beside it, from when to when.
//!
//! A course is told by what works out the step's time, pass by pass, and not computed anew: its last end is the step's time,
//! and what it says of the stage that ends last adds up to the step's shares. It is that of one copy of the model, on the first
//! tensor-parallel rank of each stage. A step that begins here begins as all steps but the first do: weights that the optimizer
//! of the step before sent may still be arriving.

use fabricast_topologies::Picos;

/// What is done, or travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// A forward pass of a micro-batch through a stretch of layers, its calls included.
    Forward,
    /// A backward pass.
    Backward,
    /// What a stage hands to another, and waits until it is there.
    HandOff,
    /// A bucket of gradients on its way.
    Gradients,
    /// The optimizer.
    Optimizer,
    /// Weights on their way.
    Weights,
    /// Kernels of words.
    Words,
    /// Kernels of a layer.
    Compute,
    /// Tensor-parallel calls of a layer, of words or of scores.
    Tensor,
    /// Tokens to their experts and back, in a layer.
    Expert,
    /// Kernels of words' scores, and of the loss.
    Logits,
    /// Words in and scores out, of one process.
    Outputs,
    /// Kernels that wait to be launched.
    Launch,
    /// Waiting for other streams of requests.
    Bubble,
    /// More than is told one by one.
    More,
}

impl Doing {
    /// All of them.
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

    /// As it is written.
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

/// An interval of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// What is done.
    pub doing: Doing,
    /// Which one: of passes the micro-batch, of inference the layer, of gradients the bucket, from 0; of [`Doing::More`] how many.
    pub number: u64,
    /// Of passes the stretch of layers, from 0.
    pub chunk: u64,
    /// From when.
    pub begin: Picos,
    /// Until when.
    pub end: Picos,
}

impl Interval {
    /// How long it is.
    #[must_use]
    pub fn time(&self) -> Picos {
        self.end - self.begin
    }
}

/// Whose time a lane shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The GPUs of a stage.
    Stage(u64),
    /// What travels beside the work of a stage.
    Beside(u64),
}

/// The course of a step; lanes in their order, each with its intervals in order of time, which do not overlap. Nothing that takes
/// no time is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// The lanes.
    pub lanes: Vec<(Lane, Vec<Interval>)>,
    /// Stages that have no lane, of many.
    pub stages_left_out: u64,
}

/// Stages that a short course shows at most.
const MOST_STAGES: usize = 8;
/// Intervals that it tells one by one, of stages and of what travels beside them, on all lanes of either.
const MOST_INTERVALS: (usize, usize) = (256, 64);

impl Course {
    /// Adds an interval behind those of a lane, which is the last or a new one.
    pub(crate) fn add(&mut self, lane: Lane, interval: Interval) {
        if interval.begin >= interval.end {
            return;
        }
        match self.lanes.iter_mut().find(|one| one.0 == lane) {
            Some((_, intervals)) => intervals.push(interval),
            None => self.lanes.push((lane, vec![interval])),
        }
    }

    /// When the last interval ends.
    #[must_use]
    pub fn end(&self) -> Picos {
        let last = self.lanes.iter().filter_map(|(_, intervals)| intervals.last());
        last.map(|interval| interval.end).max().unwrap_or_default()
    }

    /// Intervals of one kind after the other, on a lane, from `begin` on; returns when they end.
    pub(crate) fn in_a_row(&mut self, lane: Lane, begin: Picos, parts: &[(Doing, u64, Picos)]) -> Picos {
        parts.iter().fold(begin, |begin, &(doing, number, time)| {
            self.add(lane, Interval { doing, number, chunk: 0, begin, end: begin + time });
            begin + time
        })
    }

    /// The course as it is shown: of many stages some, evenly from the first to the last, and of many intervals of a lane
    /// the first and the last; [`Doing::More`] stands for those between.
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
    /// Stages in order, each with what travels beside it below.
    fn place(self) -> (u64, u64) {
        match self {
            Self::Stage(stage) => (stage, 0),
            Self::Beside(stage) => (stage, 1),
        }
    }
}

/// Puts one interval in the place of those in the middle, where there are more than `most`.
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
        /// What is left keeps its place, what is not is counted, and begin and end of each lane stay.
        #[test]
        fn short_courses_say_what_they_leave_out(stages in 1u64..40, intervals in 1u64..300) {
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
