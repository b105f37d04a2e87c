//! Schedules on GPUs: executors behind one trait, their results checked, their times taken.
//!
//! ```text
//! stage       which ranks run on which GPUs
//! buffers     the caller's memory of every rank
//! generated   kernels made from the schedule          ┐
//! copies      copy engines and stream signals         ├ executors
//! library     NCCL                                    │
//! nvshmem     NVSHMEM, a process a GPU                ┘
//! contents    numbers to fill buffers with, and whether what came out is right
//! codes       whole numbers in every element type
//! measure     times
//! covering    few cases with every pair
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
mod stage;

use fabricast_sim::schedule::{BufferUse, DataType, Header, ReduceOp};
use fabricast_topologies::Bytes;

pub use buffers::Buffers;
pub use contents::Contents;
pub use copies::Copies;
pub use covering::covering;
pub use generated::{Calls, Generated, Wanted};
pub use library::{Choice, Library};
pub use measure::{Effort, Times, check, measure, streak};
pub use stage::Stage;

use crate::cuda::{CompileError, CudaError, Stream, team::Consequence};
use crate::kernel::KernelError;
use crate::nccl::NcclError;
use crate::nvshmem::NvshmemError;

/// What is executed: a call with its element type and reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The schedule's header: the call, its layout.
    pub header: Header,
    /// Type of the elements.
    pub dtype: DataType,
    /// The reduction.
    pub op: ReduceOp,
}

impl Job {
    fn in_place(&self) -> bool {
        self.header.call.buffers == BufferUse::InPlace
    }
}

impl std::fmt::Display for Job {
    /// `all_reduce of 1 MiB`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.header.call.collective, self.header.layout.bytes())
    }
}

/// A way to run a job. It owns or borrows all memory that its calls reach as long as it lives, unchanged: graphs of them are launched
/// later.
pub trait Executor: Sync {
    /// Enqueues a call's part of the ranks of one member of the stage's team on its stream. Calls of all members, made as
    /// often, belong together. May be captured.
    ///
    /// # Errors
    /// A failing call.
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError>;

    /// What a member is in while it waits for its stream, in words: its rank and the call.
    fn waiting(&self, member: usize) -> String {
        format!("rank {member}")
    }

    /// Who gave up waiting, in words; nobody if all is well.
    fn lost(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why something was not executed, or not rightly.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// NCCL.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// NVSHMEM.
    #[error("nvshmem: {0}")]
    Nvshmem(NvshmemError),
    /// This executor cannot run it.
    #[error("{executor} cannot run this: {reason}")]
    Unsupported {
        /// The executor.
        executor: &'static str,
        /// Why.
        reason: String,
    },
    /// Fewer GPUs than ranks.
    #[error("{ranks} ranks need as many GPUs, or share one; this machine has {gpus}")]
    TooFewGpus {
        /// Ranks.
        ranks: u32,
        /// GPUs.
        gpus: usize,
    },
    /// More blocks than run at once.
    #[error("{blocks} thread blocks of {threads} threads wait for each other, and GPU {device} runs {most} at once")]
    TooManyBlocks {
        /// Blocks wanted.
        blocks: u32,
        /// Threads of each.
        threads: u32,
        /// The GPU.
        device: usize,
        /// Blocks that it runs at once.
        most: u32,
    },
    /// Blocks gave up waiting.
    #[error("nothing came for too long: {}", .0.join("; "))]
    Lost(Vec<String>),
    /// A result among many is wrong.
    #[error(
        "wrong results: of {calls} calls one after the other {count} elements of rank {rank}, first in call {call} element {index}: \
         found {found:#x}, expected {expected:#x}"
    )]
    WrongAmong {
        /// The rank.
        rank: usize,
        /// Calls.
        calls: u32,
        /// The first call with a wrong element, from 0.
        call: u32,
        /// An element that is wrong there, in the numbering of the call.
        index: u64,
        /// How many are wrong, in all calls.
        count: u64,
        /// Its bits.
        found: u64,
        /// What they should be.
        expected: u64,
    },
    /// A result is wrong.
    #[error(
        "wrong result: {count} elements of rank {rank}, the first {index}: found {found:#x}, expected {expected:#x} ({number})"
    )]
    Wrong {
        /// The rank.
        rank: usize,
        /// The first wrong element, in the numbering of the call.
        index: u64,
        /// How many are wrong.
        count: u64,
        /// Its bits.
        found: u64,
        /// What they should be.
        expected: u64,
        /// The number that these bits stand for.
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

/// Bytes of a call cut to what its collective takes: whole elements, and equal blocks where it has blocks.
#[must_use]
pub fn whole_bytes(
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
