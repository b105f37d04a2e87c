//! Profile parameters from `gpu bench` results, alone or before a fit to collectives.

use std::path::PathBuf;

use fabricast_sim::profile::Profile;
use fabricast_topologies::read::{Limit, text_of_file};
use fabricast_validate::calibrate::physical::{self, Told};
use fabricast_validate::gpu::bench::{self, Bench};
use fabricast_validate::measured::gpu_run;
use serde::Serialize;

use super::figure::Figure;
use crate::args::CalibrateArgs;
use crate::failure::Failure;
use crate::output::{self, Format, Output};
use crate::setup;

/// Benchmark with its file name.
pub struct Benchmark {
    pub bench: Bench,
    pub file: String,
}

/// Separates benchmarks (JSON) from times of collectives (manifests, and JSON of `gpu run`).
pub fn split(paths: &[PathBuf]) -> Result<(Vec<Benchmark>, Vec<PathBuf>), Failure> {
    let (mut benches, mut manifests) = (Vec::new(), Vec::new());
    for path in paths {
        if path.extension().is_some_and(|extension| extension == "json") {
            let file = path.display().to_string();
            let text = text_of_file(path, Limit::LOG)?;
            if !gpu_run::is_run(&text) {
                benches.push(Benchmark { bench: bench::read(&text, &file)?, file });
                continue;
            }
        }
        manifests.push(path.clone());
    }
    Ok((benches, manifests))
}

/// Sets the parameters that benchmarks determine; later benchmarks take precedence.
///
/// # Errors
/// [`Failure`]: a benchmark determines no parameter.
pub fn tell(profile: &mut Profile, benches: &[Benchmark]) -> Result<Vec<Told>, Failure> {
    let mut told: Vec<Told> = Vec::new();
    for Benchmark { bench, file } in benches {
        let figures = physical::tell(profile, bench)?;
        if figures.is_empty() {
            return Err(Failure::input(format!(
                "{file}: tells nothing of a profile: expected rates between the host and a GPU, or copies over NVLink"
            )));
        }
        told.retain(|old| figures.iter().all(|new| new.name != old.name));
        told.extend(figures);
    }
    Ok(told)
}

#[derive(Serialize)]
struct Json<'a> {
    profile: &'a str,
    parameters: Vec<Figure>,
}

/// Creates a profile from benchmarks alone. Parameters that they do not determine come from the starting profile.
pub fn run(args: &CalibrateArgs, benches: &[Benchmark], output: &Output) -> Result<(), Failure> {
    let mut profile = match (&args.profile, benches.first()) {
        (Some(name), _) => setup::named_profile(name)?,
        (None, Some(first)) => Profile::for_fabric(&first.bench.probe.fabric()?)?,
        (None, None) => return Err(Failure::input("nothing to calibrate with")),
    };
    if !args.hold_out.is_empty() {
        return Err(Failure::input("--hold-out leaves out rows of collectives, and benchmarks have none"));
    }
    let told = tell(&mut profile, benches)?;
    if let Some(name) = &args.name {
        profile.name.clone_from(name);
    }
    let measured = benches.last().and_then(|last| last.bench.date.get(..10)).map(str::to_owned);
    if let Some(date) = args.date.clone().or(measured) {
        profile.date = date;
    }
    let written = match output.format {
        Format::Json => {
            let parameters = told.into_iter().map(Figure::from).collect();
            output::json(&Json { profile: &profile.name, parameters })?
        }
        Format::Text => told.iter().map(line).collect(),
        Format::Csv => {
            let rows = told
                .iter()
                .map(|told| format!("{},{},{},{},{}\n", told.name, told.value, told.low, told.high, told.unit));
            std::iter::once("parameter,value,low,high,unit\n".to_owned()).chain(rows).collect()
        }
    };
    let text = profile.to_toml();
    let beside = output.file.as_deref().map(|path| (path, text.as_bytes()));
    Output { file: None, ..output.clone() }.write_with(&written, beside)
}

fn line(told: &Told) -> String {
    let Told { name, value, low, high, unit } = told;
    format!("{name:<40} {value:>8.4} {unit:<3} measured {low:.4} to {high:.4}\n")
}
