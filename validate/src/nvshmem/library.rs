//! The NVSHMEM host library: search, version, functions.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabricast_sim::schedule::{DataType, ReduceOp};

use super::error::NvshmemError;
use super::initialization::{InitAttributes, NvshmemUniqueId};
use crate::shared_library::{LibraryError, LibrarySpec, SharedLibrary, Visibility};

const NVSHMEM: LibrarySpec = LibrarySpec {
    name: "NVSHMEM",
    files: &["libnvshmem_host.so.3"],
    wheel_folders: &["nvidia/nvshmem/lib"],
    advice: "`pip install nvidia-nvshmem-cu13` installs it, or name its file by --nvshmem",
};

/// Version of the NVSHMEM host library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NvshmemVersion {
    /// Major version: 3 of 3.4.5.
    pub major: i32,
    /// Minor version: 4 of 3.4.5.
    pub minor: i32,
    /// Patch version: 5 of 3.4.5.
    pub patch: i32,
}

/// The oldest version that exports `nvshmemx_hostlib_init_attr`.
const OLDEST_SUPPORTED: NvshmemVersion = NvshmemVersion { major: 3, minor: 0, patch: 0 };

impl fmt::Display for NvshmemVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

pub(super) type NvshmemStream = *mut c_void;
/// Handle of a team of elements: `nvshmem_team_t`.
pub(super) type Team = i32;

/// Reduction of one element type and operation, such as `nvshmemx_float_sum_reduce_on_stream`.
pub(super) type Reduce = unsafe extern "C" fn(Team, *mut c_void, *const c_void, usize, NvshmemStream) -> c_int;
/// All-gather or all-to-all of bytes, such as `nvshmemx_fcollectmem_on_stream`.
pub(super) type ExchangeFunction =
    unsafe extern "C" fn(Team, *mut c_void, *const c_void, usize, NvshmemStream) -> c_int;

/// Functions of the library, with the types that its headers state.
#[derive(Debug)]
pub(super) struct NvshmemFunctions {
    pub get_unique_id: unsafe extern "C" fn(*mut NvshmemUniqueId) -> c_int,
    pub set_unique_id: unsafe extern "C" fn(c_int, c_int, *const NvshmemUniqueId, *mut InitAttributes) -> c_int,
    pub init: unsafe extern "C" fn(c_uint, *mut InitAttributes) -> c_int,
    pub status: unsafe extern "C" fn() -> c_int,
    pub my_pe: unsafe extern "C" fn() -> c_int,
    pub n_pes: unsafe extern "C" fn() -> c_int,
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub ptr: unsafe extern "C" fn(*const c_void, c_int) -> *mut c_void,
    pub put_signal: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut u64, u64, c_int, c_int, NvshmemStream),
    pub signal: unsafe extern "C" fn(*mut u64, u64, c_int, c_int, NvshmemStream),
    pub wait: unsafe extern "C" fn(*mut u64, c_int, u64, NvshmemStream),
    pub barrier: unsafe extern "C" fn(NvshmemStream),
    pub fcollect: ExchangeFunction,
    pub alltoall: ExchangeFunction,
    pub broadcast: unsafe extern "C" fn(Team, *mut c_void, *const c_void, usize, c_int, NvshmemStream) -> c_int,
    pub module_init: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub module_finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// NVSHMEM library, loaded but not initialized.
#[derive(Debug)]
pub struct Nvshmem {
    library: SharedLibrary,
    version: NvshmemVersion,
    pub(super) functions: NvshmemFunctions,
}

impl Nvshmem {
    /// Loads the library from the file or folder `choice` if given, otherwise from the paths of the loader, CUDA or
    /// Python wheels. Does not need a GPU.
    ///
    /// # Errors
    /// The library is missing, cannot be loaded, lacks a function, or has an unsupported version.
    pub fn open(choice: Option<&Path>) -> Result<Arc<Self>, NvshmemError> {
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);
        let library = SharedLibrary::open(&NVSHMEM, choice, Visibility::Global)?;
        let mut version = NvshmemVersion { major: 0, minor: 0, patch: 0 };
        // SAFETY: the types are those of the headers; three numbers are written, and no initialization is required.
        let functions = unsafe {
            let get: Version = library.function("nvshmemx_vendor_get_version_info")?;
            get(&raw mut version.major, &raw mut version.minor, &raw mut version.patch);
            NvshmemFunctions::load(&library)?
        };
        if version < OLDEST_SUPPORTED || version.major != OLDEST_SUPPORTED.major {
            let (path, found_version) = (library.path().display().to_string(), version.to_string());
            return Err(NvshmemError::Version {
                path,
                found: found_version,
                oldest_supported: OLDEST_SUPPORTED.to_string(),
            });
        }
        Ok(Arc::new(Self { library, version, functions }))
    }

    /// Version reported by the library.
    #[must_use]
    pub fn version(&self) -> NvshmemVersion {
        self.version
    }

    /// Path of the loaded file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// Path of the NCCL library that NVSHMEM uses for its collectives; `None` if it uses none. NVSHMEM searches for
    /// NCCL during initialization, unless `NVSHMEM_DISABLE_NCCL` is set. The result is valid only in a process that
    /// does not use NCCL itself.
    #[must_use]
    pub fn nccl_path(&self) -> Option<PathBuf> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let files = maps.lines().filter_map(|line| line.find('/').and_then(|start| line.get(start..)));
        let mut of_nccl =
            files.filter(|file| file.rsplit('/').next().is_some_and(|name| name.starts_with("libnccl.so")));
        of_nccl.next().map(PathBuf::from)
    }

    /// Returns the function of a reduction, and its name. `None` for data types that NVSHMEM does not reduce.
    pub(super) fn reduction(
        &self,
        scope: Reduction,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<(Reduce, &'static str)>, LibraryError> {
        let Some(symbol) = scope.symbol(dtype, op) else { return Ok(None) };
        // SAFETY: the type is that of the headers, except for the pointee types of addresses.
        let function = unsafe { self.library.function::<Reduce>(symbol) }?;
        Ok(Some((function, symbol)))
    }
}

impl NvshmemFunctions {
    /// Looks up the functions of NVSHMEM.
    ///
    /// # Safety
    /// The library must be NVSHMEM.
    unsafe fn load(library: &SharedLibrary) -> Result<Self, LibraryError> {
        // SAFETY: each field has the type that the headers give the function.
        unsafe {
            Ok(Self {
                get_unique_id: library.function("nvshmemx_get_uniqueid")?,
                set_unique_id: library.function("nvshmemx_set_attr_uniqueid_args")?,
                init: library.function("nvshmemx_hostlib_init_attr")?,
                status: library.function("nvshmemx_init_status")?,
                my_pe: library.function("nvshmem_my_pe")?,
                n_pes: library.function("nvshmem_n_pes")?,
                malloc: library.function("nvshmem_malloc")?,
                free: library.function("nvshmem_free")?,
                ptr: library.function("nvshmem_ptr")?,
                put_signal: library.function("nvshmemx_putmem_signal_on_stream")?,
                signal: library.function("nvshmemx_signal_op_on_stream")?,
                wait: library.function("nvshmemx_signal_wait_until_on_stream")?,
                barrier: library.function("nvshmemx_barrier_all_on_stream")?,
                fcollect: library.function("nvshmemx_fcollectmem_on_stream")?,
                alltoall: library.function("nvshmemx_alltoallmem_on_stream")?,
                broadcast: library.function("nvshmemx_broadcastmem_on_stream")?,
                module_init: library.function("nvshmemx_cumodule_init")?,
                module_finalize: library.function("nvshmemx_cumodule_finalize")?,
            })
        }
    }
}

/// Distribution of the result of a reduction over the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Every element gets the whole result (all_reduce).
    All,
    /// Element r gets block r of the result (reduce_scatter).
    Scatter,
}

/// Function names by scope, element type and reduction.
macro_rules! symbols {
    ($scope:expr, $dtype:expr, $op:expr, [$(($variant:ident, $name:literal)),* $(,)?]) => {
        match ($scope, $dtype, $op) {
            $(
                (Reduction::All, DataType::$variant, ReduceOp::Sum) => concat!("nvshmemx_", $name, "_sum_reduce_on_stream"),
                (Reduction::All, DataType::$variant, ReduceOp::Prod) => concat!("nvshmemx_", $name, "_prod_reduce_on_stream"),
                (Reduction::All, DataType::$variant, ReduceOp::Max) => concat!("nvshmemx_", $name, "_max_reduce_on_stream"),
                (Reduction::All, DataType::$variant, ReduceOp::Min) => concat!("nvshmemx_", $name, "_min_reduce_on_stream"),
                (Reduction::Scatter, DataType::$variant, ReduceOp::Sum) => concat!("nvshmemx_", $name, "_sum_reducescatter_on_stream"),
                (Reduction::Scatter, DataType::$variant, ReduceOp::Prod) => concat!("nvshmemx_", $name, "_prod_reducescatter_on_stream"),
                (Reduction::Scatter, DataType::$variant, ReduceOp::Max) => concat!("nvshmemx_", $name, "_max_reducescatter_on_stream"),
                (Reduction::Scatter, DataType::$variant, ReduceOp::Min) => concat!("nvshmemx_", $name, "_min_reducescatter_on_stream"),
            )*
            (_, DataType::F8e4m3 | DataType::F8e5m2, _) => return None,
        }
    };
}

impl Reduction {
    fn symbol(self, dtype: DataType, op: ReduceOp) -> Option<&'static str> {
        Some(symbols!(
            self,
            dtype,
            op,
            [
                (F32, "float"),
                (F64, "double"),
                (F16, "half"),
                (Bf16, "bfloat16"),
                (I8, "int8"),
                (U8, "uint8"),
                (I32, "int32"),
                (U32, "uint32"),
                (I64, "int64"),
                (U64, "uint64"),
            ]
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_other_than_nvshmem_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error = Nvshmem::open(Some(folder.path())).unwrap_err();
        assert!(matches!(error, NvshmemError::Library(LibraryError::Broken { .. })), "{error}");
        if Path::new("/lib/x86_64-linux-gnu/libc.so.6").exists() {
            let error = Nvshmem::open(Some(Path::new("/lib/x86_64-linux-gnu/libc.so.6"))).unwrap_err();
            assert!(error.to_string().contains("nvshmemx_vendor_get_version_info"), "{error}");
        }
    }

    /// If the library is installed, it has the functions for all types and operations. The test needs no GPU.
    #[test]
    fn library_exports_every_function() {
        let nvshmem = match Nvshmem::open(None) {
            Ok(nvshmem) => nvshmem,
            Err(NvshmemError::Library(error @ LibraryError::Missing { .. })) => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(nvshmem.version() >= OLDEST_SUPPORTED);
        for scope in [Reduction::All, Reduction::Scatter] {
            for dtype in DataType::ALL {
                for op in ReduceOp::ALL {
                    let is_short = matches!(dtype, DataType::F8e4m3 | DataType::F8e5m2);
                    assert_eq!(nvshmem.reduction(scope, dtype, op).unwrap().is_none(), is_short);
                }
            }
        }
    }
}
