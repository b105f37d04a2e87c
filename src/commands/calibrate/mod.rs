//! `calibrate`: a profile from measurements.

mod json;
mod physical;
mod text;

use fabricast_sim::profile::Profile;
use fabricast_validate::calibrate::{Calibration, Task, calibrate};
use fabricast_validate::compare::Summary;
use fabricast_validate::measured::manifest::{self, Measurement, Role};

use super::measured;
use crate::args::CalibrateArgs;
use crate::failure::Failure;
use crate::output::{self, Format, Output};
use crate::setup;

/// What the outputs are made of.
struct Answer<'a> {
    measurements: &'a [Measurement],
    calibration: &'a Calibration,
}

impl Answer<'_> {
    /// Errors of the rows fitted to, by whether algorithm and protocol were forced.
    fn fitted(&self) -> [(&'static str, Summary); 3] {
        let forced = |row: &&fabricast_validate::calibrate::Residual| {
            let configuration = self.measurements.get(row.measurement).map(|measurement| &measurement.configuration);
            configuration.is_some_and(|configuration| configuration.algorithm.is_some())
        };
        let rows = &self.calibration.fitted;
        let launches = &self.calibration.launches;
        [
            ("fitted, algorithm and protocol forced", Summary::of(rows.iter().filter(forced).map(|row| row.error))),
            ("fitted, all", Summary::of(rows.iter().map(|row| row.error))),
            ("other launch modes, device costs kept", Summary::of(launches.iter().map(|row| row.error))),
        ]
    }
}

pub fn run(args: &CalibrateArgs, output: &Output) -> Result<(), Failure> {
    let (benches, manifests) = physical::split(&args.manifests)?;
    if manifests.is_empty() {
        return physical::run(args, &benches, output);
    }
    let mut loaded = Vec::new();
    for path in &manifests {
        loaded.push(manifest::load(path)?);
    }
    for one in &loaded {
        measured::warn(one, output);
    }
    let mut parts = loaded.into_iter().map(|one| one.measurements);
    let device = parts.next().unwrap_or_default();
    let launches: Vec<Measurement> = parts.flatten().collect();
    let mut base = match (&args.profile, device.first()) {
        (Some(name), _) => setup::named_profile(name)?,
        (None, Some(first)) => Profile::for_fabric(&first.fabric)?,
        (None, None) => return Err(Failure::input("the manifest has no measurement".to_owned())),
    };
    let said = base.sources.len();
    physical::tell(&mut base, &benches)?;
    let benched = base.sources.split_off(said);
    let task = Task { device: &device, launches: &launches, base: &base, hold_out: &args.hold_out };
    let mut calibration = calibrate(task).map_err(|error| Failure::input(error.to_string()))?;
    if calibration.without_strategy > 0 {
        output.warn(&format!("{} rows are not used: it is not known what ran", calibration.without_strategy));
    }
    let profile = &mut calibration.profile;
    profile.name = args.name.clone().unwrap_or(base.name.clone());
    profile.date = args.date.clone().unwrap_or(base.date.clone());
    profile.sources = sources(&manifests, &device, &launches);
    profile.sources.extend(benched);
    let measurements: Vec<Measurement> = device.into_iter().chain(launches).collect();
    let answer = Answer { measurements: &measurements, calibration: &calibration };
    let written = match output.format {
        Format::Json => output::json(&json::of(&answer))?,
        Format::Text => text::of(&answer, &output.look()),
        Format::Csv => super::csv(&text::csv(&answer))?,
    };
    let profile = calibration.profile.to_toml();
    let beside = output.file.as_deref().map(|path| (path, profile.as_bytes()));
    Output { file: None, ..output.clone() }.write_with(&written, beside)
}

/// What the profile says of where it comes from: the manifests, by how many rows, and the machines that they name.
fn sources(paths: &[std::path::PathBuf], device: &[Measurement], launches: &[Measurement]) -> Vec<String> {
    let names: Vec<String> = paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let rows = |measurements: &[Measurement]| -> usize {
        measurements.iter().filter(|one| one.role == Role::Fit).map(|one| one.rows.len()).sum()
    };
    let mut sources = vec![format!(
        "fabricast calibrate {}: {} rows for device costs, {} for launch costs of other modes",
        names.join(" "),
        rows(device),
        rows(launches)
    )];
    let mut machines: Vec<String> = device.iter().filter_map(|one| one.notes.hardware.clone()).collect();
    machines.sort();
    machines.dedup();
    sources.extend(machines);
    sources
}
