//! What is odd about a table that can be read.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It works, and perhaps not as meant.
    Warning,
    /// The row cannot be taken.
    Error,
}

/// Something that is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The line, from 1; `None` for what is missing or has no line of its own.
    pub line: Option<u32>,
    /// How bad it is.
    pub severity: Severity,
    /// What.
    pub message: String,
}

impl Finding {
    /// Something that works, and perhaps not as meant.
    #[must_use]
    pub fn warning(line: Option<u32>, message: impl Into<String>) -> Self {
        Self { line, severity: Severity::Warning, message: message.into() }
    }

    /// Something that cannot be taken.
    #[must_use]
    pub fn error(line: Option<u32>, message: impl Into<String>) -> Self {
        Self { line, severity: Severity::Error, message: message.into() }
    }
}
