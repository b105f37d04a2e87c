//! Text of a thread block's operations: one line per operation, with a barrier of the thread block where an operation
//! must not begin before the preceding ones are done.

use crate::schedule::text::put;
use crate::schedule::units::Stretch;

/// Memory of a rank that an operation accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Touched {
    pub(super) rank: u32,
    pub(super) stretch: Stretch,
    pub(super) writes: bool,
}

impl Touched {
    fn conflicts(self, other: Self) -> bool {
        let apart =
            |a: Stretch, b: Stretch| a.buffer != b.buffer || a.from + a.count <= b.from || b.from + b.count <= a.from;
        (self.writes || other.writes) && self.rank == other.rank && !apart(self.stretch, other.stretch)
    }
}

/// Largest number of tracked accesses without a barrier of the thread block.
const MOST_LOOSE: usize = 64;

/// Writer of a thread block's lines, at the end of a text.
pub(super) struct BlockText<'a> {
    text: &'a mut String,
    is_begun: bool,
    /// Accesses since the last barrier of the thread block.
    loose: Vec<Touched>,
    /// True if the thread block has waited since the last barrier.
    waited: bool,
}

impl<'a> BlockText<'a> {
    pub(super) fn new(text: &'a mut String) -> Self {
        Self { text, is_begun: false, loose: Vec::with_capacity(MOST_LOOSE + 8), waited: false }
    }

    /// Prepares for an operation that accesses this memory; writes a barrier first if needed.
    pub(super) fn touch(&mut self, touched: impl Iterator<Item = Touched> + Clone) {
        let conflict = touched.clone().any(|a| self.loose.iter().any(|b| a.conflicts(*b)));
        if self.waited || conflict || self.loose.len() > MOST_LOOSE {
            self.barrier();
        }
        self.loose.extend(touched);
    }

    /// Starts a new line and returns the text.
    pub(super) fn line(&mut self) -> &mut String {
        if self.is_begun {
            self.text.push_str(",\n            ");
        }
        self.is_begun = true;
        self.text
    }

    /// Starts a line that waits for another thread block; the next operation gets a barrier.
    pub(super) fn wait(&mut self) -> &mut String {
        self.waited = true;
        self.line()
    }

    /// Writes a barrier if any memory has been accessed since the last one.
    pub(super) fn settle(&mut self) {
        if !self.loose.is_empty() {
            self.barrier();
        }
    }

    fn barrier(&mut self) {
        put!(self.line(), "{\"name\": \"nop\"}");
        self.loose.clear();
        self.waited = false;
    }
}

/// Chunks of a buffer, as referred to by an operation.
pub(super) struct Chunks {
    pub(super) buffer: Where,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// Owner of a buffer.
pub(super) enum Where {
    /// The GPU itself, by the buffer's letter.
    Own(char),
    /// A peer, by position among the remote buffers of the thread block.
    Remote(u32),
    /// A group, by position among the switch channels of the thread block.
    Switch(u32),
}

impl Chunks {
    pub(super) fn put(&self, text: &mut String) {
        match self.buffer {
            Where::Own(letter) => put!(text, "{\"type\": \"", letter, "\""),
            Where::Remote(place) => put!(text, "{\"buffer_id\": ", place),
            Where::Switch(place) => put!(text, "{\"switch_channel_id\": ", place),
        }
        put!(text, ", \"index\": ", self.index, ", \"size\": ", self.size, "}");
    }
}
