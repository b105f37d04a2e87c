//! Primary context of a GPU. It is retained, made current and given peer access here, and released by its last owner.
//!
//! Several [`Context`]s of a process may share the primary context of a GPU, and NCCL and NVSHMEM also use it. Peer
//! access is therefore never disabled; the driver removes it with the primary context.
#![expect(unsafe_code, reason = "driver calls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

use super::device::{Access, CudaDevice};
use super::error::{CudaError, check};

/// The primary context of a GPU. Every resource in the context holds a reference, so the context is released last.
#[derive(Debug)]
pub struct Context {
    device: CudaDevice,
    raw: sys::CUcontext,
    abandoned: AtomicBool,
}

// SAFETY: a context's handle may be used from any thread; the driver synchronizes internally.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// True after any context of this process was abandoned. GPUs access each other's memory, so freeing memory on one GPU
/// may wait for another GPU that hangs. Exit handlers of libraries may wait as well.
static ANY_ABANDONED: AtomicBool = AtomicBool::new(false);

/// Ends the process immediately with status `code` if a context was abandoned because work on a GPU hangs; otherwise
/// returns. Exit handlers are skipped, because they would wait for the work that hangs. The driver frees all resources.
pub fn exit_if_hanging(code: u8) {
    if ANY_ABANDONED.load(Ordering::Relaxed) {
        exit_immediately(code);
    }
}

/// Ends the process immediately with status `code`, without exit handlers. The driver frees all resources.
pub fn exit_immediately(code: u8) -> ! {
    unsafe extern "C" {
        safe fn _exit(code: std::ffi::c_int) -> !;
    }
    _exit(code.into())
}

impl CudaDevice {
    /// Retains the primary context of the GPU until the last owner of the context drops it.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn context(self) -> Result<Arc<Context>, CudaError> {
        Context::retain(self).map(Arc::new)
    }
}

impl Context {
    fn retain(device: CudaDevice) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device's handle comes from the driver, which writes one pointer.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device.handle()) };
        check(result, "cuDevicePrimaryCtxRetain", Some(device.ordinal()))?;
        Ok(Self { device, raw, abandoned: AtomicBool::new(false) })
    }

    /// GPU that the context belongs to.
    pub fn device(&self) -> CudaDevice {
        self.device
    }

    /// Ordinal of the context's GPU.
    pub fn ordinal(&self) -> usize {
        self.device.ordinal()
    }

    pub(super) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes the context current on this thread. Methods of this module do so before their driver calls; other
    /// libraries (NCCL, NVSHMEM) expect it of their callers.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "cuCtxSetCurrent", Some(self.ordinal()))
    }

    /// Converts the result of a call; an error names this GPU.
    pub(super) fn check(&self, result: CUresult, call: &'static str) -> Result<(), CudaError> {
        check(result, call, Some(self.ordinal()))
    }

    /// Enables access of this GPU to all memory of `peer`, present and future. Repeated calls have no effect, and a
    /// GPU can always access its own memory.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], or a failing driver call.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<(), CudaError> {
        if peer.ordinal() == self.ordinal() {
            return Ok(());
        }
        if self.device.path_to(peer.device)?.access == Access::Staged {
            return Err(CudaError::NoPeerAccess { from: self.ordinal(), to: peer.ordinal() });
        }
        self.bind()?;
        // SAFETY: both contexts are retained; the flag must be 0.
        let result = unsafe { sys::cuCtxEnablePeerAccess(peer.raw, 0) };
        if result == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.check(result, "cuCtxEnablePeerAccess")
    }

    /// Returns the free memory of the GPU in bytes.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn free_memory(&self) -> Result<Bytes, CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two words.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.check(result, "cuMemGetInfo")?;
        Ok(Bytes(free as u64))
    }

    /// Marks the context as abandoned because work on it hangs, so that every call that frees a resource would block.
    /// The driver frees the resources of the context when the process ends.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        ANY_ABANDONED.store(true, Ordering::Relaxed);
    }

    /// Makes the context current to free a resource. Fails if this or any other context of the process was abandoned.
    pub(crate) fn bind_to_free(&self) -> Result<(), CudaError> {
        if self.abandoned.load(Ordering::Relaxed) || ANY_ABANDONED.load(Ordering::Relaxed) {
            return Err(CudaError::Abandoned);
        }
        self.bind()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.bind_to_free().is_err() {
            return;
        }
        // SAFETY: retained once, released once. An error cannot be reported here.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.handle()) };
    }
}

/// Enables peer access between all pairs of `contexts`.
///
/// # Errors
/// The first pair without peer access, or a failing driver call.
pub fn enable_peer_access_between(contexts: &[Arc<Context>]) -> Result<(), CudaError> {
    contexts.iter().try_for_each(|context| contexts.iter().try_for_each(|peer| context.enable_peer_access(peer)))
}
