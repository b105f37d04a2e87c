//! Layout of a rank's arena (its memory for messages and flags), and kernel parameters.
//!
//! ```text
//! counters   number of calls so far, a word per block: a replayed graph continues the count
//! ready      the last call that each rank is known to have entered
//! ticks      the last flush of each rank, per block
//! slots      for calls of even numbers, then for odd ones
//! ```
//!
//! Several kernels may run on the arenas of a [`SharedArena`].

use super::body::Operand;
use super::program::UserChunk;
use super::shared_arena::SharedArena;
use super::{Alignment, BufferExtent, GridShape, Kernel, KernelError, UserBuffer};

/// Maximum size in bytes of kernel parameters that every driver supports (CUDA C Programming Guide, kernel parameters).
const MAX_PARAMETER_BYTES: u64 = 4096;

/// Number of parameters in addition to the arenas of the ranks and the operands.
const FIXED_PARAMETERS: u64 = 14;

/// Layout of a rank's arena: byte offsets from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    pub(super) ready: u64,
    pub(super) ticks: u64,
    pub(super) slots: u64,
    /// Distance from the slots of even calls to those of odd calls.
    pub(super) slot_bytes: u64,
    /// Number of call counters.
    pub(super) counters: u64,
    /// Distance from the flush counters of a call to those of the next call.
    pub(super) ticks_per_call: u64,
    /// Size of the arena in bytes. The arena must be zeroed before the first call.
    pub bytes: u64,
}

/// Buffer addresses of one rank, valid on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Device address of the input buffer.
    pub input: u64,
    /// Device address of the output buffer.
    pub output: u64,
    /// Device address of the arena.
    pub arena: u64,
}

/// Kernel parameters for waits with a time limit, and the address of the operand table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitMonitor {
    /// Device address of the records of waiting blocks, with four 32-bit words per block of the rank.
    pub records: u64,
    /// Time limit of a wait in nanoseconds. A wait that exceeds the limit is recorded and ended.
    pub time_limit_ns: u64,
    /// Address of the operand table, if the operands are not kernel parameters; otherwise unused.
    pub table: u64,
}

/// 64-bit kernel parameter before the addresses of buffers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelParameter {
    /// Number that depends on the kernel only.
    Number(u64),
    /// Address in the input buffer of a rank.
    Input {
        /// Rank that owns the buffer.
        rank: u32,
        /// Byte offset from the start of the buffer.
        offset: u64,
    },
    /// Address in the output buffer of a rank.
    Output {
        /// Rank that owns the buffer.
        rank: u32,
        /// Byte offset from the start of the buffer.
        offset: u64,
    },
    /// Address in the arena of a rank.
    Arena {
        /// Rank that owns the arena.
        rank: u32,
        /// Byte offset from the start of the arena.
        offset: u64,
    },
    /// [`WaitMonitor::table`].
    Table,
    /// [`WaitMonitor::records`].
    Records,
    /// [`WaitMonitor::time_limit_ns`].
    TimeLimit,
}

impl KernelParameter {
    /// Returns the value of the parameter.
    #[must_use]
    pub fn value(self, addresses: &[Addresses], watch: WaitMonitor) -> u64 {
        let buffers = |rank: u32| addresses.get(rank as usize).copied().unwrap_or_default();
        match self {
            Self::Number(number) => number,
            Self::Input { rank, offset } => buffers(rank).input.wrapping_add(offset),
            Self::Output { rank, offset } => buffers(rank).output.wrapping_add(offset),
            Self::Arena { rank, offset } => buffers(rank).arena.wrapping_add(offset),
            Self::Table => watch.table,
            Self::Records => watch.records,
            Self::TimeLimit => watch.time_limit_ns,
        }
    }
}

impl Kernel {
    /// Returns the layout of a rank's arena that only this kernel uses, which is equal for all ranks.
    #[must_use]
    pub fn arena(&self, shape: GridShape) -> Arena {
        let (blocks, ranks) = (u64::from(self.blocks(shape)), u64::from(self.ranks()));
        let up = |bytes: u64| bytes.next_multiple_of(256);
        let ready = up(blocks * 8);
        let ticks = ready + up(ranks * 8);
        let slots = ticks + up(blocks * ranks * 8);
        let slot_bytes = up(self.slot_bytes);
        let ticks_per_call = self.ticks_per_call(shape);
        Arena { ready, ticks, slots, slot_bytes, counters: blocks, ticks_per_call, bytes: slots + 2 * slot_bytes }
    }

    /// Returns the layout of a rank's arena that this kernel shares with others. The kernel must
    /// [wait for all ranks](Kernel::wait_for_all_ranks).
    ///
    /// # Errors
    /// [`KernelError::TooLarge`]: the kernel has more blocks or larger messages than the arena has space for.
    pub fn arena_in(&self, shared: &SharedArena, shape: GridShape) -> Result<Arena, KernelError> {
        shared.layout(self.carrier, self.blocks(shape), self.slot_bytes, self.ticks_per_call(shape))
    }

    /// Number of flush counter values that a call may use.
    fn ticks_per_call(&self, shape: GridShape) -> u64 {
        self.items(shape) * u64::from(self.flushes)
    }

    /// Number of 64-bit table entries that are passed as kernel parameters; 0 if the table exceeds the parameter limit
    /// and is in memory.
    pub(super) fn embedded_rows(&self) -> u64 {
        let rows = (0..self.ranks()).map(|rank| self.row_entries(rank)).max().unwrap_or(0);
        let fixed = u64::from(self.ranks()) + FIXED_PARAMETERS;
        if (rows + fixed) * 8 <= MAX_PARAMETER_BYTES { rows.max(1) } else { 0 }
    }

    fn row_entries(&self, rank: u32) -> u64 {
        let operands: usize = self.rounds.iter().map(|round| 2 + round.rows[rank as usize].1.len()).sum();
        u64::from(self.header.channels.max(1)) + operands as u64
    }

    /// Returns true if any rank writes to the output of another rank, which must then know its address.
    #[must_use]
    pub fn writes_peer_outputs(&self) -> bool {
        let rows = self.rounds.iter().flat_map(|round| (0u32..).zip(&round.rows));
        let mut operands = rows.flat_map(|(owner, (_, operands))| operands.iter().map(move |operand| (owner, operand)));
        operands.any(
            |(owner, operand)| matches!(*operand, Operand::User { rank, place: UserChunk::Output(_) } if rank != owner),
        )
    }

    /// Alignment of the caller's chunks. The result is [`Alignment::Vectors`] if, at these addresses, all chunks begin
    /// at multiples of 16 bytes.
    #[must_use]
    pub fn alignment(&self, addresses: &[Addresses]) -> Alignment {
        let ranks = addresses.len() as u32;
        let is_aligned = (0..ranks).all(|rank| {
            self.rounds.iter().flat_map(|round| &round.rows[rank as usize].1).all(|operand| match *operand {
                Operand::User { rank, place } => {
                    self.user(rank, place).value(addresses, WaitMonitor::default()).is_multiple_of(16)
                }
                _ => true,
            })
        });
        if is_aligned { Alignment::Vectors } else { Alignment::Bytes }
    }

    fn user(&self, rank: u32, place: UserChunk) -> KernelParameter {
        let offset = |buffer: UserBuffer, chunk: u32| {
            self.cut.start(chunk).wrapping_sub(BufferExtent::new(&self.header, rank, buffer).start)
        };
        match place {
            UserChunk::Input(chunk) => KernelParameter::Input { rank, offset: offset(UserBuffer::Input, chunk) },
            UserChunk::Output(chunk) => KernelParameter::Output { rank, offset: offset(UserBuffer::Output, chunk) },
        }
    }

    /// Operand table of a rank: for each channel the begin and end index of its rows, then the rows. A row contains the
    /// index of its body with the number of operands, the number of words, and the operands.
    fn operand_table(&self, rank: u32, arena: &Arena) -> Vec<KernelParameter> {
        let channels = usize::from(self.header.channels.max(1));
        let mut table = vec![KernelParameter::Number(0); channels];
        for channel in 0..channels {
            let begin = table.len() as u64;
            for round in self.rounds.iter().filter(|round| usize::from(round.channel) == channel) {
                let Some((number, operands)) = round.rows.get(rank as usize) else { continue };
                table.push(KernelParameter::Number(u64::from(*number) | (operands.len() as u64) << 32));
                table.push(KernelParameter::Number(round.words));
                table.extend(operands.iter().map(|operand| match *operand {
                    Operand::User { rank, place } => self.user(rank, place),
                    Operand::Bytes { chunk: place } => KernelParameter::Number(self.bytes(place)),
                    Operand::Slot { message } => KernelParameter::Arena {
                        rank: self.receivers[message as usize],
                        offset: arena.slots + self.slots[message as usize].0,
                    },
                    Operand::Words { message } => KernelParameter::Number(self.slots[message as usize].1),
                    Operand::Peer { rank } => KernelParameter::Number(rank.into()),
                    Operand::Flushed { rank, flush } => {
                        KernelParameter::Number(u64::from(rank) | u64::from(flush) << 32)
                    }
                }));
            }
            table[channel] = KernelParameter::Number(begin | (table.len() as u64) << 32);
        }
        table
    }

    /// Returns the parameters of a rank's kernel on an arena, in the order in which the kernel reads them. If the
    /// operands exceed the parameter limit, also returns the table that must be stored at [`KernelParameter::Table`].
    #[must_use]
    pub fn unresolved_parameters(
        &self,
        rank: u32,
        shape: GridShape,
        arena: &Arena,
    ) -> (Vec<KernelParameter>, Option<Vec<KernelParameter>>) {
        let set = |sets: &[u64]| sets.get(rank as usize).copied().unwrap_or(0);
        let mut all: Vec<KernelParameter> =
            (0..self.ranks()).map(|rank| KernelParameter::Arena { rank, offset: 0 }).collect();
        all.extend([KernelParameter::Table, KernelParameter::Records, KernelParameter::TimeLimit]);
        let numbers = [
            set(&self.notify_on_entry),
            set(&self.wait_before_start),
            set(&self.wait_before_exit),
            rank.into(),
            arena.ready,
            arena.ticks,
            arena.slot_bytes,
            arena.ticks_per_call,
            arena.counters,
            shape.split.into(),
            shape.tiles_per_phase.max(1).into(),
        ];
        all.extend(numbers.map(KernelParameter::Number));
        let mut table = self.operand_table(rank, arena);
        let embedded = self.embedded_rows();
        if embedded == 0 {
            all.push(KernelParameter::Number(0));
            return (all, Some(table));
        }
        table.resize(embedded as usize, KernelParameter::Number(0));
        all.extend(table);
        (all, None)
    }

    /// Returns the parameters of a rank's kernel on an arena of its own, in the order in which the kernel reads them. If
    /// the operands exceed the parameter limit, also returns the table that must be stored at `watch.table`.
    #[must_use]
    pub fn parameters(
        &self,
        rank: u32,
        shape: GridShape,
        addresses: &[Addresses],
        watch: WaitMonitor,
    ) -> (Vec<u64>, Option<Vec<u64>>) {
        let (all, table) = self.unresolved_parameters(rank, shape, &self.arena(shape));
        let resolve =
            |list: Vec<KernelParameter>| list.into_iter().map(|parameter| parameter.value(addresses, watch)).collect();
        (resolve(all), table.map(resolve))
    }

    /// Describes a wait for error messages. `index` is the index in the rank's table that the kernel reports for it.
    #[must_use]
    pub fn describe_wait(&self, rank: u32, index: u32) -> String {
        let mut before = u32::from(self.header.channels.max(1));
        for channel in 0..self.header.channels.max(1) {
            for round in self.rounds.iter().filter(|round| round.channel == channel) {
                let Some((_, operands)) = round.rows.get(rank as usize) else { continue };
                let operand = index.checked_sub(before + 2).and_then(|i| operands.get(i as usize));
                before += 2 + operands.len() as u32;
                match operand {
                    Some(Operand::Slot { message }) => {
                        let from = self.senders.get(*message as usize).copied().unwrap_or_default();
                        let operation = self.operations.get(*message as usize).copied().unwrap_or_default();
                        return format!("waits for operation {operation} of rank {from}");
                    }
                    Some(Operand::Flushed { rank, flush }) => {
                        return format!("waits for rank {rank} to have written all of its phase {flush}");
                    }
                    _ => {}
                }
            }
        }
        format!("waits for rank {index} to enter")
    }

    /// Number of 64-bit entries of the table at `watch.table`; 0 if the operands are kernel parameters.
    #[must_use]
    pub fn table_entries(&self) -> u64 {
        let max_entries = (0..self.ranks()).map(|rank| self.row_entries(rank)).max().unwrap_or(0);
        if self.embedded_rows() == 0 { max_entries } else { 0 }
    }
}
