//! Tests of `table --check`, which reports the same findings for fabricast's JSON as for the CSV: rows for registered
//! buffers, rows shadowed by other rows, and settings that an NCCL version does not read.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::run::run_in;

fn check_table(folder: &Path, file: &str, flags: &str) -> (i32, Value) {
    let run = run_in(folder, &format!("table --check {file} --fabric hgx-h200 {flags} --format json"));
    assert!(run.code < 2, "{}", run.stderr);
    (run.code, serde_json::from_str(&run.stdout).unwrap())
}

fn messages(checked: &Value) -> Vec<&str> {
    checked["findings"].as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap()).collect()
}

fn plan_json(ranges: &[(u64, u64, &str, &str, u32)]) -> String {
    let ranges: Vec<Value> = ranges
        .iter()
        .map(|(first, last, algorithm, protocol, channels)| {
            json!({"collective": "all_reduce", "min_bytes": first, "max_bytes": last, "algorithm": algorithm,
                   "protocol": protocol, "channels": channels})
        })
        .collect();
    json!({"fabric": "hgx-h200", "profile": "nccl-2.28-h200", "ranks": 8, "nodes": 1, "library": "nccl-2.28.9", "rows": [],
           "ranges": ranges})
    .to_string()
}

#[test]
fn own_tables_are_checked_against_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    const LAST: u64 = i64::MAX as u64;
    let flags = "--library nccl-2.28.9 --sizes 1KiB..1MiB:32";
    for (ranges, code, expected) in [
        (vec![(0, LAST, "ring", "ll", 24)], 0, None),
        (vec![(0, LAST, "ring", "ll", 65535)], 1, Some("at most 64 channels")),
        (vec![(0, LAST, "ring", "ll", 40)], 0, Some("40 channels: NCCL has 24")),
        (vec![(0, LAST, "nvls", "ll", 16)], 1, Some("no such kernel")),
        (vec![(0, LAST, "pat", "simple", 16)], 1, Some("no such kernel")),
        (vec![(0, LAST, "one_shot", "symmetric", 8)], 0, Some("no algorithm and protocol of NCCL's tuners")),
        (vec![(0, 4095, "ring", "ll", 1), (8192, LAST, "ring", "ll", 24)], 0, Some("of 4096 to 8191 bytes has no row")),
    ] {
        fs::write(folder.join("own.json"), plan_json(&ranges)).unwrap();
        let (exit_code, checked) = check_table(folder, "own.json", flags);
        let messages = messages(&checked);
        assert_eq!(exit_code, code, "{ranges:?}: {messages:?}");
        match expected {
            None => assert!(messages.is_empty(), "{messages:?}"),
            Some(expected) => assert!(messages.iter().any(|one| one.contains(expected)), "{ranges:?}: {messages:?}"),
        }
    }
}

#[test]
fn rows_for_registered_buffers_apply_to_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "allreduce,0,9223372036854775807,ring,simple,4,1,8,-1,1\n";
    fs::write(folder.join("t.csv"), text).unwrap();
    let strategy = |launch: &str| {
        let (_, checked) = check_table(folder, "t.csv", &format!("--library nccl-2.28.9 --sizes 1KiB..1KiB {launch}"));
        let messages: Vec<String> = messages(&checked).into_iter().map(str::to_owned).collect();
        assert!(!messages.iter().any(|one| one.contains("any call")), "{messages:?}");
        assert!(messages.iter().any(|one| one.contains("no row for calls with plain buffers")), "{messages:?}");
        (checked["rows"][0]["protocol"].clone(), checked["rows"][0]["channels"].clone())
    };
    assert_eq!(strategy(""), ("simple".into(), 4.into()));
    assert_eq!(strategy("--launch stream").0, "ll");
}

#[test]
fn shadowed_rows_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let rows = [
        "allreduce,0,9223372036854775807,ring,simple,4,-1,-1",
        "allreduce,0,65535,ring,ll,4,1,8,-1,1",
        "allreduce,0,65535,ring,ll,4,1,8,3,0",
        "allgather,0,9223372036854775807,ring,simple,4,1,8,-1,0",
        "allgather,0,9223372036854775807,ring,simple,8,1,8,-1,1",
        "allgather,0,4096,ring,ll,8,1,8",
        "reduce,0,9223372036854775807,ring,simple,8,1,8,2",
        "reduce,0,9223372036854775807,ring,ll,8,1,8",
    ];
    fs::write(folder.join("t.csv"), rows.join("\n")).unwrap();
    let (_, checked) = check_table(folder, "t.csv", "--library nccl-2.28.9 --sizes 1KiB..1KiB");
    let unused_rows = checked["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["message"].as_str().unwrap().starts_with("no call matches this row"));
    let lines: Vec<u64> = unused_rows.map(|one| one["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 3, 6]);
}

#[test]
fn settings_use_the_syntax_of_their_version() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (library, by_function) in [("nccl-2.20", false), ("nccl-2.22.3", false), ("nccl-2.26", true)] {
        let plan = format!(
            "plan --fabric hgx-h200 --library {library} --collective all --sizes 1KiB..1GiB:32 --format json -o plan.json"
        );
        assert_eq!(run_in(folder, &plan).code, 0);
        assert_eq!(run_in(folder, "table plan.json --to nccl-env -q -o nccl.conf").code, 0);
        let text = fs::read_to_string(folder.join("nccl.conf")).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix("NCCL_ALGO=")).unwrap();
        assert_eq!(value.contains(':'), by_function, "{library}: {text}");
        let (code, report) = check_table(folder, "nccl.conf", &format!("--library {library} --sizes 1MiB..1MiB"));
        assert_eq!(code, 0, "{report}");
    }
    fs::write(folder.join("newer.conf"), "NCCL_PROTO=LL\nNCCL_ALGO=Ring;AllReduce:Tree\n").unwrap();
    for (library, code) in [("nccl-2.20", 1), ("nccl-2.28.9", 0)] {
        let (exit_code, checked) =
            check_table(folder, "newer.conf", &format!("--library {library} --sizes 1MiB..1MiB"));
        assert_eq!(exit_code, code, "{checked}");
        assert_eq!(code == 1, messages(&checked).iter().any(|one| one.contains("need NCCL 2.24")), "{checked}");
    }
}

/// A settings file changes only the variables that it sets: --no-nvls, registered buffers and the settings of the
/// network plugin remain in effect.
#[test]
fn settings_are_checked_under_the_conditions_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("nvls.conf"), "NCCL_ALGO=AllReduce:Ring,NVLS\n").unwrap();
    fs::write(folder.join("ll.conf"), "NCCL_ALGO=AllReduce:Ring\nNCCL_PROTO=LL\n").unwrap();
    let choice = |file: &str, flags: &str| {
        let run = run_in(folder, &format!("table --check {file} {flags} --format json"));
        assert_eq!(run.code, 0, "{file} {flags}: {run:?}");
        let checked: Value = serde_json::from_str(&run.stdout).unwrap();
        (checked["rows"][0]["algorithm"].clone(), checked["rows"][0]["protocol"].clone())
    };
    let node = "--fabric hgx-h200 --sizes 16MiB";
    assert_eq!(choice("nvls.conf", node).0, "nvls");
    assert_eq!(choice("nvls.conf", &format!("{node} --no-nvls")).0, "ring");
    let registered = "--fabric hgx-h200 --sizes 4KiB --registered symmetric --no-nvls";
    assert_eq!(choice("nvls.conf", registered).1, "symmetric");
    let network = "--nodes 2 --network rail,nics_per_node=4,nic=100Gb/s,link=ethernet";
    let with_plugin = format!("--fabric dgx-a100 {network} --sizes 4KiB");
    assert_eq!(choice("nvls.conf", &with_plugin), ("ring".into(), "simple".into()));
    assert_eq!(choice("ll.conf", &with_plugin), ("ring".into(), "ll".into()));
}
