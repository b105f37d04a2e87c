//! Butterfly reduce_scatter: recursive halving over increasing distances.
//!
//! In step k a rank and the rank at distance 2ᵏ exchange partial sums: each sends the blocks whose positions agree with
//! the other rank's in the last k + 1 bits, and continues with the rest. There are log₂ n steps; every rank sends
//! (n−1)/n of the bytes. Neighbours exchange the most bytes and distant ranks the fewest; recursive halving
//! ([`super::halving_doubling`]) has the opposite order. Partial sums are in scratch. Time on equal links of latency L
//! and bandwidth B, n a power of two: log₂ n·L + (n−1)/n · bytes/B. Ranks beyond a power of two are guests
//! ([`super::power_of_two`]): two additional steps, and additional transfers of twice the input for their stand-ins.
//! Each rank has four runs per lane, loop and step.
//!
//! Source: Träff, *An improved algorithm for (non-commutative) reduce-scatter with an application*, EuroPVM/MPI 2005;
//! Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_reduce_scatter_block.c (butterfly), which mirrors blocks first so
//! that a message is contiguous, and for rank counts that are not a power of two swaps them back in the last step.
//!
//! # Example
//!
//! A reduce_scatter of eight ranks in three steps. Rank 0 sends four blocks to its neighbour and one to the most
//! distant rank.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::Bytes;
//!
//! let (collective, buffers) = (Collective::ReduceScatter, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers };
//! let shape = Shape::new(call, Protocol::Simple);
//! let schedule = Schedule::build(&*generator(Algorithm::Butterfly, &shape)?)?;
//! let sent = schedule.operations().filter(|op| op.rank == Rank(0) && op.kind.is_transfer());
//! let receivers: Vec<u32> = sent.flat_map(|op| vec![op.peer.0; op.span as usize]).collect();
//! assert_eq!(schedule.header().layout.chunks(), 8);
//! assert_eq!(receivers, [1, 1, 1, 1, 2, 2, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use fabricast_sim::schedule::{Buffer, Header, OpKind, Program, Rank, ScheduleGenerator, Symmetry, Walk};

use super::cut::Chunking;
use super::power_of_two::{Phase, PowerOfTwoMapping};
use super::steps::{self, MessagePattern, MessagePiece, Parts};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the butterfly reduce_scatter.
pub(super) struct Butterfly {
    header: Header,
    cut: Chunking,
    mapping: PowerOfTwoMapping,
}

/// Blocks at a constant stride in rank number, and their number.
type Blocks = (Walk, u32);

impl Butterfly {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Chunking::by_blocks(shape)?;
        let slots = layout.chunks();
        let mapping = PowerOfTwoMapping::new(shape.call.ranks);
        Ok(Self { header: shape.header(Algorithm::Butterfly, layout, slots), cut, mapping })
    }

    fn guests(&self) -> u32 {
        self.header.call.ranks - self.mapping.count()
    }

    /// Returns the blocks of the positions that are congruent to `position` modulo `modulus`: blocks of stand-ins,
    /// blocks of their guests, and blocks of positions without a guest.
    fn congruent_blocks(&self, position: u32, modulus: u32) -> [Blocks; 3] {
        let (guests, first) = (self.guests(), position % modulus);
        let with_guest = guests.saturating_sub(first).div_ceil(modulus);
        let first_without_guest = first + with_guest * modulus;
        let without_guest = self.mapping.count() / modulus - with_guest;
        [
            (Walk::linear(2 * first + 1, 2 * modulus), with_guest),
            (Walk::linear(2 * first, 2 * modulus), with_guest),
            (Walk::linear(first_without_guest + guests, modulus), without_guest),
        ]
    }

    fn sums(&self, to: u32, src: Buffer, blocks: [Blocks; 3], kind: OpKind) -> Vec<MessagePiece> {
        let piece = |(walk, len)| MessagePiece::put(to, Parts::new(src, walk), Parts::new(Buffer::Scratch, walk), len);
        blocks.into_iter().map(|blocks| piece(blocks).reducing(kind)).collect()
    }

    fn phase(&self, step: u32) -> Phase {
        Phase::from_step(step, self.mapping.bits(), self.mapping)
    }

    /// Returns true if exchange `k` is the first and the rank has no guest, so that its input is its only data.
    fn has_input_only(&self, rank: u32, k: u32) -> bool {
        k == 0 && self.mapping.guest(rank).is_none()
    }
}

impl MessagePattern for Butterfly {
    fn steps(&self) -> u32 {
        self.mapping.bits() + 1 + u32::from(self.mapping.has_guests())
    }

    fn widths(&self, _: u32, step: u32) -> Vec<u32> {
        let modulus = match self.phase(step) {
            Phase::FoldIn => 1,
            Phase::Exchange(k) => 2 << k,
            Phase::FoldOut => return vec![1, 1, 0],
        };
        let with_guest = self.guests().div_ceil(modulus);
        vec![with_guest, with_guest, self.mapping.count() / modulus - self.guests() / modulus]
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<MessagePiece> {
        let mapping = self.mapping;
        let message = match self.phase(step) {
            Phase::FoldIn => mapping
                .stand_in(rank)
                .map(|to| self.sums(to, Buffer::Input, self.congruent_blocks(0, 1), OpKind::PutReduceInput)),
            Phase::Exchange(k) => mapping.position(rank).map(|position| {
                let partner = position ^ (1 << k);
                let to = mapping.rank(partner);
                let src = if self.has_input_only(rank, k) { Buffer::Input } else { Buffer::Scratch };
                let kind = if self.has_input_only(to, k) { OpKind::PutReduceInput } else { OpKind::PutReduce };
                self.sums(to, src, self.congruent_blocks(partner, 2 << k), kind)
            }),
            Phase::FoldOut => mapping.position(rank).map(|_| {
                let block = |buffer, rank| Parts::new(buffer, Walk::fixed(rank));
                let guest_result =
                    |to: u32| MessagePiece::put(to, block(Buffer::Scratch, to), block(Buffer::Output, to), 1);
                let own_result = MessagePiece::copy(rank, block(Buffer::Scratch, rank), block(Buffer::Output, rank), 1);
                vec![
                    mapping.guest(rank).map_or(MessagePiece::empty(rank), guest_result),
                    own_result,
                    MessagePiece::empty(rank),
                ]
            }),
        };
        message.unwrap_or_else(|| vec![MessagePiece::empty(rank); 3])
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match self.phase(step) {
            Phase::FoldIn => self.mapping.guest(rank),
            Phase::Exchange(k) => self.mapping.partner(rank, 1 << k),
            Phase::FoldOut => self.mapping.stand_in(rank),
        }
    }
}

impl ScheduleGenerator for Butterfly {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
    }

    fn symmetry(&self) -> Symmetry {
        self.mapping.symmetry()
    }
}
