//! `plan --measured` uses times of the plan's own GPUs and library, and reports the rows that it excluded.

use crate::run::run_in;
use crate::tables::repository;

#[test]
fn times_of_other_gpus_and_libraries_are_excluded_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = repository().join("validate/data/h200-node");
    let place = data.display();
    let plan = |fabric: &str, library: &str| {
        run_in(
            folder.path(),
            &format!(
                "plan --fabric {fabric} --gpus 2 --no-nvls --library {library} --collective all_reduce --sizes 1MiB..1MiB \
                 --processes single --measured {place}/manifest.toml --format json"
            ),
        )
    };
    let same = plan(&format!("{place}/topology.xml"), "nccl-2.28.9");
    assert!(same.code == 0 && same.stdout.contains("measured_us"), "{}", same.stderr);
    assert!(!same.stderr.contains("left out: of GPUs"), "{}", same.stderr);
    for (fabric, library, said) in [
        ("dgx-a100", "nccl-2.28.9", "left out: of GPUs of another generation"),
        ("hgx-h200", "nccl-2.22.3", "left out: not of nccl-2.22.3 or its minor release"),
    ] {
        let other = plan(fabric, library);
        assert_eq!(other.code, 2, "{fabric} {library}: {}", other.stdout);
        let told = other.stderr.split_whitespace().collect::<Vec<_>>().join(" ").replace("│ ", "");
        assert!(told.contains(said), "{fabric} {library}: {}", other.stderr);
    }
}
