//! Contents and last accesses of every chunk of every rank during execution. There is one cell per chunk of output and
//! scratch; out-of-place input is never written and needs no cell.

use super::contents::Contents;
use super::fault::RankChunk;
use super::sets::{Set, Sets};
use crate::schedule::{Buffer, ChunkRef, Schedule};

/// Sum of contributions to one input chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Ranks that contributed; empty if nothing was written.
    pub(super) ranks: Set,
    /// Index of the input chunk to which the ranks contributed.
    pub(super) chunk: u32,
}

/// Placeholder for a missing operation number; also marks the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// State of one chunk. Operations are given by their position in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) value: Value,
    /// Last operation that wrote the chunk; [`NONE`] if the chunk has not been written.
    pub(super) writer: u32,
    /// Readers since the last write, as a list in [`Memory::readers`].
    pub(super) readers: u32,
}

/// Location of a chunk's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkLocation {
    /// Index of the chunk's cell.
    Cell(usize),
    /// Out-of-place input, which is never written and has no cell.
    Input,
}

/// State of the chunks of all ranks.
pub(super) struct Memory<'a> {
    contents: Contents<'a>,
    in_place: bool,
    chunks: u32,
    cells_per_rank: usize,
    cells: Vec<Cell>,
    /// Linked lists of readers: position of a reader, and next entry of its list.
    readers: Vec<(u32, u32)>,
}

impl<'a> Memory<'a> {
    /// Returns the number of cells that a schedule needs.
    pub(super) fn cell_count(schedule: &Schedule) -> u64 {
        let header = schedule.header();
        let per_rank = u64::from(header.layout.chunks()) + u64::from(header.scratch_chunks);
        per_rank.saturating_mul(u64::from(header.call.ranks))
    }

    pub(super) fn new(schedule: &Schedule, contents: Contents<'a>) -> Self {
        let header = schedule.header();
        let chunks = header.layout.chunks();
        let cells_per_rank = chunks as usize + header.scratch_chunks as usize;
        let empty = Cell { value: Value { ranks: Set::EMPTY, chunk: 0 }, writer: NONE, readers: NONE };
        let mut memory = Self {
            contents,
            in_place: schedule.is_in_place(),
            chunks,
            cells_per_rank,
            cells: vec![empty; cells_per_rank * header.call.ranks as usize],
            readers: Vec::new(),
        };
        if memory.in_place {
            for rank in 0..header.call.ranks {
                for chunk in (0..chunks).filter(|&chunk| contents.has_input(rank, chunk)) {
                    memory.cells[rank as usize * cells_per_rank + chunk as usize].value =
                        Value { ranks: Set::single(rank), chunk };
                }
            }
        }
        memory
    }

    /// Returns the location of a rank's chunk.
    #[inline]
    pub(super) fn locate(&self, rank: u32, chunk: ChunkRef) -> ChunkLocation {
        let offset = match chunk.buffer {
            Buffer::Input if !self.in_place => return ChunkLocation::Input,
            Buffer::Input | Buffer::Output => chunk.index as usize,
            Buffer::Scratch => self.chunks as usize + chunk.index as usize,
        };
        ChunkLocation::Cell(rank as usize * self.cells_per_rank + offset)
    }

    /// Returns the rank and chunk of a cell.
    pub(super) fn owner(&self, cell: usize) -> RankChunk {
        let (rank, offset) = (cell / self.cells_per_rank, (cell % self.cells_per_rank) as u32);
        let chunk = if offset < self.chunks {
            ChunkRef { buffer: Buffer::Output, index: offset }
        } else {
            ChunkRef { buffer: Buffer::Scratch, index: offset - self.chunks }
        };
        RankChunk::new(rank as u32, chunk)
    }

    /// Returns true if a rank may write a chunk: scratch, or output that it receives.
    #[inline]
    pub(super) fn is_writable(&self, rank: u32, chunk: ChunkRef) -> bool {
        match chunk.buffer {
            Buffer::Scratch => true,
            Buffer::Input if !self.in_place => false,
            Buffer::Input | Buffer::Output => self.contents.expected(rank, chunk.index).is_some(),
        }
    }

    /// Returns the contents of an input chunk that is never written.
    #[inline]
    pub(super) fn input(&self, rank: u32, chunk: u32) -> Value {
        let ranks = if self.contents.has_input(rank, chunk) { Set::single(rank) } else { Set::EMPTY };
        Value { ranks, chunk }
    }

    #[inline]
    pub(super) fn cell(&self, cell: usize) -> Cell {
        self.cells[cell]
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, &Cell)> {
        self.cells.iter().enumerate()
    }

    /// Records that the operation at `position` reads a cell.
    #[inline]
    pub(super) fn note_reader(&mut self, cell: usize, position: u32) {
        self.readers.push((position, self.cells[cell].readers));
        self.cells[cell].readers = self.readers.len() as u32 - 1;
    }

    /// Returns the reader at an entry of a list, and the next entry.
    #[inline]
    pub(super) fn reader(&self, link: u32) -> (u32, u32) {
        self.readers[link as usize]
    }

    /// Replaces the contents of a cell with those that the operation at `position` writes.
    #[inline]
    pub(super) fn write(&mut self, cell: usize, value: Value, position: u32) {
        self.cells[cell] = Cell { value, writer: position, readers: NONE };
    }
}

/// Reduces two values.
///
/// # Errors
/// [`ReduceError`] if the values cannot be reduced.
pub(super) fn reduce(sets: &mut Sets, a: Value, b: Value) -> Result<Value, ReduceError> {
    if a.chunk != b.chunk {
        return Err(ReduceError::Chunks);
    }
    match sets.union(a.ranks, b.ranks) {
        Some(ranks) => Ok(Value { ranks, chunk: a.chunk }),
        None => Err(ReduceError::Ranks),
    }
}

/// Reason why two values cannot be reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReduceError {
    /// The values belong to different chunks.
    Chunks,
    /// A rank contributed to both values.
    Ranks,
}
