//! Calls at each stage of their evaluation: request, with a strategy, placed on devices, counted in a step, timed.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::cost_model::Exchange;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{CollectiveCandidates, Layout, Phase};

/// Call whose strategy is not selected yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallRequest {
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// Collectives that the job allows.
    pub allowed: CollectiveCandidates,
}

impl CallRequest {
    /// Variant of the request with another message size.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// Returns the call with a strategy.
    pub(super) fn with_strategy(self, strategy: Strategy) -> CallWithStrategy {
        CallWithStrategy { collective: self.collective, bytes: self.bytes, strategy }
    }
}

/// Call with its strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallWithStrategy {
    /// The collective.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// The strategy.
    pub strategy: Strategy,
}

impl CallWithStrategy {
    /// Variant of the call with another message size.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Call of one group, with its devices and its start relative to concurrent calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedCall<'g> {
    pub call: CallWithStrategy,
    /// Devices in the order of the ranks.
    pub devices: &'g [NodeId],
    pub start: Picos,
}

/// Selected strategy of a call and its completion time with all groups concurrent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SelectedStrategy {
    pub time: Picos,
    /// `None` if the call has nothing to do.
    pub strategy: Option<Strategy>,
}

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
