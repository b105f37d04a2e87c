//! Chunks as other tools count them, in the numbering of schedules: there, input and output of a rank count the same
//! chunks, those of the whole call; files count the chunks that a GPU has.

use fabricast_topologies::Bytes;

use super::{Buffer, BufferUse, ChunkRef, Collective};

/// Without an upper limit in the file: the size that is assumed.
const SIZE_WITHOUT_LIMIT: u64 = 1 << 20;

/// A larger limit than this is none.
const NO_LIMIT: u64 = 1 << 40;

/// What a file says of its buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) collective: Collective,
    pub(super) buffers: BufferUse,
    /// Chunks of the call.
    pub(super) chunks: u32,
    /// Input and output chunks of a GPU.
    pub(super) per_gpu: (u32, u32),
    /// What stands before the file's own scratch chunks.
    pub(super) scratch_from: u32,
}

impl Places {
    /// For files whose GPUs have at most so many chunks of input and output.
    pub(super) fn new(
        collective: Collective,
        buffers: BufferUse,
        ranks: usize,
        per_gpu: (u32, u32),
    ) -> Result<Self, String> {
        if !collective.has_sizes() {
            return Err(format!("files of this format have no {collective}"));
        }
        let (input, output, ranks) = (u64::from(per_gpu.0), u64::from(per_gpu.1), ranks as u64);
        let chunks = match collective {
            Collective::AllGather | Collective::Gather => (input * ranks).max(output),
            Collective::ReduceScatter | Collective::Scatter => input.max(output * ranks),
            _ => input.max(output),
        };
        match u32::try_from(chunks) {
            Ok(chunks) if chunks > 0 => Ok(Self { collective, buffers, chunks, per_gpu, scratch_from: 0 }),
            Ok(_) => Err("no input and no output chunks; expected at least one".to_owned()),
            Err(_) => Err(format!("{chunks} chunks; expected at most {}", u32::MAX)),
        }
    }

    /// Chunks of a GPU's buffer that lie before its own part of it.
    fn before(&self, gpu: u32, buffer: Buffer) -> u64 {
        match (buffer, self.collective) {
            (Buffer::Input, Collective::AllGather | Collective::Gather) => u64::from(gpu) * u64::from(self.per_gpu.0),
            (Buffer::Output, Collective::ReduceScatter | Collective::Scatter) => {
                u64::from(gpu) * u64::from(self.per_gpu.1)
            }
            (Buffer::Scratch, _) => u64::from(self.scratch_from),
            _ => 0,
        }
    }

    /// The chunk that a file calls `offset` of a GPU's buffer; nothing if `count` chunks from there pass the end.
    pub(super) fn place(&self, gpu: u32, (buffer, offset): (Buffer, u32), count: u32) -> Option<ChunkRef> {
        let index = self.before(gpu, buffer) + u64::from(offset);
        let fits = buffer == Buffer::Scratch || index + u64::from(count) <= u64::from(self.chunks);
        u32::try_from(index).ok().filter(|_| fits).map(|index| ChunkRef { buffer, index })
    }

    /// What a file calls a chunk of a GPU; nothing if it is not the GPU's.
    pub(super) fn offset(&self, gpu: u32, chunk: ChunkRef) -> Option<u32> {
        let offset = u64::from(chunk.index).checked_sub(self.before(gpu, chunk.buffer))?;
        u32::try_from(offset).ok()
    }

    /// Whether a chunk is the rank's own contribution, as put_reduce_input reads it.
    pub(super) fn is_input(&self, chunk: ChunkRef) -> bool {
        chunk.buffer == Buffer::Input || (chunk.buffer == Buffer::Output && self.buffers == BufferUse::InPlace)
    }

    /// The first and the last of the sizes from `least` to `most`, as files have them (0: no limit).
    pub(super) fn sizes(least: u64, most: u64) -> (Bytes, Bytes) {
        (Bytes(least), if most == 0 || most > NO_LIMIT { Bytes(u64::MAX) } else { Bytes(most) })
    }

    /// The size that a file for sizes from `least` to `most` (0: no limit) is read for: the only one, or the largest of
    /// whole chunks.
    pub(super) fn assumed_bytes(&self, least: u64, most: u64) -> Bytes {
        if least == most && least > 0 && Bytes(least) <= Bytes::MAX {
            return Bytes(least);
        }
        let chunks = u64::from(self.chunks);
        if most == 0 || most > NO_LIMIT {
            let wanted = SIZE_WITHOUT_LIMIT.max(least.min(NO_LIMIT)).max(chunks);
            return Bytes(wanted.div_ceil(chunks) * chunks);
        }
        let whole = most - most % chunks;
        Bytes(if whole == 0 { most } else { whole })
    }
}

/// Whether two chunks are the same memory.
pub(super) fn same_memory(a: ChunkRef, b: ChunkRef, buffers: BufferUse) -> bool {
    cell(a, buffers) == cell(b, buffers)
}

/// A chunk by the one name that it has where input and output are the same memory.
pub(super) fn cell(chunk: ChunkRef, buffers: BufferUse) -> ChunkRef {
    match (chunk.buffer, buffers) {
        (Buffer::Input, BufferUse::InPlace) => ChunkRef { buffer: Buffer::Output, ..chunk },
        _ => chunk,
    }
}
