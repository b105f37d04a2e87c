//! Replays of training steps that were recorded on two and four H100, against the times in the README of the run.

use std::path::Path;

use serde_json::Value;

use crate::run::run_in;

/// Time without profiler and difference in percent, by folder, from the table of the README.
fn documented(text: &str) -> Vec<(String, u32, f64)> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let percent = cells[6].trim_end_matches(" %").replace('−', "-");
        (cells[1].trim_matches('`').to_owned(), cells[2].parse().unwrap(), percent.parse().unwrap())
    })
    .collect()
}

#[test]
fn replays_differ_from_measured_steps_as_documented() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("validate/runs/2026-11-27-h100-traces");
    let steps = documented(&std::fs::read_to_string(folder.join("README.md")).unwrap());
    assert_eq!(steps.len(), 5);
    for (name, gpus, percent) in steps {
        let run = run_in(&folder, &format!("simulate --fabric hgx-h100 --gpus {gpus} --job {name} --format json"));
        assert_eq!(run.code, 0, "{run:?}");
        let replay: Value = serde_json::from_str(&run.stdout).unwrap();
        let times = std::fs::read_to_string(folder.join(format!("{name}-step.json"))).unwrap();
        let measured: Value = serde_json::from_str(&times).unwrap();
        let ratio = replay["time_us"].as_f64().unwrap() / measured["step_us"].as_f64().unwrap();
        assert!((100.0 * (ratio - 1.0) - percent).abs() <= 0.5, "{name}: {ratio}, documented {percent} %");
    }
}
