//! What the program and its processes say to each other.

use std::path::PathBuf;
use std::time::Duration;

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use crate::cuda::CudaError;
use crate::execute::ExecuteError;
use crate::execute::measure::{Effort, Raw};
use crate::kernel::{Carrier, GridShape};
use crate::nvshmem::NvshmemError;

/// How NVSHMEM runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Its own collective on a stream.
    Collectives,
    /// The schedule's puts with a signal, on a stream.
    Puts,
    /// Kernels generated from the schedule, on the symmetric heap.
    Heap,
    /// The schedule's puts with a signal, from a kernel with the device library.
    Device,
}

impl Way {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Collectives => "collectives",
            Self::Puts => "puts",
            Self::Heap => "heap",
            Self::Device => "device",
        }
    }
}

/// One thing to run: how, how often it is checked, how it is timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// How.
    pub way: Way,
    /// What carries messages in generated kernels.
    pub carrier: Option<Carrier>,
    /// Their blocks, threads and words; what measured best if left out.
    pub shape: Option<GridShape>,
    /// Where buffers begin after an aligned address: at most 16 bytes further on than the processes were started for.
    pub offset: Bytes,
    /// Calls before each check.
    pub rounds: Vec<u32>,
    /// Calls one after the other besides, each with fresh contents; 0: none.
    pub streak: u32,
    /// Where the contents come from.
    pub seed: u64,
    /// Times to take, if any.
    pub effort: Option<Effort>,
}

/// To a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The first: who it is.
    Begin { rank: usize, size: usize, library: Option<PathBuf>, room: Bytes, offset: Bytes, patience: Duration },
    /// Join the others, by this id.
    Join { id: Vec<u8> },
    /// Run something.
    Perform { schedule: String, dtype: DataType, op: ReduceOp, turn: Turn },
}

/// From a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The library is there; the first process brings the id.
    Begun { version: String, id: Option<Vec<u8>> },
    /// All have joined; the NCCL that the library took for its collectives.
    Joined { nccl: Option<PathBuf> },
    /// It ran and was right.
    Performed { shape: Option<GridShape>, raw: Option<Raw> },
    /// It cannot be run; nothing was begun.
    Unsupported { reason: String },
    /// It failed; this process is of no use any more.
    Failed(Fault),
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// A wrong result.
    Wrong { rank: usize, index: u64, count: u64, found: u64, expected: u64, number: u32 },
    /// Ctrl-C.
    Interrupted,
    /// Anything else, in words.
    Other { message: String },
}

impl Fault {
    pub(super) fn of(error: &ExecuteError) -> Self {
        match *error {
            ExecuteError::Wrong { rank, index, count, found, expected, number } => {
                Self::Wrong { rank, index, count, found, expected, number }
            }
            ExecuteError::Cuda(CudaError::Interrupted) => Self::Interrupted,
            _ => Self::Other { message: error.to_string() },
        }
    }

    pub(super) fn into_error(self, of: usize) -> ExecuteError {
        match self {
            Self::Wrong { rank, index, count, found, expected, number } => {
                ExecuteError::Wrong { rank, index, count, found, expected, number }
            }
            Self::Interrupted => CudaError::Interrupted.into(),
            Self::Other { message } => NvshmemError::Rank { rank: of, message }.into(),
        }
    }
}
