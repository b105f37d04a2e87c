//! What a file's trace is written in, and how it is read.

use super::{RankFile, Trace, read_chakra, read_nccl_log, read_table};
use crate::job::JobError;
use fabricast_topologies::Place;

/// A file of a trace: what it is called in errors, and its bytes.
pub type Contents = (String, Vec<u8>);

/// Reads a trace: of several files, or of one whose name ends in `.et`, Chakra traces from rank 0 on; otherwise a log of NCCL where
/// that has a line of it, and a table. `all` is the number of ranks where a line of a table names none.
///
/// # Errors
/// [`JobError`] with the file, and line and column where there are any.
pub fn read(files: &[Contents], all: Option<u32>) -> Result<Trace, JobError> {
    match files {
        [(source, bytes)] if !source.ends_with(".et") => {
            let text = std::str::from_utf8(bytes).map_err(|_| {
                JobError::at(&Place::of_source(source), "no text: expected a table, a log of NCCL or *.0.et")
            })?;
            match text.contains("NCCL INFO") {
                true => read_nccl_log(text, source),
                false => read_table(text, source, all),
            }
        }
        several => {
            let files: Vec<RankFile<'_>> = several.iter().map(|(source, bytes)| RankFile { source, bytes }).collect();
            read_chakra(&files)
        }
    }
}
