//! Tests of `compare` for programs: JSON keys, exit codes, additional output files.

use std::path::Path;

use serde_json::Value;

use crate::run::run_in;

fn data() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/measured")
}

fn json(arguments: &str) -> Value {
    let run = run_in(&data(), arguments);
    assert_eq!(run.code, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn rows_groups_and_summary_are_consistent() {
    let value = json("compare manifest.toml --profile ideal --format json");
    let rows = value["rows"].as_array().unwrap();
    let groups = value["groups"].as_array().unwrap();
    assert_eq!((rows.len(), groups.len()), (112, 6));
    assert_eq!(value["summary"]["rows"], 112);
    for key in [
        "file",
        "collective",
        "ranks",
        "nodes",
        "bytes",
        "algorithm",
        "protocol",
        "launch",
        "measured_us",
        "predicted_us",
        "low_us",
        "high_us",
        "error",
        "verdict",
    ] {
        assert!(rows.iter().all(|row| !row[key].is_null()), "{key}");
    }
    for key in ["rows", "mean", "median", "p90", "bias"] {
        assert!(value["summary"][key].is_number() && groups.iter().all(|group| group[key].is_number()), "{key}");
    }
    let errors: Vec<f64> = rows.iter().map(|row| row["error"].as_f64().unwrap()).collect();
    for (row, error) in rows.iter().zip(&errors) {
        let ratio = row["predicted_us"].as_f64().unwrap() / row["measured_us"].as_f64().unwrap();
        assert!((ratio - 1.0 - error).abs() < 1e-12);
    }
    let bias = errors.iter().sum::<f64>() / 112.0;
    assert!((value["summary"]["bias"].as_f64().unwrap() - bias).abs() < 1e-12);
    let total: u64 = groups.iter().map(|group| group["rows"].as_u64().unwrap()).sum();
    assert_eq!(total, 112);
    // A prediction without software costs is a lower bound, so rows may be measured as faster only within noise.
    let share = |verdict: &str| rows.iter().filter(|row| row["verdict"] == verdict).count();
    assert!(share("slower") > 100, "{} slower, {} faster", share("slower"), share("faster"));
}

#[test]
fn flags_are_needed_only_for_facts_missing_in_the_log() {
    let value =
        json("compare tg_allreduce_x2_default.txt --fabric ../topologies/h200-node.xml --profile ideal --format json");
    let group = &value["groups"][0];
    assert_eq!(
        (&group["gpus"], &group["launch"], &group["library"]),
        (&2.into(), &"graph".into(), &"nccl-2.28.9".into())
    );
    assert_eq!(group["processes"], "per_gpu");
    let run = run_in(&data(), "compare tg_allreduce_x2_default.txt --fabric hgx-h200 --gpus 4 --profile ideal");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("tg_allreduce_x2_default.txt:10: has 2 ranks; the command says 4"), "{}", run.stderr);
}

#[test]
fn errors_above_the_limit_set_the_exit_code() {
    let run = run_in(&data(), "compare manifest.toml --profile ideal --max-error 0.01 --format csv");
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("more than the 1.0 % of --max-error"), "{}", run.stderr);
    assert_eq!(run.stdout.lines().count(), 113);
    let run = run_in(&data(), "compare manifest.toml --profile ideal --max-error 10 --format csv");
    assert_eq!(run.code, 0);
}

#[test]
fn chart_and_output_do_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let draw = |threads: u32| {
        let chart = folder.path().join(format!("{threads}.svg"));
        let arguments = format!(
            "compare manifest.toml --profile nccl-2.28-h200 --threads {threads} --chart {} --format json",
            chart.display()
        );
        let run = run_in(&data(), &arguments);
        assert_eq!(run.code, 0, "{}", run.stderr);
        (run.stdout, std::fs::read_to_string(chart).unwrap())
    };
    let (sequential, parallel) = (draw(1), draw(3));
    assert!(sequential == parallel);
    assert!(sequential.1.starts_with("<svg") && sequential.1.contains("80 % prediction interval"));
}

#[test]
fn panels_show_time_and_bus_bandwidth() {
    let folder = tempfile::tempdir().unwrap();
    let draw = |arguments: &str| {
        let chart = folder.path().join("panel.svg");
        let run = run_in(&data(), &format!("{arguments} --chart {} --force", chart.display()));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let text = std::fs::read_to_string(chart).unwrap();
        move |title: &str| text.lines().filter(|line| line.trim() == title).count()
    };
    let groups = json("compare manifest.toml --no-explain --format json");
    let groups = groups["groups"].as_array().unwrap().len();
    let shown = draw("compare manifest.toml --no-explain --panel");
    assert_eq!((shown("Time"), shown("Bus bandwidth (GB/s)")), (groups, groups));
    let plan = "plan --fabric hgx-h200 --gpus 2 --collective all --sizes 64KiB..256MiB:64 --panel";
    let shown = draw(plan);
    assert_eq!([shown("Time"), shown("all_reduce"), shown("all_to_all"), shown("message size")], [9, 1, 1, 2]);
    // The smallest rates are labelled on a logarithmic axis only.
    let all_gather = plan.replace("all ", "all_gather ");
    assert_eq!(draw(&format!("{all_gather} --bandwidth-axis log"))("100"), 1);
    assert_eq!(draw(&format!("{all_gather} --bandwidth-axis log"))("0"), 0);
    assert_eq!(draw(&format!("{all_gather} --bandwidth-axis linear"))("0"), 1);
}

/// The JSON of `gpu run` gives the same rows, libraries and software as the manifest written by the same run.
#[test]
fn json_of_gpu_run_is_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(data().join("gpu_run.json")).unwrap();
    std::fs::write(folder.path().join("run.json"), &text).unwrap();
    let mut manifest = String::new();
    for (file, rows, keys) in [
        (
            "a.csv",
            "1048576,3.98",
            "protocol = \"symmetric\"\nchannels = 69\nalgorithm = \"direct\"\nlibrary = \"fabricast\"\n",
        ),
        (
            "b.csv",
            "2097152,7.62\n4194304,10.57",
            "protocol = \"symmetric\"\nchannels = 128\nalgorithm = \"direct\"\nlibrary = \"fabricast\"\n",
        ),
        (
            "c.csv",
            "4194304,22.1",
            "protocol = \"copy_engine\"\nchannels = 1\nalgorithm = \"direct\"\nlibrary = \"fabricast\"\n",
        ),
        ("d.csv", "1048576,12.345678", "library = \"nccl-2.28.3\"\n"),
        ("e.csv", "1048576,8.7", "library = \"nccl-2.28.3\"\nregistered = \"symmetric\"\n"),
    ] {
        std::fs::write(folder.path().join(file), format!("bytes,time_us\n{rows}\n")).unwrap();
        manifest += &format!(
            "[[measurement]]\nfile = \"{file}\"\nfabric = \"hgx-h200\"\nnodes = 1\ngpus = 2\ncollective = \"all_gather\"\n\
             launch = \"graph\"\nprocesses = \"per_gpu\"\nnvls = false\ndtype = \"f32\"\n{keys}"
        );
    }
    std::fs::write(folder.path().join("manifest.toml"), manifest).unwrap();
    let compare = |file: &str| run_in(folder.path(), &format!("compare {file} --no-explain --rows all"));
    let (json, toml) = (compare("run.json"), compare("manifest.toml"));
    assert_eq!((json.code, toml.code), (0, 0), "{json:?} {toml:?}");
    // The manifest names no row with a wrong result.
    let (wrong, compared) = json.stdout.split_once('\n').unwrap();
    assert!(wrong.starts_with("wrong results in 1 row"), "{wrong}");
    assert_eq!(compared, toml.stdout);
    assert!(json.stdout.contains("6 rows"), "{}", json.stdout);
    // Rows that a measurement cannot describe are reported with their lines.
    for (line, reason) in [(16, "is in place"), (17, "its result is wrong")] {
        assert!(json.stderr.contains(&format!("run.json:{line}: skipped: {reason}")), "{}", json.stderr);
    }
    // Both files have too few rows for a fit, and the error gives the number of rows.
    let from_json = run_in(folder.path(), "calibrate run.json --profile kernels-h200");
    let from_manifest = run_in(folder.path(), "calibrate manifest.toml --profile kernels-h200");
    assert_eq!((from_json.code, from_manifest.code), (2, 2), "{from_json:?} {from_manifest:?}");
    assert!(
        from_manifest.stderr.contains("6 rows cannot determine") && from_json.stderr.ends_with(&from_manifest.stderr),
        "{from_json:?} {from_manifest:?}"
    );
}
