//! Schedules of other tools are read, verified, simulated, drawn and written by the command.

use std::path::Path;

use crate::run::{json, refused, run, run_in};

/// Published schedule files, each with the number of GPUs that it is for.
const FILES: [(&str, u32); 7] = [
    ("msccl-all-reduce-ring-ll.xml", 16),
    ("msccl-allreduce-allpairs-8n-ll-32tb.xml", 8),
    ("msccl-alltoall-8n-0-9kb.xml", 8),
    ("mscclpp-allreduce.json", 2),
    ("mscclpp-allreduce_packet.json", 2),
    ("mscclpp-reduce.json", 2),
    ("mscclpp-transfer_pack.json", 2),
];

fn path(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schedules").join(name).display().to_string()
}

/// Returns the flags of a fabric with a number of GPUs.
fn fabric(gpus: u32) -> String {
    if gpus > 8 { format!("hgx-h200 --nodes {}", gpus / 8) } else { format!("hgx-h200 --gpus {gpus}") }
}

#[test]
fn published_files_are_verified_or_rejected_by_operation() {
    for (name, _) in FILES {
        let run = run(&format!("schedule verify {}", path(name)));
        if name == "mscclpp-reduce.json" {
            let copied =
                "operation 0 (rank 0, channel 0, local copy): writes scratch chunk 2 of rank 0, which is never read";
            assert!(run.code == 1 && run.stderr.contains(copied), "{name}: {run:?}");
        } else {
            assert!(run.code == 0 && run.stdout.starts_with("ok: "), "{name}: {run:?}");
        }
    }
}

#[test]
fn published_files_and_their_conversions_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, gpus) in FILES {
        // A schedule that is rejected because a copy is never read can be simulated nevertheless.
        let flags = if name == "mscclpp-reduce.json" { "--no-verify" } else { "" };
        let simulate = |file: &str| json(&format!("simulate --fabric {} --schedule {file} {flags}", fabric(gpus)));
        let (time, bound) = (|run: &serde_json::Value| run["time_us"].as_f64().unwrap(), "bound_us");
        let original = simulate(&path(name));
        assert!(time(&original) >= original[bound].as_f64().unwrap(), "{name}");
        for format in ["json", "msccl-xml", "mscclpp"] {
            let written =
                run_in(folder.path(), &format!("schedule convert {} --to {format} -o written -q", path(name)));
            assert_eq!((written.code, written.stderr.as_str()), (0, ""), "{name} {format}");
            let converted = simulate(&folder.path().join("written").display().to_string());
            assert_eq!(converted["bytes"], original["bytes"], "{name} {format}");
            assert!(time(&converted) >= converted[bound].as_f64().unwrap(), "{name} {format}");
            if format == "json" {
                assert_eq!(converted, original, "{name}");
            }
        }
    }
}

#[test]
fn generated_schedules_are_written_in_any_format() {
    let folder = tempfile::tempdir().unwrap();
    let generate =
        "schedule generate --fabric hgx-h200 --collective all_reduce --algorithm ring --bytes 1M --channels 2";
    let times: Vec<f64> = ["json", "msccl-xml", "mscclpp"]
        .map(|format| {
            let run = run_in(folder.path(), &format!("{generate} --protocol ll --to {format} -o {format}"));
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{format}");
            let file = folder.path().join(format).display().to_string();
            json(&format!("simulate --fabric hgx-h200 --schedule {file}"))["time_us"].as_f64().unwrap()
        })
        .to_vec();
    // A ring written as relay steps takes the same time as the same ring written as sends and receives.
    assert_eq!(times[0], times[1]);
    let run = run_in(folder.path(), &format!("{generate} --protocol simple --to mscclpp -o plan"));
    assert!(run.code == 0 && run.stderr.contains("mscclpp has no protocol simple: written as symmetric"), "{run:?}");
}

#[test]
fn pictures_are_written_next_to_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let show = format!("schedule show {}", path("msccl-alltoall-8n-0-9kb.xml"));
    let bytes = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(run_in(folder.path(), &format!("{show} --picture steps.png")).code, 0);
    assert!(bytes("steps.png").starts_with(b"\x89PNG"));
    assert_eq!(run_in(folder.path(), &format!("{show} --picture steps.svg")).code, 0);
    assert!(String::from_utf8(bytes("steps.svg")).unwrap().contains("alltoall_llm: all_to_all"));
    refused(
        folder.path(),
        &format!("{show} --picture steps.gif"),
        "expected a file name that ends in `.svg`, `.png` or `.pdf`",
    );
    refused(folder.path(), &format!("{show} --picture none/steps.svg"), "there is no folder none");
}

#[test]
fn faults_are_shown_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(path("msccl-alltoall-8n-0-9kb.xml")).unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("huge.xml", text.replacen("ngpus=\"8\"", "ngpus=\"4000000000\"", 1));
    write("alone.xml", text.replacen("type=\"r\"", "type=\"nop\"", 1));
    write(
        "multicast.json",
        std::fs::read_to_string(path("mscclpp-reduce.json")).unwrap().replacen("\"copy\"", "\"gstore\"", 1),
    );
    for (file, expected) in [
        ("huge.xml", "huge.xml:3:"),
        ("huge.xml", "expected a whole number from 1 to 1048576"),
        ("alone.xml", "sends to gpu 0, which does not receive it on channel 0"),
        ("multicast.json", "operation 0 (gstore) of thread block 0 of gpu 0 names no switch channel"),
    ] {
        for arguments in ["schedule verify FILE", "schedule show FILE", "simulate --fabric hgx-h200 --schedule FILE"] {
            refused(folder.path(), &arguments.replace("FILE", file), expected);
        }
    }
}
