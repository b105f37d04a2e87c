//! Sums within a host: every rank reduces the contributions of the other ranks of its host (*peers*) to its own part,
//! item by item.
//!
//! The next peer's data is reduced with the rank's own input on arrival. The data of every other peer arrives in a
//! scratch slot, at the index of that peer's part, and is then reduced locally. A rank that is alone in its host copies
//! its input.

use fabricast_sim::schedule::{Buffer, Dependency, OpKind, Program, Rank, Walk};

use super::Levels;
use crate::algorithm::lane::Lane;

/// Sums that one rank computes on one lane. The number of items is equal on all ranks.
pub(super) struct Sum<'a> {
    pub(super) at: Lane,
    pub(super) levels: Levels,
    /// Number of the first run, equal on all ranks of the host.
    pub(super) first_run: u32,
    pub(super) items: u32,
    /// Function that returns the chunks of the part of a position, one per item. Indices are the same in input, sums
    /// and slots.
    pub(super) part: &'a dyn Fn(u32) -> Walk,
    /// Function that returns the buffer that holds the sums of a position.
    pub(super) sum_buffer: &'a dyn Fn(u32) -> Buffer,
    /// True if input and output are the same buffer.
    pub(super) in_place: bool,
    /// Function that returns an additional dependency of a run's operations, given the index of the run relative to the
    /// first.
    pub(super) extra_dependency: &'a dyn Fn(u32) -> Option<Dependency>,
}

impl Sum<'_> {
    /// Number of runs that [`Self::write`] writes.
    pub(super) fn runs(levels: Levels) -> u32 {
        1 + 2 * levels.peer_count().saturating_sub(1)
    }

    /// Returns the rank and the run whose operations complete the sums of `rank`.
    pub(super) fn completing_run(levels: Levels, first_run: u32, rank: u32) -> (Rank, u32) {
        match levels.per_host {
            1 => (Rank(rank), first_run),
            2 => (Rank(levels.peer_on_host(levels.location(rank), 1)), first_run),
            _ => (Rank(rank), first_run + Self::runs(levels) - 1),
        }
    }

    pub(super) fn write(&self, program: &mut Program) {
        let Self { at, levels, items, .. } = *self;
        let location = levels.location(at.rank);
        let position = location.position;
        let own_part = (self.part)(position);
        let sum = ((self.sum_buffer)(position), own_part);
        if levels.peer_count() == 0 {
            let is_in_output = self.in_place && sum.0 == Buffer::Output;
            let copy = at.local(OpKind::Copy, if is_in_output { 0 } else { items }, (Buffer::Input, own_part), sum);
            program.push(copy, &[]);
            return;
        }
        let order = |run: u32| {
            let number = self.first_run + run;
            [Some(Dependency::shifted(at.rank(), number, -1)), (self.extra_dependency)(run)].into_iter().flatten()
        };
        for offset in 1..=levels.peer_count() {
            let mate = levels.peer_on_host(location, offset);
            let part = (self.part)(levels.location(mate).position);
            let src = (Buffer::Input, part);
            let to = Walk::fixed(mate);
            let put = if offset == 1 {
                at.transfer(
                    OpKind::PutReduceInput,
                    items,
                    to,
                    src,
                    ((self.sum_buffer)(levels.location(mate).position), part),
                )
            } else {
                at.put(items, to, src, (Buffer::Scratch, own_part))
            };
            program.push(put, &order(offset - 1).collect::<Vec<_>>());
        }
        let arrived = |offset: u32| {
            let mate = levels.peer_on_host(location, levels.per_host - offset);
            (mate, Dependency::shifted(Rank(mate), self.first_run + offset - 1, 0))
        };
        for offset in 2..=levels.peer_count() {
            let (mate, arrival) = arrived(offset);
            let slot = (Buffer::Scratch, (self.part)(levels.location(mate).position));
            let reduce = at.local(OpKind::Reduce, items, slot, sum);
            let before = match offset {
                2 => arrived(1).1,
                _ => Dependency::shifted(at.rank(), program.runs().len() as u32 - 1, 0),
            };
            program.push(reduce, &[arrival, before]);
        }
    }
}
