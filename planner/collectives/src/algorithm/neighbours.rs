//! Neighbour exchange: all_gather in n/2 steps between adjacent ranks.
//!
//! Ranks 2i and 2i + 1 first exchange their own blocks. In each further step every rank alternates between its two
//! neighbours and sends the two blocks that it received last (at first those of its own pair). There are n/2 steps;
//! every rank sends (n−1)/n of the bytes. Time on equal links of latency L and bandwidth B: n/2·L + (n−1)/n · bytes/B.
//! An odd number of ranks cannot be paired and uses [`super::ring`], as in Open MPI. Each rank has three runs per lane,
//! loop and step.
//!
//! Source: Chen, Zhang, Zhang, Yuan, *Performance Evaluation of Allgather Algorithms on Terascale Linux Cluster with
//! Fast Ethernet*, HPC Asia 2005; Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_allgather.c (neighborexchange).
//!
//! # Example
//!
//! An all_gather of eight ranks in n/2 = 4 steps. Rank 0 sends its block to rank 1, then two blocks at a time to ranks
//! 7, 1 and 7.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::NeighbourExchange, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 7, 7, 1, 1, 7, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Header, Program, Rank, RotationDigit, ScheduleGenerator, Symmetry, Walk};

use super::bruck::rank_after;
use super::cut::Chunking;
use super::ring::copy_part;
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the neighbour exchange for an even number of ranks.
pub(super) struct NeighbourExchange {
    header: Header,
    cut: Chunking,
}

impl NeighbourExchange {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        Ok(Self { header: shape.header(Algorithm::NeighbourExchange, layout, 0), cut })
    }

    fn ranks(&self) -> u32 {
        self.header.call.ranks
    }

    /// Returns the rank with which `rank` exchanges data in a step; in even steps, the other rank of its pair.
    fn neighbour(&self, rank: u32, step: u32) -> u32 {
        let up = rank.is_multiple_of(2) == step.is_multiple_of(2);
        rank_after(rank, if up { 1 } else { self.ranks() - 1 }, self.ranks())
    }

    /// Returns the first of the two blocks that a rank receives in a step (from 1 on). Pairs of blocks are those of
    /// ranks 2i and 2i + 1.
    fn received_block(&self, rank: u32, step: u32) -> u32 {
        let ranks = self.ranks();
        // Even ranks receive blocks from increasing distances below in odd steps, and above in even steps; odd ranks
        // the other way round.
        let distance = 2 * step.div_ceil(2);
        let pair = rank / 2 * 2;
        let above = rank.is_multiple_of(2) == step.is_multiple_of(2);
        if above { rank_after(pair, distance, ranks) } else { rank_after(pair, ranks - distance % ranks, ranks) }
    }
}

impl MessagePattern for NeighbourExchange {
    fn steps(&self) -> u32 {
        self.ranks() / 2
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let to = self.neighbour(rank, step);
        let block = |buffer: Buffer, block: u32| Parts::new(buffer, Walk::fixed(block));
        let own_piece = MessagePiece::put(to, block(Buffer::Input, rank), block(Buffer::Output, rank), 1);
        let forward = |first: u32, count: u32| {
            let blocks = Parts::new(Buffer::Output, Walk::linear(first, 1));
            MessagePiece::put(to, blocks, blocks, count)
        };
        match step {
            0 => vec![own_piece, MessagePiece::empty(rank)],
            // The rank's own block is read from the input, the other block of the pair from the output.
            1 => vec![own_piece, forward(rank ^ 1, 1)],
            _ => vec![MessagePiece::empty(rank), forward(self.received_block(rank, step - 1), 2)],
        }
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        Some(self.neighbour(rank, step))
    }
}

impl ScheduleGenerator for NeighbourExchange {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
        copy_part(&self.header, &self.cut, rank.0, rank.0, program);
    }

    /// Returns the rotation by one pair of ranks.
    fn symmetry(&self) -> Symmetry {
        Symmetry::Rotations(vec![RotationDigit { stride: 2, length: self.ranks() / 2 }])
    }
}
