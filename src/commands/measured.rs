//! Selection of measured data for plans, and warnings about rejected or contradictory rows.

use std::mem::discriminant;
use std::path::PathBuf;

use fabricast_libraries::Library;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::Measurements;
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Profile, Software};
use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_validate::measured::manifest::{self, LoadedManifest, Measurement};
use fabricast_validate::measured::{LibraryName, RejectedRow};
use fabricast_validate::measured_strategy::Strategies;

use super::format_count;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum number of warnings of one kind; further ones are counted.
const MAX_WARNINGS: usize = 20;

/// Warns of rejected and contradictory rows on standard error.
pub fn warn(loaded: &LoadedManifest, output: &Output) {
    let rejected = loaded.measurements.iter().flat_map(rejected_rows);
    let contradictory = loaded.contradictions.iter().map(|contradiction| {
        let (short, long) = (&contradiction.shortest, &contradiction.longest);
        format!(
            "{} is {} at {} and {} at {}: these contradict each other",
            contradiction.bytes, short.1, short.0, long.1, long.0
        )
    });
    for warnings in [rejected.collect::<Vec<_>>(), contradictory.collect()] {
        for warning in warnings.iter().take(MAX_WARNINGS) {
            output.warn(warning);
        }
        if warnings.len() > MAX_WARNINGS {
            output.warn(&format!("and {} more of this kind; JSON has all", warnings.len() - MAX_WARNINGS));
        }
    }
}

/// Number of rows with one kind of reason that are listed separately; more are summarized.
const MAX_LISTED: usize = 5;

/// Warnings of the rejected rows of a measurement. Many rows that are rejected for one kind of reason share a warning.
fn rejected_rows(measurement: &Measurement) -> Vec<String> {
    let mut kinds: Vec<Vec<&RejectedRow>> = Vec::new();
    for rejected in &measurement.rejected {
        let is_alike = |kind: &&mut Vec<&RejectedRow>| {
            kind.first().is_some_and(|first| discriminant(&first.reason) == discriminant(&rejected.reason))
        };
        match kinds.iter_mut().find(is_alike) {
            Some(kind) => kind.push(rejected),
            None => kinds.push(vec![rejected]),
        }
    }
    let file = measurement.file.display();
    let line = |rejected: &RejectedRow| format!("{file}:{}: skipped: {}", rejected.line, rejected.reason);
    let warnings = |kind: Vec<&RejectedRow>| match kind.as_slice() {
        [first, .., last] if kind.len() > MAX_LISTED => {
            let more = format_count(kind.len() as u64 - 1, "more row");
            vec![format!("{}; {more} up to line {} for such reasons (JSON has all)", line(first), last.line)]
        }
        few => few.iter().copied().map(line).collect(),
    };
    kinds.into_iter().flat_map(warnings).collect()
}

/// Criteria by which measurements are selected for a plan.
pub struct MeasurementFilter<'a> {
    /// Number of ranks and number of hosts of the plan.
    pub ranks_and_hosts: (u32, u32),
    /// Launch mode of the plan's calls, which measurements must have.
    pub mode: LaunchMode,
    /// Fabric whose GPU generation must match.
    pub fabric: &'a Fabric,
    /// Library whose default choices are shown.
    pub library: Option<Library>,
    /// Restriction of the candidates, possibly to that library.
    pub restriction: &'a Restriction,
}

/// Numbers of rejected rows by reason.
#[derive(Default)]
struct RejectedRows {
    launches: u64,
    gpus: u64,
    libraries: u64,
    unknown: u64,
}

/// Selects the measured times that apply to a plan: those with the plan's numbers of ranks and hosts and its launch
/// mode, on GPUs of the same generation, with the library's minor release. Rows whose strategy is unknown are omitted.
///
/// # Errors
/// [`Failure`]: a manifest or one of its files cannot be read or is invalid.
pub fn for_plan(
    manifests: &[PathBuf],
    filter: &MeasurementFilter<'_>,
    output: &Output,
) -> Result<Measurements, Failure> {
    let mut measurements = Measurements::default();
    let mut rejected = RejectedRows::default();
    for path in manifests {
        let loaded = manifest::load(path)?;
        warn(&loaded, output);
        for measurement in &loaded.measurements {
            let configuration = &measurement.configuration;
            let rows = measurement.rows.len() as u64;
            let same_configuration = (measurement.ranks(), configuration.nodes) == filter.ranks_and_hosts
                && (configuration.launch, configuration.processes) == (filter.mode.launch, filter.mode.processes);
            if !same_configuration {
                rejected.launches += rows;
                continue;
            }
            if capability(&measurement.fabric) != capability(filter.fabric) {
                rejected.gpus += rows;
                continue;
            }
            if !filter.matches_library(measurement)? {
                rejected.libraries += rows;
                continue;
            }
            let router = Router::new(&measurement.fabric, RouteOptions::default());
            let strategies = Strategies::new(measurement, &router);
            for row in &measurement.rows {
                match strategies.strategy(row) {
                    Some(strategy) => measurements.add(configuration.collective, row.bytes, strategy, row.measured()),
                    None => rejected.unknown += 1,
                }
            }
        }
    }
    let messages = rejected.messages(filter);
    if measurements.is_empty() && !manifests.is_empty() {
        let (ranks, hosts) = filter.ranks_and_hosts;
        let reasons = if messages.is_empty() { String::new() } else { format!(" ({})", messages.join("; ")) };
        return Err(Failure::input_with_help(
            format!("--measured: no time of {ranks} ranks on {hosts} hosts, with the launch mode of the plan{reasons}"),
            "--launch, --processes, --nodes, --gpus and --library select others",
        ));
    }
    messages.iter().for_each(|message| output.warn(&format!("measured: {message}")));
    if !manifests.is_empty() {
        let RejectedRows { launches, unknown, .. } = rejected;
        output.detail(&format!(
            "measured: {} sizes; {launches} rows are of other ranks, hosts or launches, {unknown} of unknown algorithm and protocol",
            measurements.len()
        ));
    }
    Ok(measurements)
}

/// Compute capability × 10 of a fabric's first GPU, which identifies the generation.
fn capability(fabric: &Fabric) -> Option<u32> {
    fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
        Figures::Gpu(figures) => figures.compute_capability,
        _ => None,
    })
}

impl RejectedRows {
    fn messages(&self, filter: &MeasurementFilter<'_>) -> Vec<String> {
        let message =
            |rows: u64, reason: String| (rows > 0).then(|| format!("{} skipped: {reason}", format_count(rows, "row")));
        let library = filter.library.map_or_else(|| "the library".to_owned(), |library| library.to_string());
        let gpus = message(self.gpus, format!("of GPUs of another generation than those of {}", filter.fabric.name()));
        let libraries = message(self.libraries, format!("not of {library} or its minor release"));
        gpus.into_iter().chain(libraries).collect()
    }
}

impl MeasurementFilter<'_> {
    /// Returns true if a measurement was made with the requested library and minor release. A measurement without a
    /// library is assumed to use the NCCL release of the profile that best matches its fabric. Kernels of other
    /// software are accepted if candidates are not restricted to the library.
    fn matches_library(&self, measurement: &Measurement) -> Result<bool, Failure> {
        let Some(requested) = self.library else { return Ok(true) };
        let release = |version: &str| -> Vec<String> { version.split('.').take(2).map(str::to_owned).collect() };
        let is_release = |version: &str| {
            let requested = requested.to_string();
            requested.split_once('-').is_some_and(|(_, requested)| release(requested) == release(version))
        };
        let Some(library) = &measurement.configuration.library else {
            let nearest = Profile::nearest(&measurement.fabric, Software::Nccl)?.library;
            return Ok(match requested {
                Library::Nccl(_) => nearest.strip_prefix("nccl-").is_some_and(is_release),
                Library::Rccl(_) => nearest.strip_prefix("rccl-").is_some_and(is_release),
                Library::OpenMpi(_) => false,
            });
        };
        Ok(match (library.name, requested) {
            (LibraryName::Nccl, Library::Nccl(_))
            | (LibraryName::Rccl, Library::Rccl(_))
            | (LibraryName::OpenMpi, Library::OpenMpi(_)) => is_release(&library.version),
            (LibraryName::Nccl | LibraryName::Rccl | LibraryName::OpenMpi, _) => false,
            _ => self.restriction.library.is_none(),
        })
    }
}
