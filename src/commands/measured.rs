//! What is said of measured data as it is read: rows left out, figures that contradict each other.

use std::path::PathBuf;

use fabricast_planner::plan::Measurements;
use fabricast_sim::LaunchMode;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_validate::measured::manifest::{self, Loaded};
use fabricast_validate::strategy_of::Strategies;

use crate::failure::Failure;
use crate::output::Output;

/// Most warnings of one kind; the rest are counted.
const MOST_WARNINGS: usize = 20;

/// What cannot be used or believed, on standard error.
pub fn warn(loaded: &Loaded, output: &Output) {
    let rejected = loaded.measurements.iter().flat_map(|one| {
        one.rejected
            .iter()
            .map(|rejected| format!("{}:{}: left out: {}", one.file.display(), rejected.line, rejected.reason))
    });
    let contradictory = loaded.contradictions.iter().map(|found| {
        let (short, long) = (&found.shortest, &found.longest);
        format!("{} is {} at {} and {} at {}: both cannot be", found.bytes, short.1, short.0, long.1, long.0)
    });
    for warnings in [rejected.collect::<Vec<_>>(), contradictory.collect()] {
        for warning in warnings.iter().take(MOST_WARNINGS) {
            output.warn(warning);
        }
        if warnings.len() > MOST_WARNINGS {
            output.warn(&format!("and {} more of this kind; JSON has all", warnings.len() - MOST_WARNINGS));
        }
    }
}

/// The times of manifests that a plan's picks may be compared by: of as many ranks and hosts, launched alike; those of
/// which it is not known what ran are left out.
pub fn for_plan(
    manifests: &[PathBuf],
    (ranks, hosts): (u32, u32),
    mode: LaunchMode,
    output: &Output,
) -> Result<Measurements, Failure> {
    let mut found = Measurements::default();
    let (mut others, mut unknown) = (0u64, 0u64);
    for path in manifests {
        let loaded = manifest::load(path)?;
        warn(&loaded, output);
        for measurement in &loaded.measurements {
            let configuration = &measurement.configuration;
            let alike = measurement.ranks() == ranks
                && configuration.nodes == hosts
                && (configuration.launch, configuration.processes) == (mode.launch, mode.processes);
            if !alike {
                others += measurement.rows.len() as u64;
                continue;
            }
            let router = Router::new(&measurement.fabric, RouteOptions::default());
            let strategies = Strategies::new(measurement, &router);
            for row in &measurement.rows {
                match strategies.of(row) {
                    Some(strategy) => found.add(configuration.collective, row.bytes, strategy, row.measured()),
                    None => unknown += 1,
                }
            }
        }
    }
    if found.is_empty() && !manifests.is_empty() {
        return Err(Failure::input_with_help(
            format!("--measured: no time of {ranks} ranks on {hosts} hosts, launched as the plan's calls are"),
            "--launch, --processes, --nodes and --gpus say which are wanted",
        ));
    }
    if !manifests.is_empty() {
        output.detail(&format!(
            "measured: {} sizes; {others} rows are of other ranks, hosts or launches, of {unknown} it is not known what ran",
            found.len()
        ));
    }
    Ok(found)
}
