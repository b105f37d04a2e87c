//! Errors of tables and saved plans, with the source location.

use std::ops::Range;

use fabricast_topologies::{Origin, Place};

/// File that cannot be read in its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct TableError {
    /// Source location: file, line, column.
    pub place: Place,
    /// Text found and text expected.
    pub message: String,
}

impl TableError {
    /// Creates an error at a byte range of a text.
    #[must_use]
    pub fn at(source: &str, text: &str, bytes: Range<usize>, message: impl Into<String>) -> Self {
        Self { place: Place::in_text(source, text, bytes), message: message.into() }
    }

    /// Creates an error about a whole file.
    #[must_use]
    pub fn of(source: &str, message: impl Into<String>) -> Self {
        Self { place: Place::of_source(source), message: message.into() }
    }

    /// Converts an error of the JSON reader in a part of a text, with its source location.
    #[must_use]
    pub fn json(origin: Origin<'_>, within: Range<usize>, error: &serde_json::Error) -> Self {
        let (at, message) = origin.json_fault(within, error);
        Self { place: origin.place(at), message }
    }
}
