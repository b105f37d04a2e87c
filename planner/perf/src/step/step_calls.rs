//! Communication calls of a training step, with their groups, sizes and counts. Link loads and reports are derived from
//! them.

use super::gradient_buckets::buckets;
use crate::communication::{CallCount, Exchange, StepCall, StepExchange};
use fabricast_workload::job::{ExpertCall, GroupCall, Layout, Phase, Processes, Training, expert_calls, traffic};

/// Returns the calls of a training step; empty for a single-process job.
#[must_use]
pub fn step_calls(job: &Training, layout: &Layout) -> Vec<StepCall> {
    if job.processes == Processes::Single {
        return Vec::new();
    }
    let StageLayers { layers, recomputed } = StageLayers::fullest(job, layout);
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
        StepCall { phase: call.phase, exchange: Exchange::new(&call, bytes), count }
    };
    traffic(job, layout).into_iter().map(step_call).collect()
}

/// Returns the dispatches and combines of a training step by the kernels of a library.
#[must_use]
pub fn step_exchanges(job: &Training, layout: &Layout) -> Vec<StepExchange> {
    let StageLayers { layers, recomputed } = StageLayers::fullest(job, layout);
    let micro = layout.micro_batches(job);
    let step_exchange = |ExpertCall { phase, exchange, count }: ExpertCall| {
        let count = match phase {
            // Layers without recomputation exchange tokens once.
            Phase::LayerBackward => recomputed * count + (layers - recomputed),
            _ => layers * count,
        };
        StepExchange { phase, exchange, times: (micro * count) as f64 }
    };
    expert_calls(job, layout).into_iter().map(step_exchange).collect()
}

/// Layers of the stage with the most layers; of several such stages, the one with the most recomputed layers.
struct StageLayers {
    layers: u64,
    recomputed: u64,
}

impl StageLayers {
    fn fullest(job: &Training, layout: &Layout) -> Self {
        let counts = |stage: u32| (layout.stage_layers(&job.model, stage), job.recomputed_stage_layers(layout, stage));
        let (layers, recomputed) = (0..layout.degrees.pipeline).map(counts).max().unwrap_or_default();
        Self { layers, recomputed }
    }
}
