//! Fits the shared costs of dispatch and combine, and predicts the rows of each cluster with costs fitted to the other
//! clusters: `cargo run -p fabricast-validate --example exchange_costs validate/data/clusters/ep/manifest.toml`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::path::Path;
use std::process::ExitCode;

use fabricast_experts::{ExchangeExtent, Operation};
use fabricast_validate::compare::Summary;
use fabricast_validate::exchange::{
    ExchangeMeasurement, HeldOutCluster, HeldOutRow, fit, hold_out, load, prediction_interval,
};

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
    let mut measurements = Vec::new();
    for path in std::env::args().skip(1) {
        measurements.extend(load(Path::new(&path))?);
    }
    println!("{:#?}", fit(&measurements)?);
    let held_out = hold_out(&measurements)?;
    for cluster in &held_out {
        print(&cluster.cluster, cluster.rows.iter());
        print_measurements(cluster, &measurements);
    }
    let all = || held_out.iter().flat_map(|cluster| &cluster.rows);
    print("all rows", all());
    let is_exchange = |row: &&HeldOutRow| {
        measurements.get(row.measurement).is_some_and(|measurement| measurement.operation != Operation::Prepare)
    };
    print("dispatch and combine", all().filter(is_exchange));
    let median = |cluster: &HeldOutCluster| Summary::from_errors(cluster.rows.iter().map(HeldOutRow::error)).median;
    let medians = Summary::from_errors(held_out.iter().map(median));
    println!("median of the clusters' medians: {:.1} %", medians.median * 100.0);
    for (name, extent) in [("one domain", ExchangeExtent::OneDomain), ("network", ExchangeExtent::Network)] {
        let rows = || all().filter(move |row| row.extent == extent);
        print(name, rows());
        let [low, high] = prediction_interval(&held_out, extent);
        let inside = rows().filter(|row| (low..=high).contains(&row.ratio())).count();
        let share = inside as f64 / rows().count().max(1) as f64;
        println!("  80 % of measured / predicted: {low:.3} to {high:.3}, {:.1} % of rows inside", share * 100.0);
    }
    Ok(())
}

fn print_measurements(cluster: &HeldOutCluster, measurements: &[ExchangeMeasurement]) {
    for (number, measurement) in measurements.iter().enumerate() {
        let rows = || cluster.rows.iter().filter(move |row| row.measurement == number);
        if rows().next().is_some() {
            let (kernel, operation) = (measurement.kernel.name(), measurement.operation.name());
            print(&format!("  {kernel} {operation} {}", measurement.token_type.name()), rows());
        }
    }
}

fn print<'a>(name: &str, rows: impl Iterator<Item = &'a HeldOutRow>) {
    let Summary { rows, median, p90, bias, .. } = Summary::from_errors(rows.map(HeldOutRow::error));
    let percent = |share: f64| share * 100.0;
    println!(
        "{name:34} {rows:5} rows  median {:5.1} %  p90 {:5.1} %  bias {:+5.1} %",
        percent(median),
        percent(p90),
        percent(bias)
    );
}
