//! Division of a call's bytes into chunks, by part (such as one per rank), lane and loop.

use fabricast_sim::schedule::{Layout, Segment, Walk};
use fabricast_topologies::Bytes;

use super::{Shape, Unsupported};

/// Maximum number of chunks or scratch slots. Chunk numbers have 32 bits.
pub(super) const MAX_CHUNKS: u64 = 1 << 28;

/// Maximum number of chunks of a call with many loops, because simulation time grows with them. At the chunk sizes of
/// libraries, the corresponding buffer is much larger than GPU memory.
pub(super) const MAX_LOOPED_CHUNKS: u64 = 1 << 24;

/// Number of loops that is always accepted, regardless of the numbers of ranks and channels.
const MIN_LOOP_LIMIT: u64 = 16;

/// Division of the call's buffer into chunks, whose numbers are linear in part, loop and lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunking {
    /// Number of lanes: independent pieces of the buffer, each on one channel.
    pub(super) lanes: u32,
    /// Number of loops: iterations of a lane over its piece of the buffer.
    pub(super) loops: u32,
    /// Distance between the chunks of adjacent parts, in chunks.
    part_stride: u32,
    /// Distance between the chunks of adjacent lanes, in chunks; adjacent loops are `lanes` times as far apart.
    lane_stride: u32,
}

impl Chunking {
    /// Divides the buffer by loop, then by lane, then by part. Every loop but the last has chunks of the full size.
    pub(super) fn by_loops(shape: &Shape, lanes: u32, parts: u32) -> Result<(Self, Layout), Unsupported> {
        let bytes = shape.call.bytes.0;
        let per_loop = u64::from(lanes) * u64::from(parts);
        let loop_bytes = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(per_loop));
        let loops = bytes.div_ceil(loop_bytes).max(1);
        check_loops(loops, per_loop)?;
        let (loops, per_loop) = (loops as u32, per_loop as u32);
        let full = u64::from(loops - 1) * loop_bytes;
        let layout = Layout::new(vec![
            Segment { bytes: Bytes(full), parts: (loops - 1) * per_loop },
            Segment { bytes: Bytes(bytes - full), parts: per_loop },
        ]);
        Ok((Self { lanes, loops, part_stride: 1, lane_stride: parts }, layout))
    }

    /// Divides the buffer into one block per rank, as collectives with blocks require, then by loop, then by lane. A
    /// block need not be a whole number of bytes, so all loops are equal, and no chunk exceeds the full size.
    pub(super) fn by_blocks(shape: &Shape) -> Result<(Self, Layout), Unsupported> {
        Self::by_blocks_in_lanes(shape, shape.channels.into())
    }

    /// Divides the buffer as [`Self::by_blocks`] does, into a number of lanes that differs from the number of channels.
    pub(super) fn by_blocks_in_lanes(shape: &Shape, lanes: u32) -> Result<(Self, Layout), Unsupported> {
        let (bytes, blocks) = (shape.call.bytes.0, shape.call.ranks);
        let per_loop = u64::from(lanes) * u64::from(blocks);
        let loop_bytes = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(per_loop));
        let loops = bytes.div_ceil(loop_bytes).max(1);
        let chunks = check_loops(loops, per_loop)?;
        let (loops, per_block) = (loops as u32, chunks / blocks);
        let layout = Layout::equal(shape.call.bytes, chunks);
        Ok((Self { lanes, loops, part_stride: per_block, lane_stride: 1 }, layout))
    }

    /// Returns the number of the chunk of a part in a loop of a lane.
    pub(super) fn chunk(&self, part: u32, round: u32, lane: u32) -> u32 {
        part * self.part_stride + (round * self.lanes + lane) * self.lane_stride
    }

    /// Returns the chunks of one part of a lane, one per loop.
    pub(super) fn over_loops(&self, part: u32, lane: u32) -> Walk {
        Walk::linear(self.chunk(part, 0, lane), self.lanes * self.lane_stride)
    }

    /// Returns the chunks of one loop of a lane, one per part in the order of `parts`.
    pub(super) fn over_parts(&self, parts: Walk, round: u32, lane: u32) -> Walk {
        let base = parts.base * self.part_stride + self.chunk(0, round, lane);
        Walk { base, stride: parts.stride * self.part_stride, ..parts }
    }
}

/// Returns the number of chunks, `loops * per_loop`.
///
/// # Errors
///
/// Returns an error if there are too many chunks to simulate or to number.
pub(super) fn check_loops(loops: u64, per_loop: u64) -> Result<u32, Unsupported> {
    let chunks = loops.saturating_mul(per_loop);
    match loops > MIN_LOOP_LIMIT && chunks > MAX_LOOPED_CHUNKS {
        true => Err(Unsupported::TooManyLoops { chunks }),
        false => check_chunks(chunks),
    }
}

/// Returns `chunks` as a `u32`.
///
/// # Errors
/// [`Unsupported::TooManyChunks`] if it exceeds [`MAX_CHUNKS`].
pub(super) fn check_chunks(chunks: u64) -> Result<u32, Unsupported> {
    if chunks > MAX_CHUNKS { Err(Unsupported::TooManyChunks { chunks }) } else { Ok(chunks as u32) }
}

/// Returns the channel of a lane. If there are more lanes than channels, they share the channels round-robin.
pub(super) fn lane_channel(shape_channels: u16, lane: u32) -> u16 {
    (lane % u32::from(shape_channels)) as u16
}
