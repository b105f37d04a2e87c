//! Step of a stream through the pipeline stages: its time by share, and its timeline.

use fabricast_topologies::Picos;

use crate::step::{Course, Doing, Lane, Share, times};

/// Time of a stream's step by share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub compute: Picos,
    pub tensor: Picos,
    pub expert: Picos,
    pub hand_off: Picos,
    pub bubble: Picos,
}

impl Spent {
    pub(super) fn shares(self) -> [(Share, Picos); 5] {
        [
            (Share::Compute, self.compute),
            (Share::Tensor, self.tensor),
            (Share::Expert, self.expert),
            (Share::HandOff, self.hand_off),
            (Share::Bubble, self.bubble),
        ]
    }

    pub(super) fn time(self) -> Picos {
        self.shares().iter().map(|share| share.1).sum()
    }
}

/// Components of a stream's step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Way {
    /// One layer.
    pub layer: Spent,
    /// Embedding: kernels and collectives.
    pub first: (Picos, Picos),
    /// Logits: kernels and collectives.
    pub last: (Picos, Picos),
    /// Transfer between two stages.
    pub hand_off: Picos,
    pub stages: u64,
    pub layers: u64,
    /// Concurrent streams.
    pub streams: f64,
}

impl Way {
    /// Returns the time by share.
    pub(super) fn spent(&self) -> Spent {
        let Self { layer, first, last, stages, layers, .. } = *self;
        let way = Spent {
            compute: times(layer.compute, layers) + first.0 + last.0,
            tensor: times(layer.tensor, layers) + first.1 + last.1,
            expert: times(layer.expert, layers),
            hand_off: times(self.hand_off, stages.saturating_sub(1)),
            bubble: Picos::ZERO,
        };
        if stages <= 1 {
            return way;
        }
        let slowest = times(layer.time(), layers / stages) + (first.0 + first.1).max(last.0 + last.1);
        let all = Picos((slowest.0 as f64 * self.streams).round() as u64);
        // A negative difference of times is 0.
        Spent { bubble: all - way.time(), ..way }
    }

    /// Returns the timeline, layer by layer. The kernels of a layer precede its calls, although they interleave in
    /// reality.
    pub(super) fn course(&self) -> Course {
        let (mut course, mut now) = (Course::default(), Picos::ZERO);
        for stage in 0..self.stages {
            let lane = Lane::Stage(stage);
            if stage == 0 {
                now = course.in_a_row(lane, now, &[(Doing::Words, 0, self.first.0), (Doing::Tensor, 0, self.first.1)]);
            }
            for number in stage * self.layers / self.stages..(stage + 1) * self.layers / self.stages {
                let Spent { compute, tensor, expert, .. } = self.layer;
                let parts = [(Doing::Compute, compute), (Doing::Tensor, tensor), (Doing::Expert, expert)];
                now = course.in_a_row(lane, now, &parts.map(|(doing, time)| (doing, number, time)));
            }
            if stage + 1 < self.stages {
                now = course.in_a_row(lane, now, &[(Doing::HandOff, stage, self.hand_off)]);
            } else {
                now = course.in_a_row(lane, now, &[(Doing::Logits, 0, self.last.0), (Doing::Tensor, 0, self.last.1)]);
            }
        }
        course.in_a_row(Lane::Stage(0), now, &[(Doing::Bubble, 0, self.spent().bubble)]);
        course
    }
}
