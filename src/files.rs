//! Files that a command writes: checked before the work, written beside their place, moved there when all are complete.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

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

/// A file that is complete and not yet in its place; dropped before [`Staged::commit`], it leaves nothing behind.
pub struct Staged {
    path: PathBuf,
    waiting: Waiting,
}

enum Waiting {
    /// A neighbour to be moved to the path.
    Neighbour(PathBuf),
    /// The bytes, for what cannot be replaced: a device such as `/dev/stdout`.
    Bytes(Vec<u8>),
    /// Nothing: done.
    Nothing,
}

impl Staged {
    /// Writes the bytes beside the path.
    pub fn new(path: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        check(path)?;
        // A link stays a link: what it points to is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            return Ok(Self { path, waiting: Waiting::Bytes(bytes.to_owned()) });
        }
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.partial", std::process::id()));
        let neighbour = folder_of(&path).join(name);
        let staged = Self { waiting: Waiting::Neighbour(neighbour.clone()), path };
        let written = std::fs::File::create(&neighbour).and_then(|mut file| {
            if let Ok(old) = std::fs::metadata(&staged.path) {
                file.set_permissions(old.permissions())?;
            }
            file.write_all(bytes)
        });
        written.map_err(|error| cannot_write(&staged.path, &error))?;
        Ok(staged)
    }

    /// Puts the file in its place.
    pub fn commit(mut self) -> Result<(), Failure> {
        let done = match &self.waiting {
            Waiting::Neighbour(neighbour) => std::fs::rename(neighbour, &self.path),
            Waiting::Bytes(bytes) => std::fs::write(&self.path, bytes),
            Waiting::Nothing => Ok(()),
        };
        done.map_err(|error| cannot_write(&self.path, &error))?;
        self.waiting = Waiting::Nothing;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Waiting::Neighbour(neighbour) = &self.waiting {
            // Nothing to do where even that fails.
            let _ = std::fs::remove_file(neighbour);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}

/// The folder that a path is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
