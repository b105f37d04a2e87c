//! Output does not depend on irrelevant input: the number of threads, the order of lines, and the order of blocks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use crate::run::{run, run_in};

#[test]
fn output_does_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let flows: String = (0..64)
        .map(|i| format!("n{}/gpu{},n{}/gpu{},{},{}\n", i % 4, i % 8, (i + 1) % 4, i * 3 % 8, 1000 * i, i % 5))
        .collect();
    std::fs::write(folder.path().join("flows.csv"), format!("src,dst,bytes,start_us\n{flows}")).unwrap();
    let ring = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB";
    for command in [
        format!("{ring} --critical-path --utilization-over-time"),
        format!("{ring} --critical-path --utilization-over-time --slow gpu2=0.3 --straggler gpu5=9us --format json"),
        "simulate --fabric hgx-h200 --nodes 4 --collective all_to_all --bytes 1MiB --no-fold --format json".to_owned(),
        "simulate --fabric hgx-h200 --nodes 4 --flows flows.csv --format json".to_owned(),
        "simulate --fabric hgx-h200 --nodes 4 --flows flows.csv --ecmp hashed=3 --utilization-over-time".to_owned(),
        "plan --fabric dgx-a100 --collective all --sizes 1KiB..1MiB:16 --format json".to_owned(),
        "plan --fabric hgx-h200 --nodes 2 --collective all_reduce --sizes 64KiB..1GiB:128".to_owned(),
        "plan --fabric dgx-a100 --collective all_reduce --sizes 1KiB..1MiB:32 --format csv".to_owned(),
    ] {
        let run_on = |threads: u32| run_in(folder.path(), &format!("{command} --threads {threads}"));
        let sequential = run_on(1);
        assert_eq!(sequential.code, 0, "{command}: {}", sequential.stderr);
        for threads in [2, 8] {
            let parallel = run_on(threads);
            assert_eq!(
                (parallel.code, parallel.stdout, parallel.stderr),
                (0, sequential.stdout.clone(), sequential.stderr.clone()),
                "{command} on {threads}"
            );
        }
    }
}

/// The files of a folder are written by all threads in any order, and the output is the same.
#[test]
fn folders_do_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric hgx-h200 --gpus 4 --collective all --sizes 1KiB..4MiB:16 --format json -o plan.json";
    assert_eq!(run_in(folder.path(), &format!("plan {flags}")).code, 0);
    for format in ["mscclpp", "msccl-xml"] {
        let export = |threads: u32| {
            let run = run_in(
                folder.path(),
                &format!("table plan.json --to {format} -o {format}-{threads} --threads {threads}"),
            );
            assert_eq!(run.code, 0, "{format}: {}", run.stderr);
            let files = std::fs::read_dir(folder.path().join(format!("{format}-{threads}"))).unwrap();
            let read = |file: std::fs::DirEntry| (file.file_name(), std::fs::read(file.path()).unwrap());
            let files: BTreeMap<OsString, Vec<u8>> = files.map(|file| read(file.unwrap())).collect();
            (files, run.stderr)
        };
        let sequential = export(1);
        assert!(
            sequential.0.len() > 5
                && sequential.0.values().all(|text| text.ends_with(b"\n") && !text.ends_with(b"\n\n")),
            "{format}"
        );
        for threads in [2, 8] {
            assert!(export(threads) == sequential, "{format} on {threads}");
        }
    }
}

/// Returns the result lines of each flow, sorted.
fn simulate_flows(folder: &Path, lines: &[&str]) -> Vec<String> {
    std::fs::write(folder.join("flows.csv"), format!("src,dst,bytes,start_us\n{}\n", lines.join("\n"))).unwrap();
    let run = run_in(folder, "simulate --fabric hgx-h200 --nodes 2 --ecmp hashed=5 --flows flows.csv --format json");
    let answer: Value = serde_json::from_str(&run.stdout).unwrap();
    let mut flows: Vec<String> = answer["flows"].as_array().unwrap().iter().map(Value::to_string).collect();
    flows.sort();
    flows
}

#[test]
fn output_does_not_depend_on_the_order_of_flows() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = [
        "n0/gpu0,n1/gpu2,45000000,0",
        "n0/gpu1,n1/gpu2,45000000,0",
        "n0/gpu0,n1/gpu2,45000000,0",
        "n0/gpu0,n1/gpu2,1000000,0",
        "n0/gpu0,n1/gpu2,1000000,50",
        "n1/gpu3,n1/gpu4,45000000,100",
    ];
    let expected = simulate_flows(folder.path(), &lines);
    for step in 0..lines.len() {
        lines.rotate_left(step);
        lines.swap(0, step);
        assert_eq!(simulate_flows(folder.path(), &lines), expected, "{lines:?}");
    }
}

/// Returns the blocks of a spec, each of which is a device or a link; GPUs come first.
fn blocks() -> Vec<String> {
    let gpus = (0..6).map(|i| format!("[[node]]\nid = \"gpu{i}\"\nkind = \"gpu\"\ncompute_capability = 80\n"));
    let switches = ["left", "right"].map(|id| format!("[[node]]\nid = \"{id}\"\nkind = \"switch\"\n"));
    let link = |a: &str, b: &str, gb_per_s: u32| {
        format!(
            "[[link]]\na = \"{a}\"\nb = \"{b}\"\nkind = \"infiniband\"\nbandwidth = \"{gb_per_s} GB/s\"\nlatency = \"400 ns\"\n"
        )
    };
    let ports = (0..6).map(|i| link(&format!("gpu{i}"), if i < 3 { "left" } else { "right" }, 50));
    let trunks = [link("left", "right", 60), link("left", "right", 25)];
    gpus.chain(switches).chain(ports).chain(trunks).collect()
}

#[test]
fn output_does_not_depend_on_the_order_of_a_spec() {
    let folder = tempfile::tempdir().unwrap();
    let times = |blocks: &[String]| {
        std::fs::write(folder.path().join("spec.toml"), blocks.concat()).unwrap();
        ["all_reduce --algorithm ring", "all_to_all", "broadcast --algorithm tree", "all_reduce --ecmp hashed=2"].map(
            |collective| {
                let command = format!(
                    "simulate --fabric spec.toml --profile ideal --bytes 3MB --collective {collective} --format json"
                );
                let run = run_in(folder.path(), &command);
                assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{command}");
                let answer: Value = serde_json::from_str(&run.stdout).unwrap();
                (answer["time_us"].clone(), answer["cost_us"].clone(), answer["bound_us"].clone())
            },
        )
    };
    let mut blocks = blocks();
    let expected = times(&blocks);
    // The order of the GPUs determines the ranks and does not change. All other blocks move, also before and between
    // them.
    let fixed: Vec<String> = blocks.drain(..6).collect();
    blocks.reverse();
    assert_eq!(times(&[blocks.clone(), fixed.clone()].concat()), expected);
    for (number, gpu) in fixed.into_iter().enumerate() {
        blocks.insert(2 * number, gpu);
    }
    blocks.swap(9, 11);
    assert_eq!(times(&blocks), expected);
}

#[test]
fn traces_do_not_depend_on_folding() {
    let folder = tempfile::tempdir().unwrap();
    let ring = "simulate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1MiB --critical-path";
    let trace = |flags: &str, file: &str| {
        let run = run_in(folder.path(), &format!("{ring} {flags} --trace {file}"));
        let path = run.stdout.split("critical path").nth(1).unwrap().to_owned();
        (std::fs::read(folder.path().join(file)).unwrap(), path)
    };
    assert!(run(ring).stdout.contains("folded"));
    assert_eq!(trace("", "folded.json"), trace("--no-fold", "whole.json"));
}
