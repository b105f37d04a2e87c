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
//! Ranks beyond a power of two are guests ([`super::places`]): one more step at the beginning, in which they send their
//! input to their neighbour, and one at the end, in which they receive the result.
//!
//! Runs per rank and lane: two per step for all_reduce; three per step and loop for all_gather.
//!
//! Source: Thakur, Rabenseifner, Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005, §4.1,
//! §4.5.

use fabricast_sim::schedule::{Buffer, BufferUse, Dependency, Generate, Header, OpKind, Program, Rank, Walk};

use super::cut::{Cut, channel_of, checked};
use super::lane::Lane;
use super::places::{Phase, Places};
use super::ring::copy_own;
use super::steps::{self, Parts, Pattern, Piece, all_but};
use super::{Algorithm, Shape, Unsupported};

/// Schedule generator of the recursive-doubling all_gather.
pub(super) struct AllGather {
    header: Header,
    cut: Cut,
    places: Places,
}

impl AllGather {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_blocks(shape)?;
        let header = shape.header(Algorithm::RecursiveDoubling, layout, 0);
        Ok(Self { header, cut, places: Places::new(shape.call.ranks) })
    }
}

impl Pattern for AllGather {
    fn steps(&self) -> u32 {
        self.places.bits() + 2 * u32::from(self.places.has_guests())
    }

    fn pieces(&self, rank: u32, step: u32) -> Vec<Piece> {
        let own = Walk::fixed(rank);
        let with_own = |to: u32, others: Walk, len: u32| {
            let (input, output) = (Parts::of(Buffer::Input, own), Parts::of(Buffer::Output, own));
            let others = Parts::of(Buffer::Output, others);
            vec![Piece::put(to, input, output, 1), Piece::put(to, others, others, len)]
        };
        let ranks = self.header.call.ranks;
        let message = match Phase::of(step, self.places.bits(), self.places) {
            Phase::Come => self.places.stand_in(rank).map(|to| with_own(to, own, 0)),
            Phase::Exchange(k) => self.places.place(rank).map(|place| {
                let (first, count) = self.places.blocks(Places::group(place, 1 << k), 1 << k);
                with_own(self.places.rank(place ^ 1 << k), all_but(rank, first, count), count - 1)
            }),
            // All blocks except the guest's own and the sender's, which comes from the input.
            Phase::Leave => self.places.guest(rank).map(|guest| with_own(guest, all_but(rank, 0, ranks), ranks - 2)),
        };
        message.unwrap_or_else(|| vec![Piece::nothing(rank); 2])
    }

    fn source(&self, rank: u32, step: u32) -> Option<u32> {
        match Phase::of(step, self.places.bits(), self.places) {
            Phase::Come => self.places.guest(rank),
            Phase::Exchange(k) => self.places.partner(rank, 1 << k),
            Phase::Leave => self.places.stand_in(rank),
        }
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
}

/// Schedule generator of the recursive-doubling all_reduce.
pub(super) struct AllReduce {
    header: Header,
    cut: Cut,
    places: Places,
    out_of_place: bool,
}

impl AllReduce {
    pub(super) fn new(shape: &Shape) -> Result<Self, Unsupported> {
        let (cut, layout) = Cut::by_loops(shape, u32::from(shape.channels), 1)?;
        let places = Places::new(shape.call.ranks);
        let slots = checked(u64::from(layout.chunks()) * u64::from(places.bits()))?;
        Ok(Self {
            header: shape.header(Algorithm::RecursiveDoubling, layout, slots),
            cut,
            places,
            out_of_place: shape.call.buffers == BufferUse::OutOfPlace,
        })
    }

    /// Returns true if the data that a rank receives in a step is reduced on arrival.
    fn adds_on_arrival(&self, rank: u32, step: u32) -> bool {
        step == 0 && self.out_of_place && self.places.guest(rank).is_none()
    }

    /// Dependency on the operation before `step` that produced the rank's current sum; `None` if the sum is its input.
    fn sum_before(&self, rank: u32, step: u32, runs: Runs) -> Option<Dependency> {
        let Some(before) = step.checked_sub(1) else {
            return self.places.guest(rank).map(|guest| Dependency::shifted(Rank(guest), runs.come(), 0));
        };
        if self.adds_on_arrival(rank, before) {
            let partner = self.places.partner(rank, 1 << before)?;
            return Some(Dependency::shifted(Rank(partner), runs.put(before), 0));
        }
        Some(Dependency::shifted(Rank(rank), runs.reduce(before), 0))
    }

    fn write_exchange(&self, place: u32, step: u32, at: Lane, lane: u32, runs: Runs, program: &mut Program) {
        let loops = self.cut.loops;
        let chunks = self.cut.over_loops(0, lane);
        let slot = Walk { base: chunks.base + step * self.header.layout.chunks(), ..chunks };
        let partner = self.places.rank(place ^ 1 << step);
        let is_input = step == 0 && self.places.guest(at.rank).is_none();
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
struct Runs {
    first: u32,
    steps: u32,
}

impl Runs {
    fn come(self) -> u32 {
        self.first
    }

    fn put(self, step: u32) -> u32 {
        self.first + 1 + 2 * step
    }

    fn reduce(self, step: u32) -> u32 {
        self.put(step) + 1
    }

    fn leave(self) -> u32 {
        self.put(self.steps)
    }
}

impl Generate for AllReduce {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let (loops, steps) = (self.cut.loops, self.places.bits());
        for lane in 0..self.cut.lanes {
            let at = Lane { rank: rank.0, channel: channel_of(self.header.channels, lane) };
            let runs = Runs { first: program.runs().len() as u32, steps };
            let chunks = self.cut.over_loops(0, lane);
            let output = (Buffer::Output, chunks);
            let stand_in = self.places.stand_in(rank.0);
            let (to, len) = stand_in.map_or((rank.0, 0), |to| (to, loops));
            let come = at.transfer(OpKind::PutReduceInput, len, Walk::fixed(to), (Buffer::Input, chunks), output);
            program.push(come, &[Dependency::shifted(rank, runs.come(), -1)]);
            for step in 0..steps {
                match self.places.place(rank.0) {
                    Some(place) => self.write_exchange(place, step, at, lane, runs, program),
                    None => {
                        program.push(at.wait(0), &[]);
                        program.push(at.wait(0), &[]);
                    }
                }
            }
            let guest = self.places.guest(rank.0);
            let (to, len) = guest.map_or((rank.0, 0), |to| (to, loops));
            let chunk_before = Dependency::shifted(rank, runs.leave(), -1);
            let sum = guest.and_then(|_| self.sum_before(rank.0, steps, runs));
            let awaited: Vec<Dependency> = sum.into_iter().chain([chunk_before]).collect();
            program.push(at.put(len, Walk::fixed(to), output, output), &awaited);
        }
    }
}
