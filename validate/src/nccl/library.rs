//! The NCCL shared library: loading, version, errors, functions.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::error::NcclError;
use crate::shared_library::{LibraryError, LibrarySpec, SharedLibrary, Visibility};

const NCCL: LibrarySpec = LibrarySpec {
    name: "NCCL",
    files: &["libnccl.so.2", "libnccl.so"],
    wheel_folders: &["nvidia/nccl/lib"],
    advice: "`pip install nvidia-nccl-cu13` installs it, or name its file by --nccl",
};

/// Version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion {
    /// Major version: 2 of 2.28.9.
    pub major: u32,
    /// Minor version: 28 of 2.28.9.
    pub minor: u32,
    /// Patch version: 9 of 2.28.9.
    pub patch: u32,
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl NcclVersion {
    /// Decodes NCCL's version code, which has five digits since 2.9 (22809 is 2.28.9) and four digits before (2708 is
    /// 2.7.8).
    fn from_code(code: u32) -> Self {
        if code < 10_000 {
            Self { major: code / 1000, minor: code % 1000 / 100, patch: code % 100 }
        } else {
            Self { major: code / 10_000, minor: code % 10_000 / 100, patch: code % 100 }
        }
    }
}

/// Identifier by which the ranks of a communicator find each other. One rank creates it and sends it to the others.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NcclUniqueId {
    /// Opaque content of `NCCL_UNIQUE_ID_BYTES` bytes.
    pub bytes: [u8; 128],
}

impl fmt::Debug for NcclUniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

pub(super) type NcclCode = c_int;
pub(super) type Comm = *mut c_void;
pub(super) type RawWindow = *mut c_void;
pub(super) type NcclStream = *mut c_void;

/// Functions that every version since 2.18 has; types as in `nccl.h`.
#[derive(Debug)]
pub(super) struct NcclFunctions {
    pub get_unique_id: unsafe extern "C" fn(*mut NcclUniqueId) -> NcclCode,
    pub init_rank_config: unsafe extern "C" fn(*mut Comm, c_int, NcclUniqueId, c_int, *const c_void) -> NcclCode,
    pub destroy: unsafe extern "C" fn(Comm) -> NcclCode,
    pub abort: unsafe extern "C" fn(Comm) -> NcclCode,
    pub async_error: unsafe extern "C" fn(Comm, *mut NcclCode) -> NcclCode,
    pub text: unsafe extern "C" fn(NcclCode) -> *const c_char,
    pub last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    pub group_start: unsafe extern "C" fn() -> NcclCode,
    pub group_end: unsafe extern "C" fn() -> NcclCode,
    pub all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, NcclStream) -> NcclCode,
    pub all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, NcclStream) -> NcclCode,
    pub reduce_scatter:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, NcclStream) -> NcclCode,
    pub broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, NcclStream) -> NcclCode,
    pub reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, NcclStream) -> NcclCode,
    pub send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, NcclStream) -> NcclCode,
    pub recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, NcclStream) -> NcclCode,
}

/// The loaded NCCL library.
#[derive(Debug)]
pub struct Nccl {
    library: SharedLibrary,
    version: NcclVersion,
    pub(super) functions: NcclFunctions,
}

impl Nccl {
    /// Loads NCCL from the file or folder `choice` if given, otherwise from the paths of the loader, CUDA and Python
    /// wheels.
    ///
    /// # Errors
    /// The library is missing, cannot be opened, or is older than 2.18.
    pub fn open(choice: Option<&Path>) -> Result<Arc<Self>, NcclError> {
        let library = SharedLibrary::open(&NCCL, choice, Visibility::Local)?;
        // SAFETY: the types are those of nccl.h.
        let (version, functions) = unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> NcclCode = library.function("ncclGetVersion")?;
            let text: unsafe extern "C" fn(NcclCode) -> *const c_char = library.function("ncclGetErrorString")?;
            let mut number = 0;
            let code = get_version(&raw mut number);
            if code != 0 {
                let (text, last) = (string(text(code)), String::new());
                return Err(NcclError::Call { call: "ncclGetVersion", rank: None, code, text, last });
            }
            (NcclVersion::from_code(number.unsigned_abs()), NcclFunctions::load(&library, text)?)
        };
        Ok(Arc::new(Self { library, version, functions }))
    }

    /// Version that the library reports.
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// Path of the loaded file.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// Creates an id for the ranks of one communicator.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub fn unique_id(&self) -> Result<NcclUniqueId, NcclError> {
        let mut id = NcclUniqueId { bytes: [0; 128] };
        // SAFETY: NCCL writes 128 bytes.
        self.check(unsafe { (self.functions.get_unique_id)(&raw mut id) }, "ncclGetUniqueId", None)?;
        Ok(id)
    }

    /// Runs `calls` as one group: sends and receives that depend on each other, or calls of several communicators
    /// driven by one thread.
    ///
    /// # Errors
    /// The error of `calls`, or an error of an NCCL function; the group is ended in both cases.
    pub fn group<E: From<NcclError>>(&self, calls: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // SAFETY: no arguments.
        self.check(unsafe { (self.functions.group_start)() }, "ncclGroupStart", None)?;
        let made = calls();
        // SAFETY: no arguments; this thread began the group.
        let ended = unsafe { (self.functions.group_end)() };
        made?;
        Ok(self.check(ended, "ncclGroupEnd", None)?)
    }

    /// Looks up a function that only some versions have.
    ///
    /// # Safety
    /// `F` must be the function's C type.
    pub(super) unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, LibraryError> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.library.function(symbol) }
    }

    pub(super) fn check(&self, code: NcclCode, call: &'static str, rank: Option<usize>) -> Result<(), NcclError> {
        /// `ncclInProgress`, which only non-blocking communicators return; communicators of this module are blocking.
        const IN_PROGRESS: NcclCode = 7;
        if code == 0 || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both return strings that are never freed; the last error does not use its communicator argument.
        let (text, last) =
            unsafe { (string((self.functions.text)(code)), string((self.functions.last_error)(std::ptr::null_mut()))) };
        Err(NcclError::Call { call, rank, code, text, last })
    }
}

impl NcclFunctions {
    /// Looks up the functions of NCCL.
    ///
    /// # Safety
    /// The library must be NCCL.
    unsafe fn load(
        library: &SharedLibrary,
        text: unsafe extern "C" fn(NcclCode) -> *const c_char,
    ) -> Result<Self, LibraryError> {
        // SAFETY: each field has the type that nccl.h gives the function.
        unsafe {
            Ok(Self {
                get_unique_id: library.function("ncclGetUniqueId")?,
                init_rank_config: library.function("ncclCommInitRankConfig")?,
                destroy: library.function("ncclCommDestroy")?,
                abort: library.function("ncclCommAbort")?,
                async_error: library.function("ncclCommGetAsyncError")?,
                text,
                last_error: library.function("ncclGetLastError")?,
                group_start: library.function("ncclGroupStart")?,
                group_end: library.function("ncclGroupEnd")?,
                all_reduce: library.function("ncclAllReduce")?,
                all_gather: library.function("ncclAllGather")?,
                reduce_scatter: library.function("ncclReduceScatter")?,
                broadcast: library.function("ncclBroadcast")?,
                reduce: library.function("ncclReduce")?,
                send: library.function("ncclSend")?,
                recv: library.function("ncclRecv")?,
            })
        }
    }
}

fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a zero-terminated string of the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_codes_are_decoded() {
        assert_eq!(NcclVersion::from_code(22809).to_string(), "2.28.9");
        assert_eq!(NcclVersion::from_code(2708).to_string(), "2.7.8");
    }

    #[test]
    fn a_library_that_is_not_nccl_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Nccl::open(Some(folder.path())).unwrap_err();
        assert!(matches!(error, NcclError::Library(LibraryError::Broken { .. })), "{error}");
        if Path::new("/lib/x86_64-linux-gnu/libc.so.6").exists() {
            let error = Nccl::open(Some(Path::new("/lib/x86_64-linux-gnu/libc.so.6"))).unwrap_err();
            assert!(error.to_string().contains("ncclGetVersion"), "{error}");
        }
    }
}
