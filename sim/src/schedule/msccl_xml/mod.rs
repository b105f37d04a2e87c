//! Reader and writer of MSCCL's algorithm files, which MSCCL's runtime and RCCL execute.
//!
//! ```xml
//! <algo name="a" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="1"
//!       minBytes="0" maxBytes="65536">
//!   <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
//!     <tb id="0" send="1" recv="1" chan="0">
//!       <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
//! ```
//!
//! Every GPU has thread blocks that execute their steps in sequence. A thread block sends to at most one peer and
//! receives from at most one. Module `lower` defines the translation of steps. Semantics follow the interpreter
//! (`src/device/msccl_kernel_impl.h` and `src/misc/msccl/msccl_parser.cc` of ROCm/rccl, from microsoft/msccl).
//!
//! A file is for a range of sizes, a schedule for one: the reader takes the largest, `Schedule::with_bytes` gives others.

mod assign;
mod deadlock;
mod hazards;
mod lower;
mod pair;
mod parse;
mod relay;
mod tag;
#[cfg(test)]
mod tests;
mod thread_block;
mod write;

pub use write::to_xml;
pub(super) use write::write_xml;

use super::Schedule;
use super::chunk_numbering::ChunkNumbering;
use super::file_format::{CallSizes, FormatError, Source};

/// Reads an MSCCL file. `source` names the text in errors.
///
/// # Errors
/// [`FormatError`] with line and column, which names the step: invalid XML, another format, steps of unknown types,
/// sends without a receive, chunks that do not exist, steps that wait for each other.
pub fn from_xml(text: &str, source: &str) -> Result<Schedule, FormatError> {
    from_xml_for(text, source).map(|(schedule, _)| schedule)
}

/// Reads an MSCCL file, and returns the schedule with the smallest and largest call size for which the file is valid.
/// The largest is `u64::MAX` if unlimited.
///
/// # Errors
/// [`FormatError`], as [`from_xml`].
pub fn from_xml_for(text: &str, source: &str) -> Result<(Schedule, CallSizes), FormatError> {
    let source = Source { text, name: source };
    let algo = parse::parse(source)?;
    Ok((lower::lower(source, &algo)?, ChunkNumbering::sizes(algo.min_bytes, algo.max_bytes)))
}
