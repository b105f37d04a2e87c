//! Assumptions and remarks about a log, for readers of a comparison.

use super::P2pChannels;

/// Assumptions about a log, and remarks on its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContext {
    /// Values taken where neither the log nor its description gives one.
    pub assumptions: Vec<String>,
    /// Contradictions and peculiarities: GPUs of another model than the fabric's, runs without MPI.
    pub remarks: Vec<String>,
    /// Channels of sends and receives, as NCCL reported them.
    pub p2p_channels: Option<P2pChannels>,
}
