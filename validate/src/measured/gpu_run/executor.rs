//! Executors of `gpu run`.

use std::str::FromStr;

use serde::Deserialize;

use crate::execute::nvshmem::NvshmemMethod;

/// Executor of a call: the part of the program, or the library, that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum ExecutorKind {
    /// Kernels compiled from the schedule.
    Kernels,
    /// Copy engines, for schedules that only copy.
    Copies,
    /// NCCL with its own choice of strategy, on plain buffers.
    Nccl,
    /// NCCL with its own choice of strategy, on symmetric windows.
    NcclSymmetric,
    /// NCCL with a forced algorithm and protocol.
    NcclForced,
    /// NVSHMEM, by one of its methods.
    Nvshmem(NvshmemMethod),
}

impl ExecutorKind {
    /// All executors, in the order in which messages list them.
    pub const ALL: [Self; 9] = [
        Self::Kernels,
        Self::Copies,
        Self::Nccl,
        Self::NcclSymmetric,
        Self::NcclForced,
        Self::Nvshmem(NvshmemMethod::Collectives),
        Self::Nvshmem(NvshmemMethod::Puts),
        Self::Nvshmem(NvshmemMethod::Heap),
        Self::Nvshmem(NvshmemMethod::Device),
    ];

    /// Name of the executor as in `--executor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::Copies => "copies",
            Self::Nccl => "nccl",
            Self::NcclSymmetric => "nccl-symmetric",
            Self::NcclForced => "nccl-forced",
            Self::Nvshmem(NvshmemMethod::Collectives) => "nvshmem",
            Self::Nvshmem(NvshmemMethod::Puts) => "nvshmem-puts",
            Self::Nvshmem(NvshmemMethod::Heap) => "nvshmem-heap",
            Self::Nvshmem(NvshmemMethod::Device) => "nvshmem-device",
        }
    }

    /// Returns true if the executor runs the schedule with the CUDA driver alone, without a communication library.
    #[must_use]
    pub fn is_driver_only(self) -> bool {
        matches!(self, Self::Kernels | Self::Copies)
    }

    /// Returns true if the executor runs the schedule, with or without a communication library as transport.
    #[must_use]
    pub fn runs_schedule(self) -> bool {
        self.is_driver_only()
            || matches!(self, Self::Nvshmem(NvshmemMethod::Puts | NvshmemMethod::Heap | NvshmemMethod::Device))
    }

    /// Returns true if the executor runs the requested strategy instead of the library's own choice.
    #[must_use]
    pub fn has_strategy(self) -> bool {
        self.runs_schedule() || self == Self::NcclForced
    }
}

/// Error for a word that is not the name of an executor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown executor `{0}`; expected one of {known}", known = ExecutorKind::ALL.map(ExecutorKind::name).join(", "))]
pub struct UnknownExecutor(pub String);

impl FromStr for ExecutorKind {
    type Err = UnknownExecutor;

    fn from_str(text: &str) -> Result<Self, UnknownExecutor> {
        Self::ALL.into_iter().find(|executor| executor.name() == text).ok_or_else(|| UnknownExecutor(text.to_owned()))
    }
}

impl TryFrom<String> for ExecutorKind {
    type Error = UnknownExecutor;

    fn try_from(text: String) -> Result<Self, UnknownExecutor> {
        text.parse()
    }
}
