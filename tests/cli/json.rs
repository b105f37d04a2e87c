//! Tests of JSON output: the keys that programs rely on, and consistent values.

use serde_json::Value;

use crate::run::{json, run};

/// Asserts that the value has all these keys; a dot descends, and `[]` selects the first element.
#[track_caller]
fn has(value: &Value, keys: &[&str]) {
    for key in keys {
        let pointer = format!("/{}", key.replace("[]", ".0").replace('.', "/"));
        assert!(value.pointer(&pointer).is_some(), "no {key} in {value:#}");
    }
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {pointer} in {value:#}"))
}

#[test]
fn presets_have_names_and_sizes() {
    let list = json("fabric list");
    let names: Vec<&str> = list["rows"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    for name in [
        "dgx-v100",
        "dgx-a100",
        "hgx-h100",
        "hgx-h200",
        "hgx-b200",
        "hgx-b300",
        "gb200-nvl72",
        "gb300-nvl72",
        "gh200",
        "a100-pcie",
        "l40s-pcie",
        "rtx-pro-6000-pcie",
        "rtx4090-pcie",
        "mi300x",
        "gb10",
        "h100-pcie",
        "h100-nvl",
        "h200-nvl",
        "mi250x",
        "mi325x",
        "mi355x",
        "dgx-a100-40gb",
        "hgx-h20-96gb",
        "hgx-h800",
        "rtx5090-pcie",
    ] {
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn documents_begin_with_their_format() {
    for (command, format) in [
        ("fabric list", "fabricast-presets/2"),
        ("fabric check hgx-h200", "fabricast-fabric-check/2"),
        ("list gpus", "fabricast-list/2"),
        ("plan --fabric hgx-h200 --collective all_reduce --bytes 1MiB", "fabricast-plan/2"),
        ("simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB", "fabricast-simulation/2"),
    ] {
        let run = run(&format!("{command} --format json"));
        assert!(run.stdout.starts_with(&format!("{{\n  \"format\": \"{format}\",\n")), "{command}: {}", run.stdout);
    }
}

#[test]
fn a_fabric_has_nodes_links_gpus_and_paths() {
    let fabric = json("fabric show hgx-h200");
    has(
        &fabric,
        &[
            "name",
            "nodes[].id",
            "nodes[].kind",
            "nodes[].host",
            "links[].id",
            "links[].a",
            "links[].b",
            "links[].kind",
            "links[].bandwidth_gb_per_s",
            "links[].latency_ns",
            "gpus[]",
            "paths[].src",
            "paths[].dst",
            "paths[].class",
            "paths[].bandwidth_gb_per_s",
            "paths[].latency_ns",
        ],
    );
    assert_eq!(fabric["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(fabric["paths"].as_array().unwrap().len(), 8 * 7);
    // Each direction of a link is listed separately.
    let ids: Vec<&str> = fabric["links"].as_array().unwrap().iter().map(|link| link["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"gpu0->nvswitch0") && ids.contains(&"nvswitch0->gpu0"));
    // `export --to json` gives the same output.
    let exported = run("fabric export hgx-h200 --to json");
    assert_eq!(serde_json::from_str::<Value>(&exported.stdout).unwrap(), fabric);
    let cluster = json("fabric show hgx-h200 --nodes 2 --gpus 1");
    assert_eq!(cluster["gpus"], serde_json::json!(["n0/gpu0", "n1/gpu0"]));
}

#[test]
fn parts_of_a_run_add_up() {
    let run = json("simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 8MiB");
    has(
        &run,
        &[
            "time_us",
            "algbw_gb_per_s",
            "busbw_gb_per_s",
            "bound_us",
            "ranks",
            "operations",
            "events",
            "folded",
            "fold_factor",
            "cost_us.software",
            "cost_us.latency",
            "cost_us.bandwidth",
            "cost_us.waiting",
            "links[].link",
            "links[].utilization",
        ],
    );
    let time = number(&run, "/time_us");
    let costs = ["software", "latency", "bandwidth", "waiting"].map(|part| number(&run, &format!("/cost_us/{part}")));
    assert!((costs.iter().sum::<f64>() - time).abs() < 1e-6 * time, "{costs:?} {time}");
    let algbw = number(&run, "/algbw_gb_per_s");
    assert!((algbw - 8.0 * 1048576.0 / time / 1e3).abs() < 1e-9 * algbw);
    assert!((number(&run, "/busbw_gb_per_s") / algbw - 1.75).abs() < 1e-9);
    assert!(number(&run, "/bound_us") <= time);
}

#[test]
fn folding_and_aliases_change_nothing() {
    let folded = json("simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB");
    let unfolded =
        json("simulate --fabric hgx-h200 --collective all_reduce_perf --algorithm ring --bytes 1MiB --no-fold");
    assert_eq!((&folded["folded"], &unfolded["folded"]), (&Value::Bool(true), &Value::Bool(false)));
    for key in ["time_us", "cost_us", "operations", "links"] {
        assert_eq!(folded[key], unfolded[key], "{key}");
    }
    for (alias, name) in [("allreduce", "all_reduce"), ("alltoall", "all_to_all"), ("sendrecv_perf", "send_recv")] {
        assert_eq!(json(&format!("simulate --fabric gh200 --collective {alias}"))["collective"], name);
    }
}

#[test]
fn a_straggler_ends_later_by_its_delay() {
    let base = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --profile ideal";
    let delayed = json(&format!("{base} --straggler gpu5=20us"));
    assert!(number(&delayed, "/time_us") >= number(&json(base), "/time_us").max(20.0));
    assert!(number(&delayed, "/cost_us/waiting") > 0.0);
}

#[test]
fn flows_are_listed_in_the_order_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("flows.csv"),
        "src,dst,bytes,start_us\ngpu3,gpu0,45000000,7\ngpu0,gpu1,45000000,0\n",
    )
    .unwrap();
    let run = crate::run::run_in(folder.path(), "simulate --fabric hgx-h200 --flows flows.csv --format json");
    let answer: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(answer["flows"][0]["src"], "gpu3");
    // The flow moves 45 MB at 450 GB/s after a path latency of 0.5 µs; the default profile is `ideal`.
    assert!((number(&answer, "/flows/0/end_us") - 107.5).abs() < 1e-6, "{answer:#}");
    assert!((number(&answer, "/flows/1/end_us") - 100.5).abs() < 1e-6, "{answer:#}");
    has(&answer, &["flows[].dst", "flows[].bytes", "flows[].start_us"]);
}

#[test]
fn a_plan_has_rows_and_ranges() {
    let plan = json("plan --fabric hgx-h200 --collective all_reduce --sizes 1KiB..1GiB:1024");
    has(
        &plan,
        &[
            "fabric",
            "profile",
            "ranks",
            "rows[].collective",
            "rows[].bytes",
            "rows[].algorithm",
            "rows[].protocol",
            "rows[].channels",
            "rows[].time_us",
            "rows[].low_us",
            "rows[].high_us",
            "rows[].busbw_gb_per_s",
            "rows[].bound_us",
            "rows[].bottleneck",
            "rows[].runner_up.algorithm",
            "library",
            "rows[].library_default.algorithm",
            "rows[].library_default.protocol",
            "rows[].library_default.channels",
            "rows[].library_default.time_us",
            "rows[].library_default.default_slowdown",
            "ranges[].collective",
            "ranges[].min_bytes",
            "ranges[].max_bytes",
            "ranges[].algorithm",
            "ranges[].protocol",
            "ranges[].channels",
        ],
    );
    let rows = plan["rows"].as_array().unwrap();
    let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1 << 10, 1 << 20, 1 << 30]);
    for row in rows {
        let value = |key: &str| number(row, &format!("/{key}"));
        assert!(
            value("bound_us") <= value("low_us")
                && value("low_us") <= value("time_us")
                && value("time_us") <= value("high_us"),
            "{row}"
        );
        assert!(value("time_us") <= value("runner_up/time_us"), "{row}");
    }
}

#[test]
fn every_collective_has_a_plan_on_one_host_and_on_two() {
    for nodes in [1, 2] {
        let plan = json(&format!("plan --fabric hgx-h200 --nodes {nodes} --collective all --sizes 64KiB"));
        let collectives: Vec<&str> =
            plan["rows"].as_array().unwrap().iter().map(|row| row["collective"].as_str().unwrap()).collect();
        assert_eq!(
            collectives,
            [
                "all_reduce",
                "all_gather",
                "reduce_scatter",
                "broadcast",
                "reduce",
                "all_to_all",
                "gather",
                "scatter",
                "send_recv",
            ]
        );
    }
}

#[test]
fn restrictions_exclude_other_strategies() {
    let run = run("plan --fabric hgx-h200 --collective all --algorithm ring --sizes 64KiB --format json");
    assert_eq!(run.code, 0);
    assert!(run.stderr.contains("no strategy remains for all_to_all"), "{}", run.stderr);
    let plan: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(plan["rows"].as_array().unwrap().len(), 5);
}

#[test]
fn sizes_are_rounded_down_to_elements_of_a_given_type() {
    let bytes =
        |flags: &str| json(&format!("simulate --fabric gh200 --collective all_reduce {flags}"))["bytes"].clone();
    assert_eq!(bytes("--bytes 1001"), 1001);
    assert_eq!(bytes("--bytes 1001 --dtype f32"), 1000);
    let plan = json("plan --fabric gh200 --collective all_reduce --sizes 8..9 --dtype f64");
    assert_eq!(plan["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn without_a_gpu_the_exit_code_is_three() {
    let probe = run("gpu probe --format json");
    match probe.code {
        0 => has(&serde_json::from_str(&probe.stdout).unwrap(), &["devices[].name"]),
        code => {
            assert_eq!((code, probe.stdout.as_str(), probe.stderr.trim().lines().count()), (3, "", 1), "{probe:?}");
            assert_eq!(run("fabric show auto").code, 3);
        }
    }
}
