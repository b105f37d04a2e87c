//! `plan --measured` uses measured times only of the plan's own GPUs and library, and reports the rows that it
//! excludes.

use crate::run::run_in;
use crate::tables::repository;

#[test]
fn times_of_other_gpus_and_libraries_are_excluded_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = repository().join("validate/data/h200-node");
    let data_folder = data.display();
    let plan = |fabric: &str, library: &str| {
        run_in(
            folder.path(),
            &format!(
                "plan --fabric {fabric} --gpus 2 --no-nvls --library {library} --collective all_reduce --sizes 1MiB..1MiB \
                 --processes single --measured {data_folder}/manifest.toml --format json"
            ),
        )
    };
    let matching = plan(&format!("{data_folder}/topology.xml"), "nccl-2.28.9");
    assert!(matching.code == 0 && matching.stdout.contains("measured_us"), "{}", matching.stderr);
    assert!(!matching.stderr.contains("skipped: of GPUs"), "{}", matching.stderr);
    for (fabric, library, expected) in [
        ("dgx-a100", "nccl-2.28.9", "skipped: of GPUs of another generation"),
        ("hgx-h200", "nccl-2.22.3", "skipped: not of nccl-2.22.3 or its minor release"),
    ] {
        let mismatching = plan(fabric, library);
        assert_eq!(mismatching.code, 2, "{fabric} {library}: {}", mismatching.stdout);
        let message = mismatching.stderr.split_whitespace().collect::<Vec<_>>().join(" ").replace("│ ", "");
        assert!(message.contains(expected), "{fabric} {library}: {}", mismatching.stderr);
    }
}
