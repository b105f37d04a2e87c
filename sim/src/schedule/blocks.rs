//! Mapping of a schedule's channels to thread blocks.

use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// Thread blocks that execute a schedule, and the assignment of channels to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocks {
    /// Threads per block; the profile's value for the protocol if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// Channels that one block runs.
    #[serde(default)]
    pub split: BlockSplit,
    /// Payload of an inter-host message if operations are parts of messages; `None` if each operation is at least one
    /// message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Division of a chunk that is sent to another host into messages.
    #[serde(default, skip_serializing_if = "ChunkMessages::is_slices")]
    pub chunk_messages: ChunkMessages,
    /// Processor that executes the ranks' operations.
    #[serde(default, skip_serializing_if = "Processor::is_device")]
    #[serde(rename = "workplace")]
    pub processor: Processor,
}

/// Processor that executes the ranks' copies and reductions, and the memory that holds scratch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processor {
    /// The rank's GPU and its memory.
    #[default]
    Device,
    /// The CPU nearest to the GPU, and its memory, as for MPI processes. Input and output stay in the caller's memory.
    Host,
}

impl Processor {
    fn is_device(&self) -> bool {
        *self == Self::Device
    }
}

/// Division of a chunk that is sent to another host into messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkMessages {
    /// One message per slice of the protocol, as in NCCL's rings, whose chunks occupy several slots of a connection's
    /// buffer.
    #[default]
    Slices,
    /// One message per chunk, which occupies one slot, as in NCCL's trees, chains, PAT and sends.
    One,
}

impl ChunkMessages {
    fn is_slices(&self) -> bool {
        *self == Self::Slices
    }
}

/// Channels that one block runs, and the division of its threads among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSplit {
    /// One channel per block.
    #[default]
    #[serde(rename = "whole")]
    OneChannel,
    /// Two channels per block: channel 2k reduces, channel 2k + 1 copies, each with a part of the block's threads
    /// (NCCL's trees).
    ReduceAndCopy,
}

impl Blocks {
    /// Returns true if all fields have their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl BlockSplit {
    /// Number of channels per block.
    #[must_use]
    pub fn channels(self) -> u16 {
        match self {
            Self::OneChannel => 1,
            Self::ReduceAndCopy => 2,
        }
    }
}
