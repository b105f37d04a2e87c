//! Tests of the golden files of every table format in `golden/`: written tables equal them byte for byte, and reading
//! them gives back what was written. `GOLDEN=overwrite` regenerates them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fabricast_libraries::nccl::{Algo, Proto};
use fabricast_search::export::{AnyTable, SavedPlan, all_reduce_limit, json, nccl_env, nccl_tuner, ncclx, open_mpi};
use fabricast_sim::schedule::format::{self, CallSizes, write_for_sizes};
use fabricast_topologies::Bytes;

use crate::run::run_in;

/// Format, plan and file name of each golden table.
const FORMATS: [(&str, &str, &str); 10] = [
    ("nccl-tuner", "nccl.json", "tuner.csv"),
    ("nccl-env", "nccl.json", "nccl.conf"),
    ("ncclx", "nccl.json", "ncclx.csv"),
    ("vllm", "kernels.json", "vllm.json"),
    ("sglang-env", "kernels.json", "sglang.env"),
    ("openmpi", "open_mpi.json", "rules.txt"),
    ("openmpi-json", "open_mpi.json", "rules.json"),
    ("json", "nccl.json", "table.json"),
    ("mscclpp", "any.json", "mscclpp"),
    ("msccl-xml", "any.json", "msccl-xml"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/tables/golden")
}

/// Returns the text of each file of a format by name; a format of one file gives that file under its own name.
fn files(path: &Path) -> BTreeMap<String, String> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    if path.is_file() {
        return [(name(path), fs::read_to_string(path).unwrap())].into();
    }
    let files = fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
    files.map(|file| (name(&file), fs::read_to_string(&file).unwrap())).collect()
}

#[test]
fn written_tables_equal_the_golden_files() {
    let output = tempfile::tempdir().unwrap();
    for (format, plan, name) in FORMATS {
        let plan = folder().join(plan);
        let target = if std::env::var("GOLDEN").is_ok_and(|value| value == "overwrite") {
            folder().join(name)
        } else {
            output.path().join(name)
        };
        let run = run_in(output.path(), &format!("table {} --to {format} -q -o {}", plan.display(), target.display()));
        assert_eq!(run.code, 0, "{format}: {}", run.stderr);
        let (written, golden) = (files(&target), files(&folder().join(name)));
        assert!(!written.is_empty(), "{format}");
        assert_eq!(written.keys().collect::<Vec<_>>(), golden.keys().collect::<Vec<_>>(), "{format}");
        for (file, text) in &written {
            assert!(*text == golden[file], "{format}: {file} is not what it was; GOLDEN=overwrite writes it again");
        }
    }
}

#[test]
fn golden_files_read_back_as_written() {
    for (format, plan, name) in FORMATS {
        let plan = SavedPlan::read(&fs::read_to_string(folder().join(plan)).unwrap(), plan).unwrap();
        for (file, text) in files(&folder().join(name)) {
            match AnyTable::read(&text, &file).unwrap_or_else(|error| panic!("{format}: {error}")) {
                AnyTable::NcclTuner(table) => {
                    assert_eq!(nccl_tuner::write(&table), text);
                    let expected = nccl_tuner::ConvertedTable::new(&plan).table;
                    assert_eq!((table.rows, table.comments), (expected.rows, expected.comments));
                }
                AnyTable::AllReduceLimit(read) => {
                    let planned = all_reduce_limit::planned_limit(&plan).0;
                    // SGLang's limit is in whole KiB.
                    let whole = if format == "sglang-env" { planned / 1024 * 1024 } else { planned };
                    assert_eq!((read.framework.format(), read.limit), (format, Bytes(whole)));
                    assert!(whole > 0);
                    assert!(read.ignored.is_empty());
                }
                AnyTable::Ncclx(rules) => {
                    assert_eq!(ncclx::write(&rules), text);
                    let expected = ncclx::ConvertedRules::new(&plan).rules;
                    assert!(!rules.rules.is_empty());
                    assert_eq!((rules.rules, rules.comments), (expected.rules, expected.comments));
                }
                AnyTable::NcclEnv(read) => {
                    let (allowed, _) = nccl_env::allowed(&plan);
                    assert!(!allowed.is_empty() && read.ignored.is_empty());
                    for one in allowed {
                        let algos = |algo: &Algo| read.settings.algorithms.allows(one.function, *algo);
                        let protos = |proto: &Proto| read.settings.protocols.allows(one.function, *proto);
                        assert_eq!(Algo::ALL.into_iter().filter(algos).collect::<Vec<_>>(), one.algos);
                        assert_eq!(Proto::ALL.into_iter().filter(protos).collect::<Vec<_>>(), one.protos);
                    }
                }
                AnyTable::OpenMpi(rules) => {
                    let is_json = name.ends_with(".json");
                    let write = if is_json { open_mpi::write_json } else { open_mpi::write_classic };
                    assert_eq!(write(&rules), text);
                    let expected = open_mpi::ConvertedRules::new(&plan).rules;
                    let algorithms = |rules: &open_mpi::Rules| {
                        let all = rules
                            .routines
                            .iter()
                            .flat_map(|(routine, communicators)| communicators.iter().map(move |one| (*routine, one)));
                        let rows = all.flat_map(|(routine, one)| one.rules.iter().map(move |rule| (routine, *rule)));
                        rows.collect::<Vec<_>>()
                    };
                    assert!(!rules.routines.is_empty());
                    assert_eq!(algorithms(&rules), algorithms(&expected), "{file}");
                }
                AnyTable::Plan(read) => {
                    let expected = SavedPlan::read(&json::write(&plan), "made").unwrap();
                    assert!(!read.ranges.is_empty());
                    assert_eq!(*read, expected);
                }
                AnyTable::Schedule(kind, schedule, sizes) => {
                    assert_eq!(kind.name(), format);
                    // The table's open-ended range ends at the largest size that readers of these formats accept.
                    let sizes = CallSizes { max: sizes.max.min(Bytes(i64::MAX as u64 - 1)), ..sizes };
                    let mut written = String::new();
                    write_for_sizes(&schedule, kind, sizes, &mut written).unwrap();
                    // In formats with comments, a description precedes the schedule.
                    let body = text.lines().skip_while(|line| line.starts_with("<!--"));
                    assert!(written.lines().eq(body), "{file}");
                    assert_eq!(text.starts_with("<!--"), format == "msccl-xml");
                    assert_eq!(format::read(&text, &file).unwrap(), *schedule);
                }
            }
        }
    }
}
