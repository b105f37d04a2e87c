//! Destination of local sums. If no rank forwards data that it received, every final sum stays with its rank, and the
//! links idle while the last sum is computed.
//!
//! This is determined for the schedule as a whole. In recursive doubling over four ranks only the last sums stay, and
//! those are not charged: which operations of a run they are depends on how a generator divides its runs.

use crate::profile::Fate;
use crate::schedule::{Buffer, OpKind, Program, Rank, Run};

/// Returns true if a run sends data other than its rank's own input.
pub(super) fn sends_on(run: &Run) -> bool {
    run.kind.is_transfer() && run.len > 0 && run.src_buffer != Buffer::Input
}

/// Destinations of the sums of one rank's runs.
#[derive(Debug, Default)]
pub(super) struct Fates {
    /// By run: true if a later sum uses the local sum.
    goes_on: Vec<bool>,
}

impl Fates {
    /// Reads the program of a rank.
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

    /// Destination of the data that a run produces.
    pub fn of(&self, number: usize) -> Fate {
        match self.goes_on.get(number) {
            Some(false) => Fate::Stays,
            Some(true) | None => Fate::PassedOn,
        }
    }
}
