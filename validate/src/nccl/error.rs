//! What can go wrong with NCCL.

use crate::cuda::CudaError;
use crate::cuda::team::Consequence;
use crate::shared_library::LibraryError;

/// Why NCCL did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// The library is missing, broken, or lacks a function.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A call failed.
    #[error("{call} failed{}: {text} ({code}){}", .rank.map(|r| format!(" on rank {r}")).unwrap_or_default(), detail(.last))]
    Call {
        /// NCCL's function.
        call: &'static str,
        /// The rank, where one was concerned.
        rank: Option<usize>,
        /// NCCL's code.
        code: i32,
        /// Its text for the code.
        text: String,
        /// The last error that NCCL remembers, which often names the cause; may be empty.
        last: String,
    },
    /// The driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

fn detail(last: &str) -> String {
    if last.trim().is_empty() { String::new() } else { format!("; NCCL says: {}", last.trim()) }
}

impl Consequence for NcclError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Cuda(error) if error.is_consequence())
    }
}
