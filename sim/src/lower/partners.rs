//! How many peers a block exchanges data with at once, where ranks exchange data in pairs: it takes what all of them send before it is
//! done with a chunk.

use rustc_hash::FxHashSet;

use super::effort::most_partners;
use crate::schedule::{Dependency, Header, Program, Rank};

/// Peers of a channel that are counted at least: as many as 128 channels have messages for at once. A template of few channels stands for
/// schedules of more, which take more peers at once.
const COUNTED: u32 = 1024;

/// Peers by channel, of one rank.
#[derive(Debug, Default)]
pub(super) struct Partners {
    of_channel: Vec<u32>,
    /// Channels and peers counted so far.
    counted: FxHashSet<(u16, u32)>,
}

impl Partners {
    /// Those of a rank: whom it sends to without waiting for anybody. A peer that several messages go to is one, however its
    /// messages are divided into runs.
    pub fn read(&mut self, header: &Header, rank: Rank, program: &Program) {
        self.of_channel.clear();
        if !header.call.collective.is_between_pairs() {
            return;
        }
        self.counted.clear();
        self.of_channel.resize(usize::from(header.channels), 0);
        let most = most_partners(header).max(COUNTED);
        for (number, run) in (0..).zip(program.runs()) {
            let waits = program.dependencies(number as usize);
            let begins = run.kind.is_transfer() && waits_for_nobody(rank, number, waits);
            let (true, Some(peers)) = (begins, self.of_channel.get_mut(usize::from(run.channel.0))) else { continue };
            // Messages in turn go to one peer at once, whoever that is.
            let at_once = if run.peer.is_fixed() || !waits.is_empty() { run.len.min(1) } else { run.len };
            for i in 0..at_once {
                if *peers >= most {
                    break;
                }
                *peers += u32::from(self.counted.insert((run.channel.0, run.peer.at(i))));
            }
        }
        self.of_channel.iter_mut().for_each(|peers| *peers = (*peers).clamp(1, most));
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
