//! Rules of NCCLX's built-in tuner (`NCCLX_TUNER_CONFIG_FILE`): CSV, or JSON in builds with folly.
//!
//! The formats are those of torchcomms `comms/ncclx/meta/tuner` (59426ba4, 2026-08-21; README.md, `CsvConfigParse.h`,
//! `JsonConfigParse.h`, `ConfigParse.h`, `Int64Range.cc`). A row is
//! `collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks[,chunkSize]`. The first matching rule wins, and
//! a call without a rule keeps NCCL's choice. `bytesPerRank` is the size of the call (of the whole buffer, for all_gather
//! and reduce_scatter too) divided by the number of ranks and rounded down. A wrong rule fails the initialisation of the
//! communicator, and so does a line with the names of the columns.

mod findings;
mod from_plan;
mod interval;
mod read;
mod write;

use std::num::NonZeroU16;

use fabricast_libraries::nccl::{Algo, Function, Proto};
use fabricast_topologies::Bytes;

use super::nccl_tuner::{Buffers, Table, TunerRow};
pub use findings::findings;
pub use from_plan::ConvertedRules;
pub use interval::Interval;
pub use read::{read_csv, read_json};
pub use write::write;

/// Names of the CSV columns, in order; the last may be omitted.
pub const COLUMNS: [&str; 8] =
    ["collective", "bytesPerRank", "algorithm", "protocol", "channels", "nNodes", "nLocalRanks", "chunkSize"];

/// Rule: conditions on a call, and the strategy for matching calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// NCCL function (collective) that the rule matches.
    pub function: Function,
    /// Message sizes divided by the number of ranks, in bytes.
    pub bytes_per_rank: Interval,
    /// Algorithm for matching calls.
    pub algo: Algo,
    /// Protocol for matching calls.
    pub proto: Proto,
    /// Number of channels for matching calls; `None` (−1 or omitted) leaves it to NCCL.
    pub channels: Option<NonZeroU16>,
    /// Numbers of nodes of the communicator.
    pub nodes: Interval,
    /// Numbers of ranks on a node.
    pub local_ranks: Interval,
    /// Chunk size in bytes; `None` (0 or omitted) leaves it to NCCL.
    pub chunk: Option<Bytes>,
}

/// Rules of a file. The first rule that matches a call wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Comment lines without their `#` and the space after it; JSON has none.
    pub comments: Vec<String>,
    /// Rules, in file order.
    pub rules: Vec<Rule>,
    /// Line of each rule, from 1; empty for rules that were not read from a file.
    pub lines: Vec<u32>,
}

impl Rules {
    /// Returns the rules that match a communicator, as a table with the sizes of whole calls.
    #[must_use]
    pub fn table(&self, nodes: u32, ranks: u32) -> Table {
        let local_ranks = ranks / nodes.max(1);
        let matching = |(_, rule): &(usize, &Rule)| {
            rule.nodes.contains(nodes.into()) && rule.local_ranks.contains(local_ranks.into())
        };
        let mut table = Table::default();
        for (index, rule) in self.rules.iter().enumerate().filter(matching) {
            // A rule for negative sizes only matches no call.
            let Some((min_bytes, max_bytes)) = rule.bytes_per_rank.multiple(ranks.max(1)) else { continue };
            table.rows.push(TunerRow {
                function: rule.function,
                min_bytes,
                max_bytes,
                algo: rule.algo,
                proto: rule.proto,
                channels: rule.channels,
                nodes: None,
                ranks: None,
                pipe_ops: None,
                buffers: Buffers::Any,
            });
            table.lines.extend(self.lines.get(index));
        }
        table
    }
}
