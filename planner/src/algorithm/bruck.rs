//! Bruck: ⌈log2 n⌉ steps over distances 1, 2, 4, … for any number of ranks.
//!
//! **all_gather.** In step k a rank sends the blocks that it has, its own and the next ones, to the rank 2ᵏ before it; the
//! last step sends only what is missing. (n−1)/n of the bytes sent by every rank. Equal links of latency L and bandwidth
//! B: ⌈log2 n⌉·L + (n−1)/n · bytes/B. Blocks lie where they belong at once; the rotations of the original are not needed.
//! Per rank, lane and loop three runs a step.
//!
//! **all_to_all.** A block that has j ranks to go hops over 2ᵏ in step k for every bit k of j. About half of the blocks
//! move in each step: Σ of the blocks with bit k set, for n = 2ᵐ m/2 times the bytes. Equal links:
//! Σₖ(L + bₖ·bytes/(n·B)), where bₖ numbers are below n with bit k set; for n = 2ᵐ, m·(L + bytes/(2B)). A hop that is
//! not the last goes to a region of scratch of its step, ⌈log2 n⌉−1 times the bytes in all, since what it would replace is
//! being sent. The first rotation of the original is left to the addresses, the last to the last hop; in place, the last
//! hop goes to scratch too, and is copied when all is done. A run per step, loop, and row or column of blocks that go from
//! one region to another, of the order of √n in all.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, *Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems*, IEEE TPDS 1997.

use fabricast_sim::schedule::{Buffer, BufferUse, Generate, Header, Program, Rank, RotationDigit, Symmetry, Walk};

use super::cut::{Cut, checked};
use super::ring::copy_own;
use super::steps::{self, Parts, Pattern, Piece};
use super::{Algorithm, Shape, Unsupported};

/// Steps for so many ranks: ⌈log2 ranks⌉.
pub(super) fn steps_of(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// A rank some places on, round all ranks; `by` may be as many as there are.
pub(super) fn on(rank: u32, by: u32, ranks: u32) -> u32 {
    ((u64::from(rank) + u64::from(by)) % u64::from(ranks)) as u32
}

/// Bruck's all_gather.
pub(super) struct AllGather {
    header: Header,
    cut: Cut,
    rotation: RotationDigit,
}

impl AllGather {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::Bruck, layout, 0), cut, rotation: shape.rotation() })
    }
}

impl Pattern for AllGather {
    fn steps(&self) -> u32 {
        steps_of(self.header.call.ranks)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<Piece> {
        let ranks = self.header.call.ranks;
        let to = on(rank, ranks - (1 << step), ranks);
        let own = Walk::fixed(rank);
        let others = (ranks - (1 << step)).min(1 << step) - 1;
        let next = Parts::of(Buffer::Output, Walk::cyclic(0, on(rank, 1, ranks), 1, ranks));
        vec![
            Piece::put(to, Parts::of(Buffer::Input, own), Parts::of(Buffer::Output, own), 1),
            Piece::put(to, next, next, others),
        ]
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        Some(on(rank, 1 << step, self.header.call.ranks))
    }
}

impl Generate for AllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_own(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![self.rotation])
    }
}

/// Bruck's all_to_all.
pub(super) struct AllToAll {
    header: Header,
    cut: Cut,
    rotation: RotationDigit,
    in_place: bool,
}

/// Blocks by how far they go: `first, first + step, …`.
#[derive(Clone, Copy)]
struct Line {
    first: u32,
    step: u32,
    len: u32,
    /// The step of the hop before; none for the first hop.
    before: Option<u32>,
    /// Whether this hop is the last.
    arrives: bool,
}

impl Line {
    /// The slots of these blocks in the region of a step.
    fn slots(self, region: u32) -> Parts {
        Parts::scratch(region, Walk { base: self.first, start: 0, step: self.step, modulus: 0, stride: 1 })
    }
}

impl AllToAll {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        let in_place = shape.call.buffers == BufferUse::InPlace;
        let regions = steps_of(shape.call.ranks) - u32::from(!in_place);
        let slots = checked(u64::from(layout.chunks()) * u64::from(regions))?;
        Ok(Self { header: shape.header(Algorithm::Bruck, layout, slots), cut, rotation: shape.rotation(), in_place })
    }

    fn exchanges(&self) -> u32 {
        steps_of(self.header.call.ranks)
    }

    /// The blocks that hop in a step: those with the step's bit set, told apart by the bit below it that they hopped over
    /// last, and by whether a bit above is left. Of each kind rows of equal lower bits or columns of equal higher bits,
    /// whichever are fewer.
    fn lines(&self, exchange: u32) -> Vec<Line> {
        let (ranks, bit) = (self.header.call.ranks, 1u32 << exchange);
        let period = u64::from(bit) * 2;
        let periods = u64::from(ranks - bit).div_ceil(period) as u32;
        let lower = std::iter::once((None, 0, 1)).chain((0..exchange).map(|i| (Some(i), 1 << i, 2 << i)));
        let mut lines = Vec::new();
        for (before, low, low_end) in lower {
            for (arrives, high, high_end) in [(true, 0, 1), (false, 1, periods)] {
                let block = |low: u32, high: u32| bit + low + (u64::from(high) * period) as u32;
                let mut add = |first: u32, step: u32, most: u32| {
                    let left = ranks.saturating_sub(first).div_ceil(step);
                    lines.push(Line { first, step, len: left.min(most), before, arrives });
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

    /// In place: what arrived last in each step, to where it belongs.
    fn copies(&self, rank: u32) -> Vec<Piece> {
        let ranks = self.header.call.ranks;
        let copies = (0..self.exchanges()).map(|step| {
            let first = 1 << step;
            let line = Line { first, step: 1, len: (ranks - first).min(first), before: Some(step), arrives: true };
            let origins = Walk::cyclic(0, on(rank, ranks - first, ranks), ranks - 1, ranks);
            Piece::copy(rank, line.slots(step), Parts::of(Buffer::Output, origins), line.len)
        });
        copies.collect()
    }
}

impl Pattern for AllToAll {
    fn steps(&self) -> u32 {
        self.exchanges() + u32::from(self.in_place)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<Piece> {
        if step == self.exchanges() {
            return self.copies(rank);
        }
        let ranks = self.header.call.ranks;
        let to = on(rank, 1 << step, ranks);
        let piece = |line: Line| {
            let src = match line.before {
                None => Parts::of(Buffer::Input, Walk::cyclic(0, on(rank, line.first, ranks), line.step, ranks)),
                Some(before) => line.slots(before),
            };
            let dst = if line.arrives && !self.in_place {
                let origin = on(to, ranks - line.first, ranks);
                Parts::of(Buffer::Output, Walk::cyclic(0, origin, on(0, ranks - line.step % ranks, ranks), ranks))
            } else {
                line.slots(step)
            };
            Piece::put(to, src, dst, line.len)
        };
        self.lines(step).into_iter().map(piece).collect()
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let ranks = self.header.call.ranks;
        (step < self.exchanges()).then(|| on(rank, ranks - (1 << step), ranks))
    }
}

impl Generate for AllToAll {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_own(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![self.rotation])
    }
}
