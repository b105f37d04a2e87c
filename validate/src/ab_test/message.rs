//! Messages between the program and its worker processes.

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
    /// Size of the larger buffer, for all ranks' blocks.
    pub bytes: Bytes,
    /// Element type.
    pub dtype: DataType,
    /// Number of calls in the graph.
    pub calls: u32,
}

/// Order to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerRequest {
    /// First order: path of NCCL, buffer size and time limits.
    Begin { library: Option<PathBuf>, ranks: u32, room: Bytes, timeout: Duration },
    /// Capture a graph of a call.
    Prepare(Trial),
    /// Run the graph once for warm-up and once timed.
    Time,
    /// Discard the graph.
    Done,
    /// Release everything.
    End,
}

/// Answer of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WorkerResponse {
    /// NCCL of this version is loaded, and the ranks are connected.
    Begun { version: String },
    /// Response to `Prepare`: the graph is captured.
    Prepared,
    /// Time of a call on the slowest GPU.
    Time(Picos),
    /// The graph is discarded, or everything is released.
    Done,
    /// The process cannot continue.
    Failed {
        #[serde(rename = "why")]
        reason: String,
        no_gpu: bool,
    },
}
