//! Faults of schedules: operation, rank and chunk, with the state found and the state expected.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::schedule::order::Cycle;
use crate::schedule::{Buffer, ChunkRef, OpId, OpKind, Operation, Rank, Schedule};

/// Kind of fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Operations wait for each other in a cycle.
    Deadlock,
    /// Operations wait for each other if every FIFO has only this number of slots.
    FifoDeadlock {
        /// Number of slots of each FIFO.
        depth: u32,
    },
    /// A chunk is read before anything is written to it.
    ReadUnwritten,
    /// A chunk is read while another operation may write it.
    ReadRace,
    /// A chunk is written while another operation may write it.
    WriteRace,
    /// A rank writes a chunk that it must not write: out-of-place input, or output that it does not receive.
    ForbiddenWrite,
    /// Contributions to different chunks are reduced with each other.
    MixedChunks,
    /// The contribution of a rank is reduced into a chunk twice.
    CountedTwice,
    /// The final contents of a chunk of the result are wrong.
    WrongResult,
    /// Data is written that is neither read nor part of the result.
    Unread,
    /// Data is moved to a smaller chunk.
    DoesNotFit,
    /// A rank may leave a barrier before every other rank has arrived.
    #[serde(rename = "not_awaited")]
    BarrierNotAwaited,
    /// A local operation refers to another rank.
    #[serde(rename = "stray_peer")]
    LocalOperationWithPeer,
    /// The chunks cannot be divided into one block per rank or, for all_to_allv, per pair of ranks.
    UnevenBlocks,
    /// The schedule is too large to be verified.
    TooLarge,
}

/// The first fault of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error, JsonSchema)]
pub struct Fault {
    /// Kind of fault.
    #[serde(flatten, serialize_with = "kind_by_name")]
    #[schemars(with = "KindByName")]
    pub kind: FaultKind,
    /// Faulty operation; `None` if no operation wrote a chunk of the result, or if the schedule as a whole is invalid.
    pub operation: Option<OpId>,
    /// Rank that executes the operation; without an operation, the owner of the chunk.
    pub rank: Rank,
    /// Chunk that the fault concerns.
    pub chunk: ChunkRef,
    /// Rank that owns the chunk.
    pub owner: Rank,
    /// Description of the operation, such as `channel 0, put to rank 4`; empty without an operation.
    pub action: String,
    /// State that was found.
    pub found: String,
    /// State that is required.
    pub expected: String,
}

/// Kind of fault in serialized form.
#[derive(Serialize, JsonSchema)]
struct KindByName {
    /// Name of the kind of fault, such as `read_race`.
    kind: &'static str,
    /// Slots of each FIFO; only for the kind `fifo_deadlock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fifo_depth: Option<u32>,
}

fn kind_by_name<S: serde::Serializer>(kind: &FaultKind, serializer: S) -> Result<S::Ok, S::Error> {
    let fifo_depth = if let FaultKind::FifoDeadlock { depth } = kind { Some(*depth) } else { None };
    KindByName { kind: kind.name(), fifo_depth }.serialize(serializer)
}

impl FaultKind {
    /// Returns the name, such as `read_race`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name_and_description().0
    }

    /// Returns the name and the description of the fault; `@` in the description is a placeholder for the chunk.
    fn name_and_description(self) -> (&'static str, &'static str) {
        match self {
            Self::Deadlock => ("deadlock", "waits for itself"),
            Self::FifoDeadlock { .. } => ("fifo_deadlock", "waits for itself once FIFOs are full"),
            Self::ReadUnwritten => ("read_unwritten", "reads @, which nothing has written"),
            Self::ReadRace => ("read_race", "reads @, which may still change"),
            Self::WriteRace => ("write_race", "writes @, which another operation may be writing"),
            Self::ForbiddenWrite => ("forbidden_write", "writes @, which is not part of what that rank gets"),
            Self::MixedChunks => ("mixed_chunks", "reduces different chunks into @"),
            Self::CountedTwice => ("counted_twice", "reduces a contribution into @ twice"),
            Self::WrongResult => ("wrong_result", "leaves a wrong result in @"),
            Self::Unread => ("unread", "writes @, which is never read and is not part of the result"),
            Self::DoesNotFit => ("does_not_fit", "moves data to @, which is smaller"),
            Self::BarrierNotAwaited => ("not_awaited", "a rank may exit before another has entered"),
            Self::LocalOperationWithPeer => ("stray_peer", "works on its own rank's memory and names another rank"),
            Self::UnevenBlocks => ("uneven_blocks", "the layout has no block for every rank"),
            Self::TooLarge => ("too_large", "the schedule is too large to verify"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = format!("{} of rank {}", chunk_text(self.chunk), self.owner.0);
        match (self.operation, self.kind) {
            (Some(operation), _) => {
                write!(f, "operation {} (rank {}, {}): ", operation.0, self.rank.0, self.action)?;
                f.write_str(&self.kind.name_and_description().1.replace('@', &chunk))?;
            }
            (None, FaultKind::WrongResult) => write!(f, "nothing writes {chunk}")?,
            (None, _) => f.write_str(self.kind.name_and_description().1)?,
        }
        write!(f, ": found {}, expected {}", self.found, self.expected)
    }
}

/// Returns a text such as `scratch chunk 2`.
pub(super) fn chunk_text(chunk: ChunkRef) -> String {
    format!("{} chunk {}", chunk.buffer, chunk.index)
}

/// Returns a text such as `channel 0, put to rank 4`.
fn action(operation: &Operation) -> String {
    let verb = match operation.kind {
        OpKind::Put => "put to rank",
        OpKind::PutReduce => "put and reduce to rank",
        OpKind::PutReduceInput => "put and reduce with the input of rank",
        OpKind::Get => "get from rank",
        OpKind::GetReduce => "get and reduce from rank",
        OpKind::MulticastPut => "multicast put to team",
        OpKind::MulticastReduce => "multicast reduce over team",
        OpKind::SwitchAllReduce => "all_reduce in the switches of team",
        OpKind::Signal => "signal to rank",
        OpKind::Copy => return format!("channel {}, local copy", operation.channel.0),
        OpKind::Reduce => return format!("channel {}, local reduce", operation.channel.0),
        OpKind::Wait => return format!("channel {}, wait", operation.channel.0),
    };
    let other = operation.team.map_or(operation.peer.0, |team| team.0);
    format!("channel {}, {verb} {other}", operation.channel.0)
}

/// Chunk of a rank's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankChunk {
    pub rank: Rank,
    pub chunk: ChunkRef,
}

impl RankChunk {
    pub fn new(rank: u32, chunk: ChunkRef) -> Self {
        Self { rank: Rank(rank), chunk }
    }
}

/// Factory of the faults of one schedule.
pub(super) struct Reporter<'a> {
    schedule: &'a Schedule,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(schedule: &'a Schedule) -> Self {
        Self { schedule }
    }

    pub(super) fn fault(
        &self,
        kind: FaultKind,
        operation: OpId,
        location: RankChunk,
        found: String,
        expected: String,
    ) -> Fault {
        let RankChunk { rank: owner, chunk } = location;
        let op = self.schedule.operation(operation);
        Fault { kind, operation: Some(operation), rank: op.rank, chunk, owner, action: action(&op), found, expected }
    }

    /// Creates a fault that is not caused by a single operation.
    pub(super) fn chunk_fault(&self, kind: FaultKind, location: RankChunk, found: String, expected: String) -> Fault {
        let RankChunk { rank: owner, chunk } = location;
        Fault { kind, operation: None, rank: owner, chunk, owner, action: String::new(), found, expected }
    }

    pub(super) fn too_large(&self, count: u64, item: &str, limit: u64) -> Fault {
        let nowhere = RankChunk::new(0, ChunkRef { buffer: Buffer::Output, index: 0 });
        self.chunk_fault(FaultKind::TooLarge, nowhere, format!("{count} {item}"), format!("at most {limit}"))
    }

    /// Returns a text such as `operation 12 (rank 2, channel 0, put to rank 3)`.
    pub(super) fn name(&self, operation: OpId) -> String {
        let op = self.schedule.operation(operation);
        format!("operation {} (rank {}, {})", operation.0, op.rank.0, action(&op))
    }

    pub(super) fn cycle(&self, kind: FaultKind, cycle: &Cycle) -> Fault {
        const SHOWN: usize = 8;
        let first = cycle.0.first().copied().unwrap_or_default();
        let op = self.schedule.operation(first);
        let mut chain: Vec<String> = cycle.0.iter().take(SHOWN).map(|op| op.0.to_string()).collect();
        if cycle.0.len() > SHOWN {
            chain.push(format!("{} more", cycle.0.len() - SHOWN));
        }
        chain.push(first.0.to_string());
        let rank = if op.kind.writes_peer() { op.peer } else { op.rank };
        let found = format!("a cycle of operations, each waiting for the next: {}", chain.join(" -> "));
        self.fault(kind, first, RankChunk { rank, chunk: op.dst }, found, "no cycle".to_owned())
    }
}
