//! Messages between the measuring program and its worker processes.

use std::path::PathBuf;
use std::time::Duration;

use fabricast_sim::schedule::{Collective, DataType};
use fabricast_topologies::{Bytes, Picos};
use serde::{Deserialize, Serialize};

/// A call to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Collective of the call.
    pub collective: Collective,
    /// Size of a rank's larger buffer in bytes, including the blocks of all ranks.
    pub bytes: Bytes,
    /// Data type of the elements.
    pub dtype: DataType,
    /// Number of calls captured in the graph.
    pub calls: u32,
}

/// Request to a worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerRequest {
    /// First request: path of NCCL's library (`None` to search for it), number of ranks, buffer size in bytes, and time
    /// limit of each wait.
    Begin { library: Option<PathBuf>, ranks: u32, room: Bytes, timeout: Duration },
    /// Captures a graph of calls.
    Prepare(Trial),
    /// Launches the graph once for warm-up and once timed.
    Time,
    /// Discards the graph.
    Done,
    /// Releases all resources. No request follows.
    End,
}

/// Response of a worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerResponse {
    /// Response to `Begin`: NCCL was loaded in the given version, and the ranks are connected.
    Begun { version: String },
    /// Response to `Prepare`: the graph is captured.
    Prepared,
    /// Response to `Time`: time of one call on the slowest GPU.
    Time(Picos),
    /// Response to `Done` or `End`: the graph is discarded, or all resources are released.
    Done,
    /// The process cannot continue, for the given reason.
    Failed {
        #[serde(rename = "why")]
        reason: String,
        no_gpu: bool,
    },
}
