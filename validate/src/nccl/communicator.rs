//! Communicator of one rank. It is created jointly with those of the other ranks, and destroyed or aborted when
//! dropped.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use super::error::NcclError;
use super::library::{Comm, Nccl, NcclUniqueId};
use super::window::{Window, WindowMemory};
use crate::cuda::Context;

/// Configuration of a communicator; `None` leaves a value to NCCL or its environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicatorConfig {
    /// Minimum number of thread blocks of a collective: `minCTAs`.
    pub min_blocks: Option<u32>,
    /// Maximum number of thread blocks of a collective: `maxCTAs`.
    pub max_blocks: Option<u32>,
}

/// Registration of buffers with NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Buffers are not registered.
    Plain,
    /// Buffers are registered as symmetric windows at the same offset on every rank, as NCCL's symmetric kernels
    /// require (nccl-tests `-R 2`).
    Symmetric,
}

/// Configuration in C: `ncclConfig_t` of NCCL 2.18. Later versions append fields, and accept a shorter struct because
/// the struct states its size.
#[repr(C)]
struct RawConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl RawConfig {
    fn new(config: CommunicatorConfig) -> Self {
        /// `NCCL_CONFIG_UNDEF_INT`, which leaves a value to NCCL.
        const UNDEFINED: c_int = c_int::MIN;
        let number = |value: Option<u32>| value.and_then(|value| c_int::try_from(value).ok()).unwrap_or(UNDEFINED);
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 1,
            cga_cluster_size: UNDEFINED,
            min_ctas: number(config.min_blocks),
            max_ctas: number(config.max_blocks),
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// One rank of a communicator. Only one thread at a time may call its methods. The streams of all ranks should be done
/// before the communicator is dropped; [`Member`](crate::cuda::Member)s can be synchronized for that purpose. If one
/// rank failed, the others must [`abort`](Self::abort).
#[derive(Debug)]
pub struct Communicator {
    pub(super) nccl: Arc<Nccl>,
    pub(super) context: Arc<Context>,
    pub(super) raw: Comm,
    windows: Vec<Window>,
    rank: usize,
    size: usize,
}

// SAFETY: NCCL accepts a communicator from any thread, one at a time; `Communicator` is not `Sync`.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Creates the communicator of `rank` on the GPU of `context`. Blocks until all `size` ranks have called this
    /// function with the same id, each from its own thread or process.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub fn new(
        nccl: &Arc<Nccl>,
        context: &Arc<Context>,
        id: NcclUniqueId,
        rank: usize,
        size: usize,
        config: CommunicatorConfig,
    ) -> Result<Self, NcclError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let config = RawConfig::new(config);
        let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: the config outlives the call and states its size; NCCL writes one pointer.
        let code = unsafe {
            let config = std::ptr::from_ref(&config).cast();
            (nccl.functions.init_rank_config)(&raw mut raw, number(size), id, number(rank), config)
        };
        nccl.check(code, "ncclCommInitRankConfig", Some(rank))?;
        Ok(Self { nccl: Arc::clone(nccl), context: Arc::clone(context), raw, windows: Vec::new(), rank, size })
    }

    /// Rank within the communicator, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks of the communicator.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Registers all of `memory` for the lifetime of the communicator. Every rank must call this function with the same
    /// length.
    ///
    /// # Errors
    /// The version of NCCL has no windows (before 2.27), or an NCCL function returns an error.
    pub fn register(&mut self, memory: &Arc<WindowMemory>) -> Result<(), NcclError> {
        self.context.bind()?;
        self.windows.push(Window::register(&self.nccl, self.raw, memory, self.rank)?);
        Ok(())
    }

    /// Returns the asynchronous error of another rank or of a background thread, if any. Callers poll it while they
    /// wait for a stream.
    ///
    /// # Errors
    /// The asynchronous error.
    pub fn health(&self) -> Result<(), NcclError> {
        let mut state = 0;
        // SAFETY: the communicator is alive; NCCL writes one int.
        let code = unsafe { (self.nccl.functions.async_error)(self.raw, &raw mut state) };
        self.check(code, "ncclCommGetAsyncError")?;
        self.check(state, "ncclCommGetAsyncError")
    }

    /// Aborts the communicator without the other ranks; operations in progress are cancelled.
    ///
    /// # Errors
    /// An NCCL function returns an error.
    pub fn abort(mut self) -> Result<(), NcclError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        self.context.bind()?;
        // SAFETY: the pointer was taken out, so the communicator is ended exactly once.
        let code = unsafe { (self.nccl.functions.abort)(raw) };
        self.check(code, "ncclCommAbort")
    }

    pub(super) fn check(&self, code: c_int, call: &'static str) -> Result<(), NcclError> {
        self.nccl.check(code, call, Some(self.rank))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.raw.is_null() || self.context.bind_to_free().is_err() {
            return;
        }
        // Destroying waits for operations in progress, which would hang if another rank failed; the communicator is
        // then aborted.
        let failed = std::thread::panicking() || self.health().is_err();
        if !failed {
            for window in self.windows.drain(..) {
                window.deregister(&self.nccl, self.raw);
            }
        }
        let functions = &self.nccl.functions;
        let end = if failed { functions.abort } else { functions.destroy };
        // SAFETY: ended exactly once. A destructor cannot report errors.
        let _ = unsafe { end(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_layout_matches_the_header() {
        // Offsets in nccl.h 2.18 on a 64-bit machine.
        assert_eq!(std::mem::offset_of!(RawConfig, blocking), 16);
        assert_eq!(std::mem::offset_of!(RawConfig, net_name), 32);
        assert_eq!(size_of::<RawConfig>(), 48);
        let raw = RawConfig::new(CommunicatorConfig { max_blocks: Some(4), ..CommunicatorConfig::default() });
        assert_eq!((raw.min_ctas, raw.max_ctas), (c_int::MIN, 4));
    }
}
