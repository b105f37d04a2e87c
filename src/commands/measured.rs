//! Selection of measured data for plans, and warnings about rejected or contradictory rows.

use std::path::PathBuf;

use fabricast_planner::library::Library;
use fabricast_planner::plan::Measurements;
use fabricast_planner::strategy::Restriction;
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Profile, Software};
use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_validate::measured::LibraryName;
use fabricast_validate::measured::manifest::{self, Loaded, Measurement};
use fabricast_validate::strategy_of::Strategies;

use super::counted;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum number of warnings of one kind; further ones are counted.
const MOST_WARNINGS: usize = 20;

/// Warns of rejected and contradictory rows on standard error.
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

/// Criteria by which measurements are selected for a plan.
pub struct Wanted<'a> {
    /// Numbers of ranks and hosts.
    pub place: (u32, u32),
    /// Launch mode of calls.
    pub mode: LaunchMode,
    /// Fabric whose GPU generation must match.
    pub fabric: &'a Fabric,
    /// Library whose default choices are shown.
    pub library: Option<Library>,
    /// Restriction of the picks, possibly to that library.
    pub restriction: &'a Restriction,
}

/// Rejected rows by reason.
#[derive(Default)]
struct LeftOut {
    launches: u64,
    gpus: u64,
    libraries: u64,
    unknown: u64,
}

/// Selects the measured times that apply to a plan: equal numbers of ranks and hosts, equal launch mode, GPUs of the
/// same generation, and the library's minor release. Rows whose strategy is unknown are left out.
pub fn for_plan(manifests: &[PathBuf], wanted: &Wanted<'_>, output: &Output) -> Result<Measurements, Failure> {
    let mut found = Measurements::default();
    let mut left_out = LeftOut::default();
    for path in manifests {
        let loaded = manifest::load(path)?;
        warn(&loaded, output);
        for measurement in &loaded.measurements {
            let configuration = &measurement.configuration;
            let rows = measurement.rows.len() as u64;
            let alike = (measurement.ranks(), configuration.nodes) == wanted.place
                && (configuration.launch, configuration.processes) == (wanted.mode.launch, wanted.mode.processes);
            if !alike {
                left_out.launches += rows;
                continue;
            }
            if capability(&measurement.fabric) != capability(wanted.fabric) {
                left_out.gpus += rows;
                continue;
            }
            if !wanted.is_by_its_library(measurement)? {
                left_out.libraries += rows;
                continue;
            }
            let router = Router::new(&measurement.fabric, RouteOptions::default());
            let strategies = Strategies::new(measurement, &router);
            for row in &measurement.rows {
                match strategies.of(row) {
                    Some(strategy) => found.add(configuration.collective, row.bytes, strategy, row.measured()),
                    None => left_out.unknown += 1,
                }
            }
        }
    }
    let told = left_out.told(wanted);
    if found.is_empty() && !manifests.is_empty() {
        let (ranks, hosts) = wanted.place;
        let why = if told.is_empty() { String::new() } else { format!(" ({})", told.join("; ")) };
        return Err(Failure::input_with_help(
            format!("--measured: no time of {ranks} ranks on {hosts} hosts, launched as the plan's calls are{why}"),
            "--launch, --processes, --nodes, --gpus and --library say which are wanted",
        ));
    }
    told.iter().for_each(|told| output.warn(&format!("measured: {told}")));
    if !manifests.is_empty() {
        let LeftOut { launches, unknown, .. } = left_out;
        output.detail(&format!(
            "measured: {} sizes; {launches} rows are of other ranks, hosts or launches, of {unknown} it is not known what ran",
            found.len()
        ));
    }
    Ok(found)
}

/// Compute capability × 10 of a fabric's first GPU, which identifies the generation.
fn capability(fabric: &Fabric) -> Option<u32> {
    fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
        Figures::Gpu(figures) => figures.compute_capability,
        _ => None,
    })
}

impl LeftOut {
    fn told(&self, wanted: &Wanted<'_>) -> Vec<String> {
        let told = |rows: u64, what: String| (rows > 0).then(|| format!("{} left out: {what}", counted(rows, "row")));
        let library = wanted.library.map_or_else(|| "the library".to_owned(), |library| library.to_string());
        let gpus = told(self.gpus, format!("of GPUs of another generation than those of {}", wanted.fabric.name()));
        let libraries = told(self.libraries, format!("not of {library} or its minor release"));
        gpus.into_iter().chain(libraries).collect()
    }
}

impl Wanted<'_> {
    /// Returns true if a measurement was made with the requested library and minor release. A measurement that names no
    /// library counts as the NCCL release of the profile nearest to its fabric. Kernels of other software count as
    /// candidates if picks are not restricted to the library.
    fn is_by_its_library(&self, measurement: &Measurement) -> Result<bool, Failure> {
        let Some(wanted) = self.library else { return Ok(true) };
        let release = |version: &str| -> Vec<String> { version.split('.').take(2).map(str::to_owned).collect() };
        let is_release = |version: &str| {
            let wanted = wanted.to_string();
            wanted.split_once('-').is_some_and(|(_, wanted)| release(wanted) == release(version))
        };
        let Some(library) = &measurement.configuration.library else {
            let nearest = Profile::nearest(&measurement.fabric, Software::Nccl)?.library;
            let nearest = nearest.strip_prefix("nccl-").unwrap_or_default();
            return Ok(matches!(wanted, Library::Nccl(_)) && is_release(nearest));
        };
        Ok(match (library.name, wanted) {
            (LibraryName::Nccl, Library::Nccl(_)) | (LibraryName::OpenMpi, Library::OpenMpi(_)) => {
                is_release(&library.version)
            }
            (LibraryName::Nccl | LibraryName::OpenMpi, _) => false,
            _ => self.restriction.library.is_none(),
        })
    }
}
