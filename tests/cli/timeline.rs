//! Tests of the timelines of runs: critical path, utilization over time, traces.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::run::{json, refused, run, run_in};

/// Converts microseconds to picoseconds exactly, because JSON has all digits.
fn picos(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e6).round() as u64
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_else(|| panic!("no array: {value}"))
}

#[test]
fn critical_path_adds_up_to_the_picosecond() {
    for flags in [
        "--fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB",
        "--fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB --no-fold",
        "--fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 100001 --launch stream --straggler gpu5=20us --slow gpu0-nvswitch0=0.37",
        "--fabric hgx-h200 --nodes 4 --collective all_reduce --algorithm hierarchical --bytes 64MiB",
        "--fabric dgx-a100 --collective all_to_all --bytes 12345678 --straggler gpu1=1us --straggler gpu7=3us",
        "--fabric gb200-nvl72 --collective broadcast --algorithm tree --bytes 8MiB",
        // This call has only start-up time.
        "--fabric hgx-h200 --gpus 1 --collective all_reduce --algorithm ring",
    ] {
        let answer = json(&format!("simulate {flags} --critical-path"));
        let mut now = 0;
        let mut kinds = [0; 5];
        for step in array(&answer["critical_path"]) {
            assert_eq!(picos(&step["start_us"]), now, "{flags}: {step}");
            let parts = ["software_us", "latency_us", "bandwidth_us", "sharing_us", "held_back_us"]
                .map(|key| picos(&step[key]));
            now += parts.iter().sum::<u64>();
            assert_eq!(picos(&step["end_us"]), now, "{flags}: {step}");
            kinds.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        assert_eq!(now, picos(&answer["time_us"]), "{flags}");
        let costs = ["software", "latency", "bandwidth", "waiting"].map(|kind| picos(&answer["cost_us"][kind]));
        assert_eq!([kinds[0], kinds[1], kinds[2], kinds[3] + kinds[4]], costs, "{flags}");
    }
}

#[test]
fn critical_path_follows_data_between_ranks() {
    let answer = json(
        "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --profile ideal --critical-path --straggler gpu5=20us",
    );
    let path = array(&answer["critical_path"]);
    assert_eq!(path.len(), 14);
    // The path starts at the late rank, and each step begins on the rank to which the previous one wrote its data.
    assert_eq!((&path[0]["from"], picos(&path[0]["held_back_us"])), (&Value::from(5), 20_000_000));
    for pair in path.windows(2) {
        assert_eq!(pair[0]["to"], pair[1]["from"]);
    }
}

#[test]
fn long_critical_paths_are_summarized_in_a_short_table() {
    let slow: String = (0..8).map(|gpu| format!(" --slow gpu{gpu}->nvswitch0=0.{}", 9 - gpu)).collect();
    let flags = format!(
        "simulate --fabric hgx-h200 --collective all_reduce --algorithm tree --channels 2 --profile ideal --bytes 64MiB --critical-path{slow}"
    );
    let text = run(&flags).stdout;
    let table: Vec<&str> = text.split("critical path: ").nth(1).unwrap().lines().skip(3).collect();
    assert_eq!(table.len(), 14, "{text}");
    assert!(table[12].contains("more steps"), "{text}");
    let last = |line: &str| line.split_whitespace().last().unwrap().replace(',', "").parse::<f64>().unwrap();
    let sum: f64 = table[..13].iter().map(|line| last(line)).sum();
    let time = json(&flags)["time_us"].as_f64().unwrap();
    assert!((sum - time).abs() < 0.01 * time && (last(table[13]) - time).abs() < 0.01 * time, "{text}");
}

#[test]
fn utilization_over_time_has_each_links_mean() {
    let flags = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 8MiB --protocol simple --channels 2";
    for extra in ["", "--no-fold", "--slow gpu3=0.4"] {
        let answer = json(&format!("{flags} {extra} --utilization-over-time=40"));
        let resources = array(&answer["load"]["resources"]);
        assert!(resources.len() > 20 && resources.len() <= 80, "{extra}: {}", resources.len());
        assert!(resources.iter().any(|one| one["resource"].as_str().unwrap().starts_with("channel ")), "{extra}");
        let slice = answer["load"]["slice_us"].as_f64().unwrap();
        for link in array(&answer["links"]) {
            let Some(one) = resources.iter().find(|one| one["resource"] == link["link"]) else { continue };
            let values: Vec<f64> = array(&one["values"]).iter().map(|value| value.as_f64().unwrap()).collect();
            assert!(values.iter().all(|value| (0.0..=1.0 + 1e-9).contains(value)), "{one}");
            // Without launch costs the run ends within the last slice, so the busy time is the sum of the values times
            // the slice.
            let busy = values.iter().sum::<f64>() * slice;
            let expected = link["utilization"].as_f64().unwrap() * values.len() as f64 * slice;
            assert!((busy - expected).abs() < 0.02 * expected, "{extra}: {busy} {expected} {link}");
        }
    }
    let three_intervals = run(&format!("{flags} --utilization-over-time=3")).stdout;
    assert_eq!(
        three_intervals.split("utilization over time").nth(1).unwrap().lines().count(),
        1 + 2 * 3,
        "{three_intervals}"
    );
    // Without the flags the output does not have these keys.
    let without_flags = json(flags);
    assert!(without_flags.get("load").is_none() && without_flags.get("critical_path").is_none());
}

#[test]
fn csv_output_rejects_critical_path_and_utilization() {
    let here = std::path::Path::new(".");
    let ring = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --format csv";
    refused(here, &format!("{ring} --critical-path"), "--format csv");
    refused(here, &format!("{ring} --utilization-over-time"), "--format csv");
    refused(here, "simulate --fabric hgx-h200 --flows f.csv --critical-path", "cannot be used with");
    refused(here, &format!("{ring} --utilization-over-time=0"), "0 is not in 1..");
}

#[test]
fn flows_have_utilization_over_time() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("flows.csv"),
        "src,dst,bytes,start_us\ngpu0,gpu1,45000000,0\ngpu2,gpu1,45000000,100\n",
    )
    .unwrap();
    let flags = "simulate --fabric hgx-h200 --flows flows.csv --utilization-over-time";
    let run = run_in(folder.path(), &format!("{flags} --format json"));
    let answer: Value = serde_json::from_str(&run.stdout).unwrap();
    let busiest = &answer["load"]["resources"][0];
    assert_eq!(busiest["resource"], "nvswitch0->gpu1");
    assert!(
        array(&busiest["values"]).iter().skip(1).take(97).all(|value| (value.as_f64().unwrap() - 1.0).abs() < 1e-6),
        "{busiest}"
    );
    assert!(run_in(folder.path(), flags).stdout.contains("█████████████"));
}

/// Returns the events of the trace that a run writes.
fn trace(flags: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path(), &format!("simulate {flags} --trace trace.json -q"));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{flags}");
    let bytes = std::fs::read(folder.path().join("trace.json")).unwrap();
    assert!(bytes.len() <= 50_000_000, "{flags}: {} bytes", bytes.len());
    let mut trace: Value = serde_json::from_slice(&bytes).unwrap();
    let events = array(&trace["traceEvents"]);
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert!(times.is_sorted(), "{flags}");
    let Value::Array(events) = trace["traceEvents"].take() else { panic!("{flags}: no events") };
    events
}

#[test]
fn small_traces_contain_every_operation() {
    let flags =
        "--fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB --protocol simple --channels 2";
    let events = trace(flags);
    let events_of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let answer = json(&format!("simulate {flags}"));
    assert_eq!(events_of("X").len() as u64, answer["operations"].as_u64().unwrap());
    // Ranks are processes and channels are threads; the spans of a thread do not overlap.
    let ranks: BTreeSet<u64> = events_of("X").iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (0..8).collect());
    let threads: BTreeSet<&str> = events_of("M")
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert!(threads.contains("channel 0") && threads.contains("channel 1"), "{threads:?}");
    let mut free_from: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for event in events_of("X") {
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (start, length) = (picos(&event["ts"]), picos(&event["dur"]));
        assert!(free_from.get(&thread).is_none_or(|&end| end <= start), "{event}");
        free_from.insert(thread, start + length);
        assert!(event["name"].as_str().unwrap().contains(" to rank "), "{event}");
    }
    // The busiest links are counters, each of which ends at zero.
    let graphs: BTreeSet<&str> = events_of("C").iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert!(graphs.len() <= 16 && graphs.contains("gpu0->nvswitch0"), "{graphs:?}");
    for graph in graphs {
        let last = events_of("C").into_iter().rfind(|event| event["name"] == graph).unwrap();
        assert_eq!(last["args"]["percent"].as_f64(), Some(0.0), "{last}");
    }
}

#[test]
fn large_traces_are_merged_but_complete() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "[[node]]\nid = \"gpu[0-1023]\"\nkind = \"gpu\"\ncompute_capability = 80\n[[node]]\nid = \"sw\"\nkind = \"switch\"\n\
                [[link]]\na = \"gpu[0-1023]\"\nb = \"sw\"\nkind = \"infiniband\"\nbandwidth = \"50 GB/s\"\n";
    let spec_file = folder.path().join("switch.toml");
    std::fs::write(&spec_file, spec).unwrap();
    let events = trace(&format!(
        "--fabric {} --profile ideal --collective all_reduce --algorithm ring --channels 1 --bytes 1MiB",
        spec_file.display()
    ));
    let spans: u64 = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| event["args"]["spans"].as_u64().unwrap_or(1))
        .sum();
    assert_eq!(spans, 1024 * 2 * 1023);
}
