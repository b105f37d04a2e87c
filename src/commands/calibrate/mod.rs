//! `calibrate`: fits a profile to measurements.

mod chart;
pub mod curve;
mod figure;
pub mod json;
pub mod physical;
mod text;

use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{MeasuredNetwork, Profile};
use fabricast_topologies::{Fabric, fabric::Figures};
use fabricast_validate::calibrate::{Calibration, CalibrationRequest, Residual, calibrate, calibrate_network};
use fabricast_validate::compare::Summary;
use fabricast_validate::measured::manifest::{self, Measurement, Role};

use super::measured;
use crate::args::CalibrateArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

/// Measurements and their calibration, from which the outputs are written.
struct CalibrationAnswer<'a> {
    measurements: &'a [Measurement],
    calibration: &'a Calibration,
}

/// Error statistics: of all rows, of rows with forced algorithm and protocol, and of rows whose strategy the library
/// chose.
struct ErrorsByChoice {
    all: Summary,
    forced: Summary,
    chosen: Summary,
}

impl CalibrationAnswer<'_> {
    fn is_forced(&self, row: &Residual) -> bool {
        let configuration = self.measurements.get(row.measurement).map(|measurement| &measurement.configuration);
        configuration.is_some_and(|configuration| configuration.algorithm.is_some() && configuration.protocol.is_some())
    }

    fn by_choice(&self, rows: &[Residual]) -> ErrorsByChoice {
        let summarize = |is_selected: &dyn Fn(&Residual) -> bool| {
            Summary::from_errors(rows.iter().filter(|row| is_selected(row)).map(|row| row.error))
        };
        ErrorsByChoice {
            all: summarize(&|_| true),
            forced: summarize(&|row| self.is_forced(row)),
            chosen: summarize(&|row| !self.is_forced(row)),
        }
    }
}

pub fn run(args: &CalibrateArgs, output: &Output) -> Result<(), Failure> {
    let chart = chart::CalibrationChart::new(args.chart.as_deref(), output)?;
    let (benches, manifests) = physical::split(&args.manifests)?;
    if manifests.is_empty() {
        return physical::run(args, &benches, output);
    }
    if let Some(study) = curve::find_study(&manifests)? {
        return curve::run(args, study, output);
    }
    let mut loaded = Vec::new();
    for path in &manifests {
        loaded.push(manifest::load(path)?);
    }
    for one in &loaded {
        measured::warn(one, output);
    }
    let mut parts = loaded.into_iter().map(|one| one.measurements);
    let (device, launches): (Vec<Measurement>, Vec<Measurement>) = match &args.network {
        Some(name) => (select_network(parts.flatten().collect(), name)?, Vec::new()),
        None => (parts.next().unwrap_or_default(), parts.flatten().collect()),
    };
    let mut base = match (&args.profile, device.first()) {
        (Some(name), _) => setup::named_profile(name)?,
        (None, Some(first)) => Profile::for_fabric(&first.fabric)?,
        (None, None) => return Err(Failure::input("the manifest has no measurement".to_owned())),
    };
    let source_count = base.sources.len();
    physical::apply_benchmarks(&mut base, &benches)?;
    let benchmark_sources = base.sources.split_off(source_count);
    let request = CalibrationRequest {
        device: &device,
        launches: &launches,
        base: &base,
        prior: args.prior,
        hold_out: &args.hold_out,
        monitor: Monitor::default(),
    };
    let fit = if args.network.is_some() { calibrate_network } else { calibrate };
    let mut calibration =
        run_control::with_monitor(output, "fitting", |monitor| fit(CalibrationRequest { monitor, ..request }))?;
    if calibration.without_strategy > 0 {
        output.warn(&format!(
            "{} rows are not used: their algorithm and protocol are unknown",
            calibration.without_strategy
        ));
    }
    let profile = &mut calibration.profile;
    profile.name = args.name.clone().or(args.network.clone()).unwrap_or(base.name.clone());
    profile.date = args.date.clone().unwrap_or(base.date.clone());
    if let Some(first) = device.first() {
        if let Some(library) = &first.configuration.library {
            profile.library = library.to_string();
        }
        (profile.compute_capability, profile.gpus) = gpus(&first.fabric, &base);
    }
    profile.sources =
        sources(&manifests, args.network.as_deref(), MeasurementSets { device: &device, launches: &launches });
    profile.sources.extend(benchmark_sources);
    let measurements: Vec<Measurement> = device.into_iter().chain(launches).collect();
    let answer = CalibrationAnswer { measurements: &measurements, calibration: &calibration };
    let written = match output.format {
        Format::Json => output::json(&Document::Calibration.with(&json::calibration_json(&answer)))?,
        Format::Text => text::calibration_text(&answer, &output.text_options()),
        Format::Csv => super::csv(&text::csv(&answer))?,
    };
    let profile = match (&args.network, measurements.first()) {
        (Some(_), Some(first)) => MeasuredNetwork::from_profile(&calibration.profile, &first.fabric)
            .map(|network| MeasuredNetwork { settings: settings(&first.fabric), ..network }.to_toml())
            .unwrap_or_default(),
        _ => calibration.profile.to_toml(),
    };
    let picture = chart.as_ref().map(|chart| chart.draw(&answer)).transpose()?;
    let pictures = chart.iter().map(chart::CalibrationChart::path).zip(&picture);
    let pictures = pictures.map(|(path, picture)| AdditionalFile { path, content: picture });
    let profiles = output.file.as_deref().map(|path| AdditionalFile { path, content: profile.as_bytes() });
    let additional_files: Vec<_> = profiles.into_iter().chain(pictures).collect();
    output.to_stdout().write_with_files(&written, &additional_files)
}

/// Environment settings that the machine's network plugin makes; `None` if the network of this fabric was not measured.
fn settings(fabric: &Fabric) -> Option<String> {
    MeasuredNetwork::for_machine(fabric).ok().flatten()?.settings
}

/// Returns the measurements over several hosts whose network is the shipped one with this name. If there are none,
/// returns all measurements over several hosts.
fn select_network(measurements: Vec<Measurement>, name: &str) -> Result<Vec<Measurement>, Failure> {
    let mut multi_host = Vec::new();
    for measurement in measurements.into_iter().filter(|measurement| measurement.configuration.nodes > 1) {
        let network = MeasuredNetwork::for_machine(&measurement.fabric)?;
        multi_host.push((network.is_some_and(|network| network.name == name), measurement));
    }
    let has_match = multi_host.iter().any(|(is_match, _)| *is_match);
    Ok(multi_host
        .into_iter()
        .filter(|(is_match, _)| *is_match || !has_match)
        .map(|(_, measurement)| measurement)
        .collect())
}

/// Compute capability and model of a fabric's GPUs, with those of the starting profile as defaults.
fn gpus(fabric: &Fabric, base: &Profile) -> (u32, Vec<String>) {
    let figures = fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
        Figures::Gpu(figures) => Some(figures),
        _ => None,
    });
    let capability = figures.and_then(|gpu| gpu.compute_capability).unwrap_or(base.compute_capability);
    // The first word identifies the model: `A100 SXM 80GB` becomes `A100`.
    let model = figures.and_then(|gpu| gpu.model.as_deref()?.split_whitespace().next());
    (capability, model.map_or_else(|| base.gpus.clone(), |model| vec![model.to_owned()]))
}

/// Measurements, divided by the cost parameters that they determine.
#[derive(Clone, Copy)]
struct MeasurementSets<'a> {
    device: &'a [Measurement],
    /// Measurements of other launch modes, which determine launch costs only.
    launches: &'a [Measurement],
}

/// Sources of the profile, as texts: the manifests with their numbers of rows, and the measured machines.
fn sources(paths: &[std::path::PathBuf], network: Option<&str>, measurements: MeasurementSets<'_>) -> Vec<String> {
    let MeasurementSets { device, launches } = measurements;
    let names: Vec<String> = paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let rows = |measurements: &[Measurement]| -> usize {
        measurements
            .iter()
            .filter(|measurement| measurement.role == Role::Fit)
            .map(|measurement| measurement.rows.len())
            .sum()
    };
    let (device_rows, launch_rows) = (rows(device), rows(launches));
    let summary = match network {
        Some(name) => {
            format!("fabricast calibrate {} --network {name}: {device_rows} rows of several hosts", names.join(" "))
        }
        None => format!(
            "fabricast calibrate {}: {device_rows} rows for device costs, {launch_rows} for launch costs of other modes",
            names.join(" ")
        ),
    };
    let mut sources = vec![summary];
    let fitted = device.iter().filter(|measurement| measurement.role == Role::Fit);
    let mut machines: Vec<String> = fitted.filter_map(|measurement| measurement.notes.hardware.clone()).collect();
    machines.sort();
    machines.dedup();
    sources.extend(machines);
    sources
}
