//! What is wrong with a schedule: the operation, the rank, the chunk, what was found and what was expected.

use std::fmt;

use serde::Serialize;

use crate::schedule::order::Cycle;
use crate::schedule::{Buffer, ChunkRef, OpId, OpKind, Operation, Rank, Schedule};

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Operations wait for each other.
    Deadlock,
    /// Operations wait for each other when every FIFO has so few slots.
    FifoDeadlock {
        /// Slots per FIFO.
        depth: u32,
    },
    /// A chunk is read that nothing has written.
    ReadUnwritten,
    /// A chunk is read while another operation may write it.
    ReadRace,
    /// A chunk is written while another operation may write it.
    WriteRace,
    /// A chunk is written that is not the rank's to write: input out of place, output that it does not get.
    ForbiddenWrite,
    /// Contributions to different chunks are reduced.
    MixedChunks,
    /// A contribution is reduced in twice.
    CountedTwice,
    /// A chunk of the result does not hold what it must at the end.
    WrongResult,
    /// Something was written that nobody reads and that is not the result.
    Unread,
    /// Something is moved to a place that is smaller.
    DoesNotFit,
    /// A rank may leave a barrier before every other has come.
    NotAwaited,
    /// A local operation names another rank.
    StrayPeer,
    /// The chunks cannot be cut into one block per rank, or (all_to_allv) per pair of ranks.
    UnevenBlocks,
    /// Too large to be proven.
    TooLarge,
}

/// The first thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Fault {
    /// What kind of thing.
    #[serde(flatten, serialize_with = "kind_by_name")]
    pub kind: FaultKind,
    /// The operation that breaks; none where nobody wrote a chunk of the result, or the schedule as a whole is wrong.
    pub operation: Option<OpId>,
    /// The rank that executes the operation; without one, the rank whose chunk it is.
    pub rank: Rank,
    /// The chunk.
    pub chunk: ChunkRef,
    /// The rank whose chunk it is.
    pub owner: Rank,
    /// What the operation is: `channel 0, put to rank 4`. Empty without an operation.
    pub action: String,
    /// What was found.
    pub found: String,
    /// What would have been right.
    pub expected: String,
}

#[derive(Serialize)]
struct KindByName {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fifo_depth: Option<u32>,
}

fn kind_by_name<S: serde::Serializer>(kind: &FaultKind, serializer: S) -> Result<S::Ok, S::Error> {
    let fifo_depth = if let FaultKind::FifoDeadlock { depth } = kind { Some(*depth) } else { None };
    KindByName { kind: kind.name(), fifo_depth }.serialize(serializer)
}

impl FaultKind {
    /// Its name: `read_race`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// Name, and what the operation does wrong; `@` stands for the chunk.
    fn words(self) -> (&'static str, &'static str) {
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
            Self::Unread => ("unread", "writes @, which nobody reads and which is not part of the result"),
            Self::DoesNotFit => ("does_not_fit", "moves data to @, which is smaller"),
            Self::NotAwaited => ("not_awaited", "a rank may leave before another has come"),
            Self::StrayPeer => ("stray_peer", "works on its own rank's memory and names another rank"),
            Self::UnevenBlocks => ("uneven_blocks", "the layout has no block for every rank"),
            Self::TooLarge => ("too_large", "the schedule is too large to be proven"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = format!("{} of rank {}", chunk_in_words(self.chunk), self.owner.0);
        match (self.operation, self.kind) {
            (Some(operation), _) => {
                write!(f, "operation {} (rank {}, {}): ", operation.0, self.rank.0, self.action)?;
                f.write_str(&self.kind.words().1.replace('@', &chunk))?;
            }
            (None, FaultKind::WrongResult) => write!(f, "nothing writes {chunk}")?,
            (None, _) => f.write_str(self.kind.words().1)?,
        }
        write!(f, ": found {}, expected {}", self.found, self.expected)
    }
}

/// `scratch chunk 2`
pub(super) fn chunk_in_words(chunk: ChunkRef) -> String {
    format!("{} chunk {}", chunk.buffer, chunk.index)
}

/// `channel 0, put to rank 4`
fn action(operation: &Operation) -> String {
    let verb = match operation.kind {
        OpKind::Put => "put to rank",
        OpKind::PutReduce => "put and reduce to rank",
        OpKind::PutReduceInput => "put and reduce with the input of rank",
        OpKind::Get => "get from rank",
        OpKind::GetReduce => "get and reduce from rank",
        OpKind::MulticastPut | OpKind::MulticastReduce => {
            let verb =
                if operation.kind == OpKind::MulticastPut { "multicast put to" } else { "multicast reduce over" };
            let team = operation.team.unwrap_or_default().0;
            return format!("channel {}, {verb} team {team}", operation.channel.0);
        }
        OpKind::Signal => "signal to rank",
        OpKind::Copy => return format!("channel {}, local copy", operation.channel.0),
        OpKind::Reduce => return format!("channel {}, local reduce", operation.channel.0),
        OpKind::Wait => return format!("channel {}, wait", operation.channel.0),
    };
    format!("channel {}, {verb} {}", operation.channel.0, operation.peer.0)
}

/// Makes faults about one schedule.
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
        (owner, chunk): (Rank, ChunkRef),
        found: String,
        expected: String,
    ) -> Fault {
        let op = self.schedule.operation(operation);
        Fault { kind, operation: Some(operation), rank: op.rank, chunk, owner, action: action(&op), found, expected }
    }

    /// A fault that no operation is to blame for.
    pub(super) fn of_chunk(
        &self,
        kind: FaultKind,
        (owner, chunk): (Rank, ChunkRef),
        found: String,
        expected: String,
    ) -> Fault {
        Fault { kind, operation: None, rank: owner, chunk, owner, action: String::new(), found, expected }
    }

    pub(super) fn too_large(&self, count: u64, what: &str, most: u64) -> Fault {
        let nowhere = (Rank(0), ChunkRef { buffer: Buffer::Output, index: 0 });
        self.of_chunk(FaultKind::TooLarge, nowhere, format!("{count} {what}"), format!("at most {most}"))
    }

    /// `operation 12 (rank 2, channel 0, put to rank 3)`
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
        let owner = if op.kind.writes_peer() { op.peer } else { op.rank };
        let found = format!("a circle of operations, each waiting for the next: {}", chain.join(" -> "));
        self.fault(kind, first, (owner, op.dst), found, "no circle".to_owned())
    }
}
