//! Topology files of users: which GPU they describe, with what NVLS, and what is refused where that is not known.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::run::{json, refused, run_in};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topologies/cases")
}

/// The JSON of a run on a file of the cases, which may warn.
fn of(arguments: &str) -> Value {
    let run = run_in(&cases(), &format!("{arguments} --format json"));
    assert_eq!(run.code, 0, "{arguments}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

const LARGE: &str = "--collective all_reduce --bytes 1GiB --library nccl";

fn row(plan: &Value) -> &Value {
    &plan["rows"][0]
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

#[test]
fn a_machines_own_files_are_planned_as_its_preset() {
    let strategy = |plan: &Value| {
        let row = row(plan);
        ["algorithm", "protocol", "channels"].map(|key| row[key].clone())
    };
    let preset = json(&format!("plan --fabric hgx-h200 {LARGE}"));
    assert_eq!(strategy(&preset)[0], "nvls");
    for (file, gpu) in [
        ("../h200-node.xml", ""),
        ("../h200-node.topo-m.txt", ""),
        ("../stas_h100_8gpu.topo-m.txt", "--gpu-model h200"),
        ("h100-232.topo", "--gpu-model H200"),
    ] {
        let plan = of(&format!("plan --fabric {file} {gpu} {LARGE}"));
        assert_eq!(strategy(&plan), strategy(&preset), "{file}");
        assert_eq!(plan["profile"], preset["profile"], "{file}");
        let (found, wanted) = (number(row(&plan), "busbw_gbps"), number(row(&preset), "busbw_gbps"));
        assert!((found / wanted - 1.0).abs() < 0.01 && found > 450.0, "{file}: {found} for {wanted}");
        let without = of(&format!("plan --fabric {file} {gpu} {LARGE} --no-nvls"));
        assert_ne!(row(&without)["algorithm"], "nvls", "{file}");
    }
}

#[test]
fn two_hosts_of_a_dump_use_the_tree_of_nvswitches() {
    let plan = of(
        "plan --fabric ibm-vsi-h100.xml --nodes 2 --network rail --collective all_reduce --sizes 8GiB..8GiB --library nccl",
    );
    // The library's own choice is kept where its interval overlaps with that of the fastest.
    assert_eq!(row(&plan)["fastest"]["algorithm"], "nvls_tree", "{plan:#}");
    assert_eq!(plan["profile"], "nccl-2.29-h100 on infiniband-ndr");
}

#[test]
fn gpus_of_one_capability_get_one_interval() {
    let sizes = "--collective all_reduce --sizes 1KiB..1GiB:32 --library nccl";
    for file in ["h100-232.topo", "h20-vm-321.topo"] {
        let plan = of(&format!("plan --fabric {file} {sizes}"));
        let profile = plan["profile"].as_str().unwrap();
        assert!(profile.contains("for any of H100 SXM") && profile.contains("H20"), "{profile}");
        for gpu in ["h100", "h200", "h20"] {
            let named = of(&format!("plan --fabric {file} --gpu-model {gpu} {sizes}"));
            for (open, known) in plan["rows"].as_array().unwrap().iter().zip(named["rows"].as_array().unwrap()) {
                let (low, high, time) = (number(open, "low_us"), number(open, "high_us"), number(known, "time_us"));
                assert!(low <= time && time <= high, "{file} as {gpu}: {time} in {low}..{high} at {}", open["bytes"]);
            }
        }
    }
}

#[test]
fn what_may_be_of_several_capabilities_is_not_priced() {
    for (file, gpu) in [("a6000-pair.topo", "a6000"), ("a10g-8-phb.topo", "NVIDIA-A10G"), ("gb10.topo", "gb10")] {
        let call = "--collective all_reduce --bytes 1MiB";
        for command in ["plan", "simulate"] {
            refused(&cases(), &format!("{command} --fabric {file} {call}"), "--gpu-model");
        }
        refused(&cases(), &format!("plan --fabric {file} {call}"), "RTX A6000");
        for command in ["show", "check"] {
            let run = run_in(&cases(), &format!("fabric {command} {file}"));
            assert!(run.code == 0 && run.stderr.contains("--gpu-model"), "{file}: {run:?}");
        }
        assert_eq!(run_in(&cases(), &format!("fabric export {file} --to spec")).code, 0);
        if file != "gb10.topo" {
            of(&format!("plan --fabric {file} --gpu-model {gpu} {call}"));
        }
    }
    refused(&cases(), "plan --fabric gb10.topo --gpu-model h101 --collective all_reduce", "unknown GPU model `h101`");
}

#[test]
fn nics_are_read_or_their_lack_is_said() {
    let plan = of("plan --fabric dgx-spark-gb10.xml --nodes 2 --collective all_reduce --bytes 1GiB");
    let row = row(&plan);
    // Two ports of 200 Gb/s behind PCIe 5.0 x4 each, not eight of 400.
    assert!(number(row, "busbw_gbps") < 35.0, "{row:#}");
    let call = "plan --fabric a10g-8-phb.topo --gpu-model a10g --nodes 2 --collective all_reduce --bytes 1MiB";
    refused(&cases(), call, "describes no NIC");
}

#[test]
fn manifests_and_studies_name_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(cases().join("a10g-8-phb.topo"), folder.path().join("a10g.topo")).unwrap();
    std::fs::write(folder.path().join("a.csv"), "bytes,time_us\n1048576,500\n").unwrap();
    let manifest = "[[measurement]]\nfile = \"a.csv\"\nfabric = \"a10g.topo\"\nnodes = 1\ngpus = 8\n\
                    collective = \"all_reduce\"\nlaunch = \"stream\"\nprocesses = \"per_gpu\"\n";
    std::fs::write(folder.path().join("m.toml"), manifest).unwrap();
    refused(folder.path(), "compare m.toml", "--gpu-model");
    std::fs::write(folder.path().join("m.toml"), format!("{manifest}gpu = \"A10G\"\n")).unwrap();
    let run = run_in(folder.path(), "compare m.toml");
    assert_eq!(run.code, 0, "{run:?}");
}
