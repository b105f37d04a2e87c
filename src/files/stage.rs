//! Staging folders, in which files wait until all files of a command are complete.
//!
//! `.fabricast-PID-N.partial` contains a lock, held for the lifetime of its process, and the files under their own
//! names. When all files are complete, the folder is renamed to `.fabricast-PID-N.commit`, and the files are moved to
//! their destinations. The next process that opens the destination folder recovers the staging folders of killed
//! processes, whose locks are free: partial folders are removed, and started moves are finished, so that old and new
//! files are not mixed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const LOCK: &str = "lock";
const FILES: &str = "files";
/// File with the names of the files that a commit removes, each terminated by a zero byte.
const STALE: &str = "stale";

/// Temporary files and folders of this process.
#[derive(Default)]
pub struct StagingFolders {
    /// Staging folders by destination folder.
    stages: BTreeMap<PathBuf, StagingFolder>,
    /// Created folders without files yet, outer ones first.
    created: Vec<PathBuf>,
    /// Folders for temporary files.
    scratch: Vec<PathBuf>,
}

/// Staging folder of this process.
struct StagingFolder {
    root: PathBuf,
    /// Lock, held until the folder is removed.
    _lock: File,
    names: BTreeSet<OsString>,
}

static STAGES: Mutex<StagingFolders> =
    Mutex::new(StagingFolders { stages: BTreeMap::new(), created: Vec::new(), scratch: Vec::new() });

/// Locks the staging folders. Files are staged and moved only under this lock.
pub fn stages() -> MutexGuard<'static, StagingFolders> {
    STAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes staged and temporary files and prevents new ones, before the process ends.
pub fn remove_all_and_block() {
    let mut stages = stages();
    stages.clear();
    std::mem::forget(stages);
}

impl StagingFolders {
    /// Removes all staged and temporary files, and created folders without files. Errors are ignored.
    pub fn clear(&mut self) {
        for (_, stage) in std::mem::take(&mut self.stages) {
            let _ = std::fs::remove_dir_all(&stage.root);
        }
        for folder in self.scratch.drain(..) {
            let _ = std::fs::remove_dir_all(folder);
        }
        for folder in self.created.drain(..).rev() {
            // Removes empty folders only.
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Creates a folder and its missing ancestors, to be removed if nothing is written to them.
    ///
    /// # Errors
    /// The file system's error if a folder cannot be created.
    pub fn make_folder(&mut self, folder: &Path) -> Result<()> {
        let missing: Vec<&Path> = folder
            .ancestors()
            .filter(|ancestor| !ancestor.as_os_str().is_empty())
            .take_while(|ancestor| !ancestor.exists())
            .collect();
        std::fs::create_dir_all(folder)?;
        for created in missing.into_iter().rev() {
            self.created.push(std::fs::canonicalize(created)?);
        }
        Ok(())
    }

    /// Creates a file in the staging folder of a destination folder.
    ///
    /// # Errors
    /// The file system's error. In particular, a file with this name must not be staged already.
    pub fn open(&mut self, folder: &Path, name: &OsStr) -> Result<File> {
        let stage = match self.stages.entry(folder.to_owned()) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => {
                sweep(folder);
                vacant.insert(StagingFolder::new(folder)?)
            }
        };
        let file = File::create_new(stage.root.join(FILES).join(name))?;
        stage.names.insert(name.to_owned());
        Ok(file)
    }

    /// Sets the permissions of a staged file.
    ///
    /// # Errors
    /// The file system's error.
    #[cfg(unix)]
    #[cfg(feature = "serve")]
    pub fn set_permissions(&self, folder: &Path, name: &OsStr, permissions: std::fs::Permissions) -> Result<()> {
        let stage = self.stages.get(folder).ok_or(ErrorKind::NotFound)?;
        std::fs::set_permissions(stage.root.join(FILES).join(name), permissions)
    }

    /// Removes a staged file, if there is one, and the staging folder with its last file.
    pub fn drop_file(&mut self, folder: &Path, name: &OsStr) {
        let Some(stage) = self.stages.get_mut(folder).filter(|stage| stage.names.contains(name)) else { return };
        stage.names.remove(name);
        // Errors are ignored.
        let _ = std::fs::remove_file(stage.root.join(FILES).join(name));
        if stage.names.is_empty() {
            let _ = std::fs::remove_dir_all(&stage.root);
            self.stages.remove(folder);
            if self.stages.is_empty() {
                for folder in self.created.drain(..).rev() {
                    let _ = std::fs::remove_dir(folder);
                }
            }
        }
    }

    /// Moves all staged files of a folder to their destinations, and removes the stale files of that folder.
    ///
    /// # Errors
    /// The file system's error if a file cannot be moved or removed. Files that were already moved stay in place.
    pub fn commit(&mut self, folder: &Path, stale: &[OsString]) -> Result<()> {
        let Some(mut stage) = self.stages.remove(folder) else {
            return stale.iter().try_for_each(|name| std::fs::remove_file(folder.join(name)));
        };
        if !stale.is_empty() {
            let names: Vec<u8> = stale.iter().flat_map(|name| [name.as_encoded_bytes(), b"\0"].concat()).collect();
            std::fs::write(stage.root.join(STALE), names)?;
        }
        let root = stage.root.with_extension("commit");
        std::fs::rename(&stage.root, &root)?;
        stage.root = root;
        for name in &stage.names {
            std::fs::rename(stage.root.join(FILES).join(name), folder.join(name))?;
        }
        stale.iter().try_for_each(|name| std::fs::remove_file(folder.join(name)))?;
        self.created.retain(|created| !folder.starts_with(created));
        std::fs::remove_dir_all(&stage.root)
    }

    /// Creates a folder for temporary files with an unpredictable name. It is removed when the process is stopped.
    ///
    /// # Errors
    /// The file system's error if the folder cannot be created.
    pub fn make_scratch(&mut self, stem: &str) -> Result<PathBuf> {
        use std::hash::{BuildHasher, Hasher};
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        loop {
            // The standard library seeds the hasher randomly.
            let random = std::hash::RandomState::new().build_hasher().finish();
            let folder = std::env::temp_dir().join(format!("{stem}-{random:016x}"));
            match builder.create(&folder) {
                Ok(()) => {
                    self.scratch.push(folder.clone());
                    return Ok(folder);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes a folder for temporary files.
    pub fn remove_scratch(&mut self, folder: &Path) {
        self.scratch.retain(|other| other != folder);
        let _ = std::fs::remove_dir_all(folder);
    }
}

impl StagingFolder {
    fn new(folder: &Path) -> Result<Self> {
        let process = std::process::id();
        // Files that only their owner may read are not yet restricted when they are staged.
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        for number in 0..u32::MAX {
            let root = folder.join(format!(".fabricast-{process}-{number}.partial"));
            match builder.create(&root) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            // Another process may remove the new staging folder before it is locked; another one is then created.
            if let Ok(lock) = File::create_new(root.join(LOCK))
                && !matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock))
                && std::fs::create_dir(root.join(FILES)).is_ok()
            {
                return Ok(Self { root, _lock: lock, names: BTreeSet::new() });
            }
            if !root.exists() {
                continue;
            }
            let _ = std::fs::remove_dir_all(&root);
            return Err(Error::other(format!("nothing can be made in {}", root.display())));
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

/// Removes staging folders of ended processes. Errors are ignored.
pub fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if let Some(phase) = entry.file_name().to_str().and_then(Phase::from_name)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            let _ = recover(folder, &entry.path(), phase);
        }
    }
}

/// Phase in which the process of a staging folder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Files were being written.
    Partial,
    /// All files were complete, and moves had started.
    Commit,
}

impl Phase {
    /// Phase encoded in the name of a staging folder.
    fn from_name(name: &str) -> Option<Self> {
        let (numbers, phase) = name.strip_prefix(".fabricast-")?.rsplit_once('.')?;
        let (process, number) = numbers.split_once('-')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match phase {
            _ if !is_number(process) || !is_number(number) => None,
            "partial" => Some(Self::Partial),
            "commit" => Some(Self::Commit),
            _ => None,
        }
    }
}

/// Recovers one staging folder, unless its process is alive.
fn recover(folder: &Path, root: &Path, phase: Phase) -> Result<()> {
    let lock = match OpenOptions::new().read(true).write(true).open(root.join(LOCK)) {
        Ok(lock) => lock,
        // A process that was killed before it created the lock leaves an empty folder, which is removed. A folder with
        // other contents does not belong to fabricast.
        Err(_) => return std::fs::remove_dir(root),
    };
    // On file systems without locks, it is unknown if the process is alive, so the folder is not removed.
    if lock.try_lock().is_err() {
        return Ok(());
    }
    let entries = std::fs::read_dir(root)?.collect::<Result<Vec<_>>>()?;
    if entries.iter().any(|entry| ![LOCK, FILES, STALE].iter().any(|known| entry.file_name() == *known)) {
        return Ok(());
    }
    if phase == Phase::Commit {
        finish_moves(folder, root)?;
    }
    std::fs::remove_dir_all(root)
}

/// Finishes the moves of a killed process. Files changed since the moves started are retained.
fn finish_moves(folder: &Path, root: &Path) -> Result<()> {
    let started = std::fs::metadata(root.join(LOCK))?.modified()?;
    let is_unchanged = |path: &Path| match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.is_file() && metadata.modified().is_ok_and(|modified| modified <= started),
        Err(_) => true,
    };
    for file in std::fs::read_dir(root.join(FILES))? {
        let (from, to) = (file.as_ref().map(std::fs::DirEntry::path), file.as_ref().map(std::fs::DirEntry::file_name));
        if let (Ok(from), Ok(name)) = (from, to)
            && is_unchanged(&folder.join(&name))
        {
            std::fs::rename(from, folder.join(name))?;
        }
    }
    let stale = std::fs::read(root.join(STALE)).unwrap_or_default();
    for name in stale.split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let path = folder.join(name);
        if !name.is_empty() && path.is_file() && is_unchanged(&path) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Creates a staging folder as a killed process leaves it, with these files.
    fn create_abandoned_folder(folder: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = folder.join(name);
        std::fs::create_dir_all(root.join(FILES)).unwrap();
        std::fs::write(root.join(LOCK), "").unwrap();
        files.iter().for_each(|(file, text)| std::fs::write(root.join(FILES).join(file), text).unwrap());
        root
    }

    #[test]
    fn only_leftovers_of_killed_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        create_abandoned_folder(path, ".fabricast-1-0.partial", &[("plan.json", "half")]);
        std::fs::create_dir(path.join(".fabricast-2-0.partial")).unwrap();
        // Folders of a live process, of the user, and of other programs are not removed.
        let alive = create_abandoned_folder(path, ".fabricast-3-7.partial", &[("plan.json", "half")]);
        let lock = File::options().write(true).open(alive.join(LOCK)).unwrap();
        lock.lock().unwrap();
        std::fs::write(path.join(".fabricast-4-0.partial"), "a file").unwrap();
        std::fs::write(create_abandoned_folder(path, ".fabricast-5-0.partial", &[]).join("notes"), "mine").unwrap();
        create_abandoned_folder(path, ".fabricast-x-0.partial", &[]);
        std::fs::write(path.join(".plan.json.17.partial"), "mine").unwrap();
        std::fs::create_dir_all(path.join(".fabricast-6-0.partial/files")).unwrap();
        sweep(path);
        let expected = [
            ".fabricast-3-7.partial",
            ".fabricast-4-0.partial",
            ".fabricast-5-0.partial",
            ".fabricast-6-0.partial",
            ".fabricast-x-0.partial",
            ".plan.json.17.partial",
        ];
        assert_eq!(names(path), expected);
        drop(lock);
        sweep(path);
        assert_eq!(names(path), expected[1..]);
    }

    #[test]
    fn started_moves_are_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::write(path.join("two"), "old").unwrap();
        std::fs::write(path.join("gone"), "old").unwrap();
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        for name in ["two", "gone"] {
            File::options().write(true).open(path.join(name)).unwrap().set_modified(old).unwrap();
        }
        let root = create_abandoned_folder(
            path,
            ".fabricast-1-0.commit",
            &[("two", "new"), ("three", "new"), ("edited", "new")],
        );
        std::fs::write(root.join(STALE), "gone\0edited too\0").unwrap();
        // The first file was moved before the process was killed.
        std::fs::write(path.join("one"), "new").unwrap();
        // The user changed the second file afterwards.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        for name in ["edited", "edited too"] {
            std::fs::write(path.join(name), "mine").unwrap();
            File::options().write(true).open(path.join(name)).unwrap().set_modified(later).unwrap();
        }
        sweep(path);
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(names(path), ["edited", "edited too", "one", "three", "two"]);
        assert_eq!(["one", "two", "three", "edited", "edited too"].map(read), ["new", "new", "new", "mine", "mine"]);
    }

    #[test]
    fn staging_folders_are_removed_with_their_last_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let mut stages = StagingFolders::default();
        let file = OsStr::new("a");
        stages.open(path, file).unwrap();
        assert_eq!(stages.open(path, file).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(path).len(), 1);
        stages.drop_file(path, file);
        assert!(names(path).is_empty());
        // A created folder that received no file is removed as well.
        let inner = std::fs::canonicalize(path).unwrap().join("x/y");
        stages.make_folder(&inner).unwrap();
        stages.open(&inner, file).unwrap();
        stages.drop_file(&inner, file);
        assert!(names(path).is_empty());
        stages.make_folder(&inner).unwrap();
        stages.open(&inner, file).unwrap();
        stages.clear();
        assert!(names(path).is_empty());
        std::fs::write(path.join("b"), "").unwrap();
        stages.open(path, file).unwrap();
        stages.commit(path, &["b".into()]).unwrap();
        assert_eq!(names(path), ["a"]);
    }
}
