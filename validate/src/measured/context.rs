//! Assumptions and remarks about a log, which comparisons print.

use super::{NcclReport, P2pChannels};

/// Assumptions about a log, and remarks on its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContext {
    /// Values assumed for properties that neither the log nor its manifest entry states.
    pub assumptions: Vec<String>,
    /// Contradictions and anomalies, such as GPUs of another model than the fabric's, or runs without MPI.
    pub remarks: Vec<String>,
    /// Numbers of channels for sends and receives, as reported by NCCL.
    pub p2p_channels: Option<P2pChannels>,
    /// Facts about the run from NCCL's messages.
    pub report: NcclReport,
    /// Number of GPUs of a host that are on one PCI bus or on consecutive ones; `None` if they are not, or not listed.
    pub adjacent_gpus: Option<u32>,
}
