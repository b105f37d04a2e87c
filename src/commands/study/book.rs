//! `runs.jsonl` of a folder: what was run there before, and a line for each run as it ends.
//!
//! A line is one write to the end of the file, so whoever ends the process leaves whole lines and at most one that is not.
//! Nobody else writes there meanwhile: the file is locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fabricast_planner::study::cases::Case;
use fabricast_planner::study::journal::{self, Journal};
use fabricast_planner::study::key::Key;
use fabricast_planner::study::{Outcome, Run};
use fabricast_topologies::read::Limit;
use rustc_hash::FxHashMap;

use crate::failure::Failure;
use crate::output::Output;

/// The name of the file.
pub const RUNS: &str = "runs.jsonl";

/// The runs of a folder, or of none.
pub struct Book {
    path: Option<PathBuf>,
    /// Made with the first run, so that what fails before leaves no folder.
    file: Mutex<Option<File>>,
    kept: Vec<Run>,
}

impl Book {
    /// That of a folder, which need not be there yet; without one, runs are kept nowhere. A last line that lacks its end is
    /// taken away.
    pub fn open(folder: Option<&Path>, output: &Output) -> Result<Self, Failure> {
        let path = folder.map(|folder| folder.join(RUNS));
        let mut book = Self { path, file: Mutex::new(None), kept: Vec::new() };
        let Some(path) = book.path.as_ref().filter(|path| path.exists()) else { return Ok(book) };
        let mut file = locked(path)?;
        let mut bytes = Vec::new();
        let unwritable = |error| cannot_write(path, &error);
        let most = Limit::RUNS.bytes;
        let taken = (&mut file).take(most + 1).read_to_end(&mut bytes);
        taken.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
        if bytes.len() as u64 > most {
            return Err(Failure::input(format!("{}: {}", path.display(), Limit::RUNS.exceeded())));
        }
        let Journal { runs, whole, torn, outdated } = read(&bytes, path)?;
        if outdated > 0 {
            let lines = crate::commands::counted(outdated as u64, "line");
            output
                .warn(&format!("{}: {lines} of an earlier version dropped; these runs are made again", path.display()));
        }
        if let Some(line) = torn {
            output.warn(&format!(
                "{}:{line}: the line lacks its end and is dropped; its run is made again",
                path.display()
            ));
            file.set_len(whole as u64).map_err(unwritable)?;
        } else if bytes.last().is_some_and(|&byte| byte != b'\n') {
            file.write_all(b"\n").map_err(unwritable)?;
        }
        (book.kept, book.file) = (runs, Mutex::new(Some(file)));
        Ok(book)
    }

    /// What is known of each run.
    pub fn outcomes(&self) -> FxHashMap<Key, Outcome> {
        self.kept.iter().map(|run| (run.key, run.outcome.clone())).collect()
    }

    /// Adds a run's line.
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

    /// The whole file in the order of the study, and behind it what was there of other studies: the same whatever the
    /// order in which runs ended.
    pub fn in_order(&self, cases: &[Case], made: &[Run]) -> Result<String, Failure> {
        let mut by_key: FxHashMap<Key, &Run> = self.kept.iter().chain(made).map(|run| (run.key, run)).collect();
        let ours = cases.iter().filter_map(|case| by_key.remove(&case.key)).map(line).collect::<Result<String, _>>()?;
        let others = self.kept.iter().filter_map(|run| by_key.remove(&run.key)).map(line);
        Ok(ours + &others.collect::<Result<String, _>>()?)
    }
}

/// Reads the runs of a file.
pub fn read(bytes: &[u8], path: &Path) -> Result<Journal, Failure> {
    journal::read(bytes, &path.display().to_string()).map_err(|error| {
        Failure::input_with_help(error.to_string(), "take the line away to have its run made again; the others stay")
    })
}

fn line(run: &Run) -> Result<String, Failure> {
    journal::line(run).map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))
}

/// The file, to be read and added to by nobody else.
fn locked(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
    let file = opened.map_err(|error| cannot_write(path, &error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::input_with_help(
            format!("{} is being written by another study", path.display()),
            "wait for it, or name another folder",
        )),
        // Where files cannot be locked, nobody can be told apart.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}
