//! Butterfly: reduce_scatter by halving what is left to sum, over distances that grow.
//!
//! In step k a rank and the one 2ᵏ places away give each other the sums so far of the blocks whose places the other shares its
//! last k + 1 bits with, and go on with their own: log₂ n steps, (n−1)/n of the bytes sent by every rank. Neighbours exchange
//! most, far ranks least; recursive halving ([`super::halving_doubling`]) does it the other way round. Partial sums are in
//! scratch. Equal links of latency L and bandwidth B, n a power of two: log₂ n·L + (n−1)/n · bytes/B. Ranks beyond a power of
//! two are guests ([`super::places`]): two steps and twice their input more for who acts for them.
//! Per rank, lane and loop four runs a step.
//!
//! Source: Träff, *An improved algorithm for (non-commutative) reduce-scatter with an application*, EuroPVM/MPI 2005; Open
//! MPI 4.1, 5.0 ompi/mca/coll/base/coll_base_reduce_scatter_block.c (butterfly), which mirrors blocks beforehand, so that a
//! message is one stretch of memory, and of other numbers of ranks swaps them back in the last step.

use fabricast_sim::schedule::{Buffer, Generate, Header, OpKind, Program, Rank, Walk};

use super::cut::Cut;
use super::places::{Phase, Places};
use super::steps::{self, Parts, Pattern, Piece};
use super::{Algorithm, Shape, Unsupported};

/// Butterfly reduce_scatter.
pub(super) struct Butterfly {
    header: Header,
    cut: Cut,
    places: Places,
}

/// Blocks in equal steps.
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

    /// The blocks of the places that are `place` modulo `every`: of those with a guest, theirs and the guest's, and of the
    /// others.
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

    /// Whether a rank has nothing but its input before the exchanges, and a step is the first of them.
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
