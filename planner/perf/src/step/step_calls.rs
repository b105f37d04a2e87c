//! Communication calls of a training step, with their groups, sizes and counts. Link loads and reports are derived from
//! them.

use fabricast_topologies::{Bytes, Picos};

use super::Exchange;
use super::gradients::buckets;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{GroupCall, Layout, Phase, Processes, Training, traffic};

/// Number of messages that a group sends in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallCount {
    /// Number of calls of the whole group.
    Calls(f64),
    /// Point-to-point messages between neighbours of a pipeline.
    PipelineTransfers {
        /// Messages from each stage to the next.
        forward: f64,
        /// Messages from each stage to the previous one.
        backward: f64,
        /// Messages from the last stage to the first, and the same number in the other direction.
        wrap_around: f64,
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
    pub count: CallCount,
}

/// Call with its strategy and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedCall {
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
    pub fn stages(&self, layout: &Layout) -> u32 {
        match self.phase {
            Phase::Embedding | Phase::Logits => layout.degrees.pipeline,
            _ => 1,
        }
    }

    /// Number of times that a rank takes part per step; pipeline transfers count in both directions.
    #[must_use]
    pub fn calls_per_rank(&self) -> f64 {
        match self.count {
            CallCount::Calls(times) => times,
            CallCount::PipelineTransfers { forward, backward, .. } => forward + backward,
        }
    }
}

/// Returns the calls of a training step; empty for a single-process job.
#[must_use]
pub fn step_calls(job: &Training, layout: &Layout) -> Vec<StepCall> {
    if job.processes == Processes::Single {
        return Vec::new();
    }
    // The stage with the most layers, and among equals the one with the most recomputed layers.
    let layer_counts =
        |stage: u32| (layout.stage_layers(&job.model, stage), job.recomputed_stage_layers(layout, stage));
    let (layers, recomputed) = (0..layout.degrees.pipeline).map(layer_counts).max().unwrap_or_default();
    let mut saving_calls = job.without_recomputation().map(|job| traffic(&job, layout)).unwrap_or_default();
    let (micro, chunks) = (layout.micro_batches(job), u64::from(layout.degrees.interleave));
    let step_call = |call: GroupCall| {
        let (bytes, repetitions) = match call.phase {
            Phase::LayerForward
            | Phase::LayerBackward
            | Phase::LayerGradients
            | Phase::WeightsForward
            | Phase::WeightsBackward => (call.bytes, layers * micro),
            Phase::Embedding | Phase::Logits => (call.bytes, micro),
            Phase::PipelineTransfer => (call.bytes, 2 * micro * chunks),
            Phase::Gradients => {
                let (count, each) = buckets(job, layout, &call);
                (each, count)
            }
            Phase::EmbeddingGradients | Phase::UpdatedWeights => (call.bytes, 1),
        };
        let count = match call.is_pipeline_transfer() {
            true => CallCount::PipelineTransfers {
                forward: (micro * chunks) as f64,
                backward: (micro * chunks) as f64,
                wrap_around: (micro * (chunks - 1)) as f64,
            },
            false if call.phase == Phase::LayerBackward => {
                let is_same_call = |other: &GroupCall| GroupCall { count: call.count, ..*other } == call;
                let saved_count =
                    saving_calls.iter().position(is_same_call).map_or(0, |index| saving_calls.swap_remove(index).count);
                CallCount::Calls((micro * (recomputed * call.count + (layers - recomputed) * saved_count)) as f64)
            }
            false => CallCount::Calls((repetitions * call.count) as f64),
        };
        StepCall { phase: call.phase, exchange: exchange(&call, bytes), count }
    };
    traffic(job, layout).into_iter().map(step_call).collect()
}

pub(crate) fn exchange(call: &GroupCall, bytes: Bytes) -> Exchange {
    Exchange { dimension: call.dimension, collective: call.collective, bytes }
}
