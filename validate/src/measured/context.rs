//! Assumptions and remarks about a log, which comparisons print.

use super::P2pChannels;

/// Assumptions about a log, and remarks on its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContext {
    /// Values assumed for properties that neither the log nor its manifest entry states.
    pub assumptions: Vec<String>,
    /// Contradictions and anomalies, such as GPUs of another model than the fabric's, or runs without MPI.
    pub remarks: Vec<String>,
    /// Numbers of channels for sends and receives, as reported by NCCL.
    pub p2p_channels: Option<P2pChannels>,
}
