//! Graphs: work captured from a stream once, launched many times.
#![expect(unsafe_code, reason = "driver calls")]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureMode_enum as CaptureMode};

use super::context::Context;
use super::error::CudaError;
use super::stream::Stream;

/// Captured work, ready to launch. It borrows the work, and by it what the work reaches, as long as it can be launched.
#[derive(Debug)]
pub struct Graph<'a> {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
    work: PhantomData<&'a ()>,
}

// SAFETY: the handle may move between threads. It is not `Sync`: two threads may not launch one graph at once.
unsafe impl Send for Graph<'_> {}

impl<'a> Graph<'a> {
    /// Captures what `work` enqueues on `stream`, and on streams that it joins with it by events, instead of running it. Memory cannot be
    /// taken or freed by `work`: the driver refuses both during a capture.
    ///
    /// # Safety
    /// Memory that `work` reaches is owned or borrowed by it: neither behind a cell or a lock, where it could be replaced, nor named by
    /// bare addresses of what may go while `work` stays.
    ///
    /// # Errors
    /// What `work` returns, or a failing call; the capture is ended either way.
    pub unsafe fn capture<E: From<CudaError>>(
        stream: &Stream,
        work: &'a (impl Fn() -> Result<(), E> + 'a),
    ) -> Result<Self, E> {
        let context = stream.context();
        context.bind()?;
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        context.check(unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }, "cuStreamBeginCapture")?;
        let enqueued = work();
        context.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture was begun above by this thread; the driver writes one pointer, null where it failed.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &raw mut graph) };
        let captured = Captured(graph);
        enqueued?;
        context.check(ended, "cuStreamEndCapture")?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was captured just now; the driver writes one pointer.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, captured.0, 0) };
        context.check(result, "cuGraphInstantiate")?;
        Ok(Self { context: Arc::clone(context), executable, work: PhantomData })
    }

    /// Brings it onto the GPU, so that the first launch is like the others.
    ///
    /// # Errors
    /// A failing call.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live.
        self.context.check(unsafe { sys::cuGraphUpload(self.executable, stream.raw()) }, "cuGraphUpload")
    }

    /// Enqueues it on `stream`.
    ///
    /// # Errors
    /// A failing call.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both live, and so does what was captured: the work is borrowed, and whoever captured it answered for what it reaches.
        self.context.check(unsafe { sys::cuGraphLaunch(self.executable, stream.raw()) }, "cuGraphLaunch")
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: made once, destroyed once; launches that were enqueued still end. Nothing is left to tell an error to.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}

/// A captured graph, before it is instantiated.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: captured once, destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
