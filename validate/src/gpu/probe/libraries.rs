//! Which of NVIDIA's libraries this machine has, where, and their versions.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cuda::compile;
use crate::nccl::Nccl;
use crate::shared_library::{SharedLibrary, Visibility, Wanted};

/// NVSHMEM's host library.
const NVSHMEM: Wanted = Wanted {
    name: "NVSHMEM",
    files: &["libnvshmem_host.so.3"],
    wheel_folders: &["nvidia/nvshmem/lib"],
    advice: "`pip install nvidia-nvshmem-cu13` brings it, or name its file by --nvshmem",
};

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
        let nvshmem = SharedLibrary::open(&NVSHMEM, choices.nvshmem, Visibility::Global)
            .map_err(|error| missing("NVSHMEM", error.to_string()))
            .ok();
        let found = |version: Option<String>, path: &Path| Found { version, path: path.display().to_string() };
        Self {
            nccl: nccl.map(|nccl| found(Some(nccl.version().to_string()), nccl.path())),
            nvshmem: nvshmem.map(|library| found(nvshmem_version(&library), library.path())),
            nvrtc: nvrtc.map(|(path, version)| found(Some(version.to_string()), &path)),
        }
    }
}

/// NVSHMEM's version by `nvshmemx_vendor_get_version_info`, which not every build exports.
#[expect(unsafe_code, reason = "a call into a C library")]
fn nvshmem_version(library: &SharedLibrary) -> Option<String> {
    type Get = unsafe extern "C" fn(*mut i32, *mut i32, *mut i32);
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the type is that of nvshmemx.h; three numbers are written, and nothing needs to be initialised.
    unsafe {
        library.function::<Get>("nvshmemx_vendor_get_version_info").ok()?(
            &raw mut major,
            &raw mut minor,
            &raw mut patch,
        );
    }
    Some(format!("{major}.{minor}.{patch}"))
}
