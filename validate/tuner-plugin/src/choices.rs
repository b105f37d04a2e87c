//! The rows of a table for one communicator.
//!
//! The first row that matches a call is used (`nccl_tuner::Lookup`, a binary search over sizes). If NCCL cannot run it,
//! the following rows are tried one by one, as in NCCL's example plugin (`ext-tuner/example/plugin.c`). A call whose
//! row NCCL cannot run therefore scans all rows; any other call needs one binary search.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use fabricast_libraries::nccl::Function;
use fabricast_search::export::nccl_tuner::{Buffers, Lookup, Table, TunerRow};

/// Properties of a call by which rows of a tuner table are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableQuery {
    /// Collective of the call.
    pub function: Function,
    /// Size of the larger buffer in bytes; for grouped calls of one kind, the sum of their sizes.
    pub bytes: u64,
    /// Number of calls of this collective in the group.
    pub operations: u32,
    /// Registration of the call's buffers.
    pub buffers: Buffers,
}

/// Rows of a table for one communicator. For each row, flags record the messages that were logged.
#[derive(Debug, Default)]
pub struct CommunicatorTable {
    table: Table,
    lookup: Lookup,
    logged: Box<[AtomicU8]>,
}

/// Line number of a row as text for log messages, ` (line 7)`; empty if the line is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineNumber(u32);

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " (line {})", self.0) }
    }
}

impl CommunicatorTable {
    /// Selects the rows of a table for a communicator.
    #[must_use]
    pub fn new(table: Table, nodes: u32, ranks: u32) -> Self {
        // A table that was not read from a CSV file has no line numbers.
        let lines = table.lines.into_iter().chain(std::iter::repeat(0));
        let rows = table.rows.into_iter().zip(lines).filter(|(row, _)| row.matches(nodes, ranks));
        let (rows, lines): (Vec<TunerRow>, Vec<u32>) = rows.unzip();
        let table = Table { rows, lines, ..Table::default() };
        let logged = table.rows.iter().map(|_| AtomicU8::new(0)).collect();
        Self { lookup: Lookup::new(&table, nodes, ranks), logged, table }
    }

    /// Number of rows that apply to the communicator.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.rows.len()
    }

    /// Rows that match a call, with their indices, in the table's order.
    pub fn matching_rows(&self, query: TableQuery) -> impl Iterator<Item = (usize, &TunerRow)> {
        let TableQuery { function, bytes, operations, buffers } = query;
        let first = self.lookup.find(function, bytes, operations, buffers).map(|answer| answer.row as usize);
        let fits = move |row: &TunerRow| {
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

    /// Line number of a row in the table's file.
    #[must_use]
    pub fn line_number(&self, row: usize) -> LineNumber {
        LineNumber(self.table.lines.get(row).copied().unwrap_or(0))
    }

    /// Returns true if a message about a row has not been logged before. `event` is the bit of the message.
    pub fn mark_logged(&self, row: usize, event: u8) -> bool {
        self.logged.get(row).is_some_and(|logged| {
            // In most calls the message was already logged. A load is then cheaper than modifying a cache line that
            // threads share.
            logged.load(Ordering::Relaxed) & event == 0 && logged.fetch_or(event, Ordering::Relaxed) & event == 0
        })
    }
}
