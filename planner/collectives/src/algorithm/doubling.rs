//! Recursive doubling: in step k a rank and the rank at distance 2ᵏ exchange all data that they have.
//!
//! **all_reduce.** Partners exchange their sums of the whole buffer: log2 n steps, and every rank sends log2 n times
//! the bytes. The first step reduces into the receiver's output on arrival if the call is out of place; later steps use
//! a scratch slot and a local reduction, because both sums are still being sent when the other one arrives. Time on
//! equal links of latency L and bandwidth B, n a power of two: log2 n · (L + bytes/B).
//!
//! **all_gather.** Partners exchange the blocks gathered so far: log2 n steps, (n−1)/n of the bytes, log2 n · L +
//! (n−1)/n · bytes/B.
//!
//! Ranks beyond a power of two are guests ([`super::power_of_two`]): one more step at the beginning, in which they send
//! their input to their neighbour, and one at the end, in which they receive the result.
//!
//! Runs per rank and lane: two per step for all_reduce; three per step and loop for all_gather.
//!
//! Source: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.1,
//! §4.5.
//!
//! # Example
//!
//! An all_reduce of eight ranks in log2 n = 3 steps. Every message is the whole buffer, which suits small calls: rank 0
//! sends three buffers; over a ring it would send 1¾ buffers in 14 steps.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::RecursiveDoubling, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 1);
//! assert_eq!(receivers, [1, 2, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{
    Buffer, BufferUse, Dependency, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk,
};

use super::cut::{Chunking, check_chunks, lane_channel};
use super::lane::Lane;
use super::power_of_two::{Phase, PowerOfTwoMapping};
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts, all_but};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the recursive-doubling all_gather.
pub(super) struct DoublingAllGather {
    header: Header,
    cut: Chunking,
    mapping: PowerOfTwoMapping,
}

impl DoublingAllGather {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let header = shape.header(Algorithm::RecursiveDoubling, layout, 0);
        Ok(Self { header, cut, mapping: PowerOfTwoMapping::new(shape.call.ranks) })
    }
}

impl MessagePattern for DoublingAllGather {
    fn steps(&self) -> u32 {
        self.mapping.bits() + 2 * u32::from(self.mapping.has_guests())
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let own_block = Walk::fixed(rank);
        let put_blocks = |to: u32, others: Walk, len: u32| {
            let (input, output) = (Parts::new(Buffer::Input, own_block), Parts::new(Buffer::Output, own_block));
            let others = Parts::new(Buffer::Output, others);
            vec![MessagePiece::put(to, input, output, 1), MessagePiece::put(to, others, others, len)]
        };
        let ranks = self.header.call.ranks;
        let message = match Phase::from_step(step, self.mapping.bits(), self.mapping) {
            Phase::FoldIn => self.mapping.stand_in(rank).map(|to| put_blocks(to, own_block, 0)),
            Phase::Exchange(k) => self.mapping.position(rank).map(|position| {
                let (first, count) = self.mapping.blocks(PowerOfTwoMapping::group(position, 1 << k), 1 << k);
                put_blocks(self.mapping.rank(position ^ 1 << k), all_but(rank, first, count), count - 1)
            }),
            // All blocks except the guest's own and the sender's, which comes from the input.
            Phase::FoldOut => {
                self.mapping.guest(rank).map(|guest| put_blocks(guest, all_but(rank, 0, ranks), ranks - 2))
            }
        };
        message.unwrap_or_else(|| vec![MessagePiece::empty(rank); 2])
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match Phase::from_step(step, self.mapping.bits(), self.mapping) {
            Phase::FoldIn => self.mapping.guest(rank),
            Phase::Exchange(k) => self.mapping.partner(rank, 1 << k),
            Phase::FoldOut => self.mapping.stand_in(rank),
        }
    }
}

impl ScheduleGenerator for DoublingAllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_part(&self.header, &self.cut, rank.0, rank.0, program);
    }

    fn symmetry(&self) -> Symmetry {
        self.mapping.symmetry()
    }
}

/// Schedule generator of the recursive-doubling all_reduce.
pub(super) struct DoublingAllReduce {
    header: Header,
    cut: Chunking,
    mapping: PowerOfTwoMapping,
    out_of_place: bool,
}

impl DoublingAllReduce {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let mapping = PowerOfTwoMapping::new(shape.call.ranks);
        let slots = check_chunks(u64::from(layout.chunks()) * u64::from(mapping.bits()))?;
        Ok(Self {
            header: shape.header(Algorithm::RecursiveDoubling, layout, slots),
            cut,
            mapping,
            out_of_place: shape.call.buffers == BufferUse::OutOfPlace,
        })
    }

    /// Returns true if the data that a rank receives in a step is reduced on arrival.
    fn adds_on_arrival(&self, rank: u32, step: u32) -> bool {
        step == 0 && self.out_of_place && self.mapping.guest(rank).is_none()
    }

    /// Returns the dependency on the operation before `step` that produced the rank's current sum; `None` if the sum is
    /// the rank's input.
    fn sum_before(&self, rank: u32, step: u32, runs: DoublingRuns) -> Option<Dependency> {
        let Some(before) = step.checked_sub(1) else {
            return self.mapping.guest(rank).map(|guest| Dependency::shifted(Rank(guest), runs.fold_in(), 0));
        };
        if self.adds_on_arrival(rank, before) {
            let partner = self.mapping.partner(rank, 1 << before)?;
            return Some(Dependency::shifted(Rank(partner), runs.put(before), 0));
        }
        Some(Dependency::shifted(Rank(rank), runs.reduce(before), 0))
    }

    fn write_exchange(&self, position: u32, step: u32, at: Lane, lane: u32, runs: DoublingRuns, program: &mut Program) {
        let loops = self.cut.loops;
        let chunks = self.cut.over_loops(0, lane);
        let slot = Walk { base: chunks.base + step * self.header.layout.chunks(), ..chunks };
        let partner = self.mapping.rank(position ^ 1 << step);
        let is_input = step == 0 && self.mapping.guest(at.rank).is_none();
        let src = (if is_input { Buffer::Input } else { Buffer::Output }, chunks);
        let put = if self.adds_on_arrival(partner, step) {
            at.transfer(OpKind::PutReduceInput, loops, Walk::fixed(partner), src, (Buffer::Output, chunks))
        } else {
            at.put(loops, Walk::fixed(partner), src, (Buffer::Scratch, slot))
        };
        let sum = self.sum_before(at.rank, step, runs);
        let chunk_before = Dependency::shifted(at.rank(), runs.put(step), -1);
        program.push(put, &sum.into_iter().chain([chunk_before]).collect::<Vec<_>>());
        let len = if self.adds_on_arrival(at.rank, step) { 0 } else { loops };
        let reduce = at.local(OpKind::Reduce, len, (Buffer::Scratch, slot), (Buffer::Output, chunks));
        let arrived = Dependency::shifted(Rank(partner), runs.put(step), 0);
        let sent = Dependency::shifted(at.rank(), runs.put(step), 0);
        program.push(reduce, &[arrived, sent]);
    }
}

/// Numbers of the runs of a lane, equal on all ranks.
#[derive(Clone, Copy)]
struct DoublingRuns {
    first: u32,
    steps: u32,
}

impl DoublingRuns {
    fn fold_in(self) -> u32 {
        self.first
    }

    fn put(self, step: u32) -> u32 {
        self.first + 1 + 2 * step
    }

    fn reduce(self, step: u32) -> u32 {
        self.put(step) + 1
    }

    fn fold_out(self) -> u32 {
        self.put(self.steps)
    }
}

impl ScheduleGenerator for DoublingAllReduce {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (loops, steps) = (self.cut.loops, self.mapping.bits());
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let runs = DoublingRuns { first: program.runs().len() as u32, steps };
            let chunks = self.cut.over_loops(0, lane);
            let output = (Buffer::Output, chunks);
            let stand_in = self.mapping.stand_in(rank.0);
            let (to, len) = stand_in.map_or((rank.0, 0), |to| (to, loops));
            let fold_in = at.transfer(OpKind::PutReduceInput, len, Walk::fixed(to), (Buffer::Input, chunks), output);
            program.push(fold_in, &[Dependency::shifted(rank, runs.fold_in(), -1)]);
            for step in 0..steps {
                match self.mapping.position(rank.0) {
                    Some(position) => self.write_exchange(position, step, at, lane, runs, program),
                    None => {
                        program.push(at.wait(0), &[]);
                        program.push(at.wait(0), &[]);
                    }
                }
            }
            let guest = self.mapping.guest(rank.0);
            let (to, len) = guest.map_or((rank.0, 0), |to| (to, loops));
            let chunk_before = Dependency::shifted(rank, runs.fold_out(), -1);
            let sum = guest.and_then(|_| self.sum_before(rank.0, steps, runs));
            let awaited: Vec<Dependency> = sum.into_iter().chain([chunk_before]).collect();
            program.push(at.put(len, Walk::fixed(to), output, output), &awaited);
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.mapping.symmetry()
    }
}
