//! Tests of `gpu` without a GPU: the missing part is reported in one line with exit code 3, while saved measurements
//! can still be analysed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::run::{Run, command, refused, run, run_in};

/// Returns the path of the shipped measurements with raw values.
fn saved() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("validate/runs/2026-11-21-4xh200/bench.json").display().to_string()
}

const COMMANDS: [&str; 6] = [
    "gpu probe",
    "gpu probe --format json",
    "gpu bench --quick",
    "gpu doctor",
    "gpu run --fabric hgx-h200 --gpus 2 --executor nvshmem --collective all_reduce --bytes 1KiB",
    "plan --fabric auto --collective all_reduce --sizes 1MiB..1MiB",
];

#[test]
fn missing_driver_is_reported_by_every_command() {
    for arguments in COMMANDS {
        let run = run(arguments);
        if run.code == 0 {
            println!("skipped: this machine has a GPU");
            return;
        }
        assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{arguments}: {run:?}");
        assert_eq!(run.stderr.lines().count(), 1, "{arguments}: {run:?}");
        assert!(run.stderr.contains("no NVIDIA driver on this machine"), "{arguments}: {run:?}");
    }
}

/// Builds a driver library in which every function returns `code`; `None` without a C compiler.
fn build_stub_driver(folder: &Path, symbols: &[&str], code: u32) -> Option<PathBuf> {
    let source: String = symbols.iter().map(|symbol| format!("int {symbol}(void) {{ return {code}; }}\n")).collect();
    std::fs::write(folder.join("driver.c"), source).unwrap();
    let library = folder.join("libcuda.so");
    let status = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&library)
        .arg(folder.join("driver.c"))
        .status();
    status.is_ok_and(|status| status.success()).then(|| folder.to_owned())
}

/// Runs the command with another driver library than the system's.
fn run_with_driver(folder: &Path, arguments: &str) -> Run {
    let output = command(folder, arguments).env("LD_LIBRARY_PATH", folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn driver_without_gpus_or_functions_is_an_error() {
    let symbols = fabricast_validate::cuda::SYMBOLS;
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = build_stub_driver(folder.path(), symbols, 100) else {
        println!("skipped: no C compiler");
        return;
    };
    for arguments in COMMANDS {
        let run = run_with_driver(&path, arguments);
        assert_eq!(run.code, 3, "{arguments}: {run:?}");
        assert!(run.stderr.contains("the NVIDIA driver finds no GPU on this machine"), "{arguments}: {run:?}");
    }
    let older: Vec<&str> = symbols.iter().copied().filter(|&symbol| symbol != "cuEventElapsedTime_v2").collect();
    let folder = tempfile::tempdir().unwrap();
    let path = build_stub_driver(folder.path(), &older, 0).unwrap();
    for arguments in COMMANDS {
        let run = run_with_driver(&path, arguments);
        assert_eq!(run.code, 1, "{arguments}: {run:?}");
        assert!(run.stderr.contains("has no function cuEventElapsedTime_v2"), "{arguments}: {run:?}");
        assert!(run.stderr.contains("CUDA 12.8"), "{arguments}: {run:?}");
    }
}

#[test]
fn saved_runs_are_analysed_without_a_gpu() {
    let healthy = run(&format!("gpu doctor --from {}", saved()));
    assert_eq!((healthy.code, healthy.stderr.as_str()), (0, ""), "{healthy:?}");
    let pairs = "12 pairs over NVL: 395 GB/s, expected 395; both ways 390–391; thread blocks 364–366, expected 364; \
                 flags 0.60–0.62 µs, expected 0.70\n";
    assert!(healthy.stdout.contains(pairs), "{healthy:?}");
    assert!(healthy.stdout.ends_with("no fault found\n"), "{healthy:?}");
    let preset = run(&format!("gpu doctor --from {} --fabric hgx-h200 --gpus 4 --format json", saved()));
    assert_eq!(preset.code, 0, "{preset:?}");
    let report: Value = serde_json::from_str(&preset.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    assert_eq!(report["pairs"].as_array().unwrap().len(), 12);
    for fabric in ["dgx-a100 --gpus 4", "hgx-h200", "l40s-pcie --gpus 4"] {
        let run = run(&format!("gpu doctor --from {} --fabric {fabric}", saved()));
        assert_eq!(run.code, 1, "{fabric}: {run:?}");
        assert!(run.stdout.contains("(wrong_topology)"), "{fabric}: {run:?}");
        assert!(run.stderr.contains("found"), "{fabric}: {run:?}");
    }
}

/// Writes the saved run with modifications, and returns the file's path.
fn edited_run(folder: &Path, edit: impl Fn(&mut Value)) -> String {
    let mut bench: Value = serde_json::from_str(&std::fs::read_to_string(saved()).unwrap()).unwrap();
    edit(&mut bench);
    let path = folder.join("edited.json");
    std::fs::write(&path, serde_json::to_string(&bench).unwrap()).unwrap();
    path.display().to_string()
}

/// Multiplies a value of the selected points by `factor`.
fn scale(bench: &mut Value, key: &str, factor: f64, is_selected: impl Fn(&Value) -> bool) {
    for point in bench["points"].as_array_mut().unwrap().iter_mut().filter(|point| is_selected(point)) {
        if let Some(figure) = point[key].as_f64() {
            point[key] = (figure * factor).into();
        }
    }
}

/// A fault, and what the doctor reports for it.
type Case = (&'static str, fn(&mut Value));

#[test]
fn injected_faults_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [Case; 9] = [
        ("no_peer_access", |bench| {
            // This is a PCIe host with all GPUs below one CPU.
            bench["probe"]["devices"].as_array_mut().unwrap().iter_mut().for_each(|device| {
                device["nvlinks"] = Value::Array(Vec::new());
            });
            bench["probe"]["pairs"].as_array_mut().unwrap().iter_mut().for_each(|pair| {
                pair["access"] = "staged".into();
            });
            scale(bench, "gbps", 0.1, |point| point["kind"] == "copy_engine");
        }),
        ("not_measured", |bench| {
            let points = bench["points"].as_array_mut().unwrap();
            points.retain(|point| !point["kind"].as_str().unwrap().contains("pinned"));
        }),
        ("not_measured", |bench| bench["points"] = Value::Array(Vec::new())),
        ("slow_blocks", |bench| scale(bench, "gbps", 0.1, |point| point["kind"] == "blocks" && point["src"] == 2)),
        ("slow_under_load", |bench| scale(bench, "gbps", 0.2, |point| point["load"] == "both_ways")),
        ("slow_under_load", |bench| scale(bench, "gbps", 0.02, |point| point["load"] == "all_gpus")),
        ("slow_under_load", |bench| scale(bench, "gbps", 0.2, |point| point["load"] == "incast")),
        ("slow_under_load", |bench| scale(bench, "gbps", 0.2, |point| point["load"] == "all_to_all")),
        ("slow_flag", |bench| scale(bench, "time_us", 20.0, |point| point["kind"] == "flag")),
    ];
    for (number, (fault, edit)) in cases.into_iter().enumerate() {
        let run = run(&format!("gpu doctor --from {} --format csv", edited_run(folder.path(), edit)));
        assert_eq!(run.code, 1, "{number}: {run:?}");
        let mut lines = run.stdout.lines();
        assert_eq!(lines.next(), Some("severity,fault,gpus,message,cause,look"), "{number}: {run:?}");
        let rows: Vec<&str> = lines.collect();
        assert!(!rows.is_empty(), "{number}: {run:?}");
        assert!(rows.iter().all(|row| row.starts_with(&format!("fault,{fault},"))), "{number}: {run:?}");
    }
}

#[test]
fn the_first_gpus_of_a_saved_run_can_be_analysed_alone() {
    let two_gpus = run(&format!("gpu doctor --from {} --gpus 2", saved()));
    assert_eq!((two_gpus.code, two_gpus.stderr.as_str()), (0, ""), "{two_gpus:?}");
    assert!(
        two_gpus.stdout.starts_with("2 × NVIDIA H200") && two_gpus.stdout.contains("\n2 pairs over NVL: "),
        "{two_gpus:?}"
    );
    assert!(!two_gpus.stdout.contains("GPU 2"), "{two_gpus:?}");
    let auto = run(&format!("gpu doctor --from {} --fabric auto --gpus 4", saved()));
    assert_eq!(auto.stdout, run(&format!("gpu doctor --from {}", saved())).stdout);
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), &format!("gpu doctor --from {} --gpus 5", saved()), "--gpus 5: expected 1 to 4");
    refused(folder.path(), &format!("gpu doctor --from {} --gpus 0", saved()), "--gpus");
}

#[test]
fn facts_hidden_by_the_kernel_are_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = edited_run(folder.path(), |bench| {
        for device in bench["probe"]["devices"].as_array_mut().unwrap() {
            device["pci"] = serde_json::json!({"address": device["pci"]["address"], "numa": -1});
        }
        bench["probe"]["cpu"] = serde_json::json!({});
    });
    let run = run(&format!("gpu doctor --from {hidden}"));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert!(run.stdout.ends_with("no fault found\n"), "{run:?}");
}

#[test]
fn benchmarks_without_usable_figures_give_no_profile() {
    let folder = tempfile::tempdir().unwrap();
    let no_gpus = edited_run(folder.path(), |bench| {
        bench["points"] = Value::Array(Vec::new());
        bench["probe"]["devices"] = Value::Array(Vec::new());
    });
    refused(folder.path(), &format!("gpu doctor --from {no_gpus}"), "the machine has no GPU");
    refused(folder.path(), &format!("calibrate {no_gpus} -o profile.toml"), "the machine has no GPU");
    let no_points = edited_run(folder.path(), |bench| bench["points"] = Value::Array(Vec::new()));
    refused(folder.path(), &format!("calibrate {no_points} -o profile.toml"), "determines no parameter of a profile");
    for (key, name) in [("gbps", "gb_per_s"), ("time_us", "time_us")] {
        let zero =
            edited_run(folder.path(), |bench| scale(bench, key, 0.0, |point| point["kind"] == "pinned_to_device"));
        for command in ["gpu doctor --from", "calibrate -o profile.toml"] {
            refused(folder.path(), &format!("{command} {zero}"), &format!("{name} is 0, expected a positive number"));
        }
    }
    assert!(!folder.path().join("profile.toml").exists());
}

#[test]
fn invalid_measurements_are_rejected_with_their_location() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(saved()).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("torn.json", &text[..text.len() / 2]);
    write("other.json", &text.replacen("fabricast-bench", "something", 1));
    write("newer.json", &text.replacen("\"version\": 1", "\"version\": 9", 1));
    let (probe, points) = text.split_at(text.find("\"points\"").unwrap());
    write("gpu.json", &(probe.to_owned() + &points.replacen("\"dst\": 1", "\"dst\": 77", 1)));
    for (file, expected) in [
        ("torn.json", "torn.json:"),
        ("other.json", "expected `fabricast-bench`"),
        ("newer.json", "this version of fabricast reads 1"),
        ("gpu.json", "refers to GPU 77, but the machine has 4"),
        ("missing.json", "missing.json"),
    ] {
        refused(folder.path(), &format!("gpu doctor --from {file}"), expected);
        refused(folder.path(), &format!("calibrate {file} -o profile.toml"), expected);
    }
    refused(folder.path(), "gpu doctor --from x.json --fabric nothing", "nothing");
    assert!(!folder.path().join("profile.toml").exists());
}

#[test]
fn benchmarks_calibrate_the_figures_they_determine() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path(), &format!("calibrate {} -o here.toml --name here --format json", saved()));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let calibration: Value = serde_json::from_str(&run.stdout).unwrap();
    let names: Vec<&str> =
        calibration["parameters"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["links.pcie", "protocol.copy_engine.wire_efficiency", "protocol.copy_engine.step"]);
    let profile = std::fs::read_to_string(folder.path().join("here.toml")).unwrap();
    assert!(profile.contains("gpu bench on 4 × NVIDIA H200, driver 580.159.04"), "{profile}");
    let plan = run_in(
        folder.path(),
        "plan --fabric hgx-h200 --gpus 4 --collective all_gather --sizes 64MiB..64MiB --protocol copy_engine --profile here.toml",
    );
    assert_eq!(plan.code, 0, "{plan:?}");
}

#[test]
fn benchmarks_are_recognized_by_content() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(saved(), folder.path().join("bench.txt")).unwrap();
    let by_content = run_in(folder.path(), "calibrate bench.txt");
    assert_eq!((by_content.code, by_content.stderr.as_str()), (0, ""), "{by_content:?}");
    assert_eq!(by_content.stdout, run_in(folder.path(), &format!("calibrate {}", saved())).stdout);
}

#[test]
fn nvshmem_worker_cannot_be_started_by_hand() {
    refused(Path::new(env!("CARGO_TARGET_TMPDIR")), "gpu nvshmem-rank", "this is started by `gpu run` alone");
}

#[test]
fn nvshmem_worker_answers_its_parent_and_ends_with_it() {
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    let (mut parent_end, child_end) = UnixStream::pair().unwrap();
    let mut command = command(Path::new(env!("CARGO_TARGET_TMPDIR")), "gpu nvshmem-rank");
    let mut child = command.stdin(OwnedFd::from(child_end)).spawn().unwrap();
    drop(command);
    let begin = r#"{"begin":{"rank":0,"size":1,"library":"/nowhere/libnvshmem_host.so.3","room":64,"offset":0,"patience":{"secs":1,"nanos":0}}}"#;
    writeln!(parent_end, "{begin}").unwrap();
    let mut reply = String::new();
    BufReader::new(parent_end.try_clone().unwrap()).read_line(&mut reply).unwrap();
    assert!(reply.contains("failed") && reply.contains("/nowhere/libnvshmem_host.so.3"), "{reply}");
    assert!(child.try_wait().unwrap().is_none(), "it waits for its parent");
    parent_end.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(child.wait().unwrap().success());
}
