//! Tests of output files: a command writes each of them completely or not at all, and no other files.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::run::{command, refused, run, run_in};

/// Returns the sorted names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn results_are_written_to_their_file_only() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        "fabric list",
        "fabric show gh200 --format json",
        "fabric export gh200 --to svg",
        "simulate --fabric gh200 --collective all_reduce",
        "plan --fabric gh200 --collective all_reduce --sizes 1K..4K --format csv",
    ] {
        let printed = run(arguments);
        let written = run_in(folder.path(), &format!("{arguments} -o result"));
        assert_eq!((written.code, written.stdout.as_str(), written.stderr.as_str()), (0, "", ""), "{arguments}");
        assert_eq!(std::fs::read_to_string(folder.path().join("result")).unwrap(), printed.stdout, "{arguments}");
        assert_eq!(names(folder.path()), ["result"], "{arguments}");
    }
}

#[test]
fn charts_and_traces_are_written_next_to_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let plan = "plan --fabric gh200 --collective all_reduce --sizes 1K..1M:32";
    assert_eq!(run_in(folder.path(), &format!("{plan} --chart plan.png -o plan.txt")).code, 0);
    assert!(read("plan.png").starts_with(b"\x89PNG"));
    assert_eq!(run_in(folder.path(), &format!("{plan} --chart plan.svg")).code, 0);
    assert!(String::from_utf8(read("plan.svg")).unwrap().contains("</svg>"));
    let simulate = "simulate --fabric gh200 --collective all_reduce --trace trace.json";
    assert_eq!(run_in(folder.path(), simulate).code, 0);
    let trace: serde_json::Value = serde_json::from_slice(&read("trace.json")).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert_eq!(names(folder.path()), ["plan.png", "plan.svg", "plan.txt", "trace.json"]);
}

#[test]
fn failed_writes_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dir")).unwrap();
    let plan = "plan --fabric gh200 --collective all_reduce --sizes 1K..4K";
    let simulate = "simulate --fabric gh200 --collective all_reduce";
    for (arguments, expected) in [
        (format!("{plan} --chart none/plan.svg"), "cannot write none/plan.svg: there is no folder none"),
        (format!("{plan} --chart none/plan.svg -o plan.txt"), "there is no folder none"),
        (format!("{plan} --chart plan.svg -o none/plan.txt"), "there is no folder none"),
        (format!("{plan} --chart plan.gif -o plan.txt"), "expected a file name that ends in `.svg`, `.png` or `.pdf`"),
        (format!("{plan} --chart plan.svg -o plan.svg"), "named twice"),
        (format!("{plan} -o dir"), "it is a folder"),
        (format!("{simulate} --trace none/t.json -o run.txt"), "there is no folder none"),
        (format!("{simulate} --trace dir"), "it is a folder"),
        ("fabric export gh200 --to svg -o none/x.svg".to_owned(), "there is no folder none"),
        ("fabric list -o none/list.txt".to_owned(), "there is no folder none"),
    ] {
        refused(folder.path(), &arguments, expected);
        assert_eq!(names(folder.path()), ["dir"], "{arguments}");
    }
}

/// A file that already has the same bytes is left untouched; one that differs or is truncated is replaced.
#[cfg(unix)]
#[test]
fn unchanged_files_are_not_rewritten() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.txt");
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let write = || assert_eq!(run_in(folder.path(), "fabric list -o list.txt").code, 0);
    write();
    let (text, first) = (std::fs::read(&path).unwrap(), inode());
    write();
    assert_eq!(inode(), first);
    let mut modified = text.clone();
    *modified.last_mut().unwrap() = b'!';
    for changed in [&modified[..], &text[..text.len() - 1], &[&text[..], b"!"].concat()] {
        std::fs::write(&path, changed).unwrap();
        refused(folder.path(), "fabric list -o list.txt", "list.txt: it was changed since fabricast wrote it");
        assert_eq!(std::fs::read(&path).unwrap(), changed);
        assert_eq!(run_in(folder.path(), "fabric list -o list.txt --force").code, 0);
        assert_eq!(std::fs::read(&path).unwrap(), text);
    }
    // An empty file, as created by `mktemp`, may be overwritten.
    std::fs::write(&path, "").unwrap();
    write();
    assert_eq!(std::fs::read(&path).unwrap(), text);
    assert_eq!(names(folder.path()), ["list.txt"]);
}

/// Files written by the command are replaced by later runs, even if moved or copied; files that the user wrote or
/// edited are not.
#[test]
fn only_files_written_by_the_command_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let plan = |gpus: u32, flags: &str| {
        format!("plan --fabric hgx-h100 --gpus {gpus} --collective all_reduce --sizes 1K..4K {flags}")
    };
    let runs = [
        ("plan.txt", ""),
        ("plan.csv", "--format csv"),
        ("plan.json", "--format json"),
        ("chart.svg", "--chart chart.svg -o chart.txt"),
        ("chart.png", "--chart chart.png -o chart.txt"),
    ];
    for (name, flags) in runs {
        let flags = if flags.contains("-o") { flags.to_owned() } else { format!("{flags} -o {name}") };
        assert_eq!(run_in(folder.path(), &plan(2, &flags)).code, 0, "{name}");
        let first = read(name);
        assert_eq!(run_in(folder.path(), &plan(4, &flags)).code, 0, "{name}");
        let second = read(name);
        assert_ne!(first, second, "{name}");
        // An edited file is not overwritten, and the run writes none of its other files either.
        let edited = [&second[..], b" "].concat();
        std::fs::write(path(name), &edited).unwrap();
        let before = names(folder.path());
        refused(folder.path(), &plan(8, &flags), "it was changed since fabricast wrote it");
        assert!(read(name) == edited && names(folder.path()) == before, "{name}");
        let stderr = run_in(folder.path(), &plan(8, &flags)).stderr;
        assert!(stderr.contains(name) && stderr.contains("--force"), "{stderr}");
        assert_eq!(run_in(folder.path(), &plan(8, &format!("{flags} --force"))).code, 0, "{name}");
        assert_ne!(read(name), edited, "{name}");
    }
    // Files that the command wrote are recognized by content, whatever their path.
    std::fs::copy(path("plan.txt"), path("copy.txt")).unwrap();
    assert_eq!(run_in(folder.path(), &plan(2, "-o copy.txt")).code, 0);
    std::fs::write(path("notes.txt"), "mine").unwrap();
    refused(folder.path(), &plan(2, "-o notes.txt"), "cannot write notes.txt: it exists");
    refused(folder.path(), &plan(2, "--chart notes.svg -o notes.txt"), "cannot write notes.txt: it exists");
    assert_eq!(read("notes.txt"), b"mine");
    assert!(!path("notes.svg").exists());
}

#[test]
fn edited_templates_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/study.toml");
    let template = "study --template -o new";
    assert_eq!(run_in(folder.path(), template).code, 0);
    assert_eq!(run_in(folder.path(), template).code, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let edited = format!("{text}# mine\n");
    std::fs::write(&path, &edited).unwrap();
    refused(folder.path(), template, "study.toml: it was changed since fabricast wrote it");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
    assert_eq!(run_in(folder.path(), &format!("{template} --force")).code, 0);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    // Without a record of what was written, a study file is treated as the user's.
    std::fs::write(&path, &edited).unwrap();
    let mut unknown = command(folder.path(), template);
    let run = unknown.env("FABRICAST_STATE", folder.path().join("elsewhere")).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
}

#[test]
fn failed_runs_keep_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plan.txt"), "old").unwrap();
    refused(folder.path(), "plan --fabric gh200 --collective all_reduce --algorithm direct -o plan.txt", "no strategy");
    assert_eq!(std::fs::read(folder.path().join("plan.txt")).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["plan.txt"]);
}

#[cfg(unix)]
#[test]
fn links_and_permissions_survive() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    std::fs::write(&target, "old").unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    refused(folder.path(), "fabric list -o link", "cannot write link: it exists");
    assert_eq!(run_in(folder.path(), "fabric list -o link --force").code, 0);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read_to_string(&target).unwrap().contains("hgx-h200"));
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
}

#[cfg(target_os = "linux")]
#[test]
fn devices_are_written_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_in(folder.path(), "fabric list -o /dev/null").code, 0);
    assert!(run_in(folder.path(), "fabric list -o /dev/stdout").stdout.contains("hgx-h200"));
    refused(folder.path(), "fabric list -o /dev/full", "cannot write /dev/full");
}

#[test]
fn closed_pipes_are_no_error() {
    // The output is larger than the buffer of a pipe.
    let mut child = command(Path::new("."), "fabric show gb200-nvl72 --format json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn quiet_and_verbose_change_only_messages() {
    let plan = "plan --fabric gh200 --collective all --algorithm ring --sizes 1K";
    let (normal, quiet, verbose) = (run(plan), run(&format!("{plan} -q")), run(&format!("{plan} -v")));
    assert_eq!((&quiet.stdout, &verbose.stdout), (&normal.stdout, &normal.stdout));
    assert!(normal.stderr.contains("warning: "));
    assert_eq!(quiet.stderr, "");
    assert!(verbose.stderr.contains("took ") && verbose.stderr.contains("profile "));
    assert!(!normal.stderr.contains("took "));
}
