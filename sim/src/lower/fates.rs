//! What becomes of sums: where nobody sends on what it has, each stays with its rank, and the links rest while the last one is made.
//!
//! That is asked of the schedule as a whole. Of recursive doubling over four ranks only the last sums stay, and those are not charged:
//! which operations of a run they are depends on how a generator cuts its runs.

use crate::profile::Fate;
use crate::schedule::{Buffer, OpKind, Program, Rank, Run};

/// Whether a run sends what its rank did not bring along.
pub(super) fn sends_on(run: &Run) -> bool {
    run.kind.is_transfer() && run.len > 0 && run.src_buffer != Buffer::Input
}

/// Of one rank's runs.
#[derive(Debug, Default)]
pub(super) struct Fates {
    /// Whether a local sum goes on in another, by run.
    goes_on: Vec<bool>,
}

impl Fates {
    /// Those of a rank.
    pub fn read(&mut self, of_schedule: Fate, rank: Rank, program: &Program) {
        self.goes_on.clear();
        if of_schedule == Fate::PassedOn {
            return;
        }
        self.goes_on.resize(program.runs().len(), false);
        let sums = (0..).zip(program.runs()).filter(|(_, run)| run.kind == OpKind::Reduce && run.len > 0);
        for (number, run) in sums {
            let before = program.dependencies(number).iter();
            for wait in
                before.filter(|wait| wait.rank == rank && wait.run as usize != number && wait.names_any(run.len))
            {
                if let Some(known) = self.goes_on.get_mut(wait.run as usize) {
                    *known = true;
                }
            }
        }
    }

    /// What becomes of what a run brings.
    pub fn of(&self, number: usize) -> Fate {
        match self.goes_on.get(number) {
            Some(false) => Fate::Stays,
            Some(true) | None => Fate::PassedOn,
        }
    }
}
