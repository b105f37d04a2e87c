//! What is wrong with a table or a saved plan, always with the place.

use fabricast_topologies::Place;

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
    pub fn at(source: &str, text: &str, bytes: std::ops::Range<usize>, message: impl Into<String>) -> Self {
        Self { place: Place::in_text(source, text, bytes), message: message.into() }
    }

    /// Of a file as a whole.
    #[must_use]
    pub fn of(source: &str, message: impl Into<String>) -> Self {
        Self { place: Place::of_source(source), message: message.into() }
    }

    /// What the JSON reader says, at its place.
    #[must_use]
    pub fn json(source: &str, text: &str, error: &serde_json::Error) -> Self {
        let said = error.to_string();
        let message = said.split(" at line ").next().unwrap_or(&said).to_owned();
        let line_start = match error.line() {
            0 | 1 => 0,
            line => text.match_indices('\n').nth(line - 2).map_or(text.len(), |(at, _)| at + 1),
        };
        // Columns of serde_json count bytes, from 1; the error is at the last byte read.
        let at = (line_start + error.column().saturating_sub(1)).min(text.len());
        Self::at(source, text, at..at, message)
    }
}
