//! MSCCL's algorithm files, which its runtime and RCCL execute.
//!
//! ```xml
//! <algo name="a" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="1"
//!       minBytes="0" maxBytes="65536">
//!   <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
//!     <tb id="0" send="1" recv="1" chan="0">
//!       <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
//! ```
//!
//! Every GPU has thread blocks, which execute their steps one after the other, each with at most one peer to send to and
//! one to receive from. `lower` says what steps become. Semantics are those of the interpreter
//! (`src/device/msccl_kernel_impl.h` and `src/misc/msccl/msccl_parser.cc` of ROCm/rccl, from microsoft/msccl).
//!
//! A file is for a range of sizes and a schedule for one: reading takes the largest, `Schedule::scaled` gives others.

mod assign;
mod hazards;
mod lower;
mod pair;
mod parse;
mod relay;
mod tag;
#[cfg(test)]
mod tests;
mod turns;
mod write;

pub use write::to_xml;
pub(super) use write::write_xml;

use fabricast_topologies::Bytes;

use super::Schedule;
use super::format::{FormatError, Source};
use super::places::Places;

/// Reads an MSCCL file. `source` is what errors call the text.
///
/// # Errors
/// [`FormatError`] with line and column, naming the step: not XML, not this format, steps of unknown types, sends that
/// nobody receives, chunks that do not exist, steps that wait for each other.
pub fn from_xml(text: &str, source: &str) -> Result<Schedule, FormatError> {
    from_xml_for(text, source).map(|(schedule, _)| schedule)
}

/// The same, with the first and the last size that it is for; `u64::MAX` where there is no last one.
///
/// # Errors
/// [`FormatError`], as [`from_xml`].
pub fn from_xml_for(text: &str, source: &str) -> Result<(Schedule, (Bytes, Bytes)), FormatError> {
    let source = Source { text, name: source };
    let algo = parse::parse(source)?;
    Ok((lower::lower(source, &algo)?, Places::sizes(algo.min_bytes, algo.max_bytes)))
}
