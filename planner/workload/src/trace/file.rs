//! Detection of the format of trace files, and their reading.

use super::contents::Contents;
use super::gzip::{decompress, head};
use super::nccl_inspector::is_inspector;
use super::{
    RankFile, Trace, read_chakra, read_kineto, read_nccl_inspector, read_nccl_log, read_nccl_profiler, read_table,
};
use crate::job::JobError;
use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::Limit;

/// Number of bytes at the start of a JSON file that identify its format.
const HEAD_BYTES: usize = 1 << 16;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A table or an NCCL log.
    Text,
    NcclInspector,
    NcclProfiler,
    Kineto,
}

/// Reads a trace. A name that ends in `.et` denotes Chakra traces in order of rank. Otherwise the first file decides,
/// which may be in gzip: JSON of PyTorch's profiler (one file per rank), of NCCL's Inspector or of NCCL's example
/// profiler (one file per process); one NCCL log if it contains a line of such a log; one table if not. `all`: number of
/// ranks for table lines that name none.
///
/// # Errors
/// [`JobError`] with the file and, if there are any, line and column.
pub fn read(files: &[Contents], all: Option<u32>) -> Result<Trace, JobError> {
    let Some((source, bytes)) = files.first() else {
        return Err(JobError::at(&SourceLocation::default(), "no trace"));
    };
    if source.ends_with(".et") {
        let files: Vec<RankFile<'_>> = files.iter().map(|(source, bytes)| RankFile { source, bytes }).collect();
        return read_chakra(&files);
    }
    match detect(&head(bytes, HEAD_BYTES)) {
        Format::Kineto => read_kineto(files),
        Format::NcclInspector => read_nccl_inspector(files),
        Format::NcclProfiler => read_nccl_profiler(files),
        Format::Text if files.len() > 1 => {
            let message = "a table or a log of NCCL: expected one file with all ranks, or a JSON trace of each rank";
            Err(JobError::at(&SourceLocation::from_source(source), message))
        }
        Format::Text => {
            let first = decompress(source, bytes, Limit::TRACE)?;
            let text = std::str::from_utf8(&first).map_err(|_| {
                let message =
                    "no text: expected a table, a log of NCCL, *.0.et, or JSON of PyTorch's profiler or NCCL's";
                JobError::at(&SourceLocation::from_source(source), message)
            })?;
            match text.contains("NCCL INFO") {
                true => read_nccl_log(text, source),
                false => read_table(text, source, all),
            }
        }
    }
}

fn detect(head: &[u8]) -> Format {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    match head.trim_ascii_start().first() {
        Some(b'{') if is_inspector(head) => Format::NcclInspector,
        Some(b'{') => Format::Kineto,
        Some(b'[') => Format::NcclProfiler,
        _ => Format::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected_by_content() {
        for (text, expected) in [
            (&b"collective,bytes\n"[..], Format::Text),
            (b"host:1:2 [0] NCCL INFO AllReduce: opCount 0", Format::Text),
            (b"\xef\xbb\xbf\n {\"schemaVersion\": 1, \"traceEvents\": []}", Format::Kineto),
            (b"{\"header\": {}, \"metadata\": {}, \"coll_perf\": {}}", Format::NcclInspector),
            (b"[\n{\"name\": \"Group API\"},\n{}]", Format::NcclProfiler),
            (b"", Format::Text),
        ] {
            assert_eq!(detect(text), expected, "{}", String::from_utf8_lossy(text));
        }
        let two = [("a".to_owned(), b"collective\n".to_vec()), ("b".to_owned(), Vec::new())];
        assert!(read(&two, None).unwrap_err().to_string().starts_with("a: a table or a log of NCCL: expected one"));
    }
}
