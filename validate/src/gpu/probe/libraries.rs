//! Which of NVIDIA's libraries this machine has, where, and their versions.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cuda::compile;
use crate::nccl::Nccl;
use crate::nvshmem::Nvshmem;

/// Which files to take instead of looking.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices<'a> {
    /// NCCL's.
    pub nccl: Option<&'a Path>,
    /// NVSHMEM's.
    pub nvshmem: Option<&'a Path>,
}

/// The libraries, where they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Libraries {
    /// NCCL.
    pub nccl: Option<Found>,
    /// NVSHMEM.
    pub nvshmem: Option<Found>,
    /// The run-time compiler.
    pub nvrtc: Option<Found>,
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its version, where it says it.
    pub version: Option<String>,
    /// Its file, or the bare name that the loader found.
    pub path: String,
}

impl Libraries {
    /// Looks for all of them; what is missing is said in `unknown`.
    pub(super) fn look(choices: &Choices<'_>, unknown: &mut Vec<String>) -> Self {
        let mut missing = |name: &str, error: String| unknown.push(format!("{name}: {error}"));
        let nccl = Nccl::open(choices.nccl).map_err(|error| missing("NCCL", error.to_string())).ok();
        let nvrtc = compile::version().map_err(|error| missing("NVRTC", error.to_string())).ok();
        let nvshmem = Nvshmem::open(choices.nvshmem).map_err(|error| missing("NVSHMEM", error.to_string())).ok();
        let found = |version: Option<String>, path: &Path| Found { version, path: path.display().to_string() };
        Self {
            nccl: nccl.map(|nccl| found(Some(nccl.version().to_string()), nccl.path())),
            nvshmem: nvshmem.map(|library| found(Some(library.version().to_string()), library.path())),
            nvrtc: nvrtc.map(|(path, version)| found(Some(version.to_string()), &path)),
        }
    }
}
