//! Reader and writer of MSCCL++ execution plans.
//!
//! Every GPU has thread blocks that execute their operations in sequence: stores to and loads from memory of peers,
//! local copies and reductions, NVSwitch multicast and reduction, signals and waits. Module `lower` defines the
//! translation of operations. Semantics follow the executor (`src/executor/execution_plan.cc` and
//! `src/include/execution_kernel.hpp` of microsoft/mscclpp).
//!
//! A plan is for a range of sizes, a schedule for one: the reader takes the largest, or 1 MiB if there is no limit;
//! `Schedule::with_bytes` gives others.

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

use super::Schedule;
use super::chunk_numbering::ChunkNumbering;
use super::file_format::{CallSizes, FormatError, Source};

/// Reads an execution plan. `source` names the text in errors.
///
/// # Errors
/// [`FormatError`] with line and column, which names the operation: invalid JSON, another format, operations of unknown
/// or unsupported types, channels, buffers and chunks that do not exist, waits without a signal.
pub fn from_plan(text: &str, source: &str) -> Result<Schedule, FormatError> {
    from_plan_for(text, source).map(|(schedule, _)| schedule)
}

/// Reads an execution plan, and returns the schedule with the smallest and largest call size for which the plan is
/// valid. The largest is `u64::MAX` if unlimited.
///
/// # Errors
/// [`FormatError`], as [`from_plan`].
pub fn from_plan_for(text: &str, source: &str) -> Result<(Schedule, CallSizes), FormatError> {
    let source = Source { text, name: source };
    let plan = parse::parse(source)?;
    Ok((lower::lower(source, &plan)?, ChunkNumbering::sizes(plan.sizes.0, plan.sizes.1)))
}
