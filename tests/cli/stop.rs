//! Ctrl-C: ends a run at once, with one line, and leaves nothing half-written.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::run::command;

#[test]
fn ctrl_c_ends_a_run_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    // Runs of minutes; the sources are said once everything is set up and the work begins.
    for arguments in [
        "simulate --fabric hgx-h200 --nodes 1024 --collective all_to_all --algorithm direct --bytes 1GiB --no-fold -v -o run.txt",
        "simulate --fabric hgx-h200 --nodes 1024 --collective all_to_all --algorithm direct --bytes 1GiB --no-fold -v --trace t.json",
        "plan --fabric hgx-h200 --nodes 512 --collective all --sizes 1KiB..4GiB:1.01 -v -o plan.txt --threads 2",
    ] {
        let mut child = command(folder.path(), arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.by_ref().any(|line| line.starts_with("profile ")), "{arguments}");
        let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(signal.success());
        let said: Vec<String> = lines.filter(|line| !line.starts_with("profile ")).collect();
        assert_eq!((child.wait().unwrap().code(), said), (Some(130), vec!["interrupted".to_owned()]), "{arguments}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments}");
    }
}
