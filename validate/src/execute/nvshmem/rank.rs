//! State of one process: its buffers, and the heap memory of its executors.

use std::sync::Arc;
use std::time::Duration;

use fabricast_topologies::Bytes;

use crate::cuda::{Context, CudaError, Stream, Watchdog};
use crate::execute::{Buffers, ExecuteError, Job};
use crate::nvshmem::{Channel, Element, NvshmemError, SymmetricMemory};

/// State of this process: its buffers, and the heap memory of its executors.
pub(super) struct Rank {
    pub(super) element: Arc<Element>,
    pub(super) context: Arc<Context>,
    pub(super) buffers: Buffers,
    input: Arc<SymmetricMemory>,
    output: Arc<SymmetricMemory>,
    pub(super) offset: Bytes,
    /// Symmetric memory for executors, which grows when needed; `None` until the first use.
    arena: Option<Arc<SymmetricMemory>>,
    barrier_stream: Stream,
    pub(super) watchdog: Watchdog,
    pub(super) patience: Duration,
}

impl Rank {
    /// Allocates the buffers of this process.
    pub(super) fn new(
        element: Arc<Element>,
        context: Arc<Context>,
        room: Bytes,
        offset: Bytes,
        patience: Duration,
    ) -> Result<Self, ExecuteError> {
        let length = Bytes(room.0 + offset.0 + 16);
        let input = Arc::new(SymmetricMemory::new(&element, length)?);
        let output = Arc::new(SymmetricMemory::new(&element, length)?);
        let buffers = Buffers::from_external(input.on_all_elements()?, output.on_all_elements()?, offset);
        let barrier_stream = Stream::new(&context)?;
        let watchdog = Watchdog::new(patience);
        Ok(Self { element, context, buffers, input, output, offset, arena: None, barrier_stream, watchdog, patience })
    }

    /// Returns symmetric memory of at least `bytes` bytes, zeroed on this rank. Earlier contents are lost. All ranks
    /// must request the same size.
    pub(super) fn arena(&mut self, bytes: Bytes) -> Result<Arc<SymmetricMemory>, ExecuteError> {
        let arena = match self.arena.take() {
            Some(arena) if arena.length() >= bytes => arena,
            old => {
                if let Some(old) = old.and_then(Arc::into_inner) {
                    old.free();
                }
                Arc::new(SymmetricMemory::new(&self.element, bytes)?)
            }
        };
        let stream = Stream::new(&self.context)?;
        stream.fill(arena.all(), 0)?;
        stream.synchronize()?;
        self.arena = Some(Arc::clone(&arena));
        Ok(arena)
    }

    /// Number of this rank among all ranks, from 0.
    pub(super) fn number(&self) -> usize {
        self.element.rank()
    }

    /// Start of this rank's input or output of a job, as a symmetric address.
    pub(super) fn symmetric(&self, job: &Job, buffer: crate::kernel::UserBuffer) -> crate::cuda::DeviceAddress {
        let in_place = job.header.call.buffers == fabricast_sim::schedule::BufferUse::InPlace;
        let is_input = buffer == crate::kernel::UserBuffer::Input && !in_place;
        if is_input { self.input.address() } else { self.output.address() }.plus(self.offset)
    }

    /// Synchronizes with all other ranks, on a separate stream.
    pub(super) fn barrier(&self, channel: &Channel) -> Result<(), CudaError> {
        channel.send_heartbeat();
        self.element.barrier(&self.barrier_stream).map_err(|error| match error {
            NvshmemError::Cuda(error) => error,
            _ => CudaError::Abandoned,
        })?;
        let describe = || format!("rank {}, for the other ranks", self.number());
        self.watchdog.wait_for(&self.barrier_stream, &describe)
    }
}
