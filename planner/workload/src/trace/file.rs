//! Detection of the format of trace files, and their reading.

use super::{RankFile, Trace, read_chakra, read_nccl_log, read_table};
use crate::job::JobError;
use fabricast_topologies::SourceLocation;

/// Trace file: its name for errors, and its contents.
pub type Contents = (String, Vec<u8>);

/// Reads a trace. Several files, or one whose name ends in `.et`, are Chakra traces in order of rank. Otherwise the
/// file is an NCCL log if it contains a line of such a log, and a table if not. `all`: number of ranks for table lines
/// that name none.
///
/// # Errors
/// [`JobError`] with the file and, if there are any, line and column.
pub fn read(files: &[Contents], all: Option<u32>) -> Result<Trace, JobError> {
    match files {
        [(source, bytes)] if !source.ends_with(".et") => {
            let text = std::str::from_utf8(bytes).map_err(|_| {
                JobError::at(&SourceLocation::from_source(source), "no text: expected a table, a log of NCCL or *.0.et")
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
