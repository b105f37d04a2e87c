//! What is wrong with a table or a saved plan, always with the place.

use std::ops::Range;

use fabricast_topologies::{Origin, Place};

/// A file that cannot be read as what it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct TableError {
    /// File, line, column.
    pub place: Place,
    /// What stands there and what was expected.
    pub message: String,
}

impl TableError {
    /// At a byte range of a text.
    #[must_use]
    pub fn at(source: &str, text: &str, bytes: Range<usize>, message: impl Into<String>) -> Self {
        Self { place: Place::in_text(source, text, bytes), message: message.into() }
    }

    /// Of a file as a whole.
    #[must_use]
    pub fn of(source: &str, message: impl Into<String>) -> Self {
        Self { place: Place::of_source(source), message: message.into() }
    }

    /// What the JSON reader says of a part of a text, at its place.
    #[must_use]
    pub fn json(origin: Origin<'_>, within: Range<usize>, error: &serde_json::Error) -> Self {
        let (at, message) = origin.json_fault(within, error);
        Self { place: origin.place(at), message }
    }
}
