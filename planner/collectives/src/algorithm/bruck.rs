//! Bruck's algorithm: ⌈log2 n⌉ steps over distances 1, 2, 4, … for any number of ranks.
//!
//! **all_gather.** In step k a rank sends the blocks that it has, its own and the following ones, to the rank 2ᵏ before
//! it; the last step sends only the missing blocks. Every rank sends (n−1)/n of the bytes. Time on equal links of
//! latency L and bandwidth B: ⌈log2 n⌉·L + (n−1)/n · bytes/B. Blocks are written directly to their final position, so
//! the rotations of the original are not needed. Each rank has three runs per lane, loop and step.
//!
//! **all_to_all.** A block with j ranks to go moves by 2ᵏ in step k for every set bit k of j. About half of the blocks
//! move in each step, for n = 2ᵐ a total of m/2 times the bytes. Time on equal links: Σₖ(L + bₖ·bytes/(n·B)), where bₖ
//! is the count of numbers below n with bit k set; for n = 2ᵐ, m·(L + bytes/(2B)). A hop that is not the last writes to
//! a scratch region of its step (⌈log2 n⌉−1 times the bytes in total), because the block that it would overwrite is
//! still being sent. The first rotation of the original is done by addressing and the last one by the last hop; in
//! place, the last hop writes to scratch as well, and a final step copies. There is one run per step, loop, and row or
//! column of blocks that move between the same two regions, of the order of √n in total.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, *Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems*, IEEE TPDS 1997.
//!
//! # Example
//!
//! An all_gather of eight ranks in three steps. Rank 0 sends its own block to rank 7, then two blocks to rank 6, then
//! four to rank 4. A ring sends the same seven blocks in seven steps.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Bruck, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [7, 6, 6, 4, 4, 4, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Header, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, check_chunks};
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Number of steps for `ranks` ranks: ⌈log2 ranks⌉.
pub(super) fn step_count(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// Returns the rank `distance` positions after `rank`, modulo `ranks`; `distance` may be as large as `ranks`.
pub(super) fn rank_after(rank: u32, distance: u32, ranks: u32) -> u32 {
    ((u64::from(rank) + u64::from(distance)) % u64::from(ranks)) as u32
}

/// Schedule generator of Bruck's all_gather.
pub(super) struct BruckAllGather {
    header: Header,
    cut: Chunking,
    rotation: RotationDigit,
}

impl BruckAllGather {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::Bruck, layout, 0), cut, rotation: shape.rotation() })
    }
}

impl MessagePattern for BruckAllGather {
    fn steps(&self) -> u32 {
        step_count(self.header.call.ranks)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let ranks = self.header.call.ranks;
        let to = rank_after(rank, ranks - (1 << step), ranks);
        let own_block = Walk::fixed(rank);
        let others = (ranks - (1 << step)).min(1 << step) - 1;
        let next = Parts::new(Buffer::Output, Walk::cyclic(0, rank_after(rank, 1, ranks), 1, ranks));
        vec![
            MessagePiece::put(to, Parts::new(Buffer::Input, own_block), Parts::new(Buffer::Output, own_block), 1),
            MessagePiece::put(to, next, next, others),
        ]
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        Some(rank_after(rank, 1 << step, self.header.call.ranks))
    }
}

impl ScheduleGenerator for BruckAllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_part(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![self.rotation])
    }
}

/// Schedule generator of Bruck's all_to_all.
pub(super) struct BruckAllToAll {
    header: Header,
    cut: Chunking,
    rotation: RotationDigit,
    in_place: bool,
}

/// Row of `len` blocks of an all_to_all. A block is identified by the distance from its sender to its receiver; the
/// distances are `first, first + step, …`.
#[derive(Clone, Copy)]
struct BlockLine {
    first: u32,
    step: u32,
    len: u32,
    /// Step of the previous hop of these blocks; `None` for their first hop.
    before: Option<u32>,
    /// True if this hop is the last hop of the blocks.
    arrives: bool,
}

impl BlockLine {
    /// Returns the scratch slots of these blocks in the region of a step.
    fn slots(self, region: u32) -> Parts {
        Parts::scratch(region, Walk { base: self.first, start: 0, step: self.step, modulus: 0, stride: 1 })
    }
}

impl BruckAllToAll {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let in_place = shape.call.buffers == BufferUse::InPlace;
        let regions = step_count(shape.call.ranks) - u32::from(!in_place);
        let slots = check_chunks(u64::from(layout.chunks()) * u64::from(regions))?;
        Ok(Self { header: shape.header(Algorithm::Bruck, layout, slots), cut, rotation: shape.rotation(), in_place })
    }

    fn exchanges(&self) -> u32 {
        step_count(self.header.call.ranks)
    }

    /// Returns the blocks that move in a step: those with the step's bit set in their distance. They are grouped by the
    /// lower bit of their previous hop, and by whether a higher bit remains. Each group is split into rows of equal
    /// lower bits or columns of equal higher bits, depending on which gives fewer rows.
    fn lines(&self, exchange: u32) -> Vec<BlockLine> {
        let (ranks, bit) = (self.header.call.ranks, 1u32 << exchange);
        let period = u64::from(bit) * 2;
        let periods = u64::from(ranks - bit).div_ceil(period) as u32;
        let lower = std::iter::once((None, 0, 1)).chain((0..exchange).map(|i| (Some(i), 1 << i, 2 << i)));
        let mut lines = Vec::new();
        for (before, low, low_end) in lower {
            for (arrives, high, high_end) in [(true, 0, 1), (false, 1, periods)] {
                let block = |low: u32, high: u32| bit + low + (u64::from(high) * period) as u32;
                let mut add = |first: u32, step: u32, max_len: u32| {
                    let available = ranks.saturating_sub(first).div_ceil(step);
                    lines.push(BlockLine { first, step, len: available.min(max_len), before, arrives });
                };
                if low_end - low <= high_end - high {
                    (low..low_end).for_each(|low| add(block(low, high), bit << 1, high_end - high));
                } else {
                    (high..high_end).for_each(|high| add(block(low, high), 1, low_end - low));
                }
            }
        }
        lines.retain(|line| line.len > 0);
        lines
    }

    /// Returns the copies that move the blocks that arrived last in each step to their final position. Needed only in
    /// place.
    fn copies(&self, rank: u32) -> Vec<MessagePiece> {
        let ranks = self.header.call.ranks;
        let copies = (0..self.exchanges()).map(|step| {
            let first = 1 << step;
            let line = BlockLine { first, step: 1, len: (ranks - first).min(first), before: Some(step), arrives: true };
            let origins = Walk::cyclic(0, rank_after(rank, ranks - first, ranks), ranks - 1, ranks);
            MessagePiece::copy(rank, line.slots(step), Parts::new(Buffer::Output, origins), line.len)
        });
        copies.collect()
    }
}

impl MessagePattern for BruckAllToAll {
    fn steps(&self) -> u32 {
        self.exchanges() + u32::from(self.in_place)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        if step == self.exchanges() {
            return self.copies(rank);
        }
        let ranks = self.header.call.ranks;
        let to = rank_after(rank, 1 << step, ranks);
        let piece = |line: BlockLine| {
            let src = match line.before {
                None => {
                    Parts::new(Buffer::Input, Walk::cyclic(0, rank_after(rank, line.first, ranks), line.step, ranks))
                }
                Some(before) => line.slots(before),
            };
            let dst = if line.arrives && !self.in_place {
                let origin = rank_after(to, ranks - line.first, ranks);
                Parts::new(
                    Buffer::Output,
                    Walk::cyclic(0, origin, rank_after(0, ranks - line.step % ranks, ranks), ranks),
                )
            } else {
                line.slots(step)
            };
            MessagePiece::put(to, src, dst, line.len)
        };
        self.lines(step).into_iter().map(piece).collect()
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let ranks = self.header.call.ranks;
        (step < self.exchanges()).then(|| rank_after(rank, ranks - (1 << step), ranks))
    }
}

impl ScheduleGenerator for BruckAllToAll {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_part(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![self.rotation])
    }
}
