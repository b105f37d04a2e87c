//! Ctrl-C and SIGTERM end a run immediately with one line of output, and leave no partial files. After SIGKILL, the
//! next run removes leftover files.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{command, run_in};

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Returns the sorted names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn signals_end_runs_without_leftover_files() {
    let folder = tempfile::tempdir().unwrap();
    // These runs last minutes; they print the sources once everything is set up and the work begins.
    for arguments in [
        "simulate --fabric hgx-h200 --nodes 1024 --collective all_to_all --algorithm direct --bytes 1GiB --no-fold -v -o run.txt",
        "simulate --fabric hgx-h200 --nodes 1024 --collective all_to_all --algorithm direct --bytes 1GiB --no-fold -v --trace t.json",
        "plan --fabric hgx-h200 --nodes 512 --collective all --sizes 1KiB..4GiB:1.01 -v -o plan.txt --threads 2",
    ] {
        for (name, code, line) in [("INT", 130, "interrupted"), ("TERM", 143, "terminated")] {
            let mut child =
                command(folder.path(), arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
            assert!(lines.by_ref().any(|line| line.starts_with("profile ")), "{arguments}");
            signal(&child, name);
            let messages: Vec<String> = lines.filter(|line| !line.starts_with("profile ")).collect();
            assert_eq!((child.wait().unwrap().code(), messages), (Some(code), vec![line.to_owned()]), "{arguments}");
            assert_eq!(names(folder.path()), [""; 0], "{arguments}");
        }
    }
}

/// Starts a run that blocks when its files are complete but not yet renamed: its result goes to a pipe that is not
/// read.
fn spawn_blocked_run(folder: &Path) -> Child {
    let pipe = folder.join("pipe");
    if !pipe.exists() {
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    }
    let arguments = "plan --fabric hgx-h100 --collective all_reduce --sizes 1K..4K --chart out/chart.svg -o pipe";
    let mut child = command(folder, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let prefix = format!(".fabricast-{}-", child.id());
    while names(&folder.join("out")).iter().all(|name| !name.starts_with(&prefix)) {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn temporary_files_are_removed_by_signals_and_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join(".fabricast-1.partial"), "mine").unwrap();
    std::fs::write(out.join(".chart.svg.17.partial"), "mine").unwrap();
    let user_files = [".chart.svg.17.partial", ".fabricast-1.partial"];
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut child = spawn_blocked_run(folder.path());
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(names(&out), user_files, "{name}");
    }
    let mut killed = spawn_blocked_run(folder.path());
    signal(&killed, "KILL");
    killed.wait().unwrap();
    assert_eq!(names(&out).len(), 3);
    // The files of a running command are not removed if another run uses the folder.
    let mut running = spawn_blocked_run(folder.path());
    let plan = "plan --fabric hgx-h100 --collective all_reduce --sizes 1K..4K --chart out/chart.svg";
    assert_eq!(run_in(folder.path(), plan).code, 0);
    let files = names(&out);
    assert!(files.len() == 4 && files.contains(&"chart.svg".to_owned()), "{files:?}");
    signal(&running, "TERM");
    assert_eq!(running.wait().unwrap().code(), Some(143));
    assert_eq!(names(&out), [user_files[0], user_files[1], "chart.svg"]);
}
