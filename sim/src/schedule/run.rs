//! Operations, and the runs that contain them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Index of a participant of a collective, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// Index of an independent channel of a rank: one thread block, or one copy-engine stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Channel(pub u16);

/// Index of an operation in its schedule: consecutive, rank by rank, run by run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct OpId(pub u32);

/// Index of a run in its schedule: consecutive, rank by rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub u32);

/// Index of a team (ranks that share a multicast address) in its schedule, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TeamId(pub u32);

/// Buffer of a rank. Input and output share one numbering of chunks, that of the [`Layout`](super::Layout): rank r of
/// an all_gather has input chunks only in block r, and in place `Input` chunk i is `Output` chunk i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Buffer {
    /// The caller's input; never written, except as the output of an in-place call.
    Input,
    /// The caller's output buffer.
    Output,
    /// Memory that belongs to the communication library.
    Scratch,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

/// Chunk of a buffer. The rank is known from the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ChunkRef {
    /// Buffer that contains the chunk.
    pub buffer: Buffer,
    /// Number of the chunk in the buffer.
    pub index: u32,
}

/// Action of an operation on `span` chunks. "own" denotes the executing rank, ⊕ the reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// Write to the peer: peer.dst = own.src
    Put,
    /// Reduction into the peer's data: peer.dst = peer.dst ⊕ own.src
    PutReduce,
    /// peer.dst = peer.input ⊕ own.src, with the input chunks of the same indices as dst: the receiver adds its own
    /// contribution as the data arrives (NCCL's receive-reduce-send), without a prior copy of the input.
    PutReduceInput,
    /// Read from the peer: own.dst = peer.src
    Get,
    /// Reduction of the peer's data into own data: own.dst = own.dst ⊕ peer.src
    GetReduce,
    /// Local copy: own.dst = own.src
    Copy,
    /// Local reduction: own.dst = own.dst ⊕ own.src
    Reduce,
    /// dst = own.src at every rank of a team, including the executing one. The switch replicates the data (NVLS:
    /// `multimem.st`).
    MulticastPut,
    /// own.dst = src of all ranks of a team, including the executing one, reduced in the switch (NVLS:
    /// `multimem.ld_reduce`).
    MulticastReduce,
    /// dst at every rank of a team = src of all ranks of the team, reduced in the switches of a network and sent to all of
    /// them by the same switches (SHARP: an all_reduce between hosts). Every rank sends and receives the data once. One
    /// rank of the team executes the operation for all.
    SwitchAllReduce,
    /// Signal to the peer that this operation's dependencies are done. Moves no data (a flag; `span` is 0).
    Signal,
    /// Join of the operation's dependencies. Moves no data (`span` is 0).
    Wait,
}

impl OpKind {
    /// Returns the name, such as `put_reduce`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutReduce => "put_reduce",
            Self::PutReduceInput => "put_reduce_input",
            Self::Get => "get",
            Self::GetReduce => "get_reduce",
            Self::Copy => "copy",
            Self::Reduce => "reduce",
            Self::MulticastPut => "multicast_put",
            Self::MulticastReduce => "multicast_reduce",
            Self::SwitchAllReduce => "switch_all_reduce",
            Self::Signal => "signal",
            Self::Wait => "wait",
        }
    }

    /// Returns true if data moves from one rank to another.
    #[must_use]
    pub fn is_transfer(self) -> bool {
        let is_point_to_point =
            matches!(self, Self::Put | Self::PutReduce | Self::PutReduceInput | Self::Get | Self::GetReduce);
        is_point_to_point || self.is_multicast()
    }

    /// Returns true if the operation involves a team; its `peer` is then the index of a team instead of a rank.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        matches!(self, Self::MulticastPut | Self::MulticastReduce | Self::SwitchAllReduce)
    }

    /// Returns true if the source chunks are in a single peer's memory.
    #[must_use]
    pub fn reads_peer(self) -> bool {
        matches!(self, Self::Get | Self::GetReduce)
    }

    /// Returns true if the destination chunks are in a single peer's memory.
    #[must_use]
    pub fn writes_peer(self) -> bool {
        matches!(self, Self::Put | Self::PutReduce | Self::PutReduceInput)
    }

    /// Returns true if the operation reduces data into existing data.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::PutReduce | Self::PutReduceInput | Self::GetReduce | Self::Reduce)
    }

    /// Returns true if the operation moves data.
    #[must_use]
    pub fn moves_data(self) -> bool {
        !matches!(self, Self::Signal | Self::Wait)
    }
}

/// Arithmetic sequence: the value at step i is `base + ((start + step·i) mod modulus)·stride`.
///
/// For example, the chunks of a ring descend (`step = modulus − 1`), and the peers of a direct exchange cycle through
/// the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Walk {
    /// Offset added to every value.
    pub base: u32,
    /// Initial position, before the modulus.
    pub start: u32,
    /// Increment per step, before the modulus.
    pub step: u32,
    /// Modulus; 0 means no wrapping.
    pub modulus: u32,
    /// Distance between adjacent values.
    pub stride: u32,
}

impl Walk {
    /// Creates a walk with the same value at every step.
    #[must_use]
    pub const fn fixed(value: u32) -> Self {
        Self { base: value, start: 0, step: 0, modulus: 0, stride: 1 }
    }

    /// Creates the walk `first, first + step, first + 2·step, …`
    #[must_use]
    pub const fn linear(first: u32, step: u32) -> Self {
        Self { base: first, start: 0, step: 1, modulus: 0, stride: step }
    }

    /// Creates the walk `base + (start + step·i) mod modulus`.
    #[must_use]
    pub const fn cyclic(base: u32, start: u32, step: u32, modulus: u32) -> Self {
        Self { base, start, step, modulus, stride: 1 }
    }

    /// Returns the walk with its values `stride` apart.
    #[must_use]
    pub const fn strided(self, stride: u32) -> Self {
        Self { stride, ..self }
    }

    /// Returns the value at step `i`, modulo 2³².
    #[must_use]
    pub fn at(self, i: u32) -> u32 {
        let mut position = u64::from(self.start) + u64::from(self.step) * u64::from(i);
        if self.modulus != 0 {
            position %= u64::from(self.modulus);
        }
        self.base.wrapping_add((position as u32).wrapping_mul(self.stride))
    }

    /// Returns the rest of the walk from step `from` on.
    #[must_use]
    pub fn advanced(self, from: u32) -> Self {
        let mut start = u64::from(self.start) + u64::from(self.step) * u64::from(from);
        if self.modulus != 0 {
            start %= u64::from(self.modulus);
        }
        Self { start: start as u32, ..self }
    }

    /// Returns the number of the first `len` steps to examine: at most one if all steps have the same value.
    #[must_use]
    pub fn distinct_steps(self, len: u32) -> u32 {
        if self.is_fixed() { len.min(1) } else { len }
    }

    /// Returns true if every step has the same value.
    #[must_use]
    pub fn is_fixed(self) -> bool {
        // Without a modulus only a step of 0 is fixed; `is_multiple_of(0)` is true only for 0.
        self.stride == 0 || self.step.is_multiple_of(self.modulus)
    }
}

/// Dependency of a run. Operation i waits for operation `start + step·i` of run number `run` of rank `rank`. There is
/// no dependency if that index is outside the run. `step` is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dependency {
    /// Rank that executes the awaited run.
    pub rank: Rank,
    /// Index of the awaited run within that rank.
    pub run: u32,
    /// Index of the operation that operation 0 waits for; may be negative.
    pub start: i32,
    /// Increment of that index per operation: 1 if operations wait one for one, 0 if all wait for the same operation.
    pub step: u32,
}

impl Dependency {
    /// Creates a dependency of operation i on operation i + `shift`.
    #[must_use]
    pub const fn shifted(rank: Rank, run: u32, shift: i32) -> Self {
        Self { rank, run, start: shift, step: 1 }
    }

    /// Returns true if any of `waiting` operations depends on an operation with an index of at least 0. The end of the
    /// awaited run is not checked.
    #[must_use]
    pub fn has_target(self, waiting: u32) -> bool {
        let last = i64::from(waiting) - 1;
        last >= 0 && i64::from(self.start) + i64::from(self.step) * last >= 0
    }

    /// Creates a dependency of every operation on operation `index`.
    #[must_use]
    pub const fn on_operation(rank: Rank, run: u32, index: u32) -> Self {
        Self { rank, run, start: index as i32, step: 0 }
    }

    /// Returns the index of the operation that operation `i` waits for in a run of `len` operations; `None` if it is
    /// outside the run.
    #[must_use]
    pub fn target(self, i: u32, len: u32) -> Option<u32> {
        let index = i64::from(self.start) + i64::from(self.step) * i64::from(i);
        u32::try_from(index).ok().filter(|&index| index < len)
    }
}

/// Consecutive operations of one rank whose chunks, peers and dependencies form arithmetic sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Number of operations in the run.
    pub len: u32,
    /// Type of the run's operations.
    pub kind: OpKind,
    /// Channel that executes the operations.
    pub channel: Channel,
    /// Peer rank of each operation; for local operations the executing rank, for multicast operations the team.
    pub peer: Walk,
    /// Buffer that the operations read.
    pub src_buffer: Buffer,
    /// First chunk read by each operation.
    pub src: Walk,
    /// Buffer that the operations write.
    pub dst_buffer: Buffer,
    /// First chunk written by each operation.
    pub dst: Walk,
    /// Number of consecutive chunks that each operation reads and writes.
    pub span: u32,
}

/// Single operation, computed from its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Id of the operation in the schedule.
    pub id: OpId,
    /// Run that the operation belongs to.
    pub run: RunId,
    /// Index of the operation in its run.
    pub index: u32,
    /// Rank that executes the operation.
    pub rank: Rank,
    /// The other rank; the executing rank for local and multicast operations.
    pub peer: Rank,
    /// Team of a multicast operation; `None` for other operations.
    pub team: Option<TeamId>,
    /// Channel that executes the operation.
    pub channel: Channel,
    /// Type of the operation.
    pub kind: OpKind,
    /// First of the chunks read (in the peer's memory for gets).
    pub src: ChunkRef,
    /// First of the chunks written (in the peer's memory for puts).
    pub dst: ChunkRef,
    /// Number of consecutive chunks read and written.
    pub span: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advanced_walks_continue_the_sequence() {
        for walk in [
            Walk::fixed(7),
            Walk::linear(3, 4),
            Walk::cyclic(2, 5, 7, 9).strided(3),
            Walk { base: 1, start: u32::MAX, step: u32::MAX, modulus: 0, stride: u32::MAX },
            Walk { base: 0, start: u32::MAX, step: u32::MAX, modulus: u32::MAX - 1, stride: 1 },
        ] {
            for from in [0, 1, 5, 1 << 20, u32::MAX] {
                for i in [0, 1, 2, 100] {
                    if let Some(sum) = from.checked_add(i) {
                        assert_eq!(walk.advanced(from).at(i), walk.at(sum), "{walk:?} from {from} at {i}");
                    }
                }
            }
        }
    }
}
