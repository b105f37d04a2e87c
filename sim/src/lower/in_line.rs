//! Which operations stand in line: a thread block that has one peer to send to sends a chunk whole before it begins the next, as a
//! kernel that goes through its primitives one after the other. (A block with several peers sends to all of them at once, and one
//! whose switch combines has warps of their own for each part of that.)

use crate::engine::Standing;
use crate::profile::LaneSpeed;
use crate::schedule::{BlockSplit, Header, Program, Run, Workplace};

/// The lines of one rank.
#[derive(Debug, Default)]
pub(super) struct InLine {
    /// By channel.
    blocks: Vec<Block>,
}

/// Whom a block sends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Block {
    #[default]
    Nobody,
    /// One peer, in so many runs, of which the line of so many was asked for.
    One { peer: u32, runs: u32, told: u32 },
    /// Several, or what it does is no sending.
    Others,
}

impl InLine {
    /// Those of a rank, where blocks work by passes.
    pub fn read(&mut self, header: &Header, lane: LaneSpeed, program: &Program) {
        self.blocks.clear();
        let is_kernel = header.blocks.workplace == Workplace::Device && header.blocks.split == BlockSplit::Whole;
        if !is_kernel || !matches!(lane, LaneSpeed::Passes(..)) {
            return;
        }
        self.blocks.resize(usize::from(header.channels), Block::Nobody);
        for run in program.runs().iter().filter(|run| run.kind.is_transfer() && run.len > 0) {
            if let Some(block) = self.blocks.get_mut(usize::from(run.channel.0)) {
                *block = block.with(run);
            }
        }
    }

    /// Where a run stands, with lines of this rank numbered from `first` on. Asked of all runs of a rank in order.
    pub fn of(&mut self, run: &Run, first: u32) -> Option<Standing> {
        let channel = run.channel.0;
        let block = self.blocks.get_mut(usize::from(channel)).filter(|_| stands(run))?;
        let Block::One { runs, told, .. } = block else { return None };
        let place = *told;
        *told += 1;
        (*runs > 1 || run.len > 1).then(|| Standing { line: first + u32::from(channel), place })
    }
}

impl Block {
    fn with(self, run: &Run) -> Self {
        let peer = run.peer.at(0);
        match self {
            _ if !stands(run) || (!run.peer.is_fixed() && run.len > 1) => Self::Others,
            Self::Nobody => Self::One { peer, runs: 1, told: 0 },
            Self::One { peer: known, runs, told } if known == peer => Self::One { peer, runs: runs + 1, told },
            _ => Self::Others,
        }
    }
}

fn stands(run: &Run) -> bool {
    run.kind.writes_peer() && run.len > 0
}
