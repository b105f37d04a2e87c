//! Calls as NCCL's plugins record them: one of each rank, by communicator.

use fabricast_topologies::SourceLocation;

/// Process that recorded calls: host or file, and process id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub host: String,
    pub id: u64,
}

/// Kind of a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordedKind {
    /// Collective by its name in NCCL, with its number in the communicator.
    Collective { name: String, number: u64 },
    /// Message to a rank of the communicator.
    Send(u32),
    /// Message from a rank of the communicator.
    Receive(u32),
}

/// Call that a process recorded.
#[derive(Clone, Debug)]
pub(super) struct RecordedCall {
    pub process: Process,
    /// Id of the communicator, equal on all of its ranks.
    pub communicator: String,
    /// Rank of the process in the communicator.
    pub rank: u32,
    /// Number of ranks of the communicator, if it is recorded.
    pub ranks: Option<u32>,
    pub kind: RecordedKind,
    /// Bytes of the `count` of one rank.
    pub bytes: u64,
    /// Start and end in µs, if they are recorded.
    pub time: Option<(u64, u64)>,
    pub location: SourceLocation,
}
