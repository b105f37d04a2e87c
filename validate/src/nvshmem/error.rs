//! Errors of NVSHMEM and of the processes that run it.

use fabricast_topologies::Bytes;

use crate::cuda::CudaError;
use crate::cuda::team::Consequence;
use crate::shared_library::LibraryError;

/// Error of NVSHMEM or of its processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvshmemError {
    /// The library is missing, broken, or lacks a function.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library has a version whose structures are not known.
    #[error(
        "{path}: this is NVSHMEM {found}; supported are versions from {oldest_supported} with the same major number"
    )]
    Version {
        /// Path of the library.
        path: String,
        /// Version of the library.
        found: String,
        /// Oldest supported version.
        oldest_supported: String,
    },
    /// An NVSHMEM function returned an error.
    #[error("{call} failed{}: code {code}", .rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default())]
    Call {
        /// Name of the NVSHMEM function that failed.
        call: &'static str,
        /// Rank that made the call, if known.
        rank: Option<usize>,
        /// Error code that the function returned.
        code: i32,
    },
    /// The library was initialized without access to its GPU.
    #[error("nvshmemx_hostlib_init_attr left rank {rank} without a GPU (nvshmemx_init_status reports {status})")]
    NotReady {
        /// Rank without access to its GPU.
        rank: usize,
        /// Status that the library reports: `nvshmemx_init_status_t`.
        status: i32,
    },
    /// The library assigned other rank numbers than requested.
    #[error("NVSHMEM reports rank {found} of {found_size}; the process was started as rank {rank} of {size}")]
    Numbering {
        /// Rank that was requested for this process.
        rank: usize,
        /// Number of ranks that was requested.
        size: usize,
        /// Rank reported by the library.
        found: i32,
        /// Number of ranks reported by the library.
        found_size: i32,
    },
    /// The symmetric heap is exhausted.
    #[error("nvshmem_malloc has no {} bytes left on rank {rank}", .requested.0)]
    OutOfMemory {
        /// Rank that allocates.
        rank: usize,
        /// Requested size in bytes.
        requested: Bytes,
    },
    /// A peer's memory is not mapped, because there is no peer access.
    #[error(
        "nvshmem_ptr: rank {rank} cannot reach the heap of rank {peer}; there is no peer access between their GPUs"
    )]
    NoAccess {
        /// Rank that accesses the memory.
        rank: usize,
        /// Rank that owns the memory.
        peer: usize,
    },
    /// A process cannot be started or reached.
    #[error("the process of rank {rank}: {operation}: {reason}")]
    Start {
        /// Rank of the process.
        rank: usize,
        /// Operation that failed.
        operation: &'static str,
        /// Message of the operating system, or of the serializer of the request.
        reason: String,
    },
    /// A process ended unexpectedly.
    #[error("the process of rank {rank} ended ({status}){}", output_suffix(.output))]
    Died {
        /// Rank of the process.
        rank: usize,
        /// Description of the exit code or signal.
        status: String,
        /// Last lines of the process's output.
        output: String,
    },
    /// A process sent an invalid message.
    #[error("the process of rank {rank} sent `{line}`, which cannot be parsed: {reason}")]
    Garbage {
        /// Rank of the process.
        rank: usize,
        /// Message, possibly shortened.
        line: String,
        /// Reason why the message is invalid.
        reason: String,
    },
    /// Processes exceeded the time limit for a message.
    #[error("no response for {seconds} s from the processes of {}{}", ranks(.waiting), output_suffix(.output))]
    Silent {
        /// Time limit for a message in seconds.
        seconds: u64,
        /// Ranks that sent no message in time.
        waiting: Vec<usize>,
        /// Last lines of the output of the first of these ranks.
        output: String,
    },
    /// An operation of a process failed, and the process reported the error.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Rank of the process.
        rank: usize,
        /// Error message of the process.
        message: String,
    },
    /// Error of the CUDA driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

fn output_suffix(text: &str) -> String {
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
