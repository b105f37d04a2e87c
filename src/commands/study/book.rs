//! `runs.jsonl` of a study folder: the saved runs, one line each.
//!
//! A line is appended with a single write when its run ends. A process that is killed therefore leaves whole lines and
//! at most one partial line. The file is locked against other writers.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fabricast_study::cases::RunSpec;
use fabricast_study::journal::{self, Journal};
use fabricast_study::key::Key;
use fabricast_study::{Outcome, Run};
use fabricast_topologies::read::Limit;
use rustc_hash::FxHashMap;

use crate::failure::Failure;
use crate::output::Output;

/// Name of the file with the runs of a study.
pub const RUNS: &str = "runs.jsonl";

/// Runs of a study folder; without a folder, runs are not saved.
pub struct RunLog {
    path: Option<PathBuf>,
    /// Open file. It is created when the first run ends, so that earlier failures leave no folder.
    file: Mutex<Option<File>>,
    saved_runs: Vec<Run>,
}

impl RunLog {
    /// Opens the runs of a folder, which does not have to exist. Without a folder, runs are not saved. A partial last
    /// line is removed.
    ///
    /// # Errors
    /// [`Failure`]: another study writes the file, or the file cannot be read, is too large or has an invalid line.
    pub fn open(folder: Option<&Path>, output: &Output) -> Result<Self, Failure> {
        let path = folder.map(|folder| folder.join(RUNS));
        let mut log = Self { path, file: Mutex::new(None), saved_runs: Vec::new() };
        let Some(path) = log.path.as_ref().filter(|path| path.exists()) else { return Ok(log) };
        let mut file = locked(path)?;
        let mut bytes = Vec::new();
        let write_failure = |error| cannot_write(path, &error);
        let limit = Limit::RUNS.bytes;
        let result = (&mut file).take(limit + 1).read_to_end(&mut bytes);
        result.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
        if bytes.len() as u64 > limit {
            return Err(Failure::input(format!("{}: {}", path.display(), Limit::RUNS.exceeded())));
        }
        let Journal { runs, complete_bytes, incomplete_line, outdated } = read(&bytes, path)?;
        if outdated > 0 {
            let lines = crate::commands::format_count(outdated as u64, "line");
            output.warn(&format!("{}: {lines} of an earlier version dropped; these runs are repeated", path.display()));
        }
        if let Some(line) = incomplete_line {
            output
                .warn(&format!("{}:{line}: the line is truncated and is dropped; its run is repeated", path.display()));
            file.set_len(complete_bytes as u64).map_err(write_failure)?;
        } else if bytes.last().is_some_and(|&byte| byte != b'\n') {
            file.write_all(b"\n").map_err(write_failure)?;
        }
        (log.saved_runs, log.file) = (runs, Mutex::new(Some(file)));
        Ok(log)
    }

    /// Returns the outcome of each saved run, by the key of the run.
    pub fn outcomes(&self) -> FxHashMap<Key, Outcome> {
        self.saved_runs.iter().map(|run| (run.key, run.outcome.clone())).collect()
    }

    /// Appends the line of a run.
    ///
    /// # Errors
    /// [`Failure`]: the file or its folder cannot be written, or another study writes the file.
    pub fn add(&self, run: &Run) -> Result<(), Failure> {
        let Some(path) = &self.path else { return Ok(()) };
        let line = line(run)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::input(format!("cannot make the folder {}: {error}", folder.display())))?;
            *file = Some(locked(path)?);
        }
        match file.as_mut() {
            Some(file) => file.write_all(line.as_bytes()).map_err(|error| cannot_write(path, &error)),
            None => Ok(()),
        }
    }

    /// Returns the text of the file with the runs in the order of the study, followed by runs of other studies. The
    /// text does not depend on the order in which the runs ended.
    ///
    /// # Errors
    /// [`Failure`]: a run cannot be written as JSON.
    pub fn in_order(&self, cases: &[RunSpec], new_runs: &[Run]) -> Result<String, Failure> {
        let mut by_key: FxHashMap<Key, &Run> =
            self.saved_runs.iter().chain(new_runs).map(|run| (run.key, run)).collect();
        let ours = cases.iter().filter_map(|case| by_key.remove(&case.key)).map(line).collect::<Result<String, _>>()?;
        let others = self.saved_runs.iter().filter_map(|run| by_key.remove(&run.key)).map(line);
        Ok(ours + &others.collect::<Result<String, _>>()?)
    }
}

/// Parses the runs of a file. `path` names the file in errors.
///
/// # Errors
/// [`Failure`]: a complete line is not a valid run.
pub fn read(bytes: &[u8], path: &Path) -> Result<Journal, Failure> {
    journal::read(bytes, &path.display().to_string()).map_err(|error| {
        Failure::input_with_help(error.to_string(), "remove the line to repeat its run; the others are retained")
    })
}

fn line(run: &Run) -> Result<String, Failure> {
    journal::line(run).map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))
}

/// Opens and locks the file for reading and appending.
fn locked(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
    let file = opened.map_err(|error| cannot_write(path, &error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::input_with_help(
            format!("{} is being written by another study", path.display()),
            "wait for it, or name another folder",
        )),
        // File systems without locks cannot detect concurrent writers; the file is used without a lock.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}
