//! Tests with topology files of users: the GPUs and NVLS capabilities derived from them, and the rejection of unknown
//! ones.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::run::{json, refused, run_in};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topologies/cases")
}

/// Returns the JSON output of a run on a file of the test cases; warnings are allowed.
fn case_json(arguments: &str) -> Value {
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
fn dumped_topologies_are_planned_like_their_preset() {
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
        let plan = case_json(&format!("plan --fabric {file} {gpu} {LARGE}"));
        assert_eq!(strategy(&plan), strategy(&preset), "{file}");
        assert_eq!(plan["profile"], preset["profile"], "{file}");
        let (actual, expected) = (number(row(&plan), "busbw_gb_per_s"), number(row(&preset), "busbw_gb_per_s"));
        assert!((actual / expected - 1.0).abs() < 0.01 && actual > 450.0, "{file}: {actual} for {expected}");
        let without_nvls = case_json(&format!("plan --fabric {file} {gpu} {LARGE} --no-nvls"));
        assert_ne!(row(&without_nvls)["algorithm"], "nvls", "{file}");
    }
}

/// NICs of 200 Gb/s, one per GPU switch: graphs of 8 × 24 GB/s. NCCL's model gives 8 × min(24 × 2 × 0.85 × 7/8, 48) ×
/// 16/30 = 152 GB/s for NVLSTree, and 8 × min(0.92 × 45, 41.4) × 0.85 / 2 = 141 GB/s for plain trees, which Hopper uses
/// if the second GPU is farther from the NIC than the first; balanced trees would reach 166 GB/s.
#[test]
fn two_hosts_of_a_dump_use_nvls_tree() {
    let call = "--nodes 2 --network rail --collective all_reduce --sizes 8GiB..8GiB --library nccl";
    let plan = case_json(&format!("plan --fabric ibm-vsi-h100.xml {call}"));
    for choice in [row(&plan), &row(&plan)["library_default"]] {
        assert_eq!((&choice["algorithm"], &choice["protocol"]), (&"nvls_tree".into(), &"simple".into()), "{plan:#}");
    }
    assert_eq!(plan["profile"], "nccl-2.29-h100 on infiniband-ndr");
}

#[test]
fn gpus_of_one_compute_capability_get_one_interval() {
    let sizes = "--collective all_reduce --sizes 1KiB..1GiB:32 --library nccl";
    for file in ["h100-232.topo", "h20-vm-321.topo"] {
        let plan = case_json(&format!("plan --fabric {file} {sizes}"));
        let profile = plan["profile"].as_str().unwrap();
        assert!(profile.contains("for any of H100 SXM") && profile.contains("H20"), "{profile}");
        for gpu in ["h100", "h200", "h20"] {
            let with_model = case_json(&format!("plan --fabric {file} --gpu-model {gpu} {sizes}"));
            for (unspecified, specified) in
                plan["rows"].as_array().unwrap().iter().zip(with_model["rows"].as_array().unwrap())
            {
                let (low, high, time) =
                    (number(unspecified, "low_us"), number(unspecified, "high_us"), number(specified, "time_us"));
                assert!(
                    low <= time && time <= high,
                    "{file} as {gpu}: {time} in {low}..{high} at {}",
                    unspecified["bytes"]
                );
            }
        }
    }
}

#[test]
fn ambiguous_compute_capabilities_are_rejected() {
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
            case_json(&format!("plan --fabric {file} --gpu-model {gpu} {call}"));
        }
    }
    refused(&cases(), "plan --fabric gb10.topo --gpu-model h101 --collective all_reduce", "unknown GPU model `h101`");
}

#[test]
fn nics_are_read_or_reported_missing() {
    let plan = case_json("plan --fabric dgx-spark-gb10.xml --nodes 2 --collective all_reduce --bytes 1GiB");
    let row = row(&plan);
    // The GPU has two NIC ports of 200 Gb/s behind PCIe 5.0 x4 each, instead of eight ports of 400 Gb/s.
    assert!(number(row, "busbw_gb_per_s") < 35.0, "{row:#}");
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

const STUDY: &str = "[[candidate]]\nname = \"a\"\nfabric = \"a10g.topo\"\ngpus = 8\nGPU\n[[job]]\nname = \"j\"\n\
                     global_batch = 8\nparallel = { tp = 2 }\n\
                     model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }\n";

#[test]
fn candidates_of_studies_name_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(cases().join("a10g-8-phb.topo"), folder.path().join("a10g.topo")).unwrap();
    let write = |gpu: &str| {
        std::fs::write(folder.path().join("s.toml"), STUDY.replace("GPU", gpu)).unwrap();
    };
    write("");
    refused(folder.path(), "study s.toml", "--gpu-model");
    write("gpu = \"h101\"");
    refused(folder.path(), "study s.toml", "unknown GPU model `h101`");
    // TFLOP/s are published for A10, but not for A10G.
    write("gpu = \"NVIDIA A10\"");
    let run = run_in(folder.path(), "study s.toml --format json");
    assert_eq!(run.code, 0, "{run:?}");
    let output: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(output["accuracy"][0].as_str().unwrap().contains("on A10: no published figure"), "{output:#}");
}

#[test]
fn specs_without_a_gpu_model_use_no_other_gpus_profile() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |gpu_keys: &str, lanes: &str| {
        format!(
            "[[node]]\nid = \"gpu[0-7]\"\nkind = \"gpu\"\n{gpu_keys}[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n\
             [[link]]\na = \"gpu[0-7]\"\nb = \"sw\"\nkind = \"nvlink\"\n{lanes}bandwidth = \"450 GB/s\"\n"
        )
    };
    let write =
        |gpu_keys: &str, lanes: &str| std::fs::write(folder.path().join("f.toml"), spec(gpu_keys, lanes)).unwrap();
    let call = "--fabric f.toml --collective all_reduce --bytes 1MiB";
    write("", "");
    for command in ["plan", "simulate"] {
        refused(folder.path(), &format!("{command} {call}"), "does not state its GPU model");
    }
    for command in ["show f.toml", "check f.toml", "export f.toml --to spec"] {
        let run = run_in(folder.path(), &format!("fabric {command}"));
        assert!(run.code == 0 && run.stderr.contains("--gpu-model"), "{command}: {run:?}");
    }
    let profile = |arguments: &str| {
        let run = run_in(folder.path(), &format!("plan {call} {arguments} --format json"));
        assert_eq!(run.code, 0, "{arguments}: {run:?}");
        let output: Value = serde_json::from_str(&run.stdout).unwrap();
        output["profile"].as_str().unwrap().to_owned()
    };
    assert_eq!(profile("--gpu-model h100"), "nccl-2.29-h100");
    // The number of NVLink lanes determines the NVLink generation, as in a matrix.
    write("", "lanes = 18\n");
    assert!(profile("").contains("(for any of H100 SXM"), "{}", profile(""));
    write("model = \"H200 SXM\"\n", "");
    assert_eq!(profile(""), "nccl-2.28-h200");
    write("compute_capability = 80\n", "");
    assert!(profile("").contains("a100"), "{}", profile(""));
}

#[test]
fn simulations_report_hosts_on_which_rccl_is_not_predicted() {
    let call = "--fabric mi250x --collective all_reduce --algorithm ring --protocol simple";
    for arguments in [
        format!("simulate {call} --bytes 1MiB"),
        format!("simulate {call} --bytes 1MiB --group 0-3 --group 4-7"),
        format!("simulate {call} --sizes 1MiB..1MiB --breakdown parts.svg --force"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = run_in(folder.path(), &arguments);
        assert_eq!(run.code, 0, "{arguments}: {run:?}");
        let first = run.stdout.lines().next().unwrap();
        assert!(first.contains("RCCL's choices are not predicted"), "{arguments}: {first}");
    }
    for other in ["hgx-h100", "mi300x"] {
        let run = run_in(&cases(), &format!("simulate {} --bytes 1MiB", call.replace("mi250x", other)));
        assert!(!run.stdout.contains("not predicted"), "{}", run.stdout);
    }
}

/// Correct topology files, each with the expected output of `fabric show`.
#[test]
fn correct_files_are_read_without_changes() {
    for (file, parts) in [
        ("a6000-trimmed-merged-nic.xml", &["2 × RTX A6000", "NVL 56"][..]),
        ("vr200-mlopart.xml", &["2 GPUs · 1 NVSwitch", "NVL 1800"]),
        ("dcu-rccl-1185.xml", &["2 GPUs · 3 PCIe switches", "PXB 32"]),
        ("gb200-sgl-numalist.topo", &["4 × GB200", "c2c         1          225.0", "upi         1          150.0"]),
        ("h200nvl-pairs-clean.topo", &["2 CPUs", "NVL 450", "SYS 22"]),
    ] {
        let run = run_in(&cases(), &format!("fabric show {file}"));
        assert_eq!(run.code, 0, "{file}: {run:?}");
        for part in parts {
            assert!(run.stdout.contains(part), "{file}: {part} in {}", run.stdout);
        }
    }
    let capability = |file: &str| {
        let run = run_in(&cases(), &format!("plan --fabric {file} {LARGE}"));
        assert_eq!(run.code, 0, "{file}: {run:?}");
        run.stderr
    };
    assert!(capability("c4140-v100.topo").contains("assumed to be Volta"));
    assert!(capability("a100-4gpu-nv4-2nic.topo").contains("assumed to be Ampere"));
    let a100 = case_json("plan --fabric a100-4gpu-nv4-2nic.topo --collective all_reduce --bytes 1GiB");
    // The owner of this machine measured 230 GB/s, over a mesh for which NCCL's search is not modelled.
    let measured = 1.5 * f64::from(1 << 30) / 230e9 * 1e6;
    assert!((number(row(&a100), "low_us")..number(row(&a100), "high_us")).contains(&measured), "{a100:#}");
    // The choice depends on the AMD CPU family; the expected one comes from a plan of NCCL 2.30.5.
    let plan = case_json(
        "plan --fabric h100nvl-amd-fam25.xml --nodes 2 --network rail --library nccl-2.30.5 \
                   --collective all_reduce --sizes 500000..1500000:1.2",
    );
    let choices: Vec<&Value> =
        plan["rows"].as_array().unwrap().iter().map(|row| &row["library_default"]["protocol"]).collect();
    assert_eq!(choices, ["ll", "ll", "simple", "simple", "simple", "simple", "simple", "simple"]);
}

#[test]
fn pasted_matrices_are_read_or_rejected_by_word() {
    let checked = |file: &str| {
        let run = run_in(&cases(), &format!("fabric check {file}"));
        assert_eq!(run.code, 0, "{file}: {run:?}");
        run.stdout + &run.stderr
    };
    refused(&cases(), "fabric check b200-glued-header2.topo", "`NIC10NIC11`");
    refused(&cases(), "fabric check topo-p2p.txt", "give the output of `nvidia-smi topo -m`");
    for file in ["min-annotated-nic.topo", "b300-sgl-header.topo"] {
        assert!(checked(file).contains("nothing unusual"), "{file}");
    }
    assert!(checked("rocm-smi-showtopo-108.txt").contains("MI250X"));
    assert!(checked("t-243.topo").contains("no NIC nearer than PHB"));
    assert!(checked("h200nvl-pairs-clean.topo").contains("2 + 2 in NVLink domains"));
    let ports = checked("a100pcie-dualport-x8.xml");
    assert!(ports.contains("200 Gb/s together, over a PCIe link that carries 126 Gb/s, PCIe 4.0 x8"), "{ports}");
    let vsi = checked("ibm-vsi-h100.xml");
    for part in ["PCIe 1.0 x1", "only by the host bridge (PHB), GPUDirect RDMA is slow or off"] {
        assert!(vsi.contains(part), "{part}: {vsi}");
    }
}

#[test]
fn generated_schedules_are_verified() {
    let schedules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schedules");
    for (file, expected) in [
        ("msccl-allreduce-small-8n-ll.xml", "computes all_reduce of 8 ranks in 168 operations"),
        ("msccl-ata-10n-1c.xml", "computes all_to_all of 10 ranks in 100 operations"),
    ] {
        let run = run_in(&schedules, &format!("schedule verify {file}"));
        assert!(run.code == 0 && run.stdout.contains(expected), "{file}: {run:?}");
    }
    refused(&schedules, "schedule verify msccl-p2p-scatter-16n.xml", "<algo> needs the attribute `coll`");
}

/// Returns the TOML blocks of the page docs/fabrics.md.
fn specifications_of_the_page() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/fabrics.md")).unwrap();
    page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The examples of docs/fabrics.md are read, have the settings that the page describes, and are simulated with them.
#[test]
fn specifications_of_the_documentation_have_their_settings() {
    let folder = tempfile::tempdir().unwrap();
    let specifications = specifications_of_the_page();
    let [roce, switches] = specifications.as_slice() else { panic!("{specifications:?}") };
    let run_json = |text: &str, arguments: &str| -> Value {
        std::fs::write(folder.path().join("example.toml"), text).unwrap();
        let run = run_in(folder.path(), &format!("{arguments} --format json"));
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments} {text}");
        serde_json::from_str(&run.stdout).unwrap()
    };
    let nics = |text: &str| -> Vec<(Value, Value)> {
        let shown = run_json(text, "fabric show example.toml");
        let nodes = shown["nodes"].as_array().unwrap().iter().filter(|node| node["kind"] == "nic");
        nodes
            .map(|node| &node["figures"])
            .map(|nic| (nic["adaptive_routing"].clone(), nic["queue_pairs"].clone()))
            .collect()
    };
    assert_eq!(nics(roce), vec![(Value::from(true), Value::from(4)); 16]);
    assert_eq!(nics(switches), vec![(Value::from(false), Value::from(4)); 2]);
    assert_eq!(run_json(switches, "fabric show example.toml")["routing"]["p2p"], "switches");

    let simulate =
        "simulate --fabric example.toml --collective all_reduce --algorithm ring --protocol simple --bytes 16MiB";
    let time = |text: &str, arguments: &str| number(&run_json(text, &format!("{simulate} {arguments}")), "time_us");
    // One queue pair waits longer for acknowledgements than four, and static routing does not wait.
    let one = time(&roce.replace("queue_pairs = 4", "queue_pairs = 1"), "");
    let fixed = time(&roce.replace("adaptive_routing = true", "adaptive_routing = false"), "");
    let four = time(roce, "");
    assert!(one > 1.3 * four && four > 1.02 * fixed, "{one} {four} {fixed}");
    // GPUs of one switch have peer access with "switches".
    let off = switches.replace("\"switches\"", "\"off\"");
    let on = switches.replace("\"switches\"", "\"on\"");
    let [with_on, with_switches, with_off] = [&on, switches, &off].map(|text| time(text, "--gpus 2"));
    assert!(with_on == with_switches && with_off > 1.5 * with_switches, "{with_on} {with_switches} {with_off}");
}
