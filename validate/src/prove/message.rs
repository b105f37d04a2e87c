//! What the program and its two processes say to each other.

use std::path::PathBuf;
use std::time::Duration;

use fabricast_sim::schedule::{Collective, DataType};
use fabricast_topologies::{Bytes, Picos};
use serde::{Deserialize, Serialize};

/// A call of which times are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// What.
    pub collective: Collective,
    /// How much: the larger buffer, of all ranks' blocks.
    pub bytes: Bytes,
    /// Of what.
    pub dtype: DataType,
    /// Calls in the graph.
    pub calls: u32,
}

/// To a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The first: where NCCL is, and room for what comes.
    Begin { library: Option<PathBuf>, ranks: u32, room: Bytes, patience: Duration },
    /// Make a graph of a call.
    Prepare(Trial),
    /// Run it once, then once more and take the time.
    Time,
    /// Forget it.
    Done,
    /// Give everything back.
    End,
}

/// From a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// NCCL is there, of this version, and the ranks are joined.
    Begun { version: String },
    /// There is a graph.
    Prepared,
    /// The time of a call, of the slowest GPU.
    Took(Picos),
    /// Forgotten, or ended.
    Done,
    /// It cannot go on.
    Failed { why: String, no_gpu: bool },
}
