//! CUDA graphs: work captured from a stream once and launched many times.
#![expect(unsafe_code, reason = "driver calls")]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureMode_enum as CaptureMode};

use super::context::Context;
use super::error::CudaError;
use super::stream::Stream;

/// An instantiated graph. The graph borrows the captured work, so that the memory that the work accesses lives as long
/// as the graph can be launched.
#[derive(Debug)]
pub struct Graph<'a> {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
    work: PhantomData<&'a ()>,
}

// SAFETY: the handle may move between threads. It is not `Sync`: two threads may not launch one graph concurrently.
unsafe impl Send for Graph<'_> {}

impl<'a> Graph<'a> {
    /// Captures the work that `work` enqueues on `stream`, and on streams that `work` joins to it by events, without
    /// running it. `work` must not allocate or free memory: the driver refuses both during a capture.
    ///
    /// # Safety
    /// `work` must own or borrow all memory that it accesses. The memory must not be behind a cell or a lock, where it
    /// could be replaced. Raw addresses must remain valid as long as `work` exists.
    ///
    /// # Errors
    /// Errors of `work`, or a failing driver call. The capture is ended in either case.
    pub unsafe fn capture<E: From<CudaError>>(
        stream: &Stream,
        work: &'a (impl Fn() -> Result<(), E> + 'a),
    ) -> Result<Self, E> {
        let context = stream.context();
        context.bind()?;
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        context.check(unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }, "cuStreamBeginCapture")?;
        let enqueued = work();
        context.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture was begun above by this thread; the driver writes one pointer, null on failure.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &raw mut graph) };
        let captured = CapturedGraph(graph);
        enqueued?;
        context.check(ended, "cuStreamEndCapture")?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was just captured; the driver writes one pointer.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, captured.0, 0) };
        context.check(result, "cuGraphInstantiate")?;
        Ok(Self { context: Arc::clone(context), executable, work: PhantomData })
    }

    /// Uploads the graph to the GPU, so that the first launch is as fast as later ones.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive.
        self.context.check(unsafe { sys::cuGraphUpload(self.executable, stream.raw()) }, "cuGraphUpload")
    }

    /// Enqueues the graph on `stream`.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive, and so is the captured work: it is borrowed, and the caller of `capture` guarantees
        // the memory that it accesses.
        self.context.check(unsafe { sys::cuGraphLaunch(self.executable, stream.raw()) }, "cuGraphLaunch")
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: created once, destroyed once; enqueued launches still complete. An error cannot be reported here.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}

/// A captured graph that is not yet instantiated.
struct CapturedGraph(sys::CUgraph);

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: captured once, destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
