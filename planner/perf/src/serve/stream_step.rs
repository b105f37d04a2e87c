//! Step of a stream through the pipeline stages: its time by component, and its timeline.

use fabricast_topologies::Picos;

use crate::step::{Activity, Share, Timeline, TimelinePart, Track};
use crate::time::{scaled, share};

/// Time of a stream's step by component: computation, communication by dimension, and pipeline bubble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimeShares {
    pub compute: Picos,
    pub tensor: Picos,
    pub expert: Picos,
    pub pipeline_transfer: Picos,
    pub bubble: Picos,
    pub launch: Picos,
}

impl TimeShares {
    pub(super) fn shares(self) -> [(Share, Picos); 6] {
        [
            (Share::Compute, self.compute),
            (Share::Tensor, self.tensor),
            (Share::Expert, self.expert),
            (Share::PipelineTransfer, self.pipeline_transfer),
            (Share::Bubble, self.bubble),
            (Share::Launch, self.launch),
        ]
    }

    pub(super) fn time(self) -> Picos {
        self.shares().iter().map(|share| share.1).sum()
    }
}

/// Times of the parts of a stream's step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StreamStep {
    /// Times of one layer.
    pub layer: TimeShares,
    /// Host time to launch one layer, which its time holds as far as the GPUs wait for it.
    pub layer_launch: Picos,
    /// Times of the embedding: its kernels, and its collectives.
    pub first: (Picos, Picos),
    /// Times of the logits: their kernels, and their collectives.
    pub last: (Picos, Picos),
    /// Time of one point-to-point transfer between adjacent pipeline stages.
    pub pipeline_transfer: Picos,
    /// Host time before the next step, during which the GPUs wait.
    pub host_time: Picos,
    /// Host time for the requests of the step, in each stage. With pipeline stages the GPUs of a stage wait for it
    /// (TensorRT-LLM, `tensorrt_llm/_torch/pyexecutor/py_executor.py`: `_executor_loop_pp` has no overlap scheduler);
    /// otherwise it overlaps with the GPU's work.
    pub requests_host_time: Picos,
    pub stages: u64,
    pub layers: u64,
    /// Number of concurrent streams of a replica. It is a mean and need not be an integer.
    pub streams: f64,
}

impl StreamStep {
    /// Returns the time of the whole step by component.
    pub(super) fn time_shares(&self) -> TimeShares {
        let Self { layer, first, last, stages, layers, .. } = *self;
        let sequential = TimeShares {
            compute: scaled(layer.compute, layers) + first.0 + last.0,
            tensor: scaled(layer.tensor, layers) + first.1 + last.1,
            expert: scaled(layer.expert, layers),
            pipeline_transfer: scaled(self.pipeline_transfer, stages.saturating_sub(1)),
            bubble: Picos::ZERO,
            launch: scaled(layer.launch, layers) + self.host_time,
        };
        // A negative difference of times is 0.
        if stages <= 1 {
            let launch = sequential.launch + (self.requests_host_time - sequential.time());
            return TimeShares { launch, ..sequential };
        }
        let slowest =
            scaled(layer.time(), layers / stages) + (first.0 + first.1).max(last.0 + last.1) + self.requests_host_time;
        let total = share(slowest, self.streams) + self.host_time;
        let launch = sequential.launch + scaled(self.requests_host_time, stages);
        let sequential = TimeShares { launch, ..sequential };
        TimeShares { bubble: total - sequential.time(), ..sequential }
    }

    /// Returns the timeline of the step, layer by layer. The kernels of a layer are shown before its collectives,
    /// although they alternate in reality.
    pub(super) fn timeline(&self) -> Timeline {
        let (mut timeline, mut now) = (Timeline::default(), Picos::ZERO);
        for stage in 0..self.stages {
            let track = Track::Stage(stage);
            if stage == 0 {
                now = timeline.add_sequence(
                    track,
                    now,
                    &[
                        TimelinePart { activity: Activity::Embedding, index: 0, time: self.first.0 },
                        TimelinePart { activity: Activity::Tensor, index: 0, time: self.first.1 },
                    ],
                );
            }
            for index in stage * self.layers / self.stages..(stage + 1) * self.layers / self.stages {
                let TimeShares { compute, tensor, expert, launch, .. } = self.layer;
                let parts = [
                    (Activity::Compute, compute),
                    (Activity::Tensor, tensor),
                    (Activity::Expert, expert),
                    (Activity::Launch, launch),
                ];
                now = timeline.add_sequence(
                    track,
                    now,
                    &parts.map(|(activity, time)| TimelinePart { activity, index, time }),
                );
            }
            if stage + 1 < self.stages {
                let transfer =
                    TimelinePart { activity: Activity::PipelineTransfer, index: stage, time: self.pipeline_transfer };
                now = timeline.add_sequence(track, now, &[transfer]);
            } else {
                now = timeline.add_sequence(
                    track,
                    now,
                    &[
                        TimelinePart { activity: Activity::Logits, index: 0, time: self.last.0 },
                        TimelinePart { activity: Activity::Tensor, index: 0, time: self.last.1 },
                    ],
                );
            }
        }
        let shares = self.time_shares();
        let bubble = TimelinePart { activity: Activity::Bubble, index: 0, time: shares.bubble };
        let layers = scaled(self.layer.launch, self.layers);
        let host = TimelinePart { activity: Activity::Launch, index: self.layers, time: shares.launch - layers };
        timeline.add_sequence(Track::Stage(0), now, &[bubble, host]);
        timeline
    }
}
