//! The fastest candidate of `plan` is never slower than any strategy run by `simulate`; libraries that cannot run on
//! the GPUs are refused.

use serde_json::Value;

use crate::run::{json, refused, run};

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn micros(value: &Value) -> f64 {
    value["time_us"].as_f64().unwrap()
}

/// Simulates every strategy that the plan evaluates, on the default channels of `simulate`.
fn no_strategy_is_faster(call: &str, bytes: &str) {
    let plan = json(&format!("plan {call} --sizes {bytes}..{bytes}"));
    let row = &plan["rows"][0];
    let fastest = micros(&row["fastest"]);
    assert!(fastest <= micros(row), "{call}: {row}");
    let tried = plan["searched"]["strategies"].as_array().unwrap();
    assert!(tried.len() > 3, "{tried:?}");
    for candidate in tried {
        for protocol in candidate["protocols"].as_array().unwrap() {
            let strategy =
                format!("--algorithm {} --protocol {}", text(candidate, "algorithm"), protocol.as_str().unwrap());
            let run = json(&format!("simulate {call} --bytes {bytes} {strategy}"));
            let of_default = &row["library_default"]["channels"];
            let channels = plan["searched"]["channels"].as_array().unwrap().iter().chain([of_default]);
            assert!(channels.into_iter().any(|tried| *tried == run["channels"]), "{strategy}: {run}");
            assert!(fastest <= micros(&run), "{call} {strategy}: {} us, and the fastest is {row}", micros(&run));
        }
    }
}

#[test]
fn small_rooted_calls_use_message_algorithms_if_faster() {
    let call = "--fabric hgx-h100 --nodes 4 --network fat_tree --collective reduce";
    no_strategy_is_faster(call, "1KiB");
    let plan = json(&format!("plan {call} --sizes 1KiB..1KiB"));
    let simulated = json(&format!("simulate {call} --bytes 1KiB --algorithm linear"));
    assert!(micros(&plan["rows"][0]["fastest"]) <= micros(&simulated));
}

#[test]
fn broadcasts_and_gathers_are_no_slower_than_any_simulation() {
    no_strategy_is_faster("--fabric dgx-a100 --nodes 2 --collective broadcast", "64KiB");
    no_strategy_is_faster("--fabric mi300x --collective all_gather", "4MiB");
}

#[test]
fn candidates_not_tried_are_listed() {
    let plan = json("plan --fabric hgx-h200 --collective all_reduce --library nccl-2.28.9 --sizes 1KiB..1KiB");
    let not_tried = plan["searched"]["not_tried"].as_array().unwrap();
    let excluded = |algorithm: &str| not_tried.iter().find(|one| one["algorithm"] == algorithm).unwrap();
    assert!(
        text(excluded("hierarchical"), "reason").contains("needs several hosts, but there is only one"),
        "{not_tried:?}"
    );
    assert!(text(excluded("one_shot"), "reason").contains("nccl-2.28.9 does not run it"), "{not_tried:?}");
    assert!(not_tried.iter().any(|one| text(one, "reason").contains("other channel counts")), "{not_tried:?}");
    let kernels =
        json("plan --fabric hgx-h100 --gpus 2 --profile kernels-h100 --collective all_reduce --sizes 1KiB..4MiB:4096");
    let not_tried = kernels["searched"]["not_tried"].as_array().unwrap();
    let channels: Vec<&Value> = not_tried.iter().map(|one| &one["channels"]).filter(|one| !one.is_null()).collect();
    assert_eq!(channels, [64, 128]);
}

/// Schedules with more chunks than can be simulated are excluded from the plan and listed with the reason.
#[test]
fn too_large_schedules_are_listed_as_not_tried() {
    let call = "plan --fabric hgx-h100 --collective all_reduce --bytes 100TiB";
    let plan = run(&format!("{call} --format json"));
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let not_tried = plan["searched"]["not_tried"].as_array().unwrap();
    let ring: Vec<&Value> =
        not_tried.iter().filter(|one| one["algorithm"] == "ring" && one["protocols"][0] == "simple").collect();
    assert!(!ring.is_empty(), "{not_tried:?}");
    for one in ring {
        assert!(text(one, "reason").contains("chunks are too many") && one["channels"].is_u64(), "{one}");
        assert_eq!(one["bytes"], 100u64 << 40);
    }
    assert_eq!(plan["rows"][0]["protocol"], "symmetric");
    let shown = run(call);
    assert!(shown.stdout.contains("not tried: ring (simple, 1, 2, 4, 8, 16, 24, 32 channels)"), "{}", shown.stdout);
}

/// A library of another GPU vendor is refused, and the error names the library of the GPUs' vendor.
#[test]
fn libraries_that_do_not_run_on_the_gpus_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (fabric, library, own) in [("hgx-h100", "rccl-2.27.7", "expected nccl"), ("mi300x", "nccl", "expected rccl")] {
        for command in ["plan", "simulate"] {
            let arguments =
                format!("{command} --fabric {fabric} --collective all_reduce --bytes 1MiB --library {library}");
            refused(folder.path(), &arguments, own);
        }
    }
}
