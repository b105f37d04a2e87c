//! Reads every manifest below a folder and summarizes it: `cargo run -p fabricast-validate --example measured DIR`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fabricast_validate::measured::manifest;

fn main() -> ExitCode {
    let mut paths = Vec::new();
    for folder in std::env::args().skip(1) {
        manifests(Path::new(&folder), &mut paths);
    }
    paths.sort();
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        match manifest::load(&path) {
            Ok(loaded) => {
                let rows: usize = loaded.measurements.iter().map(|one| one.rows.len()).sum();
                println!("{}: {} measurements, {rows} rows", path.display(), loaded.measurements.len());
                for one in &loaded.measurements {
                    for rejected in &one.rejected {
                        println!("  {}:{}: {}", one.file.display(), rejected.line, rejected.reason);
                        code = ExitCode::FAILURE;
                    }
                }
                for contradiction in &loaded.contradictions {
                    let (short, long) = (&contradiction.shortest, &contradiction.longest);
                    println!("  {}: {} {} and {} {}", contradiction.bytes, short.0, short.1, long.0, long.1);
                }
            }
            Err(error) => {
                println!("{}: {error}", path.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Collects the TOML files below a folder that contain measurements.
fn manifests(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_manifest = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("[[measurement]]"));
        if path.is_dir() {
            manifests(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "toml") && is_manifest() {
            paths.push(path);
        }
    }
}
