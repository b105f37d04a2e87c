//! Nodes of a timeline.

use super::calls::KernelCall;
use super::recording::Nanos;

/// Activity of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Time on the host.
    Host(Nanos),
    /// Computation on the GPU.
    Compute(Nanos),
    /// Calls of one kernel.
    Calls(Vec<KernelCall>),
    /// Host waits for the GPU.
    Synchronize,
}

/// Node of a timeline, with the nodes that end before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimelineNode {
    pub activity: Activity,
    pub after: Vec<usize>,
}
