//! Tests of hostile input (large, deeply nested, binary): each gives one bounded message, exit code 2 and no panic.

use std::path::Path;

use crate::run::{refused, run_in};

const SPEC: &str = r#"
[[node]]
id = "gpu0"
kind = "gpu"
[[node]]
id = "gpu1"
kind = "gpu"
compute_capability = 90
[[link]]
a = "gpu0"
b = "gpu1"
kind = "nvlink"
bandwidth = "450 GB/s"
"#;

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// Asserts that every command that reads a file rejects this one.
fn all_readers_refuse(folder: &Path, file: &str) {
    for arguments in [
        "fabric show FILE",
        "plan --fabric FILE --collective all_reduce",
        "schedule verify FILE",
        "schedule show FILE",
        "schedule convert FILE --to json",
        "simulate --fabric gh200 --schedule FILE",
        "simulate --fabric gh200 --flows FILE",
        "simulate --fabric gh200 --collective all_reduce --background FILE",
        "simulate --fabric gh200 --collective all_reduce --profile ./FILE",
    ] {
        refused(folder, &arguments.replace("FILE", file), file);
    }
}

#[test]
fn missing_files_folders_and_binaries_are_rejected() {
    let noise: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let folder =
        folder(&[("noise", noise), ("zeros", vec![0; 1000]), ("empty", Vec::new()), ("blank", b" \n\n".into())]);
    std::fs::create_dir(folder.path().join("dir")).unwrap();
    for file in ["missing.x", "dir", "noise", "zeros", "empty", "blank"] {
        all_readers_refuse(folder.path(), file);
    }
}

#[test]
fn a_million_nested_elements_are_rejected() {
    let nested = |open: &str| open.repeat(1_000_000).into_bytes();
    let folder = folder(&[
        ("deep.json", nested("[")),
        ("objects.json", nested("{\"nodes\":")),
        ("deep.toml", [b"a = ".to_vec(), nested("[")].concat()),
        ("dotted.toml", [b"[a".to_vec(), nested(".a"), b"]\n".to_vec()].concat()),
        ("open.xml", [b"<system version=\"1\">".to_vec(), nested("<cpu>")].concat()),
        (
            "switches.xml",
            [
                b"<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\">".to_vec(),
                "<pci busid=\"0000:00:00.0\" class=\"0x060400\">".repeat(100_000).into_bytes(),
                "</pci>".repeat(100_000).into_bytes(),
                b"</cpu></system>".to_vec(),
            ]
            .concat(),
        ),
    ]);
    for file in ["deep.json", "objects.json", "deep.toml", "dotted.toml", "open.xml", "switches.xml"] {
        all_readers_refuse(folder.path(), file);
    }
}

#[test]
fn endless_words_are_truncated() {
    let long = "x".repeat(1_000_000);
    let spec_with = |old: &str, new: &str| SPEC.replacen(old, new, 1).into_bytes();
    let folder = folder(&[
        ("id.toml", spec_with("\"gpu1\"\nkind", &format!("\"{long}\"\nkind"))),
        ("end.toml", spec_with("b = \"gpu1\"", &format!("b = \"{long}\""))),
        ("kind.toml", spec_with("\"nvlink\"", &format!("\"{long}\""))),
        ("rate.toml", spec_with("450 GB/s", &"9".repeat(1_000_000))),
        ("key.toml", spec_with("bandwidth", &long)),
        ("flows.csv", format!("src,dst,bytes,start_us\n{long},gpu1,1,0\n").into_bytes()),
    ]);
    for file in ["id.toml", "end.toml", "kind.toml", "rate.toml", "key.toml"] {
        refused(folder.path(), &format!("fabric show {file}"), &format!("{file}:"));
    }
    refused(folder.path(), "simulate --fabric hgx-h200 --flows flows.csv", "flows.csv:2:1");
}

#[test]
fn impossible_figures_are_rejected() {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (number, rate) in
        ["0 GB/s", "-450 GB/s", "450", "450 GiB/s", "1e30 GB/s", "nan GB/s", "inf GB/s", ""].iter().enumerate()
    {
        files.push((format!("rate{number}.toml"), SPEC.replacen("450 GB/s", rate, 1).into_bytes()));
    }
    let named: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let folder = folder(&named);
    for (name, _) in &named {
        refused(folder.path(), &format!("fabric show {name}"), &format!("{name}:13:13: bandwidth:"));
    }
}

#[test]
fn truncated_specs_are_read_or_rejected() {
    let folder = folder(&[]);
    for length in (0..SPEC.len()).step_by(23) {
        std::fs::write(folder.path().join("cut.toml"), &SPEC[..length]).unwrap();
        let run = run_in(folder.path(), "plan --fabric cut.toml --collective all_reduce --bytes 1KiB");
        // A link without a bandwidth is unlimited, so some truncated files are valid specs.
        assert!(run.code == 2 && run.stdout.is_empty() || run.code == 0, "cut at {length}: {run:?}");
    }
}

#[test]
fn excessive_numbers_are_rejected() {
    let here = Path::new(".");
    let simulate = "simulate --fabric hgx-h200 --collective all_reduce";
    for (flags, expected) in [
        ("--bytes 99999999999999999999999999", "is not a size"),
        ("--bytes 1e30", "is not a size"),
        ("--bytes NaN", "is not a size"),
        ("--nodes 4294967295", "more than"),
        ("--nodes 99999999999", "expected a whole number"),
        ("--gpus 4294967295", "a host of hgx-h200 has from 1 to 8"),
        ("--nodes -1", "expected a whole number"),
        ("--channels 65535", "not in 1..=1024"),
        ("--threads 65535", "not in 1..=1024"),
        ("--chunk 0", "at least one byte"),
        ("--chunk 1 --bytes 1TiB", "chunks are too many"),
        ("--straggler gpu0=1e300s", "is not a time"),
        ("--slow gpu0-nvswitch0=NaN", "factor over 0"),
        ("--nodes 2 --network rail,nics_per_node=4294967295", "nics_per_node"),
        ("--nodes 2 --network rail,oversubscription=NaN", "oversubscription"),
        ("--nodes 2 --network rail,oversubscription=1e-300", "oversubscription must be from"),
        ("--nodes 2 --network rail,radix=4294967295", "radix must be from"),
        ("--nodes 2 --network rail,ecmp=4294967295", "ecmp must be from"),
        ("--nodes 2 --network torus,dimensions=4294967295x4294967295", "does not hold 2 hosts"),
        ("--root 4294967295", "expected a rank from 0 to 7"),
    ] {
        refused(here, &format!("{simulate} {flags}"), expected);
    }
}

#[test]
fn unsupported_flags_are_rejected() {
    let flags = "--env NCCL_ALGO=Ring";
    refused(Path::new("."), &format!("plan --fabric gh200 --collective all_reduce {flags}"), "unexpected argument");
}

#[test]
fn impossible_calibrations_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), "calibrate missing.toml", "missing.toml: cannot read");
    std::fs::write(folder.path().join("empty.toml"), "").unwrap();
    refused(folder.path(), "calibrate empty.toml", "no measurement");
    refused(folder.path(), "calibrate empty.toml --hold-out colour=red", "`colour=red` cannot be held out");
    std::fs::write(folder.path().join("one.toml"), "[[measurement]]\nfile = \"none.txt\"\nfabric = \"hgx-h200\"\n")
        .unwrap();
    refused(folder.path(), "calibrate one.toml", "one.toml:1");
}

#[test]
fn flows_that_end_too_late_are_reported_with_their_file() {
    let text = "src,dst,bytes,start_us\ngpu0,gpu1,1KiB,0\ngpu0,gpu1,1PiB,0\n";
    let folder = folder(&[("late.csv", text.into())]);
    let slow = "simulate --fabric gh200 --slow gpu0-gpu1=0.000001 --flows late.csv";
    refused(folder.path(), slow, "late.csv: flow 2 would take over 213 days");
}

#[test]
fn jobs_whose_buffers_exceed_the_memory_warn() {
    let text = "collective,bytes,ranks\nall_reduce,1MiB,0-7\nall_reduce,100GiB,0-7\nall_reduce,1TiB,0-7\n";
    let folder =
        folder(&[("large.csv", text.into()), ("small.csv", "collective,bytes,ranks\nall_reduce,1MiB,0-7\n".into())]);
    let plan_job = |file: &str| run_in(folder.path(), &format!("plan --fabric hgx-h100 --job {file}"));
    let large = plan_job("large.csv");
    assert_eq!(large.code, 0, "{large:?}");
    assert!(large.stderr.starts_with("warning: a call of 100 GiB needs buffers of 100 GiB on gpu0"), "{large:?}");
    assert_eq!(plan_job("small.csv").stderr, "");
}
