//! Detection of schedules that consist only of copies from inputs to outputs, in one step, so that copy engines can run
//! them.

use fabricast_topologies::Bytes;

use super::chunk_layout::ChunkLayout;
use super::local_operations::{CellMemory, MoveKind, Moves};

/// Copy from one rank's input to another rank's output. Offsets are in the byte numbering of the call, like chunk
/// offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOperation {
    /// Rank that owns the input.
    pub from: u32,
    /// Byte offset of the source.
    pub source: Bytes,
    /// Rank that owns the output.
    pub to: u32,
    /// Byte offset of the destination.
    pub target: Bytes,
    /// Number of bytes to copy.
    pub bytes: Bytes,
}

/// Returns the copies of a schedule. `None` unless the schedule consists of copies from inputs to outputs and no rank
/// forwards received data.
pub(super) fn copy_operations(moves: &Moves, cut: &ChunkLayout) -> Option<Vec<CopyOperation>> {
    let mut sources = vec![None; moves.messages.len()];
    let mut written = rustc_hash::FxHashSet::default();
    let mut read = rustc_hash::FxHashSet::default();
    let mut copies = Vec::new();
    for operation in &moves.moves {
        let (src, dst, from) = match operation.kind {
            MoveKind::Send { message, src } => {
                read.insert(src);
                sources[message as usize] = Some((src, operation.rank));
                continue;
            }
            MoveKind::Copy { src, dst } => {
                read.insert(src);
                (src, dst, operation.rank)
            }
            MoveKind::Receive { message, dst } => {
                let (src, from) = sources[message as usize]?;
                (src, dst, from)
            }
            MoveKind::Reduce { .. } | MoveKind::ReceiveReduce { .. } | MoveKind::ReceiveReduceInput { .. } => {
                return None;
            }
        };
        let (CellMemory::Input(source) | CellMemory::Output(source)) = moves.memory(src).1 else { return None };
        let CellMemory::Output(target) = moves.memory(dst).1 else { return None };
        if !written.insert(dst) {
            return None;
        }
        let offset_of = |chunk: u32| Bytes(cut.start(chunk));
        let bytes = Bytes(cut.len(source));
        copies.push(CopyOperation {
            from,
            source: offset_of(source),
            to: operation.rank,
            target: offset_of(target),
            bytes,
        });
    }
    let passes_on = written.iter().any(|cell| read.contains(cell));
    (!passes_on && !copies.is_empty()).then_some(copies)
}
