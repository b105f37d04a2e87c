//! CSV table of NCCL's example tuner plugin, which fabricast's own tuner plugin also reads.
//!
//! The format is that of NCCL 2.30 `plugins/tuner/example/{plugin.c,README.md}` (Apache-2.0): a row is
//! `collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]`. Both ends of
//! a range are inclusive, −1 matches anything, `#` starts a comment, lines have at most 255 bytes, and the first
//! matching row wins. Sizes are as in nccl-tests: for all_gather and reduce_scatter, those of the whole buffer.
//!
//! The example plugin reads any unknown word as allreduce, ring or simple, and uses one channel if no row matches or
//! `channels` is −1. This reader rejects unknown words with their source location. The writer covers every size and
//! gives every row a number of channels.

mod findings;
mod from_plan;
mod lookup;
pub(in crate::export) mod names;
mod plan_findings;
mod read;
mod read_any;
mod write;

use std::num::NonZeroU16;

use fabricast_topologies::Bytes;

use fabricast_libraries::nccl::{Algo, Function, Proto};
pub(in crate::export) use findings::row_findings;
pub use findings::{CheckContext, findings};
pub use from_plan::ConvertedTable;
pub(in crate::export) use from_plan::can_express;
pub use lookup::{Lookup, TableEntry};
pub use plan_findings::plan_findings;
pub use read::{read, read_as_example};
pub use read_any::read_table_or_plan;
pub use write::write;

/// Names of the CSV columns, in order; the last two may be omitted.
pub const COLUMNS: [&str; 10] = [
    "collective_type",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
];

/// Maximum length of a line that the example plugin reads, in bytes (the size of its buffer without the terminating
/// NUL).
pub const MAX_LINE_BYTES: usize = 255;

/// Buffers that a row matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffers {
    /// Any buffers (`regBuff` −1 or omitted).
    #[default]
    Any,
    /// Buffers that cannot be registered (`regBuff` 0).
    Plain,
    /// Buffers that can be registered (`regBuff` 1).
    Registered,
}

/// Row of a table: conditions on a call, and the strategy for matching calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunerRow {
    /// NCCL function (collective) that the row matches.
    pub function: Function,
    /// Smallest message size that the row matches, in bytes, inclusive.
    pub min_bytes: Bytes,
    /// Largest message size that the row matches, in bytes, inclusive.
    pub max_bytes: Bytes,
    /// Algorithm for matching calls.
    pub algo: Algo,
    /// Protocol for matching calls.
    pub proto: Proto,
    /// Number of channels for matching calls; `None` (−1) leaves it to the library.
    pub channels: Option<NonZeroU16>,
    /// Number of nodes of the communicator; `None` (−1) matches any.
    pub nodes: Option<u32>,
    /// Number of ranks of the communicator; `None` (−1) matches any.
    pub ranks: Option<u32>,
    /// Number of operations in NCCL's pipeline (`numPipeOps`); `None` (−1 or omitted) matches any.
    pub pipe_ops: Option<u32>,
    /// Kind of buffers that the row matches.
    pub buffers: Buffers,
}

/// Table file. The first row that matches a call wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Comment lines without their `#` and the space after it.
    pub comments: Vec<String>,
    /// Rows, in file order.
    pub rows: Vec<TunerRow>,
    /// Line of each row, from 1; empty for a table that was not read from a file.
    pub lines: Vec<u32>,
    /// Lines of rows whose algorithm or protocol is −1, which are read as the example plugin reads them (ring, simple).
    pub minus_one_lines: Vec<u32>,
}

impl TunerRow {
    /// Returns true if the row matches a communicator of `nodes` nodes and `ranks` ranks.
    #[must_use]
    pub fn matches(&self, nodes: u32, ranks: u32) -> bool {
        self.nodes.is_none_or(|required| required == nodes) && self.ranks.is_none_or(|required| required == ranks)
    }
}
