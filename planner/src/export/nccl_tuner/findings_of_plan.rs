//! Checks fabricast's own table against a fabric, through the equivalent CSV.

use super::from_plan::cell;
use super::{FromPlan, Machine, findings};
use crate::export::{Finding, SavedPlan};
use crate::library::nccl::{Algo, Function};

/// Returns the problems of a plan's ranges for NCCL: unsupported combinations, too many channels, sizes without a
/// range. Unsupported strategies are reported only for collectives that have ranges but no rows; rows have substitutes.
#[must_use]
pub fn findings_of_plan(plan: &SavedPlan, machine: Machine<'_>) -> Vec<Finding> {
    let ranges = plan.ranges_alone().filter(|range| Function::of(range.collective).is_some());
    let refused = ranges.filter_map(|range| {
        let why = cell(range.collective, &range.pick()).err()?;
        let (first, last) = (range.min_bytes.0, range.max_bytes.0);
        let message = format!("{} of {first} to {last} bytes: {}: {why}", range.collective, range.pick());
        // Kernels of other software are outside NCCL's scope; an algorithm of NCCL's is an error.
        Some(match Algo::of(range.algorithm) {
            Some(_) => Finding::error(None, message),
            None => Finding::warning(None, message),
        })
    });
    let mut found: Vec<Finding> = refused.collect();
    let table = FromPlan::new(plan).table;
    let speaks = |function| plan.ranges.iter().any(|range| Function::of(range.collective) == Some(function));
    let of_cells = findings(&table, machine).into_iter().filter(|finding| {
        // Collectives that were not planned are not reported as missing.
        let unplanned =
            |function: &Function| finding.message.starts_with(&format!("{function} has no row")) && !speaks(*function);
        !Function::ALL.iter().any(unplanned)
    });
    found.extend(of_cells);
    found
}
