//! Profile parameters from `gpu bench` results, alone or before a fit to collectives.

use std::path::PathBuf;

use fabricast_sim::profile::Profile;
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_validate::calibrate::benchmark::{self, BenchmarkFigure};
use fabricast_validate::gpu::bench::{self, Bench};
use fabricast_validate::measured::gpu_run;
use schemars::JsonSchema;
use serde::Serialize;

use super::figure::ParameterEstimate;
use crate::args::CalibrateArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::setup;

/// Benchmark with its file name.
pub struct Benchmark {
    pub bench: Bench,
    pub file: String,
}

/// Separates benchmarks (JSON) from times of collectives (manifests, and JSON of `gpu run`) by their contents.
///
/// # Errors
/// [`Failure`]: a file cannot be read, or a benchmark is invalid.
pub fn split(paths: &[PathBuf]) -> Result<(Vec<Benchmark>, Vec<PathBuf>), Failure> {
    let (mut benches, mut manifests) = (Vec::new(), Vec::new());
    for path in paths {
        let text = read_text_file(path, Limit::LOG)?;
        if text.trim_start().starts_with('{') && !gpu_run::is_run(&text) {
            let file = path.display().to_string();
            benches.push(Benchmark { bench: bench::read(&text, &file)?, file });
        } else {
            manifests.push(path.clone());
        }
    }
    Ok((benches, manifests))
}

/// Sets the parameters that benchmarks determine; later benchmarks take precedence.
///
/// # Errors
/// [`Failure`]: a benchmark determines no parameter.
pub fn apply_benchmarks(profile: &mut Profile, benches: &[Benchmark]) -> Result<Vec<BenchmarkFigure>, Failure> {
    let mut estimates: Vec<BenchmarkFigure> = Vec::new();
    for Benchmark { bench, file } in benches {
        let figures = benchmark::apply_benchmark(profile, bench)?;
        if figures.is_empty() {
            return Err(Failure::input(format!(
                "{file}: determines no parameter of a profile: expected rates between the host and a GPU, or copies over NVLink"
            )));
        }
        estimates.retain(|old| figures.iter().all(|new| new.name != old.name));
        estimates.extend(figures);
    }
    Ok(estimates)
}

/// JSON of `calibrate` with benchmarks.
#[derive(Serialize, JsonSchema)]
pub struct PhysicalCalibrationJson<'a> {
    /// Name of the profile.
    profile: &'a str,
    /// Parameters that the benchmarks determine.
    parameters: Vec<ParameterEstimate>,
}

/// Creates a profile from benchmarks alone. Parameters that the benchmarks do not determine come from the starting
/// profile.
pub fn run(args: &CalibrateArgs, benches: &[Benchmark], output: &Output) -> Result<(), Failure> {
    let mut profile = match (&args.profile, benches.first()) {
        (Some(name), _) => setup::named_profile(name)?,
        (None, Some(first)) => Profile::for_fabric(&first.bench.probe.fabric()?)?,
        (None, None) => return Err(Failure::input("nothing to calibrate with")),
    };
    if !args.hold_out.is_empty() {
        return Err(Failure::input("--hold-out is for rows of collectives, and benchmarks have none"));
    }
    let estimates = apply_benchmarks(&mut profile, benches)?;
    if let Some(name) = &args.name {
        profile.name.clone_from(name);
    }
    let measured_date = benches.last().and_then(|last| last.bench.date.get(..10)).map(str::to_owned);
    if let Some(date) = args.date.clone().or(measured_date) {
        profile.date = date;
    }
    let written = match output.format {
        Format::Json => {
            let parameters = estimates.into_iter().map(ParameterEstimate::from).collect();
            output::json(
                &Document::BenchmarkParameters.with(&PhysicalCalibrationJson { profile: &profile.name, parameters }),
            )?
        }
        Format::Text => estimates.iter().map(line).collect(),
        Format::Csv => {
            let rows = estimates
                .iter()
                .map(|row| format!("{},{},{},{},{}\n", row.name, row.value, row.low, row.high, row.unit));
            std::iter::once("parameter,value,low,high,unit\n".to_owned()).chain(rows).collect()
        }
    };
    let text = profile.to_toml();
    let additional_file = output.file.as_deref().map(|path| AdditionalFile { path, content: text.as_bytes() });
    output.to_stdout().write_with(&written, additional_file)
}

fn line(estimate: &BenchmarkFigure) -> String {
    let BenchmarkFigure { name, value, low, high, unit } = estimate;
    format!("{name:<40} {value:>8.4} {unit:<3} measured {low:.4} to {high:.4}\n")
}
