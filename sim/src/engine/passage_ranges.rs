//! Division of a run into ranges of operations with the same passage (route and latency).

use super::{PerOp, RouteLatency, WorkRun, Workload};

/// Consecutive operations of a run with the same passage (route and latency).
#[derive(Clone, Copy)]
pub(crate) struct PassageRange {
    /// Index within the run of the first operation of the range.
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) passage: RouteLatency,
}

/// Returns the longest ranges of a run's operations that have the same passage, in order of index.
pub(crate) fn passage_ranges(workload: &Workload, run: u32) -> impl Iterator<Item = PassageRange> + '_ {
    let WorkRun { len, passage, .. } = workload.runs[run as usize];
    let (first, len, is_same) = match passage {
        PerOp::Same(entry) => (entry as usize, len.max(1), true),
        PerOp::Each(first) => (first as usize, len, false),
    };
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= len {
            return None;
        }
        let at = start;
        let passage = workload.passages.get(first + if is_same { 0 } else { at as usize });
        start = if is_same { len } else { at + 1 };
        while start < len && workload.passages.are_equal(first + at as usize, first + start as usize) {
            start += 1;
        }
        Some(PassageRange { start: at, len: start - at, passage })
    })
}
