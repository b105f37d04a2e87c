//! Calls during their evaluation: request, call with strategy, placed call, call of a step, timed call.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::exchange::Exchange;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{CollectiveCandidates, Layout, Phase, TokenExchange};

/// Call whose strategy has not been selected yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallRequest {
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// Collectives that the job allows.
    pub allowed: CollectiveCandidates,
}

impl CallRequest {
    /// Returns the request with another message size.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// Returns the requested call with a strategy.
    pub(super) fn with_strategy(self, strategy: Strategy) -> CallWithStrategy {
        CallWithStrategy { collective: self.collective, bytes: self.bytes, strategy }
    }
}

/// Call with the strategy that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallWithStrategy {
    /// Collective that the group calls.
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
    /// Strategy that runs the call.
    pub strategy: Strategy,
}

impl CallWithStrategy {
    /// Returns the call with another message size.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Call of one group without concurrent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupCall<'g> {
    /// Devices of the group, in rank order.
    pub devices: &'g [NodeId],
    pub collective: Collective,
    /// Message size: the larger buffer, as in nccl-tests.
    pub bytes: Bytes,
}

/// Call of one group, with its devices and its start relative to concurrent calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedCall<'g> {
    pub call: CallWithStrategy,
    /// Devices of the group, in rank order.
    pub devices: &'g [NodeId],
    pub start: Picos,
}

/// Strategy selected for a call, and its completion time with all groups concurrent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SelectedStrategy {
    pub time: Picos,
    /// Selected strategy; `None` if the call moves no data.
    pub strategy: Option<Strategy>,
}

/// Number of calls, or of point-to-point messages, of a group in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallCount {
    /// Number of calls of the whole group.
    Calls(f64),
    /// Point-to-point messages between adjacent stages of a pipeline.
    PipelineTransfers {
        /// Number of messages from each stage to the next.
        forward: f64,
        /// Number of messages from each stage to the previous one.
        backward: f64,
        /// Number of messages from the last stage to the first; the number in the other direction is the same.
        wrap_around: f64,
    },
}

/// Call of all groups of a dimension, or of the groups of one pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCall {
    /// Phase of the step in which the call is made.
    pub phase: Phase,
    /// Dimension of the groups, collective and message size of the call.
    pub exchange: Exchange,
    /// Number of calls per step. The mean over several steps need not be an integer.
    pub count: CallCount,
}

impl StepCall {
    /// Returns the number of pipeline stages per stage that makes the call: all stages for the embedding and the
    /// logits, which are on one stage each; 1 for other calls, which every stage makes.
    pub fn stages(&self, layout: &Layout) -> u32 {
        match self.phase {
            Phase::Embedding | Phase::Logits => layout.degrees.pipeline,
            _ => 1,
        }
    }

    /// Returns the number of times that a rank takes part in the call per step. Pipeline transfers count in both
    /// directions.
    #[must_use]
    pub fn calls_per_rank(&self) -> f64 {
        match self.count {
            CallCount::Calls(times) => times,
            CallCount::PipelineTransfers { forward, backward, .. } => forward + backward,
        }
    }
}

/// Exchange of tokens by the kernel of a library, of all groups of ranks with different experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepExchange {
    /// Phase of the step in which tokens are exchanged.
    pub phase: Phase,
    /// Tokens and their routing.
    pub exchange: TokenExchange,
    /// Number of exchanges per rank and step; a mean need not be an integer.
    pub times: f64,
}

/// Call of a step with its strategy and completion time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedCall {
    /// Call that is timed, with its number of executions.
    pub call: StepCall,
    /// Strategy that runs the call.
    pub strategy: Strategy,
    /// Completion time of one call, with all groups concurrent.
    pub time: Picos,
}
