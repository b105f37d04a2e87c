//! Errors of tables and saved plans, with the source location.

use std::ops::Range;

use fabricast_topologies::{Origin, SourceLocation};

/// Error of a table or saved plan that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct TableError {
    /// Source location: file, line, column.
    pub location: SourceLocation,
    /// Error message: the text found and the text expected.
    pub message: String,
}

impl TableError {
    /// Creates an error at a byte range of a text. `source` is the name of the file that holds the text.
    #[must_use]
    pub fn new(source: &str, text: &str, bytes: Range<usize>, message: impl Into<String>) -> Self {
        Self { location: SourceLocation::locate(source, text, bytes), message: message.into() }
    }

    /// Creates an error about a whole file, named `source`.
    #[must_use]
    pub fn new_for_file(source: &str, message: impl Into<String>) -> Self {
        Self { location: SourceLocation::from_source(source), message: message.into() }
    }

    /// Converts an error of `serde_json` into an error with line and column. `part` is the byte range of the origin's
    /// text that was parsed.
    #[must_use]
    pub fn from_json_error(origin: Origin<'_>, part: Range<usize>, error: &serde_json::Error) -> Self {
        let (range, message) = origin.locate_json_error(part, error);
        Self { location: origin.locate(range), message }
    }
}
