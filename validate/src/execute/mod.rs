//! Execution of schedules on GPUs: executors behind one trait, checks of their results, and measurement of their times.
//!
//! ```text
//! testbed     assignment of ranks to GPUs
//! buffers     the caller's memory of every rank
//! generated   kernels generated from the schedule     ┐
//! copies      copy engines and stream signals         ├ executors
//! library     NCCL                                    │
//! nvshmem     NVSHMEM, one process per GPU            ┘
//! contents    contents of buffers, and checks of results
//! codes       whole numbers in every element type
//! measure     measurement of call times
//! covering    small test sets that cover every pair of factor levels
//! ```

mod buffers;
mod codes;
mod contents;
mod copies;
mod covering;
mod generated;
mod library;
mod measure;
pub mod nvshmem;
mod testbed;

use fabricast_sim::schedule::{BufferUse, DataType, Header, ReduceOp};
use fabricast_topologies::Bytes;

pub use buffers::Buffers;
pub use contents::Contents;
pub use copies::Copies;
pub use covering::pairwise_cases;
pub use generated::{CallOrder, GeneratedExecutor, KERNEL_OPTIONS, KernelOptions};
pub use library::{NcclChoice, NcclCommunicators};
pub use measure::{Effort, Times, check, check_series, measure};
pub use testbed::Testbed;

use crate::cuda::{CompileError, CudaError, Stream, team::Consequence};
use crate::kernel::KernelError;
use crate::nccl::NcclError;
use crate::nvshmem::NvshmemError;

/// A call to execute, with its element type and reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Header of the schedule: the call and its layout.
    pub header: Header,
    /// Data type of the elements.
    pub dtype: DataType,
    /// Reduction operation of collectives that reduce.
    pub op: ReduceOp,
}

impl Job {
    fn in_place(&self) -> bool {
        self.header.call.buffers == BufferUse::InPlace
    }
}

impl std::fmt::Display for Job {
    /// Text such as `all_reduce of 1 MiB`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.header.call.collective, self.header.layout.bytes())
    }
}

/// Implementation of a job. The executor owns or borrows all memory that its calls access for its whole lifetime,
/// unchanged, because captured graphs are launched later.
pub trait Executor: Sync {
    /// Enqueues the part of a call that the ranks of one team member execute. The n-th calls of all members form one
    /// collective call. May be captured in a graph.
    ///
    /// # Errors
    /// A driver or library call fails.
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError>;

    /// Describes the work for which a member waits: its rank and the call.
    fn waiting(&self, member: usize) -> String {
        format!("rank {member}")
    }

    /// Descriptions of the thread blocks' waits that exceeded the time limit; empty if there are none.
    fn timed_out_waits(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Reasons why a job was not executed, or not executed correctly.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExecuteError {
    /// Error of the driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// No kernel can be generated.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Error of NCCL.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// Error of NVSHMEM.
    #[error("nvshmem: {0}")]
    Nvshmem(NvshmemError),
    /// The executor does not support the job.
    #[error("{executor} cannot run this: {reason}")]
    Unsupported {
        /// Name of the executor.
        executor: &'static str,
        /// Reason why the executor does not support the job.
        reason: String,
    },
    /// There are fewer GPUs than ranks.
    #[error("{ranks} ranks need as many GPUs, or share one; this machine has {gpus}")]
    TooFewGpus {
        /// Number of ranks.
        ranks: u32,
        /// Number of GPUs of the machine.
        gpus: usize,
    },
    /// The thread blocks cannot all be co-resident.
    #[error(
        "{blocks} thread blocks of {threads} threads wait for each other, but GPU {device} runs only {max} concurrently"
    )]
    TooManyBlocks {
        /// Number of blocks that the kernel needs on the GPU.
        blocks: u32,
        /// Number of threads per block.
        threads: u32,
        /// Ordinal of the GPU.
        device: usize,
        /// Largest number of co-resident blocks.
        max: u32,
    },
    /// Thread blocks exceeded the time limit of a wait; contains a description of each wait.
    #[error("timed out: {}", .0.join("; "))]
    WaitTimeout(Vec<String>),
    /// A result in a series of calls is wrong.
    #[error(
        "wrong results: of {calls} calls one after the other {count} elements of rank {rank}, first in call {call} element {index}: \
         found {found:#x}, expected {expected:#x}"
    )]
    WrongInSeries {
        /// Rank with the wrong result.
        rank: usize,
        /// Number of calls of the series.
        calls: u32,
        /// The first call with a wrong element, from 0.
        call: u32,
        /// Index of a wrong element of that call, counted over the whole data of the call.
        index: u64,
        /// Number of wrong elements in all calls.
        count: u64,
        /// Bits of the wrong element.
        found: u64,
        /// Bits that the element should have.
        expected: u64,
    },
    /// A result is wrong.
    #[error(
        "wrong result: {count} elements of rank {rank}, the first {index}: found {found:#x}, expected {expected:#x} ({number})"
    )]
    Wrong {
        /// Rank with the wrong result.
        rank: usize,
        /// Index of the first wrong element, counted over the whole data of the call.
        index: u64,
        /// Number of wrong elements.
        count: u64,
        /// Bits of the wrong element.
        found: u64,
        /// Bits that the element should have.
        expected: u64,
        /// The number that the expected bits represent.
        number: u32,
    },
}

impl From<NvshmemError> for ExecuteError {
    fn from(error: NvshmemError) -> Self {
        match error {
            NvshmemError::Cuda(error) => Self::Cuda(error),
            error => Self::Nvshmem(error),
        }
    }
}

impl Consequence for ExecuteError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Cuda(error) if error.is_consequence())
            || matches!(self, Self::Nccl(error) if error.is_consequence())
    }
}

/// Rounds the bytes of a call down to whole elements, and to equal blocks for collectives with blocks.
#[must_use]
pub fn round_to_elements(
    collective: fabricast_sim::schedule::Collective,
    bytes: Bytes,
    ranks: u32,
    dtype: DataType,
) -> Bytes {
    use fabricast_sim::schedule::Collective as C;
    let unit = match collective {
        C::AllGather | C::ReduceScatter | C::AllToAll | C::Gather | C::Scatter => {
            u64::from(ranks.max(1)) * dtype.size().0
        }
        _ => dtype.size().0,
    };
    Bytes(bytes.0 / unit * unit)
}
