//! What is said of tables and plans that say less than a plan with rows: tables without rows, schedules, and cells that do not exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{refused, run_in};
use crate::tables::repository;

/// A plan of nine sizes of four collectives, with what NCCL takes by itself.
fn plan() -> Value {
    let path = repository().join("tests/cli/transcripts/tables.in/plan.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

fn said(folder: &Path, call: &str) -> String {
    let run = run_in(folder, call);
    assert_eq!(run.code, 0, "{call}: {}", run.stderr);
    run.stdout
}

fn json(folder: &Path, call: &str) -> Value {
    serde_json::from_str(&said(folder, &format!("{call} --format json"))).unwrap()
}

fn sizes(rows: &Value) -> BTreeSet<(String, u64)> {
    let size = |row: &Value| (row["collective"].as_str().unwrap().to_owned(), row["bytes"].as_u64().unwrap());
    rows.as_array().unwrap().iter().map(size).collect()
}

#[test]
fn a_table_tells_the_departures_of_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "plan.json", &plan());
    said(folder, "table plan.json --to json -o own.json");
    let (of_plan, of_table) = (json(folder, "table plan.json --explain"), json(folder, "table own.json --explain"));
    assert_eq!(of_table["departures"], of_plan["departures"]);
    assert_eq!(of_plan["departures"].as_array().unwrap().len(), 6);
    assert_eq!((&of_table["rows"], &of_table["ranges_untold"]), (&0.into(), &0.into()));
    let mut table: Value = serde_json::from_str(&fs::read_to_string(folder.join("own.json")).unwrap()).unwrap();
    let ranges = table["ranges"].as_array().unwrap().len();
    assert_eq!(of_table["ranges"], ranges);
    let text = said(folder, "table own.json --explain");
    let heading = format!("6 sizes in {ranges} ranges depart from what nccl-2.28.9 takes by itself");
    assert_eq!(text.lines().next(), Some(heading.as_str()));
    assert!(text.contains("ring ll × 16"), "{text}");
    // A table of a table is that table.
    assert_eq!(said(folder, "table own.json --to json"), fs::read_to_string(folder.join("own.json")).unwrap());
    // A table that does not say where it departs.
    table.as_object_mut().unwrap().remove("departures");
    write(folder, "mute.json", &table);
    let text = said(folder, "table mute.json --explain");
    assert!(!text.contains("0 of 0") && !text.contains(" depart "), "{text}");
    assert!(text.contains(&format!("{ranges} ranges without rows")) && text.contains("--check"), "{text}");
    let told = json(folder, "table mute.json --explain");
    assert_eq!((&told["ranges_untold"], &told["departures"]), (&ranges.into(), &Value::Array(Vec::new())));
    let csv = run_in(folder, "table mute.json --explain --format csv");
    assert!(csv.stderr.contains("without rows") && csv.stdout.lines().count() == 1, "{csv:?}");
}

#[test]
fn a_plan_with_rows_of_some_collectives_tells_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut some = plan();
    some["rows"].as_array_mut().unwrap().retain(|row| row["collective"] != "reduce");
    write(folder, "some.json", &some);
    let text = said(folder, "table some.json --explain");
    let rows = some["rows"].as_array().unwrap().len();
    let ranges = some["ranges"].as_array().unwrap().iter().filter(|range| range["collective"] == "reduce").count();
    assert!(text.starts_with(&format!("3 of {rows} rows depart from what")), "{text}");
    assert!(text.contains(&format!("{ranges} ranges without rows")), "{text}");
    // Of rows it may not be known either.
    for row in some["rows"].as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("library_default");
    }
    write(folder, "some.json", &some);
    let told = json(folder, "table some.json --explain");
    assert_eq!((&told["rows_untold"], &told["ranges_untold"]), (&rows.into(), &ranges.into()));
}

#[test]
fn a_table_that_is_no_plan_is_called_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "plan.json", &plan());
    said(folder.path(), "table plan.json --to nccl-tuner -o t.csv");
    refused(folder.path(), "table t.csv --explain", "t.csv is no plan: it is a table (nccl-tuner)");
    refused(folder.path(), "plan diff plan.json t.csv", "t.csv is no plan");
    fs::write(folder.path().join("bad.json"), "{\"fabric\": 7}").unwrap();
    refused(folder.path(), "table bad.json --explain", "bad.json:1:12");
}

#[test]
fn a_table_without_rows_differs_from_plans_where_its_ranges_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "plan.json", &plan());
    said(folder, "table plan.json --to json -o own.json");
    let count = plan()["rows"].as_array().unwrap().len();
    for (a, b) in [("plan.json", "own.json"), ("own.json", "plan.json")] {
        let same = json(folder, &format!("plan diff {a} {b}"));
        assert_eq!((&same["alike"], &same["rows"]), (&count.into(), &Value::Array(Vec::new())));
    }
    let mut other: Value = serde_json::from_str(&fs::read_to_string(folder.join("own.json")).unwrap()).unwrap();
    let ranges = other["ranges"].as_array_mut().unwrap();
    let ranges_in_all = ranges.len();
    let changed = ranges.iter_mut().find(|range| range["collective"] == "broadcast").unwrap();
    changed["channels"] = 31.into();
    let inside = |row: &&Value| {
        let bytes = row["bytes"].as_u64().unwrap();
        row["collective"] == "broadcast"
            && (changed["min_bytes"].as_u64().unwrap()..=changed["max_bytes"].as_u64().unwrap()).contains(&bytes)
    };
    let expected: Value = plan()["rows"].as_array().unwrap().iter().filter(inside).cloned().collect();
    let first = changed["min_bytes"].as_u64().unwrap();
    write(folder, "other.json", &other);
    let differs = json(folder, "plan diff plan.json other.json");
    assert_eq!(sizes(&differs["rows"]), sizes(&expected));
    let row = &differs["rows"][0];
    assert_eq!(
        (&row["after"]["channels"], &row["after"]["time_us"], &row["change"]),
        (&31.into(), &Value::Null, &Value::Null)
    );
    assert!(row["before"]["time_us"].as_f64() > Some(0.0));
    // Of two without rows, where ranges begin.
    let differs = json(folder, "plan diff own.json other.json");
    assert_eq!(sizes(&differs["rows"]), BTreeSet::from([("broadcast".to_owned(), first)]));
    assert_eq!(differs["alike"], ranges_in_all - 1);
}
