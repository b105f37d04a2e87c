//! What a communicator's plugin knows, and how it answers.
//!
//! NCCL asks with a table of costs, µs by algorithm and protocol, in which what it cannot do is negative; it then takes the cheapest
//! (`topoGetAlgoInfo` of `src/enqueue.cc`). A choice is made by setting its cost to zero, as NCCL's example plugin does it.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU8, Ordering};

use fabricast_planner::export::nccl_tuner::{Buffers, Row};
use fabricast_planner::library::nccl::{Algo, Function};

use crate::abi::Logger;
use crate::choices::{Choices, Wanted};
use crate::log::Log;
use crate::source::Source;

/// A way that NCCL estimates to take so many times the fastest is one that it means to keep for the last resort, and is not taken:
/// of types of 8 bits it multiplies the cost of rings of more than 8 ranks by 1024, since they lose precision
/// (`updateCollCostTable` of `src/enqueue.cc`), and does not tell the type. Between ways of moving the same bytes its
/// estimates differ by far less.
pub const LAST_RESORT: f32 = 64.0;

/// Bits of what was told of a row.
const TAKEN: u8 = 1;
const IMPOSSIBLE: u8 = 2;
const LAST: u8 = 4;

/// A call, in NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// `ncclFunc_t`.
    pub function: i32,
    /// Bytes of the larger buffer; of a group's calls of one kind their sum.
    pub bytes: u64,
    /// Calls of one kind in the group.
    pub operations: i32,
    /// Whether buffers are registered, or calls captured, whose buffers will be: not zero.
    pub registered: i32,
}

/// NCCL's table of costs.
#[derive(Debug)]
pub struct Costs<'a> {
    /// By algorithm, then protocol.
    pub cells: &'a mut [f32],
    /// How many protocols there are.
    pub protocols: usize,
}

/// Whether a way can be chosen.
enum Cell<'a> {
    Possible(&'a mut f32),
    LastResort,
    Impossible,
}

impl Costs<'_> {
    fn cell(&mut self, algorithm: usize, protocol: usize) -> Cell<'_> {
        // What is not possible is -1, `NCCL_ALGO_PROTO_IGNORE`; NCCL takes no other negative either.
        let cheapest = self.cells.iter().copied().filter(|&cost| cost >= 0.0).fold(f32::INFINITY, f32::min);
        let at = algorithm * self.protocols + protocol;
        match self.cells.get_mut(at).filter(|_| protocol < self.protocols) {
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

/// The plugin of one communicator. Threads may ask at once.
#[derive(Debug)]
pub struct Context {
    log: Log,
    choices: Choices,
    /// Functions, by bit, of which it was told that the table says nothing of a size.
    silent: AtomicU8,
}

impl Context {
    /// By the table that the environment names. Whatever is wrong with it is told, and nothing is chosen then.
    #[must_use]
    pub fn of_environment(ranks: usize, nodes: usize, logger: Option<Logger>) -> Self {
        let log = Log::to(logger);
        let choices = Source::of_environment().map_or_else(
            || {
                log.start(format_args!("{} names no table: NCCL chooses", Source::VARIABLES.join(" or ")));
                Choices::default()
            },
            |source| source.choices(ranks, nodes, log),
        );
        Self::new(choices, log)
    }

    /// By this table.
    #[must_use]
    pub fn new(choices: Choices, log: Log) -> Self {
        Self { log, choices, silent: AtomicU8::new(0) }
    }

    /// Makes the way that the table names the cheapest, and gives its channels, if NCCL is to take so many; changes nothing where
    /// the table names none that NCCL could take. Allocates nothing, locks nothing.
    pub fn answer(&self, asked: Asked, costs: &mut Costs<'_>) -> Option<NonZeroU16> {
        if self.choices.rows() == 0 {
            return None;
        }
        let function = usize::try_from(asked.function).ok().and_then(|number| Function::ALL.get(number)).copied()?;
        let bytes = asked.bytes;
        let buffers = if asked.registered == 0 { Buffers::Plain } else { Buffers::Registered };
        // A negative number is none that a row could name.
        let operations = u32::try_from(asked.operations).unwrap_or(u32::MAX);
        let mut spoken = false;
        for (place, row) in self.choices.of(Wanted { function, bytes, operations, buffers }) {
            spoken = true;
            match costs.cell(row.algo as usize, row.proto as usize) {
                Cell::Possible(cost) => {
                    *cost = 0.0;
                    let channels = channels(row);
                    if self.choices.is_news(place, TAKEN) {
                        self.taken(place, row, bytes, channels);
                    }
                    return channels;
                }
                Cell::LastResort => self.refused(place, LAST, row, bytes, "NCCL keeps it for the last resort"),
                Cell::Impossible => self.refused(place, IMPOSSIBLE, row, bytes, "NCCL cannot here"),
            }
        }
        if !spoken {
            self.silent_of(function, bytes);
        }
        None
    }

    fn taken(&self, place: usize, row: &Row, bytes: u64, channels: Option<NonZeroU16>) {
        let (Row { function, algo, proto, .. }, line) = (row, self.choices.place(place));
        match channels {
            Some(channels) => self
                .log
                .choice(format_args!("{function} of {bytes} bytes: {algo} {proto} on {channels} channels{line}")),
            None => self
                .log
                .choice(format_args!("{function} of {bytes} bytes: {algo} {proto}, channels as NCCL likes{line}")),
        }
    }

    fn refused(&self, place: usize, what: u8, row: &Row, bytes: u64, why: &str) {
        if self.choices.is_news(place, what) {
            let (Row { function, algo, proto, .. }, line) = (row, self.choices.place(place));
            self.log.choice(format_args!("{function} of {bytes} bytes: not {algo} {proto}{line}: {why}"));
        }
    }

    fn silent_of(&self, function: Function, bytes: u64) {
        let bit = 1_u8 << (function as u8);
        if self.silent.load(Ordering::Relaxed) & bit == 0 && self.silent.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.log.choice(format_args!("{function} of {bytes} bytes: the table has no row; NCCL chooses"));
        }
    }
}

/// How many channels NCCL is told. Reductions in the network run on as many as they are told, also on such as there are none of
/// (`scheduleCollTasksToPlan` of `src/enqueue.cc`), so of these it is told nothing; of others NCCL takes as many as it has.
fn channels(row: &Row) -> Option<NonZeroU16> {
    let in_network = matches!(row.algo, Algo::CollNetDirect | Algo::CollNetChain);
    row.channels.filter(|_| !in_network)
}
