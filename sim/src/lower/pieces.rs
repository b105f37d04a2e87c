//! Pieces of runs: consecutive operations of equal size.
//!
//! A call of many loops ends with smaller chunks, so each of its runs has two pieces: many large operations, then some
//! smaller ones. Costs are then computed once per piece, and runs with equal values share one range of a table instead
//! of an entry per operation.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::channels::uniform_ranges;
use super::size_walk;
use crate::engine::PerOp;
use crate::quantity::Work;
use crate::schedule::{Header, Run};

/// Maximum number of pieces of a run. A run with more pieces stores one value per operation.
const MAX_PIECES: usize = 16;

/// First operation of each piece of a run; the first is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PieceStarts {
    starts: Vec<u32>,
    len: u32,
}

/// Amounts that a run's operations put on the wire.
#[derive(Clone, Debug)]
pub(super) struct RunWork {
    /// Location of the amounts in the table of works.
    pub work: PerOp,
    /// Pieces, if amounts differ between operations and there are few pieces.
    pub pieces: Option<PieceStarts>,
}

impl PieceStarts {
    /// Returns the pieces of a run that moves single chunks in ascending order; `None` for other runs, or if there are
    /// too many pieces.
    pub fn find(header: &Header, run: &Run) -> Option<Self> {
        let starts: Vec<u32> = uniform_ranges(header, size_walk(run), run, MAX_PIECES)?
            .into_iter()
            .map(|(_, first)| first as u32)
            .collect();
        Some(Self { starts, len: run.len })
    }

    /// Returns the first operation of each piece.
    pub fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        self.starts.iter().copied()
    }

    /// Returns the number of operations of each piece.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + '_ {
        let ends = self.starts().skip(1).chain([self.len]);
        self.starts().zip(ends).map(|(start, end)| end.saturating_sub(start))
    }

    /// Returns the index of the piece that contains an operation.
    pub fn piece_index(&self, operation: u32) -> usize {
        self.starts.partition_point(|&start| start <= operation).saturating_sub(1)
    }

    /// Returns the value of each piece with its number of operations; merges adjacent pieces with equal values.
    pub fn with_values<T: PartialEq>(&self, values: impl Iterator<Item = T>) -> Vec<(T, u32)> {
        let mut joined: Vec<(T, u32)> = Vec::with_capacity(self.starts.len());
        for (value, len) in values.zip(self.lengths()) {
            match joined.last_mut() {
                Some((last, count)) if *last == value => *count += len,
                _ => joined.push((value, len)),
            }
        }
        joined
    }
}

impl RunWork {
    /// Creates the work of a run whose operations all move the same amount.
    pub fn same(entry: u32) -> Self {
        Self { work: PerOp::Same(entry), pieces: None }
    }

    /// Returns the total work of the run's `len` operations.
    pub fn total(&self, len: u32, works: &[Work]) -> Work {
        let at = |i: u32| works.get(self.work.entry(i)).map_or(0, |work| work.0);
        Work(match (self.work, &self.pieces) {
            (PerOp::Same(_), _) => at(0) * u128::from(len),
            (PerOp::Each(_), Some(pieces)) => {
                pieces.starts().zip(pieces.lengths()).map(|(start, len)| at(start) * u128::from(len)).sum()
            }
            (PerOp::Each(_), None) => (0..len).map(at).sum(),
        })
    }
}

/// Index of a table's ranges by their contents: runs of equal values, with the first entry of the range.
#[derive(Debug)]
pub(super) struct Ranges<T>(FxHashMap<Vec<(T, u32)>, u32>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<T: Eq + Hash> Ranges<T> {
    /// Returns the first entry of the range with these values; `add` creates a new range and returns its first entry.
    pub fn find_or_add(&mut self, values: Vec<(T, u32)>, add: impl FnOnce(&[(T, u32)]) -> u32) -> u32 {
        *self.0.entry(values).or_insert_with_key(|values| add(values))
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T: Copy + Eq + Hash> Ranges<T> {
    /// Finds or adds a range in a table that is a list, as [`Self::find_or_add`] does for other tables.
    pub fn intern_list(&mut self, values: Vec<(T, u32)>, table: &mut Vec<T>) -> u32 {
        self.find_or_add(values, |values| {
            let first = table.len() as u32;
            for &(value, count) in values {
                table.extend(std::iter::repeat_n(value, count as usize));
            }
            first
        })
    }
}
