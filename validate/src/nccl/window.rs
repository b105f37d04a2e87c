//! Memory allocated by NCCL, and windows on it that all ranks register jointly, for NCCL's symmetric kernels.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use fabricast_topologies::Bytes;

use super::error::NcclError;
use super::library::{Comm, Nccl, NcclCode, RawWindow};
use crate::cuda::{Context, DeviceAddress, DeviceSlice};

type Alloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> NcclCode;
type Free = unsafe extern "C" fn(*mut c_void) -> NcclCode;
type Register = unsafe extern "C" fn(Comm, *mut c_void, usize, *mut RawWindow, c_int) -> NcclCode;
type Deregister = unsafe extern "C" fn(Comm, RawWindow) -> NcclCode;

/// Flag of `ncclCommWindowRegister`: the window has the same offset on every rank (`NCCL_WIN_COLL_SYMMETRIC`).
const SYMMETRIC: c_int = 1;

/// Memory from `ncclMemAlloc` (NCCL 2.19 or later), as windows require.
#[derive(Debug)]
pub struct WindowMemory {
    nccl: Arc<Nccl>,
    context: Arc<Context>,
    start: *mut c_void,
    length: Bytes,
}

// SAFETY: an address on a GPU, which may be freed from any thread.
unsafe impl Send for WindowMemory {}
// SAFETY: immutable.
unsafe impl Sync for WindowMemory {}

impl WindowMemory {
    /// Allocates memory on the GPU of `context`.
    ///
    /// # Errors
    /// The version of NCCL lacks the function, or an NCCL function returns an error.
    pub fn new(nccl: &Arc<Nccl>, context: &Arc<Context>, length: Bytes) -> Result<Self, NcclError> {
        // SAFETY: the types are those of nccl.h; both functions exist or neither is used.
        let alloc = unsafe {
            nccl.function::<Free>("ncclMemFree")?;
            nccl.function::<Alloc>("ncclMemAlloc")?
        };
        context.bind()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the context is current; NCCL writes one pointer.
        nccl.check(unsafe { alloc(&raw mut start, length.0.max(1) as usize) }, "ncclMemAlloc", None)?;
        Ok(Self { nccl: Arc::clone(nccl), context: Arc::clone(context), start, length })
    }

    /// Start address on the GPU.
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.start as u64)
    }

    /// Length of the memory in bytes.
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Returns the whole memory as a slice.
    pub fn all(&self) -> DeviceSlice<'_> {
        DeviceSlice::from_external(&self.context, self.address(), self.length)
    }
}

impl Drop for WindowMemory {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_err() {
            return;
        }
        // SAFETY: the type is that of nccl.h; allocated once, freed once. A destructor cannot report errors.
        unsafe {
            if let Ok(free) = self.nccl.function::<Free>("ncclMemFree") {
                let _ = free(self.start);
            }
        }
    }
}

/// Window that all ranks of a communicator registered jointly, and its memory. The communicator owns both.
#[derive(Debug)]
pub(super) struct Window {
    raw: RawWindow,
    _memory: Arc<WindowMemory>,
}

impl Window {
    /// Registers all of `memory` with the communicator `comm`, whose context is current on this thread. Every rank must
    /// call this function with the same length.
    ///
    /// # Errors
    /// The version of NCCL has no windows (before 2.27), or an NCCL function returns an error; it names `rank`.
    pub(super) fn register(
        nccl: &Nccl,
        comm: Comm,
        memory: &Arc<WindowMemory>,
        rank: usize,
    ) -> Result<Self, NcclError> {
        // SAFETY: the types are those of nccl.h; both functions exist or neither is used.
        let register = unsafe {
            nccl.function::<Deregister>("ncclCommWindowDeregister")?;
            nccl.function::<Register>("ncclCommWindowRegister")?
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the memory is NCCL's own and has the stated length; NCCL writes one pointer.
        let code = unsafe { register(comm, memory.start, memory.length.0 as usize, &raw mut raw, SYMMETRIC) };
        nccl.check(code, "ncclCommWindowRegister", Some(rank))?;
        Ok(Self { raw, _memory: Arc::clone(memory) })
    }

    /// Deregisters the window from the communicator `comm`, whose context is current on this thread. Destructors call
    /// it, so it reports no errors.
    pub(super) fn deregister(self, nccl: &Nccl, comm: Comm) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: the type is that of nccl.h; registered once, deregistered once.
        unsafe {
            if let Ok(deregister) = nccl.function::<Deregister>("ncclCommWindowDeregister") {
                let _ = deregister(comm, self.raw);
            }
        }
    }
}
