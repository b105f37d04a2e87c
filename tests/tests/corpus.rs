//! Reads every file of the fuzzing corpus with its reader, none of which may panic.

use std::path::{Path, PathBuf};

use fabricast_sim::flows;
use fabricast_sim::schedule::format::{Format, write};
use fabricast_sim::schedule::{Schedule, json, msccl_xml, mscclpp};
use fabricast_topologies::read::{nccl_xml, smi, spec};
use fabricast_topologies::read_text;
use fabricast_validate::measured::{manifest, read_log};

/// Name of a fuzz target, with a function that returns true if the target's reader accepts a text.
pub(crate) type Reader = (&'static str, fn(&str) -> bool);

pub(crate) const READERS: [Reader; 9] = [
    ("flows", |text| {
        let fabric = std::fs::read_to_string(folder().join("flows-fabric.toml")).unwrap();
        flows::parse(text, "corpus", &read_text(&fabric, "fabric").unwrap()).is_ok()
    }),
    ("log", |text| read_log(text, "corpus").is_ok()),
    ("manifest", |text| manifest::read(text, "corpus").is_ok()),
    ("msccl_xml", |text| {
        msccl_xml::from_xml(text, "corpus").is_ok_and(|schedule| check_round_trip(&schedule, Format::MscclXml))
    }),
    ("mscclpp", |text| {
        mscclpp::from_plan(text, "corpus").is_ok_and(|schedule| check_round_trip(&schedule, Format::Mscclpp))
    }),
    ("nccl_xml", |text| nccl_xml::parse(text, "corpus").is_ok()),
    ("schedule", |text| match json::from_json(text, "corpus") {
        Ok(schedule) => {
            let written = json::to_json(&schedule);
            assert_eq!(json::from_json(&written, "written").unwrap(), schedule);
            true
        }
        Err(_) => false,
    }),
    ("smi", |text| smi::parse(text, "corpus").is_ok()),
    ("spec", |text| spec::parse(text, "corpus").is_ok_and(|spec| spec.cluster.is_some() || spec.build_nodes().is_ok())),
];

/// Returns true after checking that a schedule, if it can be written, is written identically after reading it back.
fn check_round_trip(schedule: &Schedule, format: Format) -> bool {
    if let Ok(text) = write(schedule, format) {
        let rewritten = fabricast_sim::schedule::format::read(&text, "written").map(|reread| write(&reread, format));
        assert_eq!(rewritten, Ok(Ok(text)));
    }
    true
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn corpus_files_do_not_make_readers_panic() {
    for (target, read) in READERS {
        let mut accepted = 0;
        for file in files(&folder().join("corpus").join(target)) {
            // Readers get only text, so files that are not UTF-8 are skipped.
            if let Ok(text) = String::from_utf8(std::fs::read(&file).unwrap()) {
                accepted += u32::from(read(&text));
            }
        }
        // The test would prove nothing if a reader rejected all of its seeds.
        assert!(accepted > 0, "{target} understands none of its files");
    }
}

#[test]
fn every_target_has_a_corpus_and_a_reader() {
    let names = |folder: PathBuf| -> Vec<String> {
        files(&folder).iter().map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
    };
    let expected: Vec<&str> = READERS.iter().map(|(target, _)| *target).collect();
    assert_eq!(names(folder().join("corpus")), expected);
    assert_eq!(names(folder().join("fuzz_targets")), expected);
}
