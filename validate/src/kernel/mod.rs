//! Generation of CUDA kernels from schedules.
//!
//! ```text
//! moves      operations of a schedule as local operations and messages of each rank
//! rounds     independent pieces, grouped where ranks have equal roles
//! program    a rank's part of a round, with values in registers
//! phases     work of tiles between waits
//! exchange   placement of messages; ranks that must be known to have entered
//! body       programs without rank numbers: shared code, and rows of operands
//! text       CUDA source, after prelude.cu
//! cut        byte ranges of chunks
//! combine    kernels for steps
//! arena      a rank's memory for messages and flags, and kernel parameters
//! shared_arena  arenas of several kernels
//! shape      numbers of blocks, threads and words
//! steps      a schedule as ordered puts and waits, for execution without a kernel
//! ```
//!
//! No module depends on a specific algorithm, and none needs a GPU.

mod arena;
mod body;
mod chunk_layout;
mod combine;
mod copy_schedule;
mod element_codes;
mod exchange;
mod local_operations;
mod phases;
mod program;
mod rounds;
mod shape;
mod shared_arena;
mod steps;
#[cfg(test)]
mod tests;
mod text;

use fabricast_topologies::variants::variants;
use rustc_hash::FxHashMap;
use strum::{EnumCount, VariantArray};

use fabricast_sim::schedule::{BufferUse, Collective, DataType, Header, Protocol, ReduceOp, Schedule};
use fabricast_sim::verify::{self, VerifyOptions, verify};
use fabricast_topologies::Bytes;

pub use arena::{Addresses, Arena, KernelParameter, WaitMonitor};
use body::{Body, CodeLine, Operand, Sizes};
pub use chunk_layout::ChunkLayout;
pub use combine::{COMBINE_THREADS, combine_text, steps_text};
pub use copy_schedule::CopyOperation;
use element_codes::{check_reducible, operation_code, type_code};
use local_operations::Moves;
pub use phases::Tiles;
use program::{Instruction, RankProgram, UserChunk};
pub use shape::{GridShape, MAX_BLOCKS, ResidentBlocks};
pub use shared_arena::SharedArena;
pub use steps::{Location, Step, Steps};

/// Format in which messages are transferred from one GPU to another; each format corresponds to a protocol of NCCL.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    EnumCount,
    VariantArray,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Packets of 8 bytes of data and 8 bytes of flags, with the lowest latency (NCCL's LL).
    Packets,
    /// Lines of 120 bytes of data and an 8-byte flag, written by one warp (NCCL's LL128).
    Lines,
    /// Plain vectors, followed by one flag per tile of a block (NCCL's Simple).
    Flags,
}

impl Carrier {
    /// All message formats.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Message format of a protocol for chunks of the given size. `None` for a protocol that thread blocks do not run.
    ///
    /// For one-sided schedules the format is the one that was fastest at this size on H200 (validate/runs).
    #[must_use]
    pub fn for_protocol(protocol: Protocol, chunk: Bytes) -> Option<Self> {
        Some(match protocol {
            Protocol::Ll => Self::Packets,
            Protocol::Ll128 => Self::Lines,
            Protocol::Simple => Self::Flags,
            Protocol::Symmetric if chunk.0 <= shape::MAX_PACKET_CHUNK => Self::Packets,
            Protocol::Symmetric if chunk.0 <= shape::MAX_LINE_CHUNK => Self::Lines,
            Protocol::Symmetric => Self::Flags,
            Protocol::CopyEngine => return None,
        })
    }

    /// Message format of a schedule by its protocol and the largest chunk of a channel. `None` for a protocol that thread
    /// blocks do not run.
    #[must_use]
    pub fn for_schedule(header: &Header) -> Option<Self> {
        let sizes = (0..header.layout.chunks()).map(|chunk| header.layout.size(chunk));
        let largest = sizes.map(|size| size.numerator / u64::from(size.denominator)).max().unwrap_or(0);
        Self::for_protocol(header.protocol, Bytes(largest * u64::from(header.channels)))
    }

    /// Name of the message format in CUDA sources and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Lines => "lines",
            Self::Flags => "flags",
        }
    }

    /// Number of 16-byte words that are needed for `bytes`; at least one, so that empty messages are sent as well.
    fn words(self, bytes: u64) -> u64 {
        match self {
            Self::Packets => bytes.div_ceil(8).max(1),
            Self::Lines => bytes.div_ceil(480).max(1) * 32,
            Self::Flags => bytes.div_ceil(16).max(1),
        }
    }
}

/// Reasons why no kernel can be generated from a schedule.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KernelError {
    /// The schedule fails verification.
    #[error(transparent)]
    Fault(#[from] verify::Fault),
    /// A block or buffer is not a whole number of elements.
    #[error("{bytes} cannot be divided into {blocks} equal blocks of whole elements of {element}")]
    Uneven {
        /// Bytes of the call, or of a block.
        bytes: Bytes,
        /// Number of equal blocks into which the bytes are divided.
        blocks: u64,
        /// Size of an element in bytes.
        element: Bytes,
    },
    /// A chunk is stored in a chunk with another size.
    #[error("chunk {data} of {data_bytes} is stored in chunk {place} of {place_bytes}, which has another size")]
    SizeMismatch {
        /// Index of the chunk.
        data: u32,
        /// Size of the chunk in bytes.
        data_bytes: Bytes,
        /// Index of the chunk in which it is stored.
        place: u32,
        /// Size in bytes of the chunk in which it is stored.
        place_bytes: Bytes,
    },
    /// The schedule exceeds a limit of generated kernels.
    #[error("a kernel of {count} {item} is too large; at most {max} can be run")]
    TooLarge {
        /// Kind of item that exceeds the limit.
        item: &'static str,
        /// Number of items in the schedule.
        count: u64,
        /// Largest number of items that a kernel supports.
        max: u64,
    },
    /// The schedule has an operation that only the switches of a network execute.
    #[error("kernels cannot run an all_reduce in the switches of a network (SHARP)")]
    NetworkSwitches,
    /// The operations form a dependency cycle.
    #[error("the schedule's operations wait for each other in a cycle")]
    Deadlock,
    /// The GPU does not support the data type.
    #[error("{dtype} cannot be summed on compute capability {}.{}; it needs {}.{}", .capability / 10, .capability % 10, .needed / 10, .needed % 10)]
    NoSuchType {
        /// Data type to reduce.
        dtype: DataType,
        /// Compute capability × 10 of the GPU.
        capability: u32,
        /// Smallest compute capability × 10 that supports the data type.
        needed: u32,
    },
}

/// A round of a channel: the body and operands of every rank.
#[derive(Clone, Debug)]
struct RoundRows {
    channel: u16,
    words: u64,
    /// Index of the body and its operands, for every rank.
    rows: Vec<(u32, Vec<Operand>)>,
}

/// Numbers of 16-byte words in parts of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WordCounts {
    /// Number of channels.
    channels: u32,
    /// Words of the channel with most words.
    max_channel: u64,
    /// Words of the round with most words.
    max_round: u64,
}

/// A kernel before generation of its source text, independent of addresses and of the number of threads.
#[derive(Clone, Debug)]
pub struct Kernel {
    header: Header,
    dtype: DataType,
    carrier: Carrier,
    cut: ChunkLayout,
    sizes: Sizes,
    bodies: Vec<Vec<CodeLine>>,
    flushes: u32,
    tiles: Tiles,
    rounds: Vec<RoundRows>,
    /// Copies that copy engines can run; `None` if the schedule contains other operations.
    copied: Option<Vec<CopyOperation>>,
    /// For each message, the byte offset of its slot in the receiver's set of slots, and its number of words.
    slots: Vec<(u64, u64)>,
    /// Sending and receiving rank of each message.
    senders: Vec<u32>,
    receivers: Vec<u32>,
    /// Operation of the schedule from which each message was made.
    operations: Vec<u32>,
    /// Size in bytes of a set of slots, the maximum over all ranks.
    slot_bytes: u64,
    /// For every rank, bit set of the ranks that it notifies when it enters. The next two fields are bit sets of the
    /// ranks that must have entered before it begins, and before it ends.
    notify_on_entry: Vec<u64>,
    wait_before_start: Vec<u64>,
    wait_before_exit: Vec<u64>,
    /// For every rank, bit set of the ranks whose entry into a call is implied by messages.
    known_entered: Vec<u64>,
}

impl Kernel {
    /// Verifies a schedule and decomposes it into rounds.
    ///
    /// # Errors
    /// The schedule fails verification, exceeds a limit of kernels, does not consist of whole elements, or stores a
    /// chunk in a chunk of another size.
    pub fn new(schedule: &Schedule, dtype: DataType, carrier: Carrier) -> Result<Self, KernelError> {
        verify(schedule, &VerifyOptions::default())?;
        let header = schedule.header().clone();
        let ranks = header.call.ranks;
        if ranks > exchange::MAX_RANKS {
            return Err(KernelError::TooLarge { item: "ranks", count: ranks.into(), max: exchange::MAX_RANKS.into() });
        }
        let cut = ChunkLayout::new(&header, dtype.size())?;
        let moves = Moves::new(schedule)?;
        for &(data, place) in &moves.stored_in {
            let (data_bytes, place_bytes) = (Bytes(cut.len(data)), Bytes(cut.len(place)));
            if data_bytes != place_bytes {
                return Err(KernelError::SizeMismatch { data, data_bytes, place, place_bytes });
            }
        }
        let mut kernel = Self {
            header,
            dtype,
            carrier,
            cut,
            sizes: Sizes::Uniform,
            bodies: Vec::new(),
            flushes: 1,
            tiles: Tiles::OneByOne,
            rounds: Vec::new(),
            copied: None,
            slots: vec![(0, 0); moves.messages.len()],
            senders: moves.messages.iter().map(|message| message.from).collect(),
            receivers: moves.messages.iter().map(|message| message.to).collect(),
            operations: moves.messages.iter().map(|message| message.operation).collect(),
            slot_bytes: 0,
            notify_on_entry: vec![0; ranks as usize],
            wait_before_start: vec![0; ranks as usize],
            wait_before_exit: vec![0; ranks as usize],
            known_entered: vec![0; ranks as usize],
        };
        kernel.write_rounds(&moves)?;
        kernel.copied = copy_schedule::copy_operations(&moves, &kernel.cut);
        Ok(kernel)
    }

    fn write_rounds(&mut self, moves: &Moves) -> Result<(), KernelError> {
        let ranks = self.header.call.ranks;
        let rounds = rounds::rounds(moves, ranks);
        let message_words = |message: u32| self.carrier.words(self.cut.len(moves.messages[message as usize].data));
        let mut prepared: Vec<(u16, u64, Vec<u32>, Vec<RankProgram>)> = Vec::with_capacity(rounds.len());
        for round in &rounds {
            let programs = program::programs(moves, round, ranks);
            let mut words = 1;
            let mut messages = Vec::new();
            for instruction in programs.iter().flat_map(|program| &program.instructions) {
                match *instruction {
                    Instruction::Load { place, .. } | Instruction::Store { place, .. } => {
                        words = words.max(self.carrier.words(self.bytes(place)));
                    }
                    Instruction::Send { message, .. } => {
                        words = words.max(message_words(message));
                        messages.push(message);
                    }
                    _ => {}
                }
            }
            if messages.iter().any(|&message| message_words(message) + message_words(message) / 4 + 32 < words) {
                self.sizes = Sizes::Mixed;
            }
            prepared.push((round.channel, words, messages, programs));
        }
        // Packets and lines contain arrival flags, so no block waits per tile.
        let phase_local = |programs: &Vec<RankProgram>| {
            programs.iter().map(phases::with_phase_local_loads).collect::<Option<Vec<RankProgram>>>()
        };
        if self.carrier == Carrier::Flags
            && !prepared.iter().all(|round| round.3.iter().any(phases::reduces_without_forwarding))
            && let Some(separated) = prepared.iter().map(|round| phase_local(&round.3)).collect::<Option<Vec<_>>>()
        {
            self.tiles = Tiles::Grouped;
            prepared.iter_mut().zip(separated).for_each(|(round, programs)| round.3 = programs);
        }
        let mut numbers: FxHashMap<Vec<CodeLine>, u32> = FxHashMap::default();
        let mut filled = vec![0u64; ranks as usize];
        let mut sends_to = vec![0u64; ranks as usize];
        for (channel, words, messages, mut programs) in prepared {
            let exchange = exchange::exchange(moves, &mut programs, self.carrier)?;
            for message in messages {
                let exact_words = self.carrier.words(self.cut.len(moves.messages[message as usize].data));
                let sent = if self.sizes == Sizes::Uniform { words } else { exact_words };
                let to = moves.messages[message as usize].to as usize;
                self.slots[message as usize] = (filled[to], exact_words);
                if exchange.direct[message as usize].is_none() {
                    filled[to] += sent.next_multiple_of(32) * 16;
                }
            }
            add_sets(&mut self.wait_before_start, &exchange.enter);
            add_sets(&mut self.known_entered, &exchange.known_entered);
            add_sets(&mut sends_to, &exchange.close);
            let bodies = body::bodies(moves, &programs, &exchange, self.carrier, self.sizes)?;
            let mut rows = Vec::with_capacity(bodies.len());
            for Body { lines, operands, flushes } in bodies {
                self.flushes = self.flushes.max(flushes);
                let next = numbers.len() as u32;
                let number = *numbers.entry(lines).or_insert_with_key(|lines| {
                    self.bodies.push(lines.clone());
                    next
                });
                rows.push((number, operands));
            }
            self.rounds.push(RoundRows { channel, words, rows });
        }
        self.slot_bytes = filled.into_iter().max().unwrap_or(0);
        let known = self.known_entered.iter().zip(&self.wait_before_start).map(|(entered, started)| entered | started);
        self.wait_before_exit = sends_to.iter().zip(known).map(|(sent, known)| sent & !known).collect();
        self.notify_waiting_ranks();
        Ok(())
    }

    /// Adds a notification on entry for every rank that waits for the entry of another.
    fn notify_waiting_ranks(&mut self) {
        for (rank, (start, exit)) in self.wait_before_start.iter().zip(&self.wait_before_exit).enumerate() {
            for (peer, notified) in self.notify_on_entry.iter_mut().enumerate() {
                *notified |= ((start | exit) >> peer & 1) << rank;
            }
        }
    }

    fn bytes(&self, place: UserChunk) -> u64 {
        let (UserChunk::Input(chunk) | UserChunk::Output(chunk)) = place;
        self.cut.len(chunk)
    }

    /// Number of ranks of the schedule.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.header.call.ranks
    }

    /// Format of the kernel's messages.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Header of the schedule.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Data type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Number of lines of code over all bodies.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.bodies.iter().map(Vec::len).sum()
    }

    /// The copies for copy engines, in the order of the schedule. `None` if the schedule reduces or forwards received
    /// data.
    #[must_use]
    pub fn copies(&self) -> Option<Vec<CopyOperation>> {
        self.copied.clone()
    }

    fn word_counts(&self) -> WordCounts {
        let channels = u32::from(self.header.channels.max(1));
        let mut words = vec![0u64; channels as usize];
        for round in &self.rounds {
            if let Some(sum) = words.get_mut(usize::from(round.channel)) {
                *sum += round.words;
            }
        }
        let max_round = self.rounds.iter().map(|round| round.words).max().unwrap_or(0);
        WordCounts { channels, max_channel: words.into_iter().max().unwrap_or(0), max_round }
    }

    /// Returns the CUDA source for a GPU of the given compute capability × 10.
    ///
    /// # Errors
    /// [`KernelError::NoSuchType`] if a GPU of this compute capability cannot reduce the data type.
    pub fn text(&self, op: ReduceOp, variant: KernelVariant, capability: u32) -> Result<String, KernelError> {
        if self.reduces() {
            check_reducible(self.dtype, capability)?;
        }
        // The title excludes sizes, so that calls that differ only in size share their compiled code.
        let call = &self.header.call;
        let (name, carrier, channels) = (&self.header.name, self.carrier.name(), self.header.channels);
        let title = format!("{} over {} ranks by {name}: {carrier}, {channels} channels", call.collective, call.ranks);
        // If the kernel only moves data, elements are moved as bytes.
        let dtype = if self.reduces() { self.dtype } else { DataType::U8 };
        Ok(text::text(&title, &self.constants(dtype, op, variant), &self.bodies, self.carrier, self.sizes, self.tiles))
    }

    fn reduces(&self) -> bool {
        self.bodies.iter().flatten().any(|line| matches!(line, CodeLine::Reduce { .. }))
    }

    fn constants(&self, dtype: DataType, op: ReduceOp, variant: KernelVariant) -> text::Constants {
        let carrier = match self.carrier {
            Carrier::Packets => 0,
            Carrier::Lines => 1,
            Carrier::Flags => 2,
        };
        vec![
            ("RANKS", self.ranks().into()),
            ("THREADS", variant.threads.into()),
            ("UNROLL", variant.unroll.into()),
            ("ROWS", self.embedded_rows()),
            ("ROW", self.only_row()),
            ("CHANNELS", self.header.channels.max(1).into()),
            ("CARRIER", carrier),
            ("TYPE", type_code(dtype)),
            ("OP", operation_code(op)),
            ("ALIGNED", u64::from(variant.alignment == Alignment::Vectors)),
            ("FLUSHES", self.flushes.into()),
            ("RESIDENT", if variant.resident == ResidentBlocks::Two { 2 } else { 1 }),
            ("GROUPED", u64::from(variant.tiles == Tiles::Grouped)),
            ("SHARED", u64::from(variant.devices == Devices::Shared)),
        ]
    }

    /// Length of a row in table entries, if every channel has exactly one row and all rows use one body; otherwise 0.
    fn only_row(&self) -> u64 {
        let channels: Vec<u16> = self.rounds.iter().map(|round| round.channel).collect();
        if self.bodies.len() != 1 || !channels.iter().copied().eq(0..self.header.channels.max(1)) {
            return 0;
        }
        self.rounds.first().and_then(|round| round.rows.first()).map_or(0, |row| 2 + row.1.len() as u64)
    }

    /// Number of thread blocks per rank with the given shape.
    #[must_use]
    pub fn blocks(&self, shape: GridShape) -> u32 {
        self.word_counts().channels * shape.split
    }

    /// Number of tiles of the round with most words, with the given shape.
    #[must_use]
    pub fn tiles(&self, shape: GridShape) -> u64 {
        self.word_counts().max_round.div_ceil(u64::from(shape.threads) * u64::from(shape.unroll))
    }

    /// Order in which the blocks of this kernel may process tiles and phases.
    #[must_use]
    pub fn phases(&self) -> Tiles {
        self.tiles
    }

    /// Maximum number of tile groups that a block runs in a call; at least 1.
    fn items(&self, shape: GridShape) -> u64 {
        let tile = u64::from(shape.threads) * u64::from(shape.unroll);
        let mut items = vec![0u64; usize::from(self.header.channels.max(1))];
        for round in &self.rounds {
            if let Some(sum) = items.get_mut(usize::from(round.channel)) {
                *sum += round
                    .words
                    .div_ceil(tile)
                    .div_ceil(shape.split.into())
                    .div_ceil(u64::from(shape.tiles_per_phase.max(1)));
            }
        }
        items.into_iter().max().unwrap_or(0).max(1)
    }
}

/// Adds the members of bit sets to other sets.
fn add_sets(sets: &mut [u64], added: &[u64]) {
    sets.iter_mut().zip(added).for_each(|(set, added)| *set |= added);
}

/// Kind of a buffer that the caller passes to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserBuffer {
    /// Input of the call.
    Input,
    /// Output of the call.
    Output,
}

/// Range of a call's bytes that a rank's buffer holds. Bytes are numbered over the data of all ranks, one block after
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferExtent {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

impl BufferExtent {
    /// Returns the extent of a buffer of `rank`.
    #[must_use]
    pub fn new(header: &Header, rank: u32, buffer: UserBuffer) -> Self {
        let call = &header.call;
        let (total, ranks) = (header.layout.bytes().0, u64::from(call.ranks.max(1)));
        let own_block = match (call.collective, buffer) {
            _ if call.buffers == BufferUse::InPlace => false,
            (Collective::AllGather | Collective::Gather, UserBuffer::Input)
            | (Collective::ReduceScatter | Collective::Scatter, UserBuffer::Output) => true,
            _ => false,
        };
        let block = total / ranks;
        if own_block {
            Self { start: block * u64::from(rank), length: block }
        } else {
            Self { start: 0, length: total }
        }
    }
}

/// Alignment of the caller's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// All chunks begin at multiples of 16 bytes and are moved as vectors.
    Vectors,
    /// Chunks may begin at any address.
    Bytes,
}

/// Assignment of ranks to GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Devices {
    /// One GPU per rank.
    Own,
    /// All ranks share one GPU.
    Shared,
}

/// Properties of a kernel that determine its compiled code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelVariant {
    /// Largest number of threads per block.
    pub threads: u32,
    /// Number of words that a thread moves per tile.
    pub unroll: u32,
    /// Alignment of the caller's chunks.
    pub alignment: Alignment,
    /// Assignment of ranks to GPUs.
    pub devices: Devices,
    /// Order in which a block processes its tiles and phases.
    pub tiles: Tiles,
    /// Number of blocks that a multiprocessor must be able to hold.
    pub resident: ResidentBlocks,
}
