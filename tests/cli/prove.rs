//! Tests of `gpu prove` without a GPU: faults of its input are reported first, then the missing GPU.

use std::path::Path;

use crate::run::{refused, run_in};

fn with_table(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("table.csv"), text).unwrap();
    std::fs::write(folder.path().join("plugin.so"), "").unwrap();
    folder
}

#[test]
fn missing_driver_is_reported() {
    let folder = with_table("allreduce,0,1099511627776,ring,ll,4,1,2\n");
    let run = run_in(folder.path(), "gpu prove table.csv --plugin plugin.so");
    if !run.stderr.contains("no NVIDIA driver on this machine") {
        println!("skipped: this machine has a GPU");
        return;
    }
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.lines().count()), (3, "", 1), "{run:?}");
}

#[test]
fn invalid_input_is_reported_before_gpus_are_searched() {
    let folder = with_table("# made\nallreduce,0,1,rong,ll,4,1,2\n");
    refused(folder.path(), "gpu prove table.csv --plugin plugin.so", "table.csv:2:15: unknown algorithm `rong`");
    refused(folder.path(), "gpu prove none.csv --plugin plugin.so", "none.csv");
    let folder = with_table("allreduce,0,1,ring,ll,4,1,2\n");
    refused(folder.path(), "gpu prove table.csv --plugin none.so", "none.so");
    refused(folder.path(), "gpu prove table.csv --plugin plugin.so --collective all_to_all", "queries no tuner");
    refused(folder.path(), "gpu prove table.csv --plugin plugin.so --rounds 3", "5..=40");
}

#[test]
fn worker_cannot_be_started_by_hand() {
    refused(Path::new(env!("CARGO_TARGET_TMPDIR")), "gpu prove-side", "this is started by `gpu prove` alone");
}
