//! Destination of local sums. If no rank forwards received data, every final sum stays with its rank, and the links are
//! idle while the last sum is computed.
//!
//! This is determined for the schedule as a whole. In recursive doubling over four ranks only the last sums stay with
//! their ranks. They are not charged, because the operations that compute them depend on how a generator divides its
//! runs.

use crate::profile::Destination;
use crate::schedule::{Buffer, OpKind, Program, Rank, Run};

/// Returns true if a run sends data other than the input of its own rank.
pub(super) fn sends_on(run: &Run) -> bool {
    run.kind.is_transfer() && run.len > 0 && run.src_buffer != Buffer::Input
}

/// Destinations of the sums of one rank's runs.
#[derive(Debug, Default)]
pub(super) struct SumDestinations {
    /// True, by run, if a later local sum uses the run's sum as an operand.
    is_reduced_again: Vec<bool>,
}

impl SumDestinations {
    /// Records which sums of a rank's program are operands of later local sums. Nothing is recorded if the whole
    /// schedule forwards data (`schedule_default`).
    pub fn read(&mut self, schedule_default: Destination, rank: Rank, program: &Program) {
        self.is_reduced_again.clear();
        if schedule_default == Destination::Forwarded {
            return;
        }
        self.is_reduced_again.resize(program.runs().len(), false);
        let sums = (0..).zip(program.runs()).filter(|(_, run)| run.kind == OpKind::Reduce && run.len > 0);
        for (number, run) in sums {
            let before = program.dependencies(number).iter();
            for wait in
                before.filter(|wait| wait.rank == rank && wait.run as usize != number && wait.has_target(run.len))
            {
                if let Some(known) = self.is_reduced_again.get_mut(wait.run as usize) {
                    *known = true;
                }
            }
        }
    }

    /// Returns the destination of the data that a run produces.
    pub fn get(&self, number: usize) -> Destination {
        match self.is_reduced_again.get(number) {
            Some(false) => Destination::Stored,
            Some(true) | None => Destination::Forwarded,
        }
    }
}
