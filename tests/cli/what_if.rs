//! Tests of failures, slow links, late ranks and background traffic: the run continues on the remaining resources, and
//! their cost is reported.

use std::path::Path;

use serde_json::Value;

use crate::run::{json, refused, run, run_in};

const RING: &str = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 64MiB --profile ideal";

fn number(value: &Value, key: &str) -> f64 {
    value.pointer(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// Returns the JSON output of a run with a warning.
fn run_with_warning(arguments: &str, warning: &str) -> Value {
    let run = run(&format!("{arguments} --format json"));
    assert!(run.code == 0 && run.stderr.contains(warning), "{arguments}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn without_the_switch_traffic_crosses_the_sockets() {
    let (healthy, degraded) = (json(RING), json(&format!("{RING} --fail nvswitch0")));
    assert_eq!((&healthy["bottleneck"], &degraded["bottleneck"]), (&"gpu0->nvswitch0".into(), &"cpu0->cpu1".into()));
    assert!(number(&degraded, "/time_us") > 5.0 * number(&healthy, "/time_us"));
}

#[test]
fn failed_gpus_are_excluded() {
    let degraded = run_with_warning(&format!("{RING} --fail gpu3"), "7 of 8 GPUs remain");
    assert_eq!(degraded["ranks"], 7);
    assert!(!degraded["links"].to_string().contains("gpu3"));
    // The result equals that of a run without the GPU.
    let seven_gpus = json(&format!("{RING} --gpus 7"));
    assert_eq!(degraded["time_us"], seven_gpus["time_us"]);
    assert_eq!(run_with_warning(&format!("{RING} --nodes 2 --fail n1"), "8 of 16 GPUs remain")["ranks"], 8);
    let plan =
        run_with_warning("plan --fabric hgx-h200 --collective all_reduce --bytes 1MiB --fail gpu3", "7 of 8 GPUs");
    assert_eq!(plan["ranks"], 7);
    refused(Path::new("."), &format!("{RING} --fail gpu3 --straggler gpu3=1us"), "gpu3 is not a rank");
    refused(Path::new("."), "plan --fabric hgx-h200 --gpus 1 --collective all_reduce --fail gpu0", "no GPUs in use");
}

#[test]
fn missing_routes_are_reported_with_both_ends() {
    let command = format!("{RING} --fail gpu3-nvswitch0 --fail gpu3-pcie_switch3");
    refused(
        Path::new("."),
        &command,
        "no path from gpu2 to gpu3: all paths are out of service (gpu3-nvswitch0, gpu3-pcie_switch3 failed)",
    );
    refused(
        Path::new("."),
        &format!(
            "{RING} --nodes 2 --fail leaf0 --fail leaf1 --fail leaf2 --fail leaf3 --fail leaf4 --fail leaf5 --fail leaf6 --fail leaf7"
        ),
        "more failed)",
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flows.csv"), "src,dst,bytes,start_us\ngpu3,gpu0,1,0\n").unwrap();
    refused(folder.path(), "simulate --fabric hgx-h200 --flows flows.csv --fail gpu3", "no path from gpu3 to gpu0");
}

#[test]
fn slow_links_are_the_bottleneck_and_cost_bandwidth() {
    let (healthy, slowed) = (json(RING), json(&format!("{RING} --slow nvswitch0->gpu6=0.5")));
    assert_eq!(slowed["bottleneck"], "nvswitch0->gpu6");
    assert!(number(&slowed, "/time_us") > 1.5 * number(&healthy, "/time_us"));
    // Messages that queue for the slow link hide the latency of the others.
    let link_cost = |output: &Value| {
        ["bandwidth", "waiting", "latency"].map(|part| number(output, &format!("/cost_us/{part}"))).iter().sum::<f64>()
    };
    let (time, cost) =
        (number(&slowed, "/time_us") - number(&healthy, "/time_us"), link_cost(&slowed) - link_cost(&healthy));
    assert!((time - cost).abs() < 1e-6, "{time} {cost}");
}

#[test]
fn late_ranks_are_the_bottleneck_if_nothing_costs_more() {
    let delayed = json(&format!("{} --straggler gpu2=3us --straggler gpu5=500us", RING.replace("64MiB", "64KiB")));
    assert_eq!(delayed["bottleneck"], "late start of gpu5");
    assert!(number(&delayed, "/cost_us/waiting") >= 500.0);
    // A small delay costs little.
    assert_eq!(json(&format!("{RING} --straggler gpu5=1us"))["bottleneck"], "gpu0->nvswitch0");
    assert_eq!(json(&RING.replace("64MiB", "1KiB"))["bottleneck"], "latency");
    assert_eq!(
        json(&RING.replace("64MiB", "1KiB").replace("ideal", "nccl-2.28-h200 --protocol simple"))["bottleneck"],
        "software"
    );
}

#[test]
fn background_traffic_adds_waiting_time() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.csv"), "src,dst,bytes,start_us\ngpu0,gpu4,450000000,0\n").unwrap();
    let run = run_in(folder.path(), &format!("{RING} --background other.csv --format json"));
    let (quiet, loaded): (Value, Value) = (json(RING), serde_json::from_str(&run.stdout).unwrap());
    assert_eq!(loaded["bottleneck"], "gpu0->nvswitch0");
    let increase = |key: &str| number(&loaded, key) - number(&quiet, key);
    let cost_increase = increase("/cost_us/waiting") + increase("/cost_us/latency");
    assert!(increase("/time_us") > 100.0 && (cost_increase - increase("/time_us")).abs() < 1e-6, "{loaded:#}");
}
