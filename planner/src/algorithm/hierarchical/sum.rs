//! Sums within a host: every rank reduces its mates' contributions to its own part, item by item.
//!
//! The next mate's data is reduced with the rank's own input on arrival. The data of each other mate waits for a local
//! reduction in a scratch slot, at the index of that mate's part. A rank alone in its host copies its input.

use fabricast_sim::schedule::{Buffer, Dependency, OpKind, Program, Rank, Walk};

use super::Levels;
use crate::algorithm::lane::Lane;

/// Sums of one rank on one lane, with the same number of items on every rank.
pub(super) struct Sum<'a> {
    pub(super) at: Lane,
    pub(super) levels: Levels,
    /// Number of the first run, equal on all ranks of the host.
    pub(super) first_run: u32,
    pub(super) items: u32,
    /// Chunks of the part of a position, one per item; the same indices in input, sums and slots.
    pub(super) part: &'a dyn Fn(u32) -> Walk,
    /// Buffer that holds the sums of a position.
    pub(super) sums: &'a dyn Fn(u32) -> Buffer,
    /// True if input and output are the same buffer.
    pub(super) in_place: bool,
    /// Additional dependency of a run's operations, by the index of the run from the first.
    pub(super) after: &'a dyn Fn(u32) -> Option<Dependency>,
}

impl Sum<'_> {
    /// Number of runs.
    pub(super) fn runs(levels: Levels) -> u32 {
        1 + 2 * levels.mates().saturating_sub(1)
    }

    /// The rank and run whose operations complete the sums of `rank`.
    pub(super) fn done(levels: Levels, first_run: u32, rank: u32) -> (Rank, u32) {
        match levels.per_host {
            1 => (Rank(rank), first_run),
            2 => (Rank(levels.mate(levels.place(rank), 1)), first_run),
            _ => (Rank(rank), first_run + Self::runs(levels) - 1),
        }
    }

    pub(super) fn write(&self, program: &mut Program) {
        let Self { at, levels, items, .. } = *self;
        let place = levels.place(at.rank);
        let position = place.1;
        let own = (self.part)(position);
        let sum = ((self.sums)(position), own);
        if levels.mates() == 0 {
            let is_there = self.in_place && sum.0 == Buffer::Output;
            let copy = at.local(OpKind::Copy, if is_there { 0 } else { items }, (Buffer::Input, own), sum);
            program.push(copy, &[]);
            return;
        }
        let order = |run: u32| {
            let number = self.first_run + run;
            [Some(Dependency::shifted(at.rank(), number, -1)), (self.after)(run)].into_iter().flatten()
        };
        for further in 1..=levels.mates() {
            let mate = levels.mate(place, further);
            let part = (self.part)(levels.place(mate).1);
            let src = (Buffer::Input, part);
            let to = Walk::fixed(mate);
            let put = if further == 1 {
                at.transfer(OpKind::PutReduceInput, items, to, src, ((self.sums)(levels.place(mate).1), part))
            } else {
                at.put(items, to, src, (Buffer::Scratch, own))
            };
            program.push(put, &order(further - 1).collect::<Vec<_>>());
        }
        let arrived = |further: u32| {
            let mate = levels.mate(place, levels.per_host - further);
            (mate, Dependency::shifted(Rank(mate), self.first_run + further - 1, 0))
        };
        for further in 2..=levels.mates() {
            let (mate, came) = arrived(further);
            let slot = (Buffer::Scratch, (self.part)(levels.place(mate).1));
            let reduce = at.local(OpKind::Reduce, items, slot, sum);
            let before = match further {
                2 => arrived(1).1,
                _ => Dependency::shifted(at.rank(), program.runs().len() as u32 - 1, 0),
            };
            program.push(reduce, &[came, before]);
        }
    }
}
