//! Tests of logs and tables as users store and paste them (`tests/data/logs`), each with its expected output.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::run::{Run, run_in};

fn logs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs")
}

fn run_log(arguments: &str) -> Run {
    let run = run_in(&logs(), arguments);
    assert_eq!(run.code, 0, "{arguments}: {run:?}");
    run
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&run_log(&format!("{arguments} --no-explain --format json")).stdout).unwrap()
}

/// Returns bytes, ranks and hosts of each row of a comparison.
fn rows(value: &Value) -> Vec<(u64, u64, u64)> {
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let rows = value["rows"].as_array().unwrap().iter();
    rows.map(|row| (number(row, "bytes"), number(row, "ranks"), number(row, "nodes"))).collect()
}

#[test]
fn launcher_prefixes_do_not_change_results() {
    let compare = |name: &str| run_log(&format!("compare {name} --fabric hgx-h100 --no-explain")).stdout;
    let expected = compare("host-name-with-space.txt");
    assert!(expected.contains("2 nodes × 8 GPUs (hgx-h100 x2)"), "{expected}");
    for name in ["compose", "gha", "hydra", "kubectl-timestamps", "ompi5", "quote", "ray", "srun"] {
        assert_eq!(compare(&format!("prefix-{name}.txt")), expected, "{name}");
    }
}

#[test]
fn correct_logs_are_read_without_changes() {
    for (arguments, count, ranks, nodes) in [
        ("oke-a100-elided-ranks.txt --fabric dgx-a100", 3, 16, 2),
        ("gh200-2x4-int8.txt --fabric gh200", 12, 8, 2),
        ("gh200-4x4-corrupt.txt --fabric gh200", 8, 16, 4),
        ("h200-256-baremetal.txt --fabric hgx-h200", 3, 16, 2),
        ("h200-256-vm.txt --fabric hgx-h200", 6, 16, 2),
        ("p4d-scatter-elided.txt --fabric dgx-a100 --collective scatter", 3, 16, 2),
        ("old-error-652.txt --fabric hgx-h100 --collective all_reduce", 6, 8, 1),
    ] {
        let actual = rows(&json(&format!("compare {arguments}")));
        assert_eq!(actual.len(), count, "{arguments}");
        assert!(actual.iter().all(|row| (row.1, row.2) == (ranks, nodes)), "{arguments}: {actual:?}");
    }
    let value = json("compare rtx6000d-2x8-two-tables.txt --fabric l40s-pcie --gpus 8");
    assert_eq!(value["groups"].as_array().unwrap().len(), 2);
}

#[test]
fn jobs_of_correct_logs_are_read_without_changes() {
    let run = run_log("simulate --job rccl-job.log --fabric hgx-h100");
    assert!(run.stdout.starts_with("all done after "), "{}", run.stdout);
    assert!(run.stdout.contains("\nrccl-job.log on hgx-h100 · 2 ranks"), "{}", run.stdout);
    for name in ["nccl-job-half-init.log", "nccl-job-half-of-ranks.log"] {
        let run = run_in(&logs(), &format!("simulate --job {name} --fabric hgx-h100"));
        assert!(run.code == 2 && run.stderr.contains("ranks 0 to 15, and the fabric has 8 GPUs"), "{name}: {run:?}");
        let run = run_log(&format!("simulate --job {name} --fabric hgx-h100 --nodes 2"));
        assert!(run.stdout.contains("16 ranks") && run.stdout.contains("all_reduce   4 B     16      1"), "{run:?}");
    }
}

#[test]
fn assumptions_are_reported_in_one_line() {
    let arguments = "compare a3mega-2x8-table-only.txt --fabric hgx-h100 --collective all_gather --nodes 2 --network rail,nic=200Gb/s";
    let run = run_log(arguments);
    let assumed: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("assumed: ")).collect();
    assert_eq!(assumed.len(), 1, "{}", run.stdout);
    assert!(assumed[0].contains("stream launch (nccl-tests' default)"), "{}", assumed[0]);
    assert!(run.stdout.contains("no CUDA graph, one process per GPU"), "{}", run.stdout);
    let value = json(arguments);
    assert_eq!(value["rows"][0]["launch"], "stream");
    assert!(value["assumptions"][0].as_str().unwrap().starts_with("stream launch"), "{value}");
    // This log does not name its NICs and hosts, which are therefore assumed.
    let run = run_log("compare a3mega-2x8-table-only.txt --fabric hgx-h100 --collective all_gather --no-explain");
    for part in ["16 ranks (by busbw/algbw) as 2 hosts × 8", "8 × 400 Gb/s NICs a host"] {
        assert!(run.stdout.contains(part), "{}", run.stdout);
    }
}

#[test]
fn all_missing_facts_are_reported_in_one_error() {
    let run = run_in(&logs(), "compare p4d-scatter-elided.txt");
    assert_eq!(run.code, 2);
    for part in [
        "which fabric it was measured on",
        "and which collective it measured (its columns fit gather and scatter)",
        "--fabric hgx-h200, --collective gather",
    ] {
        assert!(run.stderr.replace("\n  │ ", " ").contains(part), "{}", run.stderr);
    }
    let run = run_in(&logs(), "compare smooth-f2.csv");
    for part in ["which fabric", "which collective", "how many ranks took part", "--nodes and --gpus"] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
    let run = run_in(&logs(), "compare gh200-2x4-int8.txt");
    assert!(run.stderr.contains("(its GPUs are NVIDIA GH200 120GB)") && !run.stderr.contains("collective"), "{run:?}");
    let run = run_in(&logs(), "compare a3mega-2x8-table-only.txt --fabric hgx-h100");
    assert!(run.stderr.contains("its columns fit all_gather and all_to_all"), "{}", run.stderr);
}

#[test]
fn gpus_of_another_model_than_the_fabrics_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(logs().join("host-name-with-space.txt")).unwrap();
    for (model, fabric, expected) in [
        ("AMD Instinct MI355X", "hgx-h100", Some("the log's GPUs are AMD Instinct MI355X, those of hgx-h100")),
        ("NVIDIA H200 NVL", "hgx-h200", Some("the log's GPUs are NVIDIA H200 NVL, those of hgx-h200")),
        ("NVIDIA H200", "hgx-h200", None),
        ("NVIDIA H100 80GB HBM3", "hgx-h100", None),
    ] {
        std::fs::write(folder.path().join("log.txt"), text.replace("NVIDIA H100 80GB HBM3", model)).unwrap();
        let run = run_in(folder.path(), &format!("compare log.txt --fabric {fabric} --no-explain"));
        assert_eq!(run.code, 0, "{run:?}");
        let notes: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("note: ")).collect();
        match expected {
            Some(expected) => assert!(notes.iter().any(|note| note.contains(expected)), "{model}: {}", run.stdout),
            None => assert!(notes.is_empty(), "{model}: {}", run.stdout),
        }
    }
}

#[test]
fn processes_without_mpi_are_separate_runs() {
    for (name, runs, rows) in [("no-mpi-107.txt", 2, 2), ("no-mpi-all-rank0.txt", 4, 2)] {
        let run = run_log(&format!("compare {name} --fabric hgx-h100 --no-explain"));
        let note = format!("note: {runs} separate runs (nccl-tests built without MPI=1");
        assert!(run.stdout.contains(&note) && run.stdout.contains("1 node × 1 GPU (hgx-h100)"), "{}", run.stdout);
        assert!(run.stdout.contains(&format!("\n{rows} rows")), "{}", run.stdout);
    }
    let run = run_in(&logs(), "compare no-mpi-all-rank0.txt --fabric hgx-h100 --nodes 2 --gpus 2");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("in each of 4 separate runs"), "{}", run.stderr);
}

#[test]
fn rccl_is_predicted_on_hosts_of_eight_and_others_are_reported() {
    let run = run_log("compare mi300x-vf-rccl1562.txt --fabric mi300x --collective all_reduce --no-explain");
    assert!(!run.stdout.contains("not predicted"), "{}", run.stdout);
    let value = json("compare mi300x-vf-rccl1562.txt --fabric mi300x");
    let last = value["rows"].as_array().unwrap().last().unwrap();
    let predicted = last["predicted_us"].as_f64().unwrap();
    // The prediction uses all links of the mesh instead of a single ring; the measured time is 801 µs.
    assert!((600.0..1000.0).contains(&predicted), "{last}");
    assert_eq!(value["groups"][0]["modelled"], true);
    let value = json("compare rccl-tests-json.json --fabric mi300x");
    assert_eq!(value["groups"][0]["modelled"], false);
    assert_eq!(rows(&value), [1 << 20, 1 << 24, 1 << 27, 1 << 30].map(|bytes| (bytes, 2, 1)));
    let first_lines = |fabric: &str| {
        let plan = run_log(&format!("plan --fabric {fabric} --collective all_reduce --sizes 1MiB..1MiB"));
        let mut lines = plan.stdout.lines().map(str::to_owned);
        [lines.next().unwrap_or_default(), lines.next().unwrap_or_default()]
    };
    let [reason, heading] = first_lines("mi250x");
    assert!(reason.starts_with("cannot predict the library's choice: rccl-"), "{reason}");
    assert!(
        heading.ends_with("not predicted on these hosts: only the bound and fabricast's schedules are shown"),
        "{heading}"
    );
    assert!(first_lines("mi300x").iter().all(|line| !line.contains("predict")), "{:?}", first_lines("mi300x"));
}

/// NCCL 2.26 sends to each peer on two channels, as the log of this cluster shows, so all_to_all reaches the predicted
/// rate although it does not saturate the NICs.
#[test]
fn two_channels_per_peer_explain_exchanges_that_do_not_fill_the_nics() {
    let arguments = "compare h20-vm-321-alltoall.txt --fabric hgx-h100 --nodes 2 --collective all_to_all";
    let value = json(arguments);
    let rows = value["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["verdict"] == "expected" && row["channels"] == 4), "{value}");
    let bias = value["summary"]["bias"].as_f64().unwrap();
    assert!((-0.2..0.2).contains(&bias), "{value}");
    let text = run_log(&format!("{arguments} --no-explain")).stdout;
    assert!(text.contains("the log's GPUs are NVIDIA H20-3e"), "{text}");
}

#[test]
fn predictions_have_no_outliers_at_any_spacing() {
    for spacing in [2, 4, 8] {
        let name = format!("smooth-f{spacing}.csv");
        let run = run_log(&format!("compare {name} --fabric hgx-h100 --collective all_reduce --no-explain"));
        assert!(!run.stdout.contains("outlier"), "{}", run.stdout);
    }
    // This log has a real outlier: the row of 128 KiB is eight times as slow as those of 64 and 256 KiB.
    let run = run_log("compare gh200-4x4-corrupt.txt --fabric gh200 --no-explain");
    let outlier_line = run.stdout.lines().find(|line| line.contains("neighbours in size allow")).unwrap_or_default();
    assert!(outlier_line.contains("gh200-4x4-corrupt.txt:29"), "{}", run.stdout);
}

#[test]
fn tables_of_other_tools_are_identified() {
    for name in ["ncclx-tuner.csv", "ncclx-tuner.json"] {
        let run = run_in(&logs(), &format!("table --check {name} --fabric hgx-h100 --sizes 16MiB..64MiB:4"));
        assert!(run.stdout.contains("ncclx") && run.stdout.contains("ll128"), "{run:?}");
    }
    let run = run_log("table --check tuner-xai-channels-only.csv --fabric hgx-h100 --nodes 2 --sizes 1MiB..1MiB");
    for part in ["forces ring and simple", "ring", "simple", "32"] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    run_log("table --check tuner-gridtruth-allreduce-1n.csv --fabric hgx-h100 --sizes 1MiB..1MiB");
    // Both tables have rows for which NCCL has no kernel.
    for name in ["tuner-doc-8col.csv", "nccl-example.conf"] {
        let run = run_in(&logs(), &format!("table --check {name} --fabric hgx-h100 --sizes 1MiB..1MiB"));
        assert!(run.code == 1 && run.stdout.contains("Tree Simple for Broadcast: NCCL has no such kernel"), "{run:?}");
    }
    for name in ["ompi-rules-2010-daniels.txt", "ompi-rules-comm0.txt", "ompi-rules-paper.txt"] {
        run_log(&format!("table --check {name} --fabric hgx-h100 --nodes 8 --sizes 64KiB..64KiB"));
    }
}

/// If a fabric's file does not name the GPUs, their model comes from the log's header, and the output reports it.
#[test]
fn logs_supply_the_gpus_that_a_matrix_does_not_name() {
    let folder = tempfile::tempdir().unwrap();
    let matrices = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topologies/cases");
    std::fs::copy(matrices.join("a10g-8-phb.topo"), folder.path().join("f.topo")).unwrap();
    let table = std::fs::read_to_string(logs().join("old-error-652.txt")).unwrap();
    let header: String = (0..8)
        .map(|rank| format!("#  Rank  {rank} Group  0 Pid  {rank} on  host-1 device  {rank} [0x1{rank}] NVIDIA A10G\n"))
        .collect();
    let compare = "compare log.txt --fabric f.topo --collective all_reduce --no-explain";
    let write = |text: &str| std::fs::write(folder.path().join("log.txt"), text).unwrap();
    write(&format!("# nThread 1 nGpus 8\n# Using devices\n{header}{}", without_device_list(&table)));
    let run = run_in(folder.path(), compare);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("assumed: A10G (the log's GPUs)"), "{}", run.stdout);
    // Without GPU names nothing can be predicted.
    write(&without_device_list(&table));
    let run = run_in(folder.path(), &format!("{compare} --gpus 8"));
    assert!(run.code == 2 && run.stderr.contains("--gpu-model"), "{run:?}");
}

/// Returns a log without its device list.
fn without_device_list(log: &str) -> String {
    let is_listed = |line: &str| line.contains("Rank ") || line.contains("Using devices") || line.contains("nThread");
    log.lines().filter(|line| !is_listed(line)).map(|line| format!("{line}\n")).collect()
}
