//! Recursive halving and doubling: a reduce_scatter that halves the data still to be reduced in each step, and an
//! all_gather that doubles the completed data.
//!
//! **reduce_scatter.** Over distances of n/2, n/4, …, 1 positions, two ranks exchange halves of their remaining data,
//! each sending the half that the other continues with. There are log2 n steps; every rank sends (n−1)/n of the bytes.
//! Partial sums are in scratch. **all_reduce** (Rabenseifner's) adds the all_gather of [`super::doubling`] over
//! distances 1, 2, …, n/2: 2·log2 n steps, 2(n−1)/n of the bytes, and one transfer per step because the parts moved are
//! contiguous. Time on equal links of latency L and bandwidth B, n a power of two: log2 n · L + (n−1)/n · bytes/B,
//! twice that for all_reduce. Ranks beyond a power of two are guests ([`super::power_of_two`]): two additional steps,
//! and additional transfers of twice the input for their stand-ins.
//!
//! Runs per rank and lane: two per step for all_reduce; three per step and loop for reduce_scatter. The all_gather on
//! its own is in [`super::doubling`].
//!
//! Source: Rabenseifner, *Optimization of Collective Reduction Operations*, ICCS 2004; Thakur, Rabenseifner, Gropp,
//! *Optimization of Collective Communication Operations in MPICH*, 2005, §4.3–4.5.
//!
//! # Example
//!
//! An all_reduce of eight ranks in 2·log2 n = 6 steps. Rank 0 sends half of the buffer, a quarter and an eighth, then
//! an eighth, a quarter and half of it: as many bytes as over a ring, in fewer steps.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::RecursiveHalvingDoubling, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [4, 4, 4, 4, 2, 2, 1, 1, 2, 2, 4, 4, 4, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Collective, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk};

use super::cut::Chunking;
use super::power_of_two::{Phase, PowerOfTwoMapping};
use super::steps::{self, MessagePattern, MessagePiece, Parts, all_but};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of Rabenseifner's all_reduce, and of reduce_scatter by recursive halving.
pub(super) struct HalvingDoubling {
    header: Header,
    cut: Chunking,
    mapping: PowerOfTwoMapping,
}

impl HalvingDoubling {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let mapping = PowerOfTwoMapping::new(shape.call.ranks);
        let ((cut, layout), slots) = match shape.call.collective {
            Collective::AllReduce => (Chunking::by_loops(shape, u32::from(shape.channels), mapping.count())?, 0),
            _ => {
                let cut = Chunking::by_blocks(shape)?;
                let slots = cut.1.chunks();
                (cut, slots)
            }
        };
        Ok(Self { header: shape.header(Algorithm::RecursiveHalvingDoubling, layout, slots), cut, mapping })
    }

    /// Returns the type of reduction at the receiver `to` in exchange k: with the receiver's input if this is its first
    /// partial sum.
    fn kind(&self, to: u32, k: u32) -> OpKind {
        let is_first = k == 0 && self.mapping.guest(to).is_none();
        if is_first { OpKind::PutReduceInput } else { OpKind::PutReduce }
    }

    /// Returns true if exchange `k` is the first and the rank has no guest, so that its input is its only data.
    fn has_input_only(&self, rank: u32, k: u32) -> bool {
        k == 0 && self.mapping.guest(rank).is_none()
    }

    /// Returns the distance between partners in halving step k.
    fn distance(&self, k: u32) -> u32 {
        self.mapping.count() >> (k + 1)
    }
}

/// Pattern of all_reduce, with one part per position.
struct HalvingDoublingPattern<'a>(&'a HalvingDoubling);

impl HalvingDoublingPattern<'_> {
    /// Returns the phase of a step. The first half of the exchanges halves the data, the second half doubles it.
    fn phase(&self, step: u32) -> Phase {
        Phase::from_step(step, 2 * self.0.mapping.bits(), self.0.mapping)
    }

    fn distance(&self, k: u32) -> u32 {
        match k.checked_sub(self.0.mapping.bits()) {
            None => self.0.distance(k),
            Some(k) => 1 << k,
        }
    }
}

impl MessagePattern for HalvingDoublingPattern<'_> {
    const SINGLE: bool = true;

    fn steps(&self) -> u32 {
        2 * (self.0.mapping.bits() + u32::from(self.0.mapping.has_guests()))
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let mapping = self.0.mapping;
        let message = |to: u32, src: Buffer, first: u32, span: u32| {
            let part = Walk::fixed(first);
            MessagePiece { span, ..MessagePiece::put(to, Parts::new(src, part), Parts::new(Buffer::Output, part), 1) }
        };
        let piece = match self.phase(step) {
            Phase::FoldIn => mapping
                .stand_in(rank)
                .map(|to| message(to, Buffer::Input, 0, mapping.count()).reducing(OpKind::PutReduceInput)),
            Phase::Exchange(k) => mapping.position(rank).map(|position| {
                let distance = self.distance(k);
                let partner = position ^ distance;
                let to = mapping.rank(partner);
                if k < mapping.bits() {
                    let src = if self.0.has_input_only(rank, k) { Buffer::Input } else { Buffer::Output };
                    message(to, src, PowerOfTwoMapping::group(partner, distance), distance).reducing(self.0.kind(to, k))
                } else {
                    message(to, Buffer::Output, PowerOfTwoMapping::group(position, distance), distance)
                }
            }),
            Phase::FoldOut => mapping.guest(rank).map(|to| message(to, Buffer::Output, 0, mapping.count())),
        };
        vec![piece.unwrap_or_else(|| MessagePiece::empty(rank))]
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match self.phase(step) {
            Phase::FoldIn => self.0.mapping.guest(rank),
            Phase::Exchange(k) => self.0.mapping.partner(rank, self.distance(k)),
            Phase::FoldOut => self.0.mapping.stand_in(rank),
        }
    }
}

/// Pattern of reduce_scatter, with one block per rank.
struct ReduceScatterPattern<'a>(&'a HalvingDoubling);

impl ReduceScatterPattern<'_> {
    /// Returns the partial sums of a range of blocks. The receiver's own block goes to its output.
    fn sums(to: u32, src: Buffer, first: u32, count: u32, kind: OpKind) -> Vec<MessagePiece> {
        let (own_block, others) = (Walk::fixed(to), all_but(to, first, count));
        vec![
            MessagePiece::put(to, Parts::new(src, own_block), Parts::new(Buffer::Output, own_block), 1).reducing(kind),
            MessagePiece::put(to, Parts::new(src, others), Parts::new(Buffer::Scratch, others), count - 1)
                .reducing(kind),
        ]
    }
}

impl MessagePattern for ReduceScatterPattern<'_> {
    fn steps(&self) -> u32 {
        self.0.mapping.bits() + 2 * u32::from(self.0.mapping.has_guests())
    }

    fn widths(&self, _: u32, step: u32) -> Vec<u32> {
        let others = match Phase::from_step(step, self.0.mapping.bits(), self.0.mapping) {
            Phase::FoldIn => self.0.header.call.ranks - 1,
            Phase::Exchange(k) => self.0.mapping.max_blocks(self.0.distance(k)) - 1,
            Phase::FoldOut => 0,
        };
        vec![1, others]
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let mapping = self.0.mapping;
        let message = match Phase::from_step(step, mapping.bits(), mapping) {
            Phase::FoldIn => mapping
                .stand_in(rank)
                .map(|to| Self::sums(to, Buffer::Input, 0, self.0.header.call.ranks, OpKind::PutReduceInput)),
            Phase::Exchange(k) => mapping.position(rank).map(|position| {
                let distance = self.0.distance(k);
                let partner = position ^ distance;
                let (first, count) = mapping.blocks(PowerOfTwoMapping::group(partner, distance), distance);
                let src = if self.0.has_input_only(rank, k) { Buffer::Input } else { Buffer::Scratch };
                let to = mapping.rank(partner);
                Self::sums(to, src, first, count, self.0.kind(to, k))
            }),
            Phase::FoldOut => mapping.guest(rank).map(|to| {
                let block = Walk::fixed(to);
                let sum =
                    MessagePiece::put(to, Parts::new(Buffer::Scratch, block), Parts::new(Buffer::Output, block), 1);
                vec![sum, MessagePiece::empty(rank)]
            }),
        };
        message.unwrap_or_else(|| vec![MessagePiece::empty(rank); 2])
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match Phase::from_step(step, self.0.mapping.bits(), self.0.mapping) {
            Phase::FoldIn => self.0.mapping.guest(rank),
            Phase::Exchange(k) => self.0.mapping.partner(rank, self.0.distance(k)),
            Phase::FoldOut => self.0.mapping.stand_in(rank),
        }
    }
}

impl ScheduleGenerator for HalvingDoubling {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        match self.header.call.collective {
            Collective::AllReduce => {
                steps::write(&HalvingDoublingPattern(self), &self.header, &self.cut, rank, program);
            }
            _ => steps::write(&ReduceScatterPattern(self), &self.header, &self.cut, rank, program),
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.mapping.symmetry()
    }
}
