//! Butterfly reduce_scatter: recursive halving over increasing distances.
//!
//! In step k a rank and the rank at distance 2ᵏ exchange partial sums: each sends the blocks whose places agree with
//! the other rank's in the last k + 1 bits, and continues with the rest. log₂ n steps; every rank sends (n−1)/n of the
//! bytes. Neighbours exchange most and distant ranks least; recursive halving ([`super::halving_doubling`]) has the
//! opposite order. Partial sums are in scratch. Time on equal links of latency L and bandwidth B, n a power of two:
//! log₂ n·L + (n−1)/n · bytes/B. Ranks beyond a power of two are guests ([`super::places`]): two more steps, and twice
//! the input more for their stand-ins. Four runs per rank, lane, loop and step.
//!
//! Source: Träff, *An improved algorithm for (non-commutative) reduce-scatter with an application*, EuroPVM/MPI 2005;
//! Open MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_reduce_scatter_block.c (butterfly), which mirrors blocks first so
//! that a message is contiguous, and for rank counts that are not a power of two swaps them back in the last step.

use fabricast_sim::schedule::{Buffer, Generate, Header, OpKind, Program, Rank, Walk};

use super::cut::Cut;
use super::places::{Phase, Places};
use super::steps::{self, Parts, Pattern, Piece};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the butterfly reduce_scatter.
pub(super) struct Butterfly {
    header: Header,
    cut: Cut,
    places: Places,
}

/// Blocks at a constant stride, and their number.
type Blocks = (Walk, u32);

impl Butterfly {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        let slots = layout.chunks();
        let places = Places::new(shape.call.ranks);
        Ok(Self { header: shape.header(Algorithm::Butterfly, layout, slots), cut, places })
    }

    fn guests(&self) -> u32 {
        self.header.call.ranks - self.places.count()
    }

    /// Blocks of the places that are congruent to `place` modulo `every`: the stand-ins' blocks, their guests' blocks,
    /// and the blocks of places without a guest.
    fn alike(&self, place: u32, every: u32) -> [Blocks; 3] {
        let (guests, first) = (self.guests(), place % every);
        let with_guest = guests.saturating_sub(first).div_ceil(every);
        let own = first + with_guest * every;
        let without = self.places.count() / every - with_guest;
        [
            (Walk::linear(2 * first + 1, 2 * every), with_guest),
            (Walk::linear(2 * first, 2 * every), with_guest),
            (Walk::linear(own + guests, every), without),
        ]
    }

    fn sums(&self, to: u32, src: Buffer, blocks: [Blocks; 3], kind: OpKind) -> Vec<Piece> {
        let piece = |(walk, len)| Piece::put(to, Parts::of(src, walk), Parts::of(Buffer::Scratch, walk), len);
        blocks.into_iter().map(|blocks| piece(blocks).reducing(kind)).collect()
    }

    fn phase(&self, step: u32) -> Phase {
        Phase::of(step, self.places.bits(), self.places)
    }

    /// Returns true if exchange `k` is the first and the rank has no guest, so that its input is its only data.
    fn has_input_only(&self, rank: u32, k: u32) -> bool {
        k == 0 && self.places.guest(rank).is_none()
    }
}

impl Pattern for Butterfly {
    fn steps(&self) -> u32 {
        self.places.bits() + 1 + u32::from(self.places.has_guests())
    }

    fn widths(&self, _: u32, step: u32) -> Vec<u32> {
        let every = match self.phase(step) {
            Phase::Come => 1,
            Phase::Exchange(k) => 2 << k,
            Phase::Leave => return vec![1, 1, 0],
        };
        let with_guest = self.guests().div_ceil(every);
        vec![with_guest, with_guest, self.places.count() / every - self.guests() / every]
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<Piece> {
        let places = self.places;
        let message = match self.phase(step) {
            Phase::Come => {
                places.stand_in(rank).map(|to| self.sums(to, Buffer::Input, self.alike(0, 1), OpKind::PutReduceInput))
            }
            Phase::Exchange(k) => places.place(rank).map(|place| {
                let other = place ^ (1 << k);
                let to = places.rank(other);
                let src = if self.has_input_only(rank, k) { Buffer::Input } else { Buffer::Scratch };
                let kind = if self.has_input_only(to, k) { OpKind::PutReduceInput } else { OpKind::PutReduce };
                self.sums(to, src, self.alike(other, 2 << k), kind)
            }),
            Phase::Leave => places.place(rank).map(|_| {
                let block = |buffer, rank| Parts::of(buffer, Walk::fixed(rank));
                let result = |to: u32| Piece::put(to, block(Buffer::Scratch, to), block(Buffer::Output, to), 1);
                let own = Piece::copy(rank, block(Buffer::Scratch, rank), block(Buffer::Output, rank), 1);
                vec![places.guest(rank).map_or(Piece::nothing(rank), result), own, Piece::nothing(rank)]
            }),
        };
        message.unwrap_or_else(|| vec![Piece::nothing(rank); 3])
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match self.phase(step) {
            Phase::Come => self.places.guest(rank),
            Phase::Exchange(k) => self.places.partner(rank, 1 << k),
            Phase::Leave => self.places.stand_in(rank),
        }
    }
}

impl Generate for Butterfly {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        steps::write(self, &self.header, &self.cut, rank, program);
    }
}
