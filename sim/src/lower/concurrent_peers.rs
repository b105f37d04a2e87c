//! Number of peers with which a block exchanges data concurrently in pairwise collectives. A block needs the data of
//! all of them before it has finished a chunk.

use rustc_hash::FxHashSet;

use super::operation_cost::max_partners;
use crate::schedule::{Dependency, Header, Program, Rank};

/// Minimum number of peers up to which the peers of a channel are counted: that of 128 channels with eight concurrent
/// peers each. A template of few channels also represents schedules with more channels, which have more concurrent
/// peers.
const COUNTED: u32 = 1024;

/// Number of concurrent peers of each channel of one rank.
#[derive(Debug, Default)]
pub(super) struct Partners {
    channel_peers: Vec<u32>,
    /// Pairs of channel and peer counted so far.
    counted: FxHashSet<(u16, u32)>,
    /// For each run of the rank, true if it waits at most for earlier messages of the rank to the same peers.
    follow_own: Vec<bool>,
}

impl Partners {
    /// Counts the peers that a rank sends to without waiting for any other rank. Each peer counts once, regardless of
    /// the number of its messages and of their division into runs.
    pub fn read(&mut self, header: &Header, rank: Rank, program: &Program) {
        self.channel_peers.clear();
        if !header.call.collective.is_pairwise() {
            return;
        }
        self.counted.clear();
        self.follow_own.clear();
        self.channel_peers.resize(usize::from(header.channels), 0);
        let max_peers = max_partners(header).max(COUNTED);
        for (number, run) in (0..).zip(program.runs()) {
            let waits = program.dependencies(number as usize);
            self.follow_own.push(waits.iter().all(|&wait| self.follows_own(rank, number, program, wait)));
            let begins = run.kind.is_transfer() && waits.iter().all(|&wait| is_previous(rank, number, wait));
            let (true, Some(peers)) = (begins, self.channel_peers.get_mut(usize::from(run.channel.0))) else {
                continue;
            };
            // Messages in turn go to one peer at a time.
            let concurrent = if run.peer.is_fixed() || !waits.is_empty() { run.len.min(1) } else { run.len };
            for i in 0..concurrent {
                if *peers >= max_peers {
                    break;
                }
                *peers += u32::from(self.counted.insert((run.channel.0, run.peer.at(i))));
            }
        }
        self.channel_peers.iter_mut().for_each(|peers| *peers = (*peers).clamp(1, max_peers));
    }

    /// Returns the number of peers with concurrent messages on a run's channel; 1 if the run waits for messages of other
    /// ranks, or of its own rank to other peers.
    pub fn count(&self, program: &Program, number: u32) -> u32 {
        let follows_own = self.follow_own.get(number as usize).is_some_and(|&follows| follows);
        let run = program.runs().get(number as usize).filter(|_| follows_own);
        run.and_then(|run| self.channel_peers.get(usize::from(run.channel.0))).copied().unwrap_or(1)
    }

    /// Returns true if a dependency of a run is on earlier messages of the rank to the same peers, which wait for no
    /// others either: of the same run, or of the run of the loop before.
    fn follows_own(&self, rank: Rank, number: u32, program: &Program, wait: Dependency) -> bool {
        let target = |run: u32| program.runs().get(run as usize).map(|run| (run.kind, run.channel, run.peer));
        is_previous(rank, number, wait)
            || wait.rank == rank
                && self.follow_own.get(wait.run as usize).is_some_and(|&follows| follows)
                && target(wait.run) == target(number)
    }
}

/// Returns true if a run's dependency is on the previous message of the run.
fn is_previous(rank: Rank, number: u32, wait: Dependency) -> bool {
    wait == Dependency::shifted(rank, number, -1)
}
