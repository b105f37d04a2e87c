//! Formats of results, and the kinds of paths that they are written to.

use clap::ValueEnum;

/// Format of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// JSON with stable keys, for programs.
    Json,
    /// CSV of one table.
    Csv,
}

/// Kind of path that `-o` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A file.
    File,
    /// A folder, created if missing.
    Folder,
}
