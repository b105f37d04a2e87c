//! Checks fabricast's own table against a fabric, through the equivalent CSV.

use super::from_plan::cell;
use super::{CheckContext, ConvertedTable, findings};
use crate::export::{Finding, SavedPlan};
use fabricast_libraries::nccl::{Algo, Function};

/// Returns the problems of a plan's ranges for NCCL: unsupported combinations, excessive channel counts, sizes without
/// a range. Unsupported strategies are reported only for collectives that have ranges but no rows; for rows, exports
/// use a substitute strategy.
#[must_use]
pub fn plan_findings(plan: &SavedPlan, context: CheckContext<'_>) -> Vec<Finding> {
    let ranges = plan.ranges_without_rows().filter(|range| Function::from_collective(range.collective).is_some());
    let unsupported = ranges.filter_map(|range| {
        let reason = cell(range.collective, &range.pick()).err()?;
        let (first, last) = (range.min_bytes.0, range.max_bytes.0);
        let message = format!("{} of {first} to {last} bytes: {}: {reason}", range.collective, range.pick());
        // NCCL does not run kernels of other software, so they are not checked; an unsupported algorithm of NCCL is an
        // error.
        Some(match Algo::from_algorithm(range.algorithm) {
            Some(_) => Finding::error(None, message),
            None => Finding::warning(None, message),
        })
    });
    let mut reported: Vec<Finding> = unsupported.collect();
    let table = ConvertedTable::new(plan).table;
    let has_ranges =
        |function| plan.ranges.iter().any(|range| Function::from_collective(range.collective) == Some(function));
    let table_findings = findings(&table, context).into_iter().filter(|finding| {
        // Collectives that were not planned are not reported as missing.
        let unplanned = |function: &Function| {
            finding.message.starts_with(&format!("{function} has no row")) && !has_ranges(*function)
        };
        !Function::ALL.iter().any(unplanned)
    });
    reported.extend(table_findings);
    reported
}
