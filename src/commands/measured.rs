//! What is said of measured data as it is read: rows left out, figures that contradict each other.

use std::path::Path;

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

/// The times of a manifest that a plan's picks may be compared by: of as many ranks and hosts, launched alike; those of
/// which it is not known what ran are left out.
pub fn for_plan(
    manifest: &Path,
    (ranks, hosts): (u32, u32),
    mode: LaunchMode,
    output: &Output,
) -> Result<Measurements, Failure> {
    let loaded = manifest::load(manifest)?;
    warn(&loaded, output);
    let mut found = Measurements::default();
    let (mut others, mut unknown) = (0u64, 0u64);
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
    let place = manifest.display();
    if found.is_empty() {
        let launch = format!("{:?}, {:?}", mode.launch, mode.processes).to_lowercase();
        return Err(Failure::input_with_help(
            format!("{place}: no measured time of {ranks} ranks on {hosts} hosts with launch {launch}"),
            "--launch, --processes, --nodes and --gpus say which are wanted",
        ));
    }
    output.detail(&format!(
        "{place}: {others} rows are of other ranks, hosts or launches; of {unknown} it is not known what ran"
    ));
    Ok(found)
}
