//! A rank's communicator: made together with the other ranks', destroyed or aborted when dropped.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use super::error::NcclError;
use super::library::{Comm, Nccl, UniqueId};
use super::window::Window;
use crate::cuda::Context;

/// What a communicator is made with. Absent: NCCL decides, or its environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The fewest thread blocks of a collective: `minCTAs`.
    pub min_blocks: Option<u32>,
    /// The most: `maxCTAs`.
    pub max_blocks: Option<u32>,
}

/// How buffers that calls get are known to NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Not at all.
    Plain,
    /// As windows at the same place on every rank, which its symmetric kernels need: nccl-tests' `-R 2`.
    Symmetric,
}

/// `ncclConfig_t` as 2.18 has it. Later versions add fields behind these and take a shorter struct by its size.
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
    fn of(config: Config) -> Self {
        /// `NCCL_CONFIG_UNDEF_INT`.
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

/// One rank's end of a communicator. The calls of one communicator come from one thread at a time. Before it is dropped
/// the streams of all ranks should be done: let the [`Member`](crate::cuda::Member)s meet. Where one failed, the others
/// [`abort`](Self::abort).
#[derive(Debug)]
pub struct Communicator {
    pub(super) nccl: Arc<Nccl>,
    pub(super) context: Arc<Context>,
    pub(super) raw: Comm,
    pub(super) windows: Vec<Window>,
    rank: usize,
    size: usize,
}

// SAFETY: NCCL takes a communicator from any thread, one at a time; `Communicator` is not `Sync`.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Makes the end of `rank`, on the GPU of `context`. Returns when all `size` ranks have called it with the same id,
    /// each in a thread or process of its own.
    ///
    /// # Errors
    /// A failing call.
    pub fn new(
        nccl: &Arc<Nccl>,
        context: &Arc<Context>,
        id: UniqueId,
        rank: usize,
        size: usize,
        config: Config,
    ) -> Result<Self, NcclError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let config = RawConfig::of(config);
        let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: the config lives through the call and says its size; NCCL writes one pointer.
        let code = unsafe {
            let config = std::ptr::from_ref(&config).cast();
            (nccl.functions.init_rank_config)(&raw mut raw, number(size), id, number(rank), config)
        };
        nccl.check(code, "ncclCommInitRankConfig", Some(rank))?;
        Ok(Self { nccl: Arc::clone(nccl), context: Arc::clone(context), raw, windows: Vec::new(), rank, size })
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What went wrong on another rank or in the background, if anything; look at it while waiting for a stream.
    ///
    /// # Errors
    /// That error.
    pub fn health(&self) -> Result<(), NcclError> {
        let mut state = 0;
        // SAFETY: the communicator lives; one int is written.
        let code = unsafe { (self.nccl.functions.async_error)(self.raw, &raw mut state) };
        self.check(code, "ncclCommGetAsyncError")?;
        self.check(state, "ncclCommGetAsyncError")
    }

    /// Ends it at once, without the other ranks: what is under way on it is given up.
    ///
    /// # Errors
    /// A failing call.
    pub fn abort(mut self) -> Result<(), NcclError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        self.context.bind()?;
        // SAFETY: made once, ended once: the pointer was taken out.
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
        // Destroying waits for what is under way, which would be forever where another rank failed.
        let failed = std::thread::panicking() || self.health().is_err();
        if !failed {
            self.deregister();
        }
        let functions = &self.nccl.functions;
        let end = if failed { functions.abort } else { functions.destroy };
        // SAFETY: made once, ended once. Nothing is left to tell an error to.
        let _ = unsafe { end(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_lies_as_in_the_header() {
        // Offsets of nccl.h 2.18 on a 64-bit machine.
        assert_eq!(std::mem::offset_of!(RawConfig, blocking), 16);
        assert_eq!(std::mem::offset_of!(RawConfig, net_name), 32);
        assert_eq!(size_of::<RawConfig>(), 48);
        let raw = RawConfig::of(Config { max_blocks: Some(4), ..Config::default() });
        assert_eq!((raw.min_ctas, raw.max_ctas), (c_int::MIN, 4));
    }
}
