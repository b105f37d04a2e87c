//! Tests of `report` and of the page written by `study`, which are generated only from the output of other commands.

use std::path::Path;

use crate::run::{refused, run_in};

fn run_silently(folder: &Path, arguments: &str) {
    let run = run_in(folder, arguments);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""), "{arguments}");
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn report_regenerates_a_studys_page_from_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let study = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/training-70b.toml");
    for threads in [1, 2] {
        run_silently(folder.path(), &format!("study {} -o out-{threads} --threads {threads}", study.display()));
    }
    let page = read(folder.path(), "out-1/index.html");
    assert_eq!(page, read(folder.path(), "out-2/index.html"));
    for text in
        ["4 x HGX H200", "Pareto front", "class=\"fabric\"", "4 x L40S on PCIe\ntensor: ", "USD per million tokens"]
    {
        assert!(page.contains(text), "{text}");
    }
    for text in [
        "Timeline of a step",
        "forward, micro-batch 3",
        "link utilization; the busiest, n0/",
        "calls of a step",
        "transfers between ranks",
    ] {
        assert!(page.contains(text), "{text}");
    }
    run_silently(folder.path(), "report out-1/results.json -o report.html --charts charts");
    let report = read(folder.path(), "report.html");
    // The page is complete except for the picture of the fabric, which results do not contain.
    assert!(
        report.len() < page.len()
            && report.contains("Pareto front")
            && report.contains("Timeline of a step")
            && !report.contains("class=\"fabric\"")
    );
    // With the study as additional input the picture is included; a study of other machines is rejected.
    run_silently(folder.path(), &format!("report {} out-1/results.json -o whole.html --charts whole", study.display()));
    assert_eq!(read(folder.path(), "whole.html"), page);
    let text = std::fs::read_to_string(&study).unwrap();
    for (old, new) in [("hgx-h200", "hgx-h100"), ("nodes = 4", "nodes = 8")] {
        std::fs::write(folder.path().join("other.toml"), text.replace(old, new)).unwrap();
        refused(
            folder.path(),
            "report out-1/results.json other.toml -o p.html",
            "none of the inputs is its results.json",
        );
    }
    // Charts that are derived from the study file are drawn only if it is given.
    let from_results = ["cost-1", "steps-1", "memory-1", "links-1", "course-1-1", "course-1-3"];
    let from_study = ["busbw-1-1", "schedule-1"];
    for (charts, names) in [("charts", &from_results[..]), ("whole", &from_results), ("whole", &from_study)] {
        for name in names {
            assert!(read(folder.path(), &format!("{charts}/{name}.svg")).starts_with("<svg"), "{name}");
            let png = std::fs::read(folder.path().join(format!("{charts}/{name}.png"))).unwrap();
            assert!(png.starts_with(b"\x89PNG"), "{name}");
        }
    }
    assert!(from_study.iter().all(|name| !folder.path().join(format!("charts/{name}.svg")).exists()));
}

#[test]
fn inputs_are_recognized_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let call = "--fabric hgx-h200 --gpus 4 --collective all_reduce";
    run_silently(folder.path(), &format!("plan {call} --sizes 1KiB..1MiB:32 --format json -o a"));
    run_silently(
        folder.path(),
        &format!("simulate {call} --bytes 1MiB --algorithm ring --protocol ll --format json --trace b -o c"),
    );
    run_silently(folder.path(), "fabric show hgx-h200 --format json -o d");
    run_silently(
        folder.path(),
        "schedule generate --fabric hgx-h200 --gpus 4 --collective all_reduce --bytes 1MiB --algorithm ring --protocol ll -o e",
    );
    run_silently(folder.path(), "report a b c d e -o page.html");
    let page = read(folder.path(), "page.html");
    for text in ["Bus bandwidth of all_reduce", "Timeline of the channels", "link utilization during", "Schedule ring"]
    {
        assert!(page.contains(text), "{text}");
    }
    let run = run_in(folder.path(), "report a");
    assert_eq!((run.code, run.stdout.as_str()), (0, "wrote report.html; -o names another file\n"));
    assert!(read(folder.path(), "report.html").starts_with("<!DOCTYPE html>"));
    let silent = run_in(folder.path(), "report a --quiet");
    assert_eq!((silent.code, silent.stdout.as_str()), (0, ""));
    std::fs::write(folder.path().join("report.html"), "mine").unwrap();
    refused(folder.path(), "report a", "report.html");
}

#[test]
fn unsupported_inputs_are_rejected_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("words.txt"), "some words\n").unwrap();
    std::fs::write(folder.path().join("other.json"), "{\"colour\": \"blue\"}").unwrap();
    std::fs::write(folder.path().join("study.toml"), "[[candidate]]\nname = \"a\"\n").unwrap();
    std::fs::write(folder.path().join("half.json"), "{\"results\": [], \"ranking\":").unwrap();
    for (arguments, expected) in [
        ("report words.txt -o p.html", "words.txt: not an input of a page"),
        ("report other.json -o p.html", "the keys colour"),
        ("report study.toml -o p.html", "study FILE -o DIR"),
        ("report half.json -o p.html", "half.json:1:"),
        ("report missing.json -o p.html", "missing.json"),
        ("report other.json --format json", "a page of HTML"),
        ("report -o p.html", "INPUT"),
    ] {
        refused(folder.path(), arguments, expected);
    }
    assert!(!folder.path().join("p.html").exists());
    run_silently(folder.path(), "fabric show hgx-h200 --format json -o fabric.json");
    refused(folder.path(), "report fabric.json -o p.html --charts c", "none of the inputs is one");
    assert!(!folder.path().join("p.html").exists() && !folder.path().join("c").exists());
}
