//! Compilation of code that calls NVSHMEM's device library. At run time, NVRTC compiles the code, and nvJitLink links
//! it with the library.
//!
//! The library is `libnvshmem_device.a`, in the folder of the host library. Headers come from its wheel and from CUDA
//! (`nvidia-cuda-runtime`, `nvidia-cuda-cccl`, `nvidia-cuda-crt` on PyPI, or a toolkit).
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use crate::cuda::{Arch, CompileError, Cubin, compile};
use crate::shared_library::{LibraryError, LibrarySpec, SharedLibrary, Visibility, site_packages};

const LINKER: LibrarySpec = LibrarySpec {
    name: "nvJitLink, the run-time linker of CUDA",
    files: &["libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so"],
    wheel_folders: &["nvidia/cu13/lib", "nvidia/nvjitlink/lib"],
    advice: "`pip install 'nvidia-nvjitlink==13.0.*'` installs it, or add its folder to LD_LIBRARY_PATH",
};

/// Reasons why code with the device library cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceCodeError {
    /// nvJitLink is missing or unusable.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A part of NVSHMEM or CUDA is missing.
    #[error("{item} is not on this machine: looked for {searched}")]
    Missing {
        /// Name of the missing part.
        item: &'static str,
        /// Path or file that was searched.
        searched: String,
    },
    /// The source does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// nvJitLink cannot link the code with the device library.
    #[error("{call} failed: code {code}; {log}")]
    Link {
        /// Name of the nvJitLink function that failed.
        call: &'static str,
        /// Error code that nvJitLink returned.
        code: i32,
        /// Error log of nvJitLink.
        log: String,
    },
}

/// Compiles a source for NVSHMEM's device library and links it with the library. `host_library`: path of the host
/// library.
///
/// # Errors
/// A part of NVSHMEM or CUDA is missing, or the source does not compile or link.
pub fn compile_with_library(source: &str, arch: Arch, host_library: &Path) -> Result<Cubin, DeviceCodeError> {
    let library = sibling_file(host_library, "libnvshmem_device.a", "NVSHMEM's device library")?;
    let mut folders = vec![headers(host_library)?];
    folders.extend(cuda_headers()?);
    let includes: Vec<String> = folders.iter().map(|folder| format!("--include-path={}", folder.display())).collect();
    let mut options = vec![
        "--std=c++17",
        "--relocatable-device-code=true",
        "--device-as-default-execution-space",
        // The headers contain host functions that cause warnings.
        "--disable-warnings",
    ];
    options.extend(includes.iter().map(String::as_str));
    let object = compile::compile(source, arch, &options)?;
    link(&object, arch, &library)
}

fn missing(what: &'static str, searched: &Path) -> DeviceCodeError {
    DeviceCodeError::Missing { item: what, searched: searched.display().to_string() }
}

fn sibling_file(host_library: &Path, file: &str, what: &'static str) -> Result<PathBuf, DeviceCodeError> {
    let path = host_library.with_file_name(file);
    if path.exists() { Ok(path) } else { Err(missing(what, &path)) }
}

/// Folder of `nvshmem.h`: the `include` folder next to that of the libraries.
fn headers(host_library: &Path) -> Result<PathBuf, DeviceCodeError> {
    let folder = host_library.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("include");
    let file = folder.join("nvshmem.h");
    if file.exists() { Ok(folder) } else { Err(missing("NVSHMEM's headers", &file)) }
}

/// Folders of the headers of CUDA and of libcu++: from one installation that has both if possible, otherwise from
/// several.
fn cuda_headers() -> Result<Vec<PathBuf>, DeviceCodeError> {
    const LIBCUPP: &str = "cuda/std/type_traits";
    let cuda = compile::include_folders();
    let libcupp = |folder: &PathBuf| {
        [folder.join("cccl"), folder.clone()].into_iter().find(|folder| folder.join(LIBCUPP).exists())
    };
    if let Some((folder, more)) = cuda.iter().find_map(|folder| Some((folder.clone(), libcupp(folder)?))) {
        return Ok(vec![more, folder]);
    }
    let folder = cuda.into_iter().next().ok_or_else(|| missing("CUDA's headers", Path::new("cuda_fp16.h")))?;
    let sites = site_packages();
    let subfolders = ["nvidia/cu13/include/cccl", "nvidia/cuda_cccl/include"];
    let wheel_folders = sites.iter().flat_map(|site| subfolders.map(|subfolder| site.join(subfolder)));
    let more = wheel_folders.into_iter().find(|folder| folder.join(LIBCUPP).exists());
    Ok(vec![more.ok_or_else(|| missing("libcu++ of CUDA", Path::new(LIBCUPP)))?, folder])
}

type LinkHandle = *mut c_void;
type Create = unsafe extern "C" fn(*mut LinkHandle, u32, *const *const c_char) -> c_int;
type AddData = unsafe extern "C" fn(LinkHandle, c_int, *const c_void, usize, *const c_char) -> c_int;
type AddFile = unsafe extern "C" fn(LinkHandle, c_int, *const c_char) -> c_int;
type Plain = unsafe extern "C" fn(LinkHandle) -> c_int;
type SizeFunction = unsafe extern "C" fn(LinkHandle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(LinkHandle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut LinkHandle) -> c_int;

/// Link operation of nvJitLink in progress.
struct Link {
    linker: SharedLibrary,
    handle: LinkHandle,
}

fn link(object: &Cubin, arch: Arch, library: &Path) -> Result<Cubin, DeviceCodeError> {
    /// `NVJITLINK_INPUT_CUBIN` and `NVJITLINK_INPUT_LIBRARY`.
    const CUBIN: c_int = 1;
    const LIBRARY: c_int = 6;
    let mut link =
        Link { linker: SharedLibrary::open(&LINKER, None, Visibility::Local)?, handle: std::ptr::null_mut() };
    let zero = |_| DeviceCodeError::Compile(CompileError::Zero);
    let option = CString::new(format!("-arch={arch}")).map_err(zero)?;
    let path = CString::new(library.display().to_string()).map_err(zero)?;
    // SAFETY: the types are those of nvJitLink.h; strings are zero-terminated and live through their calls, the object
    // lives through the whole link; the linker writes as many bytes as it reported.
    unsafe {
        let create: Create = link.linker.function("nvJitLinkCreate")?;
        let code = create(&raw mut link.handle, 1, [option.as_ptr()].as_ptr());
        link.check(code, "nvJitLinkCreate")?;
        let add: AddData = link.linker.function("nvJitLinkAddData")?;
        let image = object.image();
        let code = add(link.handle, CUBIN, image.as_ptr().cast(), image.len(), c"kernel".as_ptr());
        link.check(code, "nvJitLinkAddData")?;
        let add: AddFile = link.linker.function("nvJitLinkAddFile")?;
        link.check(add(link.handle, LIBRARY, path.as_ptr()), "nvJitLinkAddFile")?;
        let complete: Plain = link.linker.function("nvJitLinkComplete")?;
        link.check(complete(link.handle), "nvJitLinkComplete")?;
        let linked = link.bytes("nvJitLinkGetLinkedCubinSize", "nvJitLinkGetLinkedCubin")?;
        Ok(Cubin::new(linked)?)
    }
}

impl Link {
    fn check(&self, code: c_int, call: &'static str) -> Result<(), DeviceCodeError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the handle was created by the linker or is null, which `get` checks.
        let log = unsafe { self.get("nvJitLinkGetErrorLogSize", "nvJitLinkGetErrorLog") }.unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
        Err(DeviceCodeError::Link { call, code, log })
    }

    /// Returns data of the link operation.
    ///
    /// # Safety
    /// Both must name functions of a pair of size and data getters.
    unsafe fn bytes(&self, size: &'static str, get: &'static str) -> Result<Vec<u8>, DeviceCodeError> {
        // SAFETY: the caller guarantees the names.
        unsafe { self.get(size, get) }.ok_or(DeviceCodeError::Link { call: get, code: -1, log: String::new() })
    }

    unsafe fn get(&self, size: &'static str, get: &'static str) -> Option<Vec<u8>> {
        if self.handle.is_null() {
            return None;
        }
        // SAFETY: the types are those of nvJitLink.h; the getter writes as many bytes as the size getter returned.
        unsafe {
            let size: SizeFunction = self.linker.function(size).ok()?;
            let get: Get = self.linker.function(get).ok()?;
            let mut length = 0;
            if size(self.handle, &raw mut length) != 0 {
                return None;
            }
            let mut bytes = vec![0_u8; length];
            (get(self.handle, bytes.as_mut_ptr().cast()) == 0).then_some(bytes)
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: created once, destroyed once.
        unsafe {
            if let Ok(destroy) = self.linker.function::<Destroy>("nvJitLinkDestroy") {
                let _ = destroy(&raw mut self.handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{DataType, ReduceOp};

    use super::*;
    use crate::kernel::{Alignment, steps_text};
    use crate::nvshmem::Nvshmem;

    /// Compiles and links a source. If that is impossible on this machine, prints the reason; panics if
    /// `REQUIRE_NVSHMEM` is set.
    fn linked(source: &str) -> Option<Result<Cubin, DeviceCodeError>> {
        let needed = std::env::var_os("REQUIRE_NVSHMEM").is_some();
        let skipped = |reason: String| {
            assert!(!needed, "{reason}");
            println!("skipped: {reason}");
        };
        let library = match Nvshmem::open(None) {
            Ok(library) => library,
            Err(error) => {
                skipped(error.to_string());
                return None;
            }
        };
        match compile_with_library(source, Arch::new(90), library.path()) {
            Err(
                error @ (DeviceCodeError::Library(_)
                | DeviceCodeError::Missing { .. }
                | DeviceCodeError::Compile(CompileError::Library(_))),
            ) => {
                skipped(error.to_string());
                None
            }
            result => Some(result),
        }
    }

    #[test]
    fn steps_link_with_device_library() {
        let text = steps_text(DataType::F32, ReduceOp::Sum, Alignment::Vectors, 90).unwrap();
        if let Some(result) = linked(&text) {
            // The image contains the library's code, because the kernel alone has about ten thousand bytes.
            let size = result.unwrap().image().len();
            assert!(size > 100_000, "{size}");
        }
    }

    #[test]
    fn undefined_symbol_is_reported_by_linker() {
        let text = "extern \"C\" __device__ void nvshmem_has_no_such(); extern \"C\" __global__ void run_kernel() { \
                    nvshmem_has_no_such(); }";
        if let Some(result) = linked(text) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("nvshmem_has_no_such"), "{error}");
        }
    }

    #[test]
    fn missing_device_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("lib/libnvshmem_host.so.3");
        let error = compile_with_library("", Arch::new(90), &host).unwrap_err().to_string();
        assert!(error.contains("libnvshmem_device.a"), "{error}");
    }
}
