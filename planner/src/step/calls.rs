//! The calls of a step: among whom, how large, how often. What a link carries in a step is made of them, and what they are is shown.

use fabricast_topologies::{Bytes, Picos};

use super::Exchange;
use super::gradients::buckets;
use crate::job::{GroupCall, Layout, Phase, Processes, Training, traffic};
use crate::strategy::Strategy;

/// Messages of a step that a group sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Often {
    /// Calls of the whole group.
    Calls(f64),
    /// Messages between neighbours of a pipeline.
    HandOffs {
        /// From each stage to the next.
        forward: f64,
        /// From each stage to the one before.
        back: f64,
        /// From the last to the first, and as many the other way.
        round: f64,
    },
}

/// A call of all groups of a dimension, or of those of one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCall {
    /// When.
    pub phase: Phase,
    /// Among whom, what, how large.
    pub exchange: Exchange,
    /// How often in a step; a mean of steps need be no whole number.
    pub often: Often,
}

/// A call with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricedCall {
    /// The call.
    pub call: StepCall,
    /// How it is done.
    pub strategy: Strategy,
    /// What one takes, with all groups at once.
    pub time: Picos,
}

impl StepCall {
    /// Stages of which one makes the call: words are looked up on one stage, and scored on another.
    pub(crate) fn stages(&self, layout: &Layout) -> u32 {
        match self.phase {
            Phase::Words | Phase::Logits => layout.degrees.pipeline,
            _ => 1,
        }
    }

    /// How often a rank takes part, hand-offs either way.
    #[must_use]
    pub fn times(&self) -> f64 {
        match self.often {
            Often::Calls(times) => times,
            Often::HandOffs { forward, back, .. } => forward + back,
        }
    }
}

/// Those of a training step; of one process for all GPUs none are told.
#[must_use]
pub fn calls(job: &Training, layout: &Layout) -> Vec<StepCall> {
    if job.processes == Processes::Single {
        return Vec::new();
    }
    // Those of the fullest stage, and of them those that compute something anew.
    let of_stage = |stage: u32| (layout.stage_layers(&job.model, stage), job.recomputed_of_stage(layout, stage));
    let (layers, anew) = (0..layout.degrees.pipeline).map(of_stage).max().unwrap_or_default();
    let mut keeping = job.keeping().map(|keeping| traffic(&keeping, layout)).unwrap_or_default();
    let (micro, chunks) = (layout.micro_batches(job), u64::from(layout.degrees.interleave));
    let of = |call: GroupCall| {
        let (bytes, number) = match call.phase {
            Phase::LayerForward
            | Phase::LayerBackward
            | Phase::LayerGradients
            | Phase::WeightsForward
            | Phase::WeightsBackward => (call.bytes, layers * micro),
            Phase::Words | Phase::Logits => (call.bytes, micro),
            Phase::HandOff => (call.bytes, 2 * micro * chunks),
            Phase::Gradients => {
                let (count, each) = buckets(job, layout, &call);
                (each, count)
            }
            Phase::WordGradients | Phase::Updated => (call.bytes, 1),
        };
        let often = match call.is_between_stages() {
            true => Often::HandOffs {
                forward: (micro * chunks) as f64,
                back: (micro * chunks) as f64,
                round: (micro * (chunks - 1)) as f64,
            },
            false if call.phase == Phase::LayerBackward => {
                let alike = |other: &GroupCall| GroupCall { count: call.count, ..*other } == call;
                let kept = keeping.iter().position(alike).map_or(0, |place| keeping.swap_remove(place).count);
                Often::Calls((micro * (anew * call.count + (layers - anew) * kept)) as f64)
            }
            false => Often::Calls((number * call.count) as f64),
        };
        StepCall { phase: call.phase, exchange: exchange(&call, bytes), often }
    };
    traffic(job, layout).into_iter().map(of).collect()
}

pub(crate) fn exchange(call: &GroupCall, bytes: Bytes) -> Exchange {
    Exchange { dimension: call.dimension, collective: call.collective, bytes }
}
