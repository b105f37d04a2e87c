//! Scatter followed by all_gather: a broadcast for large data. The root sends about two buffers, the other ranks less
//! than one.
//!
//! The root sends every other rank a distinct part; all ranks but the root then gather the parts as in
//! [`super::bruck`], over distances 1, 2, 4, …. There are 1 + ⌈log2 n⌉ steps. The root sends 2(n−1)/n of the bytes,
//! other ranks at most (n−1)/n. Time on equal links of latency L and bandwidth B: (1 + ⌈log2 n⌉)·L + 2(n−1)/n ·
//! bytes/B. Parts are counted from the root, so that a step is one transfer, or two if it wraps around after the last
//! part. Each rank has three runs per lane, loop and step.
//!
//! Source: van de Geijn, *On Global Combine Operations*, JPDC 1994; Thakur, Rabenseifner, Gropp, *Optimization of
//! Collective Communication Operations in MPICH*, 2005, §4.4 (binomial scatter, then a ring or recursive doubling). The
//! scatter here is direct: no rank forwards parts, so none receives a part twice.
//!
//! # Example
//!
//! A broadcast to eight ranks. The root sends a part to every other rank, then takes part in the all_gather: 14 of 8
//! parts, for large buffers less than the three buffers of a binomial tree.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::Broadcast, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::ScatterAllGather, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 2, 3, 4, 5, 6, 7, 7, 6, 6, 4, 4, 4, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Header, Program, Rank, ScheduleGenerator, Walk};

use super::bruck::{rank_after, step_count};
use super::cut::Chunking;
use super::ring::copy_parts;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the scatter and all_gather broadcast.
pub(super) struct ScatterAllGather {
    header: Header,
    cut: Chunking,
}

impl ScatterAllGather {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_loops(shape, u32::from(shape.channels), shape.call.ranks)?;
        Ok(Self { header: shape.header(Algorithm::ScatterAllGather, layout, 0), cut })
    }

    fn position(&self, rank: u32) -> u32 {
        rank_after(rank, self.header.call.ranks - self.header.call.root.0, self.header.call.ranks)
    }

    fn rank_at(&self, position: u32) -> u32 {
        rank_after(position, self.header.call.root.0, self.header.call.ranks)
    }

    /// Returns the piece by which the root sends every other rank its part; an empty piece on other ranks.
    fn scatter(&self, rank: u32) -> Vec<MessagePiece> {
        let (ranks, root) = (self.header.call.ranks, self.header.call.root.0);
        let others = Walk::linear(1, 1);
        let parts = |buffer| Parts::new(buffer, others);
        let piece = MessagePiece::put(rank, parts(Buffer::Input), parts(Buffer::Output), 0);
        let len = if rank == root { ranks - 1 } else { 0 };
        vec![MessagePiece { to: Walk::cyclic(0, rank_after(root, 1, ranks), 1, ranks), len, ..piece }]
    }

    /// Returns the pieces by which a rank sends all parts that it has, its own and the following ones, to the position
    /// `distance` before it.
    fn gather(&self, rank: u32, distance: u32) -> Vec<MessagePiece> {
        let ranks = self.header.call.ranks;
        let position = self.position(rank);
        let to = rank_after(position, ranks - distance, ranks);
        let count = distance.min(ranks - distance);
        let straight = count.min(ranks - position);
        let buffer = if position == 0 { Buffer::Input } else { Buffer::Output };
        let piece = |first: u32, span: u32| {
            let part = Walk::fixed(first);
            let len = u32::from(span > 0 && to != 0);
            let (src, dst) = (Parts::new(buffer, part), Parts::new(Buffer::Output, part));
            MessagePiece { span: span.max(1), ..MessagePiece::put(self.rank_at(to), src, dst, len) }
        };
        vec![piece(position, straight), piece(0, count - straight)]
    }
}

impl MessagePattern for ScatterAllGather {
    fn steps(&self) -> u32 {
        1 + step_count(self.header.call.ranks)
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        match step.checked_sub(1) {
            None => self.scatter(rank),
            Some(k) => self.gather(rank, 1 << k),
        }
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        let (ranks, position) = (self.header.call.ranks, self.position(rank));
        match step.checked_sub(1) {
            _ if position == 0 => None,
            None => Some(self.header.call.root.0),
            Some(k) => Some(self.rank_at(rank_after(position, 1 << k, ranks))),
        }
    }

    fn share(&self, rank: u32, step: u32) -> Option<u32> {
        if step == 0 { self.position(rank).checked_sub(1) } else { None }
    }
}

impl ScheduleGenerator for ScatterAllGather {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        if rank == self.header.call.root {
            copy_parts(&self.header, &self.cut, rank.0, 0..self.header.call.ranks, program);
        }
    }
}
