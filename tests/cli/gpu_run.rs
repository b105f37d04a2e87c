//! Tests of `gpu run` on GPUs emulated by a driver stub: which rows run, what is written, and how the run ends. The
//! stub does no work; it determines whether results are right or wrong.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::run::{Run, command};

const SOURCE: &str = include_str!("stand_in.c");

/// Emulated GPUs and a working folder.
struct StubDriver {
    folder: tempfile::TempDir,
    driver: PathBuf,
}

impl StubDriver {
    /// Creates the stub; returns `None`, after printing the reason, without a C compiler or NVRTC.
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let driver = folder.path().join("driver");
        std::fs::create_dir(&driver).unwrap();
        let other_symbols = fabricast_validate::cuda::SYMBOLS
            .iter()
            .filter(|symbol| !SOURCE.contains(&format!("int {symbol}(")))
            .map(|symbol| format!("int {symbol}(void) {{ return 0; }}\n"));
        let source = driver.join("driver.c");
        std::fs::write(&source, SOURCE.to_owned() + &other_symbols.collect::<String>()).unwrap();
        let status = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .args([&driver.join("libcuda.so"), &source])
            .status();
        if !status.is_ok_and(|status| status.success()) {
            println!("skipped: no C compiler");
            return None;
        }
        let stand_in = Self { folder, driver };
        let probe = stand_in.run("--gpus 2 --collective all_gather --bytes 1KiB --executor kernels --untimed", &[]);
        if probe.code != 0 {
            assert!(probe.stderr.contains("NVRTC"), "{probe:?}");
            assert!(std::env::var_os("REQUIRE_NVRTC").is_none(), "NVRTC is required and not there");
            println!("skipped: {}", probe.stderr);
            return None;
        }
        Some(stand_in)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `gpu run` on the preset with eight H200 GPUs.
    fn run(&self, arguments: &str, variables: &[(&str, &str)]) -> Run {
        self.run_command(&format!("gpu run --fabric hgx-h200 {arguments}"), variables)
    }

    fn run_command(&self, arguments: &str, variables: &[(&str, &str)]) -> Run {
        let mut command = command(self.path(), arguments);
        command.env("LD_LIBRARY_PATH", &self.driver).env("XDG_CACHE_HOME", self.path());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let run = Run { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!run.stderr.contains("panicked"), "{arguments}: {run:?}");
        run
    }

    /// Returns the rows of a successful run.
    fn rows(&self, arguments: &str) -> Vec<Value> {
        let run = self.run(&format!("{arguments} --format json"), &[]);
        assert_eq!(run.code, 0, "{arguments}: {run:?}");
        let answer: Value = serde_json::from_str(&run.stdout).unwrap();
        answer["rows"].as_array().unwrap().clone()
    }

    fn plan(&self, name: &str, arguments: &str) {
        let run = self.run_command(&format!("plan --fabric hgx-h200 {arguments} --format json -o {name}"), &[]);
        assert_eq!(run.code, 0, "{run:?}");
    }
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

/// Rows for which a plan selects copy engines run on copy engines; if only kernels are allowed, those rows are reported
/// as not run.
#[test]
fn every_row_of_a_plan_runs_or_is_reported() {
    let Some(gpus) = StubDriver::new() else { return };
    gpus.plan("plan.json", "--gpus 4 --collective all_reduce --protocol symmetric --sizes 1KiB..16MiB:128");
    gpus.plan("engines.json", "--gpus 4 --collective all_gather --protocol copy_engine --sizes 1MiB..4MiB");
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(gpus.path().join(name)).unwrap()).unwrap()
    };
    let (mut plan, engines) = (read("plan.json"), read("engines.json"));
    let engine_rows = engines["rows"].as_array().unwrap().len();
    plan["rows"].as_array_mut().unwrap().extend(engines["rows"].as_array().unwrap().iter().cloned());
    std::fs::write(gpus.path().join("plan.json"), plan.to_string()).unwrap();
    let planned = plan["rows"].as_array().unwrap();
    assert_eq!(engine_rows, 3);

    let kernels = gpus.run("--gpus 4 --plan plan.json --executor kernels --untimed --format json", &[]);
    assert_eq!(kernels.code, 0, "{kernels:?}");
    assert!(kernels.stderr.contains(&format!("not run: {engine_rows} calls")), "{kernels:?}");
    let output: Value = serde_json::from_str(&kernels.stdout).unwrap();
    assert_eq!(output["rows"].as_array().unwrap().len(), planned.len() - engine_rows);

    let rows = gpus.rows("--gpus 4 --plan plan.json --executor kernels,copies --untimed");
    let run_by_engines =
        rows.iter().filter(|row| text(row, "executor") == "copies" && text(row, "protocol") == "copy_engine");
    assert_eq!(run_by_engines.count(), engine_rows);
}

/// Chunk sizes come from the plan, and the number of ranks must match it.
#[test]
fn plans_run_with_their_chunks_and_ranks() {
    let Some(gpus) = StubDriver::new() else { return };
    gpus.plan("plan.json", "--gpus 4 --collective all_gather --algorithm ring --protocol simple --sizes 4MiB..4MiB");
    let text = std::fs::read_to_string(gpus.path().join("plan.json")).unwrap();
    let mut plan: Value = serde_json::from_str(&text).unwrap();
    plan["rows"][0]["chunk"] = 8_192.into();
    std::fs::write(gpus.path().join("chunked.json"), plan.to_string()).unwrap();
    let shape = |plan: &str| {
        let rows = gpus.rows(&format!("--gpus 4 --plan {plan} --executor kernels --untimed"));
        (rows[0]["predicted_us"].clone(), rows[0]["shape"].clone())
    };
    assert_ne!(shape("plan.json"), shape("chunked.json"));
    let mismatch = gpus.run("--gpus 2 --plan plan.json --executor kernels", &[]);
    assert_eq!(mismatch.code, 2, "{mismatch:?}");
    assert!(mismatch.stderr.contains("the plan is of 4 ranks on hgx-h200, and this fabric has 2"), "{mismatch:?}");
}

#[test]
fn impossible_requests_are_rejected_or_reported() {
    let Some(gpus) = StubDriver::new() else { return };
    for (arguments, code, expected) in [
        ("--gpus 4 --collective all_reduce --bytes 1KiB --executor copies", 1, "nothing ran"),
        ("--gpus 4 --collective all_reduce --bytes 1KiB --algorithm direct", 2, "there is nothing to run"),
        ("--gpus 4 --ranks-per-gpu 2 --collective all_reduce --bytes 1KiB", 2, "share one, and the fabric has 4"),
        ("--gpus 4 --collective all_reduce --bytes 1KiB --shape wide", 2, "is not a shape"),
        ("--gpus 4 --collective all_reduce --bytes 1KiB --shape 8x100x2", 2, "100 threads"),
        ("--gpus 8 --pairs --executor kernels", 3, "this machine has 4"),
    ] {
        let run = gpus.run(arguments, &[]);
        assert_eq!(run.code, code, "{arguments}: {run:?}");
        assert!(run.stderr.contains(expected), "{arguments}: {run:?}");
    }
}

/// A wrong result is reported with its row, the other rows are still written, and the exit code is 1.
#[test]
fn wrong_results_keep_the_rows() {
    let Some(gpus) = StubDriver::new() else { return };
    let variables = [("STAND_IN_WRONG", "1")];
    let run = gpus.run(
        "--gpus 2 --collective all_gather --sizes 1KiB..4KiB --algorithm direct --protocol symmetric --executor kernels,copies --untimed --format json",
        &variables,
    );
    assert_eq!(run.code, 1, "{run:?}");
    let answer: Value = serde_json::from_str(&run.stdout).unwrap();
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{answer}");
    assert!(rows.iter().all(|row| row["correct"] == false && text(row, "fault").contains("rank 0")), "{answer}");
    assert!(
        run.stderr.contains("all_gather of 1 KiB by copies, direct symmetric × 1: wrong result: 1 elements"),
        "{run:?}"
    );
    // The result is right at first and wrong within a series of calls: the call, the value found and the value expected
    // are reported.
    let streak = gpus.run(
        "--gpus 2 --collective all_gather --bytes 1KiB --algorithm direct --executor kernels --untimed --checks 0 --streak 10",
        &variables,
    );
    assert_eq!(streak.code, 1, "{streak:?}");
    for words in ["of 10 calls one after the other 1 elements of rank", "first in call", "found 0x0, expected 0x0"] {
        assert!(streak.stderr.contains(words), "{streak:?}");
    }
}

#[test]
fn wrong_results_of_ranks_that_share_a_gpu_name_the_rank() {
    let Some(gpus) = StubDriver::new() else { return };
    let run = gpus.run(
        "--gpus 1 --ranks-per-gpu 4 --collective all_gather --bytes 1KiB --algorithm direct --executor kernels \
         --untimed --checks 0 --streak 10",
        &[("STAND_IN_WRONG", "3")],
    );
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("1 elements of rank 2, first in call"), "{run:?}");
}

#[test]
fn hanging_ranks_are_reported_with_their_operation() {
    let Some(gpus) = StubDriver::new() else { return };
    let run = gpus.run(
        "--gpus 2 --collective all_gather --bytes 1MiB --protocol copy_engine --executor copies --patience 1",
        &[("STAND_IN_HANG", "1")],
    );
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("in all_gather of 1 MiB by copy engines"), "{run:?}");
    let shared_gpu = gpus.run(
        "--gpus 1 --ranks-per-gpu 4 --collective all_gather --bytes 1KiB --executor kernels --untimed --patience 1",
        &[("STAND_IN_HANG", "1")],
    );
    assert_eq!(shared_gpu.code, 1, "{shared_gpu:?}");
    assert!(shared_gpu.stderr.contains("ranks 0 to 3"), "{shared_gpu:?}");
}

/// `compare` reads the files that `--measurements` writes, both for a fabric file and for copy engines.
#[test]
fn written_measurements_are_read_by_compare() {
    let Some(gpus) = StubDriver::new() else { return };
    let exported = gpus.run_command("fabric export hgx-h200 --to spec -o mine.toml", &[]);
    assert_eq!(exported.code, 0, "{exported:?}");
    let run = gpus.run_command(
        "gpu run --fabric mine.toml --gpus 2 --collective all_gather --sizes 1MiB..2MiB --algorithm direct --protocol symmetric \
         --executor kernels,copies --carrier lines,flags --measurements times --format json -o run.json",
        &[],
    );
    assert_eq!(run.code, 0, "{run:?}");
    let manifest = std::fs::read_to_string(gpus.path().join("times/manifest.toml")).unwrap();
    assert_eq!(manifest.matches("[[measurement]]").count(), manifest.matches("fabric = \"fabric.toml\"").count());
    assert_eq!(manifest.matches("protocol = \"copy_engine\"").count(), 1, "{manifest}");
    for carrier in ["-lines-f32.csv", "-flags-f32.csv"] {
        assert!(manifest.contains(carrier), "{manifest}");
    }
    let compared = gpus.run_command("compare times/manifest.toml --no-explain --format json", &[]);
    assert_eq!(compared.code, 0, "{compared:?}");
    // A JSON result needs no folder.
    let text = |file: &str| gpus.run_command(&format!("compare {file} --no-explain --rows all"), &[]).stdout;
    assert_eq!(text("run.json"), text("times/manifest.toml"));

    let in_place = gpus.run(
        "--gpus 2 --collective all_gather --bytes 1MiB --algorithm direct --executor kernels --in-place --measurements none",
        &[],
    );
    assert_eq!(in_place.code, 0, "{in_place:?}");
    assert!(in_place.stderr.contains("rows are in no measurement"), "{in_place:?}");
}

/// The output has the prediction interval of each row and the 99th percentile of its call times.
#[test]
fn rows_have_intervals_and_slowest_calls() {
    let Some(gpus) = StubDriver::new() else { return };
    let run = gpus
        .run("--gpus 2 --collective all_gather --bytes 1MiB --algorithm direct --executor kernels --format csv", &[]);
    assert_eq!(run.code, 0, "{run:?}");
    let mut lines = run.stdout.lines();
    let keys: Vec<&str> = lines.next().unwrap().split(',').collect();
    let values: Vec<&str> = lines.next().unwrap().split(',').collect();
    let value = |key: &str| values[keys.iter().position(|one| *one == key).unwrap()].parse::<f64>().unwrap();
    assert!(
        value("low_us") < value("predicted_us") && value("predicted_us") < value("high_us") && value("p99_us") > 0.0,
        "{run:?}"
    );
}

/// A schedule file is predicted on as many blocks as its kernel uses, as its strategy is.
#[test]
fn schedule_files_are_predicted_as_they_run() {
    let Some(gpus) = StubDriver::new() else { return };
    let strategy = "--collective all_reduce --bytes 1MiB --algorithm two_shot --protocol symmetric";
    let generated = gpus.run_command(
        &format!("schedule generate --fabric hgx-h200 --gpus 2 {strategy} --channels 1 -o mine.json"),
        &[],
    );
    assert_eq!(generated.code, 0, "{generated:?}");
    let first_row = |flags: &str| gpus.rows(&format!("--gpus 2 {flags} --executor kernels")).remove(0);
    let (from_strategy, from_file) = (first_row(strategy), first_row("--schedule mine.json"));
    assert!(from_file["blocks"].as_u64().unwrap() > 8, "{from_file}");
    assert_eq!(from_file["blocks"], from_strategy["blocks"]);
    assert_eq!(from_file["predicted_us"], from_strategy["predicted_us"]);
}
