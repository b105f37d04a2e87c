//! NVIDIA libraries on this machine: paths and versions.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cuda::compile;
use crate::nccl::Nccl;
use crate::nvshmem::Nvshmem;

/// Paths of libraries that the user gives. A library with a path is not searched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices<'a> {
    /// File of NCCL, or folder that contains it. `None` for a search.
    pub nccl: Option<&'a Path>,
    /// File of NVSHMEM, or folder that contains it. `None` for a search.
    pub nvshmem: Option<&'a Path>,
}

/// Libraries that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Libraries {
    /// NCCL.
    pub nccl: Option<Found>,
    /// NVSHMEM.
    pub nvshmem: Option<Found>,
    /// NVRTC, the run-time compiler.
    pub nvrtc: Option<Found>,
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// Version, if the library reports it.
    pub version: Option<String>,
    /// Path, or the bare name that the loader resolved.
    pub path: String,
}

impl Libraries {
    /// Searches for all libraries. The reason for each library that is not found is added to `unknown`.
    pub(super) fn search(choices: &Choices<'_>, unknown: &mut Vec<String>) -> Self {
        let mut missing = |name: &str, error: String| unknown.push(format!("{name}: {error}"));
        let nccl = Nccl::open(choices.nccl).map_err(|error| missing("NCCL", error.to_string())).ok();
        let nvrtc = compile::version().map_err(|error| missing("NVRTC", error.to_string())).ok();
        let nvshmem = Nvshmem::open(choices.nvshmem).map_err(|error| missing("NVSHMEM", error.to_string())).ok();
        let describe = |version: Option<String>, path: &Path| Found { version, path: path.display().to_string() };
        Self {
            nccl: nccl.map(|nccl| describe(Some(nccl.version().to_string()), nccl.path())),
            nvshmem: nvshmem.map(|library| describe(Some(library.version().to_string()), library.path())),
            nvrtc: nvrtc.map(|(path, version)| describe(Some(version.to_string()), &path)),
        }
    }
}
