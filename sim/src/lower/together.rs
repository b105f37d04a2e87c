//! Work that a split block does in the same passes. In trees one primitive receives from several children, or sends to
//! several, while a schedule has one operation for each.

use crate::profile::Shared;
use crate::schedule::{BlockSplit, Dependency, Header, OpKind, Program, Rank, Run};

/// Shared work of the runs of one rank, by run.
#[derive(Debug, Default)]
pub(super) struct Together {
    of_run: Vec<Shared>,
}

impl Together {
    /// Reads the program of a rank.
    pub fn read(&mut self, header: &Header, rank: Rank, program: &Program) {
        self.of_run.clear();
        if header.blocks.split == BlockSplit::Whole {
            return;
        }
        self.of_run.resize(program.runs().len(), Shared::Nothing);
        for (number, run) in program.runs().iter().enumerate().filter(|(_, run)| run.kind.is_transfer() && run.len > 0)
        {
            let waits = program.dependencies(number);
            let sum = waits.iter().find(|wait| is_sum_on_its_way(program, (rank, run), **wait));
            if let Some(sum) = sum {
                self.set(sum.run as usize, Shared::InPassing);
                self.set(number, Shared::Adds);
            } else if sends_what_the_one_before_does(program, rank, number) {
                self.set(number, Shared::SendsAgain);
            }
        }
    }

    fn set(&mut self, number: usize, shared: Shared) {
        if let Some(known) = self.of_run.get_mut(number) {
            *known = shared;
        }
    }

    /// Returns the work that a run's operations share with others.
    pub fn of(&self, number: u32) -> Shared {
        self.of_run.get(number as usize).copied().unwrap_or_default()
    }
}

/// Returns true if a run sends, chunk by chunk, the sums of a local reduction on its channel.
fn is_sum_on_its_way(program: &Program, (rank, run): (Rank, &Run), wait: Dependency) -> bool {
    let sum = program.runs().get(wait.run as usize);
    wait == Dependency::shifted(rank, wait.run, 0)
        && sum.is_some_and(|sum| sum.kind == OpKind::Reduce && sum.channel == run.channel)
}

fn sends_what_the_one_before_does(program: &Program, rank: Rank, number: usize) -> bool {
    let told = |number: usize| {
        let run = program.runs().get(number)?;
        let from_others = program.dependencies(number).iter().find(|wait| wait.rank != rank);
        Some((run.kind, run.channel, run.len, run.span, run.src_buffer, run.src, from_others))
    };
    number.checked_sub(1).and_then(told).is_some_and(|before| before.0 == OpKind::Put && Some(before) == told(number))
}
