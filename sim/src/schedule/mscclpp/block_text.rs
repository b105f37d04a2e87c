//! Text of a thread block's operations: one line per operation, with a barrier of the thread block where an operation
//! must wait for the preceding ones.

use crate::schedule::text::put;
use crate::schedule::units::UnitRange;

/// Memory of a rank that an operation accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankAccess {
    pub(super) rank: u32,
    pub(super) range: UnitRange,
    pub(super) writes: bool,
}

impl RankAccess {
    fn conflicts(self, other: Self) -> bool {
        let disjoint = |a: UnitRange, b: UnitRange| {
            a.buffer != b.buffer || a.start + a.count <= b.start || b.start + b.count <= a.start
        };
        (self.writes || other.writes) && self.rank == other.rank && !disjoint(self.range, other.range)
    }
}

/// Maximum number of tracked accesses without a barrier of the thread block.
const MAX_UNFENCED: usize = 64;

/// Writer of the lines of a thread block, appended to a text.
pub(super) struct BlockWriter<'a> {
    text: &'a mut String,
    has_lines: bool,
    /// Accesses since the last barrier of the thread block.
    unfenced: Vec<RankAccess>,
    /// True if the thread block has waited for another one since the last barrier.
    has_waited: bool,
}

impl<'a> BlockWriter<'a> {
    pub(super) fn new(text: &'a mut String) -> Self {
        Self { text, has_lines: false, unfenced: Vec::with_capacity(MAX_UNFENCED + 8), has_waited: false }
    }

    /// Prepares for an operation that accesses this memory: writes a barrier first if an earlier access conflicts.
    pub(super) fn begin_access(&mut self, accesses: impl Iterator<Item = RankAccess> + Clone) {
        let conflict = accesses.clone().any(|a| self.unfenced.iter().any(|b| a.conflicts(*b)));
        if self.has_waited || conflict || self.unfenced.len() > MAX_UNFENCED {
            self.barrier();
        }
        self.unfenced.extend(accesses);
    }

    /// Starts a new line, and returns the text to append to.
    pub(super) fn line(&mut self) -> &mut String {
        if self.has_lines {
            self.text.push_str(",\n            ");
        }
        self.has_lines = true;
        self.text
    }

    /// Starts a line that waits for another thread block. A barrier precedes the next operation.
    pub(super) fn wait(&mut self) -> &mut String {
        self.has_waited = true;
        self.line()
    }

    /// Writes a barrier if any memory has been accessed since the last one.
    pub(super) fn fence(&mut self) {
        if !self.unfenced.is_empty() {
            self.barrier();
        }
    }

    fn barrier(&mut self) {
        put!(self.line(), "{\"name\": \"nop\"}");
        self.unfenced.clear();
        self.has_waited = false;
    }
}

/// Chunks of a buffer that an operation refers to.
pub(super) struct OperandChunks {
    pub(super) buffer: BufferOwner,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// Owner of a buffer.
pub(super) enum BufferOwner {
    /// The GPU itself; holds the letter of the buffer.
    Own(char),
    /// A peer; holds the position among the remote buffers of the thread block.
    Remote(u32),
    /// A group of GPUs; holds the position among the switch channels of the thread block.
    Switch(u32),
}

impl OperandChunks {
    pub(super) fn put(&self, text: &mut String) {
        match self.buffer {
            BufferOwner::Own(letter) => put!(text, "{\"type\": \"", letter, "\""),
            BufferOwner::Remote(position) => put!(text, "{\"buffer_id\": ", position),
            BufferOwner::Switch(position) => put!(text, "{\"switch_channel_id\": ", position),
        }
        put!(text, ", \"index\": ", self.index, ", \"size\": ", self.size, "}");
    }
}
