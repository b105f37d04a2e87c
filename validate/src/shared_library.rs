//! Search and loading of NVIDIA's libraries at run time. The search covers the path that the user gives, the dynamic
//! loader, the usual folders, and the folders of Python wheels, which the loader does not search.
#![expect(unsafe_code, reason = "opening a library runs its initialisers; what a symbol is cannot be checked")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names and locations of a library that may be installed.
#[derive(Clone, Copy, Debug)]
pub struct LibrarySpec {
    /// Name of the library in messages.
    pub name: &'static str,
    /// File names of the library, in order of preference.
    pub files: &'static [&'static str],
    /// Folders below `site-packages` in which Python wheels install the library.
    pub wheel_folders: &'static [&'static str],
    /// Advice for the user if the library is missing.
    pub advice: &'static str,
}

/// Reasons why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The library was not found.
    #[error(
        "{name} is not on this machine: neither the loader nor the folders of CUDA and of Python wheels have {file}; {advice}"
    )]
    Missing {
        /// Name of the library in messages.
        name: &'static str,
        /// File name of the library that was searched for.
        file: &'static str,
        /// Advice for the user on how to install the library.
        advice: &'static str,
    },
    /// The file exists but cannot be loaded.
    #[error("{path}: cannot be loaded as {name}: {reason}")]
    Broken {
        /// Name of the library in messages.
        name: &'static str,
        /// Path of the file.
        path: String,
        /// Error message of the dynamic loader.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{path}: this {name} has no function {symbol}; another version is needed")]
    Symbol {
        /// Name of the library in messages.
        name: &'static str,
        /// Path of the file.
        path: String,
        /// Name of the missing function.
        symbol: &'static str,
    },
}

/// A loaded library. It is never unloaded, because the callbacks that it registers with the driver must stay valid
/// until the process ends.
#[derive(Debug)]
pub struct SharedLibrary {
    name: &'static str,
    path: PathBuf,
    handle: libloading::os::unix::Library,
}

/// Visibility of a library's symbols, as in `dlopen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Visible to the library itself only (`RTLD_LOCAL`).
    Local,
    /// Visible to libraries loaded later as well (`RTLD_GLOBAL`), which NVSHMEM's plugins need.
    Global,
}

impl SharedLibrary {
    /// Loads the library from the file or folder `choice` if given, otherwise from the first candidate that loads.
    ///
    /// # Errors
    /// [`LibraryError::Missing`] if no candidate exists; [`LibraryError::Broken`] if the choice, or a file that was
    /// found, cannot be loaded.
    pub fn open(spec: &LibrarySpec, choice: Option<&Path>, visibility: Visibility) -> Result<Self, LibraryError> {
        if let Some(choice) = choice {
            let files = spec.files.iter().map(|file| choice.join(file));
            let path = if choice.is_dir() {
                files.into_iter().find(|path| path.exists()).unwrap_or_else(|| choice.to_owned())
            } else {
                choice.to_owned()
            };
            return Self::open_file(spec, &path, visibility);
        }
        let mut broken = None;
        for path in candidates(spec) {
            match Self::open_file(spec, &path, visibility) {
                Ok(library) => return Ok(library),
                Err(error) if path.is_absolute() => broken = broken.or(Some(error)),
                Err(_) => {}
            }
        }
        let file = spec.files.first().copied().unwrap_or_default();
        Err(broken.unwrap_or(LibraryError::Missing { name: spec.name, file, advice: spec.advice }))
    }

    fn open_file(spec: &LibrarySpec, path: &Path, visibility: Visibility) -> Result<Self, LibraryError> {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
        let flags = match visibility {
            Visibility::Local => RTLD_NOW | RTLD_LOCAL,
            Visibility::Global => RTLD_NOW | RTLD_GLOBAL,
        };
        // SAFETY: the initializers of a library cannot be checked. The user named the file, or it is in a folder where
        // the loader and Python search for code: anyone who can write there can run code as this user.
        match unsafe { Library::open(Some(path), flags) } {
            Ok(handle) => Ok(Self { name: spec.name, path: loaded_path(path), handle }),
            Err(error) => Err(LibraryError::Broken {
                name: spec.name,
                path: path.display().to_string(),
                reason: error.to_string(),
            }),
        }
    }

    /// Path of the loaded file; a bare name if the loader found the file and `/proc/self/maps` does not list it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the function `symbol` of the library.
    ///
    /// # Safety
    /// `F` must be the function's type in C. The library is never unloaded, so the pointer stays valid.
    ///
    /// # Errors
    /// [`LibraryError::Symbol`] if the library lacks the function.
    pub unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, LibraryError> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.handle.get::<F>(symbol.as_bytes()) }
            .map(|symbol_address| *symbol_address)
            .map_err(|_| LibraryError::Symbol { name: self.name, path: self.path.display().to_string(), symbol })
    }

    /// Returns true if the library has the function.
    pub fn has(&self, symbol: &'static str) -> bool {
        // SAFETY: the address is not used.
        unsafe { self.function::<*const ()>(symbol) }.is_ok()
    }
}

impl Drop for SharedLibrary {
    fn drop(&mut self) {
        // The handle is replaced so that it is never closed. Unloading would remove code that the driver's callbacks
        // run.
        let empty = libloading::os::unix::Library::this();
        std::mem::forget(std::mem::replace(&mut self.handle, empty));
    }
}

/// Path of a library opened by a bare name, according to `/proc/self/maps`.
fn loaded_path(path: &Path) -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let stem = path.to_string_lossy();
    let found = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..))).find(|file| {
        let name = file.rsplit('/').next().unwrap_or_default();
        // The loader maps `libnccl.so.2` as the file to which it links, `libnccl.so.2.28.9`.
        !path.is_absolute() && name.strip_prefix(&*stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    found.map_or_else(|| path.to_owned(), PathBuf::from)
}

/// Candidate paths of the library, most likely first. Bare names are resolved by the loader.
fn candidates(spec: &LibrarySpec) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = spec.files.iter().map(PathBuf::from).collect();
    let mut folders: Vec<PathBuf> = Vec::new();
    for site in site_packages() {
        folders.extend(spec.wheel_folders.iter().map(|folder| site.join(folder)));
    }
    for root in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from) {
        folders.extend([root.join("lib64"), root.join("lib")]);
    }
    let usual = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    folders.extend(usual.map(PathBuf::from));
    for folder in folders {
        paths.extend(spec.files.iter().map(|file| folder.join(file)).filter(|path| path.exists()));
    }
    paths
}

/// Folders of Python packages: from `PYTHONPATH`, the active virtual environment, every `python3` in `PATH`, and
/// `~/.local`.
pub fn site_packages() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    roots.extend(["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path).filter(|folder| folder.join("python3").exists()) {
        roots.extend(folder.parent().map(Path::to_owned));
    }
    roots.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    let mut sites: Vec<PathBuf> = std::env::var_os("PYTHONPATH")
        .iter()
        .flat_map(|paths| std::env::split_paths(paths).collect::<Vec<_>>())
        .collect();
    for root in roots {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        let mut pythons: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        pythons.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
        pythons.sort();
        for python in pythons {
            sites.extend([python.join("site-packages"), python.join("dist-packages")]);
        }
    }
    let mut seen = BTreeSet::new();
    sites.retain(|site| site.is_dir() && seen.insert(site.clone()));
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: LibrarySpec = LibrarySpec {
        name: "a library that is nowhere",
        files: &["libfabricast-nowhere.so.7"],
        wheel_folders: &["nvidia/nowhere/lib"],
        advice: "nothing helps",
    };

    #[test]
    fn absent_library_is_reported_missing() {
        let error = SharedLibrary::open(&NOWHERE, None, Visibility::Local).unwrap_err();
        assert!(matches!(error, LibraryError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("nothing helps"), "{error}");
    }

    #[test]
    fn unloadable_file_is_named_in_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfabricast-nowhere.so.7");
        std::fs::write(&path, "not a library").unwrap();
        for choice in [path.as_path(), folder.path()] {
            let error = SharedLibrary::open(&NOWHERE, Some(choice), Visibility::Local).unwrap_err();
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_missing_function_is_an_error() {
        let libc = LibrarySpec { name: "libc", files: &["libc.so.6"], wheel_folders: &[], advice: "" };
        let library = SharedLibrary::open(&libc, None, Visibility::Local).unwrap();
        assert!(library.has("strlen"));
        assert!(library.path().is_absolute(), "{}", library.path().display());
        // SAFETY: the function is not called.
        let error = unsafe { library.function::<*const ()>("fabricast_has_no_such_function") }.unwrap_err();
        assert!(error.to_string().contains("fabricast_has_no_such_function"), "{error}");
    }
}
