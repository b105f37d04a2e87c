//! NCCL's side of the interface: structs as in its headers, loading of the library, calls, and a logger.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_double, c_float, c_int, c_long, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

pub type Log = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
type Ask =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut c_float, c_int, c_int, c_int, *mut c_int) -> c_int;
pub type End = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Tuner interface of version 4: `ncclTuner_v4_t`, src/include/plugin/tuner/tuner_v4.h.
#[repr(C)]
pub struct Four {
    pub name: *const c_char,
    pub init: unsafe extern "C" fn(usize, usize, Option<Log>, *mut *mut c_void) -> c_int,
    pub ask: Ask,
    pub destroy: End,
}

/// Constants of NCCL's cost estimates: `ncclTunerConstants_v5_t`.
#[repr(C)]
pub struct Constants(pub [c_double; 7 * 3 + 3 * 7 * 3 + 5 * 4 * 3]);

type Begin =
    unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, Option<Log>, *mut [c_int; 3], *mut Constants) -> c_int;

/// Tuner interface of version 5: `ncclTuner_v5_t`, tuner_v5.h.
#[repr(C)]
pub struct Five {
    pub name: *const c_char,
    pub init: Begin,
    pub ask: Ask,
    pub finalize: End,
}

/// Tuner interface of version 6: `ncclTuner_v6_t`, tuner_v6.h.
#[repr(C)]
pub struct Six {
    pub five: Five,
    pub chunk: Option<unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int>,
}

/// Interface structs of all versions, as exported by the library.
pub struct Plugin {
    pub four: &'static Four,
    pub five: &'static Five,
    pub six: &'static Six,
}

// SAFETY: pointers to immutable data.
unsafe impl Sync for Plugin {}
// SAFETY: likewise.
unsafe impl Send for Plugin {}

/// The library, opened once and never closed. Cargo builds it in the folder of these tests before it runs them.
pub static PLUGIN: LazyLock<Plugin> = LazyLock::new(|| {
    let library = Box::leak(Box::new(open(&file())));
    // SAFETY: data symbols whose contents are under test.
    unsafe {
        Plugin {
            four: *library.get::<&'static Four>(b"ncclTunerPlugin_v4\0").unwrap(),
            five: *library.get::<&'static Five>(b"ncclTunerPlugin_v5\0").unwrap(),
            six: *library.get::<&'static Six>(b"ncclTunerPlugin_v6\0").unwrap(),
        }
    }
});

/// Path of the library that Cargo built.
pub fn file() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}nccl_tuner_fabricast{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let folder = test.parent().unwrap();
    let candidates = [folder.join(&name), folder.parent().unwrap().join(&name)];
    candidates
        .iter()
        .find(|candidate| candidate.exists())
        .unwrap_or_else(|| panic!("none of {candidates:?} exists"))
        .clone()
}

pub fn open(path: &Path) -> libloading::Library {
    // SAFETY: loading has no side effects.
    unsafe { libloading::Library::new(path) }.unwrap()
}

/// Version of NCCL's tuner interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Four,
    Five,
    Six,
}

pub const VERSIONS: [Version; 3] = [Version::Four, Version::Five, Version::Six];

/// Communicator with its tuner context.
#[derive(Debug)]
pub struct Communicator {
    version: Version,
    pub context: *mut c_void,
    /// Messages logged while the communicator was created: level and text.
    pub messages: Vec<(c_int, String)>,
}

// SAFETY: NCCL's threads share contexts too.
unsafe impl Sync for Communicator {}
// SAFETY: likewise.
unsafe impl Send for Communicator {}

/// Arguments of a call, in NCCL's codes.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub function: c_int,
    pub bytes: usize,
    pub operations: c_int,
    pub registered: c_int,
}

/// Costs and number of channels after a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub costs: Vec<c_float>,
    pub channels: c_int,
}

/// The environment belongs to the whole process, so communicators are created one at a time.
static MAKING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Messages that this thread's calls logged: level and text.
    static SAID: RefCell<Vec<(c_int, String)>> = const { RefCell::new(Vec::new()) };
}

/// Logger that takes the argument of `%s`. On x86-64 and ARM Linux, where NCCL runs, the first variadic arguments are
/// passed like fixed ones.
unsafe extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: zero-terminated texts, as specified by the interface.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format, c"%s");
    SAID.with_borrow_mut(|messages| messages.push((level, text.to_str().unwrap().to_owned())));
}

pub fn log() -> Log {
    // SAFETY: called with exactly these arguments, see `logger`.
    unsafe {
        std::mem::transmute(
            logger as unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char),
        )
    }
}

/// Runs `work` with the environment variable set to a file, and returns the messages logged during `work`.
pub fn with_file<T>(variable: &str, path: Option<&Path>, work: impl FnOnce() -> T) -> (T, Vec<(c_int, String)>) {
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    SAID.take();
    // SAFETY: no other code of this process accesses the environment meanwhile: only callers of this function create
    // contexts.
    unsafe {
        std::env::remove_var("FABRICAST_TUNER_FILE");
        std::env::remove_var("NCCL_TUNER_CONFIG_FILE");
        if let Some(path) = path {
            std::env::set_var(variable, path);
        }
    }
    let made = work();
    (made, SAID.take())
}

impl Communicator {
    pub fn new(version: Version, path: Option<&Path>, ranks: usize, nodes: usize) -> Self {
        Self::with_variable("FABRICAST_TUNER_FILE", version, path, ranks, nodes)
    }

    pub fn with_variable(variable: &str, version: Version, path: Option<&Path>, ranks: usize, nodes: usize) -> Self {
        let mut constants = Constants([7.5; 144]);
        let mut domains = [1, 4, 4];
        let (context, messages) = with_file(variable, path, || {
            let mut context = std::ptr::dangling_mut();
            // SAFETY: called as by NCCL.
            let code = unsafe {
                match version {
                    Version::Four => (PLUGIN.four.init)(ranks, nodes, Some(log()), &raw mut context),
                    Version::Five => (PLUGIN.five.init)(
                        &raw mut context,
                        7,
                        ranks,
                        nodes,
                        Some(log()),
                        &raw mut domains,
                        &raw mut constants,
                    ),
                    Version::Six => (PLUGIN.six.five.init)(
                        &raw mut context,
                        7,
                        ranks,
                        nodes,
                        Some(log()),
                        &raw mut domains,
                        &raw mut constants,
                    ),
                }
            };
            assert_eq!(code, 0);
            context
        });
        assert!(constants.0.iter().all(|&constant| constant == 7.5), "constants are NCCL's own");
        Self { version, context, messages }
    }

    pub fn ask(&self, call: Call, costs: &[c_float], algorithms: c_int, protocols: c_int) -> Outcome {
        let mut costs = costs.to_vec();
        let mut channels = -7;
        let ask = match self.version {
            Version::Four => PLUGIN.four.ask,
            Version::Five => PLUGIN.five.ask,
            Version::Six => PLUGIN.six.five.ask,
        };
        let Call { function, bytes, operations, registered } = call;
        // SAFETY: NCCL casts its block of floats in the same way.
        let code = unsafe {
            ask(
                self.context,
                function,
                bytes,
                operations,
                costs.as_mut_ptr().cast(),
                algorithms,
                protocols,
                registered,
                &raw mut channels,
            )
        };
        assert_eq!(code, 0);
        Outcome { costs, channels }
    }
}

impl Communicator {
    /// Returns the function that finalizes the context.
    pub fn end(&self) -> End {
        match self.version {
            Version::Four => PLUGIN.four.destroy,
            Version::Five => PLUGIN.five.finalize,
            Version::Six => PLUGIN.six.five.finalize,
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let end = self.end();
        // SAFETY: finalized at the end; again only where that is under test.
        assert_eq!(unsafe { end(self.context) }, 0);
    }
}

#[test]
fn struct_sizes_match_c_and_names_are_zero_terminated() {
    let word = size_of::<*const c_void>();
    assert_eq!((size_of::<Four>(), size_of::<Five>(), size_of::<Six>()), (4 * word, 4 * word, 5 * word));
    assert_eq!(size_of::<Constants>(), 1152);
    assert_eq!(size_of::<c_long>(), word);
    for name in [PLUGIN.four.name, PLUGIN.five.name, PLUGIN.six.five.name] {
        // SAFETY: a zero-terminated text.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"fabricast");
    }
    assert!(PLUGIN.six.chunk.is_none(), "NCCL keeps its chunks");
}

#[test]
fn no_other_plugin_symbols_are_exported() {
    let library = open(&file());
    for other in ["ncclTunerPlugin_v2\0", "ncclTunerPlugin_v3\0", "ncclTunerPlugin_v7\0", "ncclNetPlugin_v8\0"] {
        // SAFETY: looked up, not used.
        assert!(unsafe { library.get::<*const c_void>(other.as_bytes()) }.is_err(), "{other}");
    }
}
