//! Layout of a rank's arena (its memory for messages and flags), and kernel parameters.
//!
//! ```text
//! counters   number of calls so far, a word per block: a replayed graph continues the count
//! ready      the last call that each rank is known to have entered
//! ticks      the last flush of each rank, per block
//! slots      for calls of even numbers, then for odd ones
//! ```

use super::body::Operand;
use super::program::UserChunk;
use super::{Alignment, BufferExtent, GridShape, Kernel, UserBuffer};

/// Maximum size in bytes of kernel parameters that every driver supports (CUDA C Programming Guide, kernel parameters).
const MAX_PARAMETER_BYTES: u64 = 4096;

/// Layout of a rank's arena: byte offsets from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    pub(super) ready: u64,
    pub(super) ticks: u64,
    pub(super) slots: u64,
    pub(super) slot_bytes: u64,
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

impl Kernel {
    /// Returns the layout of a rank's arena, which is equal for all ranks.
    #[must_use]
    pub fn arena(&self, shape: GridShape) -> Arena {
        let (blocks, ranks) = (u64::from(self.blocks(shape)), u64::from(self.ranks()));
        let up = |bytes: u64| bytes.next_multiple_of(256);
        let ready = up(blocks * 8);
        let ticks = ready + up(ranks * 8);
        let slots = ticks + up(blocks * ranks * 8);
        let slot_bytes = up(self.slot_bytes);
        Arena { ready, ticks, slots, slot_bytes, bytes: slots + 2 * slot_bytes }
    }

    /// Number of 64-bit table entries that are passed as kernel parameters; 0 if the table exceeds the parameter limit
    /// and is in memory.
    pub(super) fn embedded_rows(&self) -> u64 {
        let rows = (0..self.ranks()).map(|rank| self.row_entries(rank)).max().unwrap_or(0);
        let fixed = u64::from(self.ranks()) + 13;
        if (rows + fixed) * 8 <= MAX_PARAMETER_BYTES { rows.max(1) } else { 0 }
    }

    fn row_entries(&self, rank: u32) -> u64 {
        let operands: usize = self.rounds.iter().map(|round| 2 + round.rows[rank as usize].1.len()).sum();
        u64::from(self.header.channels.max(1)) + operands as u64
    }

    /// Alignment of the caller's chunks. The result is [`Alignment::Vectors`] if, at these addresses, all chunks begin
    /// at multiples of 16 bytes.
    #[must_use]
    pub fn alignment(&self, addresses: &[Addresses]) -> Alignment {
        let ranks = addresses.len() as u32;
        let is_aligned = (0..ranks).all(|rank| {
            self.rounds.iter().flat_map(|round| &round.rows[rank as usize].1).all(|operand| match *operand {
                Operand::User { rank, place } => self.user(rank, place, addresses).is_multiple_of(16),
                _ => true,
            })
        });
        if is_aligned { Alignment::Vectors } else { Alignment::Bytes }
    }

    fn user(&self, rank: u32, place: UserChunk, addresses: &[Addresses]) -> u64 {
        let buffers = addresses.get(rank as usize).copied().unwrap_or_default();
        let (base, buffer, chunk) = match place {
            UserChunk::Input(chunk) => (buffers.input, UserBuffer::Input, chunk),
            UserChunk::Output(chunk) => (buffers.output, UserBuffer::Output, chunk),
        };
        base + self.cut.start(chunk) - BufferExtent::new(&self.header, rank, buffer).start
    }

    /// Operand table of a rank: for each channel the begin and end index of its rows, then the rows. A row contains the
    /// index of its body with the number of operands, the number of words, and the operands.
    #[must_use]
    pub fn table(&self, rank: u32, shape: GridShape, addresses: &[Addresses]) -> Vec<u64> {
        let arena = self.arena(shape);
        let channels = usize::from(self.header.channels.max(1));
        let mut table = vec![0u64; channels];
        for channel in 0..channels {
            let begin = table.len() as u64;
            for round in self.rounds.iter().filter(|round| usize::from(round.channel) == channel) {
                let Some((number, operands)) = round.rows.get(rank as usize) else { continue };
                table.push(u64::from(*number) | (operands.len() as u64) << 32);
                table.push(round.words);
                table.extend(operands.iter().map(|operand| match *operand {
                    Operand::User { rank, place } => self.user(rank, place, addresses),
                    Operand::Bytes { chunk: place } => self.bytes(place),
                    Operand::Slot { message } => {
                        let receiver =
                            addresses.get(self.receivers[message as usize] as usize).copied().unwrap_or_default();
                        receiver.arena + arena.slots + self.slots[message as usize].0
                    }
                    Operand::Words { message } => self.slots[message as usize].1,
                    Operand::Peer { rank } => rank.into(),
                    Operand::Flushed { rank, flush } => u64::from(rank) | u64::from(flush) << 32,
                }));
            }
            table[channel] = begin | (table.len() as u64) << 32;
        }
        table
    }

    /// Returns the parameters of a rank's kernel, in the order in which the kernel reads them. If the operands exceed
    /// the parameter limit, also returns the table that must be stored at `watch.table`.
    #[must_use]
    pub fn parameters(
        &self,
        rank: u32,
        shape: GridShape,
        addresses: &[Addresses],
        watch: WaitMonitor,
    ) -> (Vec<u64>, Option<Vec<u64>>) {
        let set = |sets: &[u64]| sets.get(rank as usize).copied().unwrap_or(0);
        let mut all: Vec<u64> = addresses.iter().map(|rank_addresses| rank_addresses.arena).collect();
        let sets = [set(&self.notify_on_entry), set(&self.wait_before_start), set(&self.wait_before_exit)];
        all.extend([watch.table, watch.records, watch.time_limit_ns]);
        all.extend(sets);
        let arena = self.arena(shape);
        all.push(rank.into());
        all.extend([
            arena.ready,
            arena.ticks,
            arena.slot_bytes,
            self.items(shape),
            shape.split.into(),
            shape.tiles_per_phase.max(1).into(),
        ]);
        let mut table = self.table(rank, shape, addresses);
        let embedded = self.embedded_rows();
        if embedded == 0 {
            all.push(0);
            return (all, Some(table));
        }
        table.resize(embedded as usize, 0);
        all.extend(table);
        (all, None)
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
