//! Findings: warnings and errors about the contents of a table that was read successfully.

use schemars::JsonSchema;
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Valid, but perhaps not as intended.
    Warning,
    /// The row cannot be used.
    Error,
}

/// Problem found in a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// Line, from 1; `None` for missing rows and problems without a line.
    pub line: Option<u32>,
    /// Severity of the problem.
    pub severity: Severity,
    /// Description of the problem for the user.
    pub message: String,
}

impl Finding {
    /// Creates a finding about an entry that is valid, but perhaps not as intended.
    #[must_use]
    pub fn warning(line: Option<u32>, message: impl Into<String>) -> Self {
        Self { line, severity: Severity::Warning, message: message.into() }
    }

    /// Creates a finding about an entry that cannot be used.
    #[must_use]
    pub fn error(line: Option<u32>, message: impl Into<String>) -> Self {
        Self { line, severity: Severity::Error, message: message.into() }
    }
}
