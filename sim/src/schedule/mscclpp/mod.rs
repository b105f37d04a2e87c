//! MSCCL++'s execution plans, which its executor runs.
//!
//! Every GPU has thread blocks, which execute their operations one after the other: stores into and loads from memory of
//! peers, local copies and sums, what NVSwitches combine and copy, signals and waits. `lower` says what operations become. Semantics are those of the
//! executor (`src/executor/execution_plan.cc` and `src/include/execution_kernel.hpp` of microsoft/mscclpp).
//!
//! A plan is for a range of sizes and a schedule for one: reading takes the largest, or 1 MiB where there is no limit;
//! `Schedule::scaled` gives others.

mod block_text;
mod fuse;
mod lower;
mod order;
mod parse;
mod sequence;
mod switch;
#[cfg(test)]
mod tests;
mod text;
mod write;
mod write_switch;

pub use write::to_plan;
pub(super) use write::write_plan;

use fabricast_topologies::Bytes;

use super::Schedule;
use super::format::{FormatError, Source};
use super::places::Places;

/// Reads an execution plan. `source` is what errors call the text.
///
/// # Errors
/// [`FormatError`] with line and column, naming the operation: not JSON, not this format, operations of unknown or not
/// supported types, channels, buffers and chunks that do not exist, waits for what never comes.
pub fn from_plan(text: &str, source: &str) -> Result<Schedule, FormatError> {
    from_plan_for(text, source).map(|(schedule, _)| schedule)
}

/// The same, with the first and the last size that it is for; `u64::MAX` where there is no last one.
///
/// # Errors
/// [`FormatError`], as [`from_plan`].
pub fn from_plan_for(text: &str, source: &str) -> Result<(Schedule, (Bytes, Bytes)), FormatError> {
    let source = Source { text, name: source };
    let plan = parse::parse(source)?;
    Ok((lower::lower(source, &plan)?, Places::sizes(plan.sizes.0, plan.sizes.1)))
}
