//! Fits a network to the measured calls of all clusters on it, and predicts the rows of each cluster with costs fitted
//! to the other clusters: `cargo run -p fabricast-validate --example network_hold_out infiniband-ndr
//! validate/data/public/manifest.toml validate/data/clusters/manifest.toml`. With `--rows`, every row is printed as CSV.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{MeasuredNetwork, Profile};
use fabricast_validate::calibrate::{CalibrationRequest, Prior, Residual, calibrate_network};
use fabricast_validate::compare::Summary;
use fabricast_validate::measured::manifest::{Measurement, load};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (flags, mut names): (Vec<&String>, Vec<&String>) = arguments.iter().partition(|word| word.starts_with("--"));
    if names.is_empty() {
        return Err("expected a network and manifests".into());
    }
    let network = names.remove(0);
    let mut measurements: Vec<Measurement> = Vec::new();
    for path in names {
        for measurement in load(Path::new(path))?.measurements {
            let measured = MeasuredNetwork::for_machine(&measurement.fabric)?;
            let is_on_network = measured.is_some_and(|measured| measured.name == *network);
            if measurement.configuration.nodes > 1 && is_on_network {
                measurements.push(measurement);
            }
        }
    }
    let first = measurements.first().ok_or("no measurement over several hosts on this network")?;
    let base = Profile::for_fabric(&first.fabric)?;
    let request = CalibrationRequest {
        device: &measurements,
        launches: &[],
        base: &base,
        prior: Prior::Open,
        hold_out: &[],
        monitor: Monitor::default(),
    };
    let calibration = calibrate_network(request)?;
    if flags.iter().any(|flag| *flag == "--rows") {
        println!("file,collective,bytes,measured_us,error,decides");
        calibration.cross_validated.iter().for_each(|row| print_row(&measurements, row));
        return Ok(());
    }
    println!("{:#?}", calibration.profile.network);
    print("fitted, all rows", calibration.fitted.iter());
    print("held out, all rows", calibration.cross_validated.iter());
    println!("inside: {:.1} %", calibration.coverage.share() * 100.0);
    for key in [cluster, file, collective] {
        let mut groups: BTreeMap<String, Vec<&Residual>> = BTreeMap::new();
        for row in &calibration.cross_validated {
            let name = measurements.get(row.measurement).map(key).unwrap_or_default();
            groups.entry(name).or_default().push(row);
        }
        println!();
        groups.into_iter().for_each(|(name, rows)| print(&name, rows.into_iter()));
    }
    Ok(())
}

fn cluster(measurement: &Measurement) -> String {
    let notes = &measurement.notes;
    notes.cluster.clone().or_else(|| notes.hardware.clone()).unwrap_or_default()
}

fn file(measurement: &Measurement) -> String {
    measurement.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn collective(measurement: &Measurement) -> String {
    measurement.configuration.collective.to_string()
}

fn print_row(measurements: &[Measurement], residual: &Residual) {
    let Some(measurement) = measurements.get(residual.measurement) else { return };
    let Some(row) = measurement.rows.get(residual.row) else { return };
    println!(
        "{},{},{},{:.2},{:.4},{:?}",
        file(measurement),
        collective(measurement),
        row.bytes.0,
        row.measured().0 as f64 / 1e6,
        residual.error,
        residual.decides
    );
}

fn print<'a>(name: &str, rows: impl Iterator<Item = &'a Residual>) {
    let Summary { rows, median, p90, bias, .. } = Summary::from_errors(rows.map(|row| row.error));
    let percent = |share: f64| share * 100.0;
    println!(
        "{name:76} {rows:5} rows  median {:5.1} %  p90 {:5.1} %  bias {:+5.1} %",
        percent(median),
        percent(p90),
        percent(bias)
    );
}
