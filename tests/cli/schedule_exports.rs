//! Tests of schedules written from plans. Schedules record the settings of their plan (several hosts, a profile file, a
//! root, in-place buffers), and folders may contain files of another export.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::run_in;
use crate::tables::repository;

fn write_plan(folder: &Path, flags: &str) {
    let run = run_in(folder, &format!("plan {flags} --format json -o plan.json"));
    assert_eq!(run.code, 0, "{flags}: {}", run.stderr);
}

fn export_schedules(folder: &Path, target: &str) -> Vec<Value> {
    let run = run_in(folder, &format!("table plan.json --to mscclpp -q -o {target}"));
    assert_eq!(run.code, 0, "{}", run.stderr);
    let files = fs::read_dir(folder.join(target)).unwrap().map(|file| file.unwrap().path());
    files.map(|file| serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()).collect()
}

#[test]
fn several_hosts_and_profile_files_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_plan(
        folder,
        "--fabric hgx-h200 --nodes 2 --gpus 2 --collective all_gather --protocol symmetric --sizes 64KiB..64KiB",
    );
    assert!(!export_schedules(folder, "hosts").is_empty());
    let profile = repository().join("sim/profiles/nccl-2.28-h200.toml");
    let text = fs::read_to_string(profile).unwrap().replace("nccl-2.28-h200", "of-our-own");
    fs::write(folder.join("own.toml"), text).unwrap();
    write_plan(
        folder,
        "--fabric hgx-h200 --gpus 2 --profile own.toml --collective all_gather --protocol symmetric --sizes 64KiB..64KiB",
    );
    assert!(!export_schedules(folder, "own").is_empty());
}

/// On NVLink V1, a tree per root has another throughput than as many trees as the optimum needs.
#[test]
fn exported_trees_are_those_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags =
        "--fabric dgx-v100 --algorithm tree_packing --protocol simple --collective all_gather --sizes 64MiB..64MiB";
    let export = |flags: &str, target: &str| {
        write_plan(folder, flags);
        let run = run_in(folder, &format!("table plan.json --to msccl-xml -q -o {target}"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        fs::read_to_string(folder.join(target).join("all_gather-0-up.xml")).unwrap()
    };
    assert_ne!(export(&format!("{flags} --trees 1"), "single"), export(flags, "optimal"));
}

#[test]
fn schedules_have_the_plans_root_and_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = "--fabric hgx-h200 --gpus 4 --protocol symmetric --sizes 64KiB..64KiB";
    write_plan(folder, &format!("{flags} --collective all_gather --in-place"));
    let in_place = export_schedules(folder, "in_place");
    assert!(!in_place.is_empty() && in_place.iter().all(|plan| plan["inplace"] == true), "{in_place:?}");
    write_plan(folder, &format!("{flags} --collective broadcast --root 2"));
    let root_two = export_schedules(folder, "root");
    write_plan(folder, &format!("{flags} --collective broadcast"));
    assert_ne!(root_two, export_schedules(folder, "usual"));
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(folder.join("plan.json")).unwrap()).unwrap();
    plan["root"] = 4.into();
    fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let run = run_in(folder, "table plan.json --to mscclpp -o wrong");
    assert!(run.code == 2 && run.stderr.contains("root 4: expected one of 4 ranks"), "{}", run.stderr);
}

#[test]
fn folders_with_another_export_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = "--fabric hgx-h200 --gpus 2 --collective all_gather --protocol symmetric --sizes";
    write_plan(folder, &format!("{flags} 64KiB..64KiB"));
    export_schedules(folder, "made");
    // Exporting the same plan again gives the same files.
    export_schedules(folder, "made");
    fs::write(folder.join("made/notes.json"), "{}").unwrap();
    let file_count = fs::read_dir(folder.join("made")).unwrap().count();
    write_plan(folder, &format!("{flags} 64KiB..64MiB:1024 --channels 1,2"));
    fs::write(folder.join("made/all_gather-1-2.json"), "{}").unwrap();
    let run = run_in(folder, "table plan.json --to mscclpp -q -o made");
    assert!(run.code == 2 && run.stderr.contains("1 file of another export, all_gather-1-2.json"), "{}", run.stderr);
    assert_eq!(fs::read_dir(folder.join("made")).unwrap().count(), file_count + 1);
}
