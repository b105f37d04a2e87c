//! Division of the blocks of an all_to_allv into chunks: one segment of the layout per block, by sender and then
//! receiver. Each block is divided into lanes and each lane into loops; the number of loops depends on the size of the
//! block.

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Header, Layout, OpKind, Program, Segment, TrafficMatrix, Walk,
};

use super::cut::{check_chunks, check_loops};
use super::host_channels::HostChannels;
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};

/// Blocks of a matrix, each of which is divided separately. An empty block has one chunk per lane, which no operation
/// moves.
#[derive(Clone, Debug)]
pub(super) struct MatrixCut {
    ranks: u32,
    pub(super) channels: HostChannels,
    pub(super) lanes: u32,
    layout: Layout,
    /// Maximum number of loops over any block.
    max_loops: u32,
    /// By sender, the number of chunks per block if all its blocks have the same number and none for another rank is
    /// empty; otherwise 0.
    even_parts: Vec<u32>,
}

impl MatrixCut {
    /// Creates the division for a shape, and the header of its schedule with scratch of `scratch` times the call's
    /// chunks.
    pub(super) fn new(
        shape: &Shape,
        algorithm: Algorithm,
        channels: HostChannels,
        scratch: u32,
    ) -> Result<(Self, Header), Unsupported> {
        let matrix = checked_matrix(shape)?;
        let (ranks, lanes) = (shape.call.ranks, channels.lanes());
        let full = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(lanes.into()));
        let mut chunks = 0u64;
        let mut segments = Vec::with_capacity((ranks as usize).pow(2));
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let bytes = matrix.get(from, to);
            let parts = u64::from(check_loops(bytes.0.div_ceil(full).max(1), lanes.into())?);
            chunks = chunks.saturating_add(parts);
            segments.push(Segment { bytes, parts: check_chunks(chunks).map(|_| parts as u32)? });
        }
        let slots = check_chunks(chunks.saturating_mul(scratch.into()))?;
        let layout = Layout::new(segments);
        let header = shape.header(algorithm, layout.clone(), slots);
        let loops = |segment: &Segment| if segment.bytes.0 > 0 { segment.parts / lanes } else { 0 };
        let max_loops = layout.segments().iter().map(loops).max().unwrap_or(0);
        let rows = layout.segments().chunks(ranks.max(1) as usize);
        let even_parts = rows.enumerate().map(|(from, row)| {
            let parts = row.first().map_or(0, |block| block.parts);
            let has_equal_parts =
                |(to, block): (usize, &Segment)| block.parts == parts && (to == from || block.bytes.0 > 0);
            if row.iter().enumerate().all(has_equal_parts) { parts } else { 0 }
        });
        let even_parts = even_parts.collect();
        Ok((Self { ranks, channels, lanes, layout, max_loops, even_parts }, header))
    }

    fn segment(&self, from: u32, to: u32) -> usize {
        from as usize * self.ranks as usize + to as usize
    }

    /// Returns the number of loops of a lane over a block; 0 for an empty block.
    pub(super) fn loops(&self, from: u32, to: u32) -> u32 {
        let segment = self.layout.segments().get(self.segment(from, to));
        segment.filter(|segment| segment.bytes.0 > 0).map_or(0, |segment| segment.parts / self.lanes)
    }

    /// Returns the maximum number of loops over any block.
    pub(super) fn max_loops(&self) -> u32 {
        self.max_loops
    }

    /// Returns the number of loops of a lane over every block that `from` sends, if it is the same for all receivers.
    /// The chunks are then those of [`Self::over_peers`].
    pub(super) fn even_loops(&self, from: u32) -> Option<u32> {
        self.even_parts.get(from as usize).filter(|&&parts| parts > 0).map(|parts| parts / self.lanes)
    }

    /// Returns the chunks of one loop of a lane for several receivers, in the order of `peers`.
    pub(super) fn over_peers(&self, from: u32, peers: Walk, round: u32, lane: u32) -> Walk {
        let parts = self.even_parts.get(from as usize).copied().unwrap_or(0);
        let base = self.chunk(from, 0, round, lane) + peers.base * parts;
        Walk { base, stride: peers.stride * parts, ..peers }
    }

    /// Returns the chunk of a block in a loop of a lane. The result has no meaning if the block has fewer loops.
    pub(super) fn chunk(&self, from: u32, to: u32, round: u32, lane: u32) -> u32 {
        let start = self.layout.segment_start(self.segment(from, to));
        start + round * self.lanes + lane
    }

    /// Returns the chunks of a block on a lane, one per loop.
    pub(super) fn over_loops(&self, from: u32, to: u32, lane: u32) -> Walk {
        Walk::linear(self.chunk(from, to, 0, lane), self.lanes)
    }

    /// Copies the block that a rank sends to itself; does nothing in place.
    pub(super) fn copy_own_block(&self, header: &Header, rank: u32, program: &mut Program) {
        if header.call.buffers == BufferUse::InPlace || self.loops(rank, rank) == 0 {
            return;
        }
        for lane in 0..self.lanes {
            let at = Lane { rank, channel: self.channels.channel(0, lane) };
            let chunks = self.over_loops(rank, rank, lane);
            let (src, dst) = ((Buffer::Input, chunks), (Buffer::Output, chunks));
            program.push(at.local(OpKind::Copy, self.loops(rank, rank), src, dst), &[]);
        }
    }
}

/// Returns the matrix of a shape.
///
/// # Errors
/// [`Unsupported`] if the shape has no matrix, or the matrix does not match the call.
fn checked_matrix(shape: &Shape) -> Result<&TrafficMatrix, Unsupported> {
    let call = shape.call;
    let matrix = shape.matrix.as_ref().ok_or(Unsupported::NoMatrix)?;
    if call.collective == Collective::AllToAllV && (matrix.ranks(), matrix.total()) == (call.ranks, call.bytes) {
        return Ok(matrix);
    }
    let (ranks, bytes) = (matrix.ranks(), matrix.total());
    Err(Unsupported::MatrixMismatch { ranks, bytes, call_ranks: call.ranks, call_bytes: call.bytes })
}
