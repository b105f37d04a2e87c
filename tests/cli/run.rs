//! Runs the command and parses its output.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Result of a run.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Returns the command with arguments split at blanks, to be run in a folder.
pub fn command(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null()).env_remove("COLUMNS");
    command
}

/// Runs the command in a folder; the command must exit by itself and without a panic.
pub fn run_in(folder: &Path, arguments: &str) -> Run {
    let output = command(folder, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    let run = Run {
        code: output.status.code().unwrap_or_else(|| panic!("killed: {arguments}")),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    };
    assert!(!run.stderr.contains("panicked"), "{arguments}: {}", run.stderr);
    run
}

/// Runs the command in the current folder.
pub fn run(arguments: &str) -> Run {
    run_in(Path::new(env!("CARGO_TARGET_TMPDIR")), arguments)
}

/// Returns the JSON output of a run that must succeed without messages.
pub fn json(arguments: &str) -> Value {
    let run = run(&format!("{arguments} --format json"));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{arguments}: {error}"))
}

/// Asserts that arguments are rejected: exit code 2, one bounded message, nothing on standard output.
#[track_caller]
pub fn refused(folder: &Path, arguments: &str, expected: &str) {
    let run = run_in(folder, arguments);
    assert_eq!(run.code, 2, "{arguments}: {run:?}");
    assert_eq!(run.stdout, "", "{arguments}");
    assert!(run.stderr.contains(expected), "{arguments}: {}\nexpected {expected}", run.stderr);
    assert!(run.stderr.len() < 4_000, "{arguments}: {} bytes of message", run.stderr.len());
}
