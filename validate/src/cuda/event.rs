//! CUDA event: a point in a stream, for synchronization and timing.
#![expect(unsafe_code, reason = "driver calls")]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent_flags_enum as Flags, CUresult};
use fabricast_topologies::Picos;

use super::context::Context;
use super::error::CudaError;
use super::progress::Progress;

/// CUDA event: a point in the work of a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: the driver accepts an event's handle from any thread and synchronizes internally.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that records its time.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn timing(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, Flags::CU_EVENT_DEFAULT)
    }

    /// Creates an event for synchronization only. An event without timing has a lower cost.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn ordering(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_flags(context, Flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(context: &Arc<Context>, flags: Flags) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; the driver writes one pointer.
        context.check(unsafe { sys::cuEventCreate(&raw mut raw, flags as u32) }, "cuEventCreate")?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Returns the completion state of the work that was enqueued before the event.
    ///
    /// # Errors
    /// A driver call fails, or the work before the event failed.
    pub fn progress(&self) -> Result<Progress, CudaError> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
            result => self.context.check(result, "cuEventQuery").map(|()| Progress::Done),
        }
    }

    /// Time from `start` to this event. Both must be complete and of the same GPU. The resolution is about half a
    /// microsecond (CUDA documentation).
    ///
    /// # Errors
    /// A driver call fails: one of the events is not complete or has no timing.
    pub fn since(&self, start: &Self) -> Result<Picos, CudaError> {
        self.context.bind()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both are alive; the driver writes one float.
        let result = unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, start.raw, self.raw) };
        self.context.check(result, "cuEventElapsedTime")?;
        Ok(Picos::from_us(f64::from(milliseconds) * 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: created once, destroyed once. An error cannot be reported here.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
