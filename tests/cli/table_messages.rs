//! Messages about tables and plans that lack some information: tables without rows, schedules, and strategies that do
//! not exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{refused, run_in};
use crate::tables::repository;

/// Returns a plan of nine sizes of four collectives, with NCCL's defaults.
fn plan() -> Value {
    let path = repository().join("tests/cli/transcripts/tables.in/plan.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

fn run_stdout(folder: &Path, call: &str) -> String {
    let run = run_in(folder, call);
    assert_eq!(run.code, 0, "{call}: {}", run.stderr);
    run.stdout
}

fn json(folder: &Path, call: &str) -> Value {
    serde_json::from_str(&run_stdout(folder, &format!("{call} --format json"))).unwrap()
}

fn sizes(rows: &Value) -> BTreeSet<(String, u64)> {
    let size = |row: &Value| (row["collective"].as_str().unwrap().to_owned(), row["bytes"].as_u64().unwrap());
    rows.as_array().unwrap().iter().map(size).collect()
}

#[test]
fn tables_report_the_departures_of_their_plan() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "plan.json", &plan());
    run_stdout(folder, "table plan.json --to json -o own.json");
    let (plan_report, table_report) =
        (json(folder, "table plan.json --explain"), json(folder, "table own.json --explain"));
    assert_eq!(table_report["departures"], plan_report["departures"]);
    assert_eq!(plan_report["departures"].as_array().unwrap().len(), 6);
    assert_eq!((&table_report["rows"], &table_report["ranges_without_default"]), (&0.into(), &0.into()));
    let mut table: Value = serde_json::from_str(&fs::read_to_string(folder.join("own.json")).unwrap()).unwrap();
    let ranges = table["ranges"].as_array().unwrap().len();
    assert_eq!(table_report["ranges"], ranges);
    let text = run_stdout(folder, "table own.json --explain");
    let heading = format!("6 sizes in {ranges} ranges differ from the default of nccl-2.28.9");
    assert_eq!(text.lines().next(), Some(heading.as_str()));
    assert!(text.contains("ring ll × 16"), "{text}");
    // Exporting a table as a table again gives the same file.
    assert_eq!(run_stdout(folder, "table own.json --to json"), fs::read_to_string(folder.join("own.json")).unwrap());
    // This table does not list where it departs from the library's default.
    table.as_object_mut().unwrap().remove("departures");
    write(folder, "mute.json", &table);
    let text = run_stdout(folder, "table mute.json --explain");
    assert!(!text.contains("0 of 0") && !text.contains(" differ "), "{text}");
    assert!(text.contains(&format!("{ranges} ranges without rows")) && text.contains("--check"), "{text}");
    let report = json(folder, "table mute.json --explain");
    assert_eq!((&report["ranges_without_default"], &report["departures"]), (&ranges.into(), &Value::Array(Vec::new())));
    let csv = run_in(folder, "table mute.json --explain --format csv");
    assert!(csv.stderr.contains("without rows") && csv.stdout.lines().count() == 1, "{csv:?}");
}

#[test]
fn plans_with_rows_of_some_collectives_report_each() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut partial = plan();
    partial["rows"].as_array_mut().unwrap().retain(|row| row["collective"] != "reduce");
    write(folder, "some.json", &partial);
    let text = run_stdout(folder, "table some.json --explain");
    let rows = partial["rows"].as_array().unwrap().len();
    let ranges = partial["ranges"].as_array().unwrap().iter().filter(|range| range["collective"] == "reduce").count();
    assert!(text.starts_with(&format!("3 of {rows} rows differ from")), "{text}");
    assert!(text.contains(&format!("{ranges} ranges without rows")), "{text}");
    // Rows may lack the library's default as well.
    for row in partial["rows"].as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("library_default");
    }
    write(folder, "some.json", &partial);
    let report = json(folder, "table some.json --explain");
    assert_eq!((&report["rows_without_default"], &report["ranges_without_default"]), (&rows.into(), &ranges.into()));
}

#[test]
fn tables_are_not_called_plans() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "plan.json", &plan());
    run_stdout(folder.path(), "table plan.json --to nccl-tuner -o t.csv");
    refused(folder.path(), "table t.csv --explain", "t.csv is a table (nccl-tuner), not a plan");
    refused(folder.path(), "plan diff plan.json t.csv", "t.csv is a table");
    fs::write(folder.path().join("bad.json"), "{\"fabric\": 7}").unwrap();
    refused(folder.path(), "table bad.json --explain", "bad.json:1:12");
}

/// Returns the name, the protocol and the largest number of thread blocks per GPU of a schedule file, parsed
/// independently of the readers under test.
fn read_schedule_summary(path: &Path) -> (String, &'static str, usize) {
    let text = fs::read_to_string(path).unwrap();
    if path.extension().is_some_and(|ending| ending == "xml") {
        let attribute = |key: &str| {
            let algo = text.split("<algo ").nth(1).unwrap();
            algo.split(&format!("{key}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        let protocol = match attribute("proto").as_str() {
            "LL" => "ll",
            "LL128" => "ll128",
            _ => "simple",
        };
        let blocks = text.split("<gpu ").skip(1).map(|gpu| gpu.matches("<tb ").count()).max().unwrap();
        return (attribute("name"), protocol, blocks);
    }
    let plan: Value = serde_json::from_str(&text).unwrap();
    let blocks = plan["gpus"].as_array().unwrap().iter().map(|gpu| gpu["threadblocks"].as_array().unwrap().len());
    let protocol = if plan["protocol"] == "LL" { "ll" } else { "symmetric" };
    (plan["name"].as_str().unwrap().to_owned(), protocol, blocks.max().unwrap())
}

#[test]
fn schedules_are_shown_with_the_facts_of_their_file() {
    let root = repository();
    let golden = root.join("tests/cli/tables/golden");
    let mut files = vec![
        (root.join("tests/data/schedules/msccl-allreduce-allpairs-8n-ll-32tb.xml"), 8),
        (root.join("tests/data/schedules/msccl-alltoall-8n-0-9kb.xml"), 8),
        (root.join("tests/data/schedules/mscclpp-allreduce.json"), 2),
        (root.join("tests/data/schedules/mscclpp-allreduce_packet.json"), 2),
    ];
    for folder in ["mscclpp", "msccl-xml"] {
        let written = fs::read_dir(golden.join(folder)).unwrap();
        files.extend(written.map(|file| (file.unwrap().path(), 2)));
    }
    for (file, gpus) in files {
        let (name, protocol, blocks) = read_schedule_summary(&file);
        let flags = format!("--fabric hgx-h200 --gpus {gpus} --no-nvls");
        let checked = json(&root, &format!("table --check {} {flags}", file.display()));
        let rows = checked["rows"].as_array().unwrap();
        assert!(!rows.is_empty(), "{}", file.display());
        for row in rows {
            assert_eq!(row["algorithm"], *name, "{}", file.display());
            assert_eq!(row["protocol"], protocol, "{}", file.display());
            assert_eq!(row["channels"], blocks, "{}", file.display());
        }
    }
    // The same applies to a schedule with a wrong result, and any file name is printed on one line.
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(root.join("tests/data/schedules/mscclpp-reduce.json")).unwrap();
    let mut plan: Value = serde_json::from_str(&text).unwrap();
    plan["name"] = format!("a\nname\u{1b}[31m{}", "x".repeat(90)).into();
    write(folder.path(), "reduce.json", &plan);
    let run = run_in(folder.path(), "table --check reduce.json --fabric hgx-h200 --gpus 2 --format json");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let row = &serde_json::from_str::<Value>(&run.stdout).unwrap()["rows"][0];
    assert!(row["valid"] == false && row["protocol"] != Value::Null && row["channels"].as_u64() > Some(0), "{row}");
    let name = row["algorithm"].as_str().unwrap();
    assert!(name.starts_with("a name [31mxxx") && name.chars().count() <= 41, "{name}");
}

#[test]
fn unknown_cells_are_shown_as_written() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.csv"), "allreduce,0,1073741824,nvls,ll,7,-1,-1\n").unwrap();
    let flags = "--fabric hgx-h200 --library nccl-2.28.9 --sizes 1MiB --format json";
    let run = run_in(folder.path(), &format!("table --check t.csv {flags}"));
    assert_eq!(run.code, 1, "{}", run.stderr);
    let row = &serde_json::from_str::<Value>(&run.stdout).unwrap()["rows"][0];
    let cell = ["algorithm", "protocol"].map(|key| row[key].as_str().unwrap());
    assert_eq!((cell, &row["channels"], &row["valid"]), (["nvls", "ll"], &7.into(), &false.into()));
}

#[test]
fn tables_without_rows_are_compared_by_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "plan.json", &plan());
    run_stdout(folder, "table plan.json --to json -o own.json");
    let count = plan()["rows"].as_array().unwrap().len();
    for (a, b) in [("plan.json", "own.json"), ("own.json", "plan.json")] {
        let unchanged = json(folder, &format!("plan diff {a} {b}"));
        assert_eq!((&unchanged["equal_rows"], &unchanged["rows"]), (&count.into(), &Value::Array(Vec::new())));
    }
    let mut modified: Value = serde_json::from_str(&fs::read_to_string(folder.join("own.json")).unwrap()).unwrap();
    let ranges = modified["ranges"].as_array_mut().unwrap();
    let range_count = ranges.len();
    let changed = ranges.iter_mut().find(|range| range["collective"] == "broadcast").unwrap();
    changed["channels"] = 31.into();
    let is_in_range = |row: &&Value| {
        let bytes = row["bytes"].as_u64().unwrap();
        row["collective"] == "broadcast"
            && (changed["min_bytes"].as_u64().unwrap()..=changed["max_bytes"].as_u64().unwrap()).contains(&bytes)
    };
    let expected: Value = plan()["rows"].as_array().unwrap().iter().filter(is_in_range).cloned().collect();
    let first = changed["min_bytes"].as_u64().unwrap();
    write(folder, "other.json", &modified);
    let diff = json(folder, "plan diff plan.json other.json");
    assert_eq!(sizes(&diff["rows"]), sizes(&expected));
    let row = &diff["rows"][0];
    assert_eq!(
        (&row["after"]["channels"], &row["after"]["time_us"], &row["change"]),
        (&31.into(), &Value::Null, &Value::Null)
    );
    assert!(row["before"]["time_us"].as_f64() > Some(0.0));
    // If both tables have no rows, the comparison uses the starts of the ranges.
    let diff = json(folder, "plan diff own.json other.json");
    assert_eq!(sizes(&diff["rows"]), BTreeSet::from([("broadcast".to_owned(), first)]));
    assert_eq!(diff["equal_rows"], range_count - 1);
}

/// The library's default applies to sizes whose pick the format cannot express: no file covers them.
#[test]
fn sizes_that_a_schedule_format_cannot_express_are_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan();
    // The picks of all_reduce alternate between a protocol that MSCCL++ supports and one that it does not support.
    let rows = plan["rows"].as_array_mut().unwrap();
    let row = rows[0].clone();
    *rows = vec![row; 7];
    for (row, i) in rows.iter_mut().zip(0..) {
        let pick = if i % 3 == 1 { ("ring", "ll", 2) } else { ("ring", "simple", 2) };
        (row["algorithm"], row["protocol"], row["channels"]) = (pick.0.into(), pick.1.into(), pick.2.into());
        row["bytes"] = (4096 << i).into();
        row["library_default"] = Value::Null;
        row["best_of_library"] = Value::Null;
        row.as_object_mut().unwrap().remove("threads");
        row.as_object_mut().unwrap().remove("chunk");
    }
    let is_expressible = |i: usize| i % 3 == 1;
    let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    plan["ranges"] = Value::Array(Vec::new());
    write(folder.path(), "plan.json", &plan);
    let run = run_in(folder.path(), "table plan.json --to mscclpp -o made --fabric hgx-h200");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("mscclpp runs no simple; omitted"), "{}", run.stderr);
    let files = fs::read_dir(folder.path().join("made")).unwrap();
    let ranges = files.map(|file| {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let plan: Value = serde_json::from_str(&text).unwrap();
        ["min_message_size", "max_message_size"].map(|key| plan[key].as_u64().unwrap())
    });
    let ranges: Vec<[u64; 2]> = ranges.collect();
    assert_eq!(ranges.len(), (0..sizes.len()).filter(|&i| is_expressible(i)).count());
    for (i, &size) in sizes.iter().enumerate() {
        let file_count = ranges.iter().filter(|[first, last]| (*first..=*last).contains(&size)).count();
        assert_eq!(file_count, usize::from(is_expressible(i)), "{size} in {ranges:?}");
    }
    // Below the first and above the last planned size the nearest pick applies.
    assert!(ranges.iter().all(|[first, _]| *first > sizes[0]));
    let covers_larger = ranges.iter().any(|[_, last]| *last > *sizes.last().unwrap());
    assert_eq!(covers_larger, is_expressible(sizes.len() - 1));
}

#[test]
fn settings_cause_no_finding_where_the_search_is_modelled() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("nccl.conf"), "NCCL_ALGO=allreduce:ring\n").unwrap();
    let checked = json(folder.path(), "table --check nccl.conf --fabric hgx-h200 --sizes 1MiB");
    assert_eq!(checked["findings"], Value::Array(Vec::new()));
    assert_eq!(checked["rows"][0]["algorithm"], "ring");
}
