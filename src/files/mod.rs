//! Output files: checked before the work, written to a staging folder, and moved to their destinations when all are
//! complete.
//!
//! An existing file is replaced only if it is, byte for byte, what fabricast wrote ([`record`]), or with `--force`. A
//! process that is stopped leaves no partial files ([`stage`]).

mod record;
mod stage;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::failure::Failure;
use record::{Digest, FileDigests, Origin};
pub use stage::remove_all_and_block;
use stage::stages;

/// Policy for replacing existing files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// Only files that have the content that fabricast wrote.
    #[default]
    Own,
    /// All files (`--force`).
    All,
}

/// Checks before the work that a file can be written: its folder exists, and it is not a folder itself.
///
/// # Errors
/// [`Failure`]: the path is a folder, or its parent folder does not exist.
pub fn check(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::input(format!("cannot write {}: it is a folder; expected a file", path.display())));
    }
    let folder = parent_folder(path);
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::input_with_help(
        format!("cannot write {}: there is no folder {}", path.display(), folder.display()),
        "make the folder first, or name another",
    ))
}

/// Returns an error if a file exists and fabricast did not write it.
pub fn check_replaceable(path: &Path, replace: Replace) -> Result<(), Failure> {
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if replace == Replace::All || !full.is_file() {
        return Ok(());
    }
    let reason = match record::origin(&full) {
        Origin::Command => return Ok(()),
        Origin::Changed => "it was changed since fabricast wrote it",
        Origin::Unknown => "it exists, and fabricast has no record of writing it",
    };
    Err(Failure::input_with_help(
        format!("cannot write {}: {reason}", path.display()),
        "--force replaces it; otherwise move it away or name another",
    ))
}

/// Removes the staging folders that killed runs left in a folder.
pub fn sweep(folder: &Path) {
    stage::sweep(folder);
}

/// Removes the staged files of a failed command.
pub fn discard() {
    stages().clear();
}

/// Complete file that is not yet at its destination. A file that is dropped before [`commit`] leaves nothing.
pub struct StagedFile {
    folder: PathBuf,
    name: OsString,
    content: StagedContent,
}

enum StagedContent {
    /// File in the staging folder, with its digest.
    InStage(Digest),
    /// Bytes for a destination that cannot be replaced: a device such as `/dev/stdout`.
    Bytes(Vec<u8>),
    /// No content: the file exists with the same bytes.
    Nothing,
}

impl StagedFile {
    /// Stages a file: writes the bytes to the staging folder of its destination.
    ///
    /// # Errors
    /// [`Failure`]: the file cannot be written, is staged already, or may not be replaced according to `replace`.
    pub fn new(path: &Path, bytes: &[u8], replace: Replace) -> Result<Self, Failure> {
        Self::from_parts(path, [bytes], replace)
    }

    /// Variant of [`Self::new`] for a content in several consecutive parts.
    fn from_parts<const N: usize>(path: &Path, parts: [&[u8]; N], replace: Replace) -> Result<Self, Failure> {
        check(path)?;
        let failed = |error: &std::io::Error| cannot_write(path, error);
        // A symbolic link is preserved: its target is replaced.
        let full = match std::fs::canonicalize(path) {
            Ok(full) => full,
            Err(_) => {
                let folder = std::fs::canonicalize(parent_folder(path)).map_err(|error| failed(&error))?;
                folder.join(path.file_name().unwrap_or_default())
            }
        };
        let (folder, name) = (parent_folder(&full).to_owned(), full.file_name().unwrap_or_default().to_owned());
        if full.exists() && !full.is_file() {
            return Ok(Self { folder, name, content: StagedContent::Bytes(parts.concat()) });
        }
        // Replacing a file makes the file system flush it, which takes most of the time if there are many files, so
        // unchanged files are skipped.
        if has_content(&full, &parts) {
            return Ok(Self { folder, name, content: StagedContent::Nothing });
        }
        check_replaceable(path, replace)?;
        let opened = stages().open(&folder, &name);
        let mut file = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Failure::input(format!("{} is named twice: expected two files", path.display()))
            }
            _ => failed(&error),
        })?;
        let staged = Self { folder, name, content: StagedContent::InStage(Digest::from_parts(&parts)) };
        let permitted = match std::fs::metadata(&full) {
            Ok(old) => file.set_permissions(old.permissions()),
            Err(_) => Ok(()),
        };
        let written = permitted.and_then(|()| parts.iter().try_for_each(|part| file.write_all(part)));
        written.map_err(|error| failed(&error))?;
        Ok(staged)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Permits only the owner to read and write the file, where the operating system has such permissions (Unix).
    /// Devices are unchanged.
    ///
    /// # Errors
    /// [`Failure`]: the permissions cannot be set.
    #[cfg(feature = "serve")]
    pub fn restrict_to_owner(&self) -> Result<(), Failure> {
        #[cfg(unix)]
        {
            let permissions = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
            let restricted = match self.content {
                StagedContent::InStage(_) => stages().set_permissions(&self.folder, &self.name, permissions),
                StagedContent::Nothing => std::fs::set_permissions(self.path(), permissions),
                StagedContent::Bytes(_) => Ok(()),
            };
            restricted.map_err(|error| cannot_write(&self.path(), &error))?;
        }
        Ok(())
    }
}

/// Moves files to their destinations. A signal that stops the process takes effect when all moves are done.
///
/// # Errors
/// [`Failure`]: a device cannot be written, or a file cannot be moved.
pub fn commit(files: &[StagedFile]) -> Result<(), Failure> {
    commit_and_remove(files, &[])
}

/// Moves files to their destinations, and removes other files (canonical paths) that are stale.
fn commit_and_remove(files: &[StagedFile], stale: &[PathBuf]) -> Result<(), Failure> {
    for file in files {
        // Writing to a device may block, so devices are written before any file is moved.
        if let StagedContent::Bytes(bytes) = &file.content {
            std::fs::write(file.path(), bytes).map_err(|error| cannot_write(&file.path(), &error))?;
        }
    }
    let mut folders: BTreeMap<&Path, Vec<OsString>> = BTreeMap::new();
    let mut entries = Vec::new();
    for file in files {
        if let StagedContent::InStage(digest) = &file.content {
            folders.entry(&file.folder).or_default();
            entries.push(FileDigests::new(&file.path(), *digest));
        }
    }
    for path in stale {
        folders.entry(parent_folder(path)).or_default().extend(path.file_name().map(OsStr::to_owned));
    }
    // The record is updated before the moves, so that moved files are recorded even if the process is stopped.
    record::add(&entries);
    let mut stages = stages();
    folders.iter().try_for_each(|(folder, stale)| {
        stages
            .commit(folder, stale)
            .map_err(|error| Failure::input(format!("cannot move files into {}: {error}", folder.display())))
    })
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let StagedContent::InStage(_) = self.content {
            stages().drop_file(&self.folder, &self.name);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}

/// Returns true if a file has exactly these bytes.
fn has_content(path: &Path, parts: &[&[u8]]) -> bool {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if !std::fs::metadata(path).is_ok_and(|old| old.len() == len as u64) {
        return false;
    }
    let starts_with =
        |remaining: &mut &[u8], part: &[u8]| remaining.split_off(..part.len()).is_some_and(|head| head == part);
    std::fs::read(path).is_ok_and(|old| {
        let mut remaining = old.as_slice();
        parts.iter().all(|part| starts_with(&mut remaining, part)) && remaining.is_empty()
    })
}

/// Parent folder of a path.
fn parent_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Stages a text for a folder, which is created if missing. The text ends with one newline.
///
/// # Errors
/// [`Failure`]: the folder cannot be created, and errors of [`StagedFile::new`].
pub fn stage_text(folder: &Path, name: impl AsRef<Path>, text: &str, replace: Replace) -> Result<StagedFile, Failure> {
    make_folder(folder)?;
    StagedFile::from_parts(&folder.join(name), [text.trim_end_matches('\n').as_bytes(), b"\n"], replace)
}

/// Creates a folder, which is removed again if the command writes nothing into it.
///
/// # Errors
/// [`Failure`]: the folder or one of its ancestors cannot be created.
pub fn make_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    stages()
        .make_folder(folder)
        .map_err(|error| Failure::input(format!("cannot make the folder {}: {error}", folder.display())))
}

/// Stages files for a folder, which is created if missing. Returns the first error if several fail.
///
/// # Errors
/// As for [`stage_text`].
pub fn stage_folder<N: AsRef<Path> + Sync, C: AsRef<[u8]> + Sync>(
    folder: &Path,
    contents: &[(N, C)],
    replace: Replace,
) -> Result<Vec<StagedFile>, Failure> {
    make_folder(folder)?;
    let staged = contents.par_iter().map(|(name, bytes)| match std::str::from_utf8(bytes.as_ref()) {
        Ok(text) => stage_text(folder, name, text, replace),
        Err(_) => StagedFile::new(&folder.join(name), bytes.as_ref(), replace),
    });
    let staged: Vec<Result<StagedFile, Failure>> = staged.collect();
    staged.into_iter().collect()
}

/// Writes files to a folder, which is created if missing: all of them, or none.
///
/// # Errors
/// As for [`stage_folder`] and [`commit`].
pub fn write_folder<N: AsRef<Path> + Sync, C: AsRef<[u8]> + Sync>(
    folder: &Path,
    contents: &[(N, C)],
    replace: Replace,
) -> Result<(), Failure> {
    commit(&stage_folder(folder, contents, replace)?)
}

/// Replaces all results in a folder. Existing files whose name satisfies `is_result` are removed unless they are
/// written again. `foreign` returns the error for those of them that fabricast did not write.
///
/// # Errors
/// [`Failure`]: the folder cannot be read, the failure of `foreign`, and errors of [`commit`].
pub fn commit_replacing_folder(
    files: &[StagedFile],
    folder: &Path,
    is_result: impl Fn(&str) -> bool,
    replace: Replace,
    foreign: impl Fn(&[String]) -> Failure,
) -> Result<(), Failure> {
    let failed =
        |error: &std::io::Error| Failure::input(format!("cannot read the folder {}: {error}", folder.display()));
    let full = std::fs::canonicalize(folder).map_err(|error| failed(&error))?;
    let entries = std::fs::read_dir(&full).map_err(|error| failed(&error))?;
    let existing = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_written = |name: &str| files.iter().any(|file| file.folder == full && file.name == *name);
    let mut stale: Vec<String> = existing.filter(|name| is_result(name) && !is_written(name)).collect();
    stale.sort_unstable();
    let is_replaceable = |name: &String| replace == Replace::All || record::origin(&full.join(name)) == Origin::Command;
    let (replaceable, others): (Vec<String>, Vec<String>) = stale.into_iter().partition(is_replaceable);
    if !others.is_empty() {
        return Err(foreign(&others));
    }
    commit_and_remove(files, &replaceable.iter().map(|name| full.join(name)).collect::<Vec<_>>())
}

/// Folder for temporary files, removed on drop or when the process is stopped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a folder that only its owner can read.
    ///
    /// # Errors
    /// [`Failure`]: the folder cannot be created.
    pub fn new(stem: &str) -> Result<Self, Failure> {
        let folder = stages().make_scratch(stem);
        folder.map(Self).map_err(|error| Failure::Failed(format!("cannot make a folder for temporary files: {error}")))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        stages().remove_scratch(&self.0);
    }
}
