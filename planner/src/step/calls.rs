//! Communication calls of a training step, with their groups, sizes and counts. Link loads and reports are derived from
//! them.

use fabricast_topologies::{Bytes, Picos};

use super::Exchange;
use super::gradients::buckets;
use crate::job::{GroupCall, Layout, Phase, Processes, Training, traffic};
use crate::strategy::Strategy;

/// Number of messages that a group sends in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Often {
    /// Number of calls of the whole group.
    Calls(f64),
    /// Point-to-point messages between neighbours of a pipeline.
    HandOffs {
        /// Messages from each stage to the next.
        forward: f64,
        /// Messages from each stage to the previous one.
        back: f64,
        /// Messages from the last stage to the first, and the same number in the other direction.
        round: f64,
    },
}

/// Call of all groups of a dimension, or of the groups of one pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCall {
    /// Phase of the step.
    pub phase: Phase,
    /// Group dimension, collective and message size.
    pub exchange: Exchange,
    /// Count per step. A mean over several steps need not be an integer.
    pub often: Often,
}

/// Call with its strategy and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricedCall {
    /// The call.
    pub call: StepCall,
    /// The strategy.
    pub strategy: Strategy,
    /// Completion time of one call, with all groups concurrent.
    pub time: Picos,
}

impl StepCall {
    /// Number of pipeline stages of which only one makes the call: the embedding is on one stage, the logits are on
    /// another.
    pub(crate) fn stages(&self, layout: &Layout) -> u32 {
        match self.phase {
            Phase::Words | Phase::Logits => layout.degrees.pipeline,
            _ => 1,
        }
    }

    /// Number of times that a rank takes part per step; pipeline transfers count in both directions.
    #[must_use]
    pub fn times(&self) -> f64 {
        match self.often {
            Often::Calls(times) => times,
            Often::HandOffs { forward, back, .. } => forward + back,
        }
    }
}

/// Returns the calls of a training step; empty for a single-process job.
#[must_use]
pub fn calls(job: &Training, layout: &Layout) -> Vec<StepCall> {
    if job.processes == Processes::Single {
        return Vec::new();
    }
    // The stage with the most layers, and among equals the one with the most recomputed layers.
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
