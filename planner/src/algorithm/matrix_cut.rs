//! How the blocks of an all_to_allv are cut: a segment of the layout for each, by sender, then receiver; lanes of loops in
//! it, as many loops as the block's own size takes.

use fabricast_sim::schedule::{Buffer, BufferUse, Collective, Header, Layout, Matrix, OpKind, Program, Segment, Walk};

use super::cut::{channel_of, checked, checked_loops};
use super::lane::Lane;
use super::{Algorithm, Shape, Unsupported};

/// The blocks of a matrix, each cut by itself. Empty blocks have a chunk for each lane, which nobody moves.
#[derive(Clone, Debug)]
pub(super) struct MatrixCut {
    ranks: u32,
    pub(super) lanes: u32,
    layout: Layout,
    /// The most rounds over any block.
    most_loops: u32,
    /// By sender: chunks of each of its blocks, where all have as many and none for another rank is empty; otherwise 0.
    even_parts: Vec<u32>,
}

impl MatrixCut {
    /// The cut for a shape, and the header of its schedule with so many times the chunks of the call as scratch.
    pub(super) fn new(shape: &Shape, algorithm: Algorithm, scratch: u32) -> Result<(Self, Header), Unsupported> {
        let matrix = matrix_of(shape)?;
        let (ranks, lanes) = (shape.call.ranks, u32::from(shape.channels));
        let full = shape.chunk.map_or(u64::MAX, |chunk| chunk.0.saturating_mul(lanes.into()));
        let mut chunks = 0u64;
        let mut segments = Vec::with_capacity((ranks as usize).pow(2));
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let bytes = matrix.at(from, to);
            let parts = u64::from(checked_loops(bytes.0.div_ceil(full).max(1), lanes.into())?);
            chunks = chunks.saturating_add(parts);
            segments.push(Segment { bytes, parts: checked(chunks).map(|_| parts as u32)? });
        }
        let slots = checked(chunks.saturating_mul(scratch.into()))?;
        let layout = Layout::new(segments);
        let header = shape.header(algorithm, layout.clone(), slots);
        let loops = |segment: &Segment| if segment.bytes.0 > 0 { segment.parts / lanes } else { 0 };
        let most_loops = layout.segments().iter().map(loops).max().unwrap_or(0);
        let rows = layout.segments().chunks(ranks.max(1) as usize);
        let even_parts = rows.enumerate().map(|(from, row)| {
            let parts = row.first().map_or(0, |block| block.parts);
            let is_alike = |(to, block): (usize, &Segment)| block.parts == parts && (to == from || block.bytes.0 > 0);
            if row.iter().enumerate().all(is_alike) { parts } else { 0 }
        });
        let even_parts = even_parts.collect();
        Ok((Self { ranks, lanes, layout, most_loops, even_parts }, header))
    }

    fn segment(&self, from: u32, to: u32) -> usize {
        from as usize * self.ranks as usize + to as usize
    }

    /// Rounds that a lane makes over a block; none over an empty one.
    pub(super) fn loops(&self, from: u32, to: u32) -> u32 {
        let segment = self.layout.segments().get(self.segment(from, to));
        segment.filter(|segment| segment.bytes.0 > 0).map_or(0, |segment| segment.parts / self.lanes)
    }

    /// The most rounds over any block.
    pub(super) fn most_loops(&self) -> u32 {
        self.most_loops
    }

    /// Rounds that a lane makes over every block that a rank sends, where they are as many for all others; the chunks are then
    /// those of [`Self::over_peers`].
    pub(super) fn even_loops(&self, from: u32) -> Option<u32> {
        self.even_parts.get(from as usize).filter(|&&parts| parts > 0).map(|parts| parts / self.lanes)
    }

    /// The chunks of one round of a lane for several ranks, rank by rank as `peers` says.
    pub(super) fn over_peers(&self, from: u32, peers: Walk, (round, lane): (u32, u32)) -> Walk {
        let parts = self.even_parts.get(from as usize).copied().unwrap_or(0);
        let base = self.chunk(from, 0, round, lane) + peers.base * parts;
        Walk { base, stride: peers.stride * parts, ..peers }
    }

    /// The chunk of a block in a loop of a lane; for a loop that the block does not have, some other.
    pub(super) fn chunk(&self, from: u32, to: u32, round: u32, lane: u32) -> u32 {
        let start = self.layout.start_of(self.segment(from, to));
        start + round * self.lanes + lane
    }

    /// The chunks of a block, loop by loop.
    pub(super) fn over_loops(&self, from: u32, to: u32, lane: u32) -> Walk {
        Walk::linear(self.chunk(from, to, 0, lane), self.lanes)
    }

    /// Out of place, copies the block that a rank keeps.
    pub(super) fn copy_own(&self, header: &Header, rank: u32, program: &mut Program) {
        if header.call.buffers == BufferUse::InPlace || self.loops(rank, rank) == 0 {
            return;
        }
        for lane in 0..self.lanes {
            let at = Lane { rank, channel: channel_of(header.channels, lane) };
            let chunks = self.over_loops(rank, rank, lane);
            let (src, dst) = ((Buffer::Input, chunks), (Buffer::Output, chunks));
            program.push(at.local(OpKind::Copy, self.loops(rank, rank), src, dst), &[]);
        }
    }
}

/// The matrix of a shape, if it is that of its call.
fn matrix_of(shape: &Shape) -> Result<&Matrix, Unsupported> {
    let call = shape.call;
    let matrix = shape.matrix.as_ref().ok_or(Unsupported::NoMatrix)?;
    if call.collective == Collective::AllToAllV && (matrix.ranks(), matrix.total()) == (call.ranks, call.bytes) {
        return Ok(matrix);
    }
    let (ranks, bytes) = (matrix.ranks(), matrix.total());
    Err(Unsupported::OtherMatrix { ranks, bytes, call_ranks: call.ranks, call_bytes: call.bytes })
}
