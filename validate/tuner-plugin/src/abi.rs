//! NCCL's tuner interface: structs of function pointers, and the codes passed to and returned by the functions.
//!
//! Order, types and array sizes are those of NCCL 2.30.7: `src/include/plugin/tuner/tuner_v4.h`, `tuner_v5.h`,
//! `tuner_v6.h` and `src/include/nccl_common.h`. NCCL 2.32 first searches for version 7, which differs only in
//! constants that this plugin does not change, and then uses version 6 (`src/plugin/tuner/tuner_v6.cc`).
#![allow(unsafe_code, reason = "structures of pointers that C reads, exported by name")]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// Result code of a call: `ncclResult_t`. This plugin returns [`SUCCESS`] only.
pub type Code = c_int;

/// Result code of a successful call: `ncclSuccess`.
pub const SUCCESS: Code = 0;

/// NCCL's log function: `ncclDebugLogger_t`, with level, subsystems, file, line, format and its arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// Log level of warnings: `NCCL_LOG_WARN`.
pub const LOG_WARN: c_int = 2;
/// Log level of information: `NCCL_LOG_INFO`.
pub const LOG_INFO: c_int = 3;
/// Subsystem `NCCL_INIT` of NCCL's log. Its messages are shown with `NCCL_DEBUG=INFO` unless `NCCL_DEBUG_SUBSYS`
/// excludes it.
pub const LOG_OF_INIT: c_ulong = 0x1;
/// Subsystem `NCCL_TUNING` of NCCL's log. Its messages are shown with `NCCL_DEBUG_SUBSYS=TUNING`.
pub const LOG_OF_TUNING: c_ulong = 0x40;

/// NVLink domains of a communicator: `ncclNvlDomainInfo_v5_t`, also used by version 6.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NvlDomainInfo {
    /// Number of NVLink domains: `nNvlDomains`.
    pub domains: c_int,
    /// Smallest number of ranks in an NVLink domain: `minRanksPerNvlDomain`.
    pub min_ranks: c_int,
    /// Largest number of ranks in an NVLink domain: `maxRanksPerNvlDomain`.
    pub max_ranks: c_int,
}

/// `ncclTunerConstants_v5_t`, also used by version 6: constants of NCCL's cost estimates. This plugin leaves them
/// unchanged, so that calls without a table entry behave as without the plugin.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// Base latencies by algorithm and protocol, in µs.
    pub base_latencies: [[f64; 3]; 7],
    /// Hardware latencies by kind of link, algorithm and protocol, in µs.
    pub hw_latencies: [[[f64; 3]; 7]; 3],
    /// Maximum LL bandwidth by compute capability and number of nodes, in GB/s.
    pub ll_max: [[f64; 3]; 4],
    /// Maximum LL128 bandwidth of a ring channel, in GB/s. Indices as for `ll_max`.
    pub ring_ll128: [[f64; 3]; 4],
    /// Maximum LL128 bandwidth of a tree channel, in GB/s. Indices as for `ll_max`.
    pub tree_ll128: [[f64; 3]; 4],
    /// Maximum bandwidth of a tree channel, in GB/s. Indices as for `ll_max`.
    pub tree: [[f64; 3]; 4],
    /// Maximum bandwidth of an NVLSTree channel, in GB/s. Indices as for `ll_max`.
    pub nvls_tree: [[f64; 3]; 4],
}

/// `init` of version 4: number of ranks, number of nodes, logger, context.
pub type InitV4 = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut *mut c_void) -> Code;
/// `init` of versions 5 and 6: context, ID of the communicator, number of ranks, number of nodes, logger, NVLink
/// domains, constants.
pub type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    usize,
    usize,
    Option<Logger>,
    *mut NvlDomainInfo,
    *mut Constants,
) -> Code;
/// `getCollInfo` of versions 4 to 6: context, function, bytes, operations in the group, costs, algorithms, protocols,
/// buffer registration, channels.
pub type GetCollInfo =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> Code;
/// `destroy` of version 4, `finalize` since version 5: context.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> Code;
/// `getChunkSize` of version 6: context, function, bytes, algorithm, protocol, channels, chunk.
pub type GetChunkSize = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> Code;

/// Tuner interface of version 4: `ncclTuner_v4_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TunerV4 {
    /// Name shown in NCCL's log.
    pub name: Name,
    /// Creates the context of a communicator.
    pub init: InitV4,
    /// Selects the strategy of a call.
    pub get_coll_info: GetCollInfo,
    /// Destroys the context of a communicator.
    pub destroy: Finalize,
}

/// Tuner interface of version 5: `ncclTuner_v5_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TunerV5 {
    /// Name shown in NCCL's log.
    pub name: Name,
    /// Creates the context of a communicator.
    pub init: InitV5,
    /// Selects the strategy of a call.
    pub get_coll_info: GetCollInfo,
    /// Destroys the context of a communicator.
    pub finalize: Finalize,
}

/// Tuner interface of version 6: `ncclTuner_v6_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TunerV6 {
    /// Name shown in NCCL's log.
    pub name: Name,
    /// Creates the context of a communicator.
    pub init: InitV5,
    /// Selects the strategy of a call.
    pub get_coll_info: GetCollInfo,
    /// Destroys the context of a communicator.
    pub finalize: Finalize,
    /// Changes the chunk size of a call; `None` leaves it to NCCL.
    pub get_chunk_size: Option<GetChunkSize>,
}

/// A zero-terminated text that lives as long as the library.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name(*const c_char);

impl Name {
    /// Creates a name from a constant text.
    pub const fn new(text: &'static CStr) -> Self {
        Self(text.as_ptr())
    }
}

// SAFETY: points to constant text.
unsafe impl Sync for Name {}
