//! Contents of trace files.

/// Trace file: its name for errors, and its contents.
pub type Contents = (String, Vec<u8>);
