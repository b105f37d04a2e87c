//! Work of a split block that several operations share in the same passes. In NCCL's trees one primitive receives from
//! several children, or sends to several, while a schedule has one operation for each child.

use crate::profile::SharedPasses;
use crate::schedule::{BlockSplit, Dependency, Header, OpKind, Program, Rank, Run};

/// Work that each run of a rank shares with other runs in the same passes.
#[derive(Debug, Default)]
pub(super) struct PassSharing {
    shared_passes: Vec<SharedPasses>,
}

impl PassSharing {
    /// Determines the shared work of all runs of a rank's program.
    pub fn read(&mut self, header: &Header, rank: Rank, program: &Program) {
        self.shared_passes.clear();
        if header.blocks.split == BlockSplit::OneChannel {
            return;
        }
        self.shared_passes.resize(program.runs().len(), SharedPasses::None);
        for (number, run) in program.runs().iter().enumerate().filter(|(_, run)| run.kind.is_transfer() && run.len > 0)
        {
            let waits = program.dependencies(number);
            let sum = waits.iter().find(|wait| sends_local_sum(program, rank, run, **wait));
            if let Some(sum) = sum {
                self.set(sum.run as usize, SharedPasses::Merged);
                self.set(number, SharedPasses::AdditionalReceive);
            } else if repeats_previous_send(program, rank, number) {
                self.set(number, SharedPasses::AdditionalSend);
            }
        }
    }

    fn set(&mut self, number: usize, shared: SharedPasses) {
        if let Some(known) = self.shared_passes.get_mut(number) {
            *known = shared;
        }
    }

    /// Returns the work that a run's operations share with others.
    pub fn get(&self, number: u32) -> SharedPasses {
        self.shared_passes.get(number as usize).copied().unwrap_or_default()
    }
}

/// Returns true if a run sends, chunk by chunk, the sums that a local reduction on its channel computes.
fn sends_local_sum(program: &Program, rank: Rank, run: &Run, wait: Dependency) -> bool {
    let sum = program.runs().get(wait.run as usize);
    wait == Dependency::shifted(rank, wait.run, 0)
        && sum.is_some_and(|sum| sum.kind == OpKind::Reduce && sum.channel == run.channel)
}

fn repeats_previous_send(program: &Program, rank: Rank, number: usize) -> bool {
    let traits = |number: usize| {
        let run = program.runs().get(number)?;
        let remote_wait = program.dependencies(number).iter().find(|wait| wait.rank != rank);
        Some((run.kind, run.channel, run.len, run.span, run.src_buffer, run.src, remote_wait))
    };
    number
        .checked_sub(1)
        .and_then(traits)
        .is_some_and(|before| before.0 == OpKind::Put && Some(before) == traits(number))
}
