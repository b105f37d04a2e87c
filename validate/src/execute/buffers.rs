//! The caller's buffers of every rank.

use fabricast_topologies::Bytes;

use std::sync::Arc;

use crate::cuda::{CudaError, DeviceAddress, DeviceMemory, DeviceSlice};
use crate::kernel::{Addresses, BufferExtent, UserBuffer};
use crate::nccl::{Nccl, WindowMemory};

use super::{ExecuteError, Job, Testbed};

/// Input and output buffers of every rank. For in-place calls, both are the output. A clone shares the memory, which is
/// freed with the last clone.
#[derive(Clone, Debug)]
pub struct Buffers {
    inputs: Vec<BufferMemory>,
    outputs: Vec<BufferMemory>,
    offset: Bytes,
}

/// Memory of the buffers, by allocator.
#[derive(Clone, Debug)]
enum BufferMemory {
    /// Allocated by this crate.
    Own(Arc<DeviceMemory>),
    /// Allocated by NCCL, for its symmetric windows.
    Window(Arc<WindowMemory>),
}

impl BufferMemory {
    fn part(&self, offset: Bytes, length: Bytes) -> Result<DeviceSlice<'_>, CudaError> {
        match self {
            Self::Own(memory) => memory.part(offset, length),
            Self::Window(memory) => memory.all().part(offset, length),
        }
    }

    fn address(&self) -> DeviceAddress {
        match self {
            Self::Own(memory) => memory.address(),
            Self::Window(memory) => memory.address(),
        }
    }
}

impl Buffers {
    /// Allocates memory for calls of up to `max_bytes` bytes, with buffers that begin `offset` bytes after an aligned
    /// address.
    ///
    /// # Errors
    /// GPU memory is exhausted.
    pub fn new(testbed: &Testbed, max_bytes: Bytes, offset: Bytes) -> Result<Self, CudaError> {
        let allocate = || {
            let allocate_rank =
                |rank| DeviceMemory::new(testbed.rank_context(rank), Bytes(max_bytes.0 + offset.0 + 16));
            (0..testbed.ranks() as usize)
                .map(|rank| allocate_rank(rank).map(|memory| BufferMemory::Own(Arc::new(memory))))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { inputs: allocate()?, outputs: allocate()?, offset })
    }

    /// Wraps memory that another module allocated for every rank. The memory must be large enough for the calls and
    /// `offset`.
    pub(super) fn from_external(inputs: Vec<DeviceMemory>, outputs: Vec<DeviceMemory>, offset: Bytes) -> Self {
        let wrap = |memories: Vec<DeviceMemory>| {
            memories.into_iter().map(|memory| BufferMemory::Own(Arc::new(memory))).collect()
        };
        Self { inputs: wrap(inputs), outputs: wrap(outputs), offset }
    }

    /// Variant of [`Self::new`] in which NCCL allocates the memory, as its symmetric windows require.
    ///
    /// # Errors
    /// NCCL is too old for windows, or GPU memory is exhausted.
    pub fn for_windows(
        testbed: &Testbed,
        nccl: &Arc<Nccl>,
        max_bytes: Bytes,
        offset: Bytes,
    ) -> Result<Self, ExecuteError> {
        let allocate = || {
            let allocate_rank =
                |rank| WindowMemory::new(nccl, testbed.rank_context(rank), Bytes(max_bytes.0 + offset.0 + 16));
            (0..testbed.ranks() as usize)
                .map(|rank| allocate_rank(rank).map(|memory| BufferMemory::Window(Arc::new(memory))))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { inputs: allocate()?, outputs: allocate()?, offset })
    }

    /// Returns buffers in the same memory that begin `offset` bytes after an aligned address. `offset` may exceed the
    /// offset of the allocation by at most 16 bytes.
    #[must_use]
    pub fn with_offset(&self, offset: Bytes) -> Self {
        Self { inputs: self.inputs.clone(), outputs: self.outputs.clone(), offset }
    }

    /// Input and output memory of a rank; empty unless NCCL allocated them.
    pub(super) fn windows(&self, rank: usize) -> Vec<&Arc<WindowMemory>> {
        [&self.inputs, &self.outputs]
            .into_iter()
            .filter_map(|memories| match memories.get(rank) {
                Some(BufferMemory::Window(memory)) => Some(memory),
                _ => None,
            })
            .collect()
    }

    /// Part of a rank's buffer that the calls of a job use.
    pub(super) fn part(&self, job: &Job, rank: usize, buffer: UserBuffer) -> Result<DeviceSlice<'_>, ExecuteError> {
        let memories = if job.in_place() || buffer == UserBuffer::Output { &self.outputs } else { &self.inputs };
        let BufferExtent { length, .. } = BufferExtent::new(&job.header, rank as u32, buffer);
        Ok(memories[rank].part(self.offset, Bytes(length))?)
    }

    /// Part of a rank's buffer: `bytes` bytes from byte `start` of the whole data of the call.
    pub(super) fn range(
        &self,
        job: &Job,
        rank: usize,
        buffer: UserBuffer,
        start: Bytes,
        bytes: Bytes,
    ) -> Result<DeviceSlice<'_>, ExecuteError> {
        let memories = if job.in_place() || buffer == UserBuffer::Output { &self.outputs } else { &self.inputs };
        let origin = BufferExtent::new(&job.header, rank as u32, buffer).start;
        Ok(memories[rank].part(Bytes(self.offset.0 + start.0 - origin), bytes)?)
    }

    /// Part of a rank's output: `size` bytes from byte `offset` of the output.
    pub(super) fn element(&self, rank: usize, offset: u64, size: u64) -> Result<DeviceSlice<'_>, ExecuteError> {
        Ok(self.outputs[rank].part(Bytes(self.offset.0 + offset), Bytes(size))?)
    }

    /// Addresses of the input and output of every rank, for kernels. The arena addresses are unset; the owner of the
    /// arenas sets them.
    pub(super) fn addresses(&self, job: &Job) -> Vec<Addresses> {
        let address_of = |memory: &BufferMemory| memory.address().plus(self.offset).0;
        let inputs = if job.in_place() { &self.outputs } else { &self.inputs };
        let pairs = inputs.iter().zip(&self.outputs);
        pairs
            .map(|(input, output)| Addresses { input: address_of(input), output: address_of(output), arena: 0 })
            .collect()
    }
}
