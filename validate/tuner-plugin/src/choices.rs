//! A table as one communicator needs it.
//!
//! The first row that fits a call wins (`nccl_tuner::Lookup`, a search of sorted sizes). Where NCCL cannot do what it says, the rows
//! after it are tried one by one, as NCCL's example plugin does (`ext-tuner/example/plugin.c`); so a call of which the table names
//! something that is not there costs a look at each of its rows, and any other a search.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use fabricast_planner::export::nccl_tuner::{Buffers, Lookup, Row, Table};
use fabricast_planner::library::nccl::Function;

/// A call, in the table's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The collective.
    pub function: Function,
    /// Bytes of the larger buffer; of a group's calls of one kind their sum.
    pub bytes: u64,
    /// Calls of one kind in the group.
    pub operations: u32,
    /// Its buffers.
    pub buffers: Buffers,
}

/// The rows of a table that are for one communicator, and what was told of them.
#[derive(Debug, Default)]
pub struct Choices {
    table: Table,
    lookup: Lookup,
    told: Box<[AtomicU8]>,
}

/// A line in words, with a blank before; nothing where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " (line {})", self.0) }
    }
}

impl Choices {
    /// Of a table, for a communicator.
    #[must_use]
    pub fn new(table: Table, nodes: u32, ranks: u32) -> Self {
        // Of a table that was no file there are no lines.
        let lines = table.lines.into_iter().chain(std::iter::repeat(0));
        let rows = table.rows.into_iter().zip(lines).filter(|(row, _)| row.is_for(nodes, ranks));
        let (rows, lines): (Vec<Row>, Vec<u32>) = rows.unzip();
        let table = Table { rows, lines, ..Table::default() };
        let told = table.rows.iter().map(|_| AtomicU8::new(0)).collect();
        Self { lookup: Lookup::new(&table, nodes, ranks), told, table }
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.rows.len()
    }

    /// The rows that fit a call, in the table's order, each with its place.
    pub fn of(&self, wanted: Wanted) -> impl Iterator<Item = (usize, &Row)> {
        let Wanted { function, bytes, operations, buffers } = wanted;
        let first = self.lookup.find(function, bytes, operations, buffers).map(|answer| answer.row as usize);
        let fits = move |row: &Row| {
            row.function == function
                && (row.min_bytes.0..=row.max_bytes.0).contains(&bytes)
                && row.pipe_ops.is_none_or(|of| of == operations)
                && (row.buffers == Buffers::Any || row.buffers == buffers)
        };
        let rows = first.and_then(|first| self.table.rows.get(first..)).unwrap_or_default();
        rows.iter()
            .enumerate()
            .map(move |(after, row)| (first.unwrap_or(0) + after, row))
            .filter(move |(_, row)| fits(row))
    }

    /// Where a row stands in its file.
    #[must_use]
    pub fn place(&self, row: usize) -> Place {
        Place(self.table.lines.get(row).copied().unwrap_or(0))
    }

    /// Whether something of a row is told for the first time: `what` is a bit.
    pub fn is_news(&self, row: usize, what: u8) -> bool {
        self.told.get(row).is_some_and(|told| {
            // Nearly always it was told: looking is cheaper than changing what other threads look at.
            told.load(Ordering::Relaxed) & what == 0 && told.fetch_or(what, Ordering::Relaxed) & what == 0
        })
    }
}
