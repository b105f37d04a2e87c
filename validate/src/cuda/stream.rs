//! A stream: work of a GPU in order.
#![expect(unsafe_code, reason = "driver calls")]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::error::CudaError;
use super::event::Event;

/// A stream of its own, not joined with the default one.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: the driver takes a stream's handle from any thread and locks for itself.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Whether the work of a stream is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it.
    Done,
    /// Something is left.
    Pending,
}

impl Stream {
    /// A new stream on the GPU of `context`.
    ///
    /// # Errors
    /// A failing call.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the driver writes one pointer. Priority 0 is the ordinary one.
        let result = unsafe { sys::cuStreamCreateWithPriority(&raw mut raw, flags, 0) };
        context.check(result, "cuStreamCreateWithPriority")?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The driver's handle, for libraries that enqueue work on it (NCCL, NVSHMEM). It lives as long as `self`.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Whether its work is done. An error of that work shows here.
    ///
    /// # Errors
    /// A failing call, or a failure of work that was enqueued.
    pub fn progress(&self) -> Result<Progress, CudaError> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
            result => self.context.check(result, "cuStreamQuery").map(|()| Progress::Done),
        }
    }

    /// Waits until its work is done, however long that takes; a [`Watchdog`](super::Watchdog) waits with a limit.
    ///
    /// # Errors
    /// A failing call, or a failure of work that was enqueued.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        self.context.check(unsafe { sys::cuStreamSynchronize(self.raw) }, "cuStreamSynchronize")
    }

    /// Marks this place of the stream by `event`, which must be of the same GPU.
    ///
    /// # Errors
    /// A failing call.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live.
        self.context.check(unsafe { sys::cuEventRecord(event.raw(), self.raw) }, "cuEventRecord")
    }

    /// What follows waits for `event`, which may be of another GPU.
    ///
    /// # Errors
    /// A failing call.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live; the flag 0 is the ordinary one.
        self.context.check(unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) }, "cuStreamWaitEvent")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: made once, destroyed once; its work still ends. Nothing is left to tell an error to.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
