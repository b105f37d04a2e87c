//! Ring: each rank sends chunks to the next rank in a fixed order; broadcast and reduce use the ring as a chain.
//!
//! **all_reduce.** A loop has one chunk per rank. At step t the rank at position p sends chunk p − t. For n − 1 steps
//! the receiver reduces with its own input on arrival, and for n − 1 more steps the complete sums are forwarded. There
//! are 2(n−1) steps; every rank sends 2(n−1)/n of the bytes. Time with one loop and equal links of latency L and
//! bandwidth B: 2(n−1)(L + bytes/(n·B)). **reduce_scatter** is the first half (chunk p − 1 − t, intermediate sums in
//! scratch) and **all_gather** the second half, each with (n−1)(L + bytes/(n·B)). **broadcast, reduce.** Chunks are
//! pipelined along the chain that starts (ends) at the root; a link carries the next chunk directly after the previous
//! one. With k equal chunks of c = bytes/k: (n − 1)(L + c/B) + (k − 1)c/B.
//!
//! Sources: Patarasuk & Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, JPDC 2009; NCCL
//! 2.28 src/device/all_reduce.h, all_gather.h, reduce_scatter.h, broadcast.h, reduce.h (the order of chunks and the
//! fused receive-reduce-send are those of NCCL, whose reduce_scatter leaves intermediate sums in the FIFO).
//!
//! # Example
//! An all_reduce of eight ranks divides the buffer into eight chunks. In 2(n−1) = 14 steps, rank 0 sends one chunk each
//! to its successor: 2(n−1)/n of the buffer.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Ring, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1; 14]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use fabricast_sim::schedule::{
    Buffer, BufferUse, Collective, Dependency, Header, OpKind, Program, Rank, Run, ScheduleGenerator, Symmetry, Walk,
};

use super::circle::{RingPhase, RingTraversal, merge_stages};
use super::cut::{Chunking, lane_channel};
use super::lane::Lane;
use super::order::{Order, rotations};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of ring all_reduce, reduce_scatter and all_gather.
pub(super) struct Ring {
    header: Header,
    cut: Chunking,
    orders: Vec<Order>,
    stages: Vec<RingPhase>,
    numbering: BlockNumbering,
    symmetry: Symmetry,
}

/// Numbering of the blocks of an all_gather or a reduce_scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockNumbering {
    /// Blocks are numbered by the rank that owns them.
    ByRank,
    /// Blocks are numbered by the position of their owner on the lane's ring. Used if positions are not evenly spaced
    /// in rank number; the blocks that a rank forwards then form a walk. Every block of a lane uses the chunks of
    /// another block of equal size.
    ByPosition,
}

impl Ring {
    pub(super) fn new(shape: &Shape, numbering: BlockNumbering) -> Result<Self, Unsupported> {
        let orders = Order::from_shape(shape)?;
        let ranks = shape.call.ranks;
        let (cut, layout) = match shape.call.collective {
            Collective::AllReduce => Chunking::by_loops(shape, u32::from(shape.channels), ranks)?,
            _ => Chunking::by_blocks(shape)?,
        };
        let scratch = if shape.call.collective == Collective::ReduceScatter { layout.chunks() } else { 0 };
        Ok(Self {
            symmetry: rotations(shape, &orders),
            stages: stages(shape.call.collective, ranks),
            header: shape.header(Algorithm::Ring, layout, scratch),
            cut,
            orders,
            numbering,
        })
    }

    fn order(&self, lane: u32) -> &Order {
        &self.orders[lane as usize % self.orders.len()]
    }

    /// Returns true if parts are numbered by ring position. The parts of an all_reduce belong to no rank and are always
    /// numbered so.
    fn is_by_position(&self, order: &Order) -> bool {
        let by_position = self.numbering == BlockNumbering::ByPosition && order.step().is_none();
        by_position || self.header.call.collective == Collective::AllReduce
    }
}

/// Returns the phases of a rank in a ring of `ranks` ranks.
fn stages(collective: Collective, ranks: u32) -> Vec<RingPhase> {
    let stage = |kind, src, dst, steps| RingPhase { kind, src, dst, steps };
    // The first step reads the input, also in place: it sends local data and forwards none.
    let (input, output, scratch) = (Buffer::Input, Buffer::Output, Buffer::Scratch);
    let (reduce, put) = (OpKind::PutReduceInput, OpKind::Put);
    match collective {
        Collective::AllReduce => merge_stages(&[
            stage(reduce, input, output, 1),
            stage(reduce, output, output, ranks - 2),
            stage(put, output, output, ranks - 1),
        ]),
        Collective::ReduceScatter if ranks == 2 => vec![stage(reduce, input, output, 1)],
        Collective::ReduceScatter => merge_stages(&[
            stage(reduce, input, scratch, 1),
            stage(reduce, scratch, scratch, ranks - 3),
            stage(reduce, scratch, output, 1),
        ]),
        _ => merge_stages(&[stage(put, input, output, 1), stage(put, output, output, ranks - 2)]),
    }
}

impl ScheduleGenerator for Ring {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let ranks = self.header.call.ranks;
        let collective = self.header.call.collective;
        let mut first_run = 0;
        for lane in 0..self.cut.lanes {
            let order = self.order(lane);
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            let traversal = RingTraversal {
                stages: &self.stages,
                cut: &self.cut,
                lane,
                first_run,
                at,
                next: order.after(rank.0, 1),
                previous: order.after(rank.0, -1),
            };
            let first = if collective == Collective::ReduceScatter { -1 } else { 0 };
            let part = |step: u32| order.after(rank.0, first - i64::from(step));
            let walk = if self.is_by_position(order) {
                let walk = Walk::cyclic(0, order.position(part(0)), ranks - 1, ranks);
                traversal.write(program, |step| walk.at(step), Some(walk));
                Some(walk)
            } else {
                let walk = order.step().map(|step| Walk::cyclic(0, part(0), ranks - step, ranks));
                traversal.write(program, part, walk);
                walk
            };
            first_run += traversal.runs(walk);
        }
        if collective == Collective::AllGather {
            for lane in 0..self.cut.lanes {
                let order = self.order(lane);
                let own_part = if self.is_by_position(order) { order.position(rank.0) } else { rank.0 };
                let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
                copy_lane(&self.header, &self.cut, at, lane, own_part..own_part + 1, program);
            }
        }
    }

    fn symmetry(&self) -> Symmetry {
        self.symmetry.clone()
    }
}

/// Copies a part from the rank's input to its output on all lanes; does nothing in place.
pub(super) fn copy_part(header: &Header, cut: &Chunking, rank: u32, part: u32, program: &mut Program) {
    copy_parts(header, cut, rank, part..part + 1, program);
}

/// Copies several parts from the rank's input to its output on all lanes; does nothing in place. The parts must be
/// contiguous, as in a buffer divided by loops.
pub(super) fn copy_parts(header: &Header, cut: &Chunking, rank: u32, parts: Range<u32>, program: &mut Program) {
    for lane in 0..cut.lanes {
        let at = Lane { rank, channel: lane_channel(header.channels, lane) };
        copy_lane(header, cut, at, lane, parts.clone(), program);
    }
}

/// Copies several parts from the rank's input to its output on one lane, on the channel of `at`; does nothing in place.
pub(super) fn copy_lane(
    header: &Header,
    cut: &Chunking,
    at: Lane,
    lane: u32,
    parts: Range<u32>,
    program: &mut Program,
) {
    if header.call.buffers == BufferUse::InPlace {
        return;
    }
    let chunks = cut.over_loops(parts.start, lane);
    let copy = at.local(OpKind::Copy, cut.loops, (Buffer::Input, chunks), (Buffer::Output, chunks));
    program.push(Run { span: parts.end - parts.start, ..copy }, &[]);
}

/// Schedule generator of broadcast and reduce along a ring.
pub(super) struct RingChain {
    header: Header,
    cut: Chunking,
    orders: Vec<Order>,
}

impl RingChain {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), 1)?;
        let scratch = if shape.call.collective == Collective::Reduce { layout.chunks() } else { 0 };
        let orders = Order::from_shape(shape)?;
        Ok(Self { header: shape.header(Algorithm::Ring, layout, scratch), cut, orders })
    }
}

impl ScheduleGenerator for RingChain {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let call = &self.header.call;
        let (ranks, root) = (call.ranks, call.root.0);
        let reduces = call.collective == Collective::Reduce;
        for lane in 0..self.cut.lanes {
            let order = &self.orders[lane as usize % self.orders.len()];
            // Positions along the chain. The root is first in a broadcast and last in a reduce.
            let from_root = (order.position(rank.0) + ranks - order.position(root)) % ranks;
            let position = if reduces { (from_root + ranks - 1) % ranks } else { from_root };
            let (is_first, sends_to_last, is_last) = (position == 0, position + 2 == ranks, position + 1 == ranks);
            let (kind, between) =
                if reduces { (OpKind::PutReduceInput, Buffer::Scratch) } else { (OpKind::Put, Buffer::Output) };
            let src = if is_first { Buffer::Input } else { between };
            let dst = if sends_to_last { Buffer::Output } else { between };
            let chunks = self.cut.over_loops(0, lane);
            let at = Lane { rank: rank.0, channel: lane_channel(self.header.channels, lane) };
            // The last rank has an empty run, so that run numbers are equal on all ranks.
            let len = if is_last { 0 } else { self.cut.loops };
            let run = at.transfer(kind, len, Walk::fixed(order.after(rank.0, 1)), (src, chunks), (dst, chunks));
            let data = Dependency::shifted(Rank(order.after(rank.0, -1)), lane, 0);
            let previous_chunk = Dependency::shifted(rank, lane, -1);
            program.push(run, &[data, previous_chunk][usize::from(is_first)..]);
        }
        if !reduces && rank.0 == root {
            copy_part(&self.header, &self.cut, rank.0, 0, program);
        }
    }
}
