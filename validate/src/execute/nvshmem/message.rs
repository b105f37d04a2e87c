//! Messages between the main program and its processes, one process per rank.

use std::path::PathBuf;
use std::time::Duration;

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

use crate::cuda::CudaError;
use crate::execute::ExecuteError;
use crate::execute::measure::{Effort, MemberTimes};
use crate::kernel::{Carrier, GridShape};
use crate::nvshmem::NvshmemError;

/// Method by which NVSHMEM executes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvshmemMethod {
    /// NVSHMEM's own collective on a stream.
    Collectives,
    /// The schedule's puts with signals, on a stream.
    Puts,
    /// Kernels generated from the schedule, on the symmetric heap.
    Heap,
    /// The schedule's puts with signals, from a kernel with the device library.
    Device,
}

impl NvshmemMethod {
    /// Name of the method.
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

/// Request to run a schedule: method, checks and measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// Method that executes the call.
    #[serde(rename = "way")]
    pub method: NvshmemMethod,
    /// Message format of generated kernels; `None` for flags.
    pub carrier: Option<Carrier>,
    /// Blocks per channel, threads per block and words per thread of kernels; `None` for the shape that was fastest in
    /// measurements.
    pub shape: Option<GridShape>,
    /// Offset of buffers from an aligned address, in bytes. It may exceed the offset with which the processes were
    /// started by at most 16 bytes.
    pub offset: Bytes,
    /// Number of back-to-back calls before each check.
    pub rounds: Vec<u32>,
    /// Number of additional back-to-back calls with new contents each; 0 for none.
    #[serde(rename = "streak")]
    pub series_calls: u32,
    /// Seed of the contents of buffers.
    pub seed: u64,
    /// Numbers of calls of the measurement; `None` for no measurement.
    pub effort: Option<Effort>,
}

/// Message to the process of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankRequest {
    /// First message: rank of the process and its settings.
    Begin { rank: usize, size: usize, library: Option<PathBuf>, room: Bytes, offset: Bytes, patience: Duration },
    /// Joins the other processes by this unique ID.
    Join { id: Vec<u8> },
    /// Runs a schedule.
    #[serde(rename = "perform")]
    Run {
        schedule: String,
        dtype: DataType,
        op: ReduceOp,
        #[serde(rename = "turn")]
        request: RunRequest,
    },
}

/// Message from the process of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The library is loaded. The first process includes the unique ID.
    #[serde(rename = "begun")]
    Started { version: String, id: Option<Vec<u8>> },
    /// All processes have joined. `nccl`: path of the NCCL library that NVSHMEM uses for its collectives.
    Joined { nccl: Option<PathBuf> },
    /// The run succeeded with correct results.
    #[serde(rename = "performed")]
    Completed { shape: Option<GridShape>, raw: Option<MemberTimes> },
    /// The run is not supported, and no work was started.
    Unsupported { reason: String },
    /// The run failed; this process can no longer be used.
    Failed(RunFault),
}

/// Failure of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunFault {
    /// A result is wrong; the fields are those of [`ExecuteError::Wrong`].
    Wrong { rank: usize, index: u64, count: u64, found: u64, expected: u64, number: u32 },
    /// The user pressed Ctrl-C.
    Interrupted,
    /// Any other error, as text.
    Other { message: String },
}

impl RunFault {
    pub(super) fn from_error(error: &ExecuteError) -> Self {
        match *error {
            ExecuteError::Wrong { rank, index, count, found, expected, number } => {
                Self::Wrong { rank, index, count, found, expected, number }
            }
            ExecuteError::Cuda(CudaError::Interrupted) => Self::Interrupted,
            _ => Self::Other { message: error.to_string() },
        }
    }

    pub(super) fn into_error(self, reporter: usize) -> ExecuteError {
        match self {
            Self::Wrong { rank, index, count, found, expected, number } => {
                ExecuteError::Wrong { rank, index, count, found, expected, number }
            }
            Self::Interrupted => CudaError::Interrupted.into(),
            Self::Other { message } => NvshmemError::Rank { rank: reporter, message }.into(),
        }
    }
}
