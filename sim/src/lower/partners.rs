//! How many peers a block exchanges data with at once, where ranks exchange data in pairs: it takes what all of them send before it is
//! done with a chunk.

use super::effort::WORKS_OF_BLOCK;
use crate::schedule::{Dependency, Header, Program, Rank};

/// Peers by channel, of one rank.
#[derive(Debug, Default)]
pub(super) struct Partners {
    of_channel: Vec<u32>,
}

impl Partners {
    /// Those of a rank: whom it sends to without waiting for anybody.
    pub fn read(&mut self, header: &Header, rank: Rank, program: &Program) {
        self.of_channel.clear();
        if !header.call.collective.is_between_pairs() {
            return;
        }
        self.of_channel.resize(usize::from(header.channels), 0);
        for (number, run) in (0..).zip(program.runs()) {
            let waits = program.dependencies(number as usize);
            let begins = run.kind.is_transfer() && waits_for_nobody(rank, number, waits);
            if let (true, Some(peers)) = (begins, self.of_channel.get_mut(usize::from(run.channel.0))) {
                // One after the other is one at once, to one peer or several.
                *peers += if run.peer.is_fixed() || !waits.is_empty() { run.len.min(1) } else { run.len };
            }
        }
        let most = u32::from(header.channels).saturating_mul(WORKS_OF_BLOCK);
        self.of_channel.iter_mut().for_each(|peers| *peers = (*peers).clamp(1, most.max(1)));
    }

    /// With how many others a run's messages are under way on its channel.
    pub fn of(&self, program: &Program, rank: Rank, number: u32) -> u32 {
        let Some(run) = program.runs().get(number as usize) else { return 1 };
        match waits_for_nobody(rank, number, program.dependencies(number as usize)) {
            true => self.of_channel.get(usize::from(run.channel.0)).copied().unwrap_or(1),
            false => 1,
        }
    }
}

/// Whether nothing but the message before holds back those of a run.
fn waits_for_nobody(rank: Rank, number: u32, waits: &[Dependency]) -> bool {
    waits.iter().all(|wait| *wait == Dependency::shifted(rank, number, -1))
}
