//! Schedule of each rank as a sequence of steps with puts into peers' memory and signals, for execution without a
//! generated kernel, for example by a stream.
//!
//! A message is written directly to its destination if the receiver neither reads nor writes that memory before the
//! message is used, and to a slot otherwise. A rank may send after the receiver has entered the same call, because then
//! the slots of the previous call have been read, and the caller's output may be overwritten.

use rustc_hash::FxHashMap;

use fabricast_sim::schedule::{DataType, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::Bytes;

use super::chunk_layout::ChunkLayout;
use super::local_operations::{Cell, CellMemory, MoveKind, Moves};
use super::{KernelError, UserBuffer};

/// A location in a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In a buffer of the caller: offset of the first byte, in the byte numbering of the call.
    User(UserBuffer, Bytes),
    /// In the memory for messages, which peers write: offset in bytes.
    Slot(Bytes),
    /// In the scratch memory of the rank: offset in bytes.
    Scratch(Bytes),
}

/// Step of a rank in the execution of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes to a peer's memory and sets the message's signal there.
    Send {
        /// Index of the message, and of its signal at the receiver.
        message: u32,
        /// Rank of the receiver.
        to: u32,
        /// Source in the sender's memory.
        from: Location,
        /// Destination in the receiver's memory.
        destination: Location,
        /// Length of the message in bytes.
        bytes: Bytes,
    },
    /// Waits until a message has arrived, as its signal indicates.
    Await {
        /// Index of the message.
        message: u32,
        /// Rank of the sender.
        from: u32,
        /// Length of the message in bytes.
        bytes: Bytes,
    },
    /// Copies within the memory of the rank.
    Copy {
        /// Source of the copy.
        from: Location,
        /// Destination of the copy.
        to: Location,
        /// Number of bytes to copy.
        bytes: Bytes,
    },
    /// Reduces `left` and `right` into `to`.
    Reduce {
        /// First operand. May be at the same location as `to`.
        left: Location,
        /// Second operand of the reduction.
        right: Location,
        /// Destination of the result.
        to: Location,
        /// Length of an operand in bytes.
        bytes: Bytes,
    },
}

/// Steps of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Steps of every rank, in execution order.
    pub by_rank: Vec<Vec<Step>>,
    /// Number of messages of all ranks. Each message has one signal at its receiver.
    pub messages: u32,
    /// Size in bytes of a rank's memory for messages, the maximum over all ranks.
    pub slots: Bytes,
    /// Size in bytes of a rank's scratch memory, the maximum over all ranks.
    pub scratch: Bytes,
}

/// Alignment of slots and scratch chunks in bytes.
const ALIGNMENT: u64 = 256;

impl Steps {
    /// Verifies a schedule and converts it to steps.
    ///
    /// # Errors
    /// The schedule fails verification, exceeds a limit of kernels, or does not consist of whole elements.
    pub fn new(schedule: &Schedule, dtype: DataType) -> Result<Self, KernelError> {
        verify(schedule, &VerifyOptions::default())?;
        let header = schedule.header();
        let cut = ChunkLayout::new(header, dtype.size())?;
        let moves = Moves::new(schedule)?;
        let ranks = header.call.ranks as usize;
        let mut writer = StepWriter::new(&moves, &cut, ranks);
        for number in 0..moves.moves.len() {
            writer.write(number);
        }
        Ok(writer.steps)
    }

    /// Returns the ranks that a rank sends to, in ascending order.
    #[must_use]
    pub fn receivers(&self, rank: usize) -> Vec<usize> {
        self.peers(rank, |step| match step {
            Step::Send { to, .. } => Some(*to),
            _ => None,
        })
    }

    /// Returns the ranks that a rank receives from, in ascending order.
    #[must_use]
    pub fn senders(&self, rank: usize) -> Vec<usize> {
        self.peers(rank, |step| match step {
            Step::Await { from, .. } => Some(*from),
            _ => None,
        })
    }

    fn peers(&self, rank: usize, peer_of: impl Fn(&Step) -> Option<u32>) -> Vec<usize> {
        let steps = self.by_rank.get(rank).map(Vec::as_slice).unwrap_or_default();
        let mut peers: Vec<usize> = steps.iter().filter_map(peer_of).map(|rank| rank as usize).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

struct StepWriter<'a> {
    moves: &'a Moves,
    chunk_layout: &'a ChunkLayout,
    steps: Steps,
    /// Destination of each message: a slot, or the caller's output.
    destinations: Vec<Location>,
    /// Number of bytes that each scratch cell holds. The size of the caller's chunks follows from the call.
    scratch_bytes: FxHashMap<Cell, u64>,
    scratch: FxHashMap<Cell, u64>,
    filled: Vec<u64>,
}

impl<'a> StepWriter<'a> {
    fn new(moves: &'a Moves, cut: &'a ChunkLayout, ranks: usize) -> Self {
        let steps = Steps {
            by_rank: vec![Vec::new(); ranks],
            messages: moves.messages.len() as u32,
            slots: Bytes(0),
            scratch: Bytes(0),
        };
        let mut writer = Self {
            moves,
            chunk_layout: cut,
            steps,
            destinations: vec![Location::Slot(Bytes(0)); moves.messages.len()],
            scratch_bytes: FxHashMap::default(),
            scratch: FxHashMap::default(),
            filled: vec![0; ranks],
        };
        writer.place_messages(ranks);
        writer
    }

    /// Selects the destination of each message: the receiver's output or a slot.
    fn place_messages(&mut self, ranks: usize) {
        let mut touched = rustc_hash::FxHashSet::default();
        let mut slots = vec![0u64; ranks];
        for operation in &self.moves.moves {
            let dst = operation.kind.written();
            if let (Some(message), Some(dst)) = (operation.kind.message(), dst) {
                let direct = match (operation.kind, self.moves.memory(dst).1) {
                    (MoveKind::Receive { .. }, CellMemory::Output(chunk)) if !touched.contains(&dst) => {
                        Some(Location::User(UserBuffer::Output, Bytes(self.chunk_layout.start(chunk))))
                    }
                    _ => None,
                };
                let rank = operation.rank as usize;
                self.destinations[message as usize] = direct.unwrap_or(Location::Slot(Bytes(slots[rank])));
                if direct.is_none() {
                    slots[rank] += self.message_bytes(message).next_multiple_of(ALIGNMENT);
                }
            }
            touched.extend(operation.kind.read());
            touched.extend(dst);
        }
        self.steps.slots = Bytes(slots.into_iter().max().unwrap_or(0));
    }

    fn message_bytes(&self, message: u32) -> u64 {
        self.moves.messages.get(message as usize).map_or(0, |message| self.chunk_layout.len(message.data))
    }

    fn bytes(&self, cell: Cell) -> u64 {
        match self.moves.memory(cell).1 {
            CellMemory::Input(chunk) | CellMemory::Output(chunk) => self.chunk_layout.len(chunk),
            CellMemory::Scratch => self.scratch_bytes.get(&cell).copied().unwrap_or(0),
        }
    }

    /// Returns the location of a cell. Scratch cells are allocated on first use.
    fn spot(&mut self, cell: Cell, bytes: u64) -> Location {
        let (rank, memory) = self.moves.memory(cell);
        match memory {
            CellMemory::Input(chunk) => Location::User(UserBuffer::Input, Bytes(self.chunk_layout.start(chunk))),
            CellMemory::Output(chunk) => Location::User(UserBuffer::Output, Bytes(self.chunk_layout.start(chunk))),
            CellMemory::Scratch => {
                // Later contents may be longer by at most one vector, because the chunks of a call differ by at most
                // one vector.
                let room = (bytes + ALIGNMENT).next_multiple_of(ALIGNMENT);
                let filled = &mut self.filled[rank as usize];
                let offset = *self.scratch.entry(cell).or_insert_with(|| {
                    *filled += room;
                    *filled - room
                });
                self.steps.scratch = self.steps.scratch.max(Bytes(*filled));
                Location::Scratch(Bytes(offset))
            }
        }
    }

    fn write(&mut self, number: usize) {
        let operation = self.moves.moves[number];
        let rank = operation.rank as usize;
        match operation.kind {
            MoveKind::Send { message, src } => {
                let bytes = self.message_bytes(message);
                let from = self.spot(src, bytes);
                let (to, at) = (self.moves.messages[message as usize].to, self.destinations[message as usize]);
                self.push(rank, Step::Send { message, to, from, destination: at, bytes: Bytes(bytes) });
            }
            MoveKind::Copy { src, dst } => {
                let bytes = self.bytes(src);
                self.copy(rank, src, dst, bytes);
            }
            MoveKind::Reduce { src, dst } => {
                let bytes = self.bytes(src);
                let (left, right) = (self.spot(dst, bytes), self.spot(src, bytes));
                self.push(rank, Step::Reduce { left, right, to: left, bytes: Bytes(bytes) });
            }
            MoveKind::Receive { message, dst } => {
                let bytes = self.arrive(rank, message);
                let source = self.destinations[message as usize];
                let to = self.spot(dst, bytes);
                self.scratch_bytes.insert(dst, bytes);
                if source != to {
                    self.push(rank, Step::Copy { from: source, to, bytes: Bytes(bytes) });
                }
            }
            MoveKind::ReceiveReduce { message, dst } => {
                let bytes = self.arrive(rank, message);
                let left = self.spot(dst, bytes);
                let right = self.destinations[message as usize];
                self.push(rank, Step::Reduce { left, right, to: left, bytes: Bytes(bytes) });
            }
            MoveKind::ReceiveReduceInput { message, input, dst } => {
                let bytes = self.arrive(rank, message);
                let (left, to) = (self.spot(input, bytes), self.spot(dst, bytes));
                let right = self.destinations[message as usize];
                self.scratch_bytes.insert(dst, bytes);
                self.push(rank, Step::Reduce { left, right, to, bytes: Bytes(bytes) });
            }
        }
    }

    fn copy(&mut self, rank: usize, src: Cell, dst: Cell, bytes: u64) {
        let (from, to) = (self.spot(src, bytes), self.spot(dst, bytes));
        self.scratch_bytes.insert(dst, bytes);
        self.push(rank, Step::Copy { from, to, bytes: Bytes(bytes) });
    }

    fn arrive(&mut self, rank: usize, message: u32) -> u64 {
        let bytes = self.message_bytes(message);
        let from = self.moves.messages[message as usize].from;
        self.steps.by_rank[rank].push(Step::Await { message, from, bytes: Bytes(bytes) });
        bytes
    }

    /// Adds a step. Empty copies and reductions are omitted; empty messages are still sent.
    fn push(&mut self, rank: usize, step: Step) {
        let is_empty = matches!(step, Step::Copy { bytes: Bytes(0), .. } | Step::Reduce { bytes: Bytes(0), .. });
        if !is_empty {
            self.steps.by_rank[rank].push(step);
        }
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
