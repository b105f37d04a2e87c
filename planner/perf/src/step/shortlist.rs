//! Shortlist of the layouts to simulate.

use fabricast_topologies::{Bytes, SourceLocation};

use super::step_result::TimeError;
use fabricast_workload::job::{Degrees, JobError, Layout};

/// Returns the `max_layouts` layouts with the lowest estimates among those that fit in memory, best first. If none
/// fits, returns the one that needs the least memory. Of layouts that differ only in `interleave`, only the best is
/// returned. Ties are resolved in favour of smaller degrees.
///
/// # Errors
/// Errors of `estimate`.
pub(crate) fn shortlist<E: Ord + Copy>(
    max_layouts: usize,
    all: Vec<Layout>,
    fits: impl Fn(&Layout) -> bool,
    total: impl Fn(&Layout) -> Bytes,
    estimate: impl Fn(&Layout) -> Result<E, TimeError>,
) -> Result<Vec<(E, Layout)>, TimeError> {
    let mut fitting: Vec<Layout> = all.iter().copied().filter(fits).collect();
    if fitting.is_empty() {
        fitting = all.into_iter().min_by_key(|layout| (total(layout), layout.degrees)).into_iter().collect();
    }
    let mut ranked = Vec::with_capacity(fitting.len());
    for layout in fitting {
        ranked.push((estimate(&layout)?, layout.degrees, layout));
    }
    ranked.sort_by_key(|&(estimate, degrees, _)| (estimate, degrees));
    // Of layouts that differ only in `interleave`, the best represents all.
    let mut shortlisted: Vec<(E, Layout)> = Vec::with_capacity(max_layouts);
    for (estimate, degrees, layout) in ranked {
        let stages = |degrees: Degrees| Degrees { interleave: 1, ..degrees };
        if shortlisted.len() < max_layouts
            && shortlisted.iter().all(|(_, known)| stages(known.degrees) != stages(degrees))
        {
            shortlisted.push((estimate, layout));
        }
    }
    Ok(shortlisted)
}

/// Creates the error for a job that no layout can divide among `ranks` ranks. `quantities`: names of the indivisible
/// quantities.
pub(crate) fn indivisible_error(location: &SourceLocation, ranks: usize, quantities: &str) -> JobError {
    JobError {
        location: location.clone(),
        message: format!("no parallel layout of the job over {ranks} ranks: its {quantities} do not divide"),
        help: Some("name the intended degrees to see which of them does not divide".to_owned()),
    }
}
