//! How the channels of a schedule are laid out on thread blocks.

use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// Threads of the blocks that run a schedule, and how they divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocks {
    /// Threads of a block; what the profile says for the protocol if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// How many channels a block runs.
    #[serde(default)]
    pub split: BlockSplit,
    /// Payload of a message to another host, where operations are pieces of one; the whole operation if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Where the ranks work.
    #[serde(default, skip_serializing_if = "Workplace::is_device")]
    pub workplace: Workplace,
}

/// Where the ranks of a schedule work: in whose memory scratch lies, and who moves and adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workplace {
    /// On their devices.
    #[default]
    Device,
    /// On the CPUs nearest to their devices, as the processes of an MPI do. Input and output stay where they are.
    Host,
}

impl Workplace {
    fn is_device(&self) -> bool {
        *self == Self::Device
    }
}

/// How many channels a block runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSplit {
    /// One.
    #[default]
    Whole,
    /// Two: channel 2k reduces, channel 2k + 1 copies, each with a part of the block's threads (NCCL's trees).
    ReduceAndCopy,
}

impl Blocks {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl BlockSplit {
    /// Channels of a block.
    #[must_use]
    pub fn channels(self) -> u16 {
        match self {
            Self::Whole => 1,
            Self::ReduceAndCopy => 2,
        }
    }
}
