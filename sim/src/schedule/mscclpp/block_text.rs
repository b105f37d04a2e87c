//! The operations of a thread block as they are written: a line each, and a barrier of the block where one must not begin before
//! those before it are done.

use crate::schedule::text::put;
use crate::schedule::units::Stretch;

/// Memory of a rank that an operation touches.
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

/// More operations without a barrier of the thread block than this are not kept in mind.
const MOST_LOOSE: usize = 64;

/// The lines of a thread block, at the end of a text.
pub(super) struct BlockText<'a> {
    text: &'a mut String,
    is_begun: bool,
    /// What operations since the last barrier of the thread block touch.
    loose: Vec<Touched>,
    /// Whether it has waited since.
    waited: bool,
}

impl<'a> BlockText<'a> {
    pub(super) fn new(text: &'a mut String) -> Self {
        Self { text, is_begun: false, loose: Vec::with_capacity(MOST_LOOSE + 8), waited: false }
    }

    /// Room for an operation that touches this memory: behind a barrier, where it must be.
    pub(super) fn touch(&mut self, touched: impl Iterator<Item = Touched> + Clone) {
        let conflict = touched.clone().any(|a| self.loose.iter().any(|b| a.conflicts(*b)));
        if self.waited || conflict || self.loose.len() > MOST_LOOSE {
            self.barrier();
        }
        self.loose.extend(touched);
    }

    /// Where the next operation is written.
    pub(super) fn line(&mut self) -> &mut String {
        if self.is_begun {
            self.text.push_str(",\n            ");
        }
        self.is_begun = true;
        self.text
    }

    /// A line that waits for another thread block; what comes next is behind a barrier.
    pub(super) fn wait(&mut self) -> &mut String {
        self.waited = true;
        self.line()
    }

    /// What is touched from here on comes behind a barrier of what was, if anything was.
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

/// Chunks of a buffer, as an operation names them.
pub(super) struct Chunks {
    pub(super) buffer: Where,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// Whose buffer.
pub(super) enum Where {
    /// The GPU's own, by letter.
    Own(char),
    /// A peer's, by its place among those that the thread block uses.
    Remote(u32),
    /// That of a group, by the place of its switch channel among those that the thread block uses.
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
