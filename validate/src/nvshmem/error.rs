//! What can go wrong with NVSHMEM and with the processes that run it.

use fabricast_topologies::Bytes;

use crate::cuda::CudaError;
use crate::cuda::team::Consequence;
use crate::shared_library::LibraryError;

/// Why NVSHMEM did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvshmemError {
    /// The library is missing, broken, or lacks a function.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A version whose structures are not known here.
    #[error("{path}: this is NVSHMEM {found}; versions from {least} on of the same first number are known here")]
    Version {
        /// The file.
        path: String,
        /// What it says.
        found: String,
        /// The oldest that will do.
        least: String,
    },
    /// A call failed.
    #[error("{call} failed{}: code {code}", .rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default())]
    Call {
        /// NVSHMEM's function.
        call: &'static str,
        /// The rank, where one was concerned.
        rank: Option<usize>,
        /// What it returned.
        code: i32,
    },
    /// It came up without its GPU.
    #[error("nvshmemx_hostlib_init_attr left rank {rank} without a GPU (nvshmemx_init_status says {status})")]
    NotReady {
        /// The rank.
        rank: usize,
        /// `nvshmemx_init_status_t`.
        status: i32,
    },
    /// It counts other ranks than were started.
    #[error("NVSHMEM says that this is rank {found} of {found_size}; it was started as {rank} of {size}")]
    Numbering {
        /// The rank that was started.
        rank: usize,
        /// How many were.
        size: usize,
        /// What the library says.
        found: i32,
        /// Likewise.
        found_size: i32,
    },
    /// Its heap is full.
    #[error("nvshmem_malloc has no {} bytes left on rank {rank}", .asked.0)]
    OutOfMemory {
        /// The rank.
        rank: usize,
        /// What was asked for.
        asked: Bytes,
    },
    /// A peer's memory is not mapped.
    #[error(
        "nvshmem_ptr: rank {rank} cannot reach the heap of rank {peer}; there is no peer access between their GPUs"
    )]
    NoAccess {
        /// The rank that would read and write.
        rank: usize,
        /// Whose memory it is.
        peer: usize,
    },
    /// A process cannot be started or talked to.
    #[error("the process of rank {rank}: {what}: {reason}")]
    Start {
        /// The rank.
        rank: usize,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A process ended too early.
    #[error("the process of rank {rank} ended ({how}){}", wrote(.said))]
    Died {
        /// The rank.
        rank: usize,
        /// Its exit code or signal.
        how: String,
        /// The last lines that it wrote.
        said: String,
    },
    /// A process says something that is no message.
    #[error("the process of rank {rank} says `{line}`, which is not understood: {reason}")]
    Garbage {
        /// The rank.
        rank: usize,
        /// What it said.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Processes that say nothing any more.
    #[error("nothing was heard for {seconds} s from the processes of {}{}", ranks(.waiting), wrote(.said))]
    Silent {
        /// How long.
        seconds: u64,
        /// The ranks.
        waiting: Vec<usize>,
        /// The last lines that the first of them wrote.
        said: String,
    },
    /// Something failed in a process.
    #[error("rank {rank}: {message}")]
    Rank {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// The driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

fn wrote(text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { format!("; it wrote: {}", text.trim()) }
}

fn ranks(waiting: &[usize]) -> String {
    let numbers: Vec<String> = waiting.iter().map(|rank| format!("rank {rank}")).collect();
    numbers.join(", ")
}

impl Consequence for NvshmemError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Cuda(error) if error.is_consequence())
    }
}
