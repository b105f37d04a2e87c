//! State of the plugin for one communicator, and its answers.
//!
//! For each call, NCCL passes a table of costs in µs by algorithm and protocol, in which negative values mark
//! impossible combinations, and afterwards uses the cheapest one (`topoGetAlgoInfo` in `src/enqueue.cc`). The plugin
//! selects a combination by setting its cost to zero, as NCCL's example plugin does.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU8, Ordering};

use fabricast_libraries::nccl::{Algo, Function};
use fabricast_search::export::nccl_tuner::{Buffers, TunerRow};

use crate::abi::Logger;
use crate::choices::{CommunicatorTable, TableQuery};
use crate::log::Log;
use crate::source::Source;

/// Ratio of a combination's cost to the lowest cost from which the combination counts as NCCL's last resort and is not
/// selected. For 8-bit types, NCCL multiplies the cost of rings of more than 8 ranks by 1024, because they lose
/// precision (`updateCollCostTable` in `src/enqueue.cc`), and it does not pass the type to the plugin. All other cost
/// ratios are far smaller.
pub const LAST_RESORT: f32 = 64.0;

/// Bits of the messages that are logged once per row: the strategy was selected, is impossible for NCCL, or is NCCL's
/// last resort.
const SELECTED: u8 = 1;
const IMPOSSIBLE: u8 = 2;
const LAST: u8 = 4;

/// Properties of a call, in NCCL's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallQuery {
    /// Collective of the call: `ncclFunc_t`.
    pub function: i32,
    /// Size of the larger buffer in bytes; for grouped calls of one kind, the sum of their sizes.
    pub bytes: u64,
    /// Number of calls of this collective in the group.
    pub operations: i32,
    /// Nonzero if buffers are registered, or will be registered because the calls are captured in a graph.
    pub registered: i32,
}

/// NCCL's table of costs for a call.
#[derive(Debug)]
pub struct Costs<'a> {
    /// Costs in µs, indexed by algorithm × `protocols` + protocol.
    pub cells: &'a mut [f32],
    /// Number of protocols, the length of an algorithm's row in `cells`.
    pub protocols: usize,
}

/// Availability of a combination of algorithm and protocol.
enum Cell<'a> {
    Possible(&'a mut f32),
    LastResort,
    Impossible,
}

impl Costs<'_> {
    fn cell(&mut self, algorithm: usize, protocol: usize) -> Cell<'_> {
        // NCCL marks impossible combinations with the cost −1 (`NCCL_ALGO_PROTO_IGNORE`) and ignores all negative
        // costs.
        let cheapest = self.cells.iter().copied().filter(|&cost| cost >= 0.0).fold(f32::INFINITY, f32::min);
        let index = algorithm * self.protocols + protocol;
        match self.cells.get_mut(index).filter(|_| protocol < self.protocols) {
            Some(cost) if *cost >= 0.0 => {
                if cheapest > 0.0 && *cost / cheapest > LAST_RESORT {
                    Cell::LastResort
                } else {
                    Cell::Possible(cost)
                }
            }
            _ => Cell::Impossible,
        }
    }
}

/// Plugin state of one communicator. Several threads may use it concurrently.
#[derive(Debug)]
pub struct Context {
    log: Log,
    choices: CommunicatorTable,
    /// Functions for which a missing table entry has been logged, one bit each.
    missing_logged: AtomicU8,
}

impl Context {
    /// Creates the state from the table that the environment names. If the table is invalid, a warning is logged and no
    /// strategy is selected.
    #[must_use]
    pub fn from_environment(ranks: usize, nodes: usize, logger: Option<Logger>) -> Self {
        let log = Log::new(logger);
        let choices = Source::from_environment().map_or_else(
            || {
                log.start(format_args!("{} names no table: NCCL chooses", Source::VARIABLES.join(" or ")));
                CommunicatorTable::default()
            },
            |source| source.choices(ranks, nodes, log),
        );
        Self::new(choices, log)
    }

    /// Creates the state from the rows of a table.
    #[must_use]
    pub fn new(choices: CommunicatorTable, log: Log) -> Self {
        Self { log, choices, missing_logged: AtomicU8::new(0) }
    }

    /// Sets the cost of the table's strategy to zero and returns its number of channels, if the table states one.
    /// Leaves the costs unchanged if the table has no strategy that NCCL can run. Does not allocate or lock.
    pub fn answer(&self, query: CallQuery, costs: &mut Costs<'_>) -> Option<NonZeroU16> {
        if self.choices.rows() == 0 {
            return None;
        }
        let function = usize::try_from(query.function).ok().and_then(|number| Function::ALL.get(number)).copied()?;
        let bytes = query.bytes;
        let buffers = if query.registered == 0 { Buffers::Plain } else { Buffers::Registered };
        // A negative number is passed as a value that no row contains.
        let operations = u32::try_from(query.operations).unwrap_or(u32::MAX);
        let mut spoken = false;
        for (index, row) in self.choices.matching_rows(TableQuery { function, bytes, operations, buffers }) {
            spoken = true;
            match costs.cell(row.algo as usize, row.proto as usize) {
                Cell::Possible(cost) => {
                    *cost = 0.0;
                    let channels = channels(row);
                    if self.choices.mark_logged(index, SELECTED) {
                        self.log_selected(index, row, bytes, channels);
                    }
                    return channels;
                }
                Cell::LastResort => self.log_skipped(index, LAST, row, bytes, "NCCL uses it only as a last resort"),
                Cell::Impossible => self.log_skipped(index, IMPOSSIBLE, row, bytes, "NCCL cannot run it here"),
            }
        }
        if !spoken {
            self.log_missing(function, bytes);
        }
        None
    }

    fn log_selected(&self, index: usize, row: &TunerRow, bytes: u64, channels: Option<NonZeroU16>) {
        let (TunerRow { function, algo, proto, .. }, line) = (row, self.choices.line_number(index));
        match channels {
            Some(channels) => self
                .log
                .choice(format_args!("{function} of {bytes} bytes: {algo} {proto} on {channels} channels{line}")),
            None => self
                .log
                .choice(format_args!("{function} of {bytes} bytes: {algo} {proto}, channels selected by NCCL{line}")),
        }
    }

    fn log_skipped(&self, index: usize, event: u8, row: &TunerRow, bytes: u64, reason: &str) {
        if self.choices.mark_logged(index, event) {
            let (TunerRow { function, algo, proto, .. }, line) = (row, self.choices.line_number(index));
            self.log.choice(format_args!("{function} of {bytes} bytes: not {algo} {proto}{line}: {reason}"));
        }
    }

    fn log_missing(&self, function: Function, bytes: u64) {
        let bit = 1_u8 << (function as u8);
        if self.missing_logged.load(Ordering::Relaxed) & bit == 0
            && self.missing_logged.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.log.choice(format_args!("{function} of {bytes} bytes: the table has no row; NCCL chooses"));
        }
    }
}

/// Number of channels that is passed to NCCL; `None` leaves the number to NCCL. For in-network reductions, NCCL uses
/// the given number even if fewer channels exist (`scheduleCollTasksToPlan` in `src/enqueue.cc`), so none is passed.
/// For all others, NCCL limits it to the existing channels.
fn channels(row: &TunerRow) -> Option<NonZeroU16> {
    let in_network = matches!(row.algo, Algo::CollNetDirect | Algo::CollNetChain);
    row.channels.filter(|_| !in_network)
}
