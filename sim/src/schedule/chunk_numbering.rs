//! Conversion between the chunk numbers of other tools and those of schedules. In a schedule, the input and output of a
//! rank share one numbering, that of the whole call; files of other tools number the chunks that each GPU holds.

use fabricast_topologies::Bytes;

use super::file_format::CallSizes;
use super::{Buffer, BufferUse, ChunkRef, Collective};

/// Call size in bytes assumed if the file gives no upper limit.
const SIZE_WITHOUT_LIMIT: u64 = 1 << 20;

/// Upper limits above this size (in bytes) count as no limit.
const NO_LIMIT: u64 = 1 << 40;

/// Numbers of input and output chunks of a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunksPerGpu {
    pub(super) input: u32,
    pub(super) output: u32,
}

/// Chunk of a GPU's buffer in the file's numbering.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileChunk {
    pub(super) buffer: Buffer,
    pub(super) offset: u32,
}

/// Mapping between a file's chunk numbers and those of a schedule, from the buffer sizes and usage that the file
/// declares.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkNumbering {
    pub(super) collective: Collective,
    pub(super) buffers: BufferUse,
    /// Number of chunks of the call.
    pub(super) chunks: u32,
    pub(super) per_gpu: ChunksPerGpu,
    /// Number of scratch chunks that precede those that the file declares.
    pub(super) scratch_offset: u32,
}

impl ChunkNumbering {
    /// Creates the mapping for files whose GPUs have at most `per_gpu` input and output chunks.
    pub(super) fn new(
        collective: Collective,
        buffers: BufferUse,
        ranks: usize,
        per_gpu: ChunksPerGpu,
    ) -> Result<Self, String> {
        if !collective.has_variable_size() {
            return Err(format!("files of this format have no {collective}"));
        }
        let (input, output, ranks) = (u64::from(per_gpu.input), u64::from(per_gpu.output), ranks as u64);
        let chunks = match collective {
            Collective::AllGather | Collective::Gather => (input * ranks).max(output),
            Collective::ReduceScatter | Collective::Scatter => input.max(output * ranks),
            _ => input.max(output),
        };
        match u32::try_from(chunks) {
            Ok(chunks) if chunks > 0 => Ok(Self { collective, buffers, chunks, per_gpu, scratch_offset: 0 }),
            Ok(_) => Err("no input and no output chunks; expected at least one".to_owned()),
            Err(_) => Err(format!("{chunks} chunks; expected at most {}", u32::MAX)),
        }
    }

    /// Returns the number of chunks of the call that precede the part of the buffer that the GPU holds.
    fn block_offset(&self, gpu: u32, buffer: Buffer) -> u64 {
        match (buffer, self.collective) {
            (Buffer::Input, Collective::AllGather | Collective::Gather) => {
                u64::from(gpu) * u64::from(self.per_gpu.input)
            }
            (Buffer::Output, Collective::ReduceScatter | Collective::Scatter) => {
                u64::from(gpu) * u64::from(self.per_gpu.output)
            }
            (Buffer::Scratch, _) => u64::from(self.scratch_offset),
            _ => 0,
        }
    }

    /// Returns the chunk of the call for a GPU's chunk in the file's numbering; `None` if `count` chunks from there
    /// exceed the buffer.
    pub(super) fn locate(&self, gpu: u32, chunk: FileChunk, count: u32) -> Option<ChunkRef> {
        let FileChunk { buffer, offset } = chunk;
        let index = self.block_offset(gpu, buffer) + u64::from(offset);
        let fits = buffer == Buffer::Scratch || index + u64::from(count) <= u64::from(self.chunks);
        u32::try_from(index).ok().filter(|_| fits).map(|index| ChunkRef { buffer, index })
    }

    /// Returns the offset of a chunk in the file's numbering; `None` if the GPU does not hold the chunk.
    pub(super) fn offset(&self, gpu: u32, chunk: ChunkRef) -> Option<u32> {
        let offset = u64::from(chunk.index).checked_sub(self.block_offset(gpu, chunk.buffer))?;
        u32::try_from(offset).ok()
    }

    /// Returns true if a chunk is the rank's own contribution, which put_reduce_input reads.
    pub(super) fn is_input(&self, chunk: ChunkRef) -> bool {
        chunk.buffer == Buffer::Input || (chunk.buffer == Buffer::Output && self.buffers == BufferUse::InPlace)
    }

    /// Returns the range of sizes that a file states by `min_bytes` and `max_bytes`. A `max_bytes` of 0 means no limit.
    pub(super) fn sizes(min_bytes: u64, max_bytes: u64) -> CallSizes {
        let max = if max_bytes == 0 || max_bytes > NO_LIMIT { Bytes(u64::MAX) } else { Bytes(max_bytes) };
        CallSizes { min: Bytes(min_bytes), max }
    }

    /// Returns the call size assumed for a file that is valid from `min_bytes` to `max_bytes` (0: no limit): the only
    /// size, or the largest one with whole chunks.
    pub(super) fn assumed_bytes(&self, min_bytes: u64, max_bytes: u64) -> Bytes {
        if min_bytes == max_bytes && min_bytes > 0 && Bytes(min_bytes) <= Bytes::MAX {
            return Bytes(min_bytes);
        }
        let chunks = u64::from(self.chunks);
        if max_bytes == 0 || max_bytes > NO_LIMIT {
            let target = SIZE_WITHOUT_LIMIT.max(min_bytes.min(NO_LIMIT)).max(chunks);
            return Bytes(target.div_ceil(chunks) * chunks);
        }
        let rounded = max_bytes - max_bytes % chunks;
        Bytes(if rounded == 0 { max_bytes } else { rounded })
    }
}

/// Returns true if two chunks are the same memory.
pub(super) fn same_memory(a: ChunkRef, b: ChunkRef, buffers: BufferUse) -> bool {
    cell(a, buffers) == cell(b, buffers)
}

/// Returns the canonical reference to a chunk: in place, input chunks become output chunks.
pub(super) fn cell(chunk: ChunkRef, buffers: BufferUse) -> ChunkRef {
    match (chunk.buffer, buffers) {
        (Buffer::Input, BufferUse::InPlace) => ChunkRef { buffer: Buffer::Output, ..chunk },
        _ => chunk,
    }
}
