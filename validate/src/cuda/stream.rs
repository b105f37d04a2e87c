//! CUDA stream: a queue of GPU work that runs in order.
#![expect(unsafe_code, reason = "driver calls")]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::error::CudaError;
use super::event::Event;
use super::progress::Progress;

/// A stream that does not synchronize with the default stream.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: the driver accepts a stream's handle from any thread and synchronizes internally.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream on the GPU of `context`.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the driver writes one pointer. Priority 0 is the default.
        let result = unsafe { sys::cuStreamCreateWithPriority(&raw mut raw, flags, 0) };
        context.check(result, "cuStreamCreateWithPriority")?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Context that the stream was created in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Driver handle, for libraries that enqueue work on the stream (NCCL, NVSHMEM). Valid as long as `self`.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Returns the completion state of the enqueued work.
    ///
    /// # Errors
    /// A driver call fails, or enqueued work failed.
    pub fn progress(&self) -> Result<Progress, CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
            result => self.context.check(result, "cuStreamQuery").map(|()| Progress::Done),
        }
    }

    /// Waits without a time limit until all enqueued work is complete. [`Watchdog`](super::Watchdog) provides waits
    /// with a limit.
    ///
    /// # Errors
    /// A driver call fails, or enqueued work failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        self.context.check(unsafe { sys::cuStreamSynchronize(self.raw) }, "cuStreamSynchronize")
    }

    /// Records `event`, which must belong to the same GPU, at the current end of the stream.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive.
        self.context.check(unsafe { sys::cuEventRecord(event.raw(), self.raw) }, "cuEventRecord")
    }

    /// Makes subsequent work of the stream wait for `event`, which may be of another GPU.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive; flag 0 is the default.
        self.context.check(unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) }, "cuStreamWaitEvent")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: created once, destroyed once; enqueued work still completes. An error cannot be reported here.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
