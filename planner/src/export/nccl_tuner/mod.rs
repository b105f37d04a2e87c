//! The CSV that NCCL's example tuner plugin reads, and our own plugin too.
//!
//! Facts of the format are those of NCCL 2.30 `plugins/tuner/example/{plugin.c,README.md}` (Apache-2.0): a row is
//! `collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]`, both ends of a
//! range included, −1 for anything, `#` for a comment, lines of at most 255 bytes, and the first row that matches wins.
//! Sizes are nccl-tests': of all_gather and reduce_scatter those of the whole buffer.
//!
//! The example takes any unknown word for allreduce, ring or simple, and uses one channel where no row matches or where
//! `channels` is −1. The reader here refuses unknown words with their place, and the writer leaves no size without a row and no
//! row without channels.

mod either;
mod findings;
mod findings_of_plan;
mod from_plan;
mod lookup;
mod names;
mod read;
mod write;

use std::num::NonZeroU16;

use fabricast_topologies::Bytes;

use crate::library::nccl::{Algo, Function, Proto};
pub use either::read_either;
pub use findings::{Machine, findings};
pub use findings_of_plan::findings_of_plan;
pub use from_plan::FromPlan;
pub(in crate::export) use from_plan::says;
pub use lookup::{Answer, Lookup};
pub use read::{read, read_as_example};
pub use write::write;

/// The columns, in order; the last two may be left out.
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

/// The most bytes of a line that the example plugin reads at once (its buffer less the end of the string).
pub const LONGEST_LINE: usize = 255;

/// Which buffers a row is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffers {
    /// Any.
    #[default]
    Any,
    /// Those that cannot be registered (`regBuff` 0).
    Plain,
    /// Those that can (`regBuff` 1).
    Registered,
}

/// A row: what a call must be like, and what is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The collective.
    pub function: Function,
    /// Least size, included.
    pub min_bytes: Bytes,
    /// Greatest size, included.
    pub max_bytes: Bytes,
    /// The algorithm.
    pub algo: Algo,
    /// The protocol.
    pub proto: Proto,
    /// Channels; `None` (−1) leaves them to the library.
    pub channels: Option<NonZeroU16>,
    /// Nodes of the communicator; `None` (−1): any.
    pub nodes: Option<u32>,
    /// Ranks of the communicator; `None` (−1): any.
    pub ranks: Option<u32>,
    /// Operations in the pipeline; `None` (−1 or left out): any.
    pub pipe_ops: Option<u32>,
    /// Buffers.
    pub buffers: Buffers,
}

/// A file of rows, the first that matches being the one that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Comment lines without their `#` and the blank after it.
    pub comments: Vec<String>,
    /// The rows, in the file's order.
    pub rows: Vec<Row>,
    /// The line of each row, from 1; empty for a table that was not read.
    pub lines: Vec<u32>,
    /// Lines of rows whose algorithm or protocol is −1, read as the example plugin does.
    pub unnamed: Vec<u32>,
}

impl Row {
    /// Whether the row is for a communicator of so many nodes and ranks.
    #[must_use]
    pub fn is_for(&self, nodes: u32, ranks: u32) -> bool {
        self.nodes.is_none_or(|of| of == nodes) && self.ranks.is_none_or(|of| of == ranks)
    }
}
