//! Tests of `schema`: documents written by the commands are valid under their schemas.

use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::run::{json as run_json, refused, run, run_in};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn transcripts(folder: &str) -> PathBuf {
    repository().join("tests/cli/transcripts").join(folder)
}

/// Returns the schema of a document, which must itself be valid JSON Schema.
#[track_caller]
fn schema(name: &str) -> Value {
    let run = run(&format!("schema {name}"));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{name}");
    let schema: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
    assert!(jsonschema::meta::is_valid(&schema), "{name}");
    schema
}

fn validator(name: &str) -> Validator {
    jsonschema::validator_for(&schema(name)).unwrap()
}

/// Runs a command, which must write a valid document of this name; returns the document.
#[track_caller]
fn valid(folder: &Path, arguments: &str, name: &str) -> Value {
    let run = run_in(folder, &format!("{arguments} --format json"));
    let document: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{arguments}: {error} {run:?}"));
    let format = document["format"].as_str().unwrap();
    assert!(format.starts_with(&format!("fabricast-{name}/")), "{arguments}: {format}");
    let validator = validator(name);
    let faults: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(faults.is_empty(), "{arguments}: {faults:#?}");
    document
}

/// Writes a plan to a file.
fn write_plan(folder: &Path, file: &str, flags: &str) {
    let run = run_in(folder, &format!("plan --fabric hgx-h200 {flags} --format json -o {file}"));
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn fabrics_and_lists_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    valid(folder.path(), "fabric list", "presets");
    valid(folder.path(), "list presets", "presets");
    valid(folder.path(), "list gpus", "list");
    valid(folder.path(), "fabric check hgx-h200", "fabric-check");
    valid(folder.path(), "schema", "schemas");
    valid(folder.path(), "list models", "models");
    valid(folder.path(), "list prices", "prices");
}

#[test]
fn simulations_are_valid() {
    let call = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring";
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    valid(folder, &format!("{call} --bytes 1MiB"), "simulation");
    valid(folder, "simulate --fabric hgx-h200 --nodes 2 --collective dispatch --tokens 4096", "exchange");
    let details = "--bytes 1MiB --critical-path --utilization-over-time=3 --straggler gpu5=20us";
    let document = valid(folder, &format!("{call} {details}"), "simulation");
    assert!(document["critical_path"].is_array() && document["load"].is_object(), "{document:#}");
    let several = valid(folder, &format!("{call} --sizes 1KiB..1MiB:32 --protocol ll,simple"), "simulations");
    assert_eq!(several["rows"].as_array().unwrap().len(), 6, "{several:#}");
    valid(folder, &format!("{call} --bytes 1MiB --group 0-3 --group 4-7"), "concurrent-calls");
    let calls = "--call all_gather:ranks=0-3,bytes=1MiB --call reduce_scatter:ranks=4-7,bytes=1MiB";
    valid(folder, &format!("simulate --fabric hgx-h200 {calls}"), "concurrent-calls");
    valid(folder, &format!("{call} --sizes 1KiB..1MiB:32 --breakdown parts.svg"), "breakdown");
    valid(&transcripts("simulate.in"), "simulate --fabric hgx-h200 --flows flows.csv", "flows");
    valid(&transcripts("jobs.in"), "simulate --fabric hgx-h100 --job step.csv", "replay");
}

#[test]
fn plans_and_their_differences_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let call = "--collective all_reduce --sizes 1KiB..1GiB:1024";
    let document = valid(folder, &format!("plan --fabric hgx-h200 {call}"), "plan");
    assert!(document["rows"][0]["library_default"].is_object(), "{document:#}");
    valid(folder, "plan --fabric hgx-h200 --nodes 2 --collective all --sizes 64KiB --in-place --root 1", "plan");
    valid(folder, "plan --fabric mi300x --collective all_to_all --sizes 64KiB", "plan");
    write_plan(folder, "before.json", call);
    write_plan(folder, "after.json", &format!("{call} --algorithm ring"));
    let document = valid(folder, "plan diff before.json after.json", "plan-diff");
    assert!(!document["rows"].as_array().unwrap().is_empty(), "{document:#}");
    valid(&transcripts("jobs.in"), "plan --fabric hgx-h100 --job step.csv", "job-plan");
    valid(&transcripts("jobs.in"), "plan --fabric hgx-h100 --job small.toml", "job-plan");
}

#[test]
fn tables_and_schedules_are_valid() {
    let folder = transcripts("tables.in");
    let document = valid(&folder, "table plan.json --explain", "explanation");
    assert!(!document["departures"].as_array().unwrap().is_empty(), "{document:#}");
    let check = "table --check example.csv --fabric hgx-h200 --library nccl-2.28.9 --sizes 16KiB..64MiB:64";
    valid(&folder, check, "table-check");
    let folder = transcripts("schedules.in");
    assert_eq!(valid(&folder, "schedule verify ring.json", "verification")["ok"], true);
    let wrong = valid(&folder, "schedule verify wrong.json", "verification");
    assert_eq!(wrong["ok"], false);
    // A refuted schedule has a fault, and a proved one has none.
    let validator = validator("verification");
    let without = |key: &str| {
        let mut document = wrong.clone();
        document.as_object_mut().unwrap().remove(key);
        document
    };
    assert!(validator.is_valid(&wrong) && !validator.is_valid(&without("fault")));
    assert!(!validator.is_valid(&without("kind")) && !validator.is_valid(&without("ok")));
}

#[test]
fn studies_comparisons_and_fits_are_valid() {
    valid(&repository().join("examples"), "study training-70b.toml", "study");
    valid(&repository().join("examples"), "study moe-inference.toml", "study");
    valid(&transcripts("jobs.in"), "study study.toml", "study");
    valid(&transcripts("compare.in"), "compare manifest.toml", "comparison");
    valid(&repository().join("validate/data/h200-node"), "compare manifest.toml --profile ideal", "comparison");
    valid(&repository().join("validate/data/clusters/ep"), "compare manifest.toml", "exchange-comparison");
    valid(&transcripts("curves.in"), "calibrate steps.toml", "efficiency-fit");
    let benchmark = repository().join("validate/runs/2026-11-21-4xh200/bench.json");
    let folder = tempfile::tempdir().unwrap();
    valid(folder.path(), &format!("calibrate {}", benchmark.display()), "benchmark-parameters");
    valid(folder.path(), &format!("gpu doctor --from {}", benchmark.display()), "diagnosis");
}

#[test]
fn documents_without_a_required_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let call = "--fabric hgx-h200 --collective all_reduce";
    for (arguments, name, row_key) in [
        (format!("plan {call} --sizes 1KiB..1MiB:1024"), "plan", "time_us"),
        (format!("simulate {call} --algorithm ring --bytes 1MiB"), "simulation", ""),
        ("fabric list".to_owned(), "presets", "gpus"),
    ] {
        let document = valid(folder.path(), &arguments, name);
        let validator = validator(name);
        let schema = schema(name);
        let required = schema["required"].as_array().unwrap();
        assert!(required.contains(&json!("format")) && required.len() > 1, "{required:?}");
        for key in required {
            let mut incomplete = document.clone();
            incomplete.as_object_mut().unwrap().remove(key.as_str().unwrap()).unwrap();
            assert!(!validator.is_valid(&incomplete), "{name} without {key}");
        }
        let mut other_format = document.clone();
        other_format["format"] = "fabricast-other/1".into();
        assert!(!validator.is_valid(&other_format), "{name}");
        // Schemas accept unknown keys, as readers must.
        let mut extended = document.clone();
        extended["later"] = 1.into();
        assert!(validator.is_valid(&extended), "{name}");
        if !row_key.is_empty() {
            let mut incomplete = document.clone();
            incomplete["rows"][0].as_object_mut().unwrap().remove(row_key).unwrap();
            assert!(!validator.is_valid(&incomplete), "{name}: row without {row_key}");
            let mut mistyped = document;
            mistyped["rows"][0][row_key] = "1".into();
            assert!(!validator.is_valid(&mistyped), "{name}: {row_key} as text");
        }
    }
}

#[test]
fn every_listed_document_has_a_schema() {
    let listed = run_json("schema");
    let rows = listed["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 31);
    let text = run("schema").stdout;
    for row in rows {
        let (name, format) = (row["name"].as_str().unwrap(), row["format"].as_str().unwrap());
        assert!(format.starts_with(&format!("fabricast-{name}/")), "{format}");
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {text}");
        assert_eq!(schema(name)["properties"]["format"]["const"], format);
        validator(name);
    }
    // The page docs/output.md lists the same formats.
    let page = std::fs::read_to_string(repository().join("docs/output.md")).unwrap();
    for row in rows {
        let format = row["format"].as_str().unwrap();
        assert!(page.contains(&format!("| `{format}` |")), "{format}");
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), "schema plam", "'plan'");
    refused(folder.path(), "schema fabric", "fabric-check");
    let bash = run("completions bash").stdout;
    assert!(bash.contains("plan-diff") && bash.contains("table-check"));
}
