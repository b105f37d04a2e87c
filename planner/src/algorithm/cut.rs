//! How the bytes of a call are cut: parts (one per rank, say) of lanes of loops.

use fabricast_sim::schedule::{Layout, Segment, Walk};
use fabricast_topologies::Bytes;

use super::{Shape, Unsupported};

/// More chunks or slots of scratch than this are refused: they could not be numbered.
pub(super) const MAX_CHUNKS: u64 = 1 << 28;

/// Chunks of a call in several loops, up to which it is cut: a simulation grows with them. With the chunks that libraries take they
/// are many times what a GPU's memory holds.
pub(super) const MAX_LOOPED_CHUNKS: u64 = 1 << 24;

/// Loops that are never too many, however many ranks and channels share in each.
const FEW_LOOPS: u64 = 16;

/// A cut of the buffer; chunk numbers are linear in part, loop and lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Independent pieces, each on one channel.
    pub(super) lanes: u32,
    /// Rounds that a lane makes over its piece.
    pub(super) loops: u32,
    /// Distance between the chunks of neighbouring parts.
    part_stride: u32,
    /// Distance between the chunks of neighbouring lanes; those of neighbouring loops are `lanes` times as far.
    lane_stride: u32,
}

impl Cut {
    /// Loop after loop through the buffer; in a loop lane after lane, in a lane part after part. Every loop but the last
    /// has chunks of the full size.
    pub(super) fn by_loops(shape: &Shape, lanes: u32, parts: u32) -> Result<(Self, Layout), Unsupported> {
        let bytes = shape.call.bytes.0;
        let per_loop = u64::from(lanes) * u64::from(parts);
        let loop_bytes = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(per_loop));
        let loops = bytes.div_ceil(loop_bytes).max(1);
        checked_loops(loops, per_loop)?;
        let (loops, per_loop) = (loops as u32, per_loop as u32);
        let full = u64::from(loops - 1) * loop_bytes;
        let layout = Layout::new(vec![
            Segment { bytes: Bytes(full), parts: (loops - 1) * per_loop },
            Segment { bytes: Bytes(bytes - full), parts: per_loop },
        ]);
        Ok((Self { lanes, loops, part_stride: 1, lane_stride: parts }, layout))
    }

    /// One block per rank, as collectives with blocks want it; in a block loop after loop, in a loop lane after lane.
    /// Blocks need not be whole bytes, so all loops are equal, of chunks no larger than the full size.
    pub(super) fn by_blocks(shape: &Shape) -> Result<(Self, Layout), Unsupported> {
        let (bytes, lanes, blocks) = (shape.call.bytes.0, u32::from(shape.channels), shape.call.ranks);
        let per_loop = u64::from(lanes) * u64::from(blocks);
        let loop_bytes = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(per_loop));
        let loops = bytes.div_ceil(loop_bytes).max(1);
        let chunks = checked_loops(loops, per_loop)?;
        let (loops, per_block) = (loops as u32, chunks / blocks);
        let layout = Layout::equal(shape.call.bytes, chunks);
        Ok((Self { lanes, loops, part_stride: per_block, lane_stride: 1 }, layout))
    }

    /// The chunk of a part in a loop of a lane.
    pub(super) fn chunk(&self, part: u32, round: u32, lane: u32) -> u32 {
        part * self.part_stride + (round * self.lanes + lane) * self.lane_stride
    }

    /// The chunks of one part, loop by loop.
    pub(super) fn over_loops(&self, part: u32, lane: u32) -> Walk {
        Walk::linear(self.chunk(part, 0, lane), self.lanes * self.lane_stride)
    }

    /// The chunks of one loop, part by part as `parts` says.
    pub(super) fn over_parts(&self, parts: Walk, round: u32, lane: u32) -> Walk {
        let base = parts.base * self.part_stride + self.chunk(0, round, lane);
        Walk { base, stride: parts.stride * self.part_stride, ..parts }
    }
}

/// Chunks of so many loops of so many each, where they are few enough to be simulated.
pub(super) fn checked_loops(loops: u64, per_loop: u64) -> Result<u32, Unsupported> {
    let chunks = loops.saturating_mul(per_loop);
    match loops > FEW_LOOPS && chunks > MAX_LOOPED_CHUNKS {
        true => Err(Unsupported::TooManyLoops { chunks }),
        false => checked(chunks),
    }
}

/// A number of chunks that can be numbered.
pub(super) fn checked(chunks: u64) -> Result<u32, Unsupported> {
    if chunks > MAX_CHUNKS { Err(Unsupported::TooManyChunks { chunks }) } else { Ok(chunks as u32) }
}

/// Channel of a lane: lanes beyond the channels share them.
pub(super) fn channel_of(shape_channels: u16, lane: u32) -> u16 {
    (lane % u32::from(shape_channels)) as u16
}
