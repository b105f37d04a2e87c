//! Schedules are verified before they are simulated, evaluated or written.

use std::fs;

use crate::run::{json, run_in};

/// Schedule whose first operation writes to the wrong chunk.
const WRONG: &str = include_str!("transcripts/schedules.in/wrong.json");

/// Creates a folder with a wrong and a correct schedule of two ranks.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("wrong.json"), WRONG).unwrap();
    let flags = "--fabric hgx-h200 --gpus 2 --collective all_reduce --algorithm ring --bytes 64KiB --profile ideal";
    let generated = run_in(folder.path(), &format!("schedule generate {flags} -o right.json"));
    assert_eq!(generated.code, 0, "{}", generated.stderr);
    folder
}

#[test]
fn wrong_schedules_are_not_simulated() {
    let folder = folder();
    let flags = "simulate --fabric hgx-h200 --gpus 2 --profile ideal --schedule wrong.json";
    for format in ["text", "json", "csv"] {
        let run = run_in(folder.path(), &format!("{flags} --format {format} -o out --trace trace.json"));
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
        // The error gives the operation, the rank, the chunk, the value found and the value expected.
        for expected in
            ["operation 0 (rank 0,", "output chunk 1 of rank 1", "found input chunk 0", "expected contributions"]
        {
            assert!(run.stderr.contains(expected), "{expected}: {}", run.stderr);
        }
        assert!(!folder.path().join("out").exists() && !folder.path().join("trace.json").exists());
    }
    let skipped = run_in(folder.path(), &format!("{flags} --no-verify"));
    assert_eq!(skipped.code, 0, "{}", skipped.stderr);
    assert!(skipped.stdout.contains("not verified (--no-verify)"), "{}", skipped.stdout);
}

#[test]
fn json_states_if_a_schedule_was_verified() {
    let folder = folder();
    let file = folder.path().join("right.json");
    let flags = format!("simulate --fabric hgx-h200 --gpus 2 --profile ideal --schedule {}", file.display());
    let (verified, skipped) = (json(&flags), json(&format!("{flags} --no-verify")));
    assert_eq!((&verified["verified"], &skipped["verified"]), (&true.into(), &false.into()));
    assert_eq!(verified["time_us"], skipped["time_us"]);
    assert_eq!(
        json("simulate --fabric hgx-h200 --collective all_reduce --bytes 64KiB")["verified"],
        serde_json::Value::Null
    );
}

#[test]
fn wrong_schedules_are_not_run_on_gpus() {
    let folder = folder();
    let run = run_in(folder.path(), "gpu run --fabric hgx-h200 --gpus 2 --schedule wrong.json");
    assert!(run.code == 1 && run.stderr.contains("the schedule is wrong: operation 0"), "{run:?}");
}

#[test]
fn exports_state_that_they_were_not_verified() {
    let folder = folder();
    let flags = "--fabric hgx-h200 --gpus 2 --collective all_gather --protocol symmetric --sizes 64KiB..64KiB";
    assert_eq!(run_in(folder.path(), &format!("plan {flags} --format json -o plan.json")).code, 0);
    let verified = run_in(folder.path(), "table plan.json --to mscclpp -o verified");
    assert_eq!((verified.code, verified.stderr.as_str()), (0, ""));
    let skipped = run_in(folder.path(), "table plan.json --to mscclpp -o skipped --no-verify");
    assert!(skipped.code == 0 && skipped.stderr.contains("not verified (--no-verify)"), "{skipped:?}");
}
