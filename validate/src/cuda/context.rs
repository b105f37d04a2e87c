//! The primary context of a GPU: taken, made current, joined with peers, and given back when its last owner goes.
#![expect(unsafe_code, reason = "driver calls")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

use super::device::{Access, Device};
use super::error::{CudaError, check};

/// The primary context of a GPU. Whatever belongs to it holds it, so it goes last.
#[derive(Debug)]
pub struct Context {
    device: Device,
    raw: sys::CUcontext,
    /// Contexts whose memory this one was joined with here, to be parted again.
    peers: Mutex<BTreeMap<usize, Weak<Context>>>,
    abandoned: AtomicBool,
}

// SAFETY: a context's handle may be used from any thread; the driver locks for itself, and `peers` is behind a lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Whether anything of this process was given up. GPUs reach each other's memory, so freeing on one of them may wait for what
/// hangs on another, and so may what libraries do at the end of the process.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Ends the process at once where something on a GPU hangs, without what libraries do at its end, which would wait for that; the
/// driver takes everything back. Otherwise returns.
pub fn leave_what_hangs(code: u8) {
    if GIVEN_UP.load(Ordering::Relaxed) {
        leave(code);
    }
}

/// Ends the process at once, without what libraries do at its end; the driver takes everything back.
pub fn leave(code: u8) -> ! {
    unsafe extern "C" {
        safe fn _exit(code: std::ffi::c_int) -> !;
    }
    _exit(code.into())
}

impl Context {
    pub(super) fn retain(device: Device) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device's handle comes from the driver, which writes one pointer.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device.handle()) };
        check(result, "cuDevicePrimaryCtxRetain", Some(device.ordinal()))?;
        Ok(Self { device, raw, peers: Mutex::default(), abandoned: AtomicBool::new(false) })
    }

    /// Its GPU.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The GPU's ordinal.
    pub fn ordinal(&self) -> usize {
        self.device.ordinal()
    }

    pub(super) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes it the current context of this thread. Everything in this layer does so for itself; libraries beside it
    /// (NCCL, NVSHMEM) expect it of their caller.
    ///
    /// # Errors
    /// A failing call.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "cuCtxSetCurrent", Some(self.ordinal()))
    }

    /// Checks a call's result on behalf of this GPU.
    pub(super) fn check(&self, result: CUresult, call: &'static str) -> Result<(), CudaError> {
        check(result, call, Some(self.ordinal()))
    }

    /// Lets this GPU read and write the memory of `other`, from now on and all of it. Twice is once; a GPU reaches its
    /// own memory anyway.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], or a failing call.
    pub fn reach(&self, other: &Arc<Self>) -> Result<(), CudaError> {
        if other.ordinal() == self.ordinal() {
            return Ok(());
        }
        if self.device.path_to(other.device)?.access == Access::Staged {
            return Err(CudaError::NoPeerAccess { from: self.ordinal(), to: other.ordinal() });
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains_key(&other.ordinal()) {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both contexts are retained; the flag must be 0.
        let result = unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) };
        if result == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.check(result, "cuCtxEnablePeerAccess")?;
        peers.insert(other.ordinal(), Arc::downgrade(other));
        Ok(())
    }

    /// Memory that is free, and all of it.
    ///
    /// # Errors
    /// A failing call.
    pub fn free_memory(&self) -> Result<Bytes, CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two words.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.check(result, "cuMemGetInfo")?;
        Ok(Bytes(free as u64))
    }

    /// Gives up on it: something on it hangs, and every call that frees would wait for that. From here on what belongs
    /// to it is left to the end of the process, where the driver takes everything back.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        GIVEN_UP.store(true, Ordering::Relaxed);
    }

    /// Makes it current in order to free something; not where it, or a context beside it, was abandoned.
    pub(crate) fn bind_to_free(&self) -> Result<(), CudaError> {
        if self.abandoned.load(Ordering::Relaxed) || GIVEN_UP.load(Ordering::Relaxed) {
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
        let peers = std::mem::take(self.peers.get_mut().unwrap_or_else(PoisonError::into_inner));
        // With a context that is gone went the access to it.
        for peer in peers.into_values().filter_map(|peer| peer.upgrade()) {
            // SAFETY: both contexts are retained.
            let _ = unsafe { sys::cuCtxDisablePeerAccess(peer.raw) };
        }
        // SAFETY: retained once, released once. Nothing is left to tell an error to.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.handle()) };
    }
}

/// Lets every GPU of `contexts` reach the memory of every other.
///
/// # Errors
/// The first pair without peer access, or a failing call.
pub fn join(contexts: &[Arc<Context>]) -> Result<(), CudaError> {
    contexts.iter().try_for_each(|from| contexts.iter().try_for_each(|to| from.reach(to)))
}
