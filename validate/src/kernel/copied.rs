//! Schedules that are copies from inputs to outputs and nothing else, in one step: copy engines can run them.

use fabricast_topologies::Bytes;

use super::cut::Cut;
use super::moves::{Deed, Memory, Moves};

/// A copy from one rank's input to an output. Places are bytes in the numbering of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Whose input.
    pub from: u32,
    /// Where it begins there.
    pub source: Bytes,
    /// Whose output.
    pub to: u32,
    /// Where it goes.
    pub target: Bytes,
    /// How much.
    pub bytes: Bytes,
}

/// The copies of a schedule, if that is all.
pub(super) fn copied(moves: &Moves, cut: &Cut) -> Option<Vec<Copied>> {
    let mut sources = vec![None; moves.messages.len()];
    let mut written = rustc_hash::FxHashSet::default();
    let mut read = rustc_hash::FxHashSet::default();
    let mut copies = Vec::new();
    for one in &moves.moves {
        let (src, dst, from) = match one.deed {
            Deed::Send { message, src } => {
                read.insert(src);
                sources[message as usize] = Some((src, one.rank));
                continue;
            }
            Deed::Copy { src, dst } => {
                read.insert(src);
                (src, dst, one.rank)
            }
            Deed::Receive { message, dst } => {
                let (src, from) = sources[message as usize]?;
                (src, dst, from)
            }
            Deed::Reduce { .. } | Deed::ReceiveReduce { .. } | Deed::ReceiveReduceInput { .. } => return None,
        };
        let (Memory::Input(source) | Memory::Output(source)) = moves.memory(src).1 else { return None };
        let Memory::Output(target) = moves.memory(dst).1 else { return None };
        if !written.insert(dst) {
            return None;
        }
        let place = |chunk: u32| Bytes(cut.start(chunk));
        let bytes = Bytes(cut.len(source));
        copies.push(Copied { from, source: place(source), to: one.rank, target: place(target), bytes });
    }
    let passes_on = written.iter().any(|cell| read.contains(cell));
    (!passes_on && !copies.is_empty()).then_some(copies)
}
