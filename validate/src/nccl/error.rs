//! Errors of NCCL.

use crate::cuda::CudaError;
use crate::cuda::team::Consequence;
use crate::shared_library::LibraryError;

/// Reason that an NCCL operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// The library is missing, broken, or lacks a function.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// An NCCL function returned an error.
    #[error("{call} failed{}: {text} ({code}){}", .rank.map(|r| format!(" on rank {r}")).unwrap_or_default(), detail(.last))]
    Call {
        /// Name of the NCCL function.
        call: &'static str,
        /// Rank that made the call, if the call belongs to one.
        rank: Option<usize>,
        /// Result code (`ncclResult_t`).
        code: i32,
        /// NCCL's description of the result code.
        text: String,
        /// Last error recorded by NCCL, which often names the cause; may be empty.
        last: String,
    },
    /// The CUDA driver failed.
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
