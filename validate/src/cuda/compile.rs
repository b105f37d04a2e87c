//! Run-time compilation of CUDA C by NVRTC, for a specific GPU architecture, with a cache of the results.
//!
//! The output is machine code (a cubin) instead of PTX, so that results do not depend on the compiler in the driver.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::arch::Arch;
use super::cache;
use super::version::CudaVersion;
use crate::shared_library::{LibraryError, LibrarySpec, SharedLibrary, Visibility, site_packages};

const NVRTC: LibrarySpec = LibrarySpec {
    name: "NVRTC, the run-time compiler of CUDA",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    wheel_folders: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
    advice: "`pip install 'nvidia-cuda-nvrtc==13.0.*'` installs it, or add its folder to LD_LIBRARY_PATH",
};

/// Machine code for one architecture: an ELF file whose headers refer only to bytes inside the file. A reader that
/// knows only the address of the first byte therefore never reads beyond the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin(Vec<u8>);

impl Cubin {
    /// Wraps machine code made by another tool, such as a linker.
    ///
    /// # Errors
    /// [`CompileError::NoCode`] if it is not a 64-bit ELF file, or if its headers refer to bytes beyond its end.
    pub fn new(image: Vec<u8>) -> Result<Self, CompileError> {
        if is_complete_elf(&image) == Some(true) { Ok(Self(image)) } else { Err(CompileError::NoCode) }
    }

    /// The bytes of the ELF file.
    pub fn image(&self) -> &[u8] {
        &self.0
    }
}

/// Returns true if a little-endian 64-bit ELF file contains its section and segment tables and all bytes that they
/// refer to (System V ABI, gABI 4.1, "Object Files"). `None` if a header is truncated.
fn is_complete_elf(image: &[u8]) -> Option<bool> {
    /// `SHT_NOBITS`: a section that occupies no bytes in the file.
    const WITHOUT_BYTES: u64 = 8;
    let field = |offset: u64, bytes: usize| -> Option<u64> {
        let offset = usize::try_from(offset).ok()?;
        let field = image.get(offset..offset.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let is_inside = |from: u64, length: u64| from.checked_add(length).is_some_and(|end| end <= image.len() as u64);
    /// The magic number, `ELFCLASS64` and `ELFDATA2LSB`.
    const ELF64_MAGIC: &[u8] = b"\x7fELF\x02\x01";
    if !image.starts_with(ELF64_MAGIC) {
        return Some(false);
    }
    let (segments, sections) = (field(0x20, 8)?, field(0x28, 8)?);
    let [segment_size, segment_count, section_size, section_count] =
        [field(0x36, 2)?, field(0x38, 2)?, field(0x3a, 2)?, field(0x3c, 2)?];
    if (segment_count > 0 && segment_size < 0x38) || (section_count > 0 && section_size < 0x40) {
        return Some(false);
    }
    for number in 0..segment_count {
        let offset = segments.checked_add(number * segment_size)?;
        if !is_inside(offset, segment_size) || !is_inside(field(offset + 8, 8)?, field(offset + 0x20, 8)?) {
            return Some(false);
        }
    }
    for number in 0..section_count {
        let offset = sections.checked_add(number * section_size)?;
        let bytes = if field(offset.checked_add(4)?, 4)? == WITHOUT_BYTES { 0 } else { field(offset + 0x20, 8)? };
        if !is_inside(offset, section_size) || !is_inside(field(offset + 0x18, 8)?, bytes) {
            return Some(false);
        }
    }
    Some(section_count > 0 || segment_count > 0)
}

/// Reasons why compilation yields no machine code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// NVRTC is missing or unusable.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The source does not compile.
    #[error("a kernel does not compile{}:\n{log}", .saved_source.as_ref().map_or_else(String::new, |path| format!("; its source is stored at {}", path.display())))]
    Source {
        /// Log of the compiler, which quotes lines of the source.
        log: String,
        /// Path of the saved source. `None` if it could not be saved.
        saved_source: Option<PathBuf>,
    },
    /// A call to NVRTC failed.
    #[error("{call} failed: {text}")]
    Call {
        /// NVRTC function that failed.
        call: &'static str,
        /// NVRTC's text for the error code.
        text: String,
    },
    /// The compiler's output, or an image that was read, is not GPU machine code.
    #[error("not machine code of a GPU: expected a complete ELF file")]
    NoCode,
    /// The source or an option contains a zero byte.
    #[error("a kernel's source or an option contains a zero byte")]
    Zero,
}

type NvrtcProgram = *mut c_void;
type NvrtcCode = c_int;

/// Functions of NVRTC, resolved once.
#[derive(Debug)]
struct Nvrtc {
    library: SharedLibrary,
    version: CudaVersion,
    create: unsafe extern "C" fn(
        *mut NvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> NvrtcCode,
    compile: unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> NvrtcCode,
    log_size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> NvrtcCode,
    log: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> NvrtcCode,
    code_size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> NvrtcCode,
    code: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> NvrtcCode,
    destroy: unsafe extern "C" fn(*mut NvrtcProgram) -> NvrtcCode,
    text: unsafe extern "C" fn(NvrtcCode) -> *const c_char,
}

/// NVRTC of this machine, searched for once.
fn compiler() -> Result<&'static Nvrtc, CompileError> {
    static COMPILER: OnceLock<Result<Nvrtc, CompileError>> = OnceLock::new();
    COMPILER.get_or_init(Nvrtc::open).as_ref().map_err(Clone::clone)
}

/// Returns the path and version of NVRTC.
///
/// # Errors
/// NVRTC is missing or unusable.
pub fn version() -> Result<(PathBuf, CudaVersion), CompileError> {
    compiler().map(|nvrtc| (nvrtc.library.path().to_owned(), nvrtc.version))
}

/// Folders with the CUDA headers (`cuda_fp16.h`, `cooperative_groups.h`), which are not part of NVRTC.
pub fn include_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for site in site_packages() {
        folders.extend(["nvidia/cu13/include", "nvidia/cuda_runtime/include"].map(|folder| site.join(folder)));
    }
    folders.push(PathBuf::from("/usr/local/cuda/include"));
    folders.retain(|folder| folder.join("cuda_fp16.h").exists());
    folders
}

/// Compiles a source without reading or writing the cache. A source that fails to compile is still saved.
///
/// # Errors
/// [`CompileError`] if NVRTC is missing or fails, or if the source does not compile.
pub fn compile_uncached(source: &str, arch: Arch, options: &[&str]) -> Result<Cubin, CompileError> {
    compiler()?.compile(source, arch, options)
}

/// Compiles a source, or reuses the cached result for the same source, options, architecture and compiler version.
/// `options`: options of NVRTC other than the architecture.
///
/// # Errors
/// [`CompileError`] if NVRTC is missing or fails, or if the source does not compile.
pub fn compile(source: &str, arch: Arch, options: &[&str]) -> Result<Cubin, CompileError> {
    let nvrtc = compiler()?;
    let key = format!("// NVRTC {}, {arch}, {}\n{source}", nvrtc.version, options.join(" "));
    if let Some(cubin) = cache::load(&key).and_then(|image| Cubin::new(image).ok()) {
        return Ok(cubin);
    }
    let cubin = nvrtc.compile(source, arch, options)?;
    cache::store(&key, cubin.image());
    Ok(cubin)
}

impl Nvrtc {
    fn open() -> Result<Self, CompileError> {
        let library = open_library()?;
        // SAFETY: the types are those of nvrtc.h (CUDA 13.0), unchanged since the functions were introduced.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> NvrtcCode =
                library.function("nvrtcVersion")?;
            let text: unsafe extern "C" fn(NvrtcCode) -> *const c_char = library.function("nvrtcGetErrorString")?;
            let (mut major, mut minor) = (0, 0);
            let code = version(&raw mut major, &raw mut minor);
            if code != 0 {
                return Err(CompileError::Call { call: "nvrtcVersion", text: string(text(code)) });
            }
            Ok(Self {
                version: CudaVersion { major: major.unsigned_abs(), minor: minor.unsigned_abs() },
                create: library.function("nvrtcCreateProgram")?,
                compile: library.function("nvrtcCompileProgram")?,
                log_size: library.function("nvrtcGetProgramLogSize")?,
                log: library.function("nvrtcGetProgramLog")?,
                code_size: library.function("nvrtcGetCUBINSize")?,
                code: library.function("nvrtcGetCUBIN")?,
                destroy: library.function("nvrtcDestroyProgram")?,
                text,
                library,
            })
        }
    }

    fn check(&self, code: NvrtcCode, call: &'static str) -> Result<(), CompileError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: accepts any code and returns a string that is never freed.
        Err(CompileError::Call { call, text: string(unsafe { (self.text)(code) }) })
    }

    fn compile(&self, source: &str, arch: Arch, options: &[&str]) -> Result<Cubin, CompileError> {
        let c_string = |text: &str| CString::new(text).map_err(|_| CompileError::Zero);
        let text = c_string(source)?;
        let architecture = format!("--gpu-architecture={arch}");
        let options = std::iter::once(architecture.as_str()).chain(options.iter().copied());
        let options = options.map(c_string).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = ProgramOwner { nvrtc: self, program: std::ptr::null_mut() };
        let none = std::ptr::null();
        // SAFETY: the source and its name are zero-terminated and live until the program is destroyed at the end.
        let created =
            unsafe { (self.create)(&raw mut program.program, text.as_ptr(), c"kernel.cu".as_ptr(), 0, none, none) };
        self.check(created, "nvrtcCreateProgram")?;
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: the count matches the array; each option is zero-terminated.
        let compiled = unsafe { (self.compile)(program.program, count, pointers.as_ptr()) };
        /// NVRTC_ERROR_COMPILATION of nvrtc.h.
        const DOES_NOT_COMPILE: NvrtcCode = 6;
        if compiled == DOES_NOT_COMPILE {
            let log = self.bytes(&program, self.log_size, self.log, "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned();
            return Err(CompileError::Source { log, saved_source: cache::save_failed_source(source) });
        }
        self.check(compiled, "nvrtcCompileProgram")?;
        Cubin::new(self.bytes(&program, self.code_size, self.code, "nvrtcGetCUBIN")?)
    }

    /// Reads one output of a program, the log or the code, with its pair of size and data getters.
    fn bytes(
        &self,
        program: &ProgramOwner<'_>,
        size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> NvrtcCode,
        get: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> NvrtcCode,
        call: &'static str,
    ) -> Result<Vec<u8>, CompileError> {
        let mut length = 0;
        // SAFETY: the program was created; one word is written.
        self.check(unsafe { size(program.program, &raw mut length) }, call)?;
        let mut bytes = vec![0_u8; length];
        // SAFETY: the getter writes as many bytes as the size getter returned.
        self.check(unsafe { get(program.program, bytes.as_mut_ptr().cast()) }, call)?;
        Ok(bytes)
    }
}

/// Opens NVRTC and its library of built-in functions. NVRTC loads the latter by its bare name, which succeeds only if
/// the library was opened by path before.
fn open_library() -> Result<SharedLibrary, LibraryError> {
    let library = SharedLibrary::open(&NVRTC, None, Visibility::Local)?;
    let Some(folder) = library.path().parent().filter(|folder| folder.is_absolute()) else { return Ok(library) };
    let mut neighbouring_files: Vec<PathBuf> = std::fs::read_dir(folder)
        .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
        .unwrap_or_default();
    neighbouring_files.sort();
    for path in neighbouring_files {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("libnvrtc-builtins.so.") && !name.contains("alt") {
            let built_in = LibrarySpec { name: "NVRTC's built-in functions", ..NVRTC };
            SharedLibrary::open(&built_in, Some(&path), Visibility::Global)?;
        }
    }
    Ok(library)
}

fn string(text: *const c_char) -> String {
    if text.is_null() {
        return "no text".to_owned();
    }
    // SAFETY: a zero-terminated string owned by the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An NVRTC program, destroyed when dropped.
struct ProgramOwner<'a> {
    nvrtc: &'a Nvrtc,
    program: NvrtcProgram,
}

impl Drop for ProgramOwner<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { (self.nvrtc.destroy)(&raw mut self.program) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if NVRTC is available. Panics if it is not and `REQUIRE_NVRTC` is set.
    fn compiles() -> bool {
        match version() {
            Ok(_) => true,
            Err(error) if std::env::var_os("REQUIRE_NVRTC").is_none() => {
                println!("skipped: {error}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn kernel_compiles_without_gpu() {
        if compiles() {
            let source = "extern \"C\" __global__ void one(int *to) { *to = 1; }";
            for arch in [Arch::new(80), Arch::new(90), Arch::new(90).specific(), Arch::new(100)] {
                let first = compile(source, arch, &["--std=c++17"]).unwrap();
                assert_eq!(first, compile(source, arch, &["--std=c++17"]).unwrap());
            }
        }
    }

    #[test]
    fn failing_source_is_saved_and_path_reported() {
        if compiles() {
            let source = "extern \"C\" __global__ void one(int *to) { *to = nothing; }";
            match compile(source, Arch::new(90), &[]).unwrap_err() {
                CompileError::Source { log, saved_source: path } => {
                    assert!(log.contains("nothing"), "{log}");
                    if let Some(path) = path {
                        assert_eq!(std::fs::read_to_string(path).unwrap(), source);
                    }
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn cubin_must_contain_all_bytes_its_headers_refer_to() {
        assert_eq!(Cubin::new(b"PTX".to_vec()).unwrap_err(), CompileError::NoCode);
        // The image contains a header, bytes of a section, bytes of a segment, a table of one segment, and a table of
        // two sections.
        let mut image = vec![0_u8; 0x40 + 16 + 16 + 0x38 + 2 * 0x40];
        let (text, data, segments, sections) = (0x40_u64, 0x50_u64, 0x60_u64, 0x98_u64);
        let put = |image: &mut Vec<u8>, offset: u64, value: u64, bytes: usize| {
            image[offset as usize..offset as usize + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        };
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        for (offset, value, bytes) in [
            (0x20, segments, 8),
            (0x28, sections, 8),
            (0x36, 0x38, 2),
            (0x38, 1, 2),
            (0x3a, 0x40, 2),
            (0x3c, 2, 2),
            (segments + 8, data, 8),
            (segments + 0x20, 16, 8),
            (sections + 0x18, text, 8),
            (sections + 0x20, 16, 8),
            // A `SHT_NOBITS` section may have any length.
            (sections + 0x40 + 4, 8, 4),
            (sections + 0x40 + 0x20, 1 << 40, 8),
        ] {
            put(&mut image, offset, value, bytes);
        }
        assert!(Cubin::new(image.clone()).is_ok());
        for length in 0..image.len() {
            assert_eq!(Cubin::new(image[..length].to_vec()).unwrap_err(), CompileError::NoCode, "{length}");
        }
        for (offset, value) in
            [(segments + 0x20, u64::MAX), (sections + 0x20, 1000), (0x28, u64::MAX - 8), (0x20, 1 << 40)]
        {
            let mut image = image.clone();
            put(&mut image, offset, value, 8);
            assert_eq!(Cubin::new(image).unwrap_err(), CompileError::NoCode, "{offset}");
        }
    }

    /// Output of the real compiler is rejected when truncated at any length.
    #[test]
    fn truncated_cubins_are_rejected() {
        if compiles() {
            let source = "extern \"C\" __global__ void one(int *to) { *to = 1; }";
            let image = compile_uncached(source, Arch::new(90), &[]).unwrap().image().to_vec();
            assert!((0..image.len()).step_by(7).all(|length| Cubin::new(image[..length].to_vec()).is_err()));
        }
    }
}
