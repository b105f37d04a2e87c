//! Files that a command writes: checked before the work, written beside their place, moved there when all are complete.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use crate::failure::Failure;

/// Whether a file can be written there, as far as that shows before the work: its folder exists, and it is no folder.
pub fn check(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::input(format!("cannot write {}: it is a folder; expected a file", path.display())));
    }
    let folder = folder_of(path);
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::input_with_help(
        format!("cannot write {}: there is no folder {}", path.display(), folder.display()),
        "make the folder first, or name another",
    ))
}

/// The neighbours that wait to be moved to their places. They are made and moved only while this is held.
static NEIGHBOURS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn neighbours() -> MutexGuard<'static, Vec<PathBuf>> {
    NEIGHBOURS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes away what waits for its place, and lets nothing take its place any more: the process is about to end.
pub fn abandon() {
    let mut neighbours = neighbours();
    for neighbour in neighbours.drain(..) {
        // Nothing to do where even that fails.
        let _ = std::fs::remove_file(neighbour);
    }
    std::mem::forget(neighbours);
}

/// A file that is complete and not yet in its place; dropped before [`commit`], it leaves nothing behind.
pub struct Staged {
    path: PathBuf,
    waiting: Waiting,
}

enum Waiting {
    /// A neighbour to be moved to the path.
    Neighbour(PathBuf),
    /// The bytes, for what cannot be replaced: a device such as `/dev/stdout`.
    Bytes(Vec<u8>),
    /// Nothing: the file is there already, byte for byte.
    Nothing,
}

impl Staged {
    /// Writes the bytes beside the path.
    pub fn new(path: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        Self::of_parts(path, [bytes])
    }

    /// The same of bytes in several parts, one after the other.
    pub fn of_parts<const N: usize>(path: &Path, parts: [&[u8]; N]) -> Result<Self, Failure> {
        check(path)?;
        // A link stays a link: what it points to is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            return Ok(Self { path, waiting: Waiting::Bytes(parts.concat()) });
        }
        // What takes a file's place makes the file system write it out at once, which is most of the time of many files.
        if has(&path, &parts) {
            return Ok(Self { path, waiting: Waiting::Nothing });
        }
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.partial", std::process::id()));
        let neighbour = folder_of(&path).join(name);
        let created = {
            let mut neighbours = neighbours();
            neighbours.push(neighbour.clone());
            std::fs::File::create(&neighbour)
        };
        let staged = Self { waiting: Waiting::Neighbour(neighbour), path };
        let written = created.and_then(|mut file| {
            if let Ok(old) = std::fs::metadata(&staged.path) {
                file.set_permissions(old.permissions())?;
            }
            parts.iter().try_for_each(|part| file.write_all(part))
        });
        written.map_err(|error| cannot_write(&staged.path, &error))?;
        Ok(staged)
    }
}

/// Puts files in their places, all of them at once as far as anyone who stops the process can tell.
pub fn commit(files: &[Staged]) -> Result<(), Failure> {
    for file in files {
        // A device may take its time, or all of it: it is written before anything moves.
        if let Waiting::Bytes(bytes) = &file.waiting {
            std::fs::write(&file.path, bytes).map_err(|error| cannot_write(&file.path, &error))?;
        }
    }
    let mut neighbours = neighbours();
    for file in files {
        if let Waiting::Neighbour(neighbour) = &file.waiting {
            std::fs::rename(neighbour, &file.path).map_err(|error| cannot_write(&file.path, &error))?;
            neighbours.retain(|other| other != neighbour);
        }
    }
    Ok(())
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Waiting::Neighbour(neighbour) = &self.waiting else { return };
        let mut neighbours = neighbours();
        if let Some(place) = neighbours.iter().position(|other| other == neighbour) {
            neighbours.swap_remove(place);
            // Nothing to do where even that fails.
            let _ = std::fs::remove_file(neighbour);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}

/// Whether a file has these bytes and no others.
fn has(path: &Path, parts: &[&[u8]]) -> bool {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if !std::fs::metadata(path).is_ok_and(|old| old.len() == len as u64) {
        return false;
    }
    let begins_with = |rest: &mut &[u8], part: &[u8]| rest.split_off(..part.len()).is_some_and(|head| head == part);
    std::fs::read(path).is_ok_and(|old| {
        let mut rest = old.as_slice();
        parts.iter().all(|part| begins_with(&mut rest, part)) && rest.is_empty()
    })
}

/// The folder that a path is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A text that waits to be moved to its place in a folder, which is made if it is missing; ends with one line end.
pub fn staged_in(folder: &Path, name: impl AsRef<Path>, text: &str) -> Result<Staged, Failure> {
    make_folder(folder)?;
    Staged::of_parts(&folder.join(name), [text.trim_end_matches('\n').as_bytes(), b"\n"])
}

fn make_folder(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::input(format!("cannot make the folder {}: {error}", folder.display())))
}

/// Writes files into a folder, which is made if it is missing: all of them, or none.
pub fn write_folder<N: AsRef<Path> + Sync, C: AsRef<[u8]> + Sync>(
    folder: &Path,
    contents: &[(N, C)],
) -> Result<(), Failure> {
    make_folder(folder)?;
    let staged = contents.par_iter().map(|(name, bytes)| match std::str::from_utf8(bytes.as_ref()) {
        Ok(text) => staged_in(folder, name, text),
        Err(_) => Staged::new(&folder.join(name), bytes.as_ref()),
    });
    // Of several that fail the first is told, whichever was first to fail.
    let staged: Vec<Result<Staged, Failure>> = staged.collect();
    commit(&staged.into_iter().collect::<Result<Vec<_>, _>>()?)
}
