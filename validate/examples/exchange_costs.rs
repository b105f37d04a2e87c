//! Fits the shared costs of dispatch and combine, and predicts every table by costs fitted without it:
//! `cargo run -p fabricast-validate --example exchange_costs validate/data/clusters/ep/manifest.toml`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::path::Path;
use std::process::ExitCode;

use fabricast_validate::compare::Summary;
use fabricast_validate::exchange::{fit, hold_out, load};

fn main() -> ExitCode {
    let mut measurements = Vec::new();
    for path in std::env::args().skip(1) {
        match load(Path::new(&path)) {
            Ok(loaded) => measurements.extend(loaded),
            Err(error) => {
                println!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let (costs, held_out) = match fit(&measurements).and_then(|costs| Ok((costs, hold_out(&measurements)?))) {
        Ok(fitted) => fitted,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{costs:#?}");
    let mut ratios: Vec<f64> = Vec::new();
    for table in &held_out {
        print(&table.table, table.summary);
        ratios.extend(&table.ratios);
    }
    print("all tables, each without itself", Summary::from_errors(ratios.iter().map(|ratio| 1.0 / ratio - 1.0)));
    ratios.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| ratios.get((ratios.len() as f64 * share) as usize).copied().unwrap_or(1.0);
    println!("80 % of measured / predicted: {:.3} to {:.3}", quantile(0.1), quantile(0.9));
    ExitCode::SUCCESS
}

fn print(name: &str, summary: Summary) {
    let Summary { rows, median, p90, bias, .. } = summary;
    println!(
        "{name:34} {rows:5} rows  median {:5.1} %  p90 {:5.1} %  bias {:+5.1} %",
        median * 100.0,
        p90 * 100.0,
        bias * 100.0
    );
}
